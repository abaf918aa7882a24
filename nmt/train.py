"""Stage: a prepared folder in, a run folder with a model file out."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nmt.config import Config, Section, load_config
from nmt.data.batching import Batch, without_specials
from nmt.data.dataset import PreparedData, Split, is_prepared
from nmt.data.sampling import training_pairs
from nmt.data.vocabulary import Vocabulary
from nmt.decoding.search import SearchOptions, search
from nmt.errors import ConfigError, DeviceError, RunError
from nmt.evaluate import score_ids, texts_of
from nmt.files import clear_drafts, only_one, write_whole
from nmt.model.packed import packed
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, save_model
from nmt.prepare import open_or_prepare, text_has_changed
from nmt.runtime import (
    Ranks,
    device_line,
    environment,
    joined_ranks,
    mixed_seed,
    seed_everything,
    select_device,
    select_precision,
)
from nmt.scoring.metrics import sentence_bleu
from nmt.scoring.plots import draw_curves
from nmt.training.checkpoint import RunState
from nmt.training.risk import Drawn
from nmt.training.tracking import note_environment
from nmt.training.trainer import Hooks, Quality, RunFolder, Trainer

log = logging.getLogger("nmt")

SAMPLES = 5
"""So many of the validation translations are kept in metrics.jsonl, to be looked at."""


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
    is_first: bool = True
    """Whether this process speaks for the run: of several that train together only one does."""
    processes: int = 1


def train(
    config: Config, *, run_dir: Path | None = None, resume: bool = False, overwrite: bool = False
) -> TrainingResult:
    """Train the model that `config` describes, preparing its data first where needed.

    Started by torchrun, the processes train it together, each on its device; the first one writes and speaks.
    Raises RunError when the run folder holds a run and neither `resume` nor `overwrite` is given, ConfigError
    when a resumed run would have other data or another model, and AnotherRankError where another process
    has raised such an error.
    """
    run = RunFolder(run_dir or Path("runs") / config.name)

    def check() -> None:
        _check_run_folder(run, resume=resume, overwrite=overwrite)

    def check_data() -> None:  # before any is prepared, anew in place of what the run has learned from or not
        if resume and any(run.checkpoints.glob("step-*")):
            is_same_data = load_config(run.config).data_hash() == config.data_hash()
            if is_same_data and text_has_changed(config):
                raise run.other_text()
            if not is_prepared(config.data.source):
                _refuse_other_model(_changed_settings(config, run), run)

    with joined_ranks() as ranks, ExitStack() as held:
        ranks.first(check)
        ranks.first(check_data)
        device, precision = _select_device(config, ranks)
        config, data = _open_data(config, ranks)

        def begin() -> dict[str, str]:
            held.enter_context(only_one(run.lock, doing=f"training in {run.path}", timeout_s=0))
            clear_drafts(run.path)
            check()  # again: preparing may have taken a while
            changed = _changed_settings(config, run) if resume and run.config.exists() else {}
            _refuse_other_model(changed, run)
            return changed

        changed = ranks.first(begin)
        trainer = _make_trainer(config, data, run, device, precision, ranks)
        if resume:
            _resume(trainer, run, changed)
        if ranks.is_first and not trainer.finished:
            _warn_of_warmup(trainer)

        def describe() -> None:
            if overwrite:  # only now, when nothing more can hinder the new run
                _clear(run)
            _describe(config, run, device, ranks, trainer.state.step)

        if not trainer.finished:
            ranks.first(describe)
        stopped_by = trainer.fit()
    state = trainer.state
    model = run.best if run.best.exists() else run.last
    return TrainingResult(
        run.path,
        model,
        config,
        state.best_bleu,
        state.step,
        stopped_by,
        is_first=ranks.is_first,
        processes=ranks.world,
    )


def _select_device(config: Config, ranks: Ranks) -> tuple[torch.device, torch.dtype]:
    chosen: list[torch.device] = []

    def choose() -> str:
        chosen.append(select_device(config.device, ranks))
        return chosen[0].type

    kinds = ranks.together(choose)
    if len(set(kinds)) > 1:
        raise DeviceError(
            f"some processes train on {' and others on '.join(sorted(set(kinds)))}",
            hint="name the device: --device cpu or --device cuda",
        )
    (device,) = chosen
    precision = select_precision(config.precision, device, training=True)
    number = f"{ranks.world} processes, the first on " if ranks.world > 1 else ""
    log.info("device: %s%s", number, device_line(device, precision))
    return device, precision


def _open_data(config: Config, ranks: Ranks) -> tuple[Config, PreparedData]:
    """The prepared data; the first rank makes it where needed, and the others wait."""
    if ranks.world > 1:
        ranks.first(lambda: open_or_prepare(config) and None)
    adopted, data = open_or_prepare(config)
    if config.data.extra and not data.extra:
        raise ConfigError(
            f"{data.folder} was prepared without data.extra ({config.data.extra})",
            hint="name the text itself with --data, or set data.extra to null",
        )
    return adopted, data


def _make_trainer(
    config: Config,
    data: PreparedData,
    run: RunFolder,
    device: torch.device,
    precision: torch.dtype,
    ranks: Ranks,
) -> Trainer:
    settings = config.train
    seed_everything(config.seed)
    network = Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary)).to(device)
    log.info("model: %s parameters", f"{sum(p.numel() for p in network.parameters()):,}")
    val = data.split(data.val)
    short = val.rows_within(config.decode.max_source_tokens)
    trainer = Trainer(
        network,
        training_pairs(
            data,
            subword_dropout=settings.subword_dropout,
            word_dropout=settings.word_dropout,
            rare_words=settings.rare_words,
            extra_share=settings.extra_share,
            seed=config.seed,
        ),
        val.select(short),
        settings,
        seed=config.seed,
        precision=precision,
        run=run,
        hooks=_hooks(config, data, val, run, ranks),
        vocabulary_hash=data.vocabulary_hash,
        extra=config.data.extra,
        ranks=ranks,
    )
    if ranks.is_first and len(short) < len(val):  # their loss may not fit into memory; BLEU is taken on all
        limit, left_out = config.decode.max_source_tokens, len(val) - len(short)
        log.warning("validation pairs of more than %d tokens, left out of the loss: %d", limit, left_out)
    return trainer


def _warn_of_warmup(trainer: Trainer) -> None:
    """Where the run is too short for it."""
    if trainer.total_steps <= trainer.settings.warmup_steps:
        if trainer.total_steps == trainer.settings.max_steps:
            way_out = "raise train.max_steps, or lower train.warmup_steps"
        else:
            way_out = "raise train.epochs, or lower train.batch_tokens and train.warmup_steps"
        log.warning(
            "the run has %d steps, all of them within the warm-up of %d: the learning rate stays low; %s",
            trainer.total_steps,
            trainer.settings.warmup_steps,
            way_out,
        )


def _describe(config: Config, run: RunFolder, device: torch.device, ranks: Ranks, step: int) -> None:
    """Write down what is trained from `step` on, and on what."""
    write_whole(run.config, config.to_yaml().encode())
    facts = {"step": step, "processes": ranks.world, "data": config.data_hash()}
    note_environment(run.environment, {**environment(device), **facts})


def _check_run_folder(run: RunFolder, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if run.path.exists() and not run.path.is_dir():
        raise RunError(f"{run.path} is no folder", hint="name another one: --run-dir DIR")
    if not run.config.exists() and run.path.exists() and any(map(_is_foreign, run.path.iterdir())):
        raise RunError(
            f"{run.path} holds something that is no run; it is left as it is",
            hint="name another folder: --run-dir DIR",
        )
    if run.config.exists() and not (resume or overwrite):
        raise RunError(
            f"{run.path} holds a run already",
            hint="--resume goes on with it, --overwrite starts anew, --run-dir DIR goes elsewhere",
        )


def _is_foreign(path: Path) -> bool:
    """Whether a thing in a folder without a run is none that nmt has left there."""
    return path.name[0] != "." and path.name != "evaluation"


def _clear(run: RunFolder) -> None:
    """Delete what an earlier run left, and nothing else."""
    for folder in (run.checkpoints, run.tensorboard):
        shutil.rmtree(folder, ignore_errors=True)
    for path in (run.config, run.metrics, run.environment, run.curves, run.best, run.last):
        path.unlink(missing_ok=True)


def _changed_settings(config: Config, run: RunFolder) -> dict[str, str]:
    """The settings that a run had otherwise when it was last trained, each with both values."""
    before, now = _flat(load_config(run.config)), _flat(config)
    return {
        key: f"{key} ({before[key]!r} there, {value!r} now)"
        for key, value in now.items()
        if value != before[key] and key not in ("name", "device", "data.mirror")
    }


def _flat(config: Config) -> dict[str, Any]:
    """`{"seed": 1, "train.epochs": 30}` and so on."""
    values: dict[str, Any] = {}
    for name, value in config:
        if isinstance(value, Section):
            values.update((f"{name}.{key}", each) for key, each in value)
        else:
            values[name] = value
    return values


def _refuse_other_model(changed: Mapping[str, str], run: RunFolder) -> None:
    """Refuse to resume with other data, vocabulary or model settings, naming the keys."""
    other = {key: words for key, words in changed.items() if key != "data.extra"}  # no part of the vocabulary
    refused = [words for key, words in other.items() if key.startswith(("data.", "vocabulary.", "model."))]
    if refused:
        raise ConfigError(
            f"{run.path} cannot be resumed with other settings: {', '.join(refused)}",
            hint="set them as they were, or start anew with --overwrite or --run-dir",
        )


def _resume(trainer: Trainer, run: RunFolder, changed: Mapping[str, str]) -> None:
    """Go on from the last checkpoint, where there is one, and say what has changed since."""
    if not trainer.resume():
        log.warning("no checkpoint in %s: --resume starts from the beginning", run.path)
        return
    if trainer.finished:
        log.info(
            "the run in %s is finished: %d epochs, %d steps; raise train.epochs or train.max_steps to go on",
            run.path,
            trainer.state.epochs_begun,
            trainer.state.step,
        )
        return
    if changed:
        log.info("going on with other settings: %s", ", ".join(changed.values()))
    log.info("going on from step %d of %d", trainer.state.step, trainer.total_steps)


def _hooks(config: Config, data: PreparedData, val: Split, run: RunFolder, ranks: Ranks) -> Hooks:
    # read once: the folder may be made anew while training runs
    sources, references = data.sources(data.val), data.references(data.val)
    # an address may hold a password, and whoever scores the model needs no more than its text
    shared = config.replace(data=config.data.model_copy(update={"mirror": None, "extra": None}))
    extra = Path(config.data.extra).name if config.data.extra else None  # nor its place

    def quality(network: Transformer) -> Quality:
        score, translations = score_ids(network, val.src, references, data.tgt_vocabulary, config, ranks)
        lines = zip(sources, references, translations, strict=True)
        samples = [
            {"source": source, "reference": reference, "translation": translation}
            for source, reference, translation in islice(lines, SAMPLES)
        ]
        return Quality(score.value, score.signature, samples)

    def translations(network: Transformer, batch: Batch, step: int) -> Drawn:
        seed = mixed_seed(config.seed, step)
        return draw_translations(network, batch, data.tgt_vocabulary, config, seed=seed)

    def save(path: Path, network: Transformer, state: RunState) -> None:
        provenance: dict[str, Any] = {
            "environment": environment(next(network.parameters()).device),
            "versions": dict(data.manifest.versions),
            "data": {
                "source": Path(config.data.source).name,
                "extra": extra,
                "hash": config.data_hash(),
            },
            "vocabulary_hash": data.vocabulary_hash,
            "step": state.step,
            "epoch": state.epoch,
            "best": {"bleu": state.best_bleu, "loss": state.best_loss, "step": state.best_step},
        }
        save_model(path, Model(path, shared, network, data.src_vocabulary, data.tgt_vocabulary, provenance))

    return Hooks(
        quality=quality,
        save_model=save,
        draw=lambda events: draw_curves(events, run.curves),
        translations=translations,
    )


def draw_translations(
    network: Transformer, batch: Batch, vocabulary: Vocabulary, config: Config, *, seed: int
) -> Drawn:
    """Draw train.risk_samples translations of each pair of a batch; a cost is 1 - sentence BLEU.

    They come from the network's own probabilities, without dropout, and depend on the seed and their own
    source alone. vocabulary: the target's. BLEU is taken on detokenised text, as validations take it.
    """
    sources, targets = without_specials(batch)
    options = SearchOptions(
        decode=config.decode, nbest=config.train.risk_samples, sample_temperature=1.0, seed=seed
    )
    device = batch.src.device
    found = search([packed(network)], sources, options, device=device)
    translations = [hypothesis.ids for hypotheses in found for hypothesis in hypotheses]
    references = [reference for reference in texts_of(targets, vocabulary) for _ in range(options.nbest)]
    scores = sentence_bleu(
        texts_of(translations, vocabulary), references, lowercase=config.data.tgt_lowercase
    )
    costs = 1 - torch.tensor(scores).view(len(sources), options.nbest) / 100
    return Drawn.of(translations, costs, device)
