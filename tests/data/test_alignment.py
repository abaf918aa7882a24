"""Word alignment against the equations in plain Python, and against a language whose words are known."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from nmt.data import alignment
from nmt.data.alignment import NO_ORIGIN, ROUNDS, TENSION, find_links
from nmt.data.dataset import Ragged

Sentences = Sequence[Sequence[int]]
Span = tuple[int, int]
Found = list[tuple[int, Span, Span]]


def links(src: Sentences, tgt: Sentences) -> Found:
    """Row, source span and target span of each link, counted in its sentences, in order."""
    sides = Ragged.of(src, 1000), Ragged.of(tgt, 1000)
    found = find_links(*sides)
    src_spans, tgt_spans = (
        (spans - side.offsets[found.row][:, None]).tolist()
        for side, spans in zip(sides, (found.src, found.tgt), strict=True)
    )
    return sorted(zip(found.row.tolist(), map(tuple, src_spans), map(tuple, tgt_spans), strict=True))


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


def by_the_rule(src: Sentences, tgt: Sentences) -> Found:
    """The links that follow from the probabilities of both directions."""
    forward = origins(src, tgt, 1 + max(map(max, tgt)))
    backward = origins(tgt, src, 1 + max(map(max, src)))
    assert min(abs(p - 0.5) for p in (*forward.values(), *backward.values())) > 1e-9, "a close call"
    found = set()
    for row, (sentence, translation) in enumerate(zip(src, tgt, strict=True)):
        places, others = range(len(sentence)), range(len(translation))
        down = {i: {j: forward[row, j, i] for j in others} for i in places}
        up = {j: {i: backward[row, i, j] for i in places} for j in others}
        for parents, children, is_source in ((down, up, True), (up, down, False)):
            for parent, chances in parents.items():
                mine = [child for child, chance in chances.items() if chance > 0.5]
                if not mine or mine != list(range(mine[0], mine[-1] + 1)):
                    continue
                rivals = {
                    other for child in mine for other, chance in children[child].items() if chance > 0.5
                }
                mean = sum(chances[child] for child in mine) / len(mine)
                if mean * sum(children[child][parent] for child in mine) > 0.5 and rivals <= {parent}:
                    pair = (parent, parent + 1), (mine[0], mine[-1] + 1)
                    found.add((row, *(pair if is_source else pair[::-1])))
    return sorted(found)


def random_text(seed: int, rows: int = 40, words: int = 12) -> tuple[list[list[int]], list[list[int]]]:
    """Pairs of random sentences in which word w is mostly translated by words - 1 - w, and 0 and 1 by two."""
    draw = random.Random(seed)
    src = [[draw.randrange(words) for _ in range(draw.randint(1, 6))] for _ in range(rows)]
    tgt = []
    for sentence in src:
        kept = [word for word in sentence if draw.random() < 0.9] or [0]
        if draw.random() < 0.3:
            draw.shuffle(kept)
        tgt.append(
            [made for word in kept for made in (words - 1 - word, *([words + word] if word < 2 else []))]
        )
    return src, tgt


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_links_are_those_of_the_equations(seed: int, swapped: bool) -> None:
    src, tgt = random_text(seed)[:: -1 if swapped else 1]
    expected = by_the_rule(src, tgt)
    lengths = {(s[1] - s[0], t[1] - t[0]) for _, s, t in expected}
    assert lengths >= {(1, 1), (2, 1) if swapped else (1, 2)}
    assert len(expected) > 40
    assert links(src, tgt) == expected


def test_words_that_always_come_together_are_found_and_rare_ones_too() -> None:
    draw = random.Random(1)
    src = [draw.sample(range(200), 8) for _ in range(300)]
    swapped = [[*sentence[1::-1], *sentence[2:]] for sentence in src]
    tgt = [[199 - word for word in sentence] for sentence in swapped]
    src.append([*src[0][2:], 500])
    tgt.append([*tgt[0][2:], 600, 601])  # a word that is seen once, and is two words there
    expected = {
        (row, (i, i + 1), (j, j + 1))
        for row, sentence in enumerate(src[:-1])
        for i, word in enumerate(sentence)
        for j in [tgt[row].index(199 - word)]
    }
    found = set(links(src, tgt))
    assert len(found & expected) > 0.99 * len(expected)
    assert (300, (6, 7), (6, 8)) in found
    assert not {link for link in found if link[0] < 300} - expected


def test_no_word_has_two_links() -> None:
    src, tgt = random_text(9, rows=200, words=5)
    found = links(src, tgt)
    assert found
    for side in (1, 2):
        words = [(link[0], place) for link in found for place in range(*link[side])]
        assert len(set(words)) == len(words)


def test_of_a_large_text_pairs_at_even_distances_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    src, tgt = random_text(2, rows=90)
    meetings = sum(len(a) * len(b) for a, b in zip(src, tgt, strict=True))
    monkeypatch.setattr(alignment, "MOST_MEETINGS", meetings // 3 + 1)
    found = links(src, tgt)
    assert {row % 3 for row, _, _ in found} == {0}
    assert found == [(3 * row, *spans) for row, *spans in links(src[::3], tgt[::3])]


def test_a_text_without_pairs_has_no_links() -> None:
    assert links([], []) == []
