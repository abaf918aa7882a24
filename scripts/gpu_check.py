"""Check on a machine with a GPU what no other machine can show; gpu_check.sh, which calls this, says how.

Each check is a process of its own with a time limit, so that one that fails, hangs or leaves the GPU in a bad
state costs nothing but itself. A check returns what it measured, or raises.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.config import Config, load_config
from nmt.data.batching import Batch, make_batch, plan_batches
from nmt.data.dataset import PreparedData, open_prepared
from nmt.errors import MachineError, RunError
from nmt.evaluate import evaluate
from nmt.files import sha256
from nmt.model.attention import attend, attention_bias, attention_weights
from nmt.model.transformer import Transformer
from nmt.modelfile import load_model, save_model
from nmt.runtime import (
    bf16_is_native,
    cuda_mismatch_warning,
    device_line,
    find_nvidia_driver,
    seed_everything,
    select_device,
)
from nmt.train import TrainingResult, train
from nmt.training.tracking import read_events

FAILED, SKIPPED = 1, 75
GPU = torch.cuda.is_available()
SHARE_OF_LIKE_LINES = 0.98
"""So many translations have to be the same on GPU and CPU: two tokens may be about as likely."""


class Skip(Exception):  # noqa: N818 - no error
    """A check that this machine cannot do, and why."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a check is given."""

    prepared: Path
    work: Path
    """A folder that the checks of one run share."""

    def config(self, name: str, *settings: str) -> tuple[Config, PreparedData]:
        """A shipped config on the prepared data, its batches small enough that an epoch has 20 or so."""
        data = open_prepared(self.prepared)
        tokens = int(data.split(data.train).tgt.lengths.sum())
        batch_tokens = max(100, min(load_config(name).train.batch_tokens, tokens // 20))
        overrides = (f"train.batch_tokens={batch_tokens}", *settings)
        return load_config(name, source=str(self.prepared), overrides=overrides), data

    def trained(self) -> Path:
        """The model that the check `training` left."""
        for name in ("base", "smoke"):
            if (path := self.work / "training" / name / "best.safetensors").exists():
                return path
        raise Skip("the check `training` left no model")


# --- the checks -------------------------------------------------------------------------------------------


def check_device(task: Task) -> dict[str, Any]:
    """Device, driver and torch, in words."""
    device = select_device("cuda")
    return {
        "device": device_line(device),
        "devices": torch.cuda.device_count(),
        "capability": torch.cuda.get_device_capability(device),
        "bf16_is_native": bf16_is_native(device),
        "driver": str(find_nvidia_driver()),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
    }


def check_attention(task: Task) -> dict[str, Any]:
    """The device's fused kernel and the formula written out agree, also where all is masked."""
    device = select_device("auto")
    measured = {}
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        seed_everything(1)
        query, key, value = (torch.randn(4, 8, length, 32, device=device) for length in (7, 9, 9))
        keep = torch.rand(4, 1, 1, 9, device=device) > 0.3
        keep[0] = False
        for blocked in (None, keep):
            case = f"{str(dtype).removeprefix('torch.')}, {'open' if blocked is None else 'masked'}"
            exact = attention_weights(query, key, bias_of(blocked, torch.float32)) @ value
            q, k, v, bias = query.to(dtype), key.to(dtype), value.to(dtype), bias_of(blocked, dtype)
            found = (attend(q, k, v, bias), F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
            measured[case] = max((context.float() - exact).abs().max().item() for context in found)
            assert measured[case] <= tolerance, f"{case}: {measured[case]} > {tolerance}"
    return measured


def bias_of(keep: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if keep is None else attention_bias(keep, dtype)


def check_logits(task: Task) -> dict[str, Any]:
    """Logits of a base-sized network on the GPU and on the CPU: in float32 the same but for rounding."""
    config, data = task.config("base.yaml")
    seed_everything(1)
    network = Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary)).eval()
    split = data.split(data.val)
    batch = make_batch(split, plan_batches(split, 2000, seed=1, epoch=0)[0])
    with torch.no_grad():
        expected = network(batch.src, batch.src_keep, batch.tgt_in)
        network.cuda()
        there: Batch = batch.to(torch.device("cuda"))
        found = network(there.src, there.src_keep, there.tgt_in).cpu()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            rough = network(there.src, there.src_keep, there.tgt_in).float().cpu()
    difference, in_bf16 = ((logits - expected).abs().max().item() for logits in (found, rough))
    assert difference <= 1e-3, f"float32 logits differ by {difference}"
    return {"largest_logit": expected.abs().max().item(), "float32": difference, "bf16": in_bf16}


def check_training(task: Task) -> dict[str, Any]:
    """Train as `nmt train` does, in bf16 where it is native: the loss falls; speed and memory are noted."""
    measured = {}
    for name, steps in (("smoke", 200), ("base", 300)) if GPU else (("smoke", 16),):
        if GPU:
            torch.cuda.reset_peak_memory_stats()
        settings = {
            "train.max_steps": steps,
            "train.warmup_steps": steps // 2,
            "train.log_every_steps": steps // 8,
        }
        result, events = run_training(task, f"{name}.yaml", f"training/{name}", settings)
        told = [event for event in events if event["event"] == "step"]
        first, last = told[0]["loss"], told[-1]["loss"]
        assert last < first, f"{name}: the loss goes from {first} to {last}"
        measured[name] = {
            "tokens_per_s": statistics.median(event["tokens_per_s"] for event in told[1:]),
            "batch_tokens": result.config.train.batch_tokens,
            "losses": [first, last],
            "bleu": result.best_bleu,
            "time": next((event for event in events if event["event"] == "time"), None),
            "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if GPU else None,
        }
    return measured


def check_speed(task: Task) -> dict[str, Any]:
    """What scripts/benchmark.py tells of matrix products and of training a base-sized network."""
    from benchmarks.base import Bench
    from benchmarks.training import matmul_section, training_section

    config, data = task.config("base.yaml")
    bench = Bench(
        config=config,
        data=data,
        device=select_device("auto"),
        model=task.trained(),
        trained=True,
        steps=40 if GPU else 2,
        rounds=1,
        sentences=100,
        quick=not GPU,
        work=task.work,
        folder=task.work,
    )
    return {section.name: section.to_dict() for section in (matmul_section(bench), training_section(bench))}


def check_resume(task: Task) -> dict[str, Any]:
    """A run stopped by a signal and resumed ends with the weights of one that never stopped.

    On a CPU to the bit; on a GPU, whose sums may come in another order each time, about as near as a second
    run that never stopped.
    """
    steps = 100 if GPU else 24
    settings = {
        "train.max_steps": steps,
        "train.warmup_steps": 10,
        "train.log_every_steps": 4,
        "precision": "auto" if GPU else "float32",
    }
    whole, _ = run_training(task, "smoke.yaml", "resume/whole", settings)
    again, _ = run_training(task, "smoke.yaml", "resume/again", settings)
    with signal_after_the_first_event(task.work / "resume" / "broken" / "metrics.jsonl"):
        broken, _ = run_training(task, "smoke.yaml", "resume/broken", settings)
    assert broken.stopped_by == signal.SIGUSR1, "the run ended before it could be stopped"
    assert 0 < broken.steps < steps
    whole_again, _ = run_training(task, "smoke.yaml", "resume/broken", settings, resume=True)
    assert whole_again.steps == steps
    noise, difference = (largest_difference(whole.run_dir, run.run_dir) for run in (again, whole_again))
    assert difference <= 10 * noise, f"weights differ by {difference}, those of two unbroken runs by {noise}"
    return {"stopped_at": broken.steps, "steps": steps, "difference": difference, "without_a_stop": noise}


def largest_difference(one: Path, other: Path) -> float:
    """Of the last weights of two runs."""
    networks = [load_model(run / "last.safetensors").network for run in (one, other)]
    pairs = zip(*(network.parameters() for network in networks), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@contextlib.contextmanager
def signal_after_the_first_event(metrics: Path) -> Iterator[None]:
    """Send this process SIGUSR1, as a cluster does, once training has written an event."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.002):
            if metrics.exists() and metrics.stat().st_size:
                os.kill(os.getpid(), signal.SIGUSR1)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def check_model_file(task: Task) -> dict[str, Any]:
    """A model trained on the GPU translates on the CPU as there; saved again on the CPU it is the same."""
    path = task.trained()
    on_cpu = load_model(path, "cpu")
    copy = task.work / "copy.safetensors"
    save_model(copy, on_cpu)
    back = load_model(copy, select_device("cuda"))
    pairs = zip(
        load_model(path, select_device("cuda")).network.parameters(), back.network.parameters(), strict=True
    )
    assert all(torch.equal(a, b) for a, b in pairs)
    _, data = task.config("smoke.yaml")
    lines = {}
    for device in ("cpu", "cuda"):
        out = task.work / "evaluation" / device
        result = evaluate(path, prepared=data, split=data.val, device=device, precision="float32", out=out)
        lines[device] = result.hypotheses.read_text("utf-8").split("\n")
    same = statistics.mean(a == b for a, b in zip(lines["cpu"], lines["cuda"], strict=True))
    assert same >= SHARE_OF_LIKE_LINES, f"only {same:.1%} of the translations are the same"
    return {"same_translations": same, "lines": len(lines["cpu"]) - 1}


def check_decoding(task: Task) -> dict[str, Any]:
    """Speed of greedy search over the validation split, with the model that `training` left."""
    path = task.trained()
    _, data = task.config("smoke.yaml")
    measured = {}
    for precision in ("float32", "bf16") if GPU else ("float32",):
        out = task.work / "evaluation" / precision
        result = evaluate(path, prepared=data, split=data.val, precision=precision, out=out)
        measured[precision] = {
            "bleu": result.score.value,
            "sentences": result.sentences,
            "sentences_per_s": result.sentences / result.elapsed_s,
        }
    return {"model": path.parent.name, **measured}


def check_not_finite(task: Task) -> dict[str, Any]:
    """Steps without a number are skipped, then training stops with a message; what was saved before stays."""
    common = {"train.warmup_steps": 0, "train.schedule": "constant"}
    good = {**common, "train.max_steps": 3}
    result, _ = run_training(task, "smoke.yaml", "not_finite", good)
    before = hashes(result.run_dir / "checkpoints")
    bad = {"train.learning_rate": 1e30, "train.clip_norm": "null", "train.max_skipped_steps": 1}
    try:
        run_training(task, "smoke.yaml", "not_finite", {**common, **bad, "train.max_steps": 12}, resume=True)
    except RunError as error:
        assert hashes(result.run_dir / "checkpoints").items() >= before.items(), "a checkpoint has changed"
        return {"message": error.message, "hint": error.hint}
    raise AssertionError("training with a learning rate of 1e30 ended well")


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def check_memory(task: Task) -> dict[str, Any]:
    """A batch that the GPU has no memory for ends training with a message that names it."""
    limit_gib = 0.5
    torch.cuda.set_per_process_memory_fraction(
        limit_gib * 2**30 / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        run_training(task, "base.yaml", "memory", {"train.max_steps": 2, "train.batch_tokens": 10**6})
    except MachineError as error:
        if "batch_tokens" not in str(error.hint):
            raise
        return {"limit_gib": limit_gib, "message": error.message, "hint": error.hint}
    raise Skip(f"the prepared data do not fill {limit_gib} GiB")


def check_ranks(task: Task) -> dict[str, Any]:
    """Two processes train as one does: over nccl where there are two GPUs, else over gloo on the CPU."""
    backend = "nccl" if GPU and torch.cuda.device_count() > 1 else "gloo"
    config, _ = task.config(
        "smoke.yaml", "model.dropout=0", "precision=float32", "train.max_steps=8", "train.log_every_steps=2"
    )
    config = config.replace(device="auto" if backend == "nccl" else "cpu")
    file = task.work / "ranks.yaml"
    file.write_text(config.to_yaml(), "utf-8")
    losses = []
    for ranks in (1, 2):
        run = task.work / "ranks" / str(ranks)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        nmt_train = ["-m", "nmt", "train", "--config", str(file), "--run-dir", str(run)]
        environ = {"OMP_NUM_THREADS": "2", **os.environ}
        answer = subprocess.run(
            [sys.executable, *torchrun, *nmt_train], capture_output=True, encoding="utf-8", env=environ
        )
        assert answer.returncode == 0, answer.stderr[-2000:]
        events = read_events(run / "metrics.jsonl")
        losses.append([event["loss"] for event in events if event["event"] == "step"])
    difference = max(abs(a - b) for a, b in zip(*losses, strict=True))
    assert difference <= 1e-3, f"losses of one and of two ranks differ by {difference}"
    return {"backend": backend, "difference": difference, "losses": losses[1]}


def run_training(
    task: Task, name: str, folder: str, settings: Mapping[str, object], *, resume: bool = False
) -> tuple[TrainingResult, list[dict[str, Any]]]:
    """Train a shipped config with other settings; the result, and the run's events."""
    config, _ = task.config(name, *(f"{key}={value}" for key, value in settings.items()))
    result = train(config, run_dir=task.work / folder, resume=resume)
    return result, read_events(result.run_dir / "metrics.jsonl")


# --- running them -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A check, the seconds it may take, and whether it is nothing without a GPU."""

    do: Callable[[Task], dict[str, Any]]
    limit_s: float
    needs_gpu: bool = False


CHECKS = {
    "device": Check(check_device, 60, needs_gpu=True),
    "attention": Check(check_attention, 60),
    "logits": Check(check_logits, 90, needs_gpu=True),
    "training": Check(check_training, 180),
    "speed": Check(check_speed, 90),
    "model_file": Check(check_model_file, 120, needs_gpu=True),
    "decoding": Check(check_decoding, 120),
    "resume": Check(check_resume, 120),
    "not_finite": Check(check_not_finite, 90),
    "memory": Check(check_memory, 60, needs_gpu=True),
    "ranks": Check(check_ranks, 120),
}
"""In the order in which they are done: what would be missed most comes first."""


def run_one(name: str, task: Task) -> int:
    """Do a check in this process; its result is the last line on standard output."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = CHECKS[name].do(task)
    except Skip as reason:
        print(json.dumps({"reason": str(reason)}))
        return SKIPPED
    print(json.dumps(result))
    return 0


def run_apart(name: str, task: Task, limit_s: float) -> tuple[str, dict[str, Any]]:
    """Do a check in a process of its own, ended with all it started when its time is up."""
    command = [sys.executable, __file__, str(task.prepared), "--work", str(task.work), "--only", name]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return "FAIL", {"reason": f"not done after {limit_s:.0f} s"}
    if process.returncode in (0, SKIPPED):
        return "PASS" if process.returncode == 0 else "SKIP", json.loads(output.splitlines()[-1])
    errors = errors.strip()[-3000:]
    return "FAIL", {"reason": errors.rpartition("\n")[2], "exit_code": process.returncode, "errors": errors}


def end(process: subprocess.Popen[str], grace_s: float = 10.0) -> None:
    """Ask a process and what it started to end (torchrun ends its own), then end what is left."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=wait_s)


def run_all(names: list[str], task: Task, out: Path, limit_s: float) -> int:
    """Do the checks in turn, tell of each as it ends, and count those that fail."""
    out.mkdir(parents=True, exist_ok=True)
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    begun, no_gpu = time.monotonic(), cuda_mismatch_warning() or "no CUDA device"
    with (out / "gpu_check.jsonl").open("w", encoding="utf-8") as file:
        for name in names:
            started = time.monotonic()
            left = limit_s - (started - begun)
            if CHECKS[name].needs_gpu and not GPU:
                status, details = "SKIP", {"reason": no_gpu}
            elif left < 10:
                status, details = "SKIP", {"reason": f"the {limit_s:.0f} s of this run are used up"}
            else:
                status, details = run_apart(name, task, min(CHECKS[name].limit_s, left))
            counts[status] += 1
            elapsed_s = round(time.monotonic() - started, 1)
            line = {"check": name, "status": status, "elapsed_s": elapsed_s, **details}
            file.write(json.dumps(line) + "\n")
            file.flush()
            words = json.dumps(details, ensure_ascii=False)
            print(f"{status}  {name:<11}{elapsed_s:6.1f} s  {words}", flush=True)
    words = f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped"
    print(f"{words}, {time.monotonic() - begun:.0f} s; {file.name}")
    return FAILED if counts["FAIL"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path, metavar="PREPARED")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu_check")))
    parser.add_argument(
        "--limit", type=float, default=540.0, metavar="SECONDS", help="for all checks together"
    )
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="NAME")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    prepared = arguments.prepared.resolve()
    if arguments.work:
        return run_one(arguments.only[0], Task(prepared, arguments.work))
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in CHECKS if name in arguments.only]
        return run_all(names, Task(prepared, Path(folder)), arguments.out, arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
