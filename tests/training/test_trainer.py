"""The loop: every token counted once, learning, keeping the best, stopping, going on."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.config import ModelConfig, TrainConfig
from nmt.data.batching import Batch, Rows, make_batch, without_specials
from nmt.data.dataset import Ragged, Split
from nmt.data.vocabulary import PAD
from nmt.errors import CheckpointError, MachineError, RunError
from nmt.model.transformer import Transformer
from nmt.runtime import ALONE, Ranks
from nmt.training.risk import Drawn
from nmt.training.step import Draw, Objective, Work, make_work
from nmt.training.tracking import Event, ProgressBar, read_events
from nmt.training.trainer import Hooks, Quality, RunFolder, Trainer

VOCABULARY = 30
MODEL = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, heads=4, feed_forward=64, dropout=0.0)


def reversal_split(count: int, seed: int) -> Split:
    """The target is the source reversed: easy, and impossible without looking."""
    random = np.random.default_rng(seed)
    sources = [random.integers(4, VOCABULARY, random.integers(2, 7)).tolist() for _ in range(count)]
    return Split("train", Ragged.of(sources, VOCABULARY), Ragged.of([s[::-1] for s in sources], VOCABULARY))


TRAIN = reversal_split(100, seed=0)


def draw_at_random(network: Transformer, batch: Batch, step: int) -> Drawn:
    """Two translations of each pair that depend on the step and the source; right tokens cost less."""
    translations, costs = [], []
    for source, target in zip(*without_specials(batch), strict=True):
        random = np.random.default_rng([step, *source])
        for _ in range(2):
            translations.append(random.integers(4, VOCABULARY, random.integers(1, 7)).tolist())
            right = sum(a == b for a, b in zip(translations[-1], target, strict=False))
            costs.append(1 - right / len(target))
    return Drawn.of(translations, torch.tensor(costs).view(-1, 2), batch.src.device)


class Recorder:
    """Hooks that count what the trainer asks for."""

    def __init__(self, bleus: list[float] | None = None, during: Callable[[], None] | None = None) -> None:
        self.bleus, self.during = bleus or [], during
        self.saved: list[str] = []
        self.modes: list[bool] = []

    def hooks(self) -> Hooks:
        return Hooks(
            quality=self._quality,
            save_model=self._save,
            draw=lambda events: None,
            translations=draw_at_random,
        )

    def _quality(self, network: Transformer) -> Quality:
        if self.during:
            self.during()
        return Quality(self.bleus.pop(0) if self.bleus else 1.0, "signature")

    def _save(self, path: Path, network: Transformer, state: object) -> None:
        self.saved.append(path.name)


def make_trainer(
    folder: Path,
    recorder: Recorder | None = None,
    *,
    model: ModelConfig = MODEL,
    vocabulary_hash: str = "",
    dtype: torch.dtype = torch.float32,
    train: Callable[[int], Split] = lambda epoch: TRAIN,
    ranks: Ranks = ALONE,
    **settings: object,
) -> Trainer:
    torch.manual_seed(1)
    config = TrainConfig.model_validate(
        {
            "epochs": 2,
            "batch_tokens": 200,
            "learning_rate": 3e-3,
            "warmup_steps": 5,
            "ema_decay": None,
            **settings,
        }
    )
    run = RunFolder(folder)
    folder.mkdir(exist_ok=True)
    return Trainer(
        Transformer(model, VOCABULARY, VOCABULARY).to(dtype),
        train,
        reversal_split(20, seed=1),
        config,
        seed=1,
        precision=dtype,
        run=run,
        hooks=(recorder or Recorder()).hooks(),
        vocabulary_hash=vocabulary_hash,
        ranks=ranks,
    )


def before_each_step(trainer: Trainer, action: Callable[[Work], None]) -> None:
    original = trainer.stepper.gradient

    def gradient(work: Work, step: int, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        action(work)
        return original(work, step, draw)

    trainer.stepper.gradient = gradient  # type: ignore[method-assign]


def send_in_step(trainer: Trainer, step: int, number: signal.Signals) -> None:
    """While step 1, 2, … is running."""

    def send(work: Work) -> None:
        if trainer.state.step + 1 == step:
            os.kill(os.getpid(), number)

    before_each_step(trainer, send)


def work_of(trainer: Trainer, rows: Rows) -> Work:
    parts = trainer.settings.accumulation
    return make_work(TRAIN, rows, ranks=trainer.ranks, parts=parts, device=trainer.device)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.network.named_parameters()}


def test_one_step_follows_the_gradient_of_the_mean_loss_per_real_token(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, clip_norm=None)
    batch = make_batch(TRAIN, np.arange(40))
    logits = trainer.network(batch.src, batch.src_keep, batch.tgt_in)
    reference = F.cross_entropy(
        logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    names, parameters = zip(*trainer.network.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(reference, parameters), strict=True))
    trainer.stepper.gradient(work_of(trainer, np.arange(40)), step=0)
    for name, parameter in trainer.network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_an_epoch_sees_every_pair_and_the_logged_loss_divides_by_real_tokens(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=2, log_every_steps=1, learning_rate=1e-12, label_smoothing=0.0)
    seen: list[int] = []
    before_each_step(trainer, lambda work: seen.append(work.tokens))
    trainer.fit()
    tokens = int((TRAIN.tgt.lengths + 1).sum())
    assert sum(seen) == 2 * tokens
    events = [e for e in read_events(trainer.run.metrics) if e["event"] == "step"]
    assert [e["step"] for e in events] == list(range(1, len(seen) + 1))
    assert all(0 < e["loss"] < 2 * math.log(VOCABULARY) for e in events)


def test_each_epoch_reads_its_own_pairs(tmp_path: Path) -> None:
    tokens = 0
    trainer = make_trainer(tmp_path, train=changing, epochs=3)

    def count(work: Work) -> None:
        nonlocal tokens
        tokens += work.tokens

    before_each_step(trainer, count)
    trainer.fit()
    assert tokens == sum(int((changing(epoch).tgt.lengths + 1).sum()) for epoch in range(3))


def test_training_learns(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=12, learning_rate=1e-2)
    trainer.fit()
    losses = [e["loss"] for e in read_events(trainer.run.metrics) if e["event"] == "validation"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.3


def test_dropout_is_on_in_training_again_after_a_validation(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=3)
    modes: list[bool] = []
    before_each_step(trainer, lambda work: modes.append(trainer.network.training))
    trainer.fit()
    assert modes
    assert all(modes)


def test_validation_leaves_no_gradient_and_does_not_change_the_weights(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before = weights(trainer)
    loss = trainer._validation_loss()
    assert loss > 0
    assert all(p.grad is None for p in trainer.network.parameters())
    torch.testing.assert_close(weights(trainer), before, rtol=0, atol=0)


def test_best_is_kept_by_bleu_and_last_always(tmp_path: Path) -> None:
    recorder = Recorder([10.0, 30.0, 20.0])
    trainer = make_trainer(tmp_path, recorder, epochs=3)
    trainer.fit()
    assert recorder.saved == ["last.safetensors", "best.safetensors"] * 2 + ["last.safetensors"]
    assert trainer.state.best_bleu == 30.0
    validations = [e for e in read_events(trainer.run.metrics) if e["event"] == "validation"]
    assert [e["best"] for e in validations] == [True, True, False]


def test_the_last_epochs_lower_the_risk_in_smaller_steps_at_a_rate_of_their_own(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        epochs=4,
        risk_epochs=2,
        risk_samples=2,
        risk_learning_rate=1e-3,
        batch_tokens=300,
        warmup_steps=2,
        schedule="linear",
        log_every_steps=1,
    )
    planned = trainer.total_steps
    drawn: list[bool] = []
    original = trainer.stepper.gradient

    def gradient(work: Work, step: int, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        drawn.append(draw is not None)
        positions = sum(part.batch.tgt_in.numel() for part in work.parts)
        assert positions <= (100 if draw else 300)
        return original(work, step, draw)

    trainer.stepper.gradient = gradient  # type: ignore[method-assign]
    trainer.fit()
    steps = [event for event in read_events(trainer.run.metrics) if event["event"] == "step"]
    assert len(drawn) == len(steps) == planned
    first = drawn.index(True)
    assert not any(drawn[:first])
    assert all(drawn[first:])
    assert planned - first > 2 * first
    rates = [event["learning_rate"] for event in steps]
    assert rates[first - 1] == pytest.approx(3e-3 / (first - 2 + 1)), "the schedule ends with likelihood"
    falling = np.linspace(1e-3, 0, planned - first, endpoint=False)
    assert rates[first:] == pytest.approx(falling.tolist(), rel=1e-6)


def test_the_rate_falls_to_the_end_of_epochs_that_differ_in_their_steps(tmp_path: Path) -> None:
    texts = [reversal_split(pairs, seed=1) for pairs in (60, 200, 120, 300)]
    settings: dict[str, object] = {
        "train": texts.__getitem__,
        "epochs": 4,
        "warmup_steps": 2,
        "log_every_steps": 1,
        "schedule": "linear",
    }
    whole = make_trainer(tmp_path / "whole", **settings)
    lengths = [len(whole.plan.batches(split, epoch)) for epoch, split in enumerate(texts)]
    assert len(set(lengths)) > 2, "the test needs epochs of several lengths"
    whole.fit()
    assert whole.total_steps == whole.state.step == sum(lengths)
    rates = [event["learning_rate"] for event in read_events(whole.run.metrics) if event["event"] == "step"]
    last = lengths[-1]
    left = 3e-3 / (sum(lengths) - 1)  # from the peak, after 2 steps, in equal parts
    assert rates[-last:] == pytest.approx([left * n for n in range(last, 0, -1)])
    part = make_trainer(tmp_path / "part", **settings)
    send_in_step(part, lengths[0] + 3, signal.SIGTERM)
    part.fit()
    rest = make_trainer(tmp_path / "part", **settings)
    rest.resume()
    rest.fit()
    again = [event["learning_rate"] for event in read_events(rest.run.metrics) if event["event"] == "step"]
    assert again == rates


def test_a_run_whose_last_epochs_lowered_the_risk_goes_on_for_as_many_steps_as_it_says(
    tmp_path: Path,
) -> None:
    settings = {"risk_epochs": 1, "risk_samples": 2, "batch_tokens": 300}
    make_trainer(tmp_path, epochs=3, **settings).fit()
    more = make_trainer(tmp_path, epochs=5, **settings)
    assert more.resume()
    planned = more.total_steps
    more.fit()
    assert more.state.step == planned
    steps = [event for event in read_events(more.run.metrics) if event["event"] == "step"]
    assert all(("cost" in event) == (event["epoch"] > 4 or 2 < event["epoch"] <= 3) for event in steps)
    assert all(0 <= event["cost"] <= 1 for event in steps if "cost" in event)


def test_until_the_risk_is_lowered_the_time_left_is_a_lower_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    monkeypatch.setattr(ProgressBar, "LINE_EVERY_S", 0.0)
    settings = {"epochs": 2, "risk_epochs": 1, "risk_samples": 2, "batch_tokens": 300, "log_every_steps": 1}
    make_trainer(tmp_path, **settings).fit()
    messages = [message for message in caplog.messages if message.endswith(" left")]
    bounds = [", at least " in message for message in messages]
    assert set(bounds) == {True, False}
    assert bounds == [", cost " not in message for message in messages]


def test_a_step_that_lowers_the_risk_follows_the_gradient_of_both_parts(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, clip_norm=None, risk_weight=3.0, dtype=torch.float64)
    rows, batch = np.arange(12), make_batch(TRAIN, np.arange(12))
    drawn = draw_at_random(trainer.network, batch, 7)
    network = trainer.network
    lengths = (batch.tgt_out != PAD).sum(1)
    logits = network(batch.src, batch.src_keep, batch.tgt_in)
    nll = F.cross_entropy(
        logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    twice = network(
        batch.src.repeat_interleave(2, 0), batch.src_keep.repeat_interleave(2, 0), drawn.tgt_in
    ).log_softmax(-1)
    real = drawn.tgt_out != PAD
    means = (twice.gather(-1, drawn.tgt_out[..., None])[..., 0] * real).sum(1) / real.sum(1)
    risks = (means.view(-1, 2).softmax(1) * drawn.costs).sum(1)
    reference = (nll + 3.0 * (risks * lengths).sum()) / lengths.sum()
    names, parameters = zip(*network.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(reference, parameters), strict=True))
    loss, _ = trainer.stepper.gradient(
        work_of(trainer, rows), 7, lambda batch, step: draw_at_random(network, batch, step)
    )
    torch.testing.assert_close(loss, nll.detach(), check_dtype=False)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_patience_ends_a_run_that_no_longer_gets_better(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Recorder([5.0, 4.0, 3.0, 2.0, 1.0]), epochs=50, patience=3)
    assert trainer.fit() is None
    assert trainer.state.epoch == 4
    assert trainer.finished


def test_max_steps_ends_a_run_in_the_middle_of_an_epoch_with_a_validation(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=50, max_steps=3)
    trainer.fit()
    assert trainer.state.step == 3
    assert trainer.finished
    assert [e["event"] for e in read_events(trainer.run.metrics)] == ["step", "validation", "time"]


def test_a_partial_batch_of_tiny_data_trains(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, batch_tokens=100_000, epochs=2)
    trainer.fit()
    assert trainer.state.step == 2
    assert all(e["loss"] > 0 for e in read_events(trainer.run.metrics) if e["event"] != "time")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_the_running_step_with_everything_saved(
    number: signal.Signals, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path)
    send_in_step(trainer, 4, number)
    assert trainer.fit() == number
    assert trainer.state.step == 4
    resumed = make_trainer(tmp_path)
    assert resumed.resume()
    assert resumed.state.step == 4
    torch.testing.assert_close(weights(resumed), weights(trainer), rtol=0, atol=0)


def test_a_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before_each_step(trainer, lambda work: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)] and None)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert trainer.state.step == 0
    assert not trainer.run.checkpoints.exists()


def changing(epoch: int) -> Split:
    """Other pairs in each epoch, of other lengths, as subword dropout gives them."""
    return reversal_split(100, seed=10 + epoch)


EVERYTHING = {
    "model": MODEL.model_copy(update={"dropout": 0.2, "attention_dropout": 0.1}),
    "train": changing,
    "epochs": 3,
    "batch_tokens": 130,
    "accumulation": 2,
    "ema_decay": 0.9,
    "r_drop": 0.5,
    "risk_epochs": 1,
    "risk_samples": 2,
    "average_checkpoints": 2,
    "log_every_steps": 1,
}
"""All that could make a run that goes on differ from one that was never stopped."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = make_trainer(tmp_path_factory.mktemp("unbroken"), **EVERYTHING)  # type: ignore[arg-type]
    trainer.fit()
    return trainer


