"""The loss and its gradients against torch's own cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.training import loss as loss_module
from nmt.training.loss import projection_loss


def inputs(rows: int = 37, width: int = 6, classes: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, width, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(classes, width, dtype=torch.float64, generator=generator).requires_grad_()
    return states, weight, torch.randint(0, classes, (rows,), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("chunk_rows", [1, 10, 37, 512])
def test_loss_and_gradients_equal_torchs_cross_entropy(
    smoothing: float, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", chunk_rows)
    states, weight, targets = inputs()
    smoothed, plain = projection_loss(states, weight, targets, smoothing)
    reference = F.cross_entropy(states @ weight.T, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(smoothed, reference)
    torch.testing.assert_close(plain, F.cross_entropy(states @ weight.T, targets, reduction="sum"))
    ours = torch.autograd.grad(smoothed / 7, (states, weight))
    theirs = torch.autograd.grad(reference / 7, (states, weight))
    torch.testing.assert_close(ours, theirs)


def test_gradcheck_passes_in_float64() -> None:
    states, weight, targets = inputs(rows=5)
    assert torch.autograd.gradcheck(lambda s, w: projection_loss(s, w, targets, 0.1)[0], (states, weight))


def test_the_loss_in_bf16_is_close_to_the_exact_one() -> None:
    states, weight, targets = inputs(rows=300, width=32, classes=200)
    exact = F.cross_entropy(states @ weight.T, targets, label_smoothing=0.1, reduction="sum")
    single = [t.detach().float().requires_grad_() for t in (states, weight)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        smoothed, _ = projection_loss(*single, targets, 0.1)
    assert smoothed.dtype == torch.float32
    assert smoothed.item() == pytest.approx(exact.item(), rel=0.01)
    grads = torch.autograd.grad(smoothed, single)
    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32]


def test_nothing_is_kept_for_a_backward_pass_where_none_can_come() -> None:
    states, weight, targets = inputs()
    with torch.no_grad():
        smoothed, _ = projection_loss(states, weight, targets, 0.1)
    assert not smoothed.requires_grad
