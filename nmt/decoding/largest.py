"""The largest of many scores, found by way of the largest of each block of them.

The CPU finds a block's largest number ten times as fast as the place where it stands. So that place is only
looked for in the few blocks that can hold it: the `count` largest of a row are in the `count` blocks whose
largest are the largest.

Letters: N rows, C scores in a row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_BLOCK = 64


def first_largest(scores: Tensor) -> Tensor:
    """The place (N) of the largest score in each row of (N,C), of equals the first: `scores.argmax(1)`."""
    blocks = _blocks(scores)  # (N,blocks,_BLOCK)
    block = blocks.amax(2).argmax(1, keepdim=True)  # (N,1)
    return block.squeeze(1) * _BLOCK + _taken(blocks, block).argmax(1)


def largest(scores: Tensor, count: int) -> Tensor:
    """Places (N,count) of the largest of scores (N,C), none above 0, in falling order, of equals the first.

    `topk` is free to take any of several equals. Where that could matter, scores and places are put into one
    whole number, which has no equals: a float's bits, its sign left out, are ordered as its size is.
    """
    near, places = _largest_in_some_order(scores, min(count + 1, scores.size(1)))
    if not _has_equals(near):
        return places[:, :count]
    bits = scores.abs().view(torch.int32).long()
    keys = (bits << 32) + torch.arange(scores.size(1), device=scores.device)
    return keys.topk(count, largest=False).values & 0xFFFFFFFF


def _largest_in_some_order(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row in falling order, and their places; equals in any order."""
    if scores.size(1) <= count * _BLOCK:
        values, places = scores.topk(count)
        return values, places
    blocks = _blocks(scores)
    chosen = blocks.amax(2).topk(count).indices  # (N,count)
    values, within = _taken(blocks, chosen).topk(count)
    return values, chosen.gather(1, within // _BLOCK) * _BLOCK + within % _BLOCK


def _blocks(scores: Tensor) -> Tensor:
    """(N,C) -> (N,blocks,_BLOCK), filled up with -inf."""
    missing = -scores.size(1) % _BLOCK
    scores = F.pad(scores, (0, missing), value=-torch.inf) if missing else scores
    return scores.view(len(scores), -1, _BLOCK)


def _taken(blocks: Tensor, chosen: Tensor) -> Tensor:
    """The scores of the blocks `chosen` (N,count) in each row, (N,count * _BLOCK)."""
    return blocks.gather(1, chosen[:, :, None].expand(-1, -1, _BLOCK)).flatten(1)


def _has_equals(falling: Tensor) -> bool:
    """Whether two neighbours in a row are the same number; -inf does not count."""
    return bool(((falling[:, 1:] == falling[:, :-1]) & ~falling[:, 1:].isneginf()).any())
