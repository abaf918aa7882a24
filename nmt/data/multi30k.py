"""Multi30k, task 1, raw text: where its files are, what they must hash to, and how they reach the cache.

German and English captions of Flickr30k images (Elliott et al., 2016, doi 10.18653/v1/W16-3210; the 2017
test sets: Elliott et al., W17-4718). For research and education, not for commercial use: they are fetched
by whoever uses them and never shipped. Every file is pinned by its SHA-256 at one commit of the public
repository, so neither a changed upstream nor a broken transfer can alter a result unseen.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit, urlunsplit

from nmt.data.corpus import SplitFiles
from nmt.errors import DataError, DownloadError, MachineError
from nmt.files import only_one, sha256

log = logging.getLogger("nmt")

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
LANGUAGES = ("de", "en")
SPLITS = ("train", "val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_mscoco.de.gz": "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
    "test_2017_mscoco.en.gz": "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
    "test_2018_flickr.de.gz": "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608",
    "test_2018_flickr.en.gz": "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d",
}

CHUNK_BYTES = 1 << 16
TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a fetch may take and how often it tries."""

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0  # the longest silence
    file_timeout_s: float = 300.0  # all tries for one file together
    lock_timeout_s: float = 900.0
    tries: int = 3
    backoff_s: float = 1.0  # before the second try; twice that before the third


def fetch(
    splits: Sequence[str],
    *,
    cache: Path,
    mirror: str | None = None,
    offline: bool = False,
    languages: tuple[str, str] = LANGUAGES,
    limits: Limits = Limits(),
) -> dict[str, SplitFiles]:
    """Return the files of each named split, fetching those that the cache lacks; nothing is fetched twice.

    Files lie in `cache/multi30k/COMMIT`, and only whole and verified ones have their name. `mirror` is an
    http(s) address or a local folder that holds the `.gz` files; without it the public address is used.
    `languages` is (source, target). `offline` forbids addresses, not folders.

    Raises DataError (unknown split or language), DownloadError (nothing came, or not what is pinned),
    MachineError (disk full, no permission).
    """
    _check_known("split", splits, SPLITS)
    _check_known("language", languages, LANGUAGES)
    folder = cache / "multi30k" / COMMIT[:12]
    names = [f"{split}.{language}.gz" for split in dict.fromkeys(splits) for language in LANGUAGES]
    with _machine_faults(folder):
        if _lacking(folder, names):  # a full cache needs no lock, so it may be read-only
            _fill(folder, names, mirror or ADDRESS, offline, limits)
    source, target = languages
    return {
        split: SplitFiles(split, folder / f"{split}.{source}.gz", folder / f"{split}.{target}.gz")
        for split in splits
    }


# ---------------------------------------------------------------- the cache folder


def _fill(folder: Path, names: Sequence[str], origin: str, offline: bool, limits: Limits) -> None:
    is_address = _is_address(origin)
    if offline and is_address:
        lacking = _lacking(folder, names)
        raise DownloadError(
            f"{_without_password(_address(origin, lacking[0]))} is needed, but nmt is offline (NMT_OFFLINE)",
            hint=_other_ways(lacking),
        )
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    with only_one(lock, doing=f"fetching Multi30k into {folder}", timeout_s=limits.lock_timeout_s):
        lacking = _lacking(folder, names)  # again: whoever held the lock may have fetched them
        for name in lacking:
            if (folder / name).exists():
                log.warning("%s is damaged: it is fetched again", folder / name)
            if is_address:
                _download(_address(origin, name), folder / name, lacking, limits)
            else:
                _copy(Path(origin).expanduser() / name, folder / name)
    log.info("Multi30k is complete in %s", folder)


def _lacking(folder: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (folder / name).exists() or sha256(folder / name) != SHA256[name]]


def _save(path: Path, write: Callable[[BinaryIO], None], origin: str) -> None:
    """Let `write` fill a file beside `path`, which gets that name once it is whole and verified."""
    # One fixed name, safe under the lock: what a killed process has left is overwritten, never piled up.
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        found = sha256(part)
        if found != SHA256[path.name]:
            raise DownloadError(
                f"{origin} has SHA-256 {found}, but {SHA256[path.name]} is expected; it was not kept",
                hint=f"this is not the pinned {path.name}: {_other_ways([path.name])}",
            )
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # after Ctrl-C too


def _copy(source: Path, path: Path) -> None:
    def write(file: BinaryIO) -> None:
        try:
            data = source.read_bytes()
        except OSError as error:
            raise DownloadError(
                f"the mirror folder gives no {source}: {error.strerror}",
                hint=f"put {_address(ADDRESS, source.name)} there, or name another folder or an address",
            ) from error
        file.write(data)

    log.info("copying %s", source)
    _save(path, write, str(source))


@contextmanager
def _machine_faults(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot keep Multi30k in {folder}: {error.strerror or error}",
            hint="free some space or mend the permissions, or set NMT_CACHE to another folder",
        ) from error


# ---------------------------------------------------------------- the network


class _TransferError(Exception):
    """A fault that may have passed by the next try."""


