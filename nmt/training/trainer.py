"""The training loop: batches in, steps taken, validated and saved, until it ends or is asked to stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.config import TrainConfig
from nmt.data.batching import Batch, Rows, make_batch, plan_batches
from nmt.data.dataset import Split
from nmt.errors import CheckpointError, ConfigError, RunError
from nmt.model.transformer import Transformer
from nmt.modelfile import BEST, LAST
from nmt.runtime import ALONE, Ranks, StopSignals
from nmt.training.averaging import Snapshots
from nmt.training.checkpoint import RunState, load_last_checkpoint, save_checkpoint, update_state
from nmt.training.plan import Plan
from nmt.training.risk import Drawn
from nmt.training.step import Draw, Stepper, Work, explained, make_work, plain_loss
from nmt.training.tracking import Event, Metrics, ProgressBar, format_duration, open_tensorboard

log = logging.getLogger("nmt")


@dataclass(frozen=True, slots=True)
class Quality:
    """BLEU of the validation translations, its signature, and a few of them."""

    bleu: float
    signature: str
    samples: Sequence[Mapping[str, str]] = ()
    """A few sentences: source, reference, translation."""


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
    def tensorboard(self) -> Path:
        """The same for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def environment(self) -> Path:
        """What each sitting ran on."""
        return self.path / "environment.json"

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

    def other_text(self) -> CheckpointError:
        """The error of going on with other text than the run has learned from."""
        return CheckpointError(
            f"{self.path} was trained on text that has changed since: its ids mean other tokens now",
            hint="put the text back as it was, or start anew with --overwrite or --run-dir",
        )


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the stage does for the trainer, which knows neither decoding nor scoring nor model files."""

    quality: Callable[[Transformer], Quality]
    """Translate the validation split and score it."""
    save_model: Callable[[Path, Transformer, RunState], None]
    draw: Callable[[list[Event]], None]
    """Draw the curves anew."""
    translations: Callable[[Transformer, Batch, int], Drawn] | None = None
    """Draw translations of a batch's pairs and say what they cost, for epochs that lower the risk; the number
    is that of the step."""


DRAWING_SHARE = 0.02
"""Where drawing its curves has taken more of a sitting's time, they wait for its end."""
SKIPS_TOLD = 3
"""So many skipped steps of a run are warned of one by one."""


@dataclass(slots=True)
class _Tally:
    """What the steps since the last log line add up to."""

    loss_sum: float = 0.0
    largest_norm: float = 0.0
    loss_tokens: int = 0
    """Target tokens of the steps that were not skipped."""
    costs: list[float] = field(default_factory=list)
    """The mean cost of the translations that each part of a step has drawn."""
    tokens: int = 0
    skipped: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, loss_sum: float, norm: float, tokens: int, *, fine: bool) -> None:
        self.tokens += tokens
        if not fine:
            self.skipped += 1
            return
        self.loss_sum += loss_sum
        self.largest_norm = max(self.largest_norm, norm)
        self.loss_tokens += tokens


