"""Killed, out of disk, damaged: whatever happens to a training run, it can be resumed to the same end.

The runs are children forked from one process that has imported everything and started no thread: starting
Python with torch takes seconds. A child can be told to kill itself with SIGKILL when it is about to change
the file system for the n-th time, so that the moments within a save are all reached; the clock picks others.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nmt.config import TrainConfig
from nmt.training.checkpoint import STATE, RunState, list_checkpoints, load_last_checkpoint, save_checkpoint
from nmt.training.optimizer import make_optimizer
from nmt.training.tracking import read_events

if TYPE_CHECKING:
    from nmt.config import Config
    from nmt.data.dataset import PreparedData

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform forks no processes"),
]

PARENT = """
import json, os, signal, sys, time

import portalocker, sacrebleu, torch._dynamo, tqdm  # torch.optim imports the third
import nmt.cli, nmt.train, nmt.translate
nmt.train.draw_curves = lambda *_: None  # half of a short run's time

CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "fsync"}

def kill_at(number, in_a_save):
    "Die just before the file system is changed for the n-th time, counted from the draft of a checkpoint on."
    left, counting = number, not in_a_save
    def count(event, arguments):
        nonlocal left, counting
        counting = counting or (event == "os.mkdir" and str(arguments[0]).endswith(".draft"))
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            left -= counting
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    fsync = os.fsync
    os.fsync = lambda descriptor: (count("fsync", ()), fsync(descriptor))  # Python does not tell of it
    sys.addaudithook(count)
    return lambda: number - left

def run(order):
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    touched = kill_at(order["kill_at"], order["in_a_save"])
    if order["file_limit"]:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], resource.RLIM_INFINITY))
    code = 0
    try:
        exec(order["code"], {"__name__": "child", **order["values"]})
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        import traceback
        traceback.print_exc()
        code = 1
    print("touched", touched(), flush=True)
    os._exit(code)

print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        run(order)
    if order["kill_after_s"] is not None:
        time.sleep(order["kill_after_s"])
        os.kill(child, signal.SIGKILL)  # the number is still its own: nobody has waited for it
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
KILLED = -signal.SIGKILL
EPOCHS = 8


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    log: str

    @property
    def touched(self) -> int:
        """How often it changed the file system."""
        return int(self.log.split()[-1])


class Parent:
    """The process that the children are forked from."""

    def __init__(self, log: Path, *before: str) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._answer() == "ready"

    def run(
        self,
        code: str,
        *,
        kill_at: int = 0,
        in_a_save: bool = False,
        kill_after_s: float | None = None,
        file_limit: int = 0,
        **values: object,
    ) -> Ended:
        """Run code in a child to its end, or to where it is killed."""
        order = {
            "code": code,
            "values": values,
            "kill_at": kill_at,
            "in_a_save": in_a_save,
            "kill_after_s": kill_after_s,
            "file_limit": file_limit,
            "log": str(self.log),
        }
        assert self.process.stdin
        self.process.stdin.write(f"{json.dumps(order)}\n")
        self.process.stdin.flush()
        return Ended(int(self._answer()), self.log.read_text("utf-8", "replace"))

    def train(self, config: Path, folder: Path, *options: str, **how: Any) -> Ended:
        """Run `nmt train` in a child."""
        argv = ["nmt", "train", "--config", str(config), "--run-dir", str(folder), *options]
        return self.run("import sys; sys.argv = argv; from nmt.cli import main; main()", argv=argv, **how)

    def _answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextmanager
def parent(log: Path, *before: str) -> Iterator[Parent]:
    started = Parent(log, *before)
    try:
        yield started
    finally:
        assert started.process.stdin
        started.process.stdin.close()
        started.process.wait()
        assert started.process.stdout
        started.process.stdout.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    with parent(tmp_path_factory.mktemp("warm") / "log") as started:
        yield started


