"""Stage: a model and text in, translations out; `Translator` is also the public Python API.

from nmt import Translator
translator = Translator.load("runs/base")
print(translator.translate(["Ein Hund läuft."])[0].text)
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import torch

from nmt.config import DecodeConfig
from nmt.data.batching import pad_source
from nmt.data.corpus import iter_lines
from nmt.data.text import MARK, Tokenizer, detokenize, normalise, unescape
from nmt.data.vocabulary import BOS, EOS, SPECIALS
from nmt.decoding.greedy import translate_ids
from nmt.decoding.state import Hypothesis
from nmt.errors import DataError, ModelFileError, NmtError
from nmt.modelfile import Model, load_model, resolve_model
from nmt.runtime import (
    Precision,
    default_model,
    device_line,
    package_version,
    select_device,
    select_precision,
)

log = logging.getLogger("nmt")

CHUNK_LINES = 256
"""Most lines of a stream that are translated together: enough to fill batches, few enough to wait for."""
CHUNK_CHARS = 1_000_000
"""A chunk ends with the line that makes it this long, so that huge lines do not pile up."""
READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Translation:
    """One line and what it became; a blank line becomes an empty one with score 0."""

    source: str
    text: str
    score: float
    """Natural logarithm of the probability that the model gives `tokens`."""
    tokens: tuple[str, ...]
    """The vocabulary's pieces that `text` was joined from."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """A translation and where the decoder looked in the source for each of its tokens.

    Letters: L decoder layers, H heads, T target tokens, S source tokens.
    """

    translation: Translation
    source_tokens: tuple[str, ...]
    """The source's pieces as the model read them, with `<eos>`."""
    target_tokens: tuple[str, ...]
    """The translation's pieces, with `<eos>` unless the length limit cut it."""
    weights: torch.Tensor
    """(L,H,T,S) float32 on the CPU: the attention over the source from which each target token was predicted;
    over S they sum to 1."""

    def draw(self, path: str | Path, layer: int = -1) -> None:
        """Draw a decoder layer's heads and their mean as a PNG file; by default the last layer's.

        Raises MachineError if it cannot be written.
        """
        from nmt.scoring.heatmaps import draw_attention

        number = range(len(self.weights))[layer] + 1
        draw_attention(
            self.weights[layer].numpy(),
            [_readable(token) for token in self.source_tokens],
            [_readable(token) for token in self.target_tokens],
            Path(path),
            title=f"Attention over the source, decoder layer {number} of {len(self.weights)}",
        )


class Translator:
    """A loaded model that translates text; threads may share one, and take turns.

    In float32 a text always gets the same translation, whatever is translated beside it.
    """

    def __init__(self, model: Model, *, dtype: torch.dtype = torch.float32) -> None:
        data = model.config.data
        self.model = model
        self.device = next(model.network.parameters()).device
        self._dtype = dtype
        self._lowercase = data.src_lowercase
        self._tokenizer = Tokenizer(data.src_lang, data.src_pipeline)
        self._lock = threading.Lock()
        self._warn_of_another_spacy()

    @classmethod
    def load(
        cls, path: str | Path | None = None, *, device: str = "auto", precision: Precision = "auto"
    ) -> Translator:
        """Load a model file or the best model of a run folder; without `path` what $NMT_MODEL names.

        Raises ModelFileError if there is none or it is damaged, DeviceError for a device or precision that
        is not here, DataError if the spaCy pipeline that the model was trained with is not installed.
        """
        file = resolve_model(_or_default(path))
        where = select_device(device)
        dtype = select_precision(precision, where, training=False)
        model = load_model(file, where)
        log.info("model %s on %s", file, device_line(where, dtype))
        return cls(model, dtype=dtype)

    def translate(self, texts: Iterable[str]) -> list[Translation]:
        """Translate each text as one sentence; one translation for each, in order."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts: [text] for a single one")
        lines = list(texts)
        if wrong := [type(line).__name__ for line in lines if not isinstance(line, str)]:
            raise TypeError(f"translate takes texts, and a {wrong[0]} is none")
        return self._translate(lines, first_line=1)

    def stream(self, lines: Iterable[str], *, interactive: bool = False) -> Iterator[Translation]:
        """Translate lines as they come, in order, holding only some of them at a time.

        Lines are translated together by the hundred; `ArrivingLines` are not waited for to fill a hundred,
        and where `interactive` each line is answered before the next is asked for.
        """
        first_line = 1
        for chunk in _chunks(lines, 1 if interactive else CHUNK_LINES):
            yield from self._translate(chunk, first_line)
            first_line += len(chunk)

    def attention(self, text: str) -> Alignment:
        """Translate one text and tell where the decoder looked for each token, in every layer and head.

        The weights are those of the finished translation read back in float32. Raises DataError for a blank
        text.
        """
        (source,), (hypothesis,) = self._search([text], first_line=1)
        target = [*hypothesis.ids, *([EOS] if hypothesis.finished else [])]
        if not source or not target:
            raise DataError("a blank line has no attention", hint="give it a sentence")
        src, src_keep = (tensor.to(self.device) for tensor in pad_source([source]))
        tgt_in = torch.tensor([[BOS, *target[:-1]]], device=self.device)  # (1,T)
        with self._lock, torch.inference_mode():
            attention = self.model.network.attention(src, src_keep, tgt_in)
        return Alignment(
            self._translation(text, hypothesis),
            tuple(self.model.src_vocabulary.pieces[i] for i in src[0].tolist()),
            tuple(self.model.tgt_vocabulary.pieces[i] for i in target),
            torch.cat(attention.decoder_cross).float().cpu(),  # (L,H,T,S)
        )

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Source ids of each text, as preparation makes them: without specials, none for a blank text."""
        with self._lock:  # one tokeniser, whose tables grow on use
            lines = (normalise(text, lowercase=self._lowercase) for text in texts)
            return [
                self.model.src_vocabulary.encode(tokens) for tokens in self._tokenizer.tokenize_many(lines)
            ]

    def _translate(self, texts: Sequence[str], first_line: int) -> list[Translation]:
        _, hypotheses = self._search(texts, first_line)
        return [self._translation(*pair) for pair in zip(texts, hypotheses, strict=True)]

    def _search(self, texts: Sequence[str], first_line: int) -> tuple[list[Sequence[int]], list[Hypothesis]]:
        """The source ids of each text, as far as they are read, and what was found for them."""
        decode = self.model.config.decode
        sentences: list[Sequence[int]] = []
        for number, ids in enumerate(self.encode(texts), first_line):
            warn_if_cut(number, len(ids), decode)
            sentences.append(ids[: decode.max_source_tokens])
        with self._lock, computing_in(self._dtype, self.device):  # the table of positions grows on use
            return sentences, translate_ids(self.model.network, sentences, decode, device=self.device)

    def _translation(self, source: str, hypothesis: Hypothesis) -> Translation:
        pieces = self.model.tgt_vocabulary.decode(hypothesis.ids)
        return Translation(source, detokenize(pieces), hypothesis.score, tuple(pieces))

    def _warn_of_another_spacy(self) -> None:
        trained, here = self.model.provenance.get("versions", {}).get("spacy"), package_version("spacy")
        if trained not in (None, here):
            log.warning(
                "the model was trained with spaCy %s, here is %s: words may be cut otherwise", trained, here
            )


