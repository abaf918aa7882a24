"""Matrix products and training of nmt: speed, its share of what the machine can do, and where time goes.

Letters: S source tokens, T target tokens, each with its `<bos>` or `<eos>`.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from benchmarks.base import (
    WARM_UP_STEPS,
    Bench,
    Section,
    precisions,
    seconds_of,
    synchronise,
)
from nmt.data.batching import Rows, token_share
from nmt.data.dataset import Split
from nmt.model.attention import MultiHeadAttention
from nmt.model.transformer import Transformer
from nmt.runtime import ALONE
from nmt.training import step as training_step
from nmt.training.optimizer import learning_rate
from nmt.training.step import Objective, Stepper, Work, make_work


def matmul_section(bench: Bench) -> Section:
    """The most that this machine multiplies, in each precision."""
    peaks = {name: matmul_peak(dtype, bench.device, bench.quick) for name, dtype in precisions(bench)}
    ratios = {f"{name} / float32": peak / peaks["float32"] for name, peak in peaks.items()}
    return Section(
        "matmul",
        {name: ratio for name, ratio in ratios.items() if name != "float32 / float32"},
        {f"peak in {name}, GFLOP/s": peak for name, peak in peaks.items()},
    )


def matmul_peak(dtype: torch.dtype, device: torch.device, quick: bool) -> float:
    """GFLOP/s of the fastest of repeated large products; on the CPU also of oneDNN's on a packed matrix."""
    sizes = (512,) if quick else (4096, 8192) if device.type == "cuda" else (1024, 2048)
    best = 0.0
    for size in sizes:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        for product in _products(left, right):
            product()
            spent = min(seconds_of(product, device)[0] for _ in range(3 if quick else 10))
            best = max(best, 2 * size**3 / spent / 1e9)
    return best


