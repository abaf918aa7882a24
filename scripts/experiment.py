"""Train and score a grid of settings, one run after the other, and show what came of it.

    python scripts/experiment.py scripts/experiments/captions.yaml                do what is not done yet
    python scripts/experiment.py scripts/experiments/ablation.yaml --only base r-drop-1
    python scripts/experiment.py scripts/experiments/ablation.yaml --table --plot    show it, training nothing

Each run is trained and scored by `nmt` in processes of its own, so that one that dies takes no other with it.
The same command goes on where an earlier one was stopped. In DIR, by default runs/experiments/GRID, are a run
folder NAME-seedN for each run, results.jsonl with a line for each that is done, and bleu.png.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.grid import Grid, Run, Scoring, planned, read_grid
from experiments.results import Row, append, by_name_and_seed, draw, table, told

from nmt.cli import exits
from nmt.config import Config, load_config
from nmt.errors import ConfigError
from nmt.runtime import StopSignals, exit_code
from nmt.training.tracking import read_events

RESULTS, PICTURE, CONFIG = "results.jsonl", "bleu.png", "config.yaml"
POLL_S = 0.1
NOT_THE_MACHINE = ("started", "command", "git", "step", "processes", "data")
"""What an entry of environment.json holds beside what the run was made with."""


class StoppedError(Exception):
    """A signal has asked to stop; the process that was at work has saved its state."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class FailedError(Exception):
    """A command has failed and said why."""


def is_done(run: Run, grid: Grid, rows: Sequence[Row]) -> bool:
    """Whether results.jsonl has the run with all scores that the grid asks for."""
    row = by_name_and_seed(rows).get(run.name, {}).get(run.seed)
    return row is not None and {scoring.label for scoring in grid.evaluate} <= row["scores"].keys()


def refuse_changed(run: Run, grid: Grid, out: Path, rows: Sequence[Row]) -> None:
    """Refuse to go on with a run, or to count one as done, that had other settings; raises ConfigError."""
    row, before = by_name_and_seed(rows).get(run.name, {}).get(run.seed), out / run.folder_name / CONFIG
    changed: list[str] = []
    if row is not None:
        now = {"config": grid.config, **grid.settings, **run.settings}
        changed += differing({"config": row["config"], **row["shared"], **row["settings"]}, now)
    if before.exists():
        changed += differing(decisive(load_config(before)), decisive(run.config))
    if changed:
        raise ConfigError(
            f"{out} has {run.folder_name} with other settings: {', '.join(dict.fromkeys(changed))}",
            hint=f"give the run another name, take another --out, or delete its folder and line of {RESULTS}",
        )


def decisive(config: Config) -> dict[str, Any]:
    """The settings that make it another run; `nmt train` itself looks at those of the data."""
    sections = {name: getattr(config, name) for name in ("model", "train", "decode")}
    values = {f"{name}.{key}": value for name, section in sections.items() for key, value in section}
    return {"precision": config.precision, **values}


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys that only one has, or that have another value."""
    return [key for key in {**then, **now} if key not in then or key not in now or then[key] != now[key]]


def prepare_all(path: Path, grid: Grid, runs: Sequence[Run]) -> None:
    """Prepare the data of all runs; raises ConfigError where a split that is to be scored is not there."""
    from nmt.prepare import open_or_prepare

    for config in {run.config.data_hash(): run.config for run in runs}.values():
        data = open_or_prepare(config)[1]
        for scoring in grid.evaluate:
            if scoring.split not in (data.val, *data.tests):
                known = ", ".join((data.val, *data.tests))
                raise ConfigError(
                    f"{path}: evaluate: there is no split {scoring.split}", hint=f"known: {known}"
                )


def carry_out(run: Run, grid: Grid, out: Path, stop: StopSignals) -> Row:
    """Train a run, or go on with it, and score it; its line of results.jsonl.

    Raises FailedError, and StoppedError after a signal.
    """
    folder = out / run.folder_name
    words = ["--run-dir", str(folder), *(["--resume"] if folder.exists() else [])]
    words += [word for override in run.overrides for word in ("--set", override)]
    run_nmt(["train", "--config", grid.config, *words], stop)
    parts = json.loads(run_nmt(["inspect", str(folder), "--json", "-q"], stop))["parameters"]
    scores = {scoring.label: score(run, scoring, folder, stop) for scoring in grid.evaluate}
    sittings = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return {
        "name": run.name,
        "seed": run.seed,
        "settings": run.settings,
        "shared": grid.settings,
        "config": grid.config,
        "parameters": parts["total"],
        **told(read_events(folder / "metrics.jsonl")),
        "scores": scores,
        "test_splits": sorted({each["split"] for each in scores.values()} - {run.config.data.val}),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": sittings[-1].get("git"),
        "machine": {key: value for key, value in sittings[-1].items() if key not in NOT_THE_MACHINE},
    }


def score(run: Run, scoring: Scoring, folder: Path, stop: StopSignals) -> dict[str, Any]:
    """A split's scores by name, each with its 95 % interval and signature, and how they were searched for."""
    place = folder / "evaluation" / re.sub(r"[^A-Za-z0-9._]+", "-", scoring.label)
    words = ["--model", str(folder), "--out", str(place), "--device", run.config.device, "--json"]
    found = json.loads(run_nmt(["evaluate", *words, *scoring.options], stop))
    kept = ("split", "beam", "length_penalty", "loss", "length_ratio", "elapsed_s")
    return {key: found[key] for key in kept} | {each.pop("name"): each for each in found["scores"]}


