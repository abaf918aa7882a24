"""Sampling: what is drawn how often, and that nothing but the seed and the sentence decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from nmt.config import DecodeConfig
from nmt.data.vocabulary import EOS
from nmt.decoding.sampling import batch_noise, draw
from nmt.decoding.search import SearchOptions, search
from nmt.decoding.state import Hypothesis
from tests.decoding.networks import assert_same, build, force, sentences, terms


def sample(
    texts: Sequence[Sequence[int]],
    samples: int = 3,
    *,
    temperature: float = 1.0,
    seed: int = 1,
    **decode: int,
) -> list[tuple[Hypothesis, ...]]:
    options = SearchOptions(
        decode=DecodeConfig(**decode),  # type: ignore[arg-type]
        nbest=samples,
        sample_temperature=temperature,
        seed=seed,
    )
    return search([build()], texts, options, device="cpu")


def test_samples_depend_on_the_seed_and_their_own_sentence_alone() -> None:
    texts = sentences(12, longest=30)
    together = sample(texts)
    assert sample(texts) == together
    backwards = sample(texts[::-1])[::-1]
    singly = [sample([ids])[0] for ids in texts]
    for other in (backwards, singly):
        for one, another in zip(together, other, strict=True):
            assert_same(one, another)
    assert sample(texts, seed=2) != together
    assert len({one.ids for one in together[0]}) == 3
    twice = sample([texts[0], texts[1], texts[0]])
    assert_same(twice[0], twice[2])


def test_more_samples_begin_with_those_of_fewer() -> None:
    texts = sentences(4)
    for few, many in zip(sample(texts, 2), sample(texts, 6), strict=True):
        assert {one.ids for one in few} <= {one.ids for one in many}
        assert len(many) == 6


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_first_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    ids, count = [5, 6, 7], 4000
    (found,) = sample([ids], count, temperature=temperature, max_length_extra=0)
    drawn = Counter((one.ids or (EOS,))[0] for one in found)
    log_probs = force([build()], ids, [[]])[0, 0]
    log_probs[:EOS] = -torch.inf
    expected = (log_probs / temperature).softmax(-1).tolist()
    assert set(drawn) <= set(range(EOS, len(expected)))
    for token, probability in enumerate(expected):
        spread = (count * probability * (1 - probability)) ** 0.5
        assert abs(drawn[token] - count * probability) <= 4 * spread + 1


def test_samples_come_best_first_and_with_the_models_own_log_probabilities() -> None:
    ids = [5, 6, 7]
    (found,) = sample([ids], 8, temperature=2.0)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert one.token_log_probs == pytest.approx(terms([build()], ids, one), abs=1e-4)


def test_a_temperature_near_zero_takes_the_most_probable_tokens() -> None:
    texts = sentences(6)
    plain = search([build()], texts, SearchOptions(decode=DecodeConfig(beam=1)), device="cpu")
    for temperature in (1e-6, 1e-45):
        for (cold,), (best,) in zip(sample(texts, 1, temperature=temperature), plain, strict=True):
            assert cold.ids == best.ids


def test_lengths_hold_for_samples_too() -> None:
    for ranked in sample(sentences(6), 5, min_length=3, max_length_extra=2):
        assert all(one.finished <= (len(one.ids) >= 3) for one in ranked)


def test_a_token_that_cannot_come_is_not_drawn_at_either_end() -> None:
    log_probs = torch.full((4, 6), -torch.inf)
    log_probs[:, 2] = log_probs[:, 4] = -0.7
    noise = torch.tensor([0.0, 0.4999, 0.5001, 1.0 - 2**-24])
    assert draw(log_probs, 1.0, noise).tolist() == [2, 2, 4, 4]
    assert draw(log_probs, 1.0, torch.ones(4)).tolist() == [2] * 4, "above every sum: the likeliest"


def test_noise_is_even_and_does_not_change_when_more_is_asked_for() -> None:
    texts = [[5], [5, 6], [6, 5]]
    noise = batch_noise(1, texts, 2, 4000)
    assert noise.shape == (6, 4000)
    assert len({tuple(row[:4].tolist()) for row in noise}) == 6
    assert ((noise >= 0) & (noise < 1)).all()
    histogram = torch.histc(noise, 10, 0.0, 1.0)
    assert (histogram / noise.numel() - 0.1).abs().max() < 0.01
    assert torch.equal(batch_noise(1, texts, 3, 9)[0::3], noise[0::2, :9])
