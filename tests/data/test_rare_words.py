"""Rare words in other sentences: where they go, how many, and what stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from nmt.data.dataset import Ragged
from nmt.data.rare_words import FREQUENT, RARE, Exchanges, exchanged, find_exchanges

NOUNS = {"hund": "dog", "mann": "man", "ball": "ball", "baum": "tree"}
VERBS = {"steht": "stands", "liegt": "lies", "fehlt": "lacks"}
PAIRS = [
    (f"ein {noun} {verb} hier", f"a {NOUNS[noun]} {VERBS[verb]} here")
    for noun in NOUNS
    for verb in VERBS
    for _ in range(FREQUENT)
]
IGLOO = [("ein iglu steht hier", "a igloo stands here")] * 2
ODD = [("ein hund steht hier ufo", "a dog stands here saucer")]
"""The rare word follows words that no other one follows: it has no place elsewhere."""

Lines = list[tuple[str, str]]


class Text:
    """Sentence pairs as numbers of words, and back."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.words: tuple[list[str], list[str]] = ([], [])
        self.sides = tuple(
            Ragged.of([[self._number(word, known) for word in pair[side].split()] for pair in pairs], 1000)
            for side, known in enumerate(self.words)
        )
        self.sizes = tuple(np.ones(len(known), np.int64) for known in self.words)
        self.exchanges: Exchanges = find_exchanges(self.sides)

    def _number(self, word: str, known: list[str]) -> int:
        if word not in known:
            known.append(word)
        return known.index(word)

    def drawn(self, share: float, seed: int = 1, *, max_tokens: int = 100) -> Lines:
        random = np.random.default_rng(seed)
        sides = exchanged(self.sides, self.exchanges, share, random, tokens=self.sizes, max_tokens=max_tokens)
        return [
            tuple(
                " ".join(known[i] for i in side[row]) for side, known in zip(sides, self.words, strict=True)
            )
            for row in range(len(self.sides[0]))
        ]


def changes(drawn: Lines, pairs: Lines) -> list[list[tuple[int, str, str]]]:
    """Of each changed pair and side: the position, the old word and the new one."""
    return [
        [
            (position, old, new)
            for before, after in zip(pair, now, strict=True)
            for position, (old, new) in enumerate(zip(before.split(), after.split(), strict=True))
            if old != new
        ]
        for pair, now in zip(pairs, drawn, strict=True)
        if pair != now
    ]


def test_a_rare_word_and_its_translation_stand_where_a_frequent_pair_follows_the_same_words() -> None:
    pairs = PAIRS + IGLOO + ODD
    found = changes(Text(pairs).drawn(0.25), pairs)
    assert len(found) == round(0.25 * len(pairs))
    for (i, old, new), (j, old_translation, translation) in found:
        assert i == j == 1
        assert NOUNS[old] == old_translation
        assert (new, translation) == ("iglu", "igloo")


def test_each_rare_word_comes_about_as_often_and_in_many_places() -> None:
    rare = [(f"ein ding{n} steht hier", f"a thing{n} stands here") for n in range(20)]
    pairs = PAIRS + rare
    text = Text(pairs)
    counts, places = Counter[str](), Counter[str]()
    for seed in range(50):
        for change in changes(text.drawn(0.4, seed), pairs):
            counts[change[0][2]] += 1
            places[change[0][1]] += 1
    assert len(counts) == 20
    assert max(counts.values()) < 1.5 * min(counts.values())
    assert set(places) == set(NOUNS)
    assert max(places.values()) < 1.5 * min(places.values())


def test_a_share_that_cannot_be_reached_takes_what_there_is() -> None:
    pairs = PAIRS + IGLOO
    found = changes(Text(pairs).drawn(0.99), pairs)
    assert 0.6 * len(PAIRS) < len(found) <= len(PAIRS)


def test_a_word_that_is_seen_more_often_is_not_rare() -> None:
    pairs = PAIRS + IGLOO[:1] * (RARE + 1)
    assert changes(Text(pairs).drawn(0.5), pairs) == []


def test_without_a_share_or_a_rare_word_the_text_itself_comes_back() -> None:
    for pairs, share in ((PAIRS + IGLOO, 0.0), (PAIRS, 0.5)):
        text = Text(pairs)
        random = np.random.default_rng(1)
        drawn = exchanged(text.sides, text.exchanges, share, random, tokens=text.sizes, max_tokens=100)
        assert drawn[0] is text.sides[0]
        assert drawn[1] is text.sides[1]


def test_the_text_that_is_drawn_from_stays_as_it_was() -> None:
    text = Text(PAIRS + IGLOO)
    before = [side.ids.copy() for side in text.sides]
    text.drawn(0.5)
    for side, ids in zip(text.sides, before, strict=True):
        assert np.array_equal(side.ids, ids)


@pytest.mark.parametrize("side", [0, 1])
def test_a_sentence_that_would_outgrow_the_limit_stays_as_it_is(side: int) -> None:
    text = Text(PAIRS + IGLOO)
    word = text.words[side].index(("iglu", "igloo")[side])
    text.sizes[side][word] = 4  # tokens; all other words have one
    assert changes(text.drawn(0.3, max_tokens=6), PAIRS + IGLOO) == []
    assert len(changes(text.drawn(0.3, max_tokens=7), PAIRS + IGLOO)) == round(0.3 * len(PAIRS + IGLOO))
