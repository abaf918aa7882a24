"""Greedy search: at each step every sentence takes its most probable next token.

Letters: B sentences, N of them still being decoded, S source length, T longest translation, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from nmt.config import DecodeConfig
from nmt.data.batching import cut_batches, pad_source
from nmt.data.vocabulary import BOS, EOS
from nmt.decoding.state import DecoderState, Hypothesis
from nmt.model.transformer import Transformer

MAX_ROWS = 256
"""Most sentences decoded at once, so that keys and values of many short ones do not fill the memory."""

_KEEP_SHARE = 0.75
"""Finished rows are dropped once no more than this share still runs: dropping copies the whole state."""


@torch.inference_mode()
def greedy(network: Transformer, src: Tensor, src_keep: Tensor, max_lengths: Tensor) -> list[Hypothesis]:
    """Translate one padded batch with a network in eval mode.

    src (B,S) ids ending in `<eos>`, src_keep (B,S) bool, True = attend, max_lengths (B) the most tokens of
    each translation, `<eos>` not counted. `<eos>` may come first: whether a translation is empty is the
    network's choice. In float32 a sentence's result does not depend on its neighbours.
    """
    limit = int(max_lengths.max())
    tokens = src.new_full((len(src), limit + 1), EOS)  # (B,T+1)
    log_probs = torch.zeros(tokens.shape, device=src.device)  # (B,T+1), of each token
    state = DecoderState.start(network, src, src_keep)
    rows = torch.arange(len(src), device=src.device)  # (N) the sentence that each row decodes
    last = src.new_full((len(src),), BOS)  # (N)
    running = torch.ones_like(rows, dtype=torch.bool)  # (N)
    for position in range(limit + 1):
        options, state = state.step(network, last)
        best, last = options.max(-1)
        tokens[rows, position], log_probs[rows, position] = last, best
        running = running & (last != EOS) & (max_lengths[rows] > position)
        remaining = int(running.sum())
        if not remaining:
            break
        if remaining <= _KEEP_SHARE * len(rows):
            rest = running.nonzero().squeeze(1)
            state, rows, last, running = state.reorder(rest), rows[rest], last[rest], running[rest]
    return _collect(tokens, log_probs, max_lengths)


def _collect(tokens: Tensor, log_probs: Tensor, max_lengths: Tensor) -> list[Hypothesis]:
    """Cut each row (B,T+1) at its first `<eos>` or its limit; what a row decoded behind that is ignored."""
    hypotheses = []
    for ids, gains, limit in zip(tokens.tolist(), log_probs.tolist(), max_lengths.tolist(), strict=True):
        length = ids.index(EOS) if EOS in ids[: limit + 1] else limit
        finished = ids[length] == EOS
        log_prob = math.fsum(gains[: length + finished])
        hypotheses.append(Hypothesis(tuple(ids[:length]), log_prob, log_prob, finished))
    return hypotheses


def translate_ids(
    network: Transformer,
    sentences: Sequence[Sequence[int]],
    decode: DecodeConfig,
    *,
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> list[Hypothesis]:
    """Translate any number of sentences (ids without specials); the results come in the sentences' order.

    A sentence without tokens gets an empty, finished hypothesis. Source tokens beyond
    `decode.max_source_tokens` are not read; to warn of them is the caller's part. After each batch `progress`
    is told how many sentences it held. The network decodes in eval mode and gets its former mode back.
    """
    results = [Hypothesis((), 0.0, 0.0, True)] * len(sentences)
    lengths = np.array([min(len(ids), decode.max_source_tokens) for ids in sentences], dtype=np.int64)
    longest_first = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]  # without the empty ones
    with _evaluating(network):
        for rows in cut_batches(longest_first, lengths + 1, decode.batch_tokens, MAX_ROWS):
            batch = [sentences[row][: lengths[row]] for row in rows]
            limits = [_limit(len(ids), decode, network.max_positions) for ids in batch]
            src, src_keep = pad_source(batch)
            found = greedy(network, src.to(device), src_keep.to(device), torch.tensor(limits, device=device))
            for row, hypothesis in zip(rows, found, strict=True):
                results[row] = hypothesis
            if progress is not None:
                progress(len(rows))
    if progress is not None and (empty := len(lengths) - len(longest_first)):
        progress(empty)
    return results


def _limit(source_tokens: int, decode: DecodeConfig, max_positions: int | None) -> int:
    """The most tokens of a translation: as the settings say, and with `<bos>` no more than have positions."""
    limit = int(decode.max_length_ratio * source_tokens) + decode.max_length_extra
    return limit if max_positions is None else min(limit, max_positions - 1)


@contextmanager
def _evaluating(network: Transformer) -> Iterator[None]:
    """Eval mode inside, and each module's own mode again afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