class Stopwatch:
    """Where the seconds of a sitting go."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the time inside as spent on `what`."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.monotonic() - begun

    @property
    def elapsed_s(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._begun


class Trainer:
    """Trains one network on one split; the network is changed in place.

    Of several ranks each has its own trainer of an equal network, and all take the same steps and decisions;
    rank 0 alone writes. What a step reads is planned without regard to how many they are.
    """

    def __init__(
        self,
        network: Transformer,
        train: Callable[[int], Split],
        val: Split,
        settings: TrainConfig,
        *,
        seed: int,
        precision: torch.dtype,
        run: RunFolder,
        hooks: Hooks,
        vocabulary_hash: str = "",
        extra: str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """train: the pairs as epoch 0, 1, … reads them; extra: what data.extra is, which they follow from."""
        self.network, self.train, self.val, self.settings = network, train, val, settings
        self.seed, self.run, self.hooks, self.ranks = seed, run, hooks, ranks
        self.device = next(network.parameters()).device
        self.stepper = Stepper(network, settings, seed=seed, precision=precision, ranks=ranks)
        self.snapshots = Snapshots(run.checkpoints / "validated", settings.average_checkpoints)
        self.plan = Plan(settings, seed, train(0), extra=extra)
        self.state = RunState(vocabulary_hash=vocabulary_hash, batches=self.plan.decided_by(0))
        self._metrics: Metrics | None = None  # of rank 0, while it trains
        self._spent = Stopwatch()
        self._drawn = 0  # how many events the curves show
        self._elapsed_before_s = 0.0

    @property
    def total_steps(self) -> int:
        """The steps that the whole run is planned to have."""
        return self.plan.total_steps(self.state)

    @property
    def finished(self) -> bool:
        """Whether epochs, steps or patience are used up and nothing is left to be validated."""
        averaged = self.state.averaged or self.settings.average_checkpoints < 2
        return self._is_done() and not self.state.validation_due and averaged

    def resume(self) -> bool:
        """Go on from the last whole checkpoint; False where there is none.

        Raises CheckpointError when its ids were those of other prepared data, ConfigError when it stands
        within an epoch that has other batches now.
        """
        step = self.ranks.first(self._load)
        if step is None:
            return False

        def load_the_same() -> None:
            if self._load() != step:
                raise CheckpointError(
                    f"process {self.ranks.rank} does not see {self.run.path} as it was after step {step}",
                    hint="give all processes the same run folder, on a file system that their machines share",
                )

        self.ranks.together(lambda: None if self.ranks.is_first else load_the_same())
        return True

    def _load(self) -> int | None:
        """Take the last whole checkpoint; its step."""
        stepper = self.stepper
        state = load_last_checkpoint(self.run.checkpoints, self.network, stepper.optimizer, stepper.average)
        if state is None:
            return None
        if state.vocabulary_hash != self.state.vocabulary_hash:
            raise self.run.other_text()
        if state.position and (changed := self.plan.changes(state.batches, state.epoch)):
            # some pairs would come twice and others never
            raise ConfigError(
                f"{self.run.path} stopped within an epoch, which has other batches with these settings: "
                f"{', '.join(changed)}",
                hint="set them as they were, or start anew with --overwrite or --run-dir",
            )
        state.batches = self.plan.decided_by(state.epoch)
        self.state = state
        return state.step

    def fit(self) -> int | None:
        """Train until the epochs or steps are done, patience is out, or a signal asks to stop.

        Every epoch is saved before it is validated. Returns the number of the signal that stopped it, or
        None. Raises RunError when too many steps in a row were no numbers; what was saved before then stays
        as it was.
        """
        state, self._spent = self.state, Stopwatch()
        self._elapsed_before_s = state.elapsed_s
        if self.ranks.is_first:
            self._metrics = self._open_metrics()
        signum: int | None = None
        with StopSignals() as stop, ProgressBar(self.total_steps, state.step) as bar:
            while not self.finished and signum is None:
                if state.validation_due:
                    self._validate()
                elif self._is_done():
                    self._try_means()
                else:
                    self._train_epoch(bar, stop)
                    state.validation_due = self._validation_is_due()
                    self._save()
                signum = self._agreed(stop)
            signum = signum or self._agreed(stop)
        self._draw(last=True)
        if spent := self._spent.seconds:
            self._tell("time", **{f"{what}_s": round(seconds, 3) for what, seconds in spent.items()})
        return None if self.finished else signum

    def _open_metrics(self) -> Metrics:
        state, folder = self.state, self.run.tensorboard
        board = open_tensorboard(folder, last_step=state.step)
        return Metrics(
            self.run.metrics,
            last_step=state.step,
            validation_due=state.validation_due,
            means_due=not state.averaged,
            board=board,
        )

    # --- steps --------------------------------------------------------------------------------------------

    def _train_epoch(self, bar: ProgressBar, stop: StopSignals) -> None:
        """Take the steps left of the running epoch, or fewer when a limit or a signal comes."""
        state, tally = self.state, _Tally()
        with self._spent.on("data"):
            split = self.train(state.epoch)
            plan = self.plan.begin(split, state.epoch)
            work = self._work(split, plan[state.position])
        at_risk = self.plan.at_risk(state.epoch)
        bar.begin_epoch(
            state.epoch + 1,
            self.total_steps,
            about=self.plan.may_change(state.epoch),
            slow_end=self.settings.risk_epochs > 0 and not at_risk,
        )
        state.averaged, state.batches = False, self.plan.decided_by(state.epoch)
        if at_risk and not state.position:
            bar.begin_anew(state.step)
            log.info("epoch %d draws translations, and lowers what they cost", state.epoch + 1)
        self.network.train()
        while True:
            tokens, rate = work.tokens, self.plan.rate(state, state.position / len(plan))
            with self._spent.on("step"):
                totals = self._gradient(work, stop, tally.costs)
            if state.position + 1 < len(plan):
                with self._spent.on("data"):  # while the device computes
                    work = self._work(split, plan[state.position + 1])
            with self._spent.on("step"):
                loss, norm, *signals = totals.tolist()  # the one time in a step that the device is waited for
                fine = self._apply(loss / tokens, norm, rate)
            state.step, state.position = state.step + 1, state.position + 1
            tally.add(loss, norm, tokens, fine=fine)
            asked = any(signals) if signals else stop.requested is not None
            last = state.position == len(plan) or self._is_done() or asked
            # where all steps since the last line were skipped there is nothing to tell yet
            if tally.loss_tokens and (state.step % self.settings.log_every_steps == 0 or last):
                self._log_steps(tally, rate, state.epoch + state.position / len(plan), bar)
                tally = _Tally()
            bar.advance(state.step)
            if last:
                break
        if state.position == len(plan):
            state.epoch, state.position = state.epoch + 1, 0

    def _work(self, split: Split, rows: Rows) -> Work:
        parts = self.settings.accumulation
        return make_work(split, rows, ranks=self.ranks, parts=parts, device=self.device)

    def _draw_translations(self, costs: list[float]) -> Draw | None:
        """What draws translations in the running epoch, and notes their mean cost; None in other epochs."""
        translations = self.hooks.translations
        if not self.plan.at_risk(self.state.epoch):
            return None
        assert translations is not None

        def draw(batch: Batch, step: int) -> Drawn:
            drawn = translations(self.network, batch, step)
            costs.append(float(drawn.costs.mean()))
            return drawn

        return draw

    def _gradient(self, work: Work, stop: StopSignals, costs: list[float]) -> Tensor:
        """The gradient of a step; gives [summed loss, norm], and of several ranks their signals behind."""
        loss, norm = self.stepper.gradient(work, self.state.step, self._draw_translations(costs))
        if self.ranks.world == 1:
            return torch.stack((loss, norm))
        asked = loss.new_tensor([float(stop.requested == number) for number in stop.NUMBERS])
        loss, *signals = self.ranks.sum(torch.cat((loss[None], asked)))
        return torch.stack((loss, norm, *signals))

    def _apply(self, loss: float, norm: float, rate: float) -> bool:
        """Take the step, or leave everything as it is where it is no number; whether it was taken.

        All ranks decide alike: the loss is that of all, and the norm that of a gradient they share.
        """
        state = self.state
        if math.isfinite(loss) and math.isfinite(norm):
            self.stepper.apply(state.step + 1, rate)
            state.skipped_in_row = 0
            return True
        state.skipped, state.skipped_in_row = state.skipped + 1, state.skipped_in_row + 1
        if state.skipped_in_row > self.settings.max_skipped_steps:
            raise RunError(
                f"{state.skipped_in_row} steps in a row up to step {state.step + 1} were no numbers: "
                f"the loss is {loss}, the norm of the gradient {norm}; what was saved before stays as it was",
                hint="lower train.learning_rate, raise train.warmup_steps, or try --precision float32; "
                "then --resume goes on from the last checkpoint",
            )
        if state.skipped <= SKIPS_TOLD and self.ranks.is_first:
            more = "; more are only counted, in metrics.jsonl" if state.skipped == SKIPS_TOLD else ""
            log.warning(
                "step %d is skipped: loss %s, norm of the gradient %s%s", state.step + 1, loss, norm, more
            )
        return False

    def _log_steps(self, tally: _Tally, rate: float, epoch: float, bar: ProgressBar) -> None:
        speed = tally.tokens / max(time.monotonic() - tally.started, 1e-9)
        loss = tally.loss_sum / tally.loss_tokens
        self._tell(
            "step",
            epoch=round(epoch, 4),
            loss=loss,
            learning_rate=rate,
            grad_norm=tally.largest_norm,
            tokens_per_s=round(speed, 1),
            elapsed_s=round(self._elapsed_s, 3),
            **({"skipped": tally.skipped} if tally.skipped else {}),
            **({"cost": fmean(tally.costs)} if tally.costs else {}),
        )
        cost = f", cost {fmean(tally.costs):.3f}" if tally.costs else ""
        bar.tell(f"loss {loss:.3f}{cost}, learning rate {rate:.1e}, {speed:,.0f} tokens/s")

    # --- validation ---------------------------------------------------------------------------------------

    def _validate(self) -> None:
        """Loss and BLEU on the validation split; keeps the best model; counts patience."""
        state, patience = self.state, self.settings.patience
        with self.stepper.averaged():
            better = self._judge()
            state.stale = 0 if better else state.stale + 1
            if self.settings.average_checkpoints >= 2:
                self._write(lambda: self._keep_snapshot(state.step))
        self._draw()
        if patience is not None and state.stale >= patience:
            log.info("no better BLEU in %d validations: stopping early", state.stale)
        state.validation_due = False
        self._write(lambda: update_state(self.run.checkpoints, state))

    def _keep_snapshot(self, step: int) -> None:
        self.snapshots.add(step, self.network)
        self.snapshots.prune(self.state.best_step)

    def _try_means(self) -> None:
        """Validate the means of the last weights and of those around the best, and keep what is better."""
        state, count = self.state, self.settings.average_checkpoints
        means = {
            f"mean of the last {count}": self.snapshots.last(),
            f"mean of {count} around the best": self.snapshots.around(state.best_step),
        }
        for weights, mean in means.items():
            if mean is not None:
                with self._holding(mean):
                    self._judge(weights=weights)
        self._draw()
        state.averaged = True
        self._write(lambda: update_state(self.run.checkpoints, state))

    def _judge(self, **told: str) -> bool:
        """Validate the weights that the network has now, tell of it, and keep them if they are the best."""
        state = self.state
        with self._spent.on("validate"):
            loss = self._validation_loss()
            quality = self.hooks.quality(self.network)
        better = state.beaten_by(quality.bleu, loss)
        if better:
            state.best_bleu, state.best_loss, state.best_step = quality.bleu, loss, state.step
            self._write(lambda: self.hooks.save_model(self.run.best, self.network, state))
        state.elapsed_s = self._elapsed_s
        self._tell(
            "validation",
            epoch=round(state.epoch, 4),
            loss=loss,
            perplexity=math.exp(min(loss, 700.0)),
            bleu=quality.bleu,
            signature=quality.signature,
            best=better,
            **({"samples": list(quality.samples)} if quality.samples else {}),
            **told,
            elapsed_s=round(state.elapsed_s, 3),
        )
        log.info(
            "%s: validation loss %.3f, BLEU %.2f%s, after %s",
            told.get("weights", f"epoch {state.epochs_begun}"),
            loss,
            quality.bleu,
            " (best)" if better else "",
            format_duration(state.elapsed_s),
        )
        return better

    def _validation_loss(self) -> float:
        """Plain negative log-likelihood in nats per target token, in the weights' type, over all ranks."""
        self.network.eval()
        mine = self.val.select(np.array(self.ranks.share(len(self.val)), dtype=np.int64))
        at_once = max(self.settings.batch_tokens // (self.ranks.world * self.settings.accumulation), 1)
        total, tokens = 0.0, 0
        for rows in plan_batches(mine, at_once, seed=0, epoch=0):
            batch = make_batch(mine, rows).to(self.device)
            with explained(batch, self.settings):
                total += float(plain_loss(self.network, batch))
            tokens += batch.num_tokens
        self.network.train()
        sums = self.ranks.gather([total, tokens])
        loss = math.fsum(part[0] for part in sums) / max(sum(int(part[1]) for part in sums), 1)
        if not math.isfinite(loss):
            raise RunError(
                f"after step {self.state.step} the validation loss is {loss}; "
                "what was saved before stays as it was",
                hint="lower train.learning_rate, raise train.warmup_steps, or try --precision float32",
            )
        return loss

    @contextmanager
    def _holding(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """The network with these weights, and as it was afterwards."""
        parameters = dict(self.network.named_parameters())
        before = {name: parameter.data for name, parameter in parameters.items()}
        for name, parameter in parameters.items():
            parameter.data = weights[name].to(parameter)
        try:
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = before[name]

    # --- what is kept and told ----------------------------------------------------------------------------

    def _save(self) -> None:
        state, stepper = self.state, self.stepper
        state.elapsed_s = self._elapsed_s

        def save() -> None:
            with stepper.averaged():
                self.hooks.save_model(self.run.last, self.network, state)
            save_checkpoint(
                self.run.checkpoints,
                state,
                self.network,
                stepper.optimizer,
                stepper.average,
                keep=self.settings.keep_checkpoints,
            )

        self._write(save)

    def _write(self, action: Callable[[], None]) -> None:
        """Rank 0 writes to the disk; where that fails all ranks end."""
        with self._spent.on("save"):
            self.ranks.first(action)

    def _tell(self, event: str, **values: Any) -> None:
        if self._metrics is not None:
            with self._spent.on("tracking"):
                self._metrics.add(event, self.state.step, **values)

    def _draw(self, *, last: bool = False) -> None:
        """Draw the curves, unless nothing is new, or they have had their time and will be drawn once more."""
        if self._metrics is None or len(self._metrics.events) == self._drawn:
            return
        if last or self._spent.seconds.get("draw", 0.0) <= DRAWING_SHARE * self._spent.elapsed_s:
            with self._spent.on("draw"):
                self.hooks.draw(self._metrics.events)
            self._drawn = len(self._metrics.events)

    # --- where it stands ----------------------------------------------------------------------------------

    @property
    def _elapsed_s(self) -> float:
        """Time spent training, over all sittings."""
        return self._elapsed_before_s + self._spent.elapsed_s

    def _agreed(self, stop: StopSignals) -> int | None:
        """The signal that any rank has got, the same on all."""
        return next((signum for signum in self.ranks.gather(stop.requested) if signum is not None), None)

    def _validation_is_due(self) -> bool:
        ended = self.state.position == 0 and self.state.epoch % self.settings.validate_every_epochs == 0
        return ended or self._is_done()

    def _is_done(self) -> bool:
        state, settings = self.state, self.settings
        out_of_patience = settings.patience is not None and state.stale >= settings.patience
        out_of_steps = settings.max_steps is not None and state.step >= settings.max_steps
        return state.epoch >= settings.epochs or out_of_steps or out_of_patience
