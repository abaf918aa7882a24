"""Checkpoints: whole or not there, the damaged ones passed over, only the last ones kept."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from nmt.config import ModelConfig, TrainConfig
from nmt.errors import CheckpointError, MachineError
from nmt.model.transformer import Transformer
from nmt.training import checkpoint as module
from nmt.training.checkpoint import (
    RunState,
    list_checkpoints,
    load_last_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
    update_state,
)
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

    other = network()
    other_optimizer = make_optimizer(other, TrainConfig())
    other_average = WeightAverage(other, 0.5)
    assert load_last_checkpoint(tmp_path, other, other_optimizer, other_average) == state
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(other_average.weights, average.weights, rtol=0, atol=0)
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other_optimizer.state[ours], optimizer.state[theirs], rtol=0, atol=0)


@pytest.mark.parametrize("keep", range(1, 8))
def test_only_the_last_ones_are_kept(keep: int, tmp_path: Path) -> None:
    steps = (1, 2, 3, 10, 11, 200)
    for step in steps:
        save_few(tmp_path, step, keep=keep)
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path)] == list(steps[-keep:])


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


def step_found(folder: Path) -> int | None:
    """The step of the checkpoint that is loaded, or None where all are taken for damaged."""
    model = nn.Linear(2, 2)
    try:
        state = load_last_checkpoint(folder, model, make_optimizer(model, TrainConfig()), None)
    except CheckpointError as error:
        if "no checkpoint" not in error.message:
            raise
        return None
    assert state is not None
    return state.step


def save_few(folder: Path, step: int, *, keep: int = 5) -> None:
    """A checkpoint of very few weights."""
    model = nn.Linear(2, 2)
    save_checkpoint(folder, RunState(step), model, make_optimizer(model, TrainConfig()), None, keep=keep)


@pytest.mark.parametrize("name", ["state.json", "weights.safetensors"])
def test_one_flipped_bit_anywhere_makes_a_checkpoint_damaged(name: str, tmp_path: Path) -> None:
    save_few(tmp_path, 1)
    path = tmp_path / "step-00000001" / name
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 3):  # every third meets each of a byte's eight in turn
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert step_found(tmp_path) is None, f"bit {bit}: {flipped[max(bit // 8 - 20, 0) : bit // 8 + 20]!r}"
    path.write_bytes(content)
    assert step_found(tmp_path) == 1


@pytest.mark.parametrize("name", ["state.json", "weights.safetensors"])
def test_a_missing_file_makes_a_checkpoint_damaged(name: str, tmp_path: Path) -> None:
    save_few(tmp_path, 1)
    (tmp_path / "step-00000001" / name).unlink()
    assert step_found(tmp_path) is None


def test_a_checkpoint_of_a_newer_format_is_refused_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    with monkeypatch.context() as later:
        later.setattr(module, "FORMAT", module.FORMAT + 1)
        save(tmp_path, 2)
    model = network()
    with pytest.raises(CheckpointError, match=f"format {module.FORMAT + 1}") as raised:
        load_last_checkpoint(tmp_path, model, make_optimizer(model, TrainConfig()), None)
    assert "newer" in str(raised.value.hint)


def test_fields_that_an_earlier_version_kept_besides_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "asdict", lambda state: {**asdict(state), "of_an_earlier_version": 3})
        save_few(tmp_path, 1)
    assert b"of_an_earlier_version" in (tmp_path / "step-00000001" / "state.json").read_bytes()
    assert step_found(tmp_path) == 1


def test_a_state_that_is_noted_later_is_as_safe_as_one_that_was_saved(tmp_path: Path) -> None:
    model = save(tmp_path, 1)
    state = RunState(step=1, best_bleu=3.5, best_loss=2.0, best_step=1)
    update_state(tmp_path, state)
    other = network()
    assert load_last_checkpoint(tmp_path, other, make_optimizer(other, TrainConfig()), None) == state
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)

    path = tmp_path / "step-00000001" / "state.json"
    path.write_bytes(path.read_bytes().replace(b"3.5", b"3.6"))
    assert step_found(tmp_path) is None
    with pytest.raises(CheckpointError, match="damaged or deleted"):
        update_state(tmp_path, state)


def test_what_killed_saves_left_is_never_loaded_and_goes_with_the_next_save(tmp_path: Path) -> None:
    save_few(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.draft")
    assert step_found(tmp_path) == 1
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000003.draft")
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000001.old")
    save_few(tmp_path, 4, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def test_an_only_copy_that_was_just_being_replaced_is_found(tmp_path: Path) -> None:
    save_few(tmp_path, 1)
    (tmp_path / "step-00000001").rename(tmp_path / ".step-00000001.old")
    assert step_found(tmp_path) == 1


def test_all_files_of_a_checkpoint_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    save(tmp_path, 1)
    modes = {path.stat().st_mode for path in (tmp_path / "step-00000001").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_a_checkpoint_holds_no_state_of_a_random_generator(tmp_path: Path) -> None:
    save(tmp_path, 1)
    kinds = {name.split(".")[0] for name in load_file(tmp_path / "step-00000001" / "weights.safetensors")}
    assert kinds == {"network", "optimizer"}


def test_weights_alone_come_back_as_they_were_and_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "weights.safetensors"
    save_weights(path, model)
    torch.testing.assert_close(load_weights(path), dict(model.named_parameters()), rtol=0, atol=0)
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    for position in (0, 20, begin, begin + 1001, len(content) - 1):
        flipped = bytearray(content)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="damaged"):
            load_weights(path)


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

    monkeypatch.setattr(module, "_to_json", full_disk)  # the weights are written by then
    with pytest.raises(MachineError, match="No space") as raised:
        save(tmp_path, 2)
    assert "free space" in str(raised.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_fault_while_noting_a_state_leaves_the_one_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_few(tmp_path, 1)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(MachineError, match="No space"):
        update_state(tmp_path, RunState(1, stale=3))
    assert step_found(tmp_path) == 1
    assert len(list((tmp_path / "step-00000001").iterdir())) == 2


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
