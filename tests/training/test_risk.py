"""Expected risk and its gradient against autograd's own way through the whole formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.vocabulary import PAD
from nmt.training.risk import Drawn, expected_risk

WIDTH, VOCABULARY = 6, 11
TRANSLATIONS = [[4, 5, 6], [4], [7, 8, 9, 10], [5, 5], [], [9, 4]]
"""Three of each of two pairs; one is empty."""


def drawn(costs: list[list[float]]) -> Drawn:
    return Drawn.of(TRANSLATIONS, torch.tensor(costs, dtype=torch.float64), torch.device("cpu"))


def network_output(bias: bool = True) -> tuple[Tensor, nn.Linear]:
    """States (B*K,T,d_model) and a projection, in float64."""
    torch.manual_seed(3)
    projection = nn.Linear(WIDTH, VOCABULARY, bias=bias).double()
    return torch.randn(len(TRANSLATIONS), 5, WIDTH, dtype=torch.float64, requires_grad=True), projection


def by_formula(states: Tensor, given: Drawn, projection: nn.Linear, shares: Tensor) -> Tensor:
    """Equation 6 of Shen et al. with each translation as probable as its mean token says."""
    log_probs = projection(states).log_softmax(-1).gather(-1, given.tgt_out[..., None])[..., 0]
    real = given.tgt_out != PAD
    means = (log_probs * real).sum(1) / real.sum(1)
    expected = (means.view(2, 3).softmax(1) * given.costs).sum(1)
    return (expected * shares).sum()


@pytest.mark.parametrize("bias", [True, False])
def test_risk_and_its_gradients_are_those_of_the_formula(bias: bool) -> None:
    states, projection = network_output(bias)
    given, shares = drawn([[0.1, 0.9, 0.4], [1.0, 0.0, 0.3]]), torch.tensor([5, 3])
    ours = expected_risk(states, given, projection, shares)
    theirs = by_formula(states, given, projection, shares)
    torch.testing.assert_close(ours, theirs)
    inner = [states, *projection.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(ours * 0.7, inner), torch.autograd.grad(theirs * 0.7, inner)
    )


def test_where_all_cost_the_same_nothing_is_pulled() -> None:
    states, projection = network_output()
    risk = expected_risk(states, drawn([[0.5] * 3, [0.2] * 3]), projection, torch.tensor([1, 1]))
    assert risk.item() == pytest.approx(0.7)
    (gradient,) = torch.autograd.grad(risk, [states])
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_a_step_against_the_gradient_makes_the_cheapest_more_probable() -> None:
    states, projection = network_output()
    given, shares = drawn([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]), torch.tensor([1, 1])

    def mean_loss(row: int, at: Tensor) -> float:
        real = given.tgt_out[row] != PAD
        return F.cross_entropy(projection(at[row])[real], given.tgt_out[row][real]).item()

    (gradient,) = torch.autograd.grad(expected_risk(states, given, projection, shares), [states])
    after = states.detach() - 0.5 * gradient
    for row in (0, 5):
        assert mean_loss(row, after) < mean_loss(row, states.detach())
    for row in (1, 2, 3, 4):
        assert mean_loss(row, after) > mean_loss(row, states.detach())


def test_what_is_drawn_is_padded_like_any_target() -> None:
    given = drawn([[0.0] * 3] * 2)
    assert given.tgt_in.shape == given.tgt_out.shape == (6, 5)
    assert given.tgt_out[4].tolist()[1:] == [PAD] * 4
    assert math.isclose(float((given.tgt_out != PAD).sum()), sum(map(len, TRANSLATIONS)) + 6)