@pytest.mark.slow
def test_a_run_stopped_after_any_step_goes_on_as_if_it_had_not_been(
    unbroken: Trainer, tmp_path: Path
) -> None:
    last = unbroken.state.step
    assert last > 12
    for step in range(1, last + 1):
        folder = tmp_path / str(step)
        stopped = make_trainer(folder, **EVERYTHING)  # type: ignore[arg-type]
        send_in_step(stopped, step, signal.SIGTERM)
        assert stopped.fit() == signal.SIGTERM
        assert stopped.state.step == step
        torch.manual_seed(99)
        resumed = make_trainer(folder, **EVERYTHING)  # type: ignore[arg-type]
        assert resumed.resume()
        assert resumed.fit() is None
        expect_the_same(resumed, unbroken)


def expect_the_same(trainer: Trainer, other: Trainer) -> None:
    torch.testing.assert_close(weights(trainer), weights(other), rtol=0, atol=0)
    assert trainer.stepper.average is not None
    assert other.stepper.average is not None
    torch.testing.assert_close(trainer.stepper.average.weights, other.stepper.average.weights, rtol=0, atol=0)
    states = [{**asdict(each.state), "elapsed_s": 0.0} for each in (trainer, other)]
    assert states[0] == states[1]
    told = [
        [
            {key: value for key, value in event.items() if not key.endswith("_s")}
            for event in read_events(each.run.metrics)
            if event["event"] != "time"
        ]
        for each in (trainer, other)
    ]
    assert told[0] == told[1]


