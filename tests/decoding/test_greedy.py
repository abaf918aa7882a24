"""Greedy search against a plain loop that feeds everything again, and on networks that follow a script.

Letters: B batch, S source length, T target length, t positions decoded so far, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config import DecodeConfig, ModelConfig
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.decoding import greedy as module
from nmt.decoding.greedy import greedy, translate_ids
from nmt.decoding.state import DecoderState, Hypothesis
from nmt.model.transformer import Transformer

SRC_WORDS, TGT_WORDS = 31, 13


def build(**settings: Any) -> Transformer:
    """A small network in eval mode that says <eos> now and then, and would love to say the other specials."""
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 24, "heads": 4, "feed_forward": 40}
    config = ModelConfig(**{**shape, "dropout": 0.0, "share_embeddings": "none", **settings})
    torch.manual_seed(4)
    network = Transformer(config, SRC_WORDS, TGT_WORDS).eval()
    for name, parameter in network.named_parameters():
        if "attention" in name and parameter.dim() == 2:
            parameter.data *= 2.0  # more attention to the source than at the start of training
    network.projection = nn.Linear(24, TGT_WORDS)
    nn.init.normal_(network.projection.weight, std=0.5)
    nn.init.zeros_(network.projection.bias)
    with torch.no_grad():
        network.projection.bias[:EOS] = 9.0
        network.projection.bias[EOS] = 1.0
    return network


def sentences(count: int, shortest: int = 1, longest: int = 12, seed: int = 0) -> list[list[int]]:
    """Random source sentences whose lengths are spread evenly from `shortest` to `longest`, shuffled."""
    generator = random.Random(seed)
    lengths = [shortest + (longest - shortest) * i // max(count - 1, 1) for i in range(count)]
    generator.shuffle(lengths)
    return [[generator.randrange(4, SRC_WORDS) for _ in range(length)] for length in lengths]


def source(ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One sentence as src (1,S) and src_keep (1,S)."""
    src = torch.tensor([[*ids, EOS]])
    return src, torch.ones_like(src, dtype=torch.bool)


@torch.no_grad()
def search_plainly(network: Transformer, ids: Sequence[int], limit: int) -> Hypothesis:
    """Greedy search for one sentence, every token fed again at each step."""
    src, src_keep = source(ids)
    found: list[int] = []
    log_prob = 0.0
    while True:
        logits = network(src, src_keep, torch.tensor([[BOS, *found]]))[0, -1]  # (V)
        log_probs = logits.double().log_softmax(-1)
        best = max(range(EOS, TGT_WORDS), key=lambda token: log_probs[token].item())
        if best == EOS:
            total = log_prob + log_probs[EOS].item()
            return Hypothesis(tuple(found), total, total, True)
        if len(found) == limit:
            return Hypothesis(tuple(found), log_prob, log_prob, False)
        found.append(best)
        log_prob += log_probs[best].item()


@torch.no_grad()
def force(network: Transformer, ids: Sequence[int], target: Sequence[int]) -> float:
    """The log-probability that teacher forcing gives to a target, <eos> included if it is written."""
    src, src_keep = source(ids)
    logits = network(src, src_keep, torch.tensor([[BOS, *target]]))[0, :-1]  # (T,V)
    return logits.log_softmax(-1)[range(len(target)), list(target)].sum().item()


def assert_same(found: Iterable[Hypothesis], expected: Iterable[Hypothesis], tolerance: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.finished) == (other.ids, other.finished)
        assert one.log_prob == pytest.approx(other.log_prob, abs=tolerance)
        assert one.score == one.log_prob


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

    def advance(self, tgt_in: Tensor, memory: Any, src_keep: Tensor, past: Any) -> tuple[Tensor, list[Any]]:
        tokens = tgt_in[:, None, :, None]  # (B,1,1,1)
        if past is not None:
            tokens = torch.cat((past[0][0], tokens), dim=2)
        self.batch_sizes.append(len(tgt_in))
        states = []
        for name, said in zip(memory[0][0].flatten().tolist(), tokens[:, 0, :, 0].tolist(), strict=True):
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
    found = greedy(network, src, torch.ones_like(src, dtype=torch.bool), torch.tensor(limits))  # type: ignore[arg-type]
    return found, network.batch_sizes


# --- the search -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cached_decoding_equals_feeding_everything_again(norm: str) -> None:
    network = build(norm=norm)
    texts = sentences(20)
    decode = DecodeConfig(max_length_ratio=1.5, max_length_extra=3)
    expected = [search_plainly(network, ids, int(1.5 * len(ids)) + 3) for ids in texts]
    assert {hypothesis.finished for hypothesis in expected} == {True, False}, "the test needs both endings"
    assert len({hypothesis.ids for hypothesis in expected}) > 10, "the test needs different answers"
    assert_same(translate_ids(network, texts, decode, device="cpu"), expected)


def test_the_score_is_the_one_that_teacher_forcing_gives() -> None:
    network = build()
    texts = sentences(20)
    for ids, found in zip(texts, translate_ids(network, texts, DecodeConfig(), device="cpu"), strict=True):
        target = (*found.ids, EOS) if found.finished else found.ids
        assert found.log_prob == pytest.approx(force(network, ids, target), abs=1e-4)


def test_forbidden_tokens_never_come_even_where_they_are_the_most_probable() -> None:
    network = build()
    texts = sentences(20)
    for ids in texts:
        src, src_keep = source(ids)
        assert network(src, src_keep, torch.tensor([[BOS]]))[0, -1].argmax() < EOS
    for found in translate_ids(network, texts, DecodeConfig(), device="cpu"):
        assert not {UNK, PAD, BOS, EOS} & set(found.ids)


