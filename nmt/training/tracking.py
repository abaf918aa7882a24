"""What a run tells: metrics.jsonl, and a bar on a terminal or plain lines elsewhere."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
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
    """metrics.jsonl: one JSON object a line, `event` and `step` in each.

    `step` events carry loss (smoothed, nats per token, mean since the last one), learning_rate,
    tokens_per_s (target tokens) and grad_norm (the largest since the last one); `validation` events loss
    (plain, nats per token), perplexity, bleu, signature, best. All have epoch and elapsed_s (training time
    so far, over all sittings).
    """

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Start a file, or go on with one: events after `last_step` are cut off first."""
        self.path = path
        self.events: list[Event] = [event for event in read_events(path) if event["step"] <= last_step]
        content = "".join(f"{json.dumps(event)}\n" for event in self.events).encode()
        if not path.exists() or path.read_bytes() != content:
            write_whole(path, content)

    def add(self, event: str, step: int, **values: Any) -> None:
        """Append one event."""
        record = {"event": event, "step": step, **values}
        self.events.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(record)}\n")


class ProgressBar:
    """Steps done of steps planned: a tqdm bar on a terminal; elsewhere a plain line every ten seconds."""

    LINE_EVERY_S = 10.0

    def __init__(self, total: int, done: int) -> None:
        from tqdm import tqdm

        self._total, self._start, self._begun = total, done, time.monotonic()
        self._last_line = self._begun
        self._text = ""
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

    def tell(self, text: str) -> None:
        """From now on say this beside the steps: loss, learning rate, speed."""
        self._text = text
        self._bar.set_postfix_str(text, refresh=False)

    def advance(self, step: int) -> None:
        """One more step is done."""
        self._bar.update()
        now = time.monotonic()
        if self._lines and (now - self._last_line >= self.LINE_EVERY_S or step == self._total):
            self._last_line = now
            left = (now - self._begun) / max(step - self._start, 1) * (self._total - step)
            standing = f", {self._text}" if self._text else ""
            log.info("step %d of %d%s, %s left", step, self._total, standing, format_duration(left))


def format_duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
