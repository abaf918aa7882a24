"""Grid files: strict YAML in, every run out, each with a config that was checked."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

# The YAML of configs: `1e-4` is a number, no key stands twice, and each has its line.
from nmt.config import Alpha, Config, Count, NotNegative, Section, load_config, read_yaml
from nmt.errors import ConfigError


def _free(key: str) -> str:
    if key in ("seed", "name"):
        raise ValueError("the runs have their names and `seeds`")
    return key


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError("write each key by itself, as in train.epochs: 3")
    return value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Key = Annotated[str, AfterValidator(_free)]
Value = Annotated[Any, AfterValidator(_plain)]
Settings = dict[Key, Value]
Seeds = Annotated[tuple[NotNegative, ...], Field(strict=False, min_length=1)]


class Scoring(Section):
    """A split to score and how to search for its translations; null takes the run's own settings."""

    split: str
    beam: Count | None = None
    length_penalty: Alpha | None = None

    @property
    def label(self) -> str:
        """What the score is called."""
        beam = "" if self.beam is None else f", beam {self.beam}"
        return self.split + beam + ("" if self.length_penalty is None else f", alpha {self.length_penalty:g}")

    @property
    def options(self) -> list[str]:
        """What `nmt evaluate` is told."""
        beam = [] if self.beam is None else ["--beam", str(self.beam)]
        alpha = [] if self.length_penalty is None else ["--length-penalty", str(self.length_penalty)]
        return ["--split", self.split, *beam, *alpha]


class RunSpec(Section):
    """What one run has for itself."""

    settings: Settings = Field(default={})
    seeds: Seeds | None = None


class Grid(Section):
    """A grid file."""

    config: str = "base.yaml"
    """What all runs begin with: a path, or the name of a config that comes with nmt."""
    settings: Settings = Field(default={})
    """What all runs have otherwise, as `nmt train --set` takes it."""
    seeds: Seeds = (1,)
    runs: dict[Name, RunSpec | None] = Field(default={})
    """By name; the first is what the others are compared with."""
    grid: dict[Key, Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]] = Field(default={})
    """Values of each key: every combination is one more run, named after them."""
    evaluate: Annotated[tuple[Scoring, ...], Field(strict=False)] = ()
    """What is scored after training. Settings are chosen on val alone: name test splits at the very end."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training: a name, a seed, and all that follows from them."""

    name: str
    seed: int
    settings: Settings
    """What it has for itself."""
    overrides: tuple[str, ...]
    """What `--set` is given, in order."""
    config: Config

    @property
    def folder_name(self) -> str:
        """Unique among the runs."""
        return f"{self.name}-seed{self.seed}"


def read_grid(path: Path) -> Grid:
    """The grid of a file; raises ConfigError, which names file, line and key, and the known ones."""
    values, places = read_yaml(path)
    try:
        return Grid.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    where = tuple(str(part) for part in fault["loc"] if part != "[key]")
    inner: dict[str, type[Section]] = {"runs": RunSpec, "evaluate": Scoring}
    known = inner.get(where[0], Grid) if len(where) > 1 else Grid
    written = next(where[:end] for end in range(len(where), 0, -1) if where[:end] in places)
    place, key = f"{path}, line {places[written][1]}: ", ".".join(where)
    hint = f"known here: {', '.join(known.model_fields)}"
    if fault["type"] == "extra_forbidden":
        raise ConfigError(f"{place}unknown key {key}", hint=hint)
    if fault["type"] == "missing":
        raise ConfigError(f"{place}missing key {key}", hint=hint)
    if fault["type"] == "value_error":
        raise ConfigError(f"{place}{key}: {fault['ctx']['error']}")
    raise ConfigError(f"{place}{key}: {_MESSAGES.get(fault['type']) or fault['msg'].removeprefix('Input ')}")


_MESSAGES = {
    "too_short": "should not be empty",
    "tuple_type": "should be a list, such as [a, b]",
    "string_pattern_mismatch": "should be of letters, digits, dots, dashes and underscores",
}
"""Our words for some of pydantic's complaints."""


def planned(path: Path, grid: Grid) -> list[Run]:
    """Every run of a grid, each with a config that was checked; raises ConfigError naming the run."""
    specs = [(name, spec or RunSpec()) for name, spec in grid.runs.items()]
    specs += [(name, RunSpec(settings=settings)) for name, settings in product(grid.grid)]
    runs = []
    for name, spec in specs:
        for seed in spec.seeds or grid.seeds:
            words = tuple(f"{key}={as_yaml(value)}" for key, value in (grid.settings | spec.settings).items())
            words += (f"seed={seed}", f"name={name}-seed{seed}")
            try:
                config = load_config(grid.config, overrides=words)
            except ConfigError as error:
                raise ConfigError(f"{path}: run {name}: {error.message}", hint=error.hint) from error
            runs.append(Run(name, seed, spec.settings, words, config))
    for what, names in (
        ("run", [run.folder_name for run in runs]),
        ("score", [scoring.label for scoring in grid.evaluate]),
    ):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"{path}: {what} {twice} is there twice")
    if not runs:
        raise ConfigError(f"{path}: no runs", hint="name some under `runs:`, or values under `grid:`")
    return runs


def product(grid: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Settings]]:
    """Every combination of the values, with a name: `dropout-0.1_heads-4`."""
    last = [key.rpartition(".")[2] for key in grid]
    short = [word if last.count(word) == 1 else key for key, word in zip(grid, last, strict=True)]
    for values in itertools.product(*grid.values()) if grid else ():
        parts = [re.sub(r"[^A-Za-z0-9._-]+", " ", as_yaml(value)).strip() for value in values]
        words = [f"{key}-{part.replace(' ', '-')}" for key, part in zip(short, parts, strict=True)]
        yield "_".join(words), dict(zip(grid, values, strict=True))


def as_yaml(value: Any) -> str:
    """A value as `--set` reads it."""
    return json.dumps(value, ensure_ascii=False)
