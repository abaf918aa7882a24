"""One optimizer step: the parts of a batch, the ranks that share it, and what is no number left out.

Letters: B batch, S source length, T target length, N real target positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.config import TrainConfig
from nmt.data.batching import Batch, Rows, make_batch, split_rows, target_tokens
from nmt.data.dataset import Split
from nmt.data.vocabulary import PAD
from nmt.errors import MachineError
from nmt.model.transformer import Transformer
from nmt.runtime import Ranks, is_out_of_memory, mixed_seed
from nmt.training.loss import projection_loss, r_drop_loss
from nmt.training.optimizer import WeightAverage, make_optimizer
from nmt.training.risk import Drawn, expected_risk


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a step's batch: what one forward and backward pass takes."""

    batch: Batch
    weight: float
    """1, or 0 where there are fewer rows than shares: then the batch holds a row of another share."""


@dataclass(frozen=True, slots=True)
class Work:
    """One rank's parts of a step, and the target tokens of the whole step on all ranks."""

    parts: Sequence[Part]
    tokens: int


def make_work(split: Split, rows: Rows, *, ranks: Ranks, parts: int, device: torch.device) -> Work:
    """Pad this rank's share of a step's rows; each rank gets equally many parts."""
    shares = split_rows(rows, rank=ranks.rank, world=ranks.world, parts=parts)
    made = [
        Part(make_batch(split, share if len(share) else rows[:1]).to(device), float(len(share) > 0))
        for share in shares
    ]
    return Work(made, target_tokens(split, rows))


Draw = Callable[[Batch, int], Drawn]
"""Draws translations of a batch's pairs; the number is that of the step."""


