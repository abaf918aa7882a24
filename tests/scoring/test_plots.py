"""The picture of a run: drawn from whatever events there are, whole or not at all."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import MachineError
from nmt.scoring import plots
from nmt.scoring.plots import draw_curves

Event = Mapping[str, Any]


def step(number: int, loss: float = 5.0) -> Event:
    return {"event": "step", "step": number, "loss": loss, "learning_rate": 1e-3, "tokens_per_s": 1000.0}


def validation(number: int, score: float) -> Event:
    return {"event": "validation", "step": number, "epoch": 1, "loss": 4.0, "bleu": score, "signature": "s"}


def pixels(path: Path) -> bytes:
    """The raw pixels of a PNG file, every chunk's checksum verified."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    packed, place, kind = b"", 8, b""
    while place < len(data):
        (length,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        body = data[place + 8 : place + 8 + length]
        assert struct.pack(">I", zlib.crc32(kind + body)) == data[place + 8 + length : place + 12 + length]
        packed += body if kind == b"IDAT" else b""
        place += 12 + length
    assert kind == b"IEND"
    return zlib.decompress(packed)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "events",
    [
        [],
        [step(1)],
        [step(50), step(100)],
        [validation(100, 0.0)],
        [step(50), step(100), validation(100, 12.5)],
        [step(1, float("nan")), step(2, float("inf")), validation(2, 0.0), {"event": "of a later version"}],
    ],
    ids=["nothing", "one step", "no validation", "a lone validation", "both", "not finite"],
)
def test_any_events_give_one_whole_png(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "run" / "curves.png"
    draw_curves(events, path)
    assert len(set(pixels(path))) > 10
    assert [file.name for file in path.parent.iterdir()] == ["curves.png"]


def figure_of(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that would be saved."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))
    draw_curves(events, Path("unused.png"))
    return figures[0]


def points(line: Any) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True))


def test_the_panels_show_losses_scores_with_the_best_marked_and_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scored = [validation(100, 10.0), validation(200, 30.5), validation(300, 30.0)]
    figure = figure_of([step(50, 9.0), step(100, 8.0), *scored], monkeypatch)
    losses, scores, rates = figure.axes
    assert [points(line) for line in losses.lines] == [
        [(50, 9.0), (100, 8.0)],
        [(100, 4.0), (200, 4.0), (300, 4.0)],
    ]
    curve, star = scores.lines
    assert points(curve) == [(100, 10.0), (200, 30.5), (300, 30.0)]
    assert (points(star), star.get_marker()) == ([(200, 30.5)], "*")
    assert "30.50" in star.get_label()
    assert points(rates.lines[0]) == [(50, 1e-3), (100, 1e-3)]
    assert all(axes.get_title(loc="left") and axes.get_ylabel() for axes in figure.axes)
    assert "per token" in losses.get_ylabel()
    assert "steps" in rates.get_xlabel()


def test_steps_that_a_resumed_run_repeats_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [step(50, 9.0), step(100, 8.0), validation(100, 1.0), step(150, 7.0), validation(150, 2.0)]
    figure = figure_of([*first, step(100, 5.0), step(150, 4.0), validation(150, 3.0)], monkeypatch)
    training = figure.axes[0].lines[0]
    assert points(training) == [(50, 9.0), (100, 5.0), (150, 4.0)]
    assert points(figure.axes[1].lines[0]) == [(100, 1.0), (150, 3.0)]
    figure = figure_of([*first, step(110, 5.0)], monkeypatch)  # its validation is still to come
    assert points(figure.axes[1].lines[0]) == [(100, 1.0)]


def test_averaged_weights_are_no_point_of_the_curves_but_may_be_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    means = [
        {**validation(200, 12.0), "weights": "mean of the last 5"},
        {**validation(200, 9.0), "weights": "x"},
    ]
    figure = figure_of(
        [step(100), validation(100, 10.0), step(200), validation(200, 11.0), *means], monkeypatch
    )
    losses, scores, _ = figure.axes
    assert points(losses.lines[1]) == [(100, 4.0), (200, 4.0)]
    curve, star = scores.lines
    assert points(curve) == [(100, 10.0), (200, 11.0)]
    assert points(star) == [(200, 12.0)]
    assert "mean of the last 5" in star.get_label()


def test_of_equal_scores_the_one_with_the_lower_loss_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {1: 3.0, 2: 2.0, 3: 2.5}
    scored = [{**validation(number, 100.0), "loss": loss} for number, loss in losses.items()]
    assert points(figure_of(scored, monkeypatch).axes[1].lines[1]) == [(2, 100.0)]


def test_events_that_are_no_points_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [step(50), validation(50, 1.0), step(100)]
    times = {"event": "time", "step": 50, "data_s": 1.0}
    figure = figure_of([*events[:2], times, {**events[2], "skipped": 3}], monkeypatch)
    plain = figure_of(events, monkeypatch)
    for axes, same in zip(figure.axes, plain.axes, strict=True):
        assert [points(line) for line in axes.lines] == [points(line) for line in same.lines]


def test_a_fault_while_writing_keeps_the_former_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "curves.png"
    draw_curves([step(1)], path)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(MachineError, match="No space left"):
        draw_curves([step(1), step(2)], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


def test_drawing_leaves_no_global_figures_or_backend(tmp_path: Path) -> None:
    draw_curves([step(1)], tmp_path / "curves.png")
    assert "matplotlib.pyplot" not in sys.modules
