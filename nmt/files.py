"""Files and folders that are whole or not there, and locks: the one owner of how nmt writes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nmt.errors import MachineError

if TYPE_CHECKING:
    import portalocker

log = logging.getLogger("nmt")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to the disk and rename it; the folder is made if need be.

    Raises MachineError where that fails; what stood there before is then untouched and nothing is left over.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        _make_folder(path.parent)
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise _machine_error(error, path, len(content)) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    _flush_folder(path.parent)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A draft folder that takes the name of `folder`, in place of an older one, when the block ends well.

    The caller holds a lock: the draft has one fixed name, so that what a killed process left is cleared away
    here. Raises MachineError where writing fails; an older folder is then as it was.
    """
    draft, old = (folder.with_name(f".{folder.name}.{kind}") for kind in ("draft", "old"))
    try:
        if old.exists() and not folder.exists():  # a process was killed between the two renames below
            old.rename(folder)
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)
        _make_folder(folder.parent)
        draft.mkdir()
        try:
            yield draft
            for path in draft.iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            _flush_folder(draft)
            _swap(draft, folder, old)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise _machine_error(error, folder) from error
    _flush_folder(folder.parent)


@contextmanager
def scratch_file(beside: Path) -> Iterator[IO[bytes]]:
    """A file on the disk of `beside` to write and read again, which has no name and ends with the process.

    So nothing is left of it, however the process ends. Raises MachineError where writing fails.
    """
    try:
        _make_folder(beside.parent)
        with tempfile.TemporaryFile(dir=beside.parent) as file:
            yield file
    except OSError as error:
        raise _machine_error(error, beside) from error


def _swap(draft: Path, folder: Path, old: Path) -> None:
    if not folder.exists():
        draft.rename(folder)
        return
    folder.rename(old)
    try:
        draft.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that a kill on the way leaves the whole of it, or a draft that is cleared later."""
    draft = folder.with_name(f".{folder.name}.draft")
    with contextlib.suppress(OSError):
        shutil.rmtree(draft, ignore_errors=True)
        folder.rename(draft)
        shutil.rmtree(draft, ignore_errors=True)


def clear_drafts(parent: Path) -> None:
    """Delete the drafts of files that killed processes left in a folder; the caller holds its lock."""
    for path in parent.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name):
            path.unlink(missing_ok=True)


def clear_draft_folders(parent: Path) -> None:
    """Delete the drafts of folders that killed processes left; an only copy gets its name back.

    The caller holds the lock of `parent`, in which no other program keeps anything.
    """
    for draft in parent.glob(".*.draft"):
        shutil.rmtree(draft, ignore_errors=True)
    for old in parent.glob(".*.old"):  # killed within `_swap`
        folder = old.with_name(old.stem.removeprefix("."))
        with contextlib.suppress(OSError):  # such as that another rank was faster
            shutil.rmtree(old) if folder.exists() else old.rename(folder)


@contextmanager
def only_one(path: Path, *, doing: str, timeout_s: float) -> Iterator[None]:
    """Hold the lock file `path`, which the operating system drops with the process, however that ends.

    Waits up to `timeout_s` for another process, and says so: `doing` completes «another nmt is …».
    Raises MachineError when it is still held then, or where the file system knows no locks.
    """
    import portalocker

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquire(path, doing, timeout_s)
    except portalocker.AlreadyLocked:
        raise MachineError(
            f"another nmt is {doing}", hint="wait for it or end it, then say the same again"
        ) from None
    except portalocker.LockException as error:
        raise MachineError(
            f"cannot lock {path}: {error}",
            hint="this file system may know no locks: work in a folder on a local disk",
        ) from error
    except OSError as error:
        raise _machine_error(error, path) from error
    try:
        yield
    finally:
        lock.release()


def _acquire(path: Path, doing: str, timeout_s: float) -> portalocker.Lock:
    import portalocker

    try:
        lock = portalocker.Lock(path, mode="a", timeout=0, fail_when_locked=True)
        lock.acquire()
    except portalocker.AlreadyLocked:
        if timeout_s <= 0:
            raise
        log.info("another nmt is %s, waiting for it (up to %g s)", doing, timeout_s)
        lock = portalocker.Lock(path, mode="a", timeout=timeout_s, check_interval=0.1)
        lock.acquire()
    return lock


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, and make their names last."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Make renames last; not every system can flush a folder, and the files themselves are whole."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _machine_error(error: OSError, path: Path, size: int | None = None) -> MachineError:
    hint = "choose a folder that can be written to"
    if error.errno == errno.EFBIG:
        hint = "raise the limit on the size of files (ulimit -f), or choose a folder on another disk"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        amount = f"{size / 1e6:,.1f} MB" if size is not None else "space"
        hint = f"free {amount} under {path.parent}, or choose a folder on another disk"
    return MachineError(f"{path} could not be written: {error.strerror or error}", hint=hint)
