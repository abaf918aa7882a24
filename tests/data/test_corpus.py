from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nmt
from nmt.data.corpus import (
    Pair,
    SplitFiles,
    find_split,
    find_splits,
    iter_file,
    iter_lines,
    iter_parallel,
    read_lines,
    read_parallel,
)
from nmt.errors import DataError, MachineError

ROOT = Path(nmt.__file__).parents[1]
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"  # all of these end a line for str.splitlines
ASCII_LOCALE = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return path


def lines_of(data: bytes) -> list[str]:
    return list(iter_lines(io.BytesIO(data), "text"))


# ---------------------------------------------------------------- what a line is


def test_only_lf_and_crlf_end_a_line(tmp_path: Path) -> None:
    middle = "Ein Hund\u2028läuft\x85schnell\x0bweg."
    source = write(tmp_path / "train.de", f"Eins.\n{middle}\r\nDrei.\n")
    target = write(tmp_path / "train.en", "One.\nA dog runs away.\nThree.\n")
    assert read_parallel(source, target) == [
        Pair("Eins.", "One."),
        Pair(middle, "A dog runs away."),
        Pair("Drei.", "Three."),
    ]


@pytest.mark.parametrize("separator", list(SEPARATORS), ids=ascii)
def test_no_other_character_ends_a_line(separator: str) -> None:
    assert lines_of(f"a{separator}b\nc{separator}".encode()) == [f"a{separator}b", f"c{separator}"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\r\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\n\r", ["a", "\r"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ],
)
def test_edges_of_a_text(data: bytes, lines: list[str]) -> None:
    assert lines_of(data) == lines


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))),
    end=st.sampled_from(["\n", "\r\n"]),
    ends_with_newline=st.booleans(),
)
def test_lines_written_are_the_lines_read(lines: list[str], end: str, ends_with_newline: bool) -> None:
    lines = ["first", *(line + "." for line in lines)]  # no mark at the start, no \r before the end
    text = end.join(lines) + end * ends_with_newline
    assert lines_of(text.encode("utf-8")) == lines


def test_a_byte_order_mark_is_no_part_of_the_first_line_of_a_file(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a", b"\xef\xbb\xbfEin Hund.\nZwei.\n")) == ["Ein Hund.", "Zwei."]


@pytest.mark.parametrize("zipped", [False, True])
def test_a_byte_that_is_not_utf8_is_named_with_its_file_and_line(tmp_path: Path, zipped: bool) -> None:
    text = "Ein Hund.\nEin Mädchen.\n".encode("latin-1")
    path = write(tmp_path / "train.de.gz", gzip.compress(text)) if zipped else write(tmp_path / "a.de", text)
    with pytest.raises(DataError) as caught:
        read_lines(path)
    assert f"{path}, line 2" in caught.value.message
    assert "0xe4" in caught.value.message
    assert caught.value.hint is not None
    assert "UTF-8" in caught.value.hint


def test_half_a_character_at_the_end_is_an_error() -> None:
    with pytest.raises(DataError, match="text, line 1: byte 2 "):
        lines_of(b"a\xc3")


def test_lines_before_a_bad_byte_are_still_yielded() -> None:
    stream = iter_lines(io.BytesIO(b"good\nb\xffd\n"), "stdin")
    assert next(stream) == "good"
    with pytest.raises(DataError, match="stdin, line 2"):
        next(stream)


def test_a_line_is_yielded_while_the_pipe_stays_open() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as pipe:
        lines = iter_lines(cast(BinaryIO, stream), "stdin")
        late = threading.Timer(20, pipe.close)  # so that a reader which wants more fails instead of hanging
        late.start()
        for word in ("eins", "zwei"):
            pipe.write(f"{word}\n".encode())
            assert next(lines) == word
            assert late.is_alive()
        late.cancel()


@pytest.mark.parametrize("locale", [ASCII_LOCALE, {"PYTHONUTF8": "1"}], ids=["POSIX", "UTF-8"])
def test_text_is_utf8_whatever_the_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    text = "Ein Mädchen läuft – 走る.\n"
    plain = write(tmp_path / "plain.de", text)
    zipped = write(tmp_path / "zipped.de.gz", gzip.compress(text.encode()))
    program = (
        "import sys; from pathlib import Path; from nmt.data.corpus import iter_lines, read_lines\n"
        "for path in sys.argv[1:]: print(ascii(read_lines(Path(path))))\n"
        "print(ascii(list(iter_lines(sys.stdin.buffer, 'stdin'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(plain), str(zipped)],
        input=text.encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **locale},
        check=True,
    )
    assert done.stdout.decode("ascii").splitlines() == [ascii([text.rstrip("\n")])] * 3


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_is_read_line_by_line_as_its_lines_are_asked_for(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    lines = iter_file(write(tmp_path / "a", pack(b"Eins.\nZwei.\n\xff\n")))
    assert [next(lines), next(lines)] == ["Eins.", "Zwei."]
    with pytest.raises(DataError, match="line 3"):
        next(lines)


def test_gzip_is_known_by_name_or_by_content(tmp_path: Path) -> None:
    data = gzip.compress("Größe\n".encode())
    for name in ("a.de.gz", "b.de", "c.GZ"):
        assert read_lines(write(tmp_path / name, data)) == ["Größe"]


def test_an_empty_text_has_no_lines_plain_or_gzipped(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a.de", b"")) == []
    assert read_lines(write(tmp_path / "a.de.gz", gzip.compress(b""))) == []


WHOLE = gzip.compress(b"".join(b"sentence number %d\n" % number for number in range(2000)))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        WHOLE[:1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:-1],
        WHOLE[:-6] + b"\0\0" + WHOLE[-4:],
        WHOLE[:2000] + bytes(64) + WHOLE[2064:],
        WHOLE + b"more",
        b"plain text under a wrong name\n",
    ],
    ids=["empty", "one byte", "half", "one byte short", "checksum", "overwritten", "appended", "not gzip"],
)
def test_a_damaged_gzip_is_refused(tmp_path: Path, damaged: bytes) -> None:
    path = write(tmp_path / "train.de.gz", damaged)
    with pytest.raises(DataError, match=r"train\.de\.gz is no whole gzip file"):
        read_lines(path)


