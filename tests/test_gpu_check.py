"""The checks for a machine with a GPU, where there may be none: they run, skip, fail and end in time."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nmt.data.dataset import PreparedData

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

pytestmark = pytest.mark.skipif(
    os.name == "nt" or shutil.which("bash") is None, reason="needs bash and process groups"
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/gpu_check.py as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPTS / "gpu_check.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # its dataclasses look there for their types
    spec.loader.exec_module(module)
    return module


def told(out: Path) -> dict[str, dict[str, Any]]:
    """What each check left in gpu_check.jsonl, by name."""
    lines = [json.loads(line) for line in (out / "gpu_check.jsonl").read_text("utf-8").splitlines()]
    return {line["check"]: line for line in lines}


@pytest.mark.slow
def test_what_needs_no_gpu_passes_anywhere_and_the_rest_says_why_it_is_skipped(
    tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    names = ["device", "attention", "training", "model_file", "decoding", "resume"]
    command = ["bash", str(SCRIPTS / "gpu_check.sh"), str(tiny_prepared.folder), "--only", *names]
    (tmp_path / "absent").mkdir()
    for module in ("spacy", "torchtext"):
        (tmp_path / "absent" / f"{module}.py").write_text("raise ImportError('not on this machine')")
    environ = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(tmp_path / "absent"),
        "OUT": str(tmp_path / "out"),
    }
    answer = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, encoding="utf-8")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    checks = told(tmp_path / "out")
    assert list(checks) == names
    passed = {name for name, check in checks.items() if check["status"] == "PASS"}
    assert passed >= {"attention", "training", "decoding", "resume"}
    assert all(check["status"] == "PASS" or check["reason"] for check in checks.values())
    assert 0 < checks["resume"]["stopped_at"] < checks["resume"]["steps"]
    assert {path.name for path in tmp_path.iterdir()} == {"absent", "out"}, "what the checks made is gone"


def test_a_failed_check_is_told_and_the_others_are_done(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"attention": ("FAIL", {"reason": "a bug"}), "decoding": ("PASS", {"speed": 1.0})}
    monkeypatch.setattr(script, "run_apart", lambda name, task, limit_s: results[name])
    task = script.Task(tmp_path, tmp_path)
    assert script.run_all(["attention", "decoding"], task, tmp_path / "out", 60.0) == 1
    checks = told(tmp_path / "out")
    assert [check["status"] for check in checks.values()] == ["FAIL", "PASS"]
    assert checks["attention"]["reason"] == "a bug"
    assert "1 passed, 1 failed, 0 skipped" in capsys.readouterr().out
    assert script.run_all(["decoding"], task, tmp_path / "out", 60.0) == 0


def test_checks_for_which_no_time_is_left_are_skipped(script: ModuleType, tmp_path: Path) -> None:
    assert script.run_all(["attention"], script.Task(tmp_path, tmp_path), tmp_path, 1.0) == 0
    assert "used up" in told(tmp_path)["attention"]["reason"]


def test_a_check_that_fails_gives_its_last_words(script: ModuleType, tmp_path: Path) -> None:
    status, details = script.run_apart("training", script.Task(tmp_path / "missing", tmp_path), 60.0)
    assert status == "FAIL"
    assert "missing" in details["reason"]
    assert "Traceback" in details["errors"]


def test_a_check_that_hangs_is_ended_with_all_it_started(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(script, "__file__", str(hanging))
    begun = time.monotonic()
    status, details = script.run_apart("attention", script.Task(tmp_path, tmp_path), 1.0)
    assert (status, details["reason"]) == ("FAIL", "not done after 1 s")
    assert time.monotonic() - begun < 20
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not is_running(pid):
            return
        time.sleep(0.05)
    pytest.fail("what it started still runs")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
