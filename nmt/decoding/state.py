"""What a search keeps between two steps, and what it returns.

Letters: N rows being decoded (B sentences, or B * K for K beams), H heads, D head width, S source length,
t target positions decoded so far, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.vocabulary import EOS
from nmt.model.attention import KeysValues
from nmt.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation as ids, without `<bos>` and `<eos>`.

    log_prob is the natural logarithm of its probability, the sum over `ids` and the `<eos>` behind them;
    where the length limit cut it (finished is False) there is no `<eos>` and none is counted. score is what
    the search ranks it by.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True, slots=True)
class DecoderState:
    """Everything that the next step needs of N rows, so that no position is computed twice.

    memory: keys and values of the encoder's output, one pair (N,H,S,D) a decoder layer. src_keep (N,S) bool,
    True = attend. past: keys and values of the decoded positions, one pair (N,H,t,D) a layer, None for t = 0.
    """

    memory: tuple[KeysValues, ...]
    src_keep: Tensor
    past: tuple[KeysValues, ...] | None = None

    @classmethod
    def start(cls, network: Transformer, src: Tensor, src_keep: Tensor) -> DecoderState:
        """Encode src (N,S), ids with `<eos>` at their ends; nothing is decoded yet."""
        memory = network.memory_keys_values(network.encode(src, src_keep))
        # they come as views that each step's matrix products would copy again
        return cls(tuple((keys.contiguous(), values.contiguous()) for keys, values in memory), src_keep)

    @property
    def position(self) -> int:
        """How many target positions are decoded, t."""
        return 0 if self.past is None else self.past[0][0].size(2)

    def step(self, network: Transformer, tokens: Tensor) -> tuple[Tensor, DecoderState]:
        """Read one token (N) a row; returns the log-probabilities (N,V) of the next one, and the next state.

        `<unk>`, `<pad>` and `<bos>` are forbidden by -inf after the log-softmax, which leaves all others with
        the probability that teacher forcing gives them.
        """
        states, past = network.advance(tokens[:, None], self.memory, self.src_keep, self.past)
        log_probs = network.logits(states[:, -1]).log_softmax(-1, dtype=torch.float32)
        log_probs[:, :EOS] = -torch.inf
        return log_probs, DecoderState(self.memory, self.src_keep, tuple(past))

    def reorder(self, parents: Tensor) -> DecoderState:
        """The state whose row i is this one's row parents[i]; rows may repeat or be left out."""
        past = None if self.past is None else _select(self.past, parents)
        return DecoderState(_select(self.memory, parents), self.src_keep[parents], past)


def _select(layers: tuple[KeysValues, ...], rows: Tensor) -> tuple[KeysValues, ...]:
    return tuple((keys[rows], values[rows]) for keys, values in layers)
