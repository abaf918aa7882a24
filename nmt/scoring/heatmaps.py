"""Pictures of matrices: positional encodings, and who attends to whom."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.files import write_whole

Matrix = npt.NDArray[np.floating[Any]]

INK, FAINT, GRID = "#333333", "#777777", "#e4e4e4"
CAPTION = "columns: source; rows: translation; +: joined to the token before"
UNDRAWN = "; #: no font of this machine draws it"
DPI = 130
TITLE: dict[str, Any] = {"loc": "left", "color": INK, "fontsize": 11, "fontweight": "bold"}
MAX_LABEL_CHARS = 18
FONT = "DejaVu Sans"  # matplotlib brings it along
NO_REAL_FONTS = ("Last Resort", "LastResort", ".")  # they draw every character, as a box

# inches
MAX_WIDTH = 24.0
MEAN_SIDE, CELL, GAP = 9.5, (0.03, 0.5), 0.35
HEAD_SIDE, HEADS_HEIGHT = (1.2, 2.6), 3.0
BAR_WIDTH, BAR_HEIGHT = 0.16, 3.0
LABEL_STEP, LINE_STEP = 0.14, 0.05  # labels and lines that are closer than this run into each other


def draw_positions(tables: Mapping[str, Matrix], path: Path) -> None:
    """Draw tables (positions, dimensions) side by side under their titles, as a PNG file that appears whole.

    Zero is white, and the colours run to the largest value of all tables either way. Raises MachineError if
    it cannot be written.
    """
    dimensions = max(table.shape[1] for table in tables.values())
    width = min(max(7.5, dimensions / DPI + 2), MAX_WIDTH / len(tables))  # a pixel or more for each
    figure = _new_figure(width * len(tables), 5.5)
    figure.set_layout_engine("constrained")
    most = max(float(np.abs(table).max()) for table in tables.values()) or 1.0
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        image = axes.imshow(
            table, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
        )
        axes.set_title(title, **TITLE)
        axes.set_xlabel("dimension", color=INK)
        axes.set_ylabel("position", color=INK)
        axes.tick_params(colors=INK, labelsize=9, length=3)
    figure.colorbar(image, ax=list(panels), label="value", pad=0.02)
    _save(figure, path)


def draw_attention(
    weights: Matrix, source: Sequence[str], target: Sequence[str], path: Path, *, title: str
) -> None:
    """Draw the mean of all heads with a label at each row and column, and every head smaller beside it.

    weights (heads, target, source), from 0 to 1; `source` and `target` are the labels. A label that no font
    here can draw becomes `#` and its place. The PNG file appears whole; raises MachineError if it cannot be
    written.
    """
    heads, rows, columns = weights.shape
    cell = float(np.clip(MEAN_SIDE / max(rows, columns), *CELL))
    mean = Box(0.0, 0.0, cell * columns, cell * rows)
    small = _head_boxes(heads, mean) if heads > 1 else []
    right = max(box.left + box.width for box in (mean, *small))
    bar = Box(right + GAP, 0.0, BAR_WIDTH, BAR_HEIGHT)
    sheet = Box(0.0, 0.0, bar.left + bar.width, max(box.top + box.height for box in (mean, *small, bar)))
    figure = _new_figure(sheet.width, sheet.height)

    axes = _matrix_axes(figure, mean, sheet, weights.mean(0))
    axes.set_title(f"{title}: " + ("mean of the heads" if small else "its one head"), **TITLE, pad=12)
    _label_axes(axes, source, target, cell)
    for number, (box, head) in enumerate(zip(small, weights, strict=False), start=1):
        _matrix_axes(figure, box, sheet, head).set_title(f"head {number}", **{**TITLE, "fontsize": 8})
    figure.colorbar(axes.images[0], cax=figure.add_axes(bar.inside(sheet)), label="weight")
    _save(figure, path)


@dataclass(frozen=True, slots=True)
class Box:
    """A place on the sheet in inches, from its left upper corner."""

    left: float
    top: float
    width: float
    height: float

    def inside(self, sheet: Box) -> tuple[float, float, float, float]:
        """Left, bottom, width, height as shares of the sheet, as matplotlib places axes."""
        bottom = sheet.height - self.top - self.height
        return (
            self.left / sheet.width,
            bottom / sheet.height,
            self.width / sheet.width,
            self.height / sheet.height,
        )


def _head_boxes(heads: int, mean: Box) -> list[Box]:
    """Places right of the mean for one panel a head, in full columns of the mean's height and shape."""
    room, shape = max(mean.height, HEADS_HEIGHT), mean.width / mean.height
    for rows in (count for count in range(heads, 0, -1) if heads % count == 0):
        height = min((room - (rows - 1) * GAP) / rows, HEAD_SIDE[1] / max(shape, 1.0))
        if height * max(shape, 1.0) >= HEAD_SIDE[0]:
            break
    width, left = height * shape, mean.width + GAP
    return [
        Box(left + (i // rows) * (width + GAP / 2), (i % rows) * (height + GAP), width, height)
        for i in range(heads)
    ]


def _matrix_axes(figure: Any, box: Box, sheet: Box, matrix: Matrix) -> Any:
    """Axes without labels that show weights, light lines between the cells where there is room for them."""
    axes = figure.add_axes(box.inside(sheet))
    axes.imshow(matrix, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[], autoscale_on=False)
    rows, columns = matrix.shape
    cell = box.width / columns
    if cell >= LINE_STEP:
        style = {"colors": GRID, "linewidth": min(0.6, 2.5 * cell)}
        axes.vlines(np.arange(0.5, columns - 1), -0.5, rows - 0.5, **style)
        axes.hlines(np.arange(0.5, rows - 1), -0.5, columns - 0.5, **style)
    axes.spines[:].set_color(GRID)
    return axes


def _label_axes(axes: Any, source: Sequence[str], target: Sequence[str], cell: float) -> None:
    """Source tokens above, target tokens on the left; only every second or third where cells are tiny."""
    step = math.ceil(LABEL_STEP / cell)
    fonts = _fonts_for("".join((*source, *target)))
    style = {"fontsize": float(np.clip(cell * 36, 6.5, 11)), "family": [font.name for font in fonts]}
    axes.xaxis.tick_top()
    for axis, labels in ((axes.xaxis, source), (axes.yaxis, target)):
        axis.set_ticks(range(0, len(labels), step), _drawable(labels, fonts)[::step], color=INK, **style)
        for text in axis.get_ticklabels():
            text.set_parse_math(False)  # a token may hold dollar signs
    axes.tick_params(which="major", length=0)
    for text in axes.get_xticklabels():
        text.set(rotation=45, ha="left", va="bottom", rotation_mode="anchor")
    undrawn = set("".join((*source, *target))) - _characters(fonts)
    axes.set_xlabel(CAPTION + (UNDRAWN if undrawn else ""), color=FAINT, fontsize=8, loc="left", labelpad=8)


# --- fonts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Font:
    """A font family of this machine and the characters that it can draw."""

    name: str
    characters: frozenset[str]


def _fonts_for(text: str) -> list[Font]:
    """matplotlib's own font, and behind it installed ones that draw what it cannot, if there are any."""
    from matplotlib.font_manager import fontManager

    fonts = [_font(FONT)]
    missing = set(text) - fonts[0].characters
    plain = [f for f in fontManager.ttflist if f.style == "normal" and f.weight in (400, "normal", "regular")]
    for name in sorted({entry.name for entry in plain} if missing else ()):
        if name.startswith(NO_REAL_FONTS):
            continue
        font = _font(name)
        if missing & font.characters:
            fonts.append(font)
            missing -= font.characters
        if not missing:
            break
    return fonts


def _font(name: str) -> Font:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        font = get_font(findfont(FontProperties(family=name), fallback_to_default=False))
    except (OSError, RuntimeError, ValueError):  # removed meanwhile, or of a kind that cannot be drawn
        return Font(name, frozenset())
    return Font(name, frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset())


def _characters(fonts: Sequence[Font]) -> frozenset[str]:
    return frozenset().union(*(font.characters for font in fonts))


def _drawable(labels: Sequence[str], fonts: Sequence[Font]) -> list[str]:
    """The labels, long ones cut, and `#` with its place for one that none of the fonts can draw."""
    known = _characters(fonts)
    short = (text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 1]}…" for text in labels)
    return [text if known.issuperset(text) else f"#{place}" for place, text in enumerate(short, start=1)]


# --- the sheet --------------------------------------------------------------------------------------------


def _new_figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # not pyplot, which keeps figures and a backend for the process

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight", pad_inches=0.2)
    write_whole(path, picture.getvalue())
