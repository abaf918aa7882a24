"""Dropout (Srivastava et al., 2014) with random numbers that are cheap on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 256


def dropout(states: Tensor, probability: float) -> Tensor:
    """Zero each element with `probability` and scale the others by 1 / (1 - probability).

    On the CPU one random byte decides for each element, so the probability is rounded to a multiple of
    1/256 (and the scale with it): drawing bytes is about ten times faster than torch's Bernoulli numbers.
    """
    if probability == 0.0:
        return states
    if states.device.type != "cpu":
        return F.dropout(states, probability)
    dropped = min(max(round(probability * _LEVELS), 1), _LEVELS - 1)
    words = torch.empty((states.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    keep = words.view(torch.uint8)[: states.numel()].view(states.shape) >= dropped
    return states * keep.to(states.dtype).mul_(_LEVELS / (_LEVELS - dropped))


class Dropout(nn.Module):
    """`dropout` while training, nothing otherwise."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, states: Tensor) -> Tensor:
        """Any shape in, the same shape out."""
        return dropout(states, self.probability) if self.training else states

    def extra_repr(self) -> str:
        """For print(model)."""
        return f"p={self.probability}"