def test_dropout_depends_on_seed_step_rank_and_part_and_on_nothing_else(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=MODEL.model_copy(update={"dropout": 0.5}), accumulation=2)
    work = work_of(trainer, np.arange(20))

    def loss(step: int, parts: Work = work) -> float:
        torch.rand(3)  # whatever else draws numbers has no say
        return float(trainer.stepper.gradient(parts, step)[0])

    assert loss(3) == loss(3)
    assert loss(3) != loss(4)
    twice = replace(work, parts=[work.parts[0], work.parts[0]])
    alone = replace(work, parts=[work.parts[0]])
    assert loss(3, twice) != 2 * loss(3, alone), "each part has its own"


@pytest.mark.parametrize("settings", [{"accumulation": 4}, {"accumulation": 16}])
def test_accumulation_changes_nothing_but_the_rounding(settings: dict[str, int], tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", dtype=torch.float64, batch_tokens=60)
    parts = make_trainer(tmp_path / "parts", dtype=torch.float64, batch_tokens=60, **settings)
    whole.fit()
    parts.fit()
    assert whole.state.step > 12
    torch.testing.assert_close(weights(parts), weights(whole), rtol=0, atol=1e-8)
    for mine, other in zip(read_events(parts.run.metrics), read_events(whole.run.metrics), strict=True):
        assert mine.get("loss", 0.0) == pytest.approx(other.get("loss", 0.0), abs=1e-8)


def test_of_the_parts_of_a_step_only_the_last_one_is_sent_to_the_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, accumulation=3)
    kept_here: list[bool] = []
    original = Objective.forward

    @contextmanager
    def no_sync(self: Ranks, module: torch.nn.Module) -> Iterator[None]:
        kept_here.append(True)
        yield
        kept_here.append(False)

    def forward(self: Objective, batch: Batch, drawn: Drawn | None) -> tuple[Tensor, Tensor]:
        calls.append(bool(kept_here and kept_here[-1]))
        return original(self, batch, drawn)

    calls: list[bool] = []
    monkeypatch.setattr(Ranks, "no_sync", no_sync)
    monkeypatch.setattr(Objective, "forward", forward)
    trainer.stepper.gradient(work_of(trainer, np.arange(9)), 0)
    assert calls == [True, True, False]


