"""AdamW, the learning rate at each step, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nmt.config import TrainConfig


def make_optimizer(network: nn.Module, settings: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with weight decay on matrices only."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, fused=True
    )


def learning_rate(step: int, settings: TrainConfig, total_steps: int) -> float:
    """The learning rate of step 1, 2, …: a straight rise for warmup_steps, then as the schedule says.

    `inverse_sqrt` is section 5.3 of "Attention Is All You Need", scaled so that the peak is
    `settings.learning_rate`; `linear` and `cosine` (Loshchilov and Hutter, 2017, equation 5, one cycle down
    to zero) reach their last positive value at `total_steps`.
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    # of the steps behind the peak, 1 at the peak and above 0 at the last step, also where there is none
    left = max(total_steps - step + 1, 1) / max(total_steps - max(warmup, 1) + 1, 1)
    match settings.schedule:
        case "constant":
            return peak
        case "inverse_sqrt":
            return float(peak * (max(warmup, 1) / step) ** 0.5)
        case "linear":
            return peak * left
        case "cosine":
            return peak * (1 - math.cos(math.pi * left)) / 2


class WeightAverage:
    """An exponential moving average of a network's weights.

    The decay starts low and approaches `decay`: after step t it is min(decay, (1 + t) / (10 + t)), so the
    first, random weights are soon forgotten.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in network.named_parameters()}

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Take in the weights after `step` (1, 2, …)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [p.detach() for _, p in network.named_parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - decay)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from an average that was saved."""
        for name, average in self.weights.items():
            average.copy_(weights[name])

    def swap(self, network: nn.Module) -> None:
        """Exchange the network's weights with the averaged ones; a second call undoes the first."""
        for name, parameter in network.named_parameters():
            self.weights[name], parameter.data = parameter.data, self.weights[name]
