"""Which words of a sentence pair translate each other, learned from the sentence pairs alone.

IBM Model 1 (Brown et al., 1993) in both directions, in which words at like places of their sentences are
likelier to be linked (Dyer et al., 2013). A link is what both directions agree on.

Letters: W words of a side, E meetings of a source and a target word of the same pair, P distinct meetings.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

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
    """What translates each other, pair by pair: a word and a word, or a word and some that stand together.

    No word has two links. A side's words are counted through all of its sentences.
    """

    row: Indices
    """(L,) number of the sentence pair."""
    src: Indices
    """(L,2) the first source word, and the one behind the last."""
    tgt: Indices
    """(L,2) the first target word, and the one behind the last."""

    @property
    def most_words(self) -> Indices:
        """(L,) how many words the longer one of the two sides has."""
        lengths: Indices = np.maximum(np.diff(self.src), np.diff(self.tgt))[:, 0]
        return lengths

    def some(self, which: Indices) -> Links:
        """The given ones, in that order."""
        return Links(self.row[which], self.src[which], self.tgt[which])


def find_links(src: Ragged, tgt: Ragged) -> Links:
    """The links between sentences of numbered words, row by row translations of each other.

    A word is linked with those that come from it by more than one half, where they are neighbours, no other
    word comes from them by so much, and it is likely enough both ways: the mean of the probabilities that
    they come from it, times the sum of those that it comes from them, is above one half.
    """
    meetings = int(src.lengths @ tgt.lengths)
    if meetings <= MOST_MEETINGS:
        return _links(src, tgt)
    rows = np.arange(0, len(src), -(-meetings // MOST_MEETINGS))
    part = src.select(rows), tgt.select(rows)
    links = _links(*part)
    ahead = [side.offsets[rows] - some.offsets[:-1] for side, some in zip((src, tgt), part, strict=True)]
    src_ahead, tgt_ahead = (places[links.row][:, None] for places in ahead)
    return Links(rows[links.row], links.src + src_ahead, links.tgt + tgt_ahead)


def _links(src: Ragged, tgt: Ragged) -> Links:
    """All links of a text that is not too large."""
    src_place, tgt_place, prior = _meetings(src, tgt)
    src_word, tgt_word = src.ids[src_place].astype(np.int64), tgt.ids[tgt_place].astype(np.int64)
    classes = int(tgt.ids.max(initial=0)) + 1
    distinct, which = np.unique(src_word * classes + tgt_word, return_inverse=True)
    from_src = _origins(distinct // classes, which, tgt_place, tgt.ids, prior)
    from_tgt = _origins(distinct % classes, which, src_place, src.ids, prior)
    src_words, spans = _families(src_place, tgt_place, from_src, from_tgt, (len(src.ids), len(tgt.ids)))
    links = Links(_rows(src)[src_words], _alone(src_words), spans)
    tgt_words, spans = _families(tgt_place, src_place, from_tgt, from_src, (len(tgt.ids), len(src.ids)))
    several = np.diff(spans)[:, 0] > 1  # two single words are among the others
    tgt_words, spans = tgt_words[several], spans[several]
    more = Links(_rows(tgt)[tgt_words], spans, _alone(tgt_words))
    return Links(*(np.concatenate(both) for both in zip(astuple(links), astuple(more), strict=True)))


def _families(
    parent: Indices, child: Indices, downward: Floats, upward: Floats, words: tuple[int, int]
) -> tuple[Indices, Indices]:
    """The words (L,) of one side that are linked with a span (L,2) of the other, whose words come from them.

    Of each meeting (E,) the place of both words, the probability that the child comes from the parent and
    that the parent comes from the child. `words` are how many each side has.
    """
    sure = downward > 0.5
    parents, children = parent[sure], child[sure]
    count = np.bincount(parents, minlength=words[0])
    first, end = np.full(words[0], words[1]), np.zeros(words[0], np.int64)
    np.minimum.at(first, parents, children)
    np.maximum.at(end, parents, children + 1)
    likely = np.bincount(parents, downward[sure], words[0]) / np.maximum(count, 1)
    likely *= np.bincount(parents, upward[sure], words[0])

    parent_of = np.full(words[1], -1)
    parent_of[children] = parents
    others = (upward > 0.5) & (parent_of[child] != parent) & (parent_of[child] >= 0)
    disputed = np.bincount(parent_of[child[others]], minlength=words[0]) > 0

    found = np.flatnonzero((likely > 0.5) & (end - first == count) & ~disputed)
    return found, np.stack([first[found], end[found]], axis=1)


def _rows(side: Ragged) -> Indices:
    """The sentence of each word."""
    return np.repeat(np.arange(len(side)), side.lengths)


def _alone(words: Indices) -> Indices:
    """Spans of one word each."""
    return np.stack([words, words + 1], axis=1)


def _meetings(src: Ragged, tgt: Ragged) -> tuple[Indices, Indices, Floats]:
    """The places in both texts, and the weight of the distance from the diagonal, of each meeting, (E,)."""
    sizes = src.lengths * tgt.lengths
    row = np.repeat(np.arange(len(src)), sizes)
    inner = np.arange(len(row)) - np.repeat(running_sum(sizes)[:-1], sizes)
    i, j = np.divmod(inner, tgt.lengths[row])
    distance = np.abs((i + 0.5) / src.lengths[row] - (j + 0.5) / tgt.lengths[row])
    return src.offsets[row] + i, tgt.offsets[row] + j, np.exp(-TENSION * distance)


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
