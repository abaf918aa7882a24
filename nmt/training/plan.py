"""What a run is planned to do: the rows that each step reads, the number of steps, the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmt.config import TrainConfig
from nmt.data.batching import Rows, plan_batches
from nmt.data.dataset import Split
from nmt.training.checkpoint import RunState
from nmt.training.optimizer import learning_rate

DECIDE_THE_BATCHES = ("batch_tokens", "batch_sentences", "subword_dropout", "rare_words", "extra_share")
"""The settings that the batches of any epoch follow from, beside the seed and those of the data."""


class Plan:
    """The epochs of a run: first those of likelihood, then those that lower the risk (train.risk_epochs).

    What it says follows from settings, seed, sentence lengths and where the run stands.
    """

    def __init__(self, settings: TrainConfig, seed: int, first: Split, *, extra: str | None = None) -> None:
        """first: the pairs as epoch 0 reads them; extra: data.extra."""
        self.settings, self.seed, self.extra = settings, seed, extra
        self._steps = self._risk_steps = len(self.batches(first, 0))  # of an epoch
        if settings.risk_epochs:
            self._risk_steps = len(self.batches(first, settings.first_risk_epoch))

    def begin(self, split: Split, epoch: int) -> list[Rows]:
        """The batches of an epoch that begins or goes on; those to come are planned to have as many.

        Subwords that are drawn anew make some epochs a little longer than others.
        """
        batches = self.batches(split, epoch)
        if self.at_risk(epoch):
            self._risk_steps = len(batches)
        else:
            self._steps = len(batches)
        return batches

    def at_risk(self, epoch: int) -> bool:
        """Whether an epoch lowers the risk."""
        return epoch >= self.settings.first_risk_epoch

    def batches(self, split: Split, epoch: int) -> list[Rows]:
        """The rows of each step of an epoch; one that lowers the risk leaves room for drawn translations."""
        settings = self.settings
        budget = settings.batch_tokens // (settings.risk_samples + 1 if self.at_risk(epoch) else 1)
        return plan_batches(split, budget, seed=self.seed, epoch=epoch, max_rows=settings.batch_sentences)

    def decided_by(self, epoch: int) -> dict[str, Any]:
        """The settings, by name, that an epoch's batches follow from."""
        decisive = {f"train.{key}": getattr(self.settings, key) for key in DECIDE_THE_BATCHES}
        samples = self.settings.risk_samples if self.at_risk(epoch) else 0
        return {"seed": self.seed, "data.extra": self.extra, **decisive, "train.risk_samples": samples}

    def changes(self, before: Mapping[str, Any], epoch: int) -> list[str]:
        """What decides an epoch's batches and was otherwise before, with both values."""
        return [
            f"{key} ({before[key]!r} there, {value!r} now)"
            for key, value in self.decided_by(epoch).items()
            if before.get(key, value) != value
        ]

    def total_steps(self, state: RunState) -> int:
        """The steps that the whole run is planned to have."""
        risk_epochs = self.settings.epochs - max(state.epoch, self.settings.first_risk_epoch)
        return self._limited(self._likelihood_steps(state) + max(risk_epochs, 0) * self._risk_steps)

    def may_change(self, epoch: int) -> bool:
        """Whether that number is only about right in an epoch: those to come may be cut otherwise."""
        settings = self.settings
        is_drawn = settings.subword_dropout > 0 or settings.rare_words > 0 or self.extra is not None
        return is_drawn and epoch + 1 < settings.epochs and settings.max_steps is None

    def rate(self, state: RunState, share: float) -> float:
        """The learning rate of the next step, when `share` of the running epoch is done."""
        settings = self.settings
        if not self.at_risk(state.epoch):
            return learning_rate(state.step + 1, settings, self._limited(self._likelihood_steps(state)))
        return settings.risk_learning_rate * (settings.epochs - state.epoch - share) / settings.risk_epochs

    def _likelihood_steps(self, state: RunState) -> int:
        """The steps before the epochs that lower the risk: what the schedule of the learning rate is for."""
        before = state.step - state.position  # in the epochs that are done
        return before + max(self.settings.first_risk_epoch - state.epoch, 0) * self._steps

    def _limited(self, steps: int) -> int:
        return min(steps, self.settings.max_steps or steps)
