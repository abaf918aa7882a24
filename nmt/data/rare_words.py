"""Rare words and their translations in other sentences, in place of frequent ones: more to learn them from.

After Fadaee et al., 2017, who choose the places with a language model. Here a place is one that has the same
neighbours as the rare word and its translation have in their own sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmt.data.alignment import Indices, Links, find_links
from nmt.data.dataset import Ragged, running_sum

RARE = 4
"""A word and its translation are rare where one of them is seen at most so often, and the other one ..."""
RATHER_RARE = 30
"""... at most so often; of several words that of which this is true is enough."""
FREQUENT = 10
"""What a rare word takes the place of are words seen more often than this."""
COMMON = 0.05
"""Of several words that translate one, none is seen more often than in this share of the sentences."""
FEWEST_PLACES = 5
"""Where fewer places are like a rare word's own, those that are less like it are taken."""

Sides = tuple[Ragged, Ragged]
"""Source and target sentences of the same pairs, as numbers of distinct words."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What may stand where: the R rare links of a text that have a place elsewhere, and H places."""

    rare: Links
    """(R,) with an entry for each time that a rare word is seen."""
    first: Indices
    """(R,) the first place, as an index into `places`, ..."""
    end: Indices
    """(R,) ... and the one behind the last, of those that it may take."""
    places: Links
    """(H,) frequent words and their translations, one word each; some are listed for several likenesses."""


def find_exchanges(sides: Sides) -> Exchanges:
    """Align the words of a text, and find for each rare link the places that are most like its own.

    Most alike are those between the same source words and behind the same target word; then those behind the
    same words on both sides, before the same ones, and behind the same source word.
    """
    links = find_links(*sides)
    where = (sides[0], links.src), (sides[1], links.tgt)
    rarest = [_seen(side, spans, np.minimum) for side, spans in where]
    commonest = [_seen(side, spans, np.maximum) for side, spans in where]
    least, most = np.minimum(*rarest), np.maximum(*rarest)
    single = links.most_words == 1
    sound = single | (np.maximum(*commonest) <= COMMON * len(sides[0]))
    rare = np.flatnonzero((least <= RARE) & (most <= RATHER_RARE) & sound)
    frequent = np.flatnonzero((least > FREQUENT) & single)
    (src_before, src_behind), (tgt_before, tgt_behind) = (_neighbours(side, spans) for side, spans in where)
    likenesses = (
        (src_before, tgt_before, src_behind),
        (src_before, tgt_before),
        (src_behind, tgt_behind),
        (src_before,),
    )
    first, end = np.zeros(len(rare), np.int64), np.zeros(len(rare), np.int64)
    places: list[Indices] = []
    for neighbours in likenesses:
        _, likeness = np.unique(np.stack(neighbours), axis=1, return_inverse=True)
        order = frequent[np.argsort(likeness[frequent], kind="stable")]
        low, high = (np.searchsorted(likeness[order], likeness[rare], side) for side in ("left", "right"))
        taken = (end == first) & (high - low >= FEWEST_PLACES)
        ahead = sum(map(len, places))
        first[taken], end[taken] = low[taken] + ahead, high[taken] + ahead
        places.append(order)
    fits = end > first
    return Exchanges(links.some(rare[fits]), first[fits], end[fits], links.some(np.concatenate(places)))


def exchanged(
    sides: Sides,
    exchanges: Exchanges,
    share: float,
    random: np.random.Generator,
    *,
    tokens: tuple[Indices, Indices],
    max_tokens: int,
) -> Sides:
    """The pairs, of which a share, or as many as can, have rare words in place of frequent ones.

    tokens: how many tokens each distinct word of a side has. A sentence that would outgrow `max_tokens` stays
    as it is.
    """
    wanted, found = round(share * len(sides[0])), len(exchanges.rare.row)
    if not wanted or not found:
        return sides
    # each comes as often as any other; twice as many as are wanted, since several may meet in a sentence
    drawn = random.permutation(np.arange((2 * wanted // found + 1) * found) % found)[: 2 * wanted]
    first, end = exchanges.first[drawn], exchanges.end[drawn]
    places = first + (random.random(len(drawn)) * (end - first)).astype(np.int64)
    _, one_a_row = np.unique(exchanges.places.row[places], return_index=True)
    chosen = random.permutation(one_a_row)[:wanted]
    rare, place = exchanges.rare.some(drawn[chosen]), exchanges.places.some(places[chosen])
    spans = (place.src, rare.src), (place.tgt, rare.tgt)
    fits = np.ones(len(chosen), bool)
    for side, sizes, (old, new) in zip(sides, tokens, spans, strict=True):
        before = running_sum(sizes[side.ids])  # tokens before each word
        length, gone, come = (
            np.diff(before[where])[:, 0] for where in (_sentences(side, place.row), old, new)
        )
        fits &= length - gone + come <= max_tokens
    src, tgt = (_replaced(side, old[fits], new[fits]) for side, (old, new) in zip(sides, spans, strict=True))
    return src, tgt


def _seen(side: Ragged, spans: Indices, which: np.ufunc) -> Indices:
    """How often the rarest (np.minimum) or commonest (np.maximum) word of each span is seen in the text."""
    if not len(spans):
        return np.zeros(0, np.int64)
    counts = np.append(np.bincount(side.ids)[side.ids], 0)  # a span may end where the text does
    seen: Indices = which.reduceat(counts, spans.reshape(-1))[::2]
    return seen


def _neighbours(side: Ragged, spans: Indices) -> tuple[Indices, Indices]:
    """The word before each span and the one behind it, plus one; 0 at a sentence's beginning or end."""
    before, behind = np.zeros((2, len(side.ids) + 1), np.int64)
    before[1:] = behind[:-1] = side.ids.astype(np.int64) + 1
    before[side.offsets] = behind[side.offsets] = 0
    return before[spans[:, 0]], behind[spans[:, 1]]


def _sentences(side: Ragged, rows: Indices) -> Indices:
    """(n,2) where sentences begin and end."""
    return np.stack([side.offsets[rows], side.offsets[rows + 1]], axis=1)


def _replaced(side: Ragged, old: Indices, new: Indices) -> Ragged:
    """The text with the one word of each old span replaced by copies of the words of a new one."""
    begins, counts = np.arange(len(side.ids)), np.ones(len(side.ids), np.int64)
    begins[old[:, 0]], counts[old[:, 0]] = new[:, 0], np.diff(new)[:, 0]
    ends = running_sum(counts)
    places = np.repeat(begins - ends[:-1], counts) + np.arange(ends[-1])
    return Ragged(side.ids[places], ends[side.offsets])
