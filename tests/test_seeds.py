"""The four systems that nmt grew from: each config trains, in full size and in small, and learns 20 pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nmt.config import Config, load_config
from nmt.data.corpus import Pair
from nmt.data.dataset import PreparedData
from nmt.model.transformer import Transformer
from nmt.runtime import ALONE
from nmt.train import train
from nmt.training.step import Stepper, make_work
from nmt.translate import Translator

SEEDS = ("postnorm-shared", "bert-encoder", "prenorm-annotated", "tutorial")


def write_split(folder: Path, name: str, pairs: list[Pair]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.de").write_text("".join(f"{pair.source}\n" for pair in pairs), "utf-8")
    (folder / f"{name}.en").write_text("".join(f"{pair.target}\n" for pair in pairs), "utf-8")


def small_text(folder: Path, pairs: list[Pair]) -> Path:
    """A folder in which the pairs are both what is learned and what is validated."""
    write_split(folder, "train", pairs)
    write_split(folder, "val", pairs)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_in_full_size_learns_in_its_first_steps(seed: str, tiny_prepared: PreparedData) -> None:
    config, split = load_config(f"seeds/{seed}.yaml"), tiny_prepared.split("train")
    torch.manual_seed(1)
    size = len(tiny_prepared.src_vocabulary)
    network = Transformer(config.model, size, size)
    stepper = Stepper(network, config.train, seed=1, precision=torch.float32, ranks=ALONE)
    work = make_work(split, np.arange(8), ranks=ALONE, parts=1, device=torch.device("cpu"))
    losses = []
    for step in range(3):
        loss, _ = stepper.gradient(work, step)
        losses.append(loss.item() / work.tokens)
        stepper.apply(step + 1, 1e-4)
    assert losses[0] > losses[2] > 0.0, losses


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_in_small_learns_20_pairs_and_translates_them_back(
    seed: str, caption_pairs: dict[str, list[Pair]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = caption_pairs["train"][:20]
    text = small_text(tmp_path / "text", pairs)
    result = train(_without_noise(load_config(f"seeds/{seed}-smoke.yaml", source=str(text))))
    translator = Translator.load(result.model, device="cpu")
    found = [translation.text for translation in translator.translate([pair.source for pair in pairs])]
    right = sum(text == pair.target for text, pair in zip(found, pairs, strict=True))
    assert right >= 19, [(f, p.target) for f, p in zip(found, pairs, strict=True) if f != p.target]
    assert len(set(found)) >= 19


def _without_noise(config: Config) -> Config:
    """The config for 20 pairs: no dropout, no smoothing, one batch an epoch, one validation at the end."""
    rates = {key: 0.0 for key in ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout")}
    steps = 120
    return config.replace(
        device="cpu",
        vocabulary=config.vocabulary.model_copy(update={"size": 300, "min_freq": 1}),
        model=config.model.model_copy(update=rates),
        train=config.train.model_copy(
            update={
                "epochs": steps,
                "validate_every_epochs": steps,
                "learning_rate": 5e-3,
                "clip_norm": 1.0,
                "warmup_steps": 20,
                "schedule": "linear",
                "label_smoothing": 0.0,
                "ema_decay": None,
            }
        ),
    )
