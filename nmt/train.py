"""Stage: a prepared folder in, a run folder with a model file out."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.config import Config, load_config
from nmt.data.dataset import PreparedData
from nmt.errors import ConfigError, RunError
from nmt.evaluate import score_split
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, save_model
from nmt.prepare import open_or_prepare
from nmt.runtime import device_line, environment, seed_everything, select_device, select_precision
from nmt.scoring.plots import draw_curves
from nmt.training.checkpoint import RunState
from nmt.training.trainer import Hooks, Quality, RunFolder, Trainer

log = logging.getLogger("nmt")


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    run_dir: Path
    model: Path
    """The best model, or the last where none was validated yet."""
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
    if resume and run.config.exists():
        _refuse_other_model(config, run)
    elif run.config.exists():
        _clear(run)
    run.path.mkdir(parents=True, exist_ok=True)
    run.config.write_text(config.to_yaml(), encoding="utf-8")

    seed_everything(config.seed)
    network = Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary)).to(device)
    log.info("model: %s parameters", f"{sum(p.numel() for p in network.parameters()):,}")
    trainer = Trainer(
        network,
        data.split(data.train),
        data.split(data.val),
        config.train,
        seed=config.seed,
        precision=precision,
        run=run,
        hooks=_hooks(config, data, network, run),
    )
    if resume:
        _resume(trainer, run)
    stopped_by = trainer.fit()
    state = trainer.state
    model = run.best if run.best.exists() else run.last
    return TrainingResult(run.path, model, state.best_bleu, state.step, stopped_by)


def _check_run_folder(run: RunFolder, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
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
    elif trainer.state.finished:
        log.info(
            "the run in %s is finished: %d steps; raise train.epochs to go on", run.path, trainer.state.step
        )
    else:
        log.info("going on from step %d of %d", trainer.state.step, trainer.total_steps)


def _hooks(config: Config, data: PreparedData, network: Transformer, run: RunFolder) -> Hooks:
    def quality(network: Transformer) -> Quality:
        score = score_split(network, data, data.val, config)
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
        save_model(path, Model(path, config, network, data.src_vocabulary, data.tgt_vocabulary, provenance))

    return Hooks(quality=quality, save_model=save, draw=lambda events: draw_curves(events, run.curves))