def test_a_missing_file_is_answered_with_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "train.en", "a\n")
    with pytest.raises(DataError) as caught:
        read_lines(tmp_path / "train.de")
    assert str(tmp_path / "train.de") in caught.value.message
    assert caught.value.hint == "there are: train.en"


def test_a_missing_folder_and_a_folder_in_place_of_a_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_lines(tmp_path / "nowhere" / "train.de")
    assert caught.value.hint == f"{tmp_path / 'nowhere'} does not exist either"
    with pytest.raises(DataError, match="is not a file"):
        read_lines(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_the_machines_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "train.de", "a\n")
    path.chmod(0)
    with pytest.raises(MachineError, match=r"train\.de"):
        read_lines(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_can_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"eins\nzwei\n",), daemon=True)
    writer.start()
    assert read_lines(pipe) == ["eins", "zwei"]


@pytest.mark.parametrize("counts", [(3, 2), (2, 3), (0, 1), (1, 0), (5, 1), (1, 5)])
def test_files_of_unequal_length_are_refused_with_both_names_and_counts(
    counts: tuple[int, int], tmp_path: Path
) -> None:
    source = write(tmp_path / "train.de", "a\n" * counts[0])
    target = write(tmp_path / "train.en", "a\n" * counts[1])
    with pytest.raises(DataError) as caught:
        read_parallel(source, target)
    assert f"{source} has {counts[0]} lines" in caught.value.message
    assert f"{target} has {counts[1]}" in caught.value.message


def test_pairs_are_read_one_by_one_as_they_are_asked_for(tmp_path: Path) -> None:
    pairs = iter_parallel(write(tmp_path / "a.de", "a\nb\n\xff"), write(tmp_path / "a.en", b"A\nB\n\xff"))
    assert [next(pairs), next(pairs)] == [Pair("a", "A"), Pair("b", "B")]
    with pytest.raises(DataError, match=r"a\.en, line 3"):
        next(pairs)


def test_empty_lines_keep_their_place(tmp_path: Path) -> None:
    source = write(tmp_path / "a.de", "\n \nb\n")
    target = write(tmp_path / "a.en", "A\n\nB")
    assert read_parallel(source, target) == [Pair("", "A"), Pair(" ", ""), Pair("b", "B")]


# ---------------------------------------------------------------- splits of a folder


def test_a_split_may_be_plain_or_gzipped(tmp_path: Path) -> None:
    source, target = write(tmp_path / "val.de", ""), write(tmp_path / "val.en.gz", "")
    assert find_split(tmp_path, "val", "de", "en") == SplitFiles("val", source, target)
    assert find_split(tmp_path, "val", "en", "de") == SplitFiles("val", target, source)


def test_the_plain_file_goes_before_the_gzipped_one(tmp_path: Path) -> None:
    for name in ("val.de", "val.de.gz", "val.en"):
        write(tmp_path / name, "")
    assert find_split(tmp_path, "val", "de", "en").source == tmp_path / "val.de"


def test_a_missing_side_is_named_with_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "train.de", "")
    with pytest.raises(DataError) as caught:
        find_split(tmp_path, "train", "de", "en")
    assert caught.value.message == f"{tmp_path} has no train.en (or .gz)"
    assert caught.value.hint == "there are: train.de"


def test_a_missing_split_names_both_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no test\.de \(or \.gz\) and no test\.en \(or \.gz\)"):
        find_split(tmp_path, "test", "de", "en")


def test_a_folder_of_many_files_is_listed_in_part(tmp_path: Path) -> None:
    for number in range(15):
        write(tmp_path / f"{number:02d}.txt", "")
    with pytest.raises(DataError) as caught:
        find_split(tmp_path, "train", "de", "en")
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("11.txt and 3 more")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(DataError, match=f"{name} (does not exist|is not a folder)"):
        find_split(tmp_path / name, "train", "de", "en")


def test_every_split_of_a_folder_is_found(tmp_path: Path) -> None:
    names = ["val.de", "val.en", "test.2016.de.gz", "test.2016.en", "README.md", "x.fr", ".de", "._val.de"]
    for name in names:
        write(tmp_path / name, "")
    (tmp_path / "folder.de").mkdir()
    splits = find_splits(tmp_path, "de", "en")
    assert list(splits) == ["test.2016", "val"]
    assert splits["test.2016"] == SplitFiles(
        "test.2016", tmp_path / "test.2016.de.gz", tmp_path / "test.2016.en"
    )


@pytest.mark.parametrize(("there", "missing"), [("test.de", "test.en"), ("test.en.gz", "test.de")])
def test_a_split_with_one_side_only_is_refused(tmp_path: Path, there: str, missing: str) -> None:
    for name in ("train.de", "train.en", there):
        write(tmp_path / name, "")
    with pytest.raises(DataError, match=f"no {missing}"):
        find_splits(tmp_path, "de", "en")


def test_a_folder_without_a_split_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.fr", "")
    with pytest.raises(DataError) as caught:
        find_splits(tmp_path, "de", "en")
    assert caught.value.hint == "there are: train.fr"
