"""What a run tells: metrics.jsonl, TensorBoard, its environment; a bar on a terminal or lines elsewhere.

This is the only user of the tensorboard package, which need not be installed.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nmt.files import write_whole

log = logging.getLogger("nmt")

Event = Mapping[str, Any]


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a metrics.jsonl; a last line that was cut off is left out."""
    events = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").split("\n"):
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
    return events


class Metrics:
    """metrics.jsonl: one JSON object a line, `event` and `step` (optimizer steps so far) in each.

    `step`, every train.log_every_steps steps and at the end of an epoch or a sitting:
        loss            label smoothing included: nats per target token, mean since the last one
        learning_rate   of this step
        grad_norm       before clipping, the largest since the last one
        tokens_per_s    target tokens, padding not counted, over all devices, since the last one
        cost            mean 1 - sentence BLEU of drawn translations; only in epochs that lower the risk
        skipped         steps since the last one whose loss or gradient was no number; only if there were any
    `validation`, after train.validate_every_epochs epochs and at the end:
        loss            plain, without smoothing: nats per target token
        perplexity      e to the power of that
        bleu            of greedy translations, 0 to 100, with its sacreBLEU `signature`
        best            whether this is the best so far
        samples         the first lines of the split: source, reference, translation
        weights         which mean of validated weights this is; absent for those of the step
    `time`, at the end of a sitting: where its seconds went, each only if there were any
        data_s, step_s, validate_s, save_s, tracking_s, draw_s

    `step` and `validation` have epoch (passes over the training pairs so far; in `validation` whole ones)
    and elapsed_s (training time so far, over all sittings).
    """

    def __init__(
        self,
        path: Path,
        *,
        last_step: int,
        validation_due: bool = False,
        means_due: bool = False,
        board: TensorBoard | None = None,
    ) -> None:
        """Start a file, or go on with one: what `last_step` did not yet see is cut off first.

        validation_due: the validation of `last_step` is still to come, or was not noted and comes again.
        means_due: so are those of the means of several weights, whose events have `weights`.
        board: gets every event too.
        """
        self.path, self._board = path, board
        self.events: list[Event] = [
            event
            for event in read_events(path)
            if event["step"] <= last_step
            and not (
                (event["step"], event["event"]) == (last_step, "validation")
                and (validation_due or (means_due and "weights" in event))
            )
        ]
        content = "".join(f"{_to_json(event)}\n" for event in self.events).encode()
        if not path.exists() or path.read_bytes() != content:
            write_whole(path, content)

    def add(self, event: str, step: int, **values: Any) -> None:
        """Append one event."""
        record = {"event": event, "step": step, **values}
        self.events.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{_to_json(record)}\n")
        if self._board is not None:
            self._board.add(record)


def _to_json(event: Event) -> str:
    return json.dumps(event, ensure_ascii=False)


# --- TensorBoard ------------------------------------------------------------------------------------------

SCALARS = {
    "step": {
        "loss": "loss/training",
        "learning_rate": "learning_rate",
        "grad_norm": "grad_norm",
        "tokens_per_s": "tokens_per_s",
    },
    "validation": {"loss": "loss/validation", "bleu": "bleu"},
}
"""Which numbers of which events TensorBoard shows, and under which tag."""


def open_tensorboard(folder: Path, *, last_step: int) -> TensorBoard | None:
    """A writer of TensorBoard files; None where the package is missing or broken, which one line says."""
    try:
        return TensorBoard(folder, last_step=last_step)
    except Exception as error:  # protobuf, for one, has errors of its own; no run is to end for a picture
        reason = "it is not installed" if isinstance(error, ModuleNotFoundError) else error
        log.info("no files for TensorBoard in %s: %s (pip install tensorboard)", folder.parent, reason)
        return None


class TensorBoard:
    """Event files that the `tensorboard` command shows: scalars, and sample translations as text.

    Only the package's messages and record format are used. Its writers, and torch's on top of them, start a
    thread, put the host's name into the file's and load TensorFlow where that is installed.
    """

    def __init__(self, folder: Path, *, last_step: int) -> None:
        """Write into a new file of `folder`, which hides what older ones hold after `last_step`.

        Raises ImportError where tensorboard is not installed.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._record = Event, RecordWriter
        self._head = (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), step=last_step + 1, session_log=SessionLog(status=SessionLog.START)),
        )
        self.path = folder / f"events.tfevents.{time.time_ns()}"  # they are read in the order of their names

    def add(self, event: Event) -> None:
        """Write the numbers and samples of an event; means of several weights are no point of a curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [] if "weights" in event else [*_scalars(event), *_samples(event)]
        if values:
            self._write(self._event(wall_time=time.time(), step=event["step"], summary=Summary(value=values)))

    def _write(self, message: Any) -> None:
        head = () if self.path.exists() else self._head
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            for each in (*head, message):
                self._record(file).write(each.SerializeToString())