def run_nmt(words: Sequence[str], stop: StopSignals) -> str:
    """What the command `nmt WORDS` prints; a signal is passed on, and waited for until its state is saved."""
    with tempfile.TemporaryFile() as answer:
        child = subprocess.Popen([sys.executable, "-m", "nmt", *words], stdout=answer)
        is_told = False
        try:
            while child.poll() is None:
                if stop.requested is not None and not is_told:
                    child.terminate()  # Ctrl-C in a terminal reaches it too: the first one counts
                    is_told = True
                time.sleep(POLL_S)
        except BaseException:  # Ctrl-C once more
            child.kill()
            raise
        answer.seek(0)
        text = answer.read().decode("utf-8")
    if stop.requested is not None:
        raise StoppedError(stop.requested)
    if child.returncode:
        raise FailedError(f"nmt {words[0]} ended with exit code {child.returncode}")
    return text


def carry_out_all(path: Path, grid: Grid, runs: Sequence[Run], out: Path) -> int:
    """Do what is not done yet, one run after the other; the exit code: 1 where some have failed."""
    results, failed = out / RESULTS, 0
    for run in runs:
        refuse_changed(run, grid, out, read_events(results))
    prepare_all(path, grid, [run for run in runs if not is_done(run, grid, read_events(results))])
    out.mkdir(parents=True, exist_ok=True)
    with StopSignals() as stop:
        for number, run in enumerate(runs, start=1):
            if is_done(run, grid, read_events(results)):  # read anew: another process may do its share
                continue
            say(f"run {number} of {len(runs)}: {run.folder_name}")
            try:
                append(results, carry_out(run, grid, out, stop))
            except FailedError as error:
                failed += 1
                say(f"{run.folder_name}: {error}; the others go on, and the same command tries it again")
            except StoppedError as stopped:
                say("stopped; the same command goes on")
                return exit_code(stopped.signum)
    say(f"{len(runs) - failed} of {len(runs)} runs are done: {results}")
    return 1 if failed else 0


def say(words: str) -> None:
    """Tell how it goes."""
    print(words, file=sys.stderr, flush=True)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train and score a grid of settings.")
    parser.add_argument("grid", type=Path, metavar="GRID.yaml", help="see scripts/experiments/")
    parser.add_argument("--out", type=Path, metavar="DIR", help="by default runs/experiments/GRID")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these runs alone")
    parser.add_argument("--table", action="store_true", help="print a Markdown table of what is done")
    parser.add_argument("--plot", action="store_true", help=f"draw BLEU against time: DIR/{PICTURE}")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Carry out a grid, or show its results; the exit code."""
    arguments = parsed(words)
    path: Path = arguments.grid
    out: Path = arguments.out or Path("runs/experiments") / path.stem
    with exits():
        grid = read_grid(path)
        runs = planned(path, grid)
        names = list(dict.fromkeys(run.name for run in runs))
        if unknown := [name for name in arguments.only or () if name not in names]:
            raise ConfigError(f"{path} has no run {unknown[0]}", hint=f"it has {', '.join(names)}")
        chosen = [name for name in names if name in (arguments.only or names)]
        runs = [run for run in runs if run.name in chosen]
        if not (arguments.table or arguments.plot):
            return carry_out_all(path, grid, runs, out)
        if arguments.table:
            print(table(read_events(out / RESULTS), chosen))
        if arguments.plot:
            if not any((out / run.folder_name).exists() for run in runs):
                raise ConfigError(f"{out} has no run to draw", hint="the same command without --plot begins")
            draw(runs, out, out / PICTURE)
            say(f"drawn: {out / PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