def test_the_result_does_not_depend_on_the_batch() -> None:
    network = build()
    texts = sentences(12, longest=40)
    together = translate_ids(network, texts, DecodeConfig(), device="cpu")
    alone = translate_ids(network, texts, DecodeConfig(batch_tokens=1), device="cpu")
    singly = [translate_ids(network, [ids], DecodeConfig(), device="cpu")[0] for ids in texts]
    backwards = translate_ids(network, texts[::-1], DecodeConfig(), device="cpu")[::-1]
    assert len({hypothesis.ids for hypothesis in together}) > 6, "the test needs different answers"
    for other in (alone, singly, backwards):
        assert_same(together, other)
    assert translate_ids(network, texts, DecodeConfig(), device="cpu") == together


def test_each_row_ends_at_its_own_eos_and_keeps_its_place() -> None:
    script = [[5, 6, EOS], [EOS], [7, 8, 9, 10, 11, EOS], [12, EOS], [13, 14, 15, 16, EOS]]
    found, _ = run_script(script, [9] * 5)
    assert [list(hypothesis.ids) for hypothesis in found] == [said[:-1] for said in script]
    assert all(hypothesis.finished for hypothesis in found)


def test_an_empty_translation_is_the_networks_to_choose() -> None:
    found, _ = run_script([[EOS]], [9])
    one = torch.zeros(20).index_fill(0, torch.tensor(EOS), 5.0).log_softmax(-1)[EOS].item()
    assert found == [Hypothesis((), pytest.approx(one), pytest.approx(one), True)]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_sentence_cut_by_the_limit_has_no_eos_and_none_in_its_score(limit: int) -> None:
    (cut, other), _ = run_script([[5] * 8 + [EOS], [6, 7, EOS]], [limit, 9])
    step = torch.zeros(20).index_fill(0, torch.tensor(5), 5.0).log_softmax(-1)[5].item()
    assert (cut.ids, cut.finished) == ((5,) * limit, False)
    assert cut.log_prob == pytest.approx(limit * step)
    assert (other.ids, other.finished) == ((6, 7), True)
    assert other.log_prob == pytest.approx(3 * step)


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
    decode = DecodeConfig(max_length_ratio=1.0, max_length_extra=300)
    (found,) = translate_ids(network, [[5, 6, 7]], decode, device="cpu")
    assert len(found.ids) == 303
    assert found.log_prob == pytest.approx(force(network, [5, 6, 7], found.ids), rel=1e-5)


def test_network_weights_in_bf16_still_give_scores_in_float32() -> None:
    network = build().to(torch.bfloat16)
    found = translate_ids(network, sentences(5), DecodeConfig(), device="cpu")
    assert all(hypothesis.log_prob < 0.0 for hypothesis in found)
    _, after = step_once(network, sentences(5))
    assert after.past is not None
    assert after.past[0][0].dtype == torch.bfloat16


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
    found, part = after.reorder(parents).step(network, tokens[parents])
    torch.testing.assert_close(found, expected[parents], atol=1e-5, rtol=1e-5)
    assert part.position == whole.position == 2
    fresh = DecoderState.start(network, *source([5, 6])).reorder(torch.tensor([0, 0]))
    assert (len(fresh.src_keep), fresh.past) == (2, None)


def test_a_step_gives_probabilities_that_only_lack_the_forbidden_ones() -> None:
    network = build()
    log_probs, _ = step_once(network, sentences(5))
    assert (log_probs[:, :EOS] == -torch.inf).all()
    assert (log_probs[:, EOS:].exp().sum(-1) < 0.1).all()  # most of it went to <unk>, <pad> and <bos>


# --- any number of sentences ------------------------------------------------------------------------------


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The size (B,S) of each batch that `translate_ids` makes; each hypothesis names its sentence's ids."""
    sizes: list[tuple[int, int]] = []

    def fake(network: Any, src: Tensor, src_keep: Tensor, max_lengths: Tensor) -> list[Hypothesis]:
        sizes.append(tuple(src.shape))
        assert torch.equal(src == PAD, ~src_keep)
        rows = [row[keep].tolist() for row, keep in zip(src, src_keep, strict=True)]
        assert all(row[-1] == EOS for row in rows)
        limits = max_lengths.tolist()
        return [
            Hypothesis(tuple(row[:-1]), -limit, -limit, True) for row, limit in zip(rows, limits, strict=True)
        ]

    monkeypatch.setattr(module, "greedy", fake)
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


def test_rows_are_capped_however_short_the_sentences_are(batches: list[tuple[int, int]]) -> None:
    translate_ids(build(), [[5]] * 600, DecodeConfig(batch_tokens=99_999), device="cpu")
    assert [rows for rows, _ in batches] == [256, 256, 88]


def test_a_source_is_read_up_to_its_limit_and_the_translations_limit_follows_it(
    batches: list[tuple[int, int]],
) -> None:
    decode = DecodeConfig(max_source_tokens=7, max_length_ratio=1.5, max_length_extra=2)
    long, short = translate_ids(build(), [[5] * 50, [6]], decode, device="cpu")
    assert (long.ids, short.ids) == ((5,) * 7, (6,))
    assert (long.log_prob, short.log_prob) == (-12, -3)  # int(1.5 * 7) + 2 and int(1.5) + 2


def test_no_translation_is_longer_than_learned_positions_reach() -> None:
    network = build(positions="learned", max_positions=12)
    with torch.no_grad():
        network.projection.bias[EOS] = -99.0  # it would never stop
    for ids in ([5, 6, 7], [5] * 11):
        (found,) = translate_ids(network, [ids], DecodeConfig(max_source_tokens=11), device="cpu")
        assert (len(found.ids), found.finished) == (11, False)  # behind <bos>


def test_no_sentences_give_no_results() -> None:
    assert translate_ids(build(), [], DecodeConfig(), device="cpu") == []


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
