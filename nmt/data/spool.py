"""Tokenised text on its way through `prepare`: numbers of distinct tokens, kept on disk and not in memory.

The vocabulary is known only when all training text has been tokenised, so the text passes twice: as numbers
of its types (distinct tokens) into a spool, and from there as ids into the prepared folder. What is held in
memory is each type once, and one part of a split.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np

from nmt.data.dataset import Ragged, Split
from nmt.data.vocabulary import Vocabulary

_MOST_TYPES = np.iinfo(np.int32).max


class Types:
    """The distinct tokens of one side, numbered from 0 as they come."""

    def __init__(self) -> None:
        self._numbers = _Numbers()

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, lines: Iterable[Iterable[str]]) -> Ragged:
        """Lines of tokens as numbers of types, new ones included; one line's tokens are held at a time."""
        number_of = self._numbers.__getitem__
        return Ragged.of(([*map(number_of, line)] for line in lines), _MOST_TYPES)

    def count(self, parts: Iterable[Ragged]) -> Counter[str]:
        """How often each token occurs in numbered text; those that do not are left out."""
        totals = np.zeros(len(self), dtype=np.int64)
        for part in parts:
            totals += np.bincount(part.ids, minlength=len(self))
        pairs = zip(self._numbers, totals.tolist(), strict=True)
        return Counter({token: count for token, count in pairs if count})

    def encode(self, vocabulary: Vocabulary) -> Ragged:
        """The ids of each type, in the order of their numbers."""
        return Ragged.of((vocabulary.encode([token]) for token in self._numbers), len(vocabulary))


class Spool:
    """Numbered splits in a file, part by part, to be read as often as needed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[str, list[int]] = {}

    def write(self, name: str, parts: Iterable[Split]) -> None:
        """Append all parts of the split `name`."""
        self._places[name] = []
        for part in parts:
            self._places[name].append(self._file.seek(0, io.SEEK_END))
            for array in (part.src.ids, part.src.offsets, part.tgt.ids, part.tgt.offsets):
                np.save(self._file, array, allow_pickle=False)

    def read(self, name: str) -> Iterator[Split]:
        """The parts of the split `name`, one after the other."""
        for place in self._places[name]:
            self._file.seek(place)
            src, tgt = (Ragged(*(np.load(self._file, allow_pickle=False) for _ in "io")) for _ in "st")
            yield Split(name, src, tgt)


class _Numbers(dict[str, int]):
    """Tokens to their numbers; one that is not there gets the next number."""

    def __missing__(self, token: str) -> int:
        number = self[token] = len(self)
        return number
