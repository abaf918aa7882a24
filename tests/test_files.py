"""Files and folders are whole or not there, and of two processes one waits."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.errors import MachineError
from nmt.files import only_one, whole_folder, write_whole


def test_the_file_is_flushed_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(one: Path, other: Path) -> None:
        events.append("name")
        assert Path(one).parent == Path(other).parent
        assert Path(one).read_bytes() == b"whole"
        replace(one, other)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_whole(tmp_path / "new" / "file", b"whole")
    assert events == ["file", "name", "folder"]
    assert (tmp_path / "new" / "file").read_bytes() == b"whole"


def test_a_folder_in_the_way_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MachineError, match="could not be written"):
        write_whole(tmp_path / "file" / "model.safetensors", b"whole")
    (tmp_path / "folder").mkdir()
    with pytest.raises(MachineError, match="could not be written"):
        write_whole(tmp_path / "folder", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "whole", b"")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_appears_whole_and_in_place_of_the_older_one(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with whole_folder(tmp_path / "data") as draft:
            (draft / "file").write_text(content)
            assert not (tmp_path / "data").exists() or (tmp_path / "data" / "file").read_text() == "first"
        assert (tmp_path / "data" / "file").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_fault_leaves_the_older_folder_and_nothing_else(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "data") as draft:
        (draft / "file").write_text("first")
    with (
        pytest.raises(MachineError, match="data could not be written"),
        whole_folder(tmp_path / "data") as draft,
    ):
        (draft / "no folder" / "file").write_text("second")
    assert (tmp_path / "data" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_what_a_killed_process_left_is_cleared_and_its_only_copy_comes_back(tmp_path: Path) -> None:
    (tmp_path / ".data.draft").mkdir()
    (tmp_path / ".data.draft" / "half").touch()
    (tmp_path / ".data.old").mkdir()
    (tmp_path / ".data.old" / "file").write_text("whole")
    with pytest.raises(ValueError, match="fault"), whole_folder(tmp_path / "data"):
        raise ValueError("fault")
    assert (tmp_path / "data" / "file").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_lock_is_for_one_process_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    code = f"""
from pathlib import Path
from nmt.files import only_one
with only_one(Path({str(path)!r}), doing="waiting", timeout_s=0):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(MachineError, match="another nmt is waiting"),
            only_one(path, doing="waiting", timeout_s=0),
        ):
            pass
        other.kill()
        other.wait()
    with only_one(path, doing="waiting", timeout_s=0):
        pass
