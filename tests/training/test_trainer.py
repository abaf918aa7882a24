"""The loop: every token counted once, learning, keeping the best, stopping, going on."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.config import ModelConfig, TrainConfig
from nmt.data.batching import make_batch
from nmt.data.dataset import Ragged, Split
from nmt.data.vocabulary import PAD
from nmt.errors import CheckpointError, RunError
from nmt.model.transformer import Transformer
from nmt.training.tracking import read_events
from nmt.training.trainer import Hooks, Quality, RunFolder, Trainer

VOCABULARY = 30
MODEL = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, heads=4, feed_forward=64, dropout=0.0)


def reversal_split(count: int, seed: int) -> Split:
    """The target is the source reversed: easy, and impossible without looking."""
    random = np.random.default_rng(seed)
    sources = [random.integers(4, VOCABULARY, random.integers(2, 7)).tolist() for _ in range(count)]
    return Split("train", Ragged.of(sources, VOCABULARY), Ragged.of([s[::-1] for s in sources], VOCABULARY))


class Recorder:
    """Hooks that count what the trainer asks for."""

    def __init__(self, bleus: list[float] | None = None, during: Callable[[], None] | None = None) -> None:
        self.bleus, self.during = bleus or [], during
        self.saved: list[str] = []
        self.modes: list[bool] = []

    def hooks(self) -> Hooks:
        return Hooks(quality=self._quality, save_model=self._save, draw=lambda events: None)

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
        Transformer(model, VOCABULARY, VOCABULARY),
        reversal_split(100, seed=0),
        reversal_split(20, seed=1),
        config,
        seed=1,
        precision=torch.float32,
        run=run,
        hooks=(recorder or Recorder()).hooks(),
        vocabulary_hash=vocabulary_hash,
    )


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.network.named_parameters()}


def test_one_step_follows_the_gradient_of_the_mean_loss_per_real_token(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, clip_norm=None)
    batch = make_batch(trainer.train, np.arange(40))
    logits = trainer.network(batch.src, batch.src_keep, batch.tgt_in)
    reference = F.cross_entropy(
        logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    names, parameters = zip(*trainer.network.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(reference, parameters), strict=True))
    trainer._step(batch, rate=1e-9)
    for name, parameter in trainer.network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_an_epoch_sees_every_pair_and_the_logged_loss_divides_by_real_tokens(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=2, log_every_steps=1, learning_rate=1e-12, label_smoothing=0.0)
    seen: list[int] = []
    original = trainer._step
    trainer._step = lambda batch, rate: (seen.append(batch.num_tokens), original(batch, rate))[1]  # type: ignore[method-assign]
    trainer.fit()
    tokens = int((trainer.train.tgt.lengths + 1).sum())
    assert sum(seen) == 2 * tokens
    events = [e for e in read_events(trainer.run.metrics) if e["event"] == "step"]
    assert [e["step"] for e in events] == list(range(1, len(seen) + 1))
    assert all(0 < e["loss"] < 2 * math.log(VOCABULARY) for e in events)


def test_training_learns(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=12, learning_rate=1e-2)
    trainer.fit()
    losses = [e["loss"] for e in read_events(trainer.run.metrics) if e["event"] == "validation"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.3


def test_dropout_is_on_in_training_again_after_a_validation(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=3)
    modes: list[bool] = []
    original = trainer._step
    trainer._step = lambda batch, rate: (modes.append(trainer.network.training), original(batch, rate))[1]  # type: ignore[method-assign]
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
    assert [e["event"] for e in read_events(trainer.run.metrics)] == ["step", "validation"]


def test_a_partial_batch_of_tiny_data_trains(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, batch_tokens=100_000, epochs=2)
    trainer.fit()
    assert trainer.state.step == 2
    assert all(e["loss"] > 0 for e in read_events(trainer.run.metrics))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_everything_saved_and_it_goes_on_to_the_same_weights(
    number: signal.Signals, tmp_path: Path
) -> None:
    model = MODEL.model_copy(update={"dropout": 0.2})
    whole = make_trainer(tmp_path / "whole", model=model, ema_decay=0.9)
    whole.fit()

    broken = make_trainer(tmp_path / "broken", model=model, ema_decay=0.9)
    original = broken._step

    def step(batch: object, rate: float) -> object:
        if broken.state.step == 3:
            os.kill(os.getpid(), number)
        return original(batch, rate)  # type: ignore[arg-type]

    broken._step = step  # type: ignore[method-assign,assignment]
    assert broken.fit() == number
    assert broken.state.step == 4

    resumed = make_trainer(tmp_path / "broken", model=model, ema_decay=0.9)
    torch.manual_seed(99)
    assert resumed.resume()
    assert resumed.fit() is None
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)
    steps = [e["step"] for e in read_events(resumed.run.metrics) if e["event"] == "validation"]
    assert steps == [e["step"] for e in read_events(whole.run.metrics) if e["event"] == "validation"]


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
    last_step = len(stopped._plan(0))
    original = stopped._step

    def step(batch: object, rate: float) -> object:
        if stopped.state.step == last_step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(batch, rate)  # type: ignore[arg-type]

    stopped._step = step  # type: ignore[method-assign,assignment]
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


def test_an_infinite_gradient_with_a_finite_loss_is_not_saved(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=1)
    original = trainer._step
    trainer._step = lambda batch, rate: (original(batch, rate)[0], torch.tensor(math.inf))  # type: ignore[method-assign]
    with pytest.raises(RunError, match="norm of the gradient inf"):
        trainer.fit()
    assert not list(tmp_path.rglob("*.safetensors"))


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
    trainer = make_trainer(tmp_path, epochs=5)
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
    assert trainer.average is not None
    torch.testing.assert_close(seen[0], dict(trainer.average.weights), rtol=0, atol=0)
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
    assert json.loads((own / "state.json").read_text())["validation_due"] is False
