"""Several processes that train together: as one alone would, ending together, and speaking with one voice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from nmt.config import Config
from nmt.data.dataset import Ragged
from nmt.evaluate import evaluate_splits, score_ids
from nmt.modelfile import load_model
from nmt.training.tracking import read_events
from tests.training.test_trainer import make_trainer, reversal_split, send_in_step, weights

if TYPE_CHECKING:
    from nmt.data.dataset import PreparedData
    from nmt.modelfile import Model

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 120.0

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


@dataclass
class Ended:
    code: int
    out: str
    err: str


def run_ranks(world: int, code: str, *arguments: str | Path) -> list[Ended]:
    """Run Python code in so many processes as torchrun tells of each other; how each ended, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = ENVIRONMENT | {name: str(value) for name, value in place.items()}
        processes.append(start([sys.executable, "-c", code, *map(str, arguments)], environment))
    try:
        return [wait_for(process) for process in processes]
    finally:
        for process in processes:
            process.kill()


def start(command: Sequence[str], environment: dict[str, str] = ENVIRONMENT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def wait_for(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=WAIT_S)
    return Ended(process.returncode, out, err)


def torchrun(world: int, *arguments: str | Path) -> subprocess.Popen[str]:
    """`torchrun … -m nmt train …`"""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return start([*launcher, "-m", "nmt", "train", *map(str, arguments)])


# ---------------------------------------------------------------- two ranks do what one does

STEPS = """
import json, os, signal, sys
from pathlib import Path
import torch
from nmt.runtime import joined_ranks
from tests.test_distributed import FIFTY, report
from tests.training.test_trainer import before_each_step, make_trainer

folder = Path(sys.argv[1])
with joined_ranks() as ranks:
    told = {}
    for name, settings in FIFTY.items():
        trainer = make_trainer(folder / name, dtype=torch.float64, ranks=ranks, **settings)
        trainer.fit()
        told[name] = report(trainer)

    make_trainer(folder / "single", ranks=ranks, **FIFTY["plain"]).fit()

    trainer = make_trainer(folder / "signalled", ranks=ranks, epochs=9)
    def send(work):
        if trainer.state.step == 2 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
    before_each_step(trainer, send)
    told["signalled"] = {"signal": trainer.fit(), "step": trainer.state.step}

    trainer = make_trainer(folder / "spoilt", ranks=ranks, max_steps=3)
    original = trainer.stepper.gradient
    def gradient(work, step, draw=None):
        loss, norm = original(work, step, draw)
        return (loss * float("nan") if step == 1 and ranks.rank == 1 else loss), norm
    trainer.stepper.gradient = gradient
    trainer.fit()
    told["spoilt"] = {"skipped": trainer.state.skipped, **report(trainer)}

    resumed = make_trainer(folder / "alone", ranks=ranks, dtype=torch.float64, **FIFTY["plain"])
    resumed.resume()
    resumed.fit()
    told["alone"] = report(resumed)
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(told))
"""

FIFTY: dict[str, dict[str, Any]] = {
    "plain": {"max_steps": 50, "epochs": 50, "batch_tokens": 60, "ema_decay": 0.9, "log_every_steps": 1},
    "accumulated": {
        "max_steps": 50,
        "epochs": 50,
        "batch_sentences": 7,
        "accumulation": 3,
        "log_every_steps": 1,
    },
    "risk": {
        "max_steps": 50,
        "epochs": 3,
        "risk_epochs": 2,
        "risk_samples": 2,
        "batch_tokens": 60,
        "log_every_steps": 1,
    },
}
"""Every kind of dropout off; in the second a step has 7 rows or fewer for 2 x 3 shares."""


def report(trainer: Any) -> dict[str, Any]:
    values = [value for weight in weights(trainer).values() for value in weight.flatten().tolist()]
    return {"step": trainer.state.step, "weights": values, "best_loss": trainer.state.best_loss}


def losses(folder: Path) -> list[tuple[str, float]]:
    return [(e["event"], e["loss"]) for e in read_events(folder / "metrics.jsonl") if e["event"] != "time"]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    stopped = make_trainer(folder / "alone", dtype=torch.float64, **FIFTY["plain"])
    send_in_step(stopped, 20, signal.SIGTERM)
    stopped.fit()
    ended = run_ranks(2, STEPS, folder)
    assert [each.code for each in ended] == [0, 0], "\n".join(each.err for each in ended)
    assert not ended[1].err, "rank 0 alone speaks"
    return folder


def told(folder: Path, rank: int) -> dict[str, Any]:
    return dict(json.loads((folder / f"rank{rank}.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("name", FIFTY)
def test_two_ranks_do_what_one_does_with_the_same_global_batch(
    name: str, two_ranks: Path, tmp_path: Path
) -> None:
    alone = make_trainer(tmp_path, dtype=torch.float64, **FIFTY[name])
    alone.fit()
    expected = report(alone)
    for rank in (0, 1):
        found = told(two_ranks, rank)[name]
        assert found["step"] == expected["step"] == 50
        assert found["weights"] == pytest.approx(expected["weights"], abs=1e-8, rel=0)
        assert found["best_loss"] == pytest.approx(expected["best_loss"], abs=1e-8)
    mine, other = losses(two_ranks / name), losses(tmp_path)
    assert [event for event, _ in mine] == [event for event, _ in other]
    assert [loss for _, loss in mine] == pytest.approx([loss for _, loss in other], abs=1e-8, rel=0)


@pytest.mark.slow
def test_in_single_precision_two_ranks_have_the_losses_of_one(two_ranks: Path, tmp_path: Path) -> None:
    # the weights need not agree: Adam magnifies the rounding of gradients that are zero but for it
    make_trainer(tmp_path, **FIFTY["plain"]).fit()
    mine, other = losses(two_ranks / "single"), losses(tmp_path)
    assert [event for event, _ in mine] == [event for event, _ in other]
    assert [loss for _, loss in mine] == pytest.approx([loss for _, loss in other], abs=1e-4, rel=0)


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_with_two(two_ranks: Path) -> None:
    found = told(two_ranks, 0)
    assert found["alone"]["step"] == 50
    assert found["alone"]["weights"] == pytest.approx(found["plain"]["weights"], abs=1e-8, rel=0)


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_after_the_same_step(two_ranks: Path) -> None:
    assert told(two_ranks, 0)["signalled"] == {"signal": signal.SIGTERM, "step": 3}
    assert told(two_ranks, 1)["signalled"] == {"signal": signal.SIGTERM, "step": 3}


@pytest.mark.slow
def test_a_loss_that_is_no_number_on_one_rank_is_skipped_by_all(two_ranks: Path) -> None:
    found = [told(two_ranks, rank)["spoilt"] for rank in (0, 1)]
    assert found[0]["skipped"] == 1
    assert found[0] == found[1]


# ---------------------------------------------------------------- validation is split, each line scored once

VALIDATE = """
import json, sys
from pathlib import Path
import nmt.evaluate
from nmt.evaluate import evaluate_splits, score_ids
from nmt.modelfile import load_model
from nmt.runtime import joined_ranks
from tests.test_distributed import many_lines
from tests.training.test_trainer import make_trainer, reversal_split

folder = Path(sys.argv[1])
with joined_ranks() as ranks:
    trainer = make_trainer(folder / "run", ranks=ranks)
    trainer.val = reversal_split(1015, seed=7)
    loss = trainer._validation_loss()
    model = load_model(Path(sys.argv[2]), "cpu")
    sources, references = many_lines(len(model.src_vocabulary))
    original, counts = nmt.evaluate.translate_ids, []
    def count(network, sentences, *rest, **more):
        counts.append(len(sentences))
        return original(network, sentences, *rest, **more)
    nmt.evaluate.translate_ids = count
    score, texts = score_ids(model.network, sources, references, model.tgt_vocabulary, model.config, ranks)
    told = {"loss": loss, "bleu": score.value, "texts": texts, "counts": counts}
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(told))
"""


def many_lines(vocabulary_size: int) -> tuple[Ragged, list[str]]:
    random = np.random.default_rng(3)
    sentences = [random.integers(4, vocabulary_size, random.integers(1, 7)).tolist() for _ in range(1015)]
    return Ragged.of(sentences, vocabulary_size), [f"A dog {number}." for number in range(1015)]


@pytest.mark.slow
def test_a_validation_of_1015_lines_on_three_ranks_scores_each_once(
    tiny_model: Model, tiny_model_path: Path, tmp_path: Path
) -> None:
    ended = run_ranks(3, VALIDATE, tmp_path, tiny_model_path)
    assert [each.code for each in ended] == [0, 0, 0], ended[0].err
    trainer = make_trainer(tmp_path / "alone")
    trainer.val = reversal_split(1015, seed=7)
    sources, references = many_lines(len(tiny_model.src_vocabulary))
    score, texts = score_ids(
        tiny_model.network, sources, references, tiny_model.tgt_vocabulary, tiny_model.config
    )
    found = [told(tmp_path, rank) for rank in range(3)]
    assert [each["counts"] for each in found] == [[339], [338], [338]]
    for each in found:
        assert each["texts"] == texts
        assert each["bleu"] == score.value
        assert each["loss"] == pytest.approx(trainer._validation_loss(), rel=1e-6)


EVALUATE = """
import json, sys
from pathlib import Path
from nmt.data.dataset import open_prepared
from nmt.evaluate import evaluate_splits

model, folder, out = map(Path, sys.argv[1:])
found = evaluate_splits(model, prepared=open_prepared(folder), splits=["all"], device="cpu", out=out)
print(json.dumps([each.to_dict() for each in found], default=str))
"""


@pytest.mark.slow
def test_two_ranks_evaluate_as_one_does_and_the_first_one_tells(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    alone = evaluate_splits(
        tiny_model_path, prepared=tiny_prepared, splits=["all"], device="cpu", out=tmp_path / "one"
    )
    ended = run_ranks(2, EVALUATE, tiny_model_path, tiny_prepared.folder, tmp_path / "two")
    assert [each.code for each in ended] == [0, 0], "\n".join(each.err for each in ended)
    assert json.loads(ended[1].out) == []
    told = json.loads(ended[0].out)
    assert [each["split"] for each in told] == [each.split for each in alone]
    for mine, expected in zip(told, alone, strict=True):
        assert mine["score"]["value"] == expected.score.value
        assert mine["loss"] == pytest.approx(expected.loss, rel=1e-6)
        assert Path(mine["hypotheses"]).read_bytes() == expected.hypotheses.read_bytes()


# ---------------------------------------------------------------- a rank that fails or dies

PART = """
import sys
from pathlib import Path
from nmt.errors import DataError
from nmt.runtime import joined_ranks
from tests.training.test_trainer import make_trainer

def threads():
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]

try:
    with joined_ranks() as ranks:
        assert any("gloo" in name for name in threads())
        trainer = make_trainer(Path(sys.argv[1]), ranks=ranks, max_steps=2)
        trainer.fit()
        if sys.argv[2] == "failing":
            raise DataError("on every rank")
except DataError:
    pass
assert not [name for name in threads() if "gloo" in name], threads()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads the names of threads in /proc")
@pytest.mark.parametrize("end", ["well", "failing"])
def test_no_thread_of_the_connection_outlives_it(end: str, tmp_path: Path) -> None:
    # one that does may abort the process after its last word: its code is -6 in about one run of 40
    ended = run_ranks(2, PART, tmp_path, end)
    assert [each.code for each in ended] == [0, 0], "\n".join(each.err for each in ended)


FAIL = """
import sys
from pathlib import Path
from nmt.errors import AnotherRankError, DataError, MachineError
from nmt.runtime import joined_ranks
from tests.training.test_trainer import before_each_step, make_trainer

with joined_ranks() as ranks:
    assert ranks.gather({"rank": ranks.rank, "text": "ä" * (1 + ranks.rank)}) == [
        {"rank": 0, "text": "ä"}, {"rank": 1, "text": "ää"}
    ]
    def only_on(bad):
        if ranks.rank in bad:
            raise DataError(f"of {ranks.rank}")
    for action, first in ((lambda: only_on((1,)), 1), (lambda: only_on((0, 1)), 0)):
        try:
            ranks.together(action)
        except DataError as error:
            assert str(error) == f"of {first}" and ranks.rank == first
        except AnotherRankError:
            assert ranks.rank != first
        else:
            raise AssertionError
    try:
        ranks.first(lambda: only_on((0,)))
    except (DataError, AnotherRankError) as error:
        assert isinstance(error, DataError) == ranks.is_first
    assert ranks.first(lambda: ranks.rank) == 0
    trainer = make_trainer(Path(sys.argv[1]), ranks=ranks, epochs=9)
    def fail(work):
        if trainer.state.step == 2 and ranks.rank == 1:
            raise SystemExit(9)
    before_each_step(trainer, fail)
    try:
        trainer.fit()
    except MachineError as error:
        print(error)
"""


@pytest.mark.slow
def test_where_one_rank_fails_all_end_and_one_says_why(tmp_path: Path) -> None:
    first, second = run_ranks(2, FAIL, tmp_path)
    assert second.code == 9, second.err
    assert first.code == 0, first.err
    assert first.out == "another process of this training has ended, or no longer answers\n"


@pytest.fixture
def config(tiny_prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A config of a small run whose steps are quick."""
    monkeypatch.chdir(tmp_path)
    path = Path("config.yaml")
    values: dict[str, Any] = {
        "name": "small",
        "device": "cpu",
        "precision": "float32",
        "data": {"source": str(tiny_prepared.folder)},
        "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "heads": 4, "feed_forward": 64},
        "train": {"epochs": 2, "warmup_steps": 5, "batch_tokens": 300},
    }
    path.write_text(Config.model_validate(values).to_yaml(), "utf-8")
    return path


@pytest.mark.slow
def test_five_pairs_in_batches_of_two_on_two_ranks_end_with_one_log_and_one_model(
    config: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "five"
    corpus.mkdir()
    for path in tiny_folder.iterdir():
        lines = path.read_text("utf-8").splitlines(keepends=True)
        (corpus / path.name).write_text("".join(lines[:5]), "utf-8")
    arguments = ["--config", config, "--data", corpus, "--set", "train.batch_sentences=2"]
    arguments += ["--set", "vocabulary.size=100", "--set", "train.warmup_steps=1"]
    ended = wait_for(torchrun(2, *arguments))
    assert ended.code == 0, ended.err
    assert ended.out.count("BLEU on val") == ended.out.count("to use it") == 1
    assert ended.err.count("preparing") == ended.err.count("epoch 2: validation loss") == 1
    events = read_events(Path("runs/small/metrics.jsonl"))
    assert [e["step"] for e in events if e["event"] == "validation"] == [3, 6]
    model = load_model(Path("runs/small/best.safetensors"), "cpu")
    assert not [name for name, _ in model.network.named_parameters() if "module." in name]
    assert b"module." not in Path("runs/small/best.safetensors").read_bytes()


COMMAND = """
import sys
from nmt.cli import main
sys.argv[0] = "nmt"
main()
"""


@pytest.mark.slow
def test_what_the_user_can_mend_is_said_once_and_every_rank_ends_with_2(config: Path) -> None:
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/config.yaml").write_text(config.read_text("utf-8"), "utf-8")
    first, second = run_ranks(2, COMMAND, "train", "--config", config)
    assert (first.code, second.code) == (2, 2)
    assert first.err.startswith("error: runs/small holds a run already\nhint:")
    assert not second.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the processes in /proc")
def test_a_rank_that_is_killed_ends_the_job_and_one_process_goes_on_with_it(config: Path) -> None:
    arguments = ["--config", config, "--set", "train.epochs=1000", "--set", "train.log_every_steps=1"]
    job = torchrun(2, *arguments)
    try:
        workers = wait_until(lambda: checkpoint_of(Path("runs/small")) and children_of(job.pid))
        os.kill(workers[1], signal.SIGKILL)
        killed_s = time.monotonic()
        ended = wait_for(job)
        assert ended.code != 0
        assert time.monotonic() - killed_s < 60
        assert not [worker for worker in workers if Path(f"/proc/{worker}/cmdline").exists()]
    finally:
        job.kill()
    reached = max(int(path.name[-8:]) for path in Path("runs/small/checkpoints").glob("step-*"))
    command = [sys.executable, "-m", "nmt", "train", *map(str, arguments), "--resume"]
    again = wait_for(start([*command, "--set", f"train.max_steps={reached + 2}"]))
    assert again.code == 0, again.err
    assert f"going on from step {reached} of {reached + 2}" in again.err
    assert read_events(Path("runs/small/metrics.jsonl"))[-1]["step"] == reached + 2


def wait_until(condition: Any) -> Any:
    end_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


def checkpoint_of(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-*"))


def children_of(pid: int) -> list[int]:
    """In the order of their start."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
