"""Which words of a sentence pair translate each other, learned from the sentence pairs alone.

IBM Model 1 (Brown et al., 1993) in both directions, in which words at like places of their sentences are
likelier to be linked (Dyer et al., 2013). A link is what both directions agree on.

Letters: W words of a side, E meetings of a source and a target word of the same pair, P distinct meetings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.data.dataset import Ids, Ragged, running_sum

ROUNDS = 5
"""Rounds of expectation and maximisation."""
TENSION = 4.0
"""How much likelier like places are: lambda of Dyer et al. 2013, section 2, where their program begins."""
NO_ORIGIN = 0.08
"""Probability that a word translates none: p_0 there, the value that their program has."""
MOST_MEETINGS = 20_000_000
"""Of a text in which more words meet, every k-th pair is looked at: ten arrays as long as this are held."""

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Links:
    """Words that translate each other, pair by pair; no word has two links."""

    row: Indices
    """(L,) number of the sentence pair."""
    src: Indices
    """(L,) place of the source word in the flat array of all source words."""
    tgt: Indices
    """(L,) place of the target word in that of all target words."""

    def some(self, which: Indices) -> Links:
        """The given ones, in that order."""
        return Links(self.row[which], self.src[which], self.tgt[which])


def find_links(src: Ragged, tgt: Ragged) -> Links:
    """The links between sentences of numbered words, row by row translations of each other.

    Two words are linked where each direction gives the other word a probability, and both together, the
    product, is above one half.
    """
    meetings = int(src.lengths @ tgt.lengths)
    if meetings <= MOST_MEETINGS:
        return _links(src, tgt)
    rows = np.arange(0, len(src), -(-meetings // MOST_MEETINGS))
    part = src.select(rows), tgt.select(rows)
    links = _links(*part)
    ahead = [
        (side.offsets[rows] - some.offsets[:-1])[links.row]
        for side, some in zip((src, tgt), part, strict=True)
    ]
    return Links(rows[links.row], links.src + ahead[0], links.tgt + ahead[1])


def _links(src: Ragged, tgt: Ragged) -> Links:
    """All links of a text that is not too large."""
    row, src_place, tgt_place, prior = _meetings(src, tgt)
    src_word, tgt_word = src.ids[src_place].astype(np.int64), tgt.ids[tgt_place].astype(np.int64)
    classes = int(tgt.ids.max(initial=0)) + 1
    distinct, which = np.unique(src_word * classes + tgt_word, return_inverse=True)
    sure = _origins(distinct // classes, which, tgt_place, tgt.ids, prior)
    sure *= _origins(distinct % classes, which, src_place, src.ids, prior)
    return Links(row, src_place, tgt_place).some(np.flatnonzero(sure > 0.5))


def _meetings(src: Ragged, tgt: Ragged) -> tuple[Indices, Indices, Indices, Floats]:
    """Row, places in both texts, and weight of the distance from the diagonal of each meeting, (E,)."""
    sizes = src.lengths * tgt.lengths
    row = np.repeat(np.arange(len(src)), sizes)
    inner = np.arange(len(row)) - np.repeat(running_sum(sizes)[:-1], sizes)
    i, j = np.divmod(inner, tgt.lengths[row])
    distance = np.abs((i + 0.5) / src.lengths[row] - (j + 0.5) / tgt.lengths[row])
    return row, src.offsets[row] + i, tgt.offsets[row] + j, np.exp(-TENSION * distance)


def _origins(given: Indices, which: Indices, place: Indices, words: Ids, prior: Floats) -> Floats:
    """The probability (E,) that a word at `place` comes from the word that it meets, after learning.

    given (P,): the word that the others of a distinct meeting come from; which (E,): the distinct meeting;
    place (E,) in words (W,): where the word stands whose origin is asked for; prior (E,), of any scale.
    """
    prior = prior * ((1 - NO_ORIGIN) / np.bincount(place, prior)[place])
    classes = int(words.max(initial=0)) + 1
    chance, from_none = np.full(len(given), 1 / classes), np.full(classes, 1 / classes)
    origin = prior
    for _ in range(ROUNDS):
        origin = prior * chance[which]
        none = NO_ORIGIN * from_none[words]  # (W,)
        total = np.bincount(place, origin, minlength=len(words)) + none
        origin /= total[place]
        counts = np.bincount(which, origin, minlength=len(given))
        chance = counts / np.bincount(given, counts)[given]
        counts = np.bincount(words, none / total, minlength=classes)
        from_none = counts / (counts.sum() or 1.0)
    return origin