def _scalars(event: Event) -> Iterator[Any]:
    from tensorboard.compat.proto.summary_pb2 import Summary

    for key, tag in SCALARS.get(event["event"], {}).items():
        if event.get(key) is not None:
            yield Summary.Value(tag=tag, simple_value=event[key])


def _samples(event: Event) -> Iterator[Any]:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    for number, sample in enumerate(event.get("samples", ()), start=1):
        lines = [f"    {name:<12}{sample[name]}" for name in sample]  # indented: as code, not as Markdown
        text = TensorProto(dtype=DT_STRING, string_val=["\n".join(lines).encode()])
        yield Summary.Value(tag=f"samples/{number}", metadata=metadata, tensor=text)


# --- the environment --------------------------------------------------------------------------------------


def note_environment(path: Path, values: Mapping[str, Any]) -> None:
    """Append an entry to environment.json: when, by which command and from which commit, and `values`.

    A run has an entry for each sitting. Home folder and passwords in the command are made unreadable.
    """
    entry = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "git": git_state(),
        **values,
    }
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        entries = []
    write_whole(path, f"{json.dumps([*entries, entry], ensure_ascii=False, indent=2)}\n".encode())


def _command() -> list[str]:
    """The command line of this process, without what names the user or lets anyone in."""
    program = Path(sys.argv[0]).name
    words = ["nmt" if program == "__main__.py" else program, *sys.argv[1:]]
    try:
        home = str(Path.home())
    except RuntimeError:  # this user has none
        home = ""
    words = [word.replace(home, "~") if len(home) > 1 else word for word in words]
    return [re.sub(r"://[^/@\s]*@", "://***@", word) for word in words]


def git_state() -> dict[str, str | bool] | None:
    """Commit of the checkout that is the current folder, and whether tracked files differ; None elsewhere."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def _git(*arguments: str, timeout_s: float = 5.0) -> str | None:
    """What git answers, or None where it is missing, refuses or hangs."""
    program = shutil.which("git")
    if program is None:
        return None
    command = (program, "--no-optional-locks", *arguments)
    try:
        answer = subprocess.run(command, capture_output=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode("utf-8", "replace").strip()


# --- on the terminal --------------------------------------------------------------------------------------


class ProgressBar:
    """Steps done of steps planned: a tqdm bar on a terminal; elsewhere a plain line every ten seconds."""

    LINE_EVERY_S = 10.0

    def __init__(self, total: int, done: int) -> None:
        from tqdm import tqdm

        self._total, self._start, self._begun = total, done, time.monotonic()
        self._last_line = self._begun
        self._text = self._epoch = self._about = self._at_least = ""
        terminal, quiet = sys.stderr.isatty(), not log.isEnabledFor(logging.INFO)
        self._lines = not terminal and not quiet
        self._bar = tqdm(
            total=total,
            initial=done,
            unit="step",
            dynamic_ncols=True,
            disable=quiet or not terminal,
            file=sys.stderr,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def begin_epoch(self, epoch: int, total: int, *, about: bool = False, slow_end: bool = False) -> None:
        """From now on so many steps are planned.

        epoch: 1 is the first. about: later epochs may have a few more or less. slow_end: the last steps
        take longer than those of now.
        """
        self._total = self._bar.total = total
        self._epoch = f", epoch {epoch}"
        self._about, self._at_least = "about " if about else "", "at least " if slow_end else ""

    def begin_anew(self, step: int) -> None:
        """The steps after this one are of another kind: only they tell how long the others will take."""
        self._start, self._begun = step, time.monotonic()

    def tell(self, text: str) -> None:
        """From now on say this beside the steps: loss, learning rate, speed."""
        self._text = text
        self._bar.set_postfix_str(f"{self._epoch}, {text}".removeprefix(", "), refresh=False)

    def advance(self, step: int) -> None:
        """One more step is done."""
        self._bar.update()
        now = time.monotonic()
        if self._lines and (now - self._last_line >= self.LINE_EVERY_S or step == self._total):
            self._last_line = now
            left = (now - self._begun) / max(step - self._start, 1) * (self._total - step)
            standing = self._epoch + (f", {self._text}" if self._text else "")
            time_left = self._at_least + format_duration(left)
            log.info("step %d of %s%d%s, %s left", step, self._about, self._total, standing, time_left)


def format_duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
