"""The targets of the Makefile, their set-up and their scripts, with stand-ins for whatever takes long."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nmt.data.captions import generate

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("setup", "demo", "test", "lint", "type", "smoke", "bench")

pytestmark = pytest.mark.skipif(
    os.name == "nt" or shutil.which("make") is None or shutil.which("bash") is None,
    reason="needs make and bash",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, the scripts and what they look at, but nothing to install."""
    folder = tmp_path / "a checkout"
    (folder / ".ci").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def command(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def python_that(folder: Path, difference: str) -> Path:
    """A Python that is the running one, but for a statement that is run before each script."""
    start = "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    code = f"import runpy, sys; {difference}; {start}"
    return command(
        folder / "other-python",
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexec {sys.executable} -c "{code}" "$@"\n',
    )


def run(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "NMT_"))
    }
    clean.pop("PYTHON", None)
    return subprocess.run(
        words, cwd=folder, env={**clean, **environ}, capture_output=True, encoding="utf-8", timeout=60
    )


# --- make -------------------------------------------------------------------------------------------------


def test_make_alone_lists_every_target() -> None:
    answer = run(ROOT, "make")
    assert answer.returncode == 0
    assert all(f"make {target} " in answer.stdout for target in TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_sets_up_first_and_then_calls_what_is_there(target: str) -> None:
    answer = run(ROOT, "make", "--dry-run", "--no-print-directory", target)
    assert answer.returncode == 0, answer.stderr
    assert "scripts/setup_venv.py" in answer.stdout
    called = [
        word for line in answer.stdout.splitlines() for word in line.split() if word.startswith("scripts/")
    ]
    assert all((ROOT / word).is_file() for word in called)


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ("sys.version_info = (3, 10, 4, 'final', 0)", ["3.11 to 3.14", "3.10", "make PYTHON="]),
        ("sys.version_info = (3, 15, 0, 'final', 0)", ["3.11 to 3.14", "3.15", "make PYTHON="]),
        ("sys.modules['ensurepip'] = None", ["venv", "apt install", "make PYTHON="]),
        ("sys.modules['venv'] = None", ["venv", "apt install", "make PYTHON="]),
    ],
)
def test_a_python_that_will_not_do_gives_one_line_before_anything_is_made(
    checkout: Path, difference: str, words: list[str]
) -> None:
    python = python_that(checkout.parent, difference)
    answer = run(checkout, "make", f"PYTHON={python}", "test")
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("make")]
    assert answer.returncode != 0
    assert len(lines) == 1
    assert all(word in lines[0] for word in words)
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_there_gives_one_line(checkout: Path) -> None:
    answer = run(checkout, "make", "PYTHON=no-such-python", "demo")
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("make")]
    assert answer.returncode != 0
    assert len(lines) == 1
    assert "no-such-python" in lines[0]
    assert "make PYTHON=" in lines[0]


# --- set-up -----------------------------------------------------------------------------------------------


