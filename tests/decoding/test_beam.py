"""Beam search against all translations there are, and against a plain beam search without an early end.

Letters: B batch, K beams, N rows being decoded, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from nmt.config import DecodeConfig
from nmt.data.batching import pad_source
from nmt.data.vocabulary import EOS
from nmt.decoding.beam import beam_search
from nmt.decoding.greedy import greedy
from nmt.decoding.rules import Rules
from nmt.decoding.search import SearchOptions, search
from nmt.decoding.state import Hypothesis
from nmt.model.transformer import Transformer
from tests.decoding.networks import assert_same, build, force, search_plainly, sentences, terms

ALPHAS = (0.0, 0.6, 1.0, 2.0)


def beams(
    networks: Transformer | Sequence[Transformer],
    texts: Sequence[Sequence[int]],
    beam: int,
    alpha: float = 1.0,
    nbest: int | None = None,
    patience: float | None = None,
    **settings: float,
) -> list[tuple[Hypothesis, ...]]:
    """The n-best of each text, by default all of the beam."""
    decode = DecodeConfig(beam=beam, length_penalty=alpha, patience=patience, **settings)  # type: ignore[arg-type]
    networks = [networks] if isinstance(networks, Transformer) else networks
    return search(networks, texts, SearchOptions(decode=decode, nbest=nbest or beam), device="cpu")


def confident() -> Transformer:
    """A network that is surer of what it says, as a trained one is."""
    network = build()
    with torch.no_grad():
        network.projection.weight *= 3.0
        network.projection.bias[: EOS + 1] = torch.tensor([-3.0, -3.0, -3.0, 2.0])
    return network


def every_translation(network: Transformer, ids: list[int], limit: int, words: int) -> list[Hypothesis]:
    """All translations of up to `limit` words with their exact log-probabilities, in no order."""
    found = []
    for length in range(limit + 1):
        targets = list(itertools.product(range(EOS + 1, words), repeat=length))
        for target, log_probs in zip(targets, force([network], ids, targets), strict=True):
            tokens = [*target, EOS]
            found.append(Hypothesis.of(tokens, log_probs[range(length + 1), tokens].tolist(), 0.0))
    return found


# --- what it finds ----------------------------------------------------------------------------------------


def test_a_wide_beam_ranks_as_the_enumeration_of_all_translations_does() -> None:
    lengths = set()
    for seed, ids in ((4, [5, 9, 7]), (5, [20]), (6, [5, 6])):
        network = build(seed=seed, words=9)
        with torch.no_grad():
            network.projection.bias[EOS] = -0.5  # long and short ones compete
        everything = every_translation(network, ids, 3, 9)
        assert len({one.ids for one in everything}) == 1 + 5 + 25 + 125
        for alpha in ALPHAS:
            expected = [Hypothesis.of([*one.ids, EOS], one.token_log_probs, alpha) for one in everything]
            expected.sort(key=lambda one: -one.score)
            (found,) = beams(network, [ids], 125 * 6, alpha, 99, max_length_ratio=0.1, max_length_extra=3)
            assert_same(found, expected[:99])
            lengths.add((alpha, len(found[0].ids)))
    assert {0, 3} <= {length for _, length in lengths}, "the test needs a penalty that matters"


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_search_ends_early_and_misses_nothing_that_going_on_would_find(alpha: float) -> None:
    network, texts, limit = confident(), sentences(8, longest=8), 16
    found = beams(network, texts, 3, alpha, max_length_ratio=0.1, max_length_extra=limit)
    only_best = beams(network, texts, 3, alpha, 1, max_length_ratio=0.1, max_length_extra=limit)
    missed = 0
    for ids, ranked, (best,) in zip(texts, found, only_best, strict=True):
        expected = search_plainly([network], ids, limit, beam=3, alpha=alpha)
        assert_same(ranked, expected)
        assert_same([best], expected[:1])
        full = search_plainly([network], ids, limit, beam=3, alpha=alpha, patience=1)
        missed += full[0].score < expected[0].score - 1e-6
    assert missed, "the test needs texts on which a simpler rule ends too early"


def test_the_search_ends_once_nothing_better_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    network, steps = build(), []
    advance = network.advance

    def count(tgt_in: Tensor, *rest: object) -> object:
        steps.append(len(tgt_in))
        return advance(tgt_in, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(network, "advance", count)
    (found,) = beams(network, [[5, 6, 7]], 4, 0.0, 1, max_length_extra=300)
    assert len(found[0].ids) < len(steps) < 30
    steps.clear()
    found = [ranked[0] for ranked in beams(network, sentences(12), 4, 0.0, 1, max_length_extra=300)]
    assert steps[0] == 12 * 4
    assert all(later <= now for now, later in itertools.pairwise(steps))
    assert len(set(steps)) > 3, "rows of sentences that are done are dropped"
    assert all(rows % 4 == 0 for rows in steps)


@pytest.mark.parametrize("patience", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("nbest", [1, 4])
def test_with_a_patience_the_search_ends_once_so_many_beams_have_ended(patience: float, nbest: int) -> None:
    network, texts, limit = confident(), sentences(12, longest=8), 16
    found = beams(network, texts, 4, 1.0, nbest, patience, max_length_ratio=0.1, max_length_extra=limit)
    ended_early = 0
    for ids, ranked in zip(texts, found, strict=True):
        expected = search_plainly([network], ids, limit, beam=4, alpha=1.0, patience=patience)
        assert_same(ranked, expected[:nbest])
        ended_early += expected != search_plainly([network], ids, limit, beam=4, alpha=1.0)
    assert ended_early, "the test needs texts on which the patience is used up"


def test_scores_and_log_probabilities_are_those_of_teacher_forcing() -> None:
    network, texts = build(norm="post"), sentences(10)
    for ids, ranked in zip(texts, beams(network, texts, 5, 0.6, max_length_ratio=1.0), strict=True):
        assert len({one.ids for one in ranked}) == 5
        assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
        for one in ranked:
            assert one.token_log_probs == pytest.approx(terms([network], ids, one), abs=1e-4)
            assert one.log_prob == pytest.approx(sum(one.token_log_probs))
            assert one.score == one.log_prob / len(one.token_log_probs) ** 0.6


def test_what_the_limit_cuts_comes_behind_all_that_ended() -> None:
    network, texts = build(), sentences(12, longest=6)
    with torch.no_grad():
        network.projection.bias[EOS] = 0.0
    found = beams(network, texts, 4, 1.0, max_length_ratio=0.1, max_length_extra=3)
    for ids, ranked in zip(texts, found, strict=True):
        assert_same(ranked, search_plainly([network], ids, 3, beam=4, alpha=1.0))
        assert [one.finished for one in ranked] == sorted((one.finished for one in ranked), reverse=True)
        assert all(one.finished or len(one.ids) == 3 for one in ranked)
    assert len({sum(one.finished for one in ranked) for ranked in found}) > 2, "the test needs both endings"


def test_there_are_fewer_than_asked_for_where_no_more_exist() -> None:
    ((only,),) = beams(build(), [[5, 6]], 5, max_length_ratio=0.1, max_length_extra=0)
    assert only.ids == ()
    ((only,),) = beams(build(words=EOS + 1), [[5, 6]], 5)  # a vocabulary without a word
    assert (only.ids, only.finished) == ((), True)


# --- beam 1, batches, ties --------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_beam_of_one_is_greedy_search(alpha: float) -> None:
    network, texts = build(), sentences(20)
    found = beams(network, texts, 1, alpha, max_length_ratio=1.5, max_length_extra=3)
    for ids, ranked in zip(texts, found, strict=True):
        limit = int(1.5 * len(ids)) + 3
        assert_same(ranked, search_plainly([network], ids, limit, beam=1, alpha=alpha, patience=1))


def test_beam_search_itself_with_one_beam_equals_greedy_search_by_probability() -> None:
    network, texts = build(), sentences(20)
    src, src_keep = pad_source(texts)
    rules = Rules.of([len(ids) + 3 for ids in texts])
    one_beam = beam_search([network], src, src_keep, rules, beam=1)
    assert [ranked[0] for ranked in one_beam] == greedy([network], src, src_keep, rules)


def test_the_n_best_do_not_depend_on_the_batch() -> None:
    network, texts = confident(), sentences(12, longest=40)
    together = beams(network, texts, 4)
    singly = [beams(network, [ids], 4)[0] for ids in texts]
    backwards = beams(network, texts[::-1], 4)[::-1]
    for other in (singly, backwards):
        for one, another in zip(together, other, strict=True):
            assert_same(one, another)
    assert beams(network, texts, 4) == together
    assert len({ranked[0].ids for ranked in together}) > 6, "the test needs different answers"


def test_of_equally_probable_hypotheses_the_lower_beam_and_then_the_lower_token_comes_first() -> None:
    network = build(words=9)
    network.projection = nn.Linear(24, 9)
    nn.init.zeros_(network.projection.weight)
    nn.init.zeros_(network.projection.bias)  # every token is as probable as any other
    for ranked in beams(network, [[5, 6], [7] * 9], 3, 0.0, max_length_extra=4):
        assert [one.ids for one in ranked] == [(), (4,), (4, 4)]


# --- ensembles --------------------------------------------------------------------------------------------


def test_an_ensemble_of_a_network_with_itself_is_the_network() -> None:
    network, texts = build(), sentences(8)
    for beam in (1, 4):
        for one, two in zip(beams(network, texts, beam), beams([network] * 2, texts, beam), strict=True):
            assert_same(one, two)


def test_an_ensemble_averages_probabilities() -> None:
    networks = [build(seed=4), build(seed=5, decoder_layers=1), build(seed=6, positions="learned")]
    texts = sentences(6, longest=8)
    for beam in (1, 3):
        found = beams(networks, texts, beam, max_length_ratio=1.0, max_length_extra=6)
        for ids, ranked in zip(texts, found, strict=True):
            limit = len(ids) + 6
            patience = 1 if beam == 1 else math.inf
            expected = search_plainly(networks, ids, limit, beam=beam, alpha=1.0, patience=patience)
            assert_same(ranked, expected)
    alone = [beams(network, texts, 3) for network in networks]
    assert found not in alone
