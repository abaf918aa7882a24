"""Batches: sentences of like length together, within a budget of positions, padded.

Letters: B batch, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.dataset import Ids, Split
from nmt.data.vocabulary import BOS, EOS, PAD

Lengths = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded pairs as the model takes them."""

    src: Tensor
    """(B,S) ids, each row ended by <eos>."""
    src_keep: Tensor
    """(B,S) bool, True = attend."""
    tgt_in: Tensor
    """(B,T) ids, <bos> first."""
    tgt_out: Tensor
    """(B,T) ids, one step ahead of `tgt_in`, <eos> last."""
    num_tokens: int
    """Positions of `tgt_out` that are no padding."""

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        if device.type == "cpu":
            return self
        src, src_keep, tgt_in, tgt_out = (
            ids.to(device, non_blocking=True) for ids in (self.src, self.src_keep, self.tgt_in, self.tgt_out)
        )
        return Batch(src, src_keep, tgt_in, tgt_out, self.num_tokens)


def plan_batches(
    split: Split,
    batch_tokens: int,
    *,
    seed: int,
    epoch: int,
    noise: float = 1.0,
    max_rows: int | None = None,
) -> list[Rows]:
    """The rows of each batch of an epoch: a pure function of the lengths, `seed` and `epoch`.

    Sentences are sorted by target length, then by source length with up to `noise` tokens of randomness;
    cut into batches whose positions (rows times the longest sentence, <eos> counted) stay within
    `batch_tokens` on either side, and rows within `max_rows`; and the batches are shuffled. Each row comes
    exactly once; a sentence longer than the budget is a batch of its own.
    """
    random = np.random.default_rng([seed, epoch])
    src, tgt = split.src.lengths + 1, split.tgt.lengths + 1
    loose_src = src + random.uniform(0.0, noise, len(split))
    # source lengths rise in one group of target lengths and fall in the next, so neighbours stay alike
    rising = np.where(tgt % 2 == 0, loose_src, -loose_src)
    order = np.lexsort((rising, tgt))
    batches = cut_batches(order, np.maximum(src, tgt), batch_tokens, max_rows)
    return [batches[i] for i in random.permutation(len(batches))]


def cut_batches(order: Rows, lengths: Lengths, batch_tokens: int, max_rows: int | None = None) -> list[Rows]:
    """Cut `order` into runs whose rows times longest length stay within `batch_tokens` (and `max_rows`)."""
    batches: list[Rows] = []
    start, longest = 0, 0
    for end, row in enumerate(order):
        longest = max(longest, int(lengths[row]))
        rows = end - start + 1
        if rows > 1 and (rows * longest > batch_tokens or (max_rows is not None and rows > max_rows)):
            batches.append(order[start:end])
            start, longest = end, int(lengths[row])
    if start < len(order):
        batches.append(order[start:])
    return batches


def split_rows(rows: Rows, *, rank: int, world: int, parts: int) -> list[Rows]:
    """One rank's rows of a batch, in as many parts as are computed one after the other.

    Rows stand in order of length, so every world-th, and of these every parts-th, makes all shares alike in
    size and padding. In a batch of fewer rows than shares some are empty.
    """
    return [rows[rank::world][part::parts] for part in range(parts)]


def target_tokens(split: Split, rows: Rows) -> int:
    """Target positions of the given rows that are no padding: what their loss is divided by."""
    offsets = split.tgt.offsets
    return int((offsets[rows + 1] - offsets[rows]).sum()) + len(rows)


def make_batch(split: Split, rows: Rows) -> Batch:
    """Pad the given rows of a split."""
    src, src_keep = pad_source([split.src[row] for row in rows])
    targets = [split.tgt[row] for row in rows]
    return Batch(src, src_keep, *pad_target(targets), sum(len(sentence) + 1 for sentence in targets))


def pad_source(sentences: Sequence[Ids | Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B,S), each row ended by <eos> and padded, and where to attend, (B,S) bool."""
    src = _pad(sentences, last=EOS)
    return src, src != PAD


def pad_target(sentences: Sequence[Ids | Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B,T) behind <bos>, and the same one step ahead, ended by <eos>; both padded."""
    return _pad(sentences, first=BOS), _pad(sentences, last=EOS)


def without_specials(batch: Batch) -> tuple[list[list[int]], list[list[int]]]:
    """The sources and the targets of a batch as they were before they were padded."""
    sides = (batch.src, batch.tgt_out)
    sources, targets = ([row[row != PAD][:-1].tolist() for row in side.cpu()] for side in sides)
    return sources, targets


def token_share(split: Split, plan: Sequence[Rows]) -> float:
    """The share of the positions in a plan's batches, both sides together, that are no padding."""
    used, total = 0, 0
    for lengths in (split.src.lengths + 1, split.tgt.lengths + 1):
        used += sum(int(lengths[rows].sum()) for rows in plan)
        total += sum(int(lengths[rows].max()) * len(rows) for rows in plan)
    return used / total if total else 1.0


def _pad(
    sentences: Sequence[Ids | Sequence[int]], *, first: int | None = None, last: int | None = None
) -> Tensor:
    """Rows of ids, each with one id more before or behind it, (B, longest + 1)."""
    start = 0 if first is None else 1
    padded = np.full((len(sentences), max(map(len, sentences)) + 1), PAD, dtype=np.int64)
    for row, sentence in zip(padded, sentences, strict=True):
        end = start + len(sentence)
        row[start:end] = sentence
        if last is not None:
            row[end] = last
    if first is not None:
        padded[:, 0] = first
    return torch.from_numpy(padded)
