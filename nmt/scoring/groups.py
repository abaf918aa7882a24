"""Sentences in groups by a count, such as their length: where a translation is good and where it is not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (5, 10, 15, 20, 30, 50)
"""The longest sentence of each group; one more group holds those that are longer still."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rows whose counts lie within the same bounds."""

    label: str
    """Such as "6 to 10"."""
    rows: tuple[int, ...]


def grouped(counts: Sequence[int], upper: Sequence[int]) -> list[Group]:
    """Rows by their count, small counts first; `upper` are the groups' greatest counts, empty ones left out.

    Counts of 0 are a group of their own.
    """
    bounds = (0, *(bound for bound in upper if bound > 0))
    rows: dict[int, list[int]] = {}
    for row, count in enumerate(counts):
        rows.setdefault(bisect_left(bounds, count), []).append(row)
    return [Group(_label(bounds, place), tuple(rows[place])) for place in sorted(rows)]


def _label(bounds: Sequence[int], place: int) -> str:
    if place == len(bounds):
        return f"{bounds[-1] + 1} or more"
    first, last = (bounds[place - 1] + 1 if place else 0), bounds[place]
    return f"{first}" if first == last else f"{first} to {last}"
