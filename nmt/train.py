"""Stage: a prepared folder in, a run folder with a model file out."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.config import Config, load_config
from nmt.data.dataset import PreparedData, Split
from nmt.errors import ConfigError, RunError
from nmt.evaluate import score_ids
from nmt.files import only_one, write_whole
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, save_model
from nmt.prepare import open_or_prepare
from nmt.runtime import device_line, environment, seed_everything, select_device, select_precision
from nmt.scoring.plots import draw_curves
from nmt.training.checkpoint import RunState
from nmt.training.trainer import Hooks, Quality, RunFolder, Trainer

if TYPE_CHECKING:
    import torch

log = logging.getLogger("nmt")


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    run_dir: Path
    model: Path
    """The best model, or the last where none was validated yet."""
    config: Config
    """The config with the settings of the prepared data."""
    best_bleu: float | None
    steps: int
    stopped_by: int | None
    """The signal that stopped it, or None."""


def train(
    config: Config, *, run_dir: Path | None = None, resume: bool = False, overwrite: bool = False
) -> TrainingResult:
    """Train the model that `config` describes, preparing its data first where needed.

    Raises RunError when the run folder holds a run and neither `resume` nor `overwrite` is given, and
    ConfigError when a resumed run would have other data or another model.
    """
    run = RunFolder(run_dir or Path("runs") / config.name)
    _check_run_folder(run, resume=resume, overwrite=overwrite)
    device = select_device(config.device)
    precision = select_precision(config.precision, device, training=True)
    log.info("device: %s", device_line(device, precision))
    config, data = open_or_prepare(config)
    with only_one(run.lock, doing=f"training in {run.path}", timeout_s=0):
        _check_run_folder(run, resume=resume, overwrite=overwrite)  # again: preparing may have taken a while
        if resume and run.config.exists():
            _refuse_other_model(config, run)
        elif overwrite:
            _clear(run)
        write_whole(run.config, config.to_yaml().encode())
        return _train(config, data, run, device, precision, resume=resume)


def _train(
    config: Config,
    data: PreparedData,
    run: RunFolder,
    device: torch.device,
    precision: torch.dtype,
    *,
    resume: bool,
) -> TrainingResult:
    seed_everything(config.seed)
    network = Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary)).to(device)
    log.info("model: %s parameters", f"{sum(p.numel() for p in network.parameters()):,}")
    val = data.split(data.val)
    trainer = Trainer(
        network,
        data.split(data.train),
        _without_overlong(val, config.decode.max_source_tokens),
        config.train,
        seed=config.seed,
        precision=precision,
        run=run,
        hooks=_hooks(config, data, val, run),
        vocabulary_hash=data.vocabulary_hash,
    )
    if trainer.total_steps <= config.train.warmup_steps:
        log.warning(
            "the run has %d steps, all of them within the warm-up of %d: the learning rate stays low; "
            "raise train.epochs, or lower train.batch_tokens and train.warmup_steps",
            trainer.total_steps,
            config.train.warmup_steps,
        )
    if resume:
        _resume(trainer, run)
    stopped_by = trainer.fit()
    state = trainer.state
    model = run.best if run.best.exists() else run.last
    return TrainingResult(run.path, model, config, state.best_bleu, state.step, stopped_by)


def _without_overlong(val: Split, limit: int) -> Split:
    """The pairs whose loss fits into memory; BLEU is taken on all of them, and search cuts their sources."""
    keep = val.rows_within(limit)
    if left_out := len(val) - len(keep):
        log.warning("validation pairs of more than %d tokens, left out of the loss: %d", limit, left_out)
    return val.select(keep)


def _check_run_folder(run: RunFolder, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if run.path.exists() and not run.path.is_dir():
        raise RunError(f"{run.path} is no folder", hint="name another one: --run-dir DIR")
    if not run.config.exists() and run.path.exists() and any(p.name[0] != "." for p in run.path.iterdir()):
        raise RunError(
            f"{run.path} holds something that is no run; it is left as it is",
            hint="name another folder: --run-dir DIR",
        )
    if run.config.exists() and not (resume or overwrite):
        raise RunError(
            f"{run.path} holds a run already",
            hint="--resume goes on with it, --overwrite starts anew, --run-dir DIR goes elsewhere",
        )


def _clear(run: RunFolder) -> None:
    """Delete what an earlier run left, and nothing else."""
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    for path in (run.config, run.metrics, run.curves, run.best, run.last):
        path.unlink(missing_ok=True)


def _refuse_other_model(config: Config, run: RunFolder) -> None:
    """Refuse to resume with other data, vocabulary or model settings, naming the keys."""
    before = load_config(run.config)
    changed = [
        f"{section}.{key} ({value!r} there, {getattr(getattr(config, section), key)!r} now)"
        for section in ("data", "vocabulary", "model")
        for key, value in getattr(before, section)
        if key != "mirror" and value != getattr(getattr(config, section), key)
    ]
    if changed:
        raise ConfigError(
            f"{run.path} cannot be resumed with other settings: {', '.join(changed)}",
            hint="set them as they were, or start anew with --overwrite or --run-dir",
        )


def _resume(trainer: Trainer, run: RunFolder) -> None:
    if not trainer.resume():
        log.info("no checkpoint in %s: starting from the beginning", run.path)
    elif trainer.finished:
        log.info(
            "the run in %s is finished: %d steps; raise train.epochs or train.max_steps to go on",
            run.path,
            trainer.state.step,
        )
    else:
        log.info("going on from step %d of %d", trainer.state.step, trainer.total_steps)


def _hooks(config: Config, data: PreparedData, val: Split, run: RunFolder) -> Hooks:
    references = data.references(data.val)  # read once: the folder may be made anew while training runs
    shared = config.replace(
        data=config.data.model_copy(update={"mirror": None})
    )  # an address may hold a password

    def quality(network: Transformer) -> Quality:
        score = score_ids(network, val.src, references, data.tgt_vocabulary, config)
        return Quality(score.value, score.signature)

    def save(path: Path, network: Transformer, state: RunState) -> None:
        provenance: dict[str, Any] = {
            "environment": environment(next(network.parameters()).device),
            "versions": dict(data.manifest.versions),
            "data": {"source": Path(config.data.source).name, "hash": config.data_hash()},
            "vocabulary_hash": data.vocabulary_hash,
            "step": state.step,
            "epoch": state.epoch,
            "best": {"bleu": state.best_bleu, "loss": state.best_loss, "step": state.best_step},
        }
        save_model(path, Model(path, shared, network, data.src_vocabulary, data.tgt_vocabulary, provenance))

    return Hooks(quality=quality, save_model=save, draw=lambda events: draw_curves(events, run.curves))
