"""Greedy search against a plain loop that feeds everything again, and on networks that follow a script.

Letters: B batch, S source length, T target length, t positions decoded so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.config import DecodeConfig
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.decoding.greedy import greedy
from nmt.decoding.rules import Rules
from nmt.decoding.search import translate_ids
from nmt.decoding.state import DecoderState, Hypothesis
from nmt.model.transformer import Transformer
from tests.decoding.networks import assert_same, build, search_plainly, sentences, source, terms


class Scripted:
    """A stand-in for a network: the sentence whose first id is i says script[i], one token a step.

    Which sentence a row is stands in the keys of the memory, so it survives only a right `reorder`.
    """

    def __init__(self, script: dict[int, list[int]]) -> None:
        self.script = script
        self.batch_sizes: list[int] = []

    def encode(self, src: Tensor, src_keep: Tensor) -> Tensor:
        return src

    def memory_keys_values(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        names = memory[:, None, :1, None]  # (B,1,1,1)
        return [(names, names)]

    def advance(
        self, tgt_in: Tensor, memory: Any, src_keep: Tensor, past: Any, start: int
    ) -> tuple[Tensor, list[Any]]:
        tokens = torch.cat((past[0][0][:, :, :start], tgt_in[:, None, :, None]), dim=2)  # (B,1,start+1,1)
        self.batch_sizes.append(len(tgt_in))
        states = []
        names = memory[0][0][:, 0, 0, 0].tolist()
        for name, said in zip(names, tokens[:, 0, :, 0].tolist(), strict=True):
            script = self.script[name]
            assert said[0] == BOS
            assert said[1 : len(script) + 1] == script[: len(said) - 1]
            states.append(script[len(said) - 1] if len(said) <= len(script) else PAD)
        return torch.tensor(states)[:, None], [(tokens, tokens)]

    def logits(self, states: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(states, 20).float() * 5.0


def run_script(script: Sequence[list[int]], limits: Sequence[int]) -> tuple[list[Hypothesis], list[int]]:
    """Hypotheses of a scripted batch, and how many rows each step had."""
    network = Scripted(dict(enumerate(script, start=4)))
    src = torch.tensor([[name, EOS] for name in network.script])
    keep = torch.ones_like(src, dtype=torch.bool)
    found = greedy([network], src, keep, Rules.of(limits), length_penalty=1.0)  # type: ignore[list-item]
    return found, network.batch_sizes


# --- the search -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cached_decoding_equals_feeding_everything_again(norm: str) -> None:
    network = build(norm=norm)
    texts = sentences(20)
    decode = DecodeConfig(beam=1, max_length_ratio=1.5, max_length_extra=3)
    expected = [
        search_plainly([network], ids, int(1.5 * len(ids)) + 3, beam=1, alpha=1.0, patience=1)[0]
        for ids in texts
    ]
    assert {hypothesis.finished for hypothesis in expected} == {True, False}, "the test needs both endings"
    assert len({hypothesis.ids for hypothesis in expected}) > 10, "the test needs different answers"
    assert_same(translate_ids(network, texts, decode, device="cpu"), expected)


def test_the_log_probabilities_are_those_that_teacher_forcing_gives_and_the_score_is_made_of_them() -> None:
    network = build()
    texts = sentences(20)
    decode = DecodeConfig(beam=1, length_penalty=0.6)
    for ids, found in zip(texts, translate_ids(network, texts, decode, device="cpu"), strict=True):
        assert found.token_log_probs == pytest.approx(terms([network], ids, found), abs=1e-4)
        assert found.log_prob == pytest.approx(sum(found.token_log_probs))
        assert found.score == found.log_prob / len(found.token_log_probs) ** 0.6


def test_forbidden_tokens_never_come_even_where_they_are_the_most_probable() -> None:
    network = build()
    texts = sentences(20)
    for ids in texts:
        src, src_keep = source(ids)
        assert network(src, src_keep, torch.tensor([[BOS]]))[0, -1].argmax() < EOS
    for found in translate_ids(network, texts, DecodeConfig(beam=1), device="cpu"):
        assert not {UNK, PAD, BOS, EOS} & set(found.ids)


def test_the_result_does_not_depend_on_the_batch() -> None:
    network = build()
    texts = sentences(12, longest=40)
    together = translate_ids(network, texts, DecodeConfig(beam=1), device="cpu")
    alone = translate_ids(network, texts, DecodeConfig(beam=1, batch_tokens=1), device="cpu")
    singly = [translate_ids(network, [ids], DecodeConfig(beam=1), device="cpu")[0] for ids in texts]
    backwards = translate_ids(network, texts[::-1], DecodeConfig(beam=1), device="cpu")[::-1]
    assert len({hypothesis.ids for hypothesis in together}) > 6, "the test needs different answers"
    for other in (alone, singly, backwards):
        assert_same(together, other)
    assert translate_ids(network, texts, DecodeConfig(beam=1), device="cpu") == together


def test_each_row_ends_at_its_own_eos_and_keeps_its_place() -> None:
    script = [[5, 6, EOS], [EOS], [7, 8, 9, 10, 11, EOS], [12, EOS], [13, 14, 15, 16, EOS]]
    found, _ = run_script(script, [9] * 5)
    assert [list(hypothesis.ids) for hypothesis in found] == [said[:-1] for said in script]
    assert all(hypothesis.finished for hypothesis in found)


def test_an_empty_translation_is_the_networks_to_choose() -> None:
    found, _ = run_script([[EOS]], [9])
    one = torch.zeros(20).index_fill(0, torch.tensor(EOS), 5.0).log_softmax(-1)[EOS].item()
    assert found == [Hypothesis((), pytest.approx(one), pytest.approx(one), True, (pytest.approx(one),))]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_sentence_cut_by_the_limit_has_no_eos_and_none_in_its_score(limit: int) -> None:
    (cut, other), _ = run_script([[5] * 8 + [EOS], [6, 7, EOS]], [limit, 9])
    step = torch.zeros(20).index_fill(0, torch.tensor(5), 5.0).log_softmax(-1)[5].item()
    assert (cut.ids, cut.finished) == ((5,) * limit, False)
    assert (cut.log_prob, len(cut.token_log_probs)) == (pytest.approx(limit * step), limit)
    assert cut.score == pytest.approx(step if limit else 0.0)
    assert (other.ids, other.finished) == ((6, 7), True)
    assert (other.log_prob, other.score) == (pytest.approx(3 * step), pytest.approx(step))


def test_a_sentence_as_long_as_the_limit_may_still_end() -> None:
    (found,), steps = run_script([[5, 6, EOS]], [2])
    assert (found.ids, found.finished) == ((5, 6), True)
    assert len(steps) == 3


def test_rows_that_have_ended_are_dropped_and_the_search_stops_with_the_last() -> None:
    script = [[5] * length + [EOS] for length in (1, 1, 4, 4, 9, 2, 4, 1)]
    found, rows = run_script(script, [30] * 8)
    assert [len(hypothesis.ids) for hypothesis in found] == [1, 1, 4, 4, 9, 2, 4, 1]
    assert rows == [8, 8, 5, 5, 5, 1, 1, 1, 1, 1]


def test_translations_may_be_longer_than_the_table_of_positions() -> None:
    network = build()
    with torch.no_grad():
        network.projection.bias[EOS] = -99.0
    decode = DecodeConfig(beam=1, max_length_ratio=1.0, max_length_extra=300)
    (found,) = translate_ids(network, [[5, 6, 7]], decode, device="cpu")
    assert len(found.ids) == 303
    assert found.log_prob == pytest.approx(sum(terms([network], [5, 6, 7], found)), rel=1e-5)


def test_network_weights_in_bf16_still_give_scores_in_float32() -> None:
    network = build().to(torch.bfloat16)
    found = translate_ids(network, sentences(5), DecodeConfig(beam=1), device="cpu")
    assert all(hypothesis.log_prob < 0.0 for hypothesis in found)
    _, after = step_once(network, sentences(5))
    assert after.past[0][0].dtype == torch.bfloat16


def test_batches_in_threads_give_what_they_give_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    network, texts = build(), sentences(40)
    decode = DecodeConfig(beam=1, batch_tokens=30)
    counts: list[int] = []
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = translate_ids(network, texts, decode, device="cpu")
        torch.set_num_threads(3)
        found = translate_ids(network, texts, decode, device="cpu", progress=counts.append)
        assert torch.get_num_threads() == 3
        assert_same(found, expected)
        assert sum(counts) == 40
        assert len(counts) > 5
        monkeypatch.setattr(network, "encode", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            translate_ids(network, texts, decode, device="cpu")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- the state --------------------------------------------------------------------------------------------


@torch.no_grad()
def step_once(network: Transformer, texts: list[list[int]]) -> tuple[Tensor, DecoderState]:
    src = torch.tensor([[*ids, EOS] + [PAD] * (12 - len(ids)) for ids in texts])
    start = DecoderState.start(network, src, src != PAD)
    assert start.position == 0
    return start.step(network, torch.full((len(texts),), BOS))


@torch.no_grad()
def test_a_reordered_state_goes_on_as_its_parents_would() -> None:
    network = build()
    _, after = step_once(network, sentences(5))
    assert after.position == 1
    parents = torch.tensor([3, 0, 3, 4])
    tokens = torch.tensor([7, 5, 9, 6, 8])
    expected, whole = after.step(network, tokens)
    found, part = after.reorder(parents, parents).step(network, tokens[parents])
    torch.testing.assert_close(found, expected[parents], atol=1e-5, rtol=1e-5)
    assert part.position == whole.position == 2
    twice = torch.tensor([0, 0])
    fresh = DecoderState.start(network, *source([5, 6])).reorder(twice, twice)
    assert len(fresh.src_keep) == len(fresh.past[0][0]) == 2


@torch.no_grad()
def test_rows_that_share_a_sentence_are_decoded_as_if_each_had_it() -> None:
    network, tokens = build(), torch.tensor([7, 5, 9, 6, 8, 7])
    src = torch.tensor([[5, 6, 9, EOS], [8, EOS, PAD, PAD]])
    shared = DecoderState.start(network, src, src != PAD, beam=3)
    each = src.repeat_interleave(3, 0)
    alone = DecoderState.start(network, each, each != PAD)
    for _ in range(20):  # beyond the room that there is at first
        mine, shared = shared.step(network, tokens)
        expected, alone = alone.step(network, tokens)
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)
    assert len(shared.memory[0][0]) == 2
    rows, sentences = torch.tensor([5, 3, 3]), torch.tensor([1])
    mine, _ = shared.reorder(rows, sentences).step(network, tokens[rows])
    expected, _ = alone.reorder(rows, rows).step(network, tokens[rows])
    torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)


def test_rules_forbid_tokens_and_leave_all_others_their_probability() -> None:
    log_probs, _ = step_once(build(), sentences(5))
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(5))
    kept = log_probs.clone()
    Rules.of([9] * 5).forbid(kept, 0, torch.arange(5))
    assert (kept[:, :EOS] == -torch.inf).all()
    assert torch.equal(kept[:, EOS:], log_probs[:, EOS:])
    assert (kept[:, EOS:].exp().sum(-1) < 0.1).all()  # most of it went to <unk>, <pad> and <bos>
