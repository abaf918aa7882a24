"""How far a long piece of work has come: a bar on a terminal, elsewhere a line of the log now and then."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("nmt")

INTERVAL_S = 10.0


@contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function that is to be told how many more sentences are done; a quiet log shows nothing."""
    if sys.stderr.isatty() and log.isEnabledFor(logging.INFO):
        from tqdm import tqdm

        with tqdm(total=total, desc=name, unit=" sentences", leave=False, file=sys.stderr) as bar:
            yield lambda count: bar.update(count) and None
        return
    done, last_s = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last_s
        done += count
        if time.monotonic() - last_s >= INTERVAL_S:
            last_s = time.monotonic()
            log.info("%s: %d of %d sentences", name, done, total)

    yield advance
