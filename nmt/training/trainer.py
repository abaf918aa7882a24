"""The training loop: batches in, steps taken, validated and saved, until it ends or is asked to stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.config import TrainConfig
from nmt.data.batching import Batch, Rows, make_batch, plan_batches
from nmt.data.dataset import Split
from nmt.data.vocabulary import PAD
from nmt.errors import CheckpointError, RunError
from nmt.model.transformer import Transformer
from nmt.modelfile import BEST, LAST
from nmt.runtime import StopSignals
from nmt.training.checkpoint import (
    RunState,
    load_last_checkpoint,
    save_checkpoint,
    update_state,
)
from nmt.training.loss import projection_loss
from nmt.training.optimizer import WeightAverage, learning_rate, make_optimizer
from nmt.training.tracking import Event, Metrics, ProgressBar, format_duration

log = logging.getLogger("nmt")


@dataclass(frozen=True, slots=True)
class Quality:
    """BLEU of the validation translations, and its signature."""

    bleu: float
    signature: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run keeps what it makes."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config; a folder that has one holds a run."""
        return self.path / "config.yaml"

    @property
    def lock(self) -> Path:
        """Held while a run is trained here."""
        return self.path / ".lock"

    @property
    def metrics(self) -> Path:
        """One event a line."""
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        """The picture of the metrics."""
        return self.path / "curves.png"

    @property
    def checkpoints(self) -> Path:
        """What a run goes on from."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The model with the best validation BLEU."""
        return self.path / BEST

    @property
    def last(self) -> Path:
        """The model after the last validation or stop."""
        return self.path / LAST


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the stage does for the trainer, which knows neither decoding nor scoring nor model files."""

    quality: Callable[[Transformer], Quality]
    """Translate the validation split and score it."""
    save_model: Callable[[Path, Transformer, RunState], None]
    draw: Callable[[list[Event]], None]
    """Draw the curves anew."""


@dataclass(slots=True)
class _Tally:
    """Sums since the last log line; tensors stay on the device until they are looked at."""

    smoothed: Tensor | float = 0.0
    largest_norm: Tensor | float = 0.0
    tokens: int = 0
    started: float = 0.0

    def add(self, smoothed: Tensor, norm: Tensor, tokens: int) -> None:
        self.smoothed = self.smoothed + smoothed
        self.largest_norm = torch.maximum(torch.as_tensor(self.largest_norm, device=norm.device), norm)
        self.tokens += tokens

    def loss(self) -> float:
        return float(self.smoothed) / max(self.tokens, 1)


class Trainer:
    """Trains one network on one split; the network is changed in place."""

    def __init__(
        self,
        network: Transformer,
        train: Split,
        val: Split,
        settings: TrainConfig,
        *,
        seed: int,
        precision: torch.dtype,
        run: RunFolder,
        hooks: Hooks,
        vocabulary_hash: str = "",
    ) -> None:
        self.network, self.train, self.val, self.settings = network, train, val, settings
        self.seed, self.precision, self.run, self.hooks = seed, precision, run, hooks
        self.device = next(network.parameters()).device
        self.optimizer = make_optimizer(network, settings)
        self.average = None if settings.ema_decay is None else WeightAverage(network, settings.ema_decay)
        self.state = RunState(vocabulary_hash=vocabulary_hash)
        planned = settings.epochs * len(self._plan(0))
        self.total_steps = min(planned, settings.max_steps or planned)

    @property
    def finished(self) -> bool:
        """Whether epochs, steps or patience are used up and the last validation is done."""
        return self._is_done() and not self.state.validation_due

    def resume(self) -> bool:
        """Go on from the last whole checkpoint; False where there is none.

        Raises CheckpointError when its ids were those of other prepared data.
        """
        state = load_last_checkpoint(self.run.checkpoints, self.network, self.optimizer, self.average)
        if state is None:
            return False
        if state.vocabulary_hash != self.state.vocabulary_hash:
            raise CheckpointError(
                f"{self.run.path} was trained on text that has changed since: its ids mean other tokens now",
                hint="put the text back as it was, or start anew with --overwrite or --run-dir",
            )
        self.state = state
        return True

    def fit(self) -> int | None:
        """Train until the epochs or steps are done, patience is out, or a signal asks to stop.

        Every epoch is saved before it is validated. Returns the number of the signal that stopped it, or
        None. Raises RunError when the loss is no number; what was saved before then stays as it was.
        """
        state = self.state
        metrics = Metrics(self.run.metrics, last_step=state.step)
        begun = time.monotonic() - state.elapsed_s
        with StopSignals() as stop, ProgressBar(self.total_steps, state.step) as bar:
            while not self.finished:
                if not state.validation_due:
                    self._train_epoch(metrics, bar, stop, begun)
                    state.elapsed_s = time.monotonic() - begun
                    state.validation_due = self._validation_is_due()
                    self._save()
                    if stop.requested is not None:
                        break
                if state.validation_due:
                    self._validate(metrics, begun)
                    state.validation_due = False
                    update_state(self.run.checkpoints, state)
        return stop.requested

    def _train_epoch(self, metrics: Metrics, bar: ProgressBar, stop: StopSignals, begun: float) -> None:
        """Take the steps left of the running epoch, or fewer when a limit or a signal comes."""
        state, tally = self.state, _Tally(started=time.monotonic())
        plan = self._plan(state.epoch)
        self.network.train()
        for position in range(state.position, len(plan)):
            batch = make_batch(self.train, plan[position]).to(self.device)
            rate = learning_rate(state.step + 1, self.settings, self.total_steps)
            loss, norm = self._step(batch, rate)
            state.step, state.position = state.step + 1, position + 1
            tally.add(loss, norm, batch.num_tokens)
            last = position + 1 == len(plan) or self._is_done() or stop.requested is not None
            if state.step % self.settings.log_every_steps == 0 or last:
                speed = self._log_step(metrics, tally, rate, state.epoch + state.position / len(plan), begun)
                loss_text, rate_text = f"loss {tally.loss():.3f}", f"learning rate {rate:.1e}"
                bar.tell(f"epoch {state.epoch + 1}, {loss_text}, {rate_text}, {speed:,.0f} tokens/s")
                tally = _Tally(started=time.monotonic())
            bar.advance(state.step)
            if last and state.position < len(plan):
                return
        state.epoch, state.position = state.epoch + 1, 0

    def _step(self, batch: Batch, rate: float) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns the batch's summed loss and the norm of the mean gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        smoothed, _ = self._loss(batch, self.settings.label_smoothing)
        (smoothed / batch.num_tokens).backward()  # type: ignore[no-untyped-call]
        limit = math.inf if self.settings.clip_norm is None else self.settings.clip_norm
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.network, self.state.step + 1)
        return smoothed.detach(), norm

    def _loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
        """Summed loss over the batch's real target tokens, smoothed and plain."""
        autocast = self.precision != torch.float32
        with torch.autocast(self.device.type, dtype=self.precision, enabled=autocast):
            memory = self.network.encode(batch.src, batch.src_keep)
            states = self.network.decode(batch.tgt_in, memory, batch.src_keep)  # (B,T,d_model)
            real = batch.tgt_out != PAD
            return projection_loss(
                states[real], self.network.projection.weight, batch.tgt_out[real], smoothing
            )

    def _log_step(self, metrics: Metrics, tally: _Tally, rate: float, epoch: float, begun: float) -> float:
        """Write a `step` event; returns target tokens a second."""
        loss, norm, now = tally.loss(), float(tally.largest_norm), time.monotonic()
        self._demand_numbers(loss, norm)
        speed = tally.tokens / max(now - tally.started, 1e-9)
        metrics.add(
            "step",
            self.state.step,
            epoch=round(epoch, 4),
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            tokens_per_s=round(speed, 1),
            elapsed_s=round(now - begun, 3),
        )
        return speed

    def _demand_numbers(self, loss: float, norm: float = 0.0) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(
                f"after step {self.state.step} the loss is {loss} and the norm of the gradient {norm}; "
                "what was saved before stays as it was",
                hint="lower train.learning_rate, raise train.warmup_steps, or try --precision float32",
            )

    def _validation_is_due(self) -> bool:
        ended = self.state.position == 0 and self.state.epoch % self.settings.validate_every_epochs == 0
        return ended or self._is_done()

    def _is_done(self) -> bool:
        state, settings = self.state, self.settings
        out_of_patience = settings.patience is not None and state.stale >= settings.patience
        out_of_steps = settings.max_steps is not None and state.step >= settings.max_steps
        return state.epoch >= settings.epochs or out_of_steps or out_of_patience

    def _validate(self, metrics: Metrics, begun: float) -> None:
        """Loss and BLEU on the validation split; keeps the best model; counts patience."""
        state = self.state
        with self._averaged():
            loss = self._validation_loss()
            self._demand_numbers(loss)
            quality = self.hooks.quality(self.network)
            better = state.beaten_by(quality.bleu, loss)
            state.stale = 0 if better else state.stale + 1
            if better:
                state.best_bleu, state.best_loss, state.best_step = quality.bleu, loss, state.step
                self.hooks.save_model(self.run.best, self.network, state)
        state.elapsed_s = time.monotonic() - begun
        metrics.add(
            "validation",
            state.step,
            epoch=state.epoch,
            loss=loss,
            perplexity=math.exp(min(loss, 700.0)),
            bleu=quality.bleu,
            signature=quality.signature,
            best=better,
            elapsed_s=round(state.elapsed_s, 3),
        )
        log.info(
            "epoch %d: validation loss %.3f, BLEU %.2f%s, after %s",
            state.epoch + (state.position > 0),
            loss,
            quality.bleu,
            " (best)" if better else "",
            format_duration(state.elapsed_s),
        )
        self.hooks.draw(metrics.events)
        if self.settings.patience is not None and state.stale >= self.settings.patience:
            log.info("no better BLEU in %d validations: stopping early", state.stale)

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """Plain negative log-likelihood in nats per target token, in float32."""
        self.network.eval()
        total, tokens = 0.0, 0
        precision, self.precision = self.precision, torch.float32
        for rows in plan_batches(self.val, self.settings.batch_tokens, seed=0, epoch=0):
            batch = make_batch(self.val, rows).to(self.device)
            total += float(self._loss(batch, 0.0)[1])
            tokens += batch.num_tokens
        self.precision = precision
        self.network.train()
        return total / tokens

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The network with its averaged weights, where there are any, and as it was afterwards."""
        if self.average is None:
            yield
            return
        self.average.swap(self.network)
        try:
            yield
        finally:
            self.average.swap(self.network)

    def _save(self) -> None:
        with self._averaged():
            self.hooks.save_model(self.run.last, self.network, self.state)
        save_checkpoint(
            self.run.checkpoints,
            self.state,
            self.network,
            self.optimizer,
            self.average,
            keep=self.settings.keep_checkpoints,
        )

    def _plan(self, epoch: int) -> list[Rows]:
        settings = self.settings
        return plan_batches(
            self.train, settings.batch_tokens, seed=self.seed, epoch=epoch, max_rows=settings.batch_sentences
        )