def test_the_objective_of_two_passes_is_their_mean_and_the_divergence_between_them(tmp_path: Path) -> None:
    dropping = MODEL.model_copy(update={"dropout": 0.3})
    trainer = make_trainer(tmp_path, model=dropping, dtype=torch.float64, r_drop=2.0, label_smoothing=0.1)
    batch = make_batch(TRAIN, np.arange(7))
    torch.manual_seed(5)
    objective, told = Objective(trainer.network, trainer.settings, torch.float64)(batch)
    torch.manual_seed(5)
    src, keep, tgt_in = (ids.repeat(2, 1) for ids in (batch.src, batch.src_keep, batch.tgt_in))
    first, second = trainer.network(src, keep, tgt_in).chunk(2)
    assert not torch.equal(first, second)
    entropies = [
        F.cross_entropy(logits.mT, batch.tgt_out, ignore_index=PAD, label_smoothing=0.1, reduction="sum")
        for logits in (first, second)
    ]
    p, q = (logits[batch.tgt_out != PAD].log_softmax(-1) for logits in (first, second))
    divergence = (p.exp() * (p - q)).sum() / 2 + (q.exp() * (q - p)).sum() / 2
    torch.testing.assert_close(told, sum(entropies) / 2)
    torch.testing.assert_close(objective, sum(entropies) / 2 + 2.0 * divergence)