@pytest.fixture(scope="module")
def config(
    tiny_config: Config, tiny_prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A short run with everything that draws random numbers or remembers something."""
    changed = tiny_config.model_dump()
    changed["name"], changed["precision"] = "crashes", "float32"
    changed["data"]["source"] = str(tiny_prepared.folder)
    changed["model"]["dropout"] = 0.2
    changed["decode"] |= {"max_length_ratio": 1.0, "max_length_extra": 1}
    changed["train"] |= {
        "epochs": EPOCHS,
        "batch_tokens": 600,
        "accumulation": 2,
        "warmup_steps": 5,
        "ema_decay": 0.9,
        "subword_dropout": 0.1,
        "word_dropout": 0.1,
        "average_checkpoints": 3,
        "keep_checkpoints": 2,
        "log_every_steps": 2,
    }
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(type(tiny_config).model_validate(changed).to_yaml(), "utf-8")
    return path


@dataclass(frozen=True)
class Result:
    """What must not depend on how often a run was broken off."""

    models: dict[str, str]
    """The hash of each model's tensors."""
    events: list[dict[str, Any]]
    files: list[str]


def result(folder: Path) -> Result:
    from safetensors.torch import load_file

    models = {}
    for path in sorted(folder.glob("*.safetensors")):
        digest = hashlib.sha256()
        for name, tensor in sorted(load_file(path).items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        models[path.name] = digest.hexdigest()
    clocks = ("elapsed_s", "tokens_per_s")
    events = [
        {key: value for key, value in event.items() if key not in clocks}
        for event in read_events(folder / "metrics.jsonl")
        if event["event"] in ("step", "validation")  # others tell of each sitting
    ]
    files = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if "tensorboard" not in str(path)
    )
    return Result(models, events, files)


def leftovers(folder: Path) -> list[Path]:
    """What was begun and has no name of its own yet."""
    return [path for path in folder.rglob(".*") if path.name != ".lock"]


@dataclass(frozen=True)
class Unbroken:
    """A run that nothing happened to."""

    result: Result
    elapsed_s: float
    touched: int


@pytest.fixture(scope="module")
def unbroken(warm: Parent, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    begun = time.monotonic()
    ended = warm.train(config, folder)
    elapsed_s = time.monotonic() - begun
    assert ended.code == 0, ended.log
    found = result(folder)
    assert set(found.models) == {"best.safetensors", "last.safetensors"}
    return Unbroken(found, elapsed_s, ended.touched)


@pytest.fixture(scope="module")
def half_done(
    warm: Parent, config: Path, unbroken: Unbroken, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that was killed half-way: copy it."""
    folder = tmp_path_factory.mktemp("half") / "run"
    assert warm.train(config, folder, kill_at=unbroken.touched // 2).code == KILLED
    assert len(list_checkpoints(folder / "checkpoints")) == 2
    return folder


def test_killed_at_twenty_moments_a_run_comes_to_the_same_end(
    warm: Parent, config: Path, unbroken: Unbroken, tmp_path: Path
) -> None:
    choose = random.Random(4)
    kills, kills_in_a_save, folder = 0, 0, tmp_path / "run 0"
    while True:
        moments: tuple[dict[str, Any], ...] = (
            {"kill_at": choose.randint(1, 2 * unbroken.touched // EPOCHS)},
            {"kill_at": choose.randint(2, 8), "in_a_save": True},
            {"kill_after_s": choose.uniform(0.0, 3 * unbroken.elapsed_s / EPOCHS)},
        )
        ended = warm.train(config, folder, "--resume", **(moments[kills % 3] if kills < 20 else {}))
        assert "damaged" not in ended.log
        if ended.code == KILLED:
            kills += 1
            kills_in_a_save += bool(leftovers(folder))
            continue
        assert ended.code == 0, ended.log
        assert result(folder) == unbroken.result
        if kills == 20:
            break
        folder = tmp_path / f"run {kills}"  # it was through before it could be killed
    assert kills_in_a_save >= 7, "a draft was there each time"


SAVE = """
from pathlib import Path
import torch
from nmt.config import TrainConfig
from nmt.training.checkpoint import RunState, save_checkpoint, update_state
from nmt.training.optimizer import make_optimizer

network = torch.nn.Linear(2, 2)
for parameter in network.parameters():
    parameter.data.fill_(value)
state = RunState(step, validation_due=True)
save_checkpoint(Path(folder), state, network, make_optimizer(network, TrainConfig()), None, keep=2)
state.validation_due = False
update_state(Path(folder), state)
"""


@pytest.mark.parametrize("step", [2, 3])
def test_killed_at_any_moment_of_a_save_it_is_the_one_before_or_the_new_one_that_is_found(
    step: int, warm: Parent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for before in (1, 2):
        assert warm.run(SAVE, step=before, value=before, folder=str(tmp_path / "before")).code == 0
    found = set()
    for moment in count(1):
        folder = tmp_path / str(moment)
        shutil.copytree(tmp_path / "before", folder)
        ended = warm.run(SAVE, step=step, value=2.5, folder=str(folder), kill_at=moment)
        network = torch.nn.Linear(2, 2)
        optimizer = make_optimizer(network, TrainConfig())
        state = load_last_checkpoint(folder, network, optimizer, None)
        assert state is not None
        (value,) = {weight for parameter in network.parameters() for weight in parameter.flatten().tolist()}
        found.add((state.step, state.validation_due, value))
        save_checkpoint(folder, RunState(9), network, optimizer, None, keep=1)
        assert sorted(path.name for path in folder.rglob("*")) == [
            "state.json",
            "step-00000009",
            "weights.safetensors",
        ]
        if ended.code == 0:
            break
        assert ended.code == KILLED, ended.log
    assert found == {(2, False, 2.0), (step, True, 2.5), (step, False, 2.5)}
    assert moment > 12, "the moments were not counted"
    assert "damaged" not in caplog.text


def test_the_command_itself_killed_and_then_out_of_disk_loses_nothing(
    config: Path, unbroken: Unbroken, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nmt", "train", "--resume", "--config", config, "--run-dir", folder]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        while len(list_checkpoints(folder / "checkpoints")) < 2:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    limited = ["bash", "-c", 'ulimit -f 400; exec "$@"', "bash", *command]  # kilobytes: less than the weights
    done = subprocess.run(limited, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 2, done.stderr
    assert_one_clear_error(done.stderr)
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    again = result(folder)
    assert (again.models, again.events) == (unbroken.result.models, unbroken.result.events)
    assert not leftovers(folder)


def assert_one_clear_error(log: str) -> None:
    lines = [line for line in log.splitlines() if line.startswith(("error:", "hint:"))]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], log
    assert "could not be written" in lines[0]
    assert "free" in lines[1] or "ulimit -f" in lines[1]
    assert "Traceback" not in log


@pytest.mark.parametrize("room", ["for nothing", "for the last model"])
def test_a_disk_that_is_full_while_saving_is_one_clear_error_and_what_was_saved_is_as_it_was(
    room: str, warm: Parent, config: Path, half_done: Path, unbroken: Unbroken, tmp_path: Path
) -> None:
    folder = shutil.copytree(half_done, tmp_path / "run")
    kept = {path: path.read_bytes() for path in (folder / "checkpoints" / "validated").glob("[!.]*")}
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        kept |= {path: path.read_bytes() for path in checkpoint.glob("[!.]*")}
    del kept[checkpoint / STATE]  # of the newest: its validation may come first and be noted there
    model = (folder / "last.safetensors").stat().st_size
    limit = model // 2 if room == "for nothing" else 2 * model
    assert limit < max(len(content) for content in kept.values())
    ended = warm.train(config, folder, "--resume", file_limit=limit)
    assert ended.code == 2, ended.log
    assert_one_clear_error(ended.log)
    assert {path: path.read_bytes() for path in kept} == kept
    assert not leftovers(folder)
    ended = warm.train(config, folder, "--resume")
    assert ended.code == 0, ended.log
    assert result(folder) == unbroken.result


FILL = """
import shutil
from pathlib import Path
left = shutil.disk_usage(disk).free - room
Path(disk, "filler").write_bytes(bytes(left))
"""


def test_a_small_disk_that_is_full_is_one_clear_error_and_the_run_goes_on_when_there_is_room(
    config: Path, unbroken: Unbroken, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=32m none {disk}"
    alone = ["unshare", "--mount", "sh", "-c"]  # the mount is seen by this process and ends with it
    if not shutil.which("unshare") or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    with parent(tmp_path / "log", *alone, f'{mount} && exec "$@"', "sh") as inside:
        folder = disk / "run"
        assert inside.train(config, folder, kill_at=unbroken.touched // 2).code == KILLED
        assert inside.run(FILL, disk=str(disk), room=700_000).code == 0
        ended = inside.train(config, folder, "--resume")
        assert ended.code == 2, ended.log
        assert_one_clear_error(ended.log)
        assert inside.run("import os; os.remove(disk + '/filler')", disk=str(disk)).code == 0
        ended = inside.train(config, folder, "--resume")
        assert ended.code == 0, ended.log
        copy = "import shutil; shutil.copytree(folder, out)"
        assert inside.run(copy, folder=str(folder), out=str(tmp_path / "run")).code == 0
    assert result(tmp_path / "run") == unbroken.result


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (flip_a_bit, "weights.safetensors"),
        (flip_a_bit, "state.json"),
        (cut_in_half, "weights.safetensors"),
        (Path.unlink, "state.json"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_the_end_is_the_same(
    damage: Callable[[Path], None],
    name: str,
    warm: Parent,
    config: Path,
    half_done: Path,
    unbroken: Unbroken,
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(half_done, tmp_path / "run")
    before, newest = list_checkpoints(folder / "checkpoints")
    damage(newest / name)
    ended = warm.train(config, folder, "--resume")
    assert ended.code == 0, ended.log
    assert f"{newest} is damaged" in ended.log
    assert f"going on from step {int(before.name[5:])} " in ended.log
    assert result(folder) == unbroken.result
