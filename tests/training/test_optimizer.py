"""Learning rates step by step, which weights decay, and the moving average."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from nmt.config import ModelConfig, TrainConfig
from nmt.model.transformer import Transformer
from nmt.training.optimizer import WeightAverage, learning_rate, make_optimizer


def rates(total: int = 40, **settings: object) -> list[float]:
    config = TrainConfig.model_validate({"learning_rate": 0.01, "warmup_steps": 4, **settings})
    return [learning_rate(step, config, total) for step in range(1, total + 1)]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine"])
def test_the_rate_rises_strictly_to_the_last_warm_up_step_and_then_falls(schedule: str) -> None:
    values = rates(schedule=schedule)
    assert values[0] > 0
    assert values[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert all(a > b > 0 for a, b in pairwise(values[3:]))


def test_inverse_sqrt_is_the_formula_of_the_paper() -> None:
    for step, value in enumerate(rates(schedule="inverse_sqrt"), start=1):
        assert value == pytest.approx(0.01 * 4**0.5 * min(step**-0.5, step * 4**-1.5))


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_no_warm_up_starts_at_the_peak(schedule: str) -> None:
    values = rates(warmup_steps=0, schedule=schedule)
    assert values[0] == pytest.approx(0.01)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_falling_rate_ends_just_above_zero_and_never_below(schedule: Any) -> None:
    values = rates(schedule=schedule)
    assert 0 < values[-1] < 0.01 / 30
    config = TrainConfig(schedule=schedule, warmup_steps=4)
    assert learning_rate(100, config, 40) > 0


def test_cosine_is_half_way_down_in_the_middle() -> None:
    values = rates(total=41, warmup_steps=1, schedule="cosine")
    assert values[0] == pytest.approx(0.01)
    assert values[20] == pytest.approx(0.01 * (1 + math.cos(math.pi * 20 / 41)) / 2)


def test_weight_decay_is_for_matrices_only() -> None:
    network = Transformer(ModelConfig(d_model=16, heads=2, feed_forward=32), 20, 20)
    optimizer = make_optimizer(network, TrainConfig(weight_decay=0.1))
    decayed, free = optimizer.param_groups
    assert decayed["weight_decay"] == 0.1
    assert free["weight_decay"] == 0.0
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert all(p.dim() == 1 for p in free["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(list(network.parameters()))


def test_the_average_follows_its_formula_and_swapping_twice_changes_nothing() -> None:
    network = nn.Linear(3, 2)
    average = WeightAverage(network, decay=0.9)
    expected = network.weight.detach().clone()
    for step in range(1, 200):
        with torch.no_grad():
            network.weight += 0.01
        average.update(network, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * network.weight.detach()
    torch.testing.assert_close(average.weights["weight"], expected)
    before = network.weight.detach().clone()
    average.swap(network)
    torch.testing.assert_close(network.weight.detach(), expected)
    average.swap(network)
    torch.testing.assert_close(network.weight.detach(), before, rtol=0, atol=0)
