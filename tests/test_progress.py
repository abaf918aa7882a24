"""How far a long piece of work has come: a bar for a terminal, lines of the log for a file."""

from __future__ import annotations

import logging
import sys

import pytest

from nmt import progress as module
from nmt.progress import progress


def test_a_terminal_gets_a_bar_and_the_log_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with caplog.at_level(logging.INFO, logger="nmt"), progress("test", 5) as advance:
        advance(2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "test:" in err
    assert not caplog.records


def test_a_quiet_terminal_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    with caplog.at_level(logging.WARNING, logger="nmt"), progress("test", 5) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


def test_elsewhere_the_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s[0])
    with caplog.at_level(logging.INFO, logger="nmt"), progress("test", 50) as advance:
        for _ in range(50):
            now_s[0] += 0.5
            advance(1)
    assert [record.getMessage() for record in caplog.records] == [
        "test: 20 of 50 sentences",
        "test: 40 of 50 sentences",
    ]
    assert "\r" not in capsys.readouterr().err
