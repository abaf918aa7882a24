"""What every search shares: batches, limits, prefixes, options, modes, and the rows that it may hold.

Letters: B batch, S source length, T target length.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.config import DecodeConfig
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.decoding import search as module
from nmt.decoding.rules import Rules
from nmt.decoding.search import SearchOptions, search, translate_ids
from nmt.decoding.state import Hypothesis
from nmt.errors import ConfigError, DataError
from nmt.model.transformer import Transformer
from tests.decoding.networks import (
    SRC_WORDS,
    assert_same,
    build,
    search_plainly,
    sentences,
    source,
    terms,
)

BEAMS = pytest.mark.parametrize("beam", [1, 4])


def never_ending(**settings: Any) -> Transformer:
    network = build(**settings)
    with torch.no_grad():
        network.projection.bias[EOS] = -99.0
    return network


# --- batches ----------------------------------------------------------------------------------------------


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The size (B,S) of each batch that a search makes; each hypothesis names its sentence's ids."""
    sizes: list[tuple[int, int]] = []

    def fake(networks: Any, src: Tensor, src_keep: Tensor, rules: Rules, **_: Any) -> list[Hypothesis]:
        sizes.append(tuple(src.shape))
        assert torch.equal(src == PAD, ~src_keep)
        rows = [row[keep].tolist() for row, keep in zip(src, src_keep, strict=True)]
        assert all(row[-1] == EOS for row in rows)
        limits = rules.max_lengths.tolist()
        return [
            Hypothesis(tuple(row[:-1]), -limit, -limit, True) for row, limit in zip(rows, limits, strict=True)
        ]

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # one batch after the other
    monkeypatch.setattr(module, "greedy", fake)
    monkeypatch.setattr(module, "beam_search", lambda *given, **named: [(one,) for one in fake(*given)])
    return sizes


def test_results_come_in_order_and_empty_sentences_stay_empty(batches: list[tuple[int, int]]) -> None:
    texts = [[], *sentences(40), [], [9]]
    told: list[int] = []
    found = translate_ids(
        build(),
        texts,
        DecodeConfig(batch_tokens=60),
        device="cpu",
        progress=told.append,
    )
    assert [list(hypothesis.ids) for hypothesis in found] == texts
    assert found[0] == found[41] == Hypothesis((), 0.0, 0.0, True)
    assert sum(told) == len(texts)
    assert sum(rows for rows, _ in batches) == 41


def test_batches_stay_within_the_budget_and_hold_sentences_of_like_length(
    batches: list[tuple[int, int]],
) -> None:
    texts = [*sentences(200, longest=30), [5] * 99]
    translate_ids(build(), texts, DecodeConfig(batch_tokens=90), device="cpu")
    assert batches[0] == (1, 100), "one that is over the budget stands alone"
    assert all(rows * width <= 90 for rows, width in batches[1:])
    used = sum(len(ids) + 1 for ids in texts)
    assert used / sum(rows * width for rows, width in batches) > 0.9


@pytest.mark.parametrize(
    ("beam", "expected"), [(1, [192] * 3 + [24]), (5, [38] * 15 + [30]), (999, [1] * 600)]
)
def test_rows_are_capped_however_short_the_sentences_and_wide_the_beam(
    beam: int, expected: list[int], batches: list[tuple[int, int]]
) -> None:
    translate_ids(build(), [[5]] * 600, DecodeConfig(batch_tokens=99_999, beam=beam), device="cpu")
    assert [rows for rows, _ in batches] == expected


def test_each_hypothesis_of_a_beam_counts_in_the_budget_of_a_batch(batches: list[tuple[int, int]]) -> None:
    translate_ids(build(), [[5] * 9] * 20, DecodeConfig(batch_tokens=100, beam=4), device="cpu")
    assert batches == [(2, 10)] * 10
    batches.clear()
    options = SearchOptions(decode=DecodeConfig(batch_tokens=100), nbest=4, sample_temperature=1.0)
    search([build()], [[5] * 9] * 20, options, device="cpu")
    assert batches == [(8, 10)] * 10, "a sample is a row from the start"


def test_a_source_is_read_up_to_its_limit_and_the_translations_limit_follows_it(
    batches: list[tuple[int, int]],
) -> None:
    decode = DecodeConfig(max_source_tokens=7, max_length_ratio=1.5, max_length_extra=2)
    long, short = translate_ids(build(), [[5] * 50, [6]], decode, device="cpu")
    assert (long.ids, short.ids) == ((5,) * 7, (6,))
    assert (long.log_prob, short.log_prob) == (-12, -3)  # int(1.5 * 7) + 2 and int(1.5) + 2


@BEAMS
def test_no_translation_is_longer_than_learned_positions_reach(beam: int) -> None:
    networks = [never_ending(positions="learned", max_positions=size) for size in (14, 12)]
    decode = DecodeConfig(max_source_tokens=11, beam=beam)
    for ids in ([5, 6, 7], [5] * 11):
        ((found,),) = search(networks, [ids], SearchOptions(decode=decode), device="cpu")
        assert (len(found.ids), found.finished) == (11, False)  # behind <bos>


def test_no_sentences_give_no_results() -> None:
    assert translate_ids(build(), [], DecodeConfig(), device="cpu") == []


@BEAMS
def test_blank_sentences_have_one_empty_translation(beam: int) -> None:
    options = SearchOptions(decode=DecodeConfig(beam=beam), nbest=beam, prefixes=[(), [5], ()])
    found = search([build()], [[], [], [6, 7]], options, device="cpu")
    assert found[0] == found[1] == (Hypothesis((), 0.0, 0.0, True),)
    assert len(found[2]) == beam


# --- lengths, prefixes, <unk> -----------------------------------------------------------------------------


