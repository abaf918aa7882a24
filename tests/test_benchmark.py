"""scripts/benchmark.py: what it counts, and that a quick run measures all that it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from nmt.config import ModelConfig
from nmt.data.dataset import Ragged, Split
from nmt.model.transformer import Transformer
from nmt.modelfile import save_model

if TYPE_CHECKING:
    from nmt.config import Config
    from nmt.data.dataset import PreparedData
    from nmt.modelfile import Model

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SMALL = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=4, heads=2, feed_forward=8)


@pytest.fixture
def bench(
    script: Any, tiny_config: Config, tiny_prepared: PreparedData, tiny_model_path: Path, tmp_path: Path
) -> Any:
    """A quick benchmark of the tiny model."""
    return script("benchmarks.base").Bench(
        config=tiny_config,
        data=tiny_prepared,
        device=torch.device("cpu"),
        model=tiny_model_path,
        trained=True,
        steps=2,
        rounds=1,
        sentences=30,
        quick=True,
        work=tmp_path / "work",
        folder=tmp_path,
    )


def test_the_operations_of_a_step_are_those_counted_by_hand(script: Any) -> None:
    network = Transformer(SMALL, 10, 10)
    split = Split("train", Ragged.of([[4, 5], [4]], 10), Ragged.of([[4], [4]], 10))
    # 3 source and 2 target positions; the matrices of an attention have 16 weights each, the feed-forward 64
    source = 3 * (4 * 16 + 64 + 2 * 16)  # the encoder, and keys and values of its output
    target = 2 * (4 * 16 + 2 * 16 + 64 + 4 * 10)  # self-attention, queries and output, feed-forward, logits
    pairs = (4 + 4) * (3 * 3 + 2 * 2 + 2 * 3)
    counted = script("benchmarks.training").training_flops(network, split, np.array([0]))
    assert counted == 3 * 2 * (source + target + pairs) == 6192


def test_the_parts_of_a_step_are_all_timed(script: Any, bench: Any) -> None:
    parts = script("benchmarks.training").Training(bench, torch.float32).parts(bench.timed_plan(2))
    assert list(parts) == ["data", "forward", "loss", "backward", "optimizer"]
    assert all(spent > 0 for spent in parts.values())


def test_the_tutorials_network_learns(script: Any, bench: Any) -> None:
    tutorial = script("benchmarks.tutorial").Tutorial(bench, torch.float32)
    before = tutorial.network.generator.weight.clone()
    steps = tutorial.steps(bench.timed_plan(1))
    assert len(steps.seconds) == len(steps.tokens) > 0
    assert not torch.equal(tutorial.network.generator.weight, before)


def test_words_for_joeynmt_become_the_same_ids_again(script: Any, tmp_path: Path) -> None:
    joeynmt = script("benchmarks.joeynmt")
    joeynmt.write_words(tmp_path / "words", [[4, 0, 17]])
    words = (tmp_path / "words").read_text("utf-8").split()
    assert joeynmt.as_hypothesis([*words, "</s>"]).ids == (4, 0, 17)


def test_ctranslate2_and_nmt_race_with_the_same_weights(script: Any, bench: Any) -> None:
    pytest.importorskip("ctranslate2")
    section = script("benchmarks.ctranslate2").ctranslate2_section(bench)
    assert section.figures["nmt, float32, greedy, together: sentences/s"] > 0
    assert section.ratios["beam 5, one by one: speed of nmt, float32 / CTranslate2, int8"] > 0
    scores = [section.figures[f"{name}, float32, greedy: BLEU"] for name in ("nmt", "CTranslate2")]
    assert scores[0] == pytest.approx(scores[1], abs=0.2)


@pytest.mark.slow
def test_a_quick_run_measures_and_saves_every_part(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), "--config", "smoke.yaml", "--quick"]
    environ = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
    answer = subprocess.run(
        [*command, "--out", "made/here.json"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        encoding="utf-8",
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads((tmp_path / "made" / "here.json").read_text("utf-8"))
    assert list(report) == ["machine", "matmul", "training", "decoding", "start", "prepare"]
    assert "untrained" in report["machine"]["decoded with"]
    training = report["training"]["ratios"]
    assert 0 < next(share for name, share in training.items() if name.endswith("matmul peak")) < 1
    times = [share for name, share in training.items() if name.startswith("share of time")]
    assert sum(times) == pytest.approx(1)
    assert report["decoding"]["figures"]["greedy, batch 16: sentences/s"] > 0
    assert report["decoding"]["figures"]["beam 5: median ms of one sentence"] > 0
    assert report["start"]["figures"]["nmt translate, peak MiB"] > 0
    assert report["prepare"]["figures"]["pairs/s"] > 0
    assert answer.stdout.index("RATIOS") < answer.stdout.index("ABSOLUTE FIGURES")


def test_a_model_of_other_data_is_refused(
    script: Any,
    tiny_model: Model,
    tiny_prepared: PreparedData,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_model(tmp_path / "other.safetensors", replace(tiny_model, provenance={}))
    words = ["--model", str(tmp_path / "other.safetensors"), "--only", "matmul"]
    words += ["-s", f"data.source={tiny_prepared.folder}", "--out", str(tmp_path / "out.json")]
    with pytest.raises(SystemExit, match=r"^2$"):
        script("benchmark").main(words)
    assert "was not trained on" in capsys.readouterr().err
