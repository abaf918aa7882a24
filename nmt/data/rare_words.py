"""Rare words and their translations in other sentences, in place of frequent ones: more to learn them from.

After Fadaee et al., 2017, who choose the places with a language model: here a place is one that follows the
same two words, one on either side, as the rare pair does in its own sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmt.data.alignment import Indices, Links, find_links
from nmt.data.dataset import Ids, Ragged, running_sum

RARE = 4
"""A pair of words is rare where one of them is seen at most so often, and the other one ..."""
RATHER_RARE = 30
"""... at most so often."""
FREQUENT = 10
"""What a rare pair takes the place of are words seen more often than this."""

Sides = tuple[Ragged, Ragged]
"""Source and target sentences of the same pairs, as numbers of distinct words."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What may stand where: the R rare pairs of a text that have a place elsewhere, and its H places."""

    rare: Links
    """(R,) with an entry for each time that a pair is seen."""
    first: Indices
    """(R,) the first place, as an index into `places`, ..."""
    end: Indices
    """(R,) ... and the one behind the last, of those that a pair may take."""
    places: Links
    """(H,) the frequent pairs, by what stands before them."""


def find_exchanges(sides: Sides) -> Exchanges:
    """Align the words of a text, and find for each rare pair the frequent ones that follow the same words."""
    links = find_links(*sides)
    src, tgt = sides
    after = _before(src, links.src) * (int(tgt.ids.max(initial=0)) + 2) + _before(tgt, links.tgt)
    seen = [np.bincount(side.ids)[side.ids[at]] for side, at in ((src, links.src), (tgt, links.tgt))]
    least, most = np.minimum(*seen), np.maximum(*seen)
    rare = np.flatnonzero((least <= RARE) & (most <= RATHER_RARE))
    frequent = np.flatnonzero(least > FREQUENT)
    frequent = frequent[np.argsort(after[frequent], kind="stable")]
    first, end = (np.searchsorted(after[frequent], after[rare], side) for side in ("left", "right"))
    fits = end > first
    return Exchanges(links.some(rare[fits]), first[fits], end[fits], links.some(frequent))


def exchanged(
    sides: Sides,
    exchanges: Exchanges,
    share: float,
    random: np.random.Generator,
    *,
    tokens: tuple[Indices, Indices],
    max_tokens: int,
) -> Sides:
    """The pairs, of which a share, or as many as can, have a rare pair of words in place of a frequent one.

    tokens: how many tokens each distinct word of a side has. A sentence that would outgrow `max_tokens` stays
    as it is.
    """
    wanted, found = round(share * len(sides[0])), len(exchanges.rare.row)
    if not wanted or not found:
        return sides
    # each pair comes as often as any other; twice as many as are wanted, since several may meet in a sentence
    drawn = random.permutation(np.arange((2 * wanted // found + 1) * found) % found)[: 2 * wanted]
    first, end = exchanges.first[drawn], exchanges.end[drawn]
    places = first + (random.random(len(drawn)) * (end - first)).astype(np.int64)
    _, one_a_row = np.unique(exchanges.places.row[places], return_index=True)
    chosen = random.permutation(one_a_row)[:wanted]
    rare, place = exchanges.rare.some(drawn[chosen]), exchanges.places.some(places[chosen])
    old_and_new = [(place.src, rare.src), (place.tgt, rare.tgt)]
    fits = np.logical_and(
        *(
            _length(side, sizes)[place.row] - sizes[side.ids[old]] + sizes[side.ids[new]] <= max_tokens
            for side, sizes, (old, new) in zip(sides, tokens, old_and_new, strict=True)
        )
    )
    src, tgt = (
        _replaced(side, old[fits], side.ids[new[fits]])
        for side, (old, new) in zip(sides, old_and_new, strict=True)
    )
    return src, tgt


def _before(side: Ragged, places: Indices) -> Indices:
    """The word before each place plus one, or 0 at the beginning of a sentence."""
    before = np.zeros(len(side.ids), np.int64)
    before[1:] = side.ids[:-1].astype(np.int64) + 1
    before[side.offsets[:-1]] = 0
    return before[places]


def _length(side: Ragged, sizes: Indices) -> Indices:
    """The tokens of each sentence of words."""
    lengths: Indices = np.diff(running_sum(sizes[side.ids])[side.offsets])
    return lengths


def _replaced(side: Ragged, places: Indices, words: Ids) -> Ragged:
    ids = side.ids.copy()
    ids[places] = words
    return Ragged(ids, side.offsets)
