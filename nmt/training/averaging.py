"""The mean of weights that were validated: of the last ones, and of those around the best."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.errors import CheckpointError
from nmt.files import clear_drafts
from nmt.training.checkpoint import PREFIX, kept_states, load_weights, save_weights

log = logging.getLogger("nmt")


class Snapshots:
    """The weights of a run's validations, in `folder` within that of its checkpoints, a file for each.

    A mean is one of up to `count` snapshots; with fewer than two of them there is none, so nothing is written
    where `count` is 0 or 1. What a resumed run finds here it goes on with.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def steps(self) -> list[int]:
        """The steps whose weights are here, in order."""
        return sorted(
            int(path.stem.removeprefix(PREFIX)) for path in self.folder.glob(f"{PREFIX}*.safetensors")
        )

    def add(self, step: int, network: nn.Module) -> None:
        """Keep the weights that the network has now, as those validated at `step`; none is kept after them.

        Raises MachineError where they cannot be written.
        """
        if self.count >= 2:
            clear_drafts(self.folder)
            self.drop_after(step)
            save_weights(self._path(step), network)

    def last(self) -> dict[str, Tensor] | None:
        """The mean of the last `count` by parameter name, or None where there are fewer than two."""
        return self._mean(self._last(self.steps()))

    def around(self, step: int) -> dict[str, Tensor] | None:
        """The mean of up to `count` around that of `step`, or None where there are fewer than two."""
        return self._mean(self._around(self.steps(), step))

    def drop_after(self, step: int) -> None:
        """Delete what a run left that went on from a later step than this one does."""
        for later in self.steps():
            if later > step:
                self._path(later).unlink(missing_ok=True)

    def prune(self, best_step: int) -> None:
        """Delete what no mean can need any more, not even after going back to an earlier checkpoint."""
        steps = self.steps()
        needed = {*self._last(steps), *self._around(steps, best_step)}
        for state in kept_states(self.folder.parent):
            until = [step for step in steps if step <= state.step]
            needed |= {*self._last(until), *self._around(until, state.best_step)}
        for step in steps:
            if step not in needed:
                self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step:08d}.safetensors"

    def _last(self, steps: Sequence[int]) -> Sequence[int]:
        return steps[-self.count :] if self.count else ()

    def _around(self, steps: Sequence[int], middle: int) -> Sequence[int]:
        """As many before the middle as behind it, one more where `count` is even, fewer at either end."""
        if middle not in steps:
            return ()
        index = steps.index(middle)
        return steps[max(index - self.count // 2, 0) : index + (self.count + 1) // 2]

    def _mean(self, steps: Sequence[int]) -> dict[str, Tensor] | None:
        """Summed in float64, in which the sum of some float32 numbers is as good as exact."""
        sums: dict[str, Tensor] = {}
        types: dict[str, torch.dtype] = {}
        added = 0
        for step in steps:
            try:
                weights = load_weights(self._path(step))
            except CheckpointError as error:
                log.warning("%s; averaging without it", error.message)
                continue
            added += 1
            for name, weight in weights.items():
                types[name] = weight.dtype
                sums.setdefault(name, torch.zeros_like(weight, dtype=torch.float64)).add_(weight)
        return {name: (total / added).to(types[name]) for name, total in sums.items()} if added >= 2 else None
