"""Pictures of matrices: whole PNG files that show what was given, whatever the labels are."""

from __future__ import annotations

import itertools
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.errors import MachineError
from nmt.scoring import heatmaps
from nmt.scoring.heatmaps import CAPTION, MAX_LABEL_CHARS, Matrix, draw_attention, draw_positions

pytestmark = pytest.mark.filterwarnings("error")


def weights(heads: int, target: int, source: int) -> Matrix:
    """Random attention weights (heads, target, source), each row summing to 1."""
    scores = np.random.default_rng(1).exponential(size=(heads, target, source)) ** 3
    return scores / scores.sum(-1, keepdims=True)


def names(count: int) -> list[str]:
    return [f"w{number}" for number in range(count)]


def png_size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file in pixels."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def figure_of(monkeypatch: pytest.MonkeyPatch, matrix: Matrix, source: list[str], target: list[str]) -> Any:
    """The figure that would be saved, laid out."""
    figures: list[Any] = []
    monkeypatch.setattr(heatmaps, "_save", lambda figure, path: figures.append(figure))
    draw_attention(matrix, source, target, Path("unused.png"), title="t")
    figures[0].canvas.draw()
    return figures[0]


def labels(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


@pytest.mark.parametrize(
    ("heads", "target", "source"), [(8, 6, 6), (8, 41, 41), (1, 5, 3), (3, 1, 40), (7, 40, 1), (16, 257, 300)]
)
def test_any_shape_gives_one_whole_picture_that_fits_a_screen_or_two(
    heads: int, target: int, source: int, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "attention.png"
    draw_attention(weights(heads, target, source), names(source), names(target), path, title="layer 1")
    width, height = png_size(path)
    assert 300 <= width <= 4000
    assert 300 <= height <= 3000
    assert [file.name for file in path.parent.iterdir()] == ["attention.png"]


def test_the_large_panel_is_the_mean_and_the_small_ones_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = weights(4, 5, 6)
    figure = figure_of(monkeypatch, matrix, names(6), names(5))
    mean, *heads, bar = figure.axes
    shown = [axes.images[0] for axes in (mean, *heads)]
    for image, expected in zip(shown, (matrix.mean(0), *matrix), strict=True):
        assert np.allclose(image.get_array(), expected)
        assert image.get_clim() == (0.0, 1.0), "the same colour means the same weight in every picture"
        assert image.get_cmap().name == "Blues"
    assert [axes.get_title(loc="left") for axes in heads] == [f"head {number}" for number in range(1, 5)]
    assert bar.get_ylabel() == "weight"
    areas = [axes.get_position().width * axes.get_position().height for axes in (mean, *heads)]
    assert areas[0] > 2 * max(areas[1:])


def test_one_head_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(figure_of(monkeypatch, weights(1, 4, 4), names(4), names(4)).axes) == 2


@pytest.mark.parametrize("count", [5, 40])
def test_every_token_stands_at_its_row_and_column_and_none_runs_into_another(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = names(count), [f"t{number}" for number in range(count + 1)]
    axes = figure_of(monkeypatch, weights(8, count + 1, count), source, target).axes[0]
    assert (labels(axes.xaxis), labels(axes.yaxis)) == (source, target)
    assert axes.get_xticks().tolist() == list(range(count))
    assert axes.get_yticks().tolist() == list(range(count + 1))
    assert axes.get_xlabel() == CAPTION, "it says which axis is which"
    boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    assert min(text.get_fontsize() for text in axes.get_xticklabels()) >= 6.5


def test_no_two_panels_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((8, 6, 6), (8, 41, 30), (7, 1, 40), (12, 40, 2)):
        panels = figure_of(monkeypatch, weights(*shape), names(shape[2]), names(shape[1])).axes
        boxes = [axes.get_window_extent().shrunk(0.99, 0.99) for axes in panels]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2)), shape


def test_labels_are_shown_as_they_are_and_never_as_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = ["$x^2$", "$", r"\frac", "a_b", "%", "<eos>", "Straße", "Ελλάς", "Привет"]
    axes = figure_of(monkeypatch, weights(2, 9, 9), strange, strange).axes[0]
    assert labels(axes.xaxis) == labels(axes.yaxis) == strange
    assert not any(text.get_parse_math() for text in axes.get_xticklabels())


def test_a_label_that_no_font_draws_is_its_number_and_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = "\U0010fffd"  # a private character, in no font
    source = ["one", nowhere, f"x{nowhere}"]
    axes = figure_of(monkeypatch, weights(2, 3, 3), source, names(3)).axes[0]
    assert labels(axes.xaxis) == ["one", "#2", "#3"]
    assert "no font" in axes.get_xlabel()
    monkeypatch.undo()
    draw_attention(weights(2, 3, 3), source, ["日本", "🙂", "한국"], tmp_path / "a.png", title="t")
    assert capfd.readouterr() == ("", "")


def test_a_font_of_the_machine_is_used_for_what_the_first_one_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {heatmaps.FONT: "abc", "DejaVu Serif": "日", "STIXGeneral": "本"}
    monkeypatch.setattr(heatmaps, "_font", lambda name: heatmaps.Font(name, frozenset(known.get(name, ""))))
    assert [font.name for font in heatmaps._fonts_for("abc")] == [heatmaps.FONT]
    found = [font.name for font in heatmaps._fonts_for("a日本")]
    assert found == [heatmaps.FONT, "DejaVu Serif", "STIXGeneral"]


def test_long_labels_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = figure_of(monkeypatch, weights(1, 1, 2), ["x" * 500, "y"], ["z"]).axes[0]
    assert labels(axes.xaxis) == ["x" * (MAX_LABEL_CHARS - 1) + "…", "y"]


def test_positions_are_drawn_around_zero_with_their_titles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = {"source": np.linspace(-0.5, 0.2, 24).reshape(4, 6), "target": np.zeros((4, 6))}
    path = tmp_path / "positions.png"
    draw_positions(tables, path)
    assert png_size(path)[0] > 1000
    figures: list[Any] = []
    monkeypatch.setattr(heatmaps, "_save", lambda figure, path: figures.append(figure))
    draw_positions(tables, path)
    *panels, bar = figures[0].axes
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        (image,) = axes.images
        assert np.array_equal(image.get_array(), table)
        assert image.get_clim() == (-0.5, 0.5), "white is zero, in every panel"
        assert image.get_cmap().name == "RdBu_r"
        assert (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) == (
            title,
            "dimension",
            "position",
        )
    assert bar.get_ylabel() == "value"


@pytest.mark.parametrize("width", [2, 768, 2000])
def test_every_dimension_of_a_wide_encoding_has_a_pixel(width: int, tmp_path: Path) -> None:
    path = tmp_path / "positions.png"
    draw_positions({"wide": np.ones((10, width))}, path)
    assert width < png_size(path)[0] < 4000


def test_a_fault_while_writing_keeps_the_former_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "attention.png"
    draw_attention(weights(2, 3, 3), names(3), names(3), path, title="t")
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(MachineError, match="No space left"):
        draw_attention(weights(2, 4, 4), names(4), names(4), path, title="t")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["attention.png"]


def test_drawing_leaves_no_global_figures_or_backend(tmp_path: Path) -> None:
    draw_attention(weights(2, 3, 3), names(3), names(3), tmp_path / "attention.png", title="t")
    assert "matplotlib.pyplot" not in sys.modules
