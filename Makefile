# nmt: `make demo` and `make test` do all their own set-up, in .venv; `make` lists the targets.
# Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python

# A Python that was named is the one .venv must have; the default one takes .venv as it is.
SETUP_FLAGS := $(if $(filter file,$(origin PYTHON)),,--this-python)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint type smoke bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup:  ## install nmt and its tools into .venv, if they are not there yet
	@$(PYTHON) -c "" 2>/dev/null || { echo "cannot run $(PYTHON): install Python 3.11 to 3.14 and name it, as in make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) scripts/setup_venv.py $(SETUP_FLAGS)

demo: setup  ## train a small translator on the embedded captions, score it and use it
	@bash scripts/demo.sh

test: setup  ## run the tests
	$(VENV_PYTHON) -m pytest

lint: setup  ## check style and format
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .

type: setup  ## check types
	$(VENV_PYTHON) -m mypy

smoke: setup  ## run the whole pipeline in a minute, in a temporary folder
	@bash scripts/smoke.sh

bench: setup  ## measure speed
	$(VENV_PYTHON) scripts/benchmark.py

clean:  ## remove .venv and the tools' caches; data/ and runs/ stay
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
