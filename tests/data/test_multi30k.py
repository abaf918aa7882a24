from __future__ import annotations

import errno
import gzip
import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest

import nmt
from nmt.data import multi30k
from nmt.data.corpus import Pair, read_parallel
from nmt.data.multi30k import Limits, fetch
from nmt.errors import DataError, DownloadError, MachineError

ROOT = Path(nmt.__file__).parents[1]
QUICK = Limits(connect_timeout_s=2, read_timeout_s=5, file_timeout_s=10, lock_timeout_s=20, backoff_s=0.01)
TRAIN = ("train.de.gz", "train.en.gz")
PAIRS = {split: [Pair(f"{split} {n} ä", f"{split} {n} a") for n in range(40)] for split in multi30k.SPLITS}


def zipped(lines: list[str]) -> bytes:
    return gzip.compress("".join(f"{line}\n" for line in lines).encode("utf-8"), mtime=0)


FILES = {f"{split}.de.gz": zipped([pair.source for pair in pairs]) for split, pairs in PAIRS.items()}
FILES |= {f"{split}.en.gz": zipped([pair.target for pair in pairs]) for split, pairs in PAIRS.items()}
REAL_HASHES = multi30k.SHA256
HASHES = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}

Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


def whole(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)


def status(code: int) -> Answer:
    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        request.send_error(code)

    return answer


