"""The largest of many scores: what a stable sort finds, equals and all."""

from __future__ import annotations

import pytest
import torch

from nmt.decoding.largest import first_largest, largest

WIDTHS = (1, 7, 63, 64, 65, 1000, 3000)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_largest_is_what_argmax_finds(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    for steps in (1, 2, 5, 10**6):
        scores = -torch.randint(steps, (50, width), generator=generator).float()
        scores[:5] = -torch.inf
        scores[5, -1] = 1.0
        assert torch.equal(first_largest(scores), scores.argmax(1))


@pytest.mark.parametrize(("width", "count"), [(7, 7), (50, 6), (3000, 10), (3001, 10), (2000, 1)])
@pytest.mark.parametrize("steps", [2, 5, 1000, 10**6])
def test_the_largest_are_those_of_a_stable_sort(width: int, count: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    scores = -torch.randint(steps, (9, width), generator=generator).float() / 3
    scores[scores < -steps * 0.9 / 3] = -torch.inf
    scores[0] = 0.0
    scores[1, 1::2] = -0.0
    expected = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
    assert torch.equal(largest(scores, count), expected)
