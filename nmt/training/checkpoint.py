"""Checkpoints: everything a run needs to go on, in safetensors and JSON; whole or not there.

A checkpoint is a folder step-00001234 with weights.safetensors (network, optimizer, average, random
state) and state.json. It is written under another name, flushed to disk, and renamed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt.errors import CheckpointError
from nmt.training.optimizer import WeightAverage

log = logging.getLogger("nmt")

PREFIX = "step-"


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
    finished: bool = False


def save_checkpoint(
    folder: Path,
    state: RunState,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    *,
    keep: int,
) -> Path:
    """Write a checkpoint into `folder` and delete all but the last `keep`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        draft.chmod(0o755)
        save_file(_tensors(network, optimizer, average), draft / "weights.safetensors")
        (draft / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        target = folder / f"{PREFIX}{state.step:08d}"
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


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
            state = RunState(**json.loads((path / "state.json").read_text(encoding="utf-8")))
            tensors = load_file(path / "weights.safetensors", device=str(_device(network)))
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
                key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
            }
        if average is not None:
            # a run that begins to average now begins from the weights it has
            average.load({n: tensors.get(f"average.{n}", tensors[f"network.{n}"]) for n in average.weights})
        torch.set_rng_state(tensors["random.cpu"].cpu())
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit the model of this config: {error}") from error