class ArrivingLines:
    """The lines of a byte stream, which can say whether the next one has already arrived.

    So a pipe's lines are taken together if they are there, and nobody waits for one still to come. Lines are
    those of `iter_lines`, which also names the errors raised.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._reader = _open_reader(stream)
        self._lines = iter_lines(cast(BinaryIO, self._reader), name)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._lines)

    def has_arrived(self) -> bool:
        """Whether the next line, or the end of the stream, can be had without waiting."""
        return self._reader.has_line()


def computing_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """A context in which the network computes in `dtype`, its weights staying float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def warn_if_cut(line: int, length: int, decode: DecodeConfig) -> bool:
    """Say that a source line is longer than is read; returns whether it is."""
    limit = decode.max_source_tokens
    if length > limit:
        log.warning("line %d: cut from %d tokens to %d (decode.max_source_tokens)", line, length, limit)
    return length > limit


def _readable(piece: str) -> str:
    """A piece as a reader takes it: plain where a space stands before it, else with a `+` in front."""
    if piece in SPECIALS:
        return piece
    text = unescape(piece.removeprefix(MARK)).replace(" ", "␣")
    return text or "␣" if piece.startswith(MARK) else f"+{text}"


def _or_default(path: str | Path | None) -> Path:
    chosen = Path(path) if path is not None else default_model()
    if chosen is None:
        raise ModelFileError(
            "no model was named, and $NMT_MODEL is not set",
            hint="name a model file or a run folder; nmt train makes one",
        )
    return chosen


def _chunks(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """Lists of up to `most` lines; those before a faulty line still come before the fault is raised."""
    has_arrived: Callable[[], bool] = lines.has_arrived if isinstance(lines, ArrivingLines) else lambda: True
    chunk: list[str] = []
    chars = 0
    try:
        for line in lines:
            chunk.append(line)
            chars += len(line)
            if len(chunk) >= most or chars >= CHUNK_CHARS or not has_arrived():
                yield chunk
                chunk, chars = [], 0
    except NmtError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


class _WaitingReader:
    """Lines of a stream that cannot be asked: a terminal's come one by one, others are taken to be there."""

    def __init__(self, stream: BinaryIO) -> None:
        self.readline = stream.readline
        self.has_line: Callable[[], bool] = lambda: not stream.isatty()


class _PollingReader:
    """Lines of a pipe, file or terminal whose descriptor the system can be asked about."""

    def __init__(self, stream: BinaryIO, descriptor: int) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._searched = 0
        """So many bytes of the buffer are known to hold no end of a line."""
        self._ended = False

    def readline(self) -> bytes:
        while (end := self._find_end()) is None:
            self._fill()
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._searched = 0
        return line

    def has_line(self) -> bool:
        while self._find_end() is None:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return False
            self._fill()
        return True

    def _find_end(self) -> int | None:
        end = self._buffer.find(b"\n", self._searched)
        if end >= 0:
            return end + 1
        self._searched = len(self._buffer)
        return len(self._buffer) if self._ended else None

    def _fill(self) -> None:
        # what the stream has read ahead, else one read of the system's that waits for the first byte alone
        data = self._stream.read1(READ_BYTES)  # type: ignore[attr-defined]
        self._buffer += data
        self._ended = not data


def _open_reader(stream: BinaryIO) -> _WaitingReader | _PollingReader:
    try:
        descriptor = stream.fileno()
        select.select([descriptor], [], [], 0)  # Windows can ask sockets only
    except (OSError, ValueError):  # io.UnsupportedOperation, for bytes in memory, is both
        return _WaitingReader(stream)
    return _PollingReader(stream, descriptor) if hasattr(stream, "read1") else _WaitingReader(stream)
