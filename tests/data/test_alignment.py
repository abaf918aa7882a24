"""Word alignment against the equations in plain Python, and against a language whose words are known."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from nmt.data import alignment
from nmt.data.alignment import NO_ORIGIN, ROUNDS, TENSION, find_links
from nmt.data.dataset import Ragged

Sentences = Sequence[Sequence[int]]
Found = list[tuple[int, int, int]]


def links(src: Sentences, tgt: Sentences) -> Found:
    """Row, source position and target position of each link, in order."""
    sides = Ragged.of(src, 1000), Ragged.of(tgt, 1000)
    found = find_links(*sides)
    begins = [side.offsets[found.row] for side in sides]
    return sorted(zip(found.row.tolist(), *(np.array([found.src, found.tgt]) - begins).tolist(), strict=True))


def origins(given: Sentences, made: Sentences, classes: int) -> dict[tuple[int, int, int], float]:
    """The probability that a word of `made` comes from one of `given`, by row, place in made, place in given.

    IBM Model 1's expectation and maximisation with the prior of Dyer et al. 2013, equations 1 to 4.
    """
    chance: dict[tuple[int, int], float] = defaultdict(lambda: 1 / classes)
    from_none: dict[int, float] = defaultdict(lambda: 1 / classes)
    result = {}
    for _ in range(ROUNDS):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        none: dict[int, float] = defaultdict(float)
        for row, (origin, words) in enumerate(zip(given, made, strict=True)):
            for j, word in enumerate(words):
                places = [(i + 0.5) / len(origin) - (j + 0.5) / len(words) for i in range(len(origin))]
                prior = [math.exp(-TENSION * abs(distance)) for distance in places]
                weights = [
                    (1 - NO_ORIGIN) * prior[i] / sum(prior) * chance[origin[i], word]
                    for i in range(len(origin))
                ]
                total = sum(weights) + NO_ORIGIN * from_none[word]
                none[word] += NO_ORIGIN * from_none[word] / total
                for i, weight in enumerate(weights):
                    result[row, j, i] = weight / total
                    counts[origin[i], word] += weight / total
        sums: dict[int, float] = defaultdict(float)
        for (origin_word, _), count in counts.items():
            sums[origin_word] += count
        chance = defaultdict(float, {pair: count / sums[pair[0]] for pair, count in counts.items()})
        from_none = defaultdict(float, {word: count / sum(none.values()) for word, count in none.items()})
    return result


def random_text(seed: int, rows: int = 30, words: int = 12) -> tuple[list[list[int]], list[list[int]]]:
    """Pairs of random sentences in which word w is mostly translated by words - 1 - w, in another order."""
    draw = random.Random(seed)
    src = [[draw.randrange(words) for _ in range(draw.randint(1, 6))] for _ in range(rows)]
    tgt = []
    for sentence in src:
        translated = [words - 1 - word for word in sentence if draw.random() < 0.9] or [0]
        tgt.append(sorted(translated, key=lambda word: draw.random()) if draw.random() < 0.3 else translated)
    return src, tgt


@pytest.mark.parametrize("seed", range(5))
def test_links_are_those_of_the_equations(seed: int) -> None:
    src, tgt = random_text(seed)
    forward = origins(src, tgt, 1 + max(map(max, tgt)))
    backward = origins(tgt, src, 1 + max(map(max, src)))
    products = {(row, i, j): p * backward[row, i, j] for (row, j, i), p in forward.items()}
    assert min(abs(p - 0.5) for p in products.values()) > 1e-9, "the test needs no close call"
    expected = sorted(place for place, p in products.items() if p > 0.5)
    assert len(expected) > 20
    assert links(src, tgt) == expected


def test_words_that_always_come_together_are_found_and_rare_ones_too() -> None:
    draw = random.Random(1)
    src = [draw.sample(range(200), 8) for _ in range(300)]
    swapped = [[*sentence[1::-1], *sentence[2:]] for sentence in src]
    tgt = [[199 - word for word in sentence] for sentence in swapped]
    src.append([500, *src[0][:5]])
    tgt.append([tgt[0][0], 600, *tgt[0][1:5]])  # a word that is seen once, and not at the same place
    expected = {
        (row, i, tgt[row].index(199 - word))
        for row, sentence in enumerate(src[:-1])
        for i, word in enumerate(sentence)
    }
    found = set(links(src, tgt))
    assert len(found & expected) > 0.99 * len(expected)
    assert (300, 0, 1) in found
    assert not {link for link in found if link[0] < 300} - expected


def test_no_word_has_two_links() -> None:
    src, tgt = random_text(9, rows=200, words=5)
    found = links(src, tgt)
    assert found
    assert len({(row, i) for row, i, _ in found}) == len({(row, j) for row, _, j in found}) == len(found)


def test_of_a_large_text_pairs_at_even_distances_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    src, tgt = random_text(2, rows=90)
    meetings = sum(len(a) * len(b) for a, b in zip(src, tgt, strict=True))
    monkeypatch.setattr(alignment, "MOST_MEETINGS", meetings // 3 + 1)
    found = links(src, tgt)
    assert {row % 3 for row, _, _ in found} == {0}
    assert found == [(3 * row, i, j) for row, i, j in links(src[::3], tgt[::3])]


def test_a_text_without_pairs_has_no_links() -> None:
    assert links([], []) == []