def cut_short(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data[: len(data) // 2])


def too_long_and_cut_short(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(3 * len(data)))
    request.end_headers()
    request.wfile.write(data + data)


def compressed_for_whoever_takes_it(request: BaseHTTPRequestHandler, data: bytes) -> None:
    whole(request, gzip.compress(data) if "gzip" in request.headers["Accept-Encoding"] else data)


def cut_short_without_length(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_response(200)
    request.end_headers()
    request.wfile.write(data[: len(data) // 2])


def other_data(request: BaseHTTPRequestHandler, data: bytes) -> None:
    whole(request, b"<html>Please log in to the network.</html>")


def declared_as_an_encoding(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(data)))
    request.send_header("Content-Encoding", "gzip")
    request.end_headers()
    request.wfile.write(data)


class Server:
    """A web server on 127.0.0.1: what it answers is the test's choice, and it counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.next_answers: list[Answer] = []  # used up first
        self.answer: Answer = whole
        self.closing = threading.Event()
        self.was_asked = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                outer.asked[name] += 1
                outer.was_asked.set()
                answer = outer.next_answers.pop(0) if outer.next_answers else outer.answer
                answer(self, FILES[name])

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that went away is what some tests are about

        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_port}/raw"
        self.thread = threading.Thread(target=self.listener.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def silent(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        self.half(request, data)
        self.closing.wait(20)

    def dripping(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        self.half(request, data)
        for byte in data[len(data) // 2 :]:
            if self.closing.wait(0.05):
                return
            request.wfile.write(bytes([byte]))

    def half(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        cut_short(request, data)
        request.wfile.flush()

    def close(self) -> None:
        self.closing.set()
        self.listener.shutdown()
        self.listener.server_close()


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(multi30k, "SHA256", HASHES)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    caplog.set_level(logging.INFO, logger="nmt")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def dead_url() -> Iterator[str]:
    with socket.socket() as taken:  # bound but not listening: nothing answers, and nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def data_files(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}


def mirror_folder(path: Path) -> Path:
    path.mkdir()
    for name, data in FILES.items():
        (path / name).write_bytes(data)
    return path


def assert_names_the_way_out(error: DownloadError, *named: str) -> None:
    assert error.hint is not None
    assert "data.mirror=FOLDER" in error.hint
    assert "--data" in error.hint
    for name in named:
        assert name in error.message


# ---------------------------------------------------------------- what comes


def test_every_split_is_fetched_whole(tmp_path: Path, server: Server) -> None:
    found = fetch(multi30k.SPLITS, cache=tmp_path, mirror=server.url)
    assert {name: read_parallel(files.source, files.target) for name, files in found.items()} == PAIRS
    assert data_files(tmp_path) == set(FILES)
    assert server.asked == Counter(list(FILES))


def test_languages_are_source_and_target(tmp_path: Path, server: Server) -> None:
    files = fetch(["val"], cache=tmp_path, mirror=server.url, languages=("en", "de"))["val"]
    assert (files.source.name, files.target.name) == ("val.en.gz", "val.de.gz")


def test_the_address_is_logged_before_anything_is_asked(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    logged_when_asked = []

    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        logged_when_asked.append(caplog.text)
        whole(request, data)

    server.answer = answer
    fetch(["train"], cache=tmp_path, mirror=server.url)
    assert f"fetching {server.url}/train.de.gz" in logged_when_asked[0]


def test_nothing_is_fetched_twice(tmp_path: Path, server: Server, dead_url: str) -> None:
    first = fetch(["train"], cache=tmp_path, mirror=server.url)
    assert fetch(["train"], cache=tmp_path, mirror=server.url) == first
    assert fetch(["train"], cache=tmp_path, mirror=dead_url, offline=True) == first
    fetch(["train", "val"], cache=tmp_path, mirror=server.url)
    assert set(server.asked.values()) == {1}


def test_a_damaged_cached_file_is_replaced(tmp_path: Path, server: Server) -> None:
    path = fetch(["train"], cache=tmp_path, mirror=server.url)["train"].source
    path.write_bytes(path.read_bytes()[:-3])
    fetch(["train"], cache=tmp_path, mirror=server.url)
    assert path.read_bytes() == FILES["train.de.gz"]
    assert server.asked == {"train.de.gz": 2, "train.en.gz": 1}


def test_what_a_killed_process_has_left_is_cleared_away(tmp_path: Path, server: Server) -> None:
    path = fetch(["train"], cache=tmp_path, mirror=server.url)["train"].source
    path.rename(path.with_name(path.name + ".part"))
    fetch(["train"], cache=tmp_path, mirror=server.url)
    assert data_files(tmp_path) == set(TRAIN)


@pytest.mark.parametrize("answer", [declared_as_an_encoding, compressed_for_whoever_takes_it])
def test_a_file_arrives_as_it_lies_on_the_server(tmp_path: Path, server: Server, answer: Answer) -> None:
    server.answer = answer
    fetch(["train"], cache=tmp_path, mirror=server.url)
    assert data_files(tmp_path) == set(TRAIN)


def test_a_folder_serves_as_a_mirror_even_offline(tmp_path: Path) -> None:
    folder = mirror_folder(tmp_path / "mirror")
    files = fetch(["val"], cache=tmp_path / "cache", mirror=str(folder), offline=True)["val"]
    assert read_parallel(files.source, files.target) == PAIRS["val"]
    assert folder not in files.source.parents


def test_no_bar_and_no_carriage_return_where_standard_error_is_no_terminal(
    tmp_path: Path, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(["train"], cache=tmp_path, mirror=server.url)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_terminal_gets_a_progress_bar(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fetch(["train"], cache=tmp_path, mirror=server.url)
    out, err = capsys.readouterr()
    assert out == ""
    assert "train.de.gz:" in err


# ---------------------------------------------------------------- what goes wrong


def test_a_dead_host_ends_in_one_error_with_the_way_out(tmp_path: Path, dead_url: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror=dead_url, limits=QUICK)
    assert time.monotonic() - start_s < 10
    assert_names_the_way_out(caught.value, f"{dead_url}/train.de.gz", "refused", "3 tries")
    assert data_files(tmp_path) == set()


def test_a_dead_proxy_of_the_environment_ends_in_one_error_and_the_rerun_works(
    tmp_path: Path, server: Server, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", dead_url)
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, limits=QUICK)
    assert_names_the_way_out(caught.value, f"{multi30k.ADDRESS}/train.de.gz", "proxy")
    assert data_files(tmp_path) == set()
    monkeypatch.delenv("https_proxy")
    fetch(["train"], cache=tmp_path, mirror=server.url)
    assert data_files(tmp_path) == set(TRAIN)


def test_a_host_that_no_name_server_knows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror="http://host.invalid", limits=QUICK)
    assert_names_the_way_out(caught.value, "http://host.invalid/train.de.gz", "Name or service not known")


def test_a_truncated_answer_leaves_no_file(tmp_path: Path, server: Server) -> None:
    server.answer = cut_short
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=QUICK)
    assert_names_the_way_out(caught.value, f"{server.url}/train.de.gz", "cut short")
    assert data_files(tmp_path) == set()
    assert server.asked == {"train.de.gz": 3}


def test_a_truncated_answer_that_hides_its_length_leaves_no_file(tmp_path: Path, server: Server) -> None:
    server.answer = cut_short_without_length
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=QUICK)
    assert data_files(tmp_path) == set()


@pytest.mark.parametrize("fault", [cut_short, too_long_and_cut_short, status(503), status(500), status(429)])
def test_a_passing_fault_is_tried_again(tmp_path: Path, server: Server, fault: Answer) -> None:
    server.next_answers = [fault, fault]
    fetch(["train"], cache=tmp_path, mirror=server.url, limits=QUICK)
    assert data_files(tmp_path) == set(TRAIN)
    assert server.asked == {"train.de.gz": 3, "train.en.gz": 1}


def test_a_lasting_server_error_is_tried_three_times(tmp_path: Path, server: Server) -> None:
    server.answer = status(503)
    with pytest.raises(DownloadError, match="503"):
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=QUICK)
    assert server.asked == {"train.de.gz": 3}


@pytest.mark.parametrize("code", [404, 403, 410])
def test_a_refusal_is_not_tried_again(tmp_path: Path, server: Server, code: int) -> None:
    server.answer = status(code)
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=QUICK)
    assert_names_the_way_out(caught.value, f"{server.url}/train.de.gz", str(code))
    assert server.asked == {"train.de.gz": 1}
    assert data_files(tmp_path) == set()


def test_data_with_another_hash_is_not_kept(tmp_path: Path, server: Server) -> None:
    server.answer = other_data
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=QUICK)
    got = hashlib.sha256(b"<html>Please log in to the network.</html>").hexdigest()
    assert_names_the_way_out(caught.value, "train.de.gz", HASHES["train.de.gz"], got)
    assert data_files(tmp_path) == set()
    assert server.asked == {"train.de.gz": 1}


def test_files_that_came_before_a_fault_are_kept(tmp_path: Path, server: Server) -> None:
    server.next_answers = [whole, status(404)]
    with pytest.raises(DownloadError, match=r"train\.en\.gz"):
        fetch(["train"], cache=tmp_path, mirror=server.url)
    fetch(["train"], cache=tmp_path, mirror=server.url)
    assert server.asked == {"train.de.gz": 1, "train.en.gz": 2}


def test_a_silent_server_is_given_up(tmp_path: Path, server: Server) -> None:
    server.answer = server.silent
    start_s = time.monotonic()
    with pytest.raises(DownloadError, match=r"silent for 0\.2 s"):
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=Limits(read_timeout_s=0.2, backoff_s=0.01))
    assert time.monotonic() - start_s < 5
    assert server.asked == {"train.de.gz": 3}
    assert data_files(tmp_path) == set()


def test_a_server_that_drips_cannot_outlast_the_limit(tmp_path: Path, server: Server) -> None:
    server.answer = server.dripping
    start_s = time.monotonic()
    with pytest.raises(DownloadError, match=r"not there within 1 s"):
        fetch(["train"], cache=tmp_path, mirror=server.url, limits=Limits(file_timeout_s=1))
    assert time.monotonic() - start_s < 4
    assert data_files(tmp_path) == set()


def test_offline_nothing_is_asked_and_the_way_out_is_named(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror=server.url, offline=True)
    assert_names_the_way_out(caught.value, f"{server.url}/train.de.gz", "offline")
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, offline=True)
    assert_names_the_way_out(caught.value, f"{multi30k.ADDRESS}/train.de.gz")
    assert not server.asked


def test_a_password_in_an_address_is_shown_nowhere(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = status(404)
    mirror = server.url.replace("//", "//someone:secret@")
    with pytest.raises(DownloadError) as caught:
        fetch(["train"], cache=tmp_path, mirror=mirror)
    with pytest.raises(DownloadError) as offline:
        fetch(["train"], cache=tmp_path, mirror=mirror, offline=True)
    shown = f"{caught.value.message} {caught.value.hint} {offline.value.message} {caplog.text}"
    assert server.url in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    "mirror",
    ["ftp://127.0.0.1/raw", "http://", "http://[::1", "http://host:port/", "http://a..b/", "http://*"],
)
def test_an_address_that_is_none_is_a_download_error(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(DownloadError):
        fetch(["train"], cache=tmp_path, mirror=mirror, limits=QUICK)
    assert data_files(tmp_path) == set()


def test_a_mirror_folder_that_lacks_a_file_is_named(tmp_path: Path) -> None:
    folder = mirror_folder(tmp_path / "mirror")
    (folder / "val.en.gz").unlink()
    with pytest.raises(DownloadError) as caught:
        fetch(["val"], cache=tmp_path / "cache", mirror=str(folder))
    assert str(folder / "val.en.gz") in caught.value.message
    assert caught.value.hint is not None
    assert f"{multi30k.ADDRESS}/val.en.gz" in caught.value.hint
    assert data_files(tmp_path / "cache") == {"val.de.gz"}


def test_a_mirror_folder_with_other_data_is_refused(tmp_path: Path) -> None:
    folder = mirror_folder(tmp_path / "mirror")
    (folder / "val.en.gz").write_bytes(b"other")
    with pytest.raises(DownloadError, match=HASHES["val.en.gz"]):
        fetch(["val"], cache=tmp_path / "cache", mirror=str(folder))
    assert data_files(tmp_path / "cache") == {"val.de.gz"}


def test_an_unknown_split_or_language_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(["train", "test_2016"], cache=tmp_path)
    assert "'test_2016'" in caught.value.message
    assert caught.value.hint is not None
    assert all(split in caught.value.hint for split in multi30k.SPLITS)
    with pytest.raises(DataError, match="'fr'"):
        fetch(["train"], cache=tmp_path, languages=("fr", "en"))


def test_a_full_disk_is_the_machines_fault_and_leaves_no_file(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="No space left") as caught:
        fetch(["train"], cache=tmp_path, mirror=server.url)
    assert caught.value.hint is not None
    assert "NMT_CACHE" in caught.value.hint
    assert data_files(tmp_path) == set()


def test_a_cache_that_cannot_be_a_folder_is_the_machines_fault(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MachineError, match="cannot keep Multi30k"):
        fetch(["train"], cache=tmp_path / "file", mirror=server.url)
    assert not server.asked


def test_a_lost_certificate_bundle_is_no_fault_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "nowhere.pem"))
    with pytest.raises(DownloadError, match=r"nowhere\.pem"):
        fetch(["train"], cache=tmp_path, mirror="https://127.0.0.1:9", limits=QUICK)


# ---------------------------------------------------------------- several processes

PROGRAM = """
import json, logging, signal, sys
from pathlib import Path
from nmt.data import multi30k
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell inherit "ignore"
logging.basicConfig(level=logging.INFO, format="%(message)s")
multi30k.SHA256.update(json.loads(sys.argv[3]))
multi30k.fetch(["train", "val"], cache=Path(sys.argv[1]), mirror=sys.argv[2])
"""


@contextmanager
def start_fetch(cache: Path, mirror: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(cache), mirror, json.dumps(HASHES)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()  # nothing where it has ended; without it a failing test would wait for it


def read_until(stream: IO[str] | None, word: str) -> str:
    assert stream is not None
    seen = ""
    while word not in seen and (line := stream.readline()):
        seen += line
    return seen


def test_two_at_once_fetch_each_file_once_and_both_succeed(tmp_path: Path, server: Server) -> None:
    second_waits = threading.Event()

    def answer(request: BaseHTTPRequestHandler, data: bytes) -> None:
        assert second_waits.wait(20)
        whole(request, data)

    server.answer = answer
    with start_fetch(tmp_path, server.url) as first:
        assert server.was_asked.wait(20)
        with start_fetch(tmp_path, server.url) as second:
            said = read_until(second.stderr, "waiting")
            second_waits.set()
            assert "another nmt is fetching Multi30k" in said
            assert second.wait(20) == 0
        assert first.wait(20) == 0
    assert server.asked == Counter(["train.de.gz", "train.en.gz", "val.de.gz", "val.en.gz"])
    assert data_files(tmp_path) == set(server.asked)


def test_waiting_for_another_is_bounded(tmp_path: Path, server: Server) -> None:
    server.answer = server.silent
    with start_fetch(tmp_path, server.url) as first:
        assert server.was_asked.wait(20)
        with pytest.raises(MachineError, match="another nmt"):
            fetch(["train"], cache=tmp_path, mirror=server.url, limits=Limits(lock_timeout_s=0.3))
        first.kill()
    server.answer = whole
    fetch(["train"], cache=tmp_path, mirror=server.url)  # a killed process leaves no lock behind
    assert data_files(tmp_path) == set(TRAIN)


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be sent SIGINT there")
def test_an_interrupt_leaves_no_partial_file(tmp_path: Path, server: Server) -> None:
    server.next_answers = [whole]
    server.answer = server.silent
    with start_fetch(tmp_path, server.url) as process:
        read_until(process.stderr, "train.en.gz")
        until_s = time.monotonic() + 20
        while "train.en.gz.part" not in data_files(tmp_path) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert "train.en.gz.part" in data_files(tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "KeyboardInterrupt" in process.stderr.read()
    assert data_files(tmp_path) == {"train.de.gz"}


def test_importing_the_module_loads_no_network_library() -> None:
    program = (
        "import sys, nmt.data.multi30k\n"
        "print(sorted({'requests', 'urllib3', 'portalocker', 'tqdm', 'torch', 'spacy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------- the real data


def test_every_split_and_language_has_a_pinned_hash() -> None:
    names = {f"{split}.{language}.gz" for split in multi30k.SPLITS for language in multi30k.LANGUAGES}
    assert set(REAL_HASHES) == names
    assert all(len(bytes.fromhex(digest)) == 32 for digest in REAL_HASHES.values())
    assert multi30k.COMMIT in multi30k.ADDRESS


@pytest.mark.skipif("NMT_MULTI30K" not in os.environ, reason="NMT_MULTI30K names no folder with Multi30k")
def test_the_real_files_have_the_pinned_hashes_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi30k, "SHA256", REAL_HASHES)
    counts = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000, "test_2017_flickr": 1_000}
    found = fetch(list(counts), cache=tmp_path, mirror=os.environ["NMT_MULTI30K"], offline=True)
    assert {name: len(read_parallel(files.source, files.target)) for name, files in found.items()} == counts
