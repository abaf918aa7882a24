"""Pictures of a training run (the only user of matplotlib)."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.files import write_whole

TRAINING, VALIDATION, RATE = "#8fb3d9", "#1f4e79", "#7a8b6f"  # the two losses: one hue, light and dark
SCORE, BEST = "#b5651d", "#8c2d19"
INK, GRID = "#333333", "#e4e4e4"
MAX_MARKED = 60  # more validations than this are drawn as a bare line


def draw_curves(events: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw losses, BLEU with the best marked, and learning rate over the steps of a run as a PNG file.

    `events` are those of metrics.jsonl; where a resumed run repeats steps, the later ones count. Averaged
    weights, whose validations say so in `weights`, are no point of the curves, but may be the best. The file
    appears whole or not at all. Raises MachineError if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # not pyplot, which keeps figures and a backend for the process
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    kept = last_words(events)
    steps = [event for event in kept if event["event"] == "step"]
    validations = [event for event in kept if event["event"] == "validation"]

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches
    figure = Figure(figsize=(8, 9), dpi=120, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    losses, scores, rates = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    _draw_losses(losses, steps, [event for event in validations if not event.get("weights")])
    _draw_scores(scores, [event for event in validations if event.get("bleu") is not None])
    _draw_rates(rates, steps)
    rates.set_xlabel("optimiser steps")
    for axes in (losses, scores, rates):
        _tidy(axes)
    figure.align_ylabels()
    rates.xaxis.get_major_locator().set_params(integer=True)
    if kept:
        rates.set_xlim(left=0)
    _save(figure, path)


def last_words(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events in order, without those that a resumed run went back behind."""
    kept: list[Mapping[str, Any]] = []
    first_step: dict[Any, float] = {}  # of the events further down, by kind
    for event in reversed(events):
        kind, step = (event.get("event"), event.get("weights")), event.get("step", 0)
        repeated = step >= first_step.get(kind, math.inf) or step > min(first_step.values(), default=math.inf)
        if kind[0] in ("step", "validation") and not repeated:
            first_step[kind] = step
            kept.append(event)
    return kept[::-1]


def standing(validation: Mapping[str, Any]) -> tuple[float, float]:
    """What a validation is ranked by, as training does: BLEU, and of equal ones the lower loss."""
    return float(validation["bleu"]), -float(validation["loss"])


def _draw_losses(
    axes: Any, steps: Sequence[Mapping[str, Any]], validations: Sequence[Mapping[str, Any]]
) -> None:
    _title(axes, "Loss")
    axes.set_ylabel("nats per token")
    if steps:
        x, y = _columns(steps, "loss")
        axes.plot(
            x, y, color=TRAINING, linewidth=1.4, marker=_dot(steps, few=1), label="training (as optimised)"
        )
    if validations:
        x, y = _columns(validations, "loss")
        axes.plot(
            x, y, color=VALIDATION, linewidth=1.8, marker=_dot(validations), markersize=4, label="validation"
        )
    if steps or validations:
        axes.legend(frameon=False, labelcolor=INK)
    else:
        _say(axes, "no steps yet")


def _draw_scores(axes: Any, scored: Sequence[Mapping[str, Any]]) -> None:
    _title(axes, "BLEU on the validation split")
    axes.set_ylabel("BLEU (0 to 100)")
    if not scored:
        _say(axes, "no validation yet")
        return
    curve = [event for event in scored if not event.get("weights")]
    x, y = _columns(curve, "bleu")
    axes.plot(x, y, color=SCORE, linewidth=1.8, marker=_dot(curve), markersize=4)
    best = max(scored, key=standing)
    step, score = int(best["step"]), float(best["bleu"])
    words = f"best: {score:.2f} at step {step:,}"
    words += f" ({best['weights']})" if best.get("weights") else ""
    axes.plot(step, score, color=BEST, marker="*", markersize=13, linestyle="none", zorder=3, label=words)
    axes.legend(frameon=False, labelcolor=INK, loc="lower right")  # where a rising curve leaves room
    axes.set_ylim(0, max(1.0, 1.1 * score))


def _draw_rates(axes: Any, steps: Sequence[Mapping[str, Any]]) -> None:
    _title(axes, "Learning rate")
    axes.set_ylabel("learning rate")
    if not steps:
        _say(axes, "no steps yet")
        return
    x, y = _columns(steps, "learning_rate")
    axes.plot(x, y, color=RATE, linewidth=1.8, marker=_dot(steps, few=1))
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)


def _columns(events: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    return [int(event["step"]) for event in events], [float(event[key]) for event in events]


def _dot(events: Sequence[Any], few: int = MAX_MARKED) -> str:
    """A marker for each point where there are few: a line of one point would not be seen."""
    return "o" if len(events) <= few else ""


def _title(axes: Any, words: str) -> None:
    axes.set_title(words, loc="left", color=INK, fontsize=12, fontweight="bold")


def _say(axes: Any, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color="#888888")
    axes.set_yticks([])


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color("#999999")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelcolor=INK, labelsize=9, length=3)
    axes.yaxis.label.set_color(INK)
    axes.xaxis.label.set_color(INK)
    axes.xaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")


def _save(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