@BEAMS
def test_translations_keep_to_the_least_and_the_greatest_length(beam: int) -> None:
    network, texts = build(), sentences(12)
    decode = DecodeConfig(beam=beam, min_length=6, max_length_ratio=1.0, max_length_extra=0)
    found = search([network], texts, SearchOptions(decode=decode, nbest=beam), device="cpu")
    for ids, ranked in zip(texts, found, strict=True):
        assert all(min(6, len(ids)) <= len(one.ids) <= len(ids) for one in ranked)
        assert_same(
            ranked,
            search_plainly(
                [network],
                ids,
                len(ids),
                beam=beam,
                alpha=1.0,
                min_length=min(6, len(ids)),
                patience=1 if beam == 1 else 2,
            ),
        )
    loose = search([network], texts, SearchOptions(decode=DecodeConfig(beam=beam)), device="cpu")
    assert min(len(one.ids) for one, *_ in loose) < 6 < max(len(one.ids) for one, *_ in loose)


@BEAMS
def test_a_prefix_is_kept_and_counts_and_the_rest_is_searched_for(beam: int) -> None:
    network, texts = build(), sentences(6)
    prefixes: list[list[int]] = [[], [7], [7, 7, 7, 9], [UNK, 5], [12], []]
    decode = DecodeConfig(beam=beam, max_length_extra=4, length_penalty=0.6)
    options = SearchOptions(decode=decode, nbest=beam, prefixes=prefixes)
    found = search([network], texts, options, device="cpu")
    for ids, prefix, ranked in zip(texts, prefixes, found, strict=True):
        limit = 2 * len(ids) + 4
        expected = search_plainly(
            [network], ids, limit, beam=beam, alpha=0.6, prefix=prefix, patience=1 if beam == 1 else 2
        )
        assert_same(ranked, expected)
        for one in ranked:
            assert list(one.ids[: len(prefix)]) == prefix
            assert one.token_log_probs == pytest.approx(terms([network], ids, one), abs=1e-4)


@BEAMS
def test_a_prefix_may_be_longer_than_the_limit(beam: int) -> None:
    decode = DecodeConfig(beam=beam, max_length_ratio=0.1, max_length_extra=0)
    prefix = [5, 6, 7, 8]
    ((found,),) = search([build()], [[9]], SearchOptions(decode=decode, prefixes=[prefix]), device="cpu")
    assert list(found.ids) == prefix


def test_a_prefix_that_cannot_be_is_refused() -> None:
    network = build(positions="learned", max_positions=12)
    for length in (11, 12):
        options = SearchOptions(decode=DecodeConfig(), prefixes=[[], [5] * length])
        if length == 11:
            assert len(search([network], [[5], [6]], options, device="cpu")) == 2
        else:
            with pytest.raises(DataError, match="prefix 2 has 12 tokens, the model has positions for 11"):
                search([network], [[5], [6]], options, device="cpu")
    for special in (PAD, BOS, EOS):
        options = SearchOptions(decode=DecodeConfig(), prefixes=[[5, special]])
        with pytest.raises(ValueError, match="prefix 1 holds a special"):
            search([network], [[5]], options, device="cpu")
    with pytest.raises(ValueError, match="shorter"):
        search([network], [[5], [6]], SearchOptions(decode=DecodeConfig(), prefixes=[[5]]), device="cpu")


@BEAMS
def test_unk_comes_only_where_it_is_allowed_and_the_other_specials_never(beam: int) -> None:
    network, texts = build(), sentences(12)
    decode = DecodeConfig(beam=beam)
    for allow_unk in (False, True):
        options = SearchOptions(decode=decode, nbest=beam, allow_unk=allow_unk)
        said = {
            i for ranked in search([network], texts, options, device="cpu") for one in ranked for i in one.ids
        }
        assert said & {UNK, PAD, BOS, EOS} == ({UNK} if allow_unk else set())


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nbest": 3}, "3 translations of a sentence cannot come from a beam of 2"),
        ({"nbest": 0}, "at least one"),
        ({"sample_temperature": 0.0}, "temperature of 0.0"),
        ({"sample_temperature": float("nan")}, "temperature of nan"),
        ({"sample_temperature": float("inf")}, "temperature of inf"),
        ({"sample_temperature": 1.0, "seed": -1}, "seed of -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchOptions(decode=DecodeConfig(beam=2), **settings)


def test_an_ensemble_of_different_vocabularies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one target vocabulary, not sizes \[9, 13\]"):
        search([build(), build(words=9)], [[5]], SearchOptions(decode=DecodeConfig()), device="cpu")


# --- modes ------------------------------------------------------------------------------------------------


def test_dropout_is_off_while_decoding_and_each_modules_mode_comes_back() -> None:
    network = build(dropout=0.5, attention_dropout=0.5, activation_dropout=0.5).train()
    network.encoder.eval()  # as where a part of it is frozen
    texts = sentences(8)
    modes = [part.training for part in network.modules()]
    found = translate_ids(network, texts, DecodeConfig(), device="cpu")
    assert translate_ids(network, texts, DecodeConfig(), device="cpu") == found
    assert [part.training for part in network.modules()] == modes
    assert_same(found, translate_ids(build(), texts, DecodeConfig(), device="cpu"), 1e-6)


def test_the_mode_comes_back_after_a_failure_too() -> None:
    network = build().train()
    with pytest.raises(IndexError):
        translate_ids(network, [[SRC_WORDS + 5]], DecodeConfig(), device="cpu")
    assert network.training


def test_training_goes_on_after_decoding() -> None:
    network = build(dropout=0.1).train()
    translate_ids(network, sentences(3), DecodeConfig(max_length_extra=300), device="cpu")
    src, src_keep = source([5, 6, 7])
    network(src, src_keep, torch.tensor([[BOS, 5, 6]])).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
