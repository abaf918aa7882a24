"""Checkpoints: whole or not there, the damaged ones passed over, only the last ones kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt.config import ModelConfig, TrainConfig
from nmt.errors import CheckpointError, MachineError
from nmt.model.transformer import Transformer
from nmt.training import checkpoint as module
from nmt.training.checkpoint import RunState, list_checkpoints, load_last_checkpoint, save_checkpoint
from nmt.training.optimizer import WeightAverage, make_optimizer


def network(width: int = 16) -> Transformer:
    return Transformer(
        ModelConfig(encoder_layers=1, decoder_layers=1, d_model=width, heads=2, feed_forward=32), 20, 20
    )


def save(folder: Path, step: int, *, keep: int = 5) -> Transformer:
    model = network()
    optimizer = make_optimizer(model, TrainConfig())
    model(torch.full((1, 2), 5), torch.ones(1, 2, dtype=torch.bool), torch.full((1, 3), 5)).sum().backward()
    optimizer.step()
    save_checkpoint(folder, RunState(step=step), model, optimizer, None, keep=keep)
    return model


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    model = network()
    optimizer = make_optimizer(model, TrainConfig())
    model(torch.full((1, 2), 5), torch.ones(1, 2, dtype=torch.bool), torch.full((1, 3), 5)).sum().backward()
    optimizer.step()
    average = WeightAverage(model, 0.5)
    average.weights["decoder_norm.weight"] += 1
    state = RunState(step=7, epoch=1, position=3, best_bleu=12.5, best_loss=3.0, stale=2)
    save_checkpoint(tmp_path, state, model, optimizer, average, keep=1)
    drawn = torch.rand(3)

    other = network()
    other_optimizer = make_optimizer(other, TrainConfig())
    other_average = WeightAverage(other, 0.5)
    assert load_last_checkpoint(tmp_path, other, other_optimizer, other_average) == state
    assert torch.equal(torch.rand(3), drawn)  # the random state, too
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(other_average.weights, average.weights, rtol=0, atol=0)
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other_optimizer.state[ours], optimizer.state[theirs], rtol=0, atol=0)


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save(tmp_path, step, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000010"]


def test_a_run_that_goes_another_way_drops_the_later_checkpoints_of_the_old_one(tmp_path: Path) -> None:
    for step in (100, 300):
        save(tmp_path, step, keep=2)
    save(tmp_path, 200, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000200"]


def test_the_same_step_saved_again_replaces_the_first_as_a_whole(tmp_path: Path) -> None:
    save(tmp_path, 5)
    model = save(tmp_path, 5)
    other = network()
    load_last_checkpoint(tmp_path, other, make_optimizer(other, TrainConfig()), None)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    weights = tmp_path / "step-00000002" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    model = network()
    state = load_last_checkpoint(tmp_path, model, make_optimizer(model, TrainConfig()), None)
    assert state == RunState(step=1)
    assert "step-00000002 is damaged" in caplog.text


def test_when_all_are_damaged_the_way_out_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-00000001" / "state.json").write_text("{")
    model = network()
    with pytest.raises(CheckpointError) as raised:
        load_last_checkpoint(tmp_path, model, make_optimizer(model, TrainConfig()), None)
    assert "--overwrite" in str(raised.value.hint)


def test_a_fault_while_saving_leaves_the_earlier_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def full_disk(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_as_json", full_disk)  # the weights are written by then
    with pytest.raises(MachineError, match="No space") as raised:
        save(tmp_path, 2)
    assert "free space" in str(raised.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    other = network(width=32)
    with pytest.raises(CheckpointError, match="does not fit"):
        load_last_checkpoint(tmp_path, other, make_optimizer(other, TrainConfig()), None)


def test_no_checkpoint_at_all_is_no_error(tmp_path: Path) -> None:
    model = network()
    assert (
        load_last_checkpoint(tmp_path / "absent", model, make_optimizer(model, TrainConfig()), None) is None
    )
