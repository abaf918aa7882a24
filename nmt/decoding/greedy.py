"""Rows that each follow one path: greedy search takes the most probable token, sampling draws one.

Letters: B sentences, N of them still being decoded, S source length, T longest translation, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS
from nmt.decoding.largest import first_largest
from nmt.decoding.rules import Rules
from nmt.decoding.state import Ensemble, Hypothesis
from nmt.model.transformer import Transformer

KEEP_SHARE = 0.75
"""Finished rows are dropped once no more than this share still runs: dropping copies the whole state."""

Choice = Callable[[Tensor, int, Tensor], Tensor]
"""Log-probabilities (N,V), the position, and which sentences (N) the rows decode -> tokens (N)."""


def most_probable(log_probs: Tensor, position: int, sentences: Tensor) -> Tensor:
    """Greedy search's choice; of equals the lowest id."""
    return first_largest(log_probs)


@torch.inference_mode()
def greedy(
    networks: Sequence[Transformer],
    src: Tensor,
    src_keep: Tensor,
    rules: Rules,
    *,
    length_penalty: float = 0.0,
    choose: Choice = most_probable,
) -> list[Hypothesis]:
    """Translate one padded batch with networks in eval mode.

    src (B,S) ids ending in `<eos>`, src_keep (B,S) bool, True = attend. `<eos>` may come first: whether a
    translation is empty is the network's choice. In float32 a sentence's result does not depend on its
    neighbours.
    """
    limit = int(rules.max_lengths.max())
    tokens = src.new_full((len(src), limit + 1), EOS)  # (B,T+1)
    gains = torch.zeros(tokens.shape, device=src.device)  # (B,T+1), the log-probability of each token
    state = Ensemble.start(networks, src, src_keep)
    rows = torch.arange(len(src), device=src.device)  # (N) the sentence that each row decodes
    last = src.new_full((len(src),), BOS)  # (N)
    running = torch.ones_like(rows, dtype=torch.bool)  # (N)
    for position in range(limit + 1):
        log_probs, state = state.step(last)
        rules.forbid(log_probs, position, rows)
        last = choose(log_probs, position, rows)
        tokens[rows, position] = last
        gains[rows, position] = log_probs.gather(1, last[:, None]).squeeze(1)
        running = running & (last != EOS) & (rules.max_lengths[rows] > position)
        remaining = int(running.sum())
        if not remaining:
            break
        if remaining <= KEEP_SHARE * len(rows):
            rest = running.nonzero().squeeze(1)
            state, rows, last, running = state.reorder(rest, rest), rows[rest], last[rest], running[rest]
    return _collect(tokens, gains, rules.max_lengths, length_penalty)


def _collect(tokens: Tensor, gains: Tensor, max_lengths: Tensor, length_penalty: float) -> list[Hypothesis]:
    """Cut each row (B,T+1) behind its first `<eos>` or its limit; what it decoded behind that is ignored."""
    hypotheses = []
    for ids, row_gains, limit in zip(tokens.tolist(), gains.tolist(), max_lengths.tolist(), strict=True):
        length = ids.index(EOS) + 1 if EOS in ids[: limit + 1] else limit
        hypotheses.append(Hypothesis.of(ids[:length], row_gains[:length], length_penalty))
    return hypotheses
