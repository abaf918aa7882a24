"""What a run tells: events that are cut back on going on, plain lines where there is no terminal."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nmt.train import train
from nmt.training import tracking
from nmt.training.tracking import (
    Metrics,
    ProgressBar,
    format_duration,
    git_state,
    note_environment,
    open_tensorboard,
    read_events,
)

if TYPE_CHECKING:
    from nmt.config import Config
    from nmt.data.dataset import PreparedData

ROOT = Path(__file__).resolve().parent.parent.parent
needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)
SAMPLE = {"source": "Ein <unk> *Hund*", "reference": "A | dog", "translation": "A dog"}


def test_events_are_appended_one_a_line_and_read_back(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", last_step=0)
    metrics.add("step", 1, loss=2.5)
    metrics.add("validation", 1, bleu=10.0)
    assert read_events(metrics.path) == [
        {"event": "step", "step": 1, "loss": 2.5},
        {"event": "validation", "step": 1, "bleu": 10.0},
    ]
    assert metrics.path.read_text().count("\n") == 2


def test_going_on_cuts_off_later_events_and_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n{"event": "st')
    metrics = Metrics(path, last_step=1)
    metrics.add("step", 2, again=True)
    assert read_events(path) == [{"event": "step", "step": 1}, {"event": "step", "step": 2, "again": True}]


def test_events_that_need_no_cut_are_not_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n')
    before = path.stat().st_ino
    Metrics(path, last_step=1)
    assert path.stat().st_ino == before


def test_a_validation_that_comes_again_is_cut_off_and_what_came_before_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    events = [
        {"event": "validation", "step": 1},
        {"event": "step", "step": 2},
        {"event": "validation", "step": 2},
    ]
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert Metrics(path, last_step=2).events == events
    assert Metrics(path, last_step=2, validation_due=True).events == events[:2]
    assert read_events(path) == events[:2]


def test_means_that_are_tried_again_are_cut_off_and_their_validation_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, last_step=0)
    metrics.add("validation", 2, bleu=1.0)
    metrics.add("validation", 2, bleu=2.0, weights="mean of the last 2")
    assert [event["bleu"] for event in Metrics(path, last_step=2).events] == [1.0, 2.0]
    assert [event["bleu"] for event in Metrics(path, last_step=2, means_due=True).events] == [1.0]


def test_every_field_that_a_run_writes_is_documented(
    tiny_config: Config, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    settings = {"max_steps": 8, "warmup_steps": 1, "average_checkpoints": 2, "batch_tokens": 2000}
    config = tiny_config.replace(
        data=tiny_config.data.model_copy(update={"source": str(tiny_prepared.folder)}),
        train=tiny_config.train.model_copy(update=settings),
    )
    run = train(config, run_dir=tmp_path / "run").run_dir
    events = read_events(run / "metrics.jsonl")
    assert {event["event"] for event in events} == {"step", "validation", "time"}
    fields = {field for event in events for field in event} | {"skipped", "cost"}
    assert "weights" in fields
    guide = (ROOT / "docs" / "training.md").read_text("utf-8").partition("## What a run tells")[2]
    assert fields <= set(re.findall(r"`(\w+)`", guide))
    assert fields <= set(re.findall(r"\w+", Metrics.__doc__ or ""))
    assert {"started", "command", "git", "torch", "device"} <= json.loads(
        (run / "environment.json").read_text("utf-8")
    )[0].keys()


# --- TensorBoard ------------------------------------------------------------------------------------------


def shown(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, list[str]]]:
    """What TensorBoard shows of a folder: points by tag, texts by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    tags = reader.Tags()
    points = {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in tags["scalars"]}
    texts = {
        tag: [e.tensor_proto.string_val[0].decode() for e in reader.Tensors(tag)] for tag in tags["tensors"]
    }
    return points, texts


def tracked(run: Path, *, last_step: int) -> Metrics:
    board = open_tensorboard(run / "tensorboard", last_step=last_step)
    assert board is not None
    return Metrics(run / "metrics.jsonl", last_step=last_step, board=board)


def step_event(loss: float) -> dict[str, Any]:
    return {"loss": loss, "learning_rate": 0.5, "grad_norm": 2.0, "tokens_per_s": 1000.0, "elapsed_s": 1.0}


@needs_tensorboard
def test_tensorboard_shows_the_scalars_and_the_samples_as_they_are(tmp_path: Path) -> None:
    metrics = tracked(tmp_path, last_step=0)
    metrics.add("step", 1, **step_event(4.0))
    metrics.add("validation", 1, loss=3.0, bleu=12.5, best=True, signature="s", samples=[SAMPLE, SAMPLE])
    metrics.add("validation", 1, loss=2.0, bleu=13.0, weights="mean of several")
    metrics.add("time", 1, data_s=1.0)
    points, texts = shown(tmp_path / "tensorboard")
    assert points == {
        "loss/training": [(1, 4.0)],
        "loss/validation": [(1, 3.0)],
        "bleu": [(1, 12.5)],
        "learning_rate": [(1, 0.5)],
        "grad_norm": [(1, 2.0)],
        "tokens_per_s": [(1, 1000.0)],
    }
    words = "    source      Ein <unk> *Hund*\n    reference   A | dog\n    translation A dog"
    assert texts == {"samples/1": [words], "samples/2": [words]}


@needs_tensorboard
def test_tensorboard_forgets_what_lies_behind_the_step_that_a_run_goes_on_from(tmp_path: Path) -> None:
    metrics = tracked(tmp_path, last_step=0)
    for step in (1, 2, 3, 4):
        metrics.add("step", step, **step_event(float(step)))
    metrics = tracked(tmp_path, last_step=2)
    metrics.add("step", 5, **step_event(50.0))
    points, _ = shown(tmp_path / "tensorboard")
    assert points["loss/training"] == [(1, 1.0), (2, 2.0), (5, 50.0)]
    assert [event["step"] for event in metrics.events] == [1, 2, 5]


