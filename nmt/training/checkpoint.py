"""Checkpoints: everything a run needs to go on, in safetensors and JSON; whole or not there.

A checkpoint is a folder step-00001234 with weights.safetensors (network, optimizer, average, random
state) and state.json. It is written under another name, flushed to disk, and renamed.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nmt.errors import CheckpointError
from nmt.files import whole_folder, write_whole
from nmt.training.optimizer import WeightAverage

log = logging.getLogger("nmt")

PREFIX = "step-"
WEIGHTS, STATE = "weights.safetensors", "state.json"


@dataclass(slots=True)
class RunState:
    """Where a run stands."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    position: int = 0
    """Batches of the running epoch that are done."""
    elapsed_s: float = 0.0
    """Time spent training, over all sittings."""
    best_bleu: float | None = None
    best_loss: float | None = None
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    validation_due: bool = False
    """The step was saved before its validation, which is still to come."""
    vocabulary_hash: str = ""
    """That of the prepared data: other ids mean another run."""

    def beaten_by(self, bleu: float, loss: float) -> bool:
        """Whether a validation is better than the best so far: by BLEU, ties by loss."""
        if self.best_bleu is None or self.best_loss is None:
            return True
        return (bleu, -loss) > (self.best_bleu, -self.best_loss)


def save_checkpoint(
    folder: Path,
    state: RunState,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    *,
    keep: int,
) -> None:
    """Write a checkpoint into `folder` and delete all others but the `keep` - 1 before it.

    Raises MachineError where it cannot be written; the earlier ones are then as they were.
    """
    target = checkpoint_path(folder, state)
    with whole_folder(target) as draft:
        (draft / WEIGHTS).write_bytes(save(_tensors(network, optimizer, average)))
        (draft / STATE).write_bytes(_as_json(state))
    others = [path for path in list_checkpoints(folder) if path != target]
    later = [path for path in others if path > target]  # of a run that was left: this one goes another way
    earlier = [path for path in others if path < target]
    for path in (*later, *earlier[: len(earlier) - keep + 1]):
        shutil.rmtree(path, ignore_errors=True)


def update_state(folder: Path, state: RunState) -> None:
    """Note in the checkpoint of this step what happened since without another one: its validation."""
    write_whole(checkpoint_path(folder, state) / STATE, _as_json(state))


def checkpoint_path(folder: Path, state: RunState) -> Path:
    """Where the checkpoint of a state lies."""
    return folder / f"{PREFIX}{state.step:08d}"


def _as_json(state: RunState) -> bytes:
    return f"{json.dumps(asdict(state), indent=2)}\n".encode()


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())


def load_last_checkpoint(
    folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None
) -> RunState | None:
    """Go on from the newest checkpoint that can be read; None where there is none at all.

    A damaged one is passed over with a warning. Raises CheckpointError when every one is damaged or does
    not fit the network.
    """
    checkpoints = list_checkpoints(folder)
    for path in reversed(checkpoints):
        try:
            state = RunState(**json.loads((path / STATE).read_text(encoding="utf-8")))
            tensors = load_file(path / WEIGHTS, device=str(_device(network)))
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            log.warning("checkpoint %s is damaged (%s); using the one before", path, error)
            continue
        _restore(path, tensors, network, optimizer, average)
        return state
    if checkpoints:
        raise CheckpointError(f"no checkpoint in {folder} can be read", hint="start again with --overwrite")
    return None


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device


def _tensors(
    network: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None
) -> dict[str, Tensor]:
    """Every tensor of a run under one flat name; shared weights once, as named_parameters gives them."""
    names = {parameter: name for name, parameter in network.named_parameters()}
    tensors = {f"network.{name}": parameter.detach() for parameter, name in names.items()}
    for parameter, name in names.items():
        for kind, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{kind}"] = value
    if average is not None:
        tensors.update((f"average.{name}", weight) for name, weight in average.weights.items())
    tensors["random.cpu"] = torch.get_rng_state()
    return tensors


def _restore(
    path: Path,
    tensors: Mapping[str, Tensor],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
) -> None:
    try:
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(tensors[f"network.{name}"])
        for name, parameter in network.named_parameters():
            prefix = f"optimizer.{name}."
            optimizer.state[parameter] = {
                key.removeprefix(prefix): value.clone()  # not the mapped file, which is to be deleted later
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
        if average is not None:
            # a run that begins to average now begins from the weights it has
            average.load({n: tensors.get(f"average.{n}", tensors[f"network.{n}"]) for n in average.weights})
        torch.set_rng_state(tensors["random.cpu"].cpu())
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit the model of this config: {error}") from error