# ---------------------------------------------------------------- what is no number, and what does not fit


def spoil(trainer: Trainer, steps: set[int], value: float = math.nan) -> None:
    """Let the gradients of these steps, 1, 2, …, be no numbers."""
    original = trainer.stepper.gradient

    def gradient(work: Work, step: int, draw: Draw | None = None) -> tuple[Tensor, Tensor]:
        loss, norm = original(work, step, draw)
        if step + 1 in steps:
            for parameter in trainer.network.parameters():
                parameter.grad = torch.full_like(parameter, value)
            return loss, torch.tensor(value)
        return loss, norm

    trainer.stepper.gradient = gradient  # type: ignore[method-assign]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_no_number_changes_nothing_and_is_counted(
    value: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, ema_decay=0.9, log_every_steps=1)
    spoil(trainer, {2}, value)
    seen: list[dict[str, object]] = []
    before_each_step(trainer, lambda work: seen.append(copy.deepcopy(everything(trainer))))
    trainer.fit()
    torch.testing.assert_close(seen[2], seen[1], rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0)
    assert (trainer.state.step, trainer.state.skipped, trainer.state.skipped_in_row) == (3, 1, 0)
    events = [e for e in read_events(trainer.run.metrics) if e["event"] == "step"]
    assert [(e["step"], e.get("skipped")) for e in events] == [(1, None), (3, 1)]
    assert caplog.text.count("is skipped") == 1


def everything(trainer: Trainer) -> dict[str, object]:
    assert trainer.stepper.average is not None
    state = trainer.stepper.optimizer.state_dict()["state"]
    return {"weights": weights(trainer), "optimizer": state, "average": trainer.stepper.average.weights}