class Setup:
    """scripts/setup_venv.py with its commands noted instead of run; creating leaves a .venv."""

    def __init__(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkout = checkout
        self.version = ""
        self.done: list[str] = []
        self.failing = ""
        self.monkeypatch = monkeypatch

    def __call__(self, *flags: str) -> list[str]:
        """What one run of the script does: some of `create` and `install`."""
        script = self._load()
        self.done.clear()
        self.monkeypatch.setattr(sys, "argv", ["setup_venv.py", *flags])
        self.monkeypatch.setattr(script, "venv_version", lambda: self.version)
        self.monkeypatch.setattr(script, "run", lambda words: self._pretend(script, words))
        script.main()
        return list(self.done)

    def _load(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            "setup_venv", self.checkout / "scripts" / "setup_venv.py"
        )
        assert spec
        assert spec.loader
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        return script

    def _pretend(self, script: ModuleType, words: list[str]) -> None:
        step = "create" if "venv" in words else "install"
        if step == self.failing:
            raise SystemExit(f"failed: {step}")
        self.done.append(step)
        if step == "create":
            Path(script.VENV_PYTHON).parent.mkdir(parents=True)
            Path(script.VENV_PYTHON).touch()
            self.version = script.this_version()
        else:
            assert words[-3:] == [str(self.checkout / "constraints.txt"), "-e", f"{self.checkout}[dev]"]


@pytest.fixture
def setup(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(checkout, monkeypatch)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_the_environment_is_kept_until_what_it_holds_changes(setup: Setup, checkout: Path, name: str) -> None:
    assert setup() == ["create", "install"]
    assert setup() == []
    (checkout / name).touch()
    assert setup() == []
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    assert setup() == ["install"]
    assert setup() == []


def test_an_installation_that_failed_is_tried_again(setup: Setup) -> None:
    setup.failing = "install"
    with pytest.raises(SystemExit):
        setup()
    setup.failing = ""
    assert setup() == ["install"]


def test_a_broken_environment_is_made_anew(setup: Setup, checkout: Path) -> None:
    setup()
    (checkout / ".venv" / "bin" / "python").unlink()
    setup.version = ""
    assert setup() == ["create", "install"]


def test_another_python_that_is_asked_for_makes_it_anew_and_is_then_kept(setup: Setup) -> None:
    setup()
    setup.version = "3.99.1"
    assert setup() == []
    assert setup("--this-python") == ["create", "install"]
    assert setup("--this-python") == []


def test_a_moved_checkout_is_installed_again(setup: Setup, checkout: Path) -> None:
    setup()
    moved = checkout.rename(checkout.with_name("elsewhere"))
    setup.checkout = moved
    assert setup() == ["install"]


# --- the scripts ------------------------------------------------------------------------------------------

GOOD_NMT = """#!/bin/sh
echo "$*" >> "$LOG"
case $1 in
    train) mkdir -p runs/smoke && echo model > runs/smoke/best.safetensors ;;
    evaluate) echo "BLEU 50.0" ;;
    translate) echo "A dog runs." ;;
esac
"""


def run_script(checkout: Path, name: str, nmt: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command(checkout / ".venv" / "bin" / "nmt", nmt)
    return run(checkout, "bash", f"scripts/{name}", LOG=str(checkout / "log"), **environ)


def test_the_smoke_goes_through_all_commands_and_leaves_nothing_behind(
    checkout: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    answer = run_script(checkout, "smoke.sh", GOOD_NMT, TMPDIR=str(temporary))
    assert answer.returncode == 0, answer.stderr
    assert "smoke passed" in answer.stdout
    commands = [line.split()[0] for line in (checkout / "log").read_text().splitlines()]
    assert commands == ["train", "evaluate", "translate"]
    assert list(temporary.iterdir()) == []
    assert not (checkout / "runs").exists()


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        ("&& echo model > runs/smoke/best.safetensors", "", "no runs/smoke/best.safetensors"),
        ("BLEU 50.0", "nothing", "no BLEU"),
        ('echo "A dog runs."', "echo A dog; echo runs.", "not one line"),
        ('echo "$*"', "echo out of disk >&2; exit 2 #", "out of disk"),
        ("evaluate)", "evaluate) sleep 1.1;", "more than 0 s"),
    ],
)
def test_the_smoke_fails_where_a_part_does_not_do_its_work(
    checkout: Path, good: str, bad: str, reason: str
) -> None:
    assert good in GOOD_NMT
    limit = {"SMOKE_LIMIT_S": "0"} if "more than" in reason else {}
    answer = run_script(checkout, "smoke.sh", GOOD_NMT.replace(good, bad), **limit)
    assert answer.returncode != 0
    assert reason in answer.stderr
    assert "smoke passed" not in answer.stdout


def test_the_demo_shows_each_command_as_one_would_type_it(checkout: Path) -> None:
    answer = run_script(checkout, "demo.sh", GOOD_NMT)
    assert answer.returncode == 0, answer.stderr
    shown = [line.removeprefix("$ nmt ") for line in answer.stdout.splitlines() if line.startswith("$ nmt ")]
    assert [line.split()[0] for line in shown] == ["prepare", "train", "evaluate", "translate", "translate"]
    assert [line.replace('"', "") for line in shown] == (checkout / "log").read_text("utf-8").splitlines()


def test_the_demo_ends_with_the_model_that_comes_with_nmt_and_says_whence_it_is(checkout: Path) -> None:
    lines = run_script(checkout, "demo.sh", GOOD_NMT).stdout.splitlines()
    told, _, command, answer = lines[-4:]
    assert command.startswith("$ nmt translate --model multi30k-de-en ")
    assert answer == "A dog runs."
    assert "Multi30k" in told
    (card,) = re.findall(r"nmt/\S+\.md", told)
    assert (ROOT / card).is_file()


def test_the_demo_translates_sentences_that_training_has_not_seen_in_words_that_it_has() -> None:
    trained = {pair.source for pair in generate()["train"]}
    words = {word for sentence in trained for word in re.findall(r"\w+", sentence)}
    shown = re.findall(r'^    "([^"$]+)"', (ROOT / "scripts" / "demo.sh").read_text("utf-8"), re.M)
    assert len(shown) == 3
    assert not trained & set(shown)
    assert {word for sentence in shown for word in re.findall(r"\w+", sentence)} <= words


def test_the_demo_stops_where_a_command_fails(checkout: Path) -> None:
    answer = run_script(checkout, "demo.sh", '#!/bin/sh\n[ "$1" = prepare ]\n')
    assert answer.returncode != 0
    assert "$ nmt evaluate" not in answer.stdout


# --- CI ---------------------------------------------------------------------------------------------------

FAKE_MAKEFILE = """
setup lint type smoke test:
	@echo "$@ NMT_MULTI30K=$$NMT_MULTI30K"
	@test $@ != "$(FAILING)"
.PHONY: setup lint type smoke test
"""


def test_ci_runs_every_check_and_the_tests_last(checkout: Path) -> None:
    (checkout / "Makefile").write_text(FAKE_MAKEFILE, encoding="utf-8")
    answer = run(checkout.parent, "bash", str(checkout / ".ci" / "run"))
    assert answer.returncode == 0, answer.stderr
    ran = [line for line in answer.stdout.splitlines() if "NMT_MULTI30K" in line]
    assert ran == [f"{target} NMT_MULTI30K=" for target in ("setup", "lint", "type", "smoke", "test")]


@pytest.mark.parametrize("failing", ["setup", "lint", "type", "smoke", "test"])
def test_ci_fails_where_any_part_fails(checkout: Path, failing: str) -> None:
    (checkout / "Makefile").write_text(FAKE_MAKEFILE, encoding="utf-8")
    assert run(checkout, "bash", ".ci/run", FAILING=failing).returncode != 0


def test_ci_takes_multi30k_from_beside_the_checkout_unless_told_otherwise(checkout: Path) -> None:
    (checkout / "Makefile").write_text(FAKE_MAKEFILE, encoding="utf-8")
    beside = checkout.parent / "shared" / "multi30k"
    beside.mkdir(parents=True)
    assert f"test NMT_MULTI30K={beside}" in run(checkout, "bash", ".ci/run").stdout
    assert "test NMT_MULTI30K=/mine" in run(checkout, "bash", ".ci/run", NMT_MULTI30K="/mine").stdout