@needs_tensorboard
def test_a_sitting_without_events_leaves_no_tensorboard_file(tmp_path: Path) -> None:
    tracked(tmp_path, last_step=0)
    assert not (tmp_path / "tensorboard").exists()


@needs_tensorboard
def test_writing_for_tensorboard_loads_no_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemError('TensorFlow was imported')")
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(tmp_path)!r})
from nmt.training.tracking import open_tensorboard
before = set(sys.modules)
assert not [name for name in before if name.startswith("tensorboard")], "not before it is asked for"
board = open_tensorboard(Path({str(tmp_path)!r}) / "board", last_step=0)
board.add({{"event": "step", "step": 1, "loss": 1.0}})
print(sorted({{"tensorflow", "grpc", "torch.utils.tensorboard"}} & (set(sys.modules) - before)))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert answer.stdout.strip() == "[]", answer.stderr
    (file,) = (tmp_path / "board").iterdir()
    assert re.fullmatch(r"events\.tfevents\.\d+", file.name), "TensorBoard looks for tfevents in the name"


def test_without_tensorboard_its_folder_is_not_written_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    for name in [*sys.modules]:
        if name.split(".")[0] == "tensorboard":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    folder = tmp_path / "tensorboard"
    Metrics(tmp_path / "metrics.jsonl", last_step=0, board=open_tensorboard(folder, last_step=0)).add(
        "step", 1
    )
    assert not folder.exists()
    (line,) = caplog.messages
    assert str(folder.parent) in line
    assert "pip install tensorboard" in line


# --- the environment --------------------------------------------------------------------------------------


def test_each_sitting_adds_its_environment_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run" / "environment.json"
    note_environment(path, {"step": 0})
    note_environment(path, {"step": 7})
    first, second = json.loads(path.read_text("utf-8"))
    assert (first["step"], second["step"]) == (0, 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", first["started"])


def test_the_noted_command_names_neither_the_user_nor_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    words = ["--run-dir", "/home/ada/runs/x", "-s", "data.mirror=https://ada:secret@example.org/a@b"]
    monkeypatch.setattr(sys, "argv", ["/home/ada/.venv/lib/nmt/__main__.py", *words])
    note_environment(tmp_path / "environment.json", {})
    text = (tmp_path / "environment.json").read_text("utf-8")
    shortened = ["nmt", "--run-dir", "~/runs/x", "-s", "data.mirror=https://***@example.org/a@b"]
    assert json.loads(text)[0]["command"] == shortened


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_a_checkout_is_noted_and_whether_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert git_state() is None
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "a"], [*who, "commit", "-q", "-m", "one"]):
        (tmp_path / "a").write_text("one")
        subprocess.run(["git", *words], check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, check=True, text=True
    ).stdout.strip()
    (tmp_path / "untracked").touch()
    assert git_state() == {"commit": head, "changed": False}
    (tmp_path / "a").write_text("two")
    assert git_state() == {"commit": head, "changed": True}


def test_a_git_that_hangs_or_is_missing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state() is None
    slow = tmp_path / "git"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(30)\n")
    slow.chmod(0o755)
    assert tracking._git("rev-parse", "HEAD", timeout_s=0.2) is None


# --- on the terminal --------------------------------------------------------------------------------------


def test_without_a_terminal_there_are_plain_lines_and_no_bar(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with ProgressBar(total=3, done=0) as bar:
        for step in (1, 2, 3):
            bar.tell(f"loss {step}.0")
            bar.advance(step)
    assert written.getvalue() == ""
    assert caplog.messages == ["step 3 of 3, loss 3.0, 0:00 left"]


def test_a_line_names_the_running_epoch_and_whether_the_number_of_steps_is_sure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(ProgressBar, "LINE_EVERY_S", 0.0)
    with ProgressBar(total=4, done=0) as bar:
        bar.begin_epoch(1, 4, about=True)
        bar.tell("loss 2.0")
        bar.advance(1)
        bar.begin_epoch(2, 5)
        bar.advance(2)
    assert [message.rpartition(",")[0] for message in caplog.messages] == [
        "step 1 of about 4, epoch 1, loss 2.0",
        "step 2 of 5, epoch 2, loss 2.0",
    ]


def test_the_time_left_is_a_lower_bound_where_later_steps_take_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nmt")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(ProgressBar, "LINE_EVERY_S", 0.0)
    with ProgressBar(total=2, done=0) as bar:
        bar.begin_epoch(1, 3, slow_end=True)
        bar.advance(3)
        bar.begin_epoch(2, 3)
        bar.advance(3)
    assert caplog.messages == ["step 3 of 3, epoch 1, at least 0:00 left", "step 3 of 3, epoch 2, 0:00 left"]


def test_on_a_terminal_there_is_one_bar_with_the_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger("nmt"), "level", logging.INFO)
    logging.getLogger("nmt").manager._clear_cache()  # type: ignore[attr-defined]
    with ProgressBar(total=2, done=1) as bar:
        bar.begin_epoch(3, 2)
        bar.tell("loss 1.5")
        bar.advance(2)
    assert "2/2" in terminal.getvalue()
    assert "epoch 3, loss 1.5" in terminal.getvalue()


def test_a_quiet_log_silences_both(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "nmt")
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with ProgressBar(total=1, done=0) as bar:
        bar.advance(1)
    assert written.getvalue() == ""
    assert not caplog.messages


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
