"""results.jsonl: a line for each run that is done, and how it is shown: as a table and as a picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.grid import Run, as_yaml
from nmt.files import write_whole
from nmt.training.tracking import Event, read_events

TARGETS = (35, 38, 40, 42)
"""Validation BLEU; it is noted when a run first reached each."""

Row = dict[str, Any]
"""A line of results.jsonl."""


def told(events: Sequence[Event]) -> dict[str, Any]:
    """What a run's metrics.jsonl says of how far it came, how well, and how soon."""
    timed = [event for event in events if "elapsed_s" in event]
    validations = [event for event in timed if event["event"] == "validation"]
    best: Event = next((event for event in reversed(validations) if event["best"]), {})
    return {
        "epochs": max((event["epoch"] for event in timed), default=0),
        "steps": max((event["step"] for event in timed), default=0),
        "best_epoch": best.get("epoch"),
        "best_weights": best.get("weights"),  # the mean that is the best, where it is one
        "val_loss": best.get("loss"),
        "val_bleu": best.get("bleu"),
        "training_s": max((event["elapsed_s"] for event in timed), default=0.0),
        "seconds_to_bleu": {
            str(target): next((event["elapsed_s"] for event in validations if event["bleu"] >= target), None)
            for target in TARGETS
        },
    }


def append(path: Path, row: Row) -> None:
    """Add a line to results.jsonl, behind one that was cut off where there is one."""
    whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{'' if whole else chr(10)}{json.dumps(row, ensure_ascii=False)}\n")


def by_name_and_seed(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """The last row of each name and seed."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row["name"], {})[row["seed"]] = row
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of each run."""

    title: str
    of: Callable[[Row], float | None]
    form: str = ".2f"
    is_compared: bool = False

    def cell(self, rows: Mapping[int, Row], first: Mapping[int, Row]) -> str:
        """The mean over the seeds, each seed's figure, and the difference over the seeds of both."""
        values = {seed: self.of(row) for seed, row in sorted(rows.items())}
        known = [value for value in values.values() if value is not None]
        words = f"{fmean(known):{self.form}}" if len(known) == len(values) else "–"
        if len(values) > 1 and known:
            each = ("–" if value is None else f"{value:{self.form}}" for value in values.values())
            words += f" ({', '.join(each)})"
        if self.is_compared and rows is not first:
            pairs = [(values[seed], self.of(first[seed])) for seed in values if seed in first]
            gains = [a - b for a, b in pairs if a is not None and b is not None]
            words += f" {fmean(gains):+{self.form}}" if gains else ""
        return words


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A Markdown table: a line for each of the names that has been done, and what there is to know of all."""
    found = by_name_and_seed(rows)
    by_name = {name: found[name] for name in names if name in found}
    if not by_name:
        return "no run is done yet"
    kept = [row for seeds in by_name.values() for row in seeds.values()]
    columns = _columns(kept)
    first_name, first = next(iter(by_name.items()))
    lines = [["run", "settings", *(column.title for column in columns)]]
    lines += [["---", "---", *("---:" for _ in columns)]]
    for name, seeds in by_name.items():
        settings = next(iter(seeds.values()))["settings"]
        words = ", ".join(f"{key}={as_yaml(value)}" for key, value in settings.items())
        lines.append([name, words, *(column.cell(seeds, first) for column in columns)])
    bleus = [score["BLEU"] for row in kept for score in row["scores"].values()]
    widths = [(bleu["high"] - bleu["low"]) / 2 for bleu in bleus if bleu["low"] is not None]
    tests = sorted({split for row in kept for split in row["test_splits"]})
    notes = [
        f"Differences are from {first_name}, over the seeds that both have." if len(by_name) > 1 else "",
        f"A score's 95 % interval is ±{fmean(widths):.1f} on average." if widths else "",
        *sorted({f"BLEU: `{bleu['signature']}`." for bleu in bleus}),
        *sorted({f"Trained on: {row['machine'].get('device')}." for row in kept}),
        f"Test splits were scored: {', '.join(tests)}." if tests else "",
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{' '.join(note for note in notes if note)}"


def _columns(rows: Sequence[Row]) -> list[Column]:
    def bleu(label: str) -> Column:
        return Column(
            label, lambda row: row["scores"].get(label, {}).get("BLEU", {}).get("value"), ".2f", True
        )

    def until(target: str) -> Column:
        return Column(f"s to BLEU {target}", lambda row: row["seconds_to_bleu"].get(target), ".0f")

    labels = dict.fromkeys(label for row in rows for label in row["scores"])
    reached = dict.fromkeys(
        target for row in rows for target, spent in row["seconds_to_bleu"].items() if spent is not None
    )
    return [
        Column("parameters", lambda row: row["parameters"], ",.0f"),
        Column("best epoch", lambda row: row["best_epoch"], ".0f"),
        Column("val loss", lambda row: row["val_loss"], ".3f", True),
        Column("val BLEU in training", lambda row: row["val_bleu"], ".2f", True),
        *map(bleu, labels),
        Column("minutes", lambda row: row["training_s"] / 60, ".1f"),
        *map(until, sorted(reached, key=int)),
    ]


def draw(runs: Sequence[Run], out: Path, picture: Path) -> None:
    """Draw validation BLEU against training time of the runs in `out`, finished or not, as a PNG file."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), dpi=120, layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(run.name for run in runs))
    labelled: set[str] = set()
    for run in runs:
        events = read_events(out / run.folder_name / "metrics.jsonl")
        curve = [event for event in events if event["event"] == "validation" and "weights" not in event]
        minutes, bleu = [event["elapsed_s"] / 60 for event in curve], [event["bleu"] for event in curve]
        label = None if run.name in labelled or not curve else run.name
        axes.plot(
            minutes,
            bleu,
            color=colormaps["tab20"](names.index(run.name) % 20),
            label=label,
            marker="o",
            markersize=3,
        )
        labelled |= {run.name} if curve else set()
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("BLEU on the validation split, greedy")
    axes.grid(color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)
    if labelled:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_whole(picture, png.getvalue())
