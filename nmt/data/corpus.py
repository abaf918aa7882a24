"""Parallel text on disk: the one owner of what a line is and of where a split's two files lie.

A line ends with `\\n` or `\\r\\n` and with nothing else: U+2028, U+0085, a form feed or a lone `\\r` are
characters of the sentence, so that line k of one side stays the translation of line k of the other.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from nmt.errors import DataError, MachineError

log = logging.getLogger("nmt")

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"  # never the start of UTF-8 text, so a gzipped file is known whatever its name
MAX_LISTED_FILES = 12


@dataclass(frozen=True, slots=True)
class Pair:
    """One sentence and its translation, as they stand in the files."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The two files of one split, plain or gzipped."""

    name: str
    source: Path
    target: Path


def iter_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yield each line of a byte stream, without its end, as soon as it has arrived.

    The text is UTF-8 whatever the locale; a byte-order mark at the start is dropped; a last line without
    a newline counts. `name` stands for the stream in errors. Raises DataError at a byte that is not UTF-8.
    """
    number = 0
    while raw := stream.readline():  # one line at a time: whoever types a line is answered at once
        number += 1
        if number == 1 and raw.startswith(BYTE_ORDER_MARK):
            raw = raw.removeprefix(BYTE_ORDER_MARK)
            if not raw:
                return  # a mark alone is an empty file, not an empty line
        raw = raw[:-2] if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8",
                hint="convert the text to UTF-8, for example: iconv -f LATIN1 -t UTF-8 OLD > NEW",
            ) from None


def read_lines(path: Path) -> list[str]:
    """Read all lines of a text file, plain or gzipped; raises as `iter_file`."""
    return list(iter_file(path))


def iter_file(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or gzipped, one after the other.

    Raises DataError if the file is missing, not UTF-8, or a damaged gzip; MachineError if it cannot be read.
    """
    with _reading_faults(path), path.open("rb") as file:
        start = file.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)]  # not read and seek: a pipe cannot go back
        if start != GZIP_MAGIC and path.suffix.lower() != ".gz":
            yield from iter_lines(file, str(path))
            return
        if not start:  # gzip takes no bytes at all for no text, but no gzip file is that short
            raise EOFError
        with gzip.GzipFile(fileobj=file) as unzipped:
            yield from iter_lines(cast(BinaryIO, unzipped), str(path))


def read_parallel(source: Path, target: Path) -> list[Pair]:
    """Read two files as pairs, line by line; raises as `iter_parallel`."""
    return list(iter_parallel(source, target))


def iter_parallel(source: Path, target: Path) -> Iterator[Pair]:
    """Yield two files as pairs, line by line, so that no more than a pair is held.

    DataError names both files and counts if these differ, when the shorter one has ended.
    """
    lines = itertools.zip_longest(iter_file(source), iter_file(target))
    for number, (source_line, target_line) in enumerate(lines):
        if source_line is None or target_line is None:
            longer = number + 1 + sum(1 for _ in lines)
            counts = (number, longer) if source_line is None else (longer, number)
            raise DataError(
                f"{source} has {counts[0]} lines, but {target} has {counts[1]}",
                hint="line k of one file must translate line k of the other: "
                "look for a missing or an extra line",
            )
        yield Pair(source_line, target_line)


def find_split(folder: Path, split: str, src_lang: str, tgt_lang: str) -> SplitFiles:
    """Find the two files of one split, such as `train.de` or `train.de.gz`.

    Where both exist the plain file is taken: it is the one that people edit. Raises DataError with what
    was looked for and what is there.
    """
    there = _file_names(folder)
    found = {language: _find_side(folder, there, split, language) for language in (src_lang, tgt_lang)}
    missing = [f"{split}.{language} (or .gz)" for language, path in found.items() if path is None]
    source, target = found[src_lang], found[tgt_lang]
    if source is None or target is None:
        raise DataError(f"{folder} has no {' and no '.join(missing)}", hint=_there(there))
    return SplitFiles(split, source, target)


def find_splits(folder: Path, src_lang: str, tgt_lang: str) -> dict[str, SplitFiles]:
    """Find every split of a folder, by name: all NAME for which NAME.SRC[.gz] and NAME.TGT[.gz] exist.

    Hidden files are passed over. Raises DataError if one side of a split is missing, or if there is none.
    """
    there = _file_names(folder)
    sides = [{name for file in there if (name := _split_name(file, lang))} for lang in (src_lang, tgt_lang)]
    splits = sorted(sides[0] | sides[1])
    if not splits:
        raise DataError(f"{folder} has no NAME.{src_lang} with NAME.{tgt_lang}", hint=_there(there))
    return {split: find_split(folder, split, src_lang, tgt_lang) for split in splits}


@contextmanager
def _reading_faults(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", hint=_neighbours(path)) from None
    except (IsADirectoryError, NotADirectoryError):
        raise DataError(f"{path} is not a file", hint="name a text file, plain or gzipped") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = "cut short" if isinstance(error, EOFError) else "damaged or not gzip at all"
        raise DataError(f"{path} is no whole gzip file: {reason}", hint="fetch or make it again") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(f"cannot read {path}: {reason}", hint="check its permissions and disk") from error


def _file_names(folder: Path) -> list[str]:
    try:
        if folder.is_dir():
            return sorted(entry.name for entry in folder.iterdir() if entry.is_file())
        reason = "is not a folder" if folder.exists() else "does not exist"
    except OSError as error:
        raise MachineError(f"cannot read {folder}: {error.strerror}", hint="check its permissions") from error
    raise DataError(f"{folder} {reason}", hint="name the folder that holds the text, such as train.de")


def _find_side(folder: Path, there: Iterable[str], split: str, language: str) -> Path | None:
    plain, gzipped = f"{split}.{language}", f"{split}.{language}.gz"
    found = [name for name in (plain, gzipped) if name in there]
    if len(found) == 2:
        log.info("%s holds %s and %s: taking %s", folder, plain, gzipped, plain)
    return folder / found[0] if found else None


def _split_name(file_name: str, language: str) -> str | None:
    if file_name.startswith("."):  # such as the ._NAME files that macOS leaves beside NAME
        return None
    base = file_name.removesuffix(".gz")
    return base.removesuffix(f".{language}") if base.endswith(f".{language}") else None


def _neighbours(path: Path) -> str:
    folder = path.parent
    return _there(_file_names(folder)) if folder.is_dir() else f"{folder} does not exist either"


def _there(names: list[str]) -> str:
    if not names:
        return "the folder has no files"
    more = len(names) - MAX_LISTED_FILES
    return "there are: " + ", ".join(names[:MAX_LISTED_FILES]) + (f" and {more} more" if more > 0 else "")
