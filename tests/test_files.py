"""Files and folders are whole or not there, and of two processes one waits."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.errors import MachineError
from nmt.files import (
    clear_draft_folders,
    clear_drafts,
    only_one,
    remove_folder,
    scratch_file,
    whole_folder,
    write_whole,
)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed to the disk and what gets its name, in order; two names are in one folder."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_rename(one: Path, other: Path) -> None:
        events.append("name")
        assert Path(one).parent == Path(other).parent
        rename(one, other)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_rename)
    monkeypatch.setattr(os, "rename", note_rename)
    return events


def test_a_file_is_flushed_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, events: list[str]
) -> None:
    write_whole(tmp_path / "file", b"whole")
    assert events == ["file", "name", "folder"]
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_folder_is_flushed_with_its_files_before_it_gets_its_name_and_the_one_above_after(
    tmp_path: Path, events: list[str]
) -> None:
    with whole_folder(tmp_path / "data") as draft:
        for name in ("one", "other"):
            (draft / name).write_text("whole")
    assert events == ["file", "file", "folder", "name", "folder"]


def test_new_folders_are_flushed_into_those_above_them(tmp_path: Path, events: list[str]) -> None:
    write_whole(tmp_path / "new" / "newer" / "file", b"whole")
    assert events == ["folder", "folder", "file", "name", "folder"]


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


def test_leftovers_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    kept = {".notes.tmp", ".hidden", "run", "file.0123abcd.tmp", ".data.old.zip"}
    for name in (*kept, ".best.safetensors.0123abcd.tmp"):
        (tmp_path / name).touch()
    clear_drafts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
    for name in ("one", ".one.old", ".one.draft", ".other.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"file of {name}").touch()
    clear_draft_folders(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept | {"one", "other"}
    assert (tmp_path / "one" / "file of one").exists()
    assert (tmp_path / "other" / "file of .other.old").exists()


def test_a_folder_that_is_being_deleted_loses_its_name_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").touch()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if killed before it begins
    remove_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == [".data.draft"]
    monkeypatch.undo()
    clear_draft_folders(tmp_path)
    assert not list(tmp_path.iterdir())


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


def test_a_scratch_file_is_read_again_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    with scratch_file(beside=tmp_path / "sub" / "folder") as file:
        file.write(b"text")
        file.seek(0)
        assert file.read() == b"text"
    assert list((tmp_path / "sub").iterdir()) == []


def test_a_scratch_file_that_finds_no_room_is_the_machines_fault(tmp_path: Path) -> None:
    with (
        pytest.raises(MachineError, match=r"folder could not be written: No space left") as raised,
        scratch_file(beside=tmp_path / "folder"),
    ):
        raise OSError(28, "No space left on device")
    assert str(tmp_path) in (raised.value.hint or "")
