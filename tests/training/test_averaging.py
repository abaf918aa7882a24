"""Snapshots of validated weights: exact means, the right ones, and no more of them than are needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nmt.config import TrainConfig
from nmt.training.averaging import Snapshots
from nmt.training.checkpoint import RunState, save_checkpoint
from nmt.training.optimizer import make_optimizer


def network(value: float | None = None) -> nn.Module:
    """A network of random weights, or all of one value."""
    made = nn.Linear(3, 2)
    if value is not None:
        for parameter in made.parameters():
            nn.init.constant_(parameter, value)
    return made


def value(mean: dict[str, Tensor] | None) -> float | None:
    """The one value of all weights."""
    if mean is None:
        return None
    (found,) = {weight for tensor in mean.values() for weight in tensor.flatten().tolist()}
    return float(found)


def filled(folder: Path, count: int, steps: range) -> Snapshots:
    """Snapshots whose weights are their step."""
    snapshots = Snapshots(folder / "validated", count)
    for step in steps:
        snapshots.add(step, network(step))
    return snapshots


def test_a_mean_is_that_of_all_weights_rounded_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    snapshots, networks = Snapshots(tmp_path / "validated", 5), [network() for _ in range(5)]
    for step, each in enumerate(networks):
        snapshots.add(step, each)
    mean = snapshots.last()
    assert mean is not None
    for name, _ in networks[0].named_parameters():
        stacked = torch.stack([each.get_parameter(name).detach().double() for each in networks])
        torch.testing.assert_close(mean[name], stacked.mean(0).float(), rtol=0, atol=0)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_last_and_those_around_the_best_are_taken(count: int, tmp_path: Path) -> None:
    snapshots = filled(tmp_path, count, range(10, 19))
    assert value(snapshots.last()) == 18 - (count - 1) / 2
    middle = 14 - (0.5 if count % 2 == 0 else 0.0)
    assert value(snapshots.around(14)) == middle


def test_at_either_end_fewer_stand_around_the_best(tmp_path: Path) -> None:
    snapshots = filled(tmp_path, 5, range(1, 10))
    assert value(snapshots.around(1)) == (1 + 2 + 3) / 3
    assert value(snapshots.around(9)) == (7 + 8 + 9) / 3


def test_fewer_than_two_have_no_mean(tmp_path: Path) -> None:
    snapshots = filled(tmp_path, 3, range(7, 8))
    assert snapshots.last() is None
    assert snapshots.around(7) is None
    assert snapshots.around(6) is None


def test_nothing_is_written_where_no_mean_is_wanted(tmp_path: Path) -> None:
    for count in (0, 1):
        filled(tmp_path, count, range(3))
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_finds_them_again_and_drops_those_it_went_back_behind(tmp_path: Path) -> None:
    filled(tmp_path, 3, range(1, 7))
    (tmp_path / "validated" / ".step-00000004.safetensors.0123abcd.tmp").touch()
    again = Snapshots(tmp_path / "validated", 3)
    assert again.steps() == [1, 2, 3, 4, 5, 6]
    again.drop_after(4)
    assert again.steps() == [1, 2, 3, 4]
    again.add(3, network(6.0))
    assert again.steps() == [1, 2, 3]
    assert value(again.last()) == (1 + 2 + 6) / 3
    assert not list((tmp_path / "validated").glob(".*"))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_pruning_changes_no_mean_whenever_the_best_comes(count: int, tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole", count, range(0))
    pruned = filled(tmp_path / "pruned", count, range(0))
    best = 0
    for step in range(1, 30):
        best = step if step in (1, 2, 5, 6, 14, 22, 23) else best
        for snapshots in (whole, pruned):
            snapshots.add(step, network(step))
        pruned.prune(best)
        assert len(pruned.steps()) <= 2 * count
        assert value(pruned.last()) == value(whole.last())
        assert value(pruned.around(best)) == value(whole.around(best))


def test_a_run_that_goes_back_to_a_kept_checkpoint_finds_what_it_had_there(tmp_path: Path) -> None:
    snapshots, count = filled(tmp_path, 3, range(0)), 3
    model = network()
    optimizer = make_optimizer(model, TrainConfig())
    best, there = 0, {}
    for step in range(1, 20):
        best = step if step in (1, 8, 18) else best
        state = RunState(step=step, best_step=best)
        snapshots.add(step, network(step))
        save_checkpoint(tmp_path, state, model, optimizer, None, keep=4)
        snapshots.prune(best)
        there[step] = (value(snapshots.last()), value(snapshots.around(best)), best)
    assert len(snapshots.steps()) < 12
    for step in (18, 17, 16):  # the damaged ones are given up from the newest on
        again = Snapshots(tmp_path / "validated", count)
        again.drop_after(step)
        last, around, best = there[step]
        assert (value(again.last()), value(again.around(best))) == (last, around)


def test_a_damaged_one_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshots = filled(tmp_path, 3, range(1, 4))
    path = tmp_path / "validated" / "step-00000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert value(snapshots.last()) == 2.0
    assert value(snapshots.around(3)) is None
    assert "step-00000002" in caplog.text