def test_too_many_such_steps_in_a_row_end_the_run_and_leave_what_was_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"epochs": 9, "batch_tokens": 60, "max_skipped_steps": 4}
    trainer = make_trainer(tmp_path, **settings)
    epoch = len(trainer.plan.batches(TRAIN, 0))
    spoil(trainer, {2, 3, 4, 5, *range(epoch + 2, 1000)})  # four in a row are borne
    with pytest.raises(
        RunError, match=r"5 steps in a row.*the loss is \d.*norm of the gradient nan"
    ) as raised:
        trainer.fit()
    assert trainer.state.step == epoch + 5, "steps that were taken end a row"
    assert "train.learning_rate" in str(raised.value.hint)
    assert caplog.text.count("is skipped") == 3
    resumed = make_trainer(tmp_path, **settings)
    assert resumed.resume()
    assert (resumed.state.step, resumed.state.skipped) == (epoch, 4)
    assert all(tensor.isfinite().all() for tensor in weights(resumed).values())


def test_no_step_is_skipped_where_none_is_allowed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_skipped_steps=0)
    spoil(trainer, {1})
    with pytest.raises(RunError, match="1 steps in a row"):
        trainer.fit()


@pytest.mark.parametrize(
    "fault",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_names_the_batch_and_what_to_lower(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, accumulation=2)
    work = work_of(trainer, np.arange(40))

    def fail(*arguments: object) -> None:
        raise fault

    monkeypatch.setattr(trainer.network, "decode", fail)
    with pytest.raises(MachineError) as raised:
        trainer.stepper.gradient(work, 0)
    batch = work.parts[0].batch
    assert f"20 pairs at once, {batch.src.shape[1]} source and {batch.tgt_in.shape[1]} target" in str(
        raised.value
    )
    assert raised.value.hint == "lower train.batch_tokens (now 200) or raise train.accumulation (now 2)"


def test_another_fault_in_a_step_is_not_taken_for_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)

    def fail(*arguments: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(trainer.network, "decode", fail)
    with pytest.raises(RuntimeError, match="multiplied"):
        trainer.fit()


# ---------------------------------------------------------------- the end of a run, and where it went


def test_at_the_end_the_means_of_checkpoints_are_tried_once_and_the_best_is_kept(tmp_path: Path) -> None:
    held: list[dict[str, Tensor]] = []
    settings = {"epochs": 4, "average_checkpoints": 3, "learning_rate": 1e-2}
    recorder = Recorder([1.0, 4.0, 3.0, 2.0, 5.0, 4.0])
    recorder.during = lambda: held.append(weights(trainer))
    trainer = make_trainer(tmp_path, recorder, **settings)
    trainer.fit()
    events = [e for e in read_events(trainer.run.metrics) if e["event"] == "validation"]
    assert [e.get("weights") for e in events] == [None] * 4 + [
        "mean of the last 3",
        "mean of 3 around the best",
    ]
    assert [e["best"] for e in events] == [True, True, False, False, True, False]
    for mean, parts in ((held[4], held[1:4]), (held[5], held[0:3])):
        expected = {name: torch.stack([part[name] for part in parts]).mean(0) for name in mean}
        torch.testing.assert_close(mean, expected)
    assert recorder.saved[-1] == "best.safetensors"
    assert trainer.state.best_bleu == 5.0
    torch.testing.assert_close(weights(trainer), held[3], rtol=0, atol=0)  # and training could go on

    again = make_trainer(tmp_path, Recorder(), **settings)
    assert again.resume()
    assert again.finished


def test_a_sitting_tells_where_its_time_went(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.fit()
    event = read_events(trainer.run.metrics)[-1]
    parts = {key: value for key, value in event.items() if key.endswith("_s")}
    assert parts.keys() == {"data_s", "step_s", "save_s", "validate_s", "tracking_s", "draw_s"}
    assert 0 < sum(parts.values()) <= trainer.state.elapsed_s + 0.1


@pytest.mark.parametrize(("share", "pictures"), [(1.0, 6), (0.0, 2)])
def test_curves_that_have_had_their_share_of_the_time_wait_for_the_end(
    share: float, pictures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.training.trainer.DRAWING_SHARE", share)
    drawn: list[int] = []
    trainer = make_trainer(tmp_path, epochs=6)

    def draw(events: list[Event]) -> None:
        drawn.append(sum(event["event"] == "validation" for event in events))

    trainer.hooks = replace(trainer.hooks, draw=draw)
    trainer.fit()
    assert len(drawn) == pictures
    assert (drawn[0], drawn[-1]) == (1, 6)


def test_a_fault_in_a_validation_loses_no_step_and_it_is_made_up_for(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    broken = make_trainer(tmp_path, Recorder(during=fail), epochs=2)
    with pytest.raises(OSError, match="gone"):
        broken.fit()
    resumed = make_trainer(tmp_path, epochs=2)
    assert resumed.resume()
    assert resumed.state.step == broken.state.step > 0
    resumed.fit()
    events = [e for e in read_events(resumed.run.metrics) if e["event"] == "validation"]
    assert [e["epoch"] for e in events] == [1, 2]


def test_a_signal_at_the_end_of_an_epoch_does_not_skip_its_validation(tmp_path: Path) -> None:
    stopped = make_trainer(tmp_path, epochs=2)
    send_in_step(stopped, len(stopped.plan.batches(TRAIN, 0)), signal.SIGTERM)
    assert stopped.fit() == signal.SIGTERM
    resumed = make_trainer(tmp_path, epochs=2)
    resumed.resume()
    resumed.fit()
    events = [e for e in read_events(resumed.run.metrics) if e["event"] == "validation"]
    assert [e["epoch"] for e in events] == [1, 2]


def test_a_run_that_ran_out_of_patience_stays_finished(tmp_path: Path) -> None:
    make_trainer(tmp_path, Recorder([5.0, 4.0]), epochs=50, patience=1).fit()
    again = make_trainer(tmp_path, epochs=50, patience=1)
    again.resume()
    assert again.finished


def test_ids_that_mean_something_else_now_are_not_trained_on(tmp_path: Path) -> None:
    make_trainer(tmp_path).fit()
    other = make_trainer(tmp_path, vocabulary_hash="of another text")
    with pytest.raises(CheckpointError, match="changed"):
        other.resume()


def test_a_finished_run_is_finished_until_it_is_given_more_epochs(tmp_path: Path) -> None:
    make_trainer(tmp_path, epochs=2).fit()
    again = make_trainer(tmp_path, epochs=2)
    assert again.resume()
    assert again.finished
    more = make_trainer(tmp_path, epochs=3)
    assert more.resume()
    more.fit()
    assert more.state.epoch == 3


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    make_trainer(tmp_path, epochs=1).fit()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.safetensors")}
    trainer = make_trainer(tmp_path, epochs=5, max_skipped_steps=0)
    trainer.resume()
    with torch.no_grad():
        trainer.network.decoder[0].feed_forward.expand.weight.fill_(math.nan)  # type: ignore[union-attr,operator]
    with pytest.raises(RunError, match="nan"):
        trainer.fit()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.safetensors")} == before


def test_the_averaged_weights_are_validated_and_the_plain_ones_trained_on(tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []
    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder, ema_decay=0.5, epochs=1)
    recorder.during = lambda: seen.append(weights(trainer))
    trainer.fit()
    assert trainer.stepper.average is not None
    torch.testing.assert_close(seen[0], dict(trainer.stepper.average.weights), rtol=0, atol=0)
    name = "tgt_embedding.tokens.weight"
    assert not torch.equal(seen[0][name], weights(trainer)[name])


def test_an_average_without_memory_is_the_weights_after_the_last_step(tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []
    recorder = Recorder()
    trainer = make_trainer(tmp_path, recorder, ema_decay=0.0, epochs=1)
    recorder.during = lambda: seen.append(weights(trainer))
    trainer.fit()
    torch.testing.assert_close(seen[0], weights(trainer))


def test_a_validation_made_up_for_is_noted_in_its_own_checkpoint_and_not_in_a_damaged_later_one(
    tmp_path: Path,
) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        make_trainer(tmp_path, Recorder(during=fail), epochs=1).fit()
    (own,) = tmp_path.glob("checkpoints/step-*")
    damaged = Path(shutil.copytree(own, own.with_name("step-99999999")))
    (damaged / "state.json").write_text("{")
    resumed = make_trainer(tmp_path, epochs=1)
    resumed.resume()
    resumed.fit()
    assert (damaged / "state.json").read_text() == "{"
    assert json.loads((own / "state.json").read_text())["state"]["validation_due"] is False