def _download(url: str, path: Path, wanted: Sequence[str], limits: Limits) -> None:
    def write(file: BinaryIO) -> None:
        end_s = time.monotonic() + limits.file_timeout_s
        for attempt in range(1, limits.tries + 1):
            try:
                with closing(_receive(url, path.name, limits, end_s)) as chunks:
                    file.writelines(chunks)
                return
            except _TransferError as fault:
                pause_s = limits.backoff_s * 2 ** (attempt - 1)
                if attempt == limits.tries or time.monotonic() + pause_s > end_s:
                    tries = f"{attempt} tries" if attempt > 1 else "1 try"
                    raise _cannot_fetch(url, f"{fault} ({tries})", wanted) from fault
                log.warning("%s: %s; trying again in %g s", path.name, fault, pause_s)
                time.sleep(pause_s)
                file.seek(0)
                file.truncate()

    url_shown = _without_password(url)
    log.info("fetching %s", url_shown)
    _save(path, write, url_shown)


def _receive(url: str, name: str, limits: Limits, end_s: float) -> Generator[bytes]:
    """Yield what the address answers, in one try; what fails here is the network, never the disk."""
    import requests
    import urllib3

    left_s = max(end_s - time.monotonic(), 0.001)
    timeouts_s = (min(limits.connect_timeout_s, left_s), min(limits.read_timeout_s, left_s))
    # The bytes are wanted as they lie on the server, whose .gz some servers declare to be an encoding.
    headers = {"Accept-Encoding": "identity"}
    try:
        with requests.get(url, stream=True, timeout=timeouts_s, headers=headers) as answer:
            _check_status(answer.status_code, url, name)
            with _progress(name, answer.headers.get("Content-Length")) as advance:
                # read1 returns what has come, so that a server which drips cannot outlast the limit
                while chunk := answer.raw.read1(CHUNK_BYTES, decode_content=False):
                    yield chunk
                    advance(len(chunk))
                    if time.monotonic() > end_s:
                        raise _TransferError(f"not there within {limits.file_timeout_s:g} s")
    except (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError) as error:
        raise _TransferError(_reason(error, limits)) from error
    except OSError as error:  # every other fault of requests, a lost certificate bundle included
        raise _cannot_fetch(url, str(error), [name]) from error


def _check_status(status: int, url: str, name: str) -> None:
    if status >= 500 or status == TOO_MANY_REQUESTS:
        raise _TransferError(f"the server answers {status}")
    if status != 200:
        raise _cannot_fetch(url, f"the server answers {status}", [name])


def _reason(error: BaseException, limits: Limits) -> str:
    """Say a network fault in a few words: the libraries wrap the one that matters several deep."""
    import requests
    import urllib3

    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    by_proxy = "through the proxy that the environment names: " * isinstance(
        error, requests.exceptions.ProxyError
    )
    if isinstance(error, requests.ConnectTimeout):
        return f"{by_proxy}no connection within {limits.connect_timeout_s:g} s"
    if isinstance(error, requests.Timeout | urllib3.exceptions.ReadTimeoutError):
        return f"{by_proxy}silent for {limits.read_timeout_s:g} s"
    if any(isinstance(link, urllib3.exceptions.IncompleteRead) for link in chain):
        return f"{by_proxy}the answer was cut short"
    named = [text for link in chain if isinstance(link, OSError) and (text := link.strerror)]
    return by_proxy + (named[-1] if named else f"{type(chain[-1]).__name__}: {chain[-1]}")


@contextmanager
def _progress(name: str, length: str | None) -> Iterator[Callable[[int], object]]:
    """Show a bar on a terminal, unless the log is quiet; elsewhere the log's one line a file is enough."""
    if not (sys.stderr.isatty() and log.isEnabledFor(logging.INFO)):
        yield lambda _bytes: None
        return
    from tqdm import tqdm

    total = int(length) if length is not None and length.isdecimal() else None
    with tqdm(total=total, desc=name, unit="B", unit_scale=True, leave=False, file=sys.stderr) as bar:
        yield bar.update


# ---------------------------------------------------------------- addresses and words


def _is_address(origin: str) -> bool:
    if "://" not in origin:
        return False
    try:
        parts = urlsplit(origin)
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        )  # .port may raise
    except ValueError:
        is_usable = False
    if not is_usable:
        raise DownloadError(
            f"the mirror {origin!r} is neither an http(s) address nor a folder",
            hint="give an address such as https://HOST/FOLDER, or a folder that holds the .gz files",
        )
    return True


def _address(origin: str, name: str) -> str:
    return f"{origin.rstrip('/')}/{name}"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _check_known(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise DataError(f"Multi30k has no {kind} {name!r}", hint=f"it has: {', '.join(known)}")


def _cannot_fetch(url: str, reason: str, wanted: Sequence[str]) -> DownloadError:
    return DownloadError(f"cannot fetch {_without_password(url)}: {reason}", hint=_other_ways(wanted))


def _other_ways(wanted: Sequence[str]) -> str:
    return (
        f"get {', '.join(wanted)} in another way, put them into a folder and say `--set data.mirror=FOLDER` "
        "to nmt prepare or nmt train; or point --data at a folder with train.de, train.en, val.de, val.en"
    )