def _products(left: torch.Tensor, right: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    products: list[Callable[[], torch.Tensor]] = [lambda: left @ right]
    if left.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(right, len(left))
        linear = torch.ops.mkldnn._linear_pointwise
        products.append(lambda: linear(left, packed, None, "none", [], ""))
    return products


def training_flops(network: Transformer, split: Split, rows: Rows, passes: int = 1) -> float:
    """Floating-point operations that a training step on these rows needs, padding left out.

    A product of a vector and a matrix takes 2 for each weight of it. The matrices of the encoder, and those
    that make keys and values of its output in the decoder, meet each of S source positions; all others,
    the output projection among them, each of T target positions. Attention's two products take 2 for each
    pair of positions and each column of a key or value: S * S pairs in an encoder layer, T * T (also those
    in the future, which the products compute and the mask then drops) and T * S in a decoder layer. The
    backward pass has two products for each one of the forward pass, so a step takes 3 times the forward pass.
    Looking up embeddings, norms, softmax and the optimizer are no matrix products and count nothing.

    passes: how often each row goes through (twice with R-Drop).
    """
    src, tgt = (side.lengths[rows].astype(float) + 1 for side in (split.src, split.tgt))
    forward = 0.0
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            reads_source = name.startswith("encoder.") or name.endswith("cross_attention.key_value")
            forward += 2 * module.weight.numel() * (src if reads_source else tgt).sum()
        elif isinstance(module, MultiHeadAttention):
            queries = src if name.startswith("encoder.") else tgt
            keys = tgt if name.endswith("self_attention") and name.startswith("decoder.") else src
            forward += 2 * sum(module.widths) * (queries * keys).sum()
    return 3 * passes * forward


@dataclass(frozen=True, slots=True)
class Steps:
    """Optimizer steps that were timed: one entry for each."""

    seconds: list[float]
    tokens: list[int]
    """Target tokens, `<eos>` counted."""

    @property
    def tokens_per_s(self) -> float:
        """The median over the steps."""
        return statistics.median(n / s for n, s in zip(self.tokens, self.seconds, strict=True))


class Training:
    """Training steps of nmt, as the trainer takes them; each call goes on with the same network."""

    def __init__(self, bench: Bench, precision: torch.dtype) -> None:
        self.network, self.settings = bench.network().train(), bench.config.train
        self.device, self.split = bench.device, bench.data.split(bench.data.train)
        self.stepper = Stepper(
            self.network, self.settings, seed=bench.config.seed, precision=precision, ranks=ALONE
        )
        self.total_steps = len(bench.plan) * self.settings.epochs
        self.step = 0

    def steps(self, plan: Sequence[Rows]) -> Steps:
        """A step on each batch of a plan; the time of padding the next batch counts, as that of this one."""
        found = Steps([], [])
        work = self.work(plan[0])
        for rows in [*plan[1:], plan[0]]:
            begun = time.perf_counter()
            totals = self.gradient(work)
            following = self.work(rows)  # while the device computes
            self.finish(totals)
            synchronise(self.device)
            found.seconds.append(time.perf_counter() - begun)
            found.tokens.append(work.tokens)
            work = following
        return found

    def work(self, rows: Rows) -> Work:
        """A batch, padded."""
        return make_work(self.split, rows, ranks=ALONE, parts=self.settings.accumulation, device=self.device)

    def gradient(self, work: Work) -> torch.Tensor:
        """Compute the gradient; the loss and the norm, still on the device."""
        return torch.stack(self.stepper.gradient(work, self.step))

    def finish(self, totals: torch.Tensor) -> None:
        """Read loss and norm, and change the weights by the gradient."""
        totals.tolist()
        self.step += 1
        self.stepper.apply(self.step, learning_rate(self.step, self.settings, self.total_steps))

    def parts(self, plan: Sequence[Rows]) -> dict[str, float]:
        """Seconds by part over a plan: data, forward, loss, backward, optimizer.

        `loss` is the projection onto the vocabulary and the cross-entropy, whose gradients are computed in
        the forward pass: so `backward` has none of them. `optimizer` includes clipping the gradient, reading
        the loss and the moving average. The device is waited for behind each part, so that the sum is a
        little more than the steps take undisturbed.
        """
        clock = _Clock(self.device)
        data = gradient = optimizer = 0.0
        with clock.on(Objective, "forward"), clock.on(nn.utils, "clip_grad_norm_"), clock.on_losses():
            for rows in plan:
                spent, work = seconds_of(functools.partial(self.work, rows), self.device)
                data += spent
                spent, totals = seconds_of(functools.partial(self.gradient, work), self.device)
                gradient += spent
                optimizer += seconds_of(functools.partial(self.finish, totals), self.device)[0]
        loss = clock.spent["projection_loss"] + clock.spent["r_drop_loss"]
        objective, clipping = clock.spent["forward"], clock.spent["clip_grad_norm_"]
        return {
            "data": data,
            "forward": objective - loss,
            "loss": loss,
            "backward": gradient - objective - clipping,
            "optimizer": optimizer + clipping,
        }


class _Clock:
    """Counts the time inside functions while it is set on them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent: dict[str, float] = {}

    def on(self, owner: Any, name: str) -> contextlib.AbstractContextManager[Any]:
        """Count the time inside `owner.name`."""
        function = getattr(owner, name)
        self.spent[name] = 0.0

        def timed(*given: Any, **named: Any) -> Any:
            spent, result = seconds_of(lambda: function(*given, **named), self.device)
            self.spent[name] += spent
            return result

        return mock.patch.object(owner, name, timed)

    @contextlib.contextmanager
    def on_losses(self) -> Iterator[None]:
        with self.on(training_step, "projection_loss"), self.on(training_step, "r_drop_loss"):
            yield


def training_section(bench: Bench) -> Section:
    """Speed of training, what it makes of the machine, and where its time goes."""
    training, plan = Training(bench, bench.precision), bench.timed_plan(bench.steps)
    peak = matmul_peak(bench.precision, bench.device, bench.quick)
    steps = training.steps(plan)
    timed = Steps(steps.seconds[WARM_UP_STEPS:], steps.tokens[WARM_UP_STEPS:])
    passes = 2 if bench.config.train.r_drop else 1
    flops = sum(
        training_flops(training.network, training.split, rows, passes) for rows in plan[WARM_UP_STEPS:]
    )
    reached = flops / sum(timed.seconds) / 1e9
    peak = max(peak, matmul_peak(bench.precision, bench.device, bench.quick))  # before and after the steps
    parts = training.parts(plan[WARM_UP_STEPS:])
    name = next(name for name, dtype in precisions(bench) if dtype == bench.precision)
    ratios = {
        f"share of the {name} matmul peak": reached / peak,
        "share of padding in the batches": 1 - token_share(training.split, bench.plan),
        **{f"share of time: {part}": spent / sum(parts.values()) for part, spent in parts.items()},
    }
    figures = {
        f"target tokens/s ({name}, median step)": timed.tokens_per_s,
        "GFLOP/s (needed matrix products)": reached,
        **{f"{part}, ms a step": 1e3 * spent / bench.steps for part, spent in parts.items()},
    }
    if bench.device.type == "cuda":
        figures["peak memory, MiB"] = torch.cuda.max_memory_allocated(bench.device) / 2**20
    note = "loss: the projection and the loss with their gradients, which are computed in the forward pass"
    return Section("training", ratios, figures, (note,))


Runner = Callable[[Sequence[Rows]], Steps]
"""Takes a training step on each batch of a plan."""


def training_race(bench: Bench, title: str, runners: Mapping[str, Runner], notes: tuple[str, ...]) -> Section:
    """Target tokens a second of all in turn on the same batches; a round's first steps do not count."""
    plan = bench.timed_plan(max(bench.steps // bench.rounds, 4))
    found = {name: Steps([], []) for name in runners}
    for _ in range(bench.rounds):
        for name, run in runners.items():
            steps = run(plan)
            found[name].seconds.extend(steps.seconds[WARM_UP_STEPS:])
            found[name].tokens.extend(steps.tokens[WARM_UP_STEPS:])
    speeds = {name: steps.tokens_per_s for name, steps in found.items()}
    ratios = {
        f"speed of {mine} / {peer}": speeds[mine] / speeds[peer]
        for peer in speeds
        for mine in speeds
        if mine.startswith("nmt") and not peer.startswith("nmt")
    }
    return Section(title, ratios, {f"{name}: target tokens/s": each for name, each in speeds.items()}, notes)
