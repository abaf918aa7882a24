"""What a search keeps between two steps, and what it returns.

Letters: N rows being decoded (B sentences, or B * K for K beams), H heads, D head width, S source length,
t target positions decoded so far, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import EOS
from nmt.model.attention import ROOM, KeysValues, with_room
from nmt.model.transformer import Transformer

ENCODED_ROWS = 32
"""Sentences that are encoded together on the CPU."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation as ids, without `<bos>` and `<eos>`.

    log_prob is the natural logarithm of its probability, the sum over `ids` and the `<eos>` behind them;
    where the length limit cut it (finished is False) there is no `<eos>` and none is counted. score is what
    the search ranks it by: log_prob / length^alpha, where the length counts what log_prob counts.
    token_log_probs are the terms of log_prob, of each id and then of `<eos>` if finished; a blank source's
    hypothesis, which no network has judged, has none.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool
    token_log_probs: tuple[float, ...] = ()

    @classmethod
    def of(cls, tokens: Sequence[int], gains: Sequence[float], length_penalty: float) -> Hypothesis:
        """From the tokens that were found, `<eos>` last if it came, and the log-probability of each."""
        finished = bool(tokens) and tokens[-1] == EOS
        log_prob = math.fsum(gains)
        score = log_prob / max(len(tokens), 1) ** length_penalty
        return cls(tuple(tokens[: len(tokens) - finished]), log_prob, score, finished, tuple(gains))


@dataclass(frozen=True, slots=True)
class DecoderState:
    """Everything that the next step needs of N rows, so that no position is computed twice.

    memory: keys and values of the encoder's output, one pair (B,H,S,D) a decoder layer; N / B rows in turn
    share a sentence's. src_keep (B,S) bool, True = attend. past: one pair (N,H,C,D) a layer with room for
    C positions, of which `position` are decoded; a step writes into it, so each state is stepped from once.
    """

    memory: tuple[KeysValues, ...]
    src_keep: Tensor
    past: tuple[KeysValues, ...]
    position: int = 0

    @classmethod
    def start(cls, network: Transformer, src: Tensor, src_keep: Tensor, beam: int = 1) -> DecoderState:
        """Encode src (B,S), ids with `<eos>` at their ends, for `beam` rows each; nothing is decoded yet."""
        memory = _memory(network, src, src_keep)
        keep = F.pad(src_keep, (0, memory[0][0].size(2) - src_keep.size(1)))
        rows = len(src) * beam
        past = tuple((_zeros(rows, keys), _zeros(rows, values)) for keys, values in memory)
        return cls(memory, keep, past)

    def step(self, network: Transformer, tokens: Tensor) -> tuple[Tensor, DecoderState]:
        """Read one token (N) a row; returns the next one's log-probabilities (N,V) and the next state."""
        states, past = network.advance(tokens[:, None], self.memory, self.src_keep, self.past, self.position)
        log_probs = network.logits(states[:, -1]).float().log_softmax(-1)
        return log_probs, replace(self, past=tuple(past), position=self.position + 1)

    def reorder(self, parents: Tensor, sentences: Tensor) -> DecoderState:
        """The state of some sentences, whose row i is this one's row parents[i].

        parents (N') rows, equally many in turn for each of sentences (B'). Rows may repeat or be left out.
        """
        return replace(
            self.reorder_past(parents),
            memory=_select(self.memory, sentences),
            src_keep=self.src_keep.index_select(0, sentences),
        )

    def reorder_past(self, parents: Tensor) -> DecoderState:
        """As `reorder`, for rows that only change places with rows of their own sentence."""
        return replace(self, past=_select(self.past, parents))


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Networks that decode the same rows side by side; the average of their probabilities counts."""

    networks: tuple[Transformer, ...]
    states: tuple[DecoderState, ...]

    @classmethod
    def start(cls, networks: Sequence[Transformer], src: Tensor, src_keep: Tensor, beam: int = 1) -> Ensemble:
        """Encode src (B,S) with each network, for `beam` rows each."""
        return cls(tuple(networks), tuple(DecoderState.start(one, src, src_keep, beam) for one in networks))

    def step(self, tokens: Tensor) -> tuple[Tensor, Ensemble]:
        """As `DecoderState.step`."""
        steps = [
            state.step(network, tokens) for network, state in zip(self.networks, self.states, strict=True)
        ]
        return _average([log_probs for log_probs, _ in steps]), self._with(state for _, state in steps)

    def reorder(self, parents: Tensor, sentences: Tensor) -> Ensemble:
        """As `DecoderState.reorder`."""
        return self._with(state.reorder(parents, sentences) for state in self.states)

    def reorder_past(self, parents: Tensor) -> Ensemble:
        """As `DecoderState.reorder_past`."""
        return self._with(state.reorder_past(parents) for state in self.states)

    def _with(self, states: Iterable[DecoderState]) -> Ensemble:
        return replace(self, states=tuple(states))


def _memory(network: Transformer, src: Tensor, src_keep: Tensor) -> tuple[KeysValues, ...]:
    """Keys and values of the encoder's output, one pair (B,H,S,D) a decoder layer, with S at least ROOM.

    On the CPU, where padding costs as much as words do, some rows at a time are encoded without the columns
    that none of them needs.
    """
    longest = max(src.size(1), ROOM)
    parts = []
    some = ENCODED_ROWS if src.device.type == "cpu" else len(src)
    for start in range(0, len(src), some):
        keep = src_keep[start : start + some]
        keep = keep[:, : int(keep.sum(1).max())]
        memory = network.encode(src[start : start + some, : keep.size(1)], keep)
        parts.append([with_room(pair, longest) for pair in network.memory_keys_values(memory)])
    layers = [zip(*pairs, strict=True) for pairs in zip(*parts, strict=True)]
    return tuple((_joined(keys), _joined(values)) for keys, values in layers)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    # they come as views, which each step's matrix products would copy again
    return torch.cat(tuple(parts)).contiguous()


def _zeros(rows: int, like: Tensor) -> Tensor:
    """Room for the first positions, (rows,H,ROOM,D)."""
    return like.new_zeros(rows, like.size(1), ROOM, like.size(3))


def _average(log_probs: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities that are given as logarithms, each (N,V)."""
    if len(log_probs) == 1:
        return log_probs[0]
    mean = torch.stack(list(log_probs)).logsumexp(0) - math.log(len(log_probs))
    return mean.clamp_(max=0.0)  # rounding must not make a probability larger than 1


def _select(layers: tuple[KeysValues, ...], rows: Tensor) -> tuple[KeysValues, ...]:
    # several times faster on the CPU than keys[rows]
    return tuple((keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in layers)
