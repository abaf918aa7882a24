"""The loss and its gradients against torch's own cross-entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.vocabulary import PAD
from nmt.training import loss as loss_module
from nmt.training.loss import projection_loss, r_drop_loss

BIAS = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)


def inputs(rows: int = 37, width: int = 6, classes: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    """States, weight, and targets of which none is padding."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(rows, width, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(classes, width, dtype=torch.float64, generator=generator).requires_grad_()
    return states, weight, torch.randint(PAD + 1, classes, (rows,), generator=generator)


@pytest.fixture(params=[1, 10, 37, 512])
def chunk_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", request.param)


@pytest.mark.usefixtures("chunk_rows")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_loss_and_gradients_equal_torchs_cross_entropy(smoothing: float, bias: Tensor | None) -> None:
    states, weight, targets = inputs()
    offset = None if bias is None else bias.clone().requires_grad_()
    smoothed, plain = projection_loss(states, weight, targets, smoothing, bias=offset)
    logits = F.linear(states, weight, offset)
    reference = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(smoothed, reference)
    torch.testing.assert_close(plain, F.cross_entropy(logits, targets, reduction="sum"))
    wanted = [states, weight] if offset is None else [states, weight, offset]
    ours = torch.autograd.grad(smoothed / 7, wanted)
    theirs = torch.autograd.grad(reference / 7, wanted)
    torch.testing.assert_close(ours, theirs)


def kl_form(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Label smoothing as a divergence from a target that leaves padding, and the right token, out."""
    wanted = torch.full_like(logits, smoothing / (logits.size(1) - 2))
    wanted.scatter_(1, targets[:, None], 1 - smoothing)
    wanted[:, PAD] = 0.0
    return nn.KLDivLoss(reduction="sum")(logits.log_softmax(1), wanted)


@pytest.mark.usefixtures("chunk_rows")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_mass_for_the_others_equals_the_divergence_that_leaves_padding_out(
    smoothing: float, bias: Tensor | None
) -> None:
    states, weight, targets = inputs()
    offset = None if bias is None else bias.clone().requires_grad_()
    smoothed, plain = projection_loss(states, weight, targets, smoothing, bias=offset, mass="others")
    logits = F.linear(states, weight, offset)
    reference = kl_form(logits, targets, smoothing)
    torch.testing.assert_close(smoothed, reference)
    torch.testing.assert_close(plain, F.cross_entropy(logits, targets, reduction="sum"))
    wanted = [states, weight] if offset is None else [states, weight, offset]
    ours = torch.autograd.grad(smoothed / 7, wanted)
    torch.testing.assert_close(ours, torch.autograd.grad(reference / 7, wanted))


@pytest.mark.parametrize("mass", ["all", "others"])
def test_gradcheck_passes_in_float64_with_smoothing_and_padding(mass: Any) -> None:
    states, weight, targets = inputs(rows=8)
    targets[[2, 5]] = PAD
    real = targets != PAD
    bias = BIAS.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s, w, b: projection_loss(s[real], w, targets[real], 0.1, bias=b, mass=mass)[0],
        (states, weight, bias),
    )


# --- R-Drop -----------------------------------------------------------------------------------------------


def r_drop_form(
    states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, alpha: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """R-Drop's objective and the smoothed loss in it, by torch's own functions."""
    logs = [F.linear(each, weight, bias).log_softmax(1) for each in states.chunk(2)]
    smoothed = F.cross_entropy(torch.cat(logs), targets.repeat(2), label_smoothing=smoothing, reduction="sum")
    there = F.kl_div(logs[1], logs[0], reduction="sum", log_target=True)
    back = F.kl_div(logs[0], logs[1], reduction="sum", log_target=True)
    return smoothed / 2 + alpha * (there + back) / 2, smoothed / 2


@pytest.mark.usefixtures("chunk_rows")
@pytest.mark.parametrize("bias", [None, BIAS])
def test_r_drops_objective_and_its_gradients_equal_torchs(bias: Tensor | None) -> None:
    states, weight, targets = inputs(rows=38)
    offset = None if bias is None else bias.clone().requires_grad_()
    found = r_drop_loss(states, weight, targets[:19], 0.1, 1.5, bias=offset)
    wanted = r_drop_form(states, weight, targets[:19], 0.1, 1.5, offset)
    torch.testing.assert_close(found, wanted)
    inner = [states, weight] if offset is None else [states, weight, offset]
    ours, theirs = (torch.autograd.grad(each[0] / 7, inner) for each in (found, wanted))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mass", ["all", "others"])
def test_gradcheck_passes_for_r_drop(mass: Any) -> None:
    states, weight, targets = inputs(rows=8)

    def objective(states: Tensor, weight: Tensor) -> Tensor:
        return r_drop_loss(states, weight, targets[:4], 0.1, 2.0, mass=mass)[0]

    assert torch.autograd.gradcheck(objective, (states, weight))


def test_two_equal_passes_have_no_divergence() -> None:
    states, weight, targets = inputs()
    objective, smoothed = r_drop_loss(torch.cat((states, states)), weight, targets, 0.1, 5.0)
    alone, _ = projection_loss(states, weight, targets, 0.1)
    torch.testing.assert_close((objective, smoothed), (alone, alone))
    assert not smoothed.requires_grad


# --- precision --------------------------------------------------------------------------------------------


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