class Objective(nn.Module):
    """What training lowers, as one module around the network: data-parallel training wants it so."""

    def __init__(self, network: Transformer, settings: TrainConfig, precision: torch.dtype) -> None:
        super().__init__()
        self.network, self.settings, self.precision = network, settings, precision

    def forward(self, batch: Batch, drawn: Drawn | None = None) -> tuple[Tensor, Tensor]:
        """What is to be lowered, and the smoothed cross-entropy in it, both summed over N positions.

        With train.r_drop each row passes twice, under different dropout: the cross-entropy is the mean of
        both, and the divergence between them comes to it (Liang et al., 2021, equation 4). Where there are
        translations drawn, each pair passes once, and their expected cost comes to it, which counts once for
        each of the pair's N positions.
        """
        with _autocast(batch.src.device, self.precision):
            return self._likelihood(batch) if drawn is None else self._risk(batch, drawn)

    def _likelihood(self, batch: Batch) -> tuple[Tensor, Tensor]:
        weight = self.settings.r_drop
        states, targets = real_states(self.network, batch, passes=2 if weight else 1)
        if not weight:
            return self._smoothed(states, targets)
        projection, settings = self.network.projection, self.settings
        return r_drop_loss(
            states,
            projection.weight,
            targets,
            settings.label_smoothing,
            weight,
            bias=projection.bias,
            mass=settings.smoothing_mass,
        )

    def _risk(self, batch: Batch, drawn: Drawn) -> tuple[Tensor, Tensor]:
        network, real = self.network, batch.tgt_out != PAD
        memory = network.memory_keys_values(network.encode(batch.src, batch.src_keep))
        states, _ = network.advance(batch.tgt_in, memory, batch.src_keep)  # (B,T,d_model)
        objective, smoothed = self._smoothed(states[real], batch.tgt_out[real])
        states, _ = network.advance(drawn.tgt_in, memory, batch.src_keep)  # (B*K,T,d_model)
        risk = expected_risk(states, drawn, network.projection, real.sum(1))
        return objective + self.settings.risk_weight * risk, smoothed

    def _smoothed(self, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The smoothed cross-entropy of states (N,d_model) for targets (N), and it without gradients."""
        projection, settings = self.network.projection, self.settings
        smoothed, _ = projection_loss(
            states,
            projection.weight,
            targets,
            settings.label_smoothing,
            bias=projection.bias,
            mass=settings.smoothing_mass,
        )
        return smoothed, smoothed.detach()


def real_states(network: Transformer, batch: Batch, passes: int = 1) -> tuple[Tensor, Tensor]:
    """The decoder's output (passes * N,d_model) and the ids (N) at positions that are no padding."""
    src, src_keep, tgt_in = (
        ids.repeat(passes, 1) if passes > 1 else ids for ids in (batch.src, batch.src_keep, batch.tgt_in)
    )
    states = network.decode(tgt_in, network.encode(src, src_keep), src_keep)  # (passes * B,T,d_model)
    real = batch.tgt_out != PAD
    return states[real.repeat(passes, 1)], batch.tgt_out[real]


@torch.no_grad()
def plain_loss(network: Transformer, batch: Batch) -> Tensor:
    """Summed negative log-likelihood in nats of a batch, in the type of the network's weights."""
    projection = network.projection
    states, targets = real_states(network, batch)
    return projection_loss(states, projection.weight, targets, 0.0, bias=projection.bias)[1]


class Stepper:
    """Takes optimizer steps; the network, the optimizer and the average are changed in place.

    Random numbers (dropout) follow from seed, step, rank and part alone, so a run that goes on needs none of
    their history.
    """

    def __init__(
        self, network: Transformer, settings: TrainConfig, *, seed: int, precision: torch.dtype, ranks: Ranks
    ) -> None:
        self.network, self.settings, self.seed, self.ranks = network, settings, seed, ranks
        self.optimizer = make_optimizer(network, settings)
        self.average = None if settings.ema_decay is None else WeightAverage(network, settings.ema_decay)
        self._objective = ranks.wrap(Objective(network, settings, precision))

    def gradient(self, work: Work, step: int, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        """Give each weight the gradient of the mean loss per target token of the step, clipped.

        With `draw` the expected cost of the translations that it draws is a part of the loss.
        Returns, still on the device, this rank's summed smoothed loss and the norm before clipping.
        Raises MachineError with the batch's shape where memory is short.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=next(self.network.parameters()).device)
        for index, part in enumerate(work.parts):
            torch.manual_seed(mixed_seed(self.seed, step, self.ranks.rank, index))
            last = index + 1 == len(work.parts)
            with (
                explained(part.batch, self.settings),
                self.ranks.watched(),
                nullcontext() if last else self.ranks.no_sync(self._objective),
            ):
                drawn = None if draw is None else draw(part.batch, step)
                objective, smoothed = self._objective(part.batch, drawn)
                # the ranks' gradients are averaged, and the sum is wanted
                (objective * (part.weight * self.ranks.world) / work.tokens).backward()
                loss = loss + part.weight * smoothed
        limit = math.inf if self.settings.clip_norm is None else self.settings.clip_norm
        return loss, nn.utils.clip_grad_norm_(self.network.parameters(), limit)

    def apply(self, step: int, rate: float) -> None:
        """Change weights and average by the gradient: step 1, 2, …"""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.network, step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The network with its averaged weights, where there are any, and as it was afterwards."""
        if self.average is None:
            yield
            return
        self.average.swap(self.network)
        try:
            yield
        finally:
            self.average.swap(self.network)


@contextmanager
def explained(batch: Batch, settings: TrainConfig) -> Iterator[None]:
    """Say of memory that is too short which batch did not fit, and what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        rows, source = batch.src.shape
        raise MachineError(
            f"out of memory with {rows} pairs at once, {source} source and {batch.tgt_in.shape[1]} target "
            f"tokens long ({rows} × {source} × {batch.tgt_in.shape[1]})",
            hint=f"lower train.batch_tokens (now {settings.batch_tokens}) "
            f"or raise train.accumulation (now {settings.accumulation})",
        ) from error


def _autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype=precision, enabled=precision in (torch.bfloat16, torch.float16))
