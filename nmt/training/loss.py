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
) -> tuple[Tensor, Tensor]:
    """Summed loss of `states @ weight.T + bias` against `targets`: (smoothed, plain), in nats.

    states (N,d_model), weight (V,d_model), bias (V), targets (N) ids, none of them padding. The smoothed loss
    takes `smoothing` from the target and spreads it evenly: over all V classes, as
    `torch.nn.functional.cross_entropy` does, or over the V - 2 that are neither target nor padding. That
    second form is given as a Kullback-Leibler divergence: zero where the model is as unsure as asked.
    The plain one is the negative log-likelihood and takes no part in the gradient. Logits are computed in
    autocast's type, loss and gradient in at least float32.
    """
    dtype = _computing_type(states)
    needs_grad = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    return _ProjectionLoss.apply(states, weight, bias, targets, smoothing, mass, dtype, needs_grad)  # type: ignore[no-any-return,no-untyped-call]


def consistency_loss(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """R-Drop's divergence between two passes, summed (Liang et al., 2021, equation 2).

    That is (KL(P1, P2) + KL(P2, P1)) / 2 at each position, in nats.

    first, second (N,d_model): the states of the same positions under different dropout, P1 and P2 what
    `states @ weight.T + bias` gives them.
    """
    dtype = _computing_type(first)
    needs_grad = torch.is_grad_enabled() and (first.requires_grad or weight.requires_grad)
    return _ConsistencyLoss.apply(first, second, weight, bias, dtype, needs_grad)  # type: ignore[no-any-return,no-untyped-call]


def _computing_type(states: Tensor) -> torch.dtype:
    """What autocast would take for a matrix product."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


def _chunks(rows: int) -> list[slice]:
    return [slice(start, start + CHUNK_ROWS) for start in range(0, rows, CHUNK_ROWS)]


def _logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """(n,d_model), (V,d_model), (V) -> (n,V)."""
    logits = hidden @ matrix.T
    return logits if bias is None else logits + bias


class _ProjectionLoss(torch.autograd.Function):
    """Computes all gradients in the forward pass; the backward pass only scales them.

    With p the wanted distribution, d loss / d logits = softmax - p. Of p, `spread` (V) is the same in every
    row, so its part of the gradients is added once, at the end; the rest stands at the target.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        mass: Mass,
        dtype: torch.dtype,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        hidden, matrix = states.to(dtype), weight.to(dtype)
        exact = torch.promote_types(dtype, torch.float32)
        offset = None if bias is None else bias.to(exact)
        classes, others = len(weight), mass == "others"
        share = smoothing / (classes - 2 if others else classes)
        taken = (
            smoothing + share if others else smoothing
        )  # so much less than 1, beside its spread, at the target
        spread = torch.full((classes,), share, dtype=exact, device=states.device)  # (V)
        spread_row = share * matrix.sum(0, dtype=exact)  # spread @ matrix, (d_model)
        if others:
            spread[PAD] = 0.0
            spread_row -= share * matrix[PAD]
        spread_offset = 0.0 if offset is None else spread @ offset
        smoothed, plain = (torch.zeros((), dtype=exact, device=states.device) for _ in range(2))
        if needs_grad:
            states_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight, dtype=exact)
            bias_grad = torch.zeros(classes, dtype=exact, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            for rows in _chunks(len(targets)):
                target = targets[rows, None]
                logits = _logits(hidden[rows], matrix, offset)  # (n,V)
                probabilities = logits.softmax(1, dtype=exact)
                target_logit = logits.gather(1, target).to(exact)
                spread_logit = hidden[rows].to(exact) @ spread_row[:, None] + spread_offset
                nll = -probabilities.gather(1, target).clamp_min_(torch.finfo(exact).tiny).log_()  # (n,1)
                plain += nll.sum()
                smoothed += (nll + taken * target_logit - spread_logit).sum()
                if needs_grad:
                    probabilities.scatter_add_(1, target, torch.full_like(nll, taken - 1))
                    grad = probabilities.to(dtype)
                    states_grad[rows] = grad @ matrix
                    weight_grad += grad.T @ hidden[rows]
                    if bias is not None:
                        bias_grad += probabilities.sum(0)
            if needs_grad:
                states_grad -= spread_row.to(dtype)
                weight_grad.addr_(spread, hidden.sum(0, dtype=exact), alpha=-1)
                bias_grad -= len(targets) * spread
                _keep(ctx, (states_grad, weight_grad, bias_grad), (states, weight, bias))
        if others:  # the entropy of p, which turns the cross-entropy into a divergence
            smoothed += len(targets) * (_x_log_x(1 - smoothing) + smoothing * math.log(share or 1.0))
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, smoothed_grad: Tensor, _plain_grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx, smoothed_grad), None, None, None, None, None


class _ConsistencyLoss(torch.autograd.Function):
    """R-Drop's term, with all gradients computed in the forward pass.

    d KL(P1, P2) / d logits1 = P1 (log P1 - log P2 - KL(P1, P2)), and d KL(P2, P1) / d logits1 = P1 - P2; for
    logits2 with the two exchanged.
    """

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        needs_grad: bool,
    ) -> Tensor:
        hidden, matrix = (first.to(dtype), second.to(dtype)), weight.to(dtype)
        exact = torch.promote_types(dtype, torch.float32)
        offset = None if bias is None else bias.to(exact)
        total = torch.zeros((), dtype=exact, device=first.device)
        if needs_grad:
            grads = [torch.empty_like(hidden[0]), torch.empty_like(hidden[1])]
            weight_grad = torch.zeros_like(weight, dtype=exact)
            bias_grad = torch.zeros(len(weight), dtype=exact, device=first.device)
        with torch.autocast(first.device.type, enabled=False):
            for rows in _chunks(len(first)):
                logs = [_logits(h[rows], matrix, offset).log_softmax(1, dtype=exact) for h in hidden]  # (n,V)
                p, ratio = [log.exp() for log in logs], logs[0] - logs[1]
                divergences = [
                    (p[0] * ratio).sum(1, keepdim=True),
                    -(p[1] * ratio).sum(1, keepdim=True),
                ]  # (n,1)
                total += (divergences[0] + divergences[1]).sum() / 2
                if not needs_grad:
                    continue
                difference = p[0] - p[1]
                for side, sign in ((0, 1.0), (1, -1.0)):
                    grad = (p[side] * (sign * ratio - divergences[side]) + sign * difference) / 2
                    grads[side][rows] = grad.to(dtype) @ matrix
                    weight_grad += grad.to(dtype).T @ hidden[side][rows]
                    if bias is not None:
                        bias_grad += grad.sum(0)
        if needs_grad:
            _keep(ctx, (*grads, weight_grad, bias_grad), (first, second, weight, bias))
        return total

    @staticmethod
    def backward(ctx: Any, total_grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx, total_grad), None, None


def _keep(ctx: Any, grads: tuple[Tensor, ...], inputs: tuple[Tensor | None, ...]) -> None:
    """Keep the gradients of the inputs that there are, in the inputs' order, for `_scaled`."""
    ctx.save_for_backward(*grads)
    ctx.types = [None if given is None else given.dtype for given in inputs]


def _scaled(ctx: Any, scale: Tensor) -> list[Tensor | None]:
    """The kept gradients times that of the loss."""
    return [
        None if dtype is None else (grad * scale.to(grad.dtype)).to(dtype)
        for grad, dtype in zip(ctx.saved_tensors, ctx.types, strict=True)
    ]


def _x_log_x(x: float) -> float:
    return x * math.log(x) if x > 0 else 0.0
