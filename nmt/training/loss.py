"""Label-smoothed cross-entropy (Szegedy et al., 2016, section 7) and R-Drop, together with the projection.

The logits (N,V) of a batch are large: they are made a chunk of rows at a time, and gradients at once with the
loss, so that they never stand in memory as a whole.

Letters: N target positions, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import PAD

CHUNK_ROWS = 256
"""Rows of logits that exist at once: small enough for the CPU's caches, and for any memory."""

Mass = Literal["all", "others"]
"""Who gets the smoothed probability: all classes, or all but the right one and padding."""


def projection_loss(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    *,
    bias: Tensor | None = None,
    mass: Mass = "all",
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss of `states @ weight.T + bias` against `targets`: (smoothed, plain), in nats.

    states (N,d_model), weight (V,d_model), bias (V), targets (N) ids, none of them padding. The smoothed loss
    takes `smoothing` from the target and spreads it evenly: over all V classes, as
    `torch.nn.functional.cross_entropy` does, or over the V - 2 that are neither target nor padding. That
    second form is given as a Kullback-Leibler divergence: zero where the model is as unsure as asked.
    The plain one is the negative log-likelihood and takes no part in the gradient. weights (N), of any sign,
    are what each position's smoothed loss is multiplied by. Logits are computed in autocast's type, loss and
    gradient in at least float32.
    """
    smoothed, _, plain = _losses(states, weight, bias, targets, weights, smoothing, mass, None)
    return smoothed, plain


@torch.no_grad()
def token_losses(states: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """The negative log-likelihood (N) at each position, without gradients; else as `projection_loss`."""
    dtype = _computing_type(states)
    hidden, matrix = states.to(dtype), weight.to(dtype)
    exact = torch.promote_types(dtype, torch.float32)
    offset = None if bias is None else bias.to(exact)
    with torch.autocast(states.device.type, enabled=False):
        parts = [
            F.cross_entropy(_logits(hidden[rows], matrix, offset).to(exact), targets[rows], reduction="none")
            for rows in _chunks(len(targets), 1)
        ]
    return torch.cat(parts) if parts else states.new_zeros(0, dtype=exact)


def r_drop_loss(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    divergence_weight: float,
    *,
    bias: Tensor | None = None,
    mass: Mass = "all",
) -> tuple[Tensor, Tensor]:
    """R-Drop's objective of two passes, summed, and the smoothed loss in it (Liang et al., 2021, equation 4).

    The objective is the mean of both passes' smoothed losses, plus `divergence_weight` times
    (KL(P1, P2) + KL(P2, P1)) / 2 at each position, in nats (equation 2).

    states (2N,d_model): those of N positions under one dropout, then the same under another, P1 and P2 what
    `states @ weight.T + bias` gives them; targets (N). All else is as in `projection_loss`; the smoothed loss
    by itself takes no part in the gradient.
    """
    objective, smoothed, _ = _losses(states, weight, bias, targets, None, smoothing, mass, divergence_weight)
    return objective, smoothed


def _losses(states: Tensor, weight: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What `_ProjectionLoss` makes of these: the objective, the smoothed loss and the plain one."""
    dtype = _computing_type(states)
    needs_grad = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    return _ProjectionLoss.apply(states, weight, *given, dtype, needs_grad)  # type: ignore[no-any-return,no-untyped-call]


def _computing_type(states: Tensor) -> torch.dtype:
    """What autocast would take for a matrix product."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


def _chunks(positions: int, passes: int) -> list[slice]:
    most = max(CHUNK_ROWS // passes, 1)
    return [slice(start, start + most) for start in range(0, positions, most)]


def _logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """(n,d_model), (V,d_model), (V) -> (n,V)."""
    logits = hidden @ matrix.T
    return logits if bias is None else logits + bias


class _ProjectionLoss(torch.autograd.Function):
    """Computes all gradients in the forward pass; the backward pass only scales them.

    With p the wanted distribution, d loss / d logits = softmax - p. Of p, `spread` (V) is the same in every
    row, so its part of the gradients is added once, at the end; the rest stands at the target. With a
    `divergence_weight` the states are of two passes over the positions, and a chunk holds some of both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor | None,
        smoothing: float,
        mass: Mass,
        divergence_weight: float | None,
        dtype: torch.dtype,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        passes = 1 if divergence_weight is None else 2
        classes, width = weight.shape
        hidden, matrix = states.to(dtype).view(passes, len(targets), width), weight.to(dtype)
        exact = torch.promote_types(dtype, torch.float32)
        offset = None if bias is None else bias.to(exact)
        others = mass == "others"
        share = smoothing / (classes - 2 if others else classes)
        # so much less than 1, beside its spread, at the target
        taken = smoothing + share if others else smoothing
        spread = torch.full((classes,), share, dtype=exact, device=states.device)  # (V)
        spread_row = share * matrix.sum(0, dtype=exact)  # spread @ matrix, (d_model)
        if others:
            spread[PAD] = 0.0
            spread_row -= share * matrix[PAD]
        spread_offset = 0.0 if offset is None else spread @ offset
        smoothed, plain, divergence = torch.zeros(3, dtype=exact, device=states.device)
        if needs_grad:
            states_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
            bias_grad = torch.zeros(classes, dtype=exact, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            for rows in _chunks(len(targets), passes):
                some = hidden[:, rows].flatten(0, 1)  # (n,d_model)
                target = targets[rows].repeat(passes)[:, None]
                logits = _logits(some, matrix, offset)  # (n,V)
                probabilities = logits.softmax(1, dtype=exact)
                target_logit = logits.gather(1, target).to(exact)
                spread_logit = some.to(exact) @ spread_row[:, None] + spread_offset
                nll = -probabilities.gather(1, target).clamp_min_(torch.finfo(exact).tiny).log_()  # (n,1)
                losses = nll + taken * target_logit - spread_logit
                plain += nll.sum()
                smoothed += (losses if weights is None else losses * weights[rows, None]).sum()
                if divergence_weight is not None:
                    apart, pull = _divergence(logits.to(exact) - (nll + target_logit), probabilities)
                    divergence += apart
                if needs_grad:
                    probabilities.scatter_add_(1, target, torch.full_like(nll, taken - 1))
                    if weights is not None:
                        probabilities *= weights[rows, None]
                    if divergence_weight is not None:
                        probabilities.add_(pull, alpha=passes * divergence_weight)
                    grad = probabilities.to(dtype)
                    states_grad[:, rows] = (grad @ matrix).view(passes, -1, width)
                    weight_grad += grad.T @ some
                    if bias is not None:
                        bias_grad += probabilities.sum(0)
            total: float | Tensor = len(states)  # of the positions, each as much as it weighs
            if weights is not None:
                total, spread_row, hidden = (
                    weights.sum(),
                    spread_row * weights[:, None],
                    hidden * weights[:, None],
                )
            if needs_grad:
                states_grad -= spread_row.to(dtype)
                weight_grad.addr_(spread, hidden.sum((0, 1), dtype=exact), alpha=-1)
                bias_grad -= total * spread
                ctx.save_for_backward(states_grad.view_as(states), weight_grad, bias_grad)
                ctx.types = [None if given is None else given.dtype for given in (states, weight, bias)]
        if others:  # the entropy of p, which turns the cross-entropy into a divergence
            smoothed += total * (_x_log_x(1 - smoothing) + smoothing * math.log(share or 1.0))
        smoothed = smoothed / passes
        ctx.passes = passes
        ctx.mark_non_differentiable(smoothed_alone := smoothed.clone(), plain)
        objective = smoothed if divergence_weight is None else smoothed + divergence_weight * divergence
        return objective, smoothed_alone, plain

    @staticmethod
    def backward(
        ctx: Any, objective_grad: Tensor, _smoothed_grad: Tensor, _plain_grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        grads = [
            None if dtype is None else (grad * (objective_grad / ctx.passes).to(grad.dtype)).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.types, strict=True)
        ]
        return *grads, None, None, None, None, None, None, None


def _divergence(log_probs: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of (KL(P1, P2) + KL(P2, P1)) / 2, and its gradient by the logits (n,V).

    Both given (n,V), P1's rows before P2's. d KL(P1, P2) / d logits1 = P1 (log P1 - log P2 - KL(P1, P2)), and
    d KL(P2, P1) / d logits1 = P1 - P2; for logits2 with the two exchanged.
    """
    p, q = probabilities.chunk(2)
    first, second = log_probs.chunk(2)
    ratio, difference = first - second, p - q
    there, back = (p * ratio).sum(1, keepdim=True), -(q * ratio).sum(1, keepdim=True)  # (n/2,1)
    pull = torch.cat((p * (ratio - there) + difference, -q * (ratio + back) - difference))
    return (there + back).sum() / 2, pull / 2


def _x_log_x(x: float) -> float:
    return x * math.log(x) if x > 0 else 0.0
