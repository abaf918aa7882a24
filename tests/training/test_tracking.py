"""What a run tells: events that are cut back on going on, plain lines where there is no terminal."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

from nmt.training.tracking import Metrics, ProgressBar, format_duration, read_events


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


def test_on_a_terminal_there_is_one_bar_with_the_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger("nmt"), "level", logging.INFO)
    logging.getLogger("nmt").manager._clear_cache()  # type: ignore[attr-defined]
    with ProgressBar(total=2, done=1) as bar:
        bar.tell("loss 1.5")
        bar.advance(2)
    assert "2/2" in terminal.getvalue()
    assert "loss 1.5" in terminal.getvalue()


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
