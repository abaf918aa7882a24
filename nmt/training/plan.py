"""What a run is planned to do: the rows that each step reads, the number of steps, the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmt.config import TrainConfig
from nmt.data.batching import Rows, plan_batches
from nmt.data.dataset import Split
from nmt.training.checkpoint import RunState
from nmt.training.optimizer import learning_rate

DECIDE_THE_BATCHES = ("batch_tokens", "batch_sentences", "subword_dropout")
"""The settings that the batches of any epoch follow from, beside the seed and those of the data."""


_FIRST = "first_risk_epoch"
"""Kept beside them, since it decides how many steps there are."""


class Plan:
    """The epochs of a run: first those of likelihood, then those that lower the risk (train.risk_epochs).

    A pure function of settings, seed, sentence lengths and where the run stands.
    """

    def __init__(self, settings: TrainConfig, seed: int, first: Split) -> None:
        """first: the pairs as epoch 0 reads them; later epochs may have a few more steps or less."""
        self.settings, self.seed = settings, seed
        self._epoch_steps = self._risk_epoch_steps = len(self.batches(first, 0))
        if settings.risk_epochs:
            self._risk_epoch_steps = len(self.batches(first, settings.first_risk_epoch))

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
        samples = self.settings.risk_samples if self.at_risk(epoch) else 0
        return {**self._decided_always(), "train.risk_samples": samples}

    def changes(self, before: Mapping[str, Any], epoch: int) -> list[str]:
        """What decides an epoch's batches and was otherwise before, with both values."""
        now = self.decided_by(epoch).items()
        return [
            f"{key} ({before[key]!r} there, {value!r} now)"
            for key, value in now
            if key != _FIRST and before.get(key, value) != value
        ]

    def begins_anew(self, before: Mapping[str, Any]) -> bool:
        """Whether epochs have other numbers of steps from here on than they had before."""
        return any(before.get(key) != value for key, value in self._decided_always().items())

    def total_steps(self, state: RunState) -> int:
        """The steps that the whole run is planned to have."""
        settings = self.settings
        first = max(state.planned_from_epoch, settings.first_risk_epoch)
        planned = self._likelihood_steps(state) + (settings.epochs - first) * self._risk_epoch_steps
        return min(planned, settings.max_steps or planned)

    def rate(self, state: RunState, share: float) -> float:
        """The learning rate of the next step, when `share` of the running epoch is done."""
        settings = self.settings
        if not self.at_risk(state.epoch):
            return learning_rate(state.step + 1, settings, self._likelihood_steps(state))
        return settings.risk_learning_rate * (settings.epochs - state.epoch - share) / settings.risk_epochs

    def _decided_always(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "seed": self.seed,
            **{f"train.{key}": getattr(settings, key) for key in DECIDE_THE_BATCHES},
            _FIRST: settings.first_risk_epoch if settings.risk_epochs else None,
        }

    def _likelihood_steps(self, state: RunState) -> int:
        """The steps before the epochs that lower the risk: what the schedule of the learning rate is for."""
        epochs = max(self.settings.first_risk_epoch - state.planned_from_epoch, 0)
        planned = state.planned_from_step + epochs * self._epoch_steps
        return min(planned, self.settings.max_steps or planned)
