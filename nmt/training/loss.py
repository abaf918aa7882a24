"""Label-smoothed cross-entropy (Szegedy et al., 2016, section 7), taken together with the projection.

Letters: N target positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ROWS = 256
"""Rows of logits that exist at once: small enough for the CPU's caches, and for any memory."""


def projection_loss(
    states: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Summed loss of `states @ weight.T` against `targets`: (smoothed, plain), in nats.

    states (N,d_model), weight (V,d_model), targets (N) ids, none of them padding. The smoothed loss
    spreads `smoothing` evenly over all V classes, as `torch.nn.functional.cross_entropy` does; the plain
    one is the negative log-likelihood and takes no part in the gradient. Logits are computed in autocast's
    type, a chunk of rows at a time, and loss and gradient in at least float32, so the (N,V) logits never
    stand in memory.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    needs_grad = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    return _ProjectionLoss.apply(states, weight, targets, smoothing, dtype, needs_grad)  # type: ignore[no-any-return,no-untyped-call]


class _ProjectionLoss(torch.autograd.Function):
    """Computes both gradients in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        hidden, matrix = states.to(dtype), weight.to(dtype)
        exact = torch.promote_types(dtype, torch.float32)
        smoothed, plain = (torch.zeros((), dtype=exact, device=states.device) for _ in range(2))
        if needs_grad:
            states_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
        mean_row = matrix.mean(0, dtype=exact)  # of the weight: what a uniform target would pick, (d_model)
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, len(targets), CHUNK_ROWS):
                rows = slice(start, start + CHUNK_ROWS)
                target = targets[rows, None]
                logits = hidden[rows] @ matrix.T  # (n,V)
                probabilities = logits.softmax(1, dtype=exact)
                target_logit = logits.gather(1, target).to(exact)
                mean_logit = hidden[rows].to(exact) @ mean_row[:, None]
                nll = -probabilities.gather(1, target).clamp_min_(torch.finfo(exact).tiny).log_()  # (n,1)
                plain += nll.sum()
                smoothed += (nll + smoothing * (target_logit - mean_logit)).sum()
                if needs_grad:
                    # d loss / d logits = softmax - (1 - smoothing) * onehot - smoothing / V; the last term
                    # is the same for every class, so its part of both gradients is added at the end
                    probabilities.scatter_add_(1, target, torch.full_like(nll, smoothing - 1))
                    grad = probabilities.to(dtype)
                    states_grad[rows] = grad @ matrix
                    weight_grad += grad.T @ hidden[rows]
        if needs_grad:
            states_grad -= (smoothing * mean_row).to(dtype)
            weight_grad -= smoothing / len(weight) * hidden.sum(0, dtype=exact)
            ctx.save_for_backward(states_grad, weight_grad)
            ctx.types = states.dtype, weight.dtype
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, smoothed_grad: Tensor, _plain_grad: Tensor) -> tuple[Tensor | None, ...]:
        states_grad, weight_grad = ctx.saved_tensors
        states_type, weight_type = ctx.types
        return (
            (states_grad * smoothed_grad.to(states_grad.dtype)).to(states_type),
            (weight_grad * smoothed_grad).to(weight_type),
            None,
            None,
            None,
            None,
        )
