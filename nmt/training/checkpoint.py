"""Checkpoints: everything a run needs to go on, in safetensors and JSON; whole or not there.

A checkpoint is a folder step-00001234 with weights.safetensors (network, optimizer, average) and state.json,
which holds the SHA-256 of both. It is written under another name, flushed to disk, and renamed. No random
state is needed: the random numbers of a step follow from the seed and the step. The last few are kept here;
the best is kept as the run folder's best.safetensors, a model file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from nmt.errors import CheckpointError
from nmt.files import clear_draft_folders, clear_drafts, remove_folder, sha256, whole_folder, write_whole
from nmt.training.optimizer import WeightAverage

log = logging.getLogger("nmt")

PREFIX = "step-"
WEIGHTS, STATE = "weights.safetensors", "state.json"

FORMAT = 1
"""The format that is written; a new field of `RunState` makes a newer one, which is refused.

What every format keeps: state.json is one JSON object whose `format` is a number and whose `sha256` is that
of the file with this hash left empty.
"""

_DAMAGE = (OSError, ValueError, KeyError, TypeError, SafetensorError)
"""What reading a damaged checkpoint raises."""


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
    skipped: int = 0
    """Steps that were left out because their loss or gradient was no number."""
    skipped_in_row: int = 0
    averaged: bool = False
    """At the end of the run the means of several checkpoints have been tried."""
    batches: dict[str, Any] = field(default_factory=dict)
    """The settings, by name, that the running epoch's batches follow from."""

    @property
    def epochs_begun(self) -> int:
        """Epochs done and, where it stands within one, that one."""
        return self.epoch + (self.position > 0)

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
    clear_draft_folders(folder)
    with whole_folder(target) as draft:
        weights, described = draft / WEIGHTS, draft / STATE
        _write(weights, _tensors(network, optimizer, average))
        described.write_bytes(_to_json(state, sha256(weights)))
        weights.chmod(described.stat().st_mode)  # safetensors makes it the owner's alone
    others = [path for path in list_checkpoints(folder) if path != target]
    later = [path for path in others if path > target]  # of a run that was left: this one goes another way
    earlier = [path for path in others if path < target]
    for path in (*later, *earlier[: max(len(earlier) + 1 - keep, 0)]):
        remove_folder(path)


def update_state(folder: Path, state: RunState) -> None:
    """Note in the checkpoint of this step what happened since without another one: its validation.

    Raises CheckpointError where it is no longer there or damaged, and MachineError as `save_checkpoint`.
    """
    path = checkpoint_path(folder, state)
    try:
        weights_sha256 = _read_json(path)["weights_sha256"]
    except _DAMAGE as error:
        raise CheckpointError(f"{path} was damaged or deleted while training: {error}") from error
    clear_drafts(path)
    write_whole(path / STATE, _to_json(state, weights_sha256))


def checkpoint_path(folder: Path, state: RunState) -> Path:
    """Where the checkpoint of a state lies."""
    return folder / f"{PREFIX}{state.step:08d}"


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
    clear_draft_folders(folder)
    checkpoints = list_checkpoints(folder)
    for path in reversed(checkpoints):
        try:
            document = _read_json(path)
            state = _state(document)
            if sha256(path / WEIGHTS) != document["weights_sha256"]:
                raise ValueError(f"{WEIGHTS} has another SHA-256 than when it was written")
            tensors = load_file(path / WEIGHTS, device=str(_device(network)))
        except _DAMAGE as error:
            log.warning("checkpoint %s is damaged (%s); using the one before", path, error)
            continue
        _restore(path, tensors, network, optimizer, average)
        return state
    if checkpoints:
        raise CheckpointError(f"no checkpoint in {folder} can be read", hint="start again with --overwrite")
    return None


def kept_states(folder: Path) -> list[RunState]:
    """The states of the checkpoints that a run can go back to, oldest first; their weights are not read."""
    states = []
    for path in list_checkpoints(folder):
        with contextlib.suppress(*_DAMAGE):
            states.append(_state(_read_json(path)))
    return states


def _state(document: Mapping[str, Any]) -> RunState:
    """What was saved; fields that earlier versions kept besides are left out."""
    known = {each.name for each in fields(RunState)}
    return RunState(**{name: value for name, value in document["state"].items() if name in known})


def _to_json(state: RunState, weights_sha256: str) -> bytes:
    document = {"format": FORMAT, "weights_sha256": weights_sha256, "state": asdict(state), "sha256": ""}
    document["sha256"] = hashlib.sha256(_dump(document)).hexdigest()
    return _dump(document)


def _dump(document: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(document, indent=2)}\n".encode()


def _read_json(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's state.json; raises one of `_DAMAGE`, or CheckpointError where its format is too new."""
    content = (checkpoint / STATE).read_bytes()
    document: dict[str, Any] = json.loads(content.decode())
    digest = str(document["sha256"])
    if hashlib.sha256(content.replace(digest.encode(), b"", 1)).hexdigest() != digest:
        raise ValueError(f"{STATE} has another SHA-256 than when it was written")
    if document["format"] > FORMAT:
        raise CheckpointError(
            f"{checkpoint} has checkpoint format {document['format']}; this nmt reads up to {FORMAT}",
            hint="go on with the nmt that saved it, or a newer one",
        )
    return document


def save_weights(path: Path, network: nn.Module) -> None:
    """Write a network's weights alone, each under the first of its names, with a SHA-256 over all of them.

    Raises MachineError where the file cannot be written; an older one is then as it was.
    """
    weights = {name: p.detach().cpu().contiguous() for name, p in network.named_parameters()}
    write_whole(path, save(weights, {"sha256": _digest(weights)}))


def load_weights(path: Path) -> dict[str, Tensor]:
    """What `save_weights` wrote, on the CPU; raises CheckpointError where it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
            if file.metadata()["sha256"] != _digest(weights):
                raise ValueError("its weights have another SHA-256 than when they were written")
    except _DAMAGE as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return weights


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name]
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        digest.update(weight.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
    return tensors


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    """As safetensors.torch.save_file, which copies nothing in memory; raises OSError where it fails."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


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
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit the model of this config: {error}") from error
