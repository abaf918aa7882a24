"""Small things that several test files share, made once a session: captions, their prepared data, a model."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # what a fixture needs it imports itself, so that light tests stay light
    from nmt.config import Config
    from nmt.data.corpus import Pair
    from nmt.data.dataset import PreparedData
    from nmt.modelfile import Model

# Threads that wait without spinning: small models stay quick where other work runs beside the tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

TINY = {"train": 200, "val": 20, "test": 30}
"""Pairs of each tiny split."""


@pytest.fixture(scope="session")
def caption_pairs() -> dict[str, list[Pair]]:
    """The whole caption corpus, by split."""
    from nmt.data import captions

    return captions.generate()


@pytest.fixture(scope="session")
def tiny_folder(caption_pairs: dict[str, list[Pair]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of parallel text: the shortest captions of each split as NAME.de and NAME.en."""
    folder = tmp_path_factory.mktemp("captions")
    for split, count in TINY.items():
        pairs = sorted(caption_pairs[split], key=lambda pair: len(pair.source))[:count]
        (folder / f"{split}.de").write_bytes("".join(f"{pair.source}\n" for pair in pairs).encode())
        (folder / f"{split}.en").write_bytes("".join(f"{pair.target}\n" for pair in pairs).encode())
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_folder: Path) -> Config:
    """A config for `tiny_folder` and a model that is built in no time."""
    from nmt.config import Config, DataConfig, DecodeConfig, ModelConfig, VocabularyConfig

    return Config(
        name="tiny",
        device="cpu",
        data=DataConfig(source=str(tiny_folder)),
        vocabulary=VocabularyConfig(size=300),
        model=ModelConfig(
            encoder_layers=1, decoder_layers=1, d_model=48, heads=4, feed_forward=96, dropout=0.0
        ),
        decode=DecodeConfig(max_source_tokens=100),
    )


@pytest.fixture(scope="session")
def tiny_prepared(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """`tiny_folder`, prepared."""
    from nmt.prepare import prepare

    return prepare(tiny_config, out=tmp_path_factory.mktemp("prepared") / "tiny").data


@pytest.fixture(scope="session")
def tiny_model(tiny_config: Config, tiny_prepared: PreparedData) -> Model:
    """A model trained on `tiny_prepared` for a second or two: it knows some words, and where to stop."""
    import numpy as np
    import torch

    from nmt.data.batching import make_batch
    from nmt.data.vocabulary import PAD
    from nmt.model.transformer import Transformer
    from nmt.modelfile import Model

    split, steps, rate = tiny_prepared.split("train"), 80, 1.5e-2
    order = np.argsort(split.tgt.lengths, kind="stable")
    batches = [make_batch(split, rows) for rows in np.array_split(order, 3)]
    src, tgt = tiny_prepared.src_vocabulary, tiny_prepared.tgt_vocabulary
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = Transformer(tiny_config.model, len(src), len(tgt))
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 20, 1 - step / steps)
        batch = batches[step % len(batches)]
        logits = network(batch.src, batch.src_keep, batch.tgt_in)
        loss = torch.nn.functional.cross_entropy(logits.mT, batch.tgt_out, ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    provenance = {
        "versions": dict(tiny_prepared.manifest.versions),
        "vocabulary_hash": tiny_prepared.vocabulary_hash,
    }
    return Model(None, tiny_config, network.eval(), src, tgt, provenance)


@pytest.fixture(scope="session")
def tiny_model_path(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_model` as a file in a run folder."""
    from nmt.modelfile import save_model

    path = tmp_path_factory.mktemp("run") / "best.safetensors"
    save_model(path, tiny_model)
    return path


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports one of the scripts, or a part of one."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module
