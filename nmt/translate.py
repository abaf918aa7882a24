"""Stage: a model and text in, translations out; `Translator` is also the public Python API.

from nmt import Translator
translator = Translator.load("runs/base")
print(translator.translate(["Ein Hund läuft."], beam=5)[0].text)

Letters: B sentences, S source tokens, T target tokens, L decoder layers, H heads.
"""

from __future__ import annotations

import functools
import logging
import re
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, Unpack, cast

import numpy as np
import torch

from nmt.config import Config, DecodeConfig, config_from_mapping
from nmt.data.batching import Batch, cut_batches, make_batch, pad_source
from nmt.data.corpus import iter_lines
from nmt.data.dataset import Ragged, Split
from nmt.data.text import MARK, Tokenizer, detokenize, normalise, unescape
from nmt.data.vocabulary import BOS, EOS, SPECIALS, UNK, Vocabulary
from nmt.decoding.search import SearchOptions, search
from nmt.decoding.state import Hypothesis
from nmt.errors import ConfigError, DataError, NmtError
from nmt.model.packed import packed
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, check_ensemble, load_models, model_name, resolve_model, shipped_model
from nmt.runtime import (
    DecodingPrecision,
    default_model,
    device_line,
    package_version,
    select_device,
    select_precision,
)

log = logging.getLogger("nmt")

CHUNK_LINES = 1024
"""Most lines of a stream that are translated together: enough to fill batches, few enough to wait for."""
CHUNK_CHARS = 1_000_000
"""A chunk ends with the line that makes it this long, so that huge lines do not pile up."""
READ_BYTES = 1 << 16
ALIGN_TOKENS = 2048
"""Most source or target positions of a batch whose attention is kept at once."""
LANGUAGES = (
    "af am ar az bg bn bo ca cs da de el en es et eu fa fi fo fr ga gd gu he hi hr ht hu hy id is it ja kn "
    "ko ky la lb lg lt lv mk ml mr ms nb ne nl nn pl pt ro ru sa si sk sl sq sr sv ta te th ti tl tn tr "
    "tt uk ur vi yo zh"
)
"""The endings of a file that name its language: spaCy's codes of two letters."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One line and what it became; a blank line becomes an empty one with score 0."""

    source: str
    text: str
    score: float
    """What the search ranks by: log_prob / length^length_penalty; the length is that of `token_log_probs`."""
    tokens: tuple[str, ...]
    """The vocabulary's pieces that `text` was joined from; a word copied from the source is itself."""
    log_prob: float = 0.0
    """Natural logarithm of the probability that the model gives `tokens` and the end behind them."""
    token_log_probs: tuple[float, ...] = ()
    """The terms of `log_prob`: one for each token, and one for the end unless the length limit cut it off."""
    source_tokens: tuple[str, ...] = ()
    """The source's pieces, as far as they were read; an unknown one is as it was written."""
    alignment: tuple[int, ...] | None = None
    """If asked for: which source token each token looked at most, by the mean of the last layer's heads."""
    alternatives: tuple[Translation, ...] = ()
    """If asked for: the next best translations, in falling order."""


class SearchSettings(TypedDict, total=False):
    """How to translate; what is absent or None is as the model's own config has it."""

    beam: int | None
    """Hypotheses followed side by side; 1 is greedy search."""
    length_penalty: float | None
    """alpha: hypotheses are ranked by log_prob / length^alpha."""
    min_length: int | None
    """A translation has at least so many tokens."""
    max_length_ratio: float | None
    """It has at most max_length_ratio * source tokens + max_length_extra tokens."""
    max_length_extra: int | None
    """See max_length_ratio."""
    batch_tokens: int | None
    """Most source positions that are decoded at once; each hypothesis of a beam counts."""
    nbest: int
    """So many translations of each text, by default 1; no more than `beam` without sampling."""
    sample: float | None
    """Draw tokens at this temperature in place of searching; 1 draws from the model's own probabilities."""
    seed: int
    """What is drawn depends on this, by default 1, and on the text alone."""
    copy_unknown: bool
    """Let a word model say `<unk>`, and put the source token there that it looked at most."""
    align: bool
    """Fill `Translation.alignment`."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Search settings, checked."""

    options: SearchOptions
    copy_unknown: bool
    align: bool


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Ids, and the text that each of them stands for."""

    ids: Sequence[int]
    pieces: Sequence[str]

    def first(self, count: int) -> _Spelling:
        return _Spelling(self.ids[:count], self.pieces[:count])


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """A translation and where the decoder looked in the source for each of its tokens."""

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
            [readable(token) for token in self.source_tokens],
            [readable(token) for token in self.target_tokens],
            Path(path),
            title=f"Attention over the source, decoder layer {number} of {len(self.weights)}",
        )


class Translator:
    """A loaded model, or an ensemble, that translates text; threads may share one, and take turns.

    In float32 a text always gets the same translation, whatever is translated beside it.
    """

    def __init__(self, model: Model, *others: Model, dtype: torch.dtype = torch.float32) -> None:
        check_ensemble((model, *others))
        data = model.config.data
        self.model = model
        self.networks = tuple(packed(each.network, dtype) for each in (model, *others))
        self.device = next(model.network.parameters()).device
        self._dtype = dtype
        self._lowercase = data.src_lowercase
        self._tokenizer = Tokenizer(data.src_lang, data.src_pipeline)
        self._lock = threading.Lock()
        _warn_of_another_spacy((model, *others))

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path] | None = None,
        *,
        device: str = "auto",
        precision: DecodingPrecision = "auto",
    ) -> Translator:
        """Load a model file or the best model of a run folder.

        Without `path` it is the model that $NMT_MODEL names, else the one that comes with nmt, which is also
        known as "multi30k-de-en".

        Several paths are an ensemble, whose probabilities are averaged; the search's settings are the first
        one's. Raises ModelFileError if there is none, it is damaged, or the models do not fit together,
        DeviceError for a device or precision that is not here, DataError if the spaCy pipeline that the model
        was trained with is not installed.
        """
        paths = (path,) if path is None or isinstance(path, str | Path) else path
        files = [
            resolve_model(Path(each) if each is not None else default_model() or shipped_model())
            for each in paths or (None,)
        ]
        where = select_device(device)
        dtype = select_precision(precision, where, training=False)
        models = load_models(files, where)
        for file in files:
            log.info("model %s on %s", model_name(file), device_line(where, dtype))
        return cls(*models, dtype=dtype)

    def translate(
        self,
        texts: Iterable[str],
        *,
        prefixes: Sequence[str] | None = None,
        **settings: Unpack[SearchSettings],
    ) -> list[Translation]:
        """Translate each text as one sentence; one translation for each, in order.

        prefixes: what the translation of each text is to begin with; blank where it is free. `settings` are
        those of `SearchSettings`, such as beam=5 or nbest=3. Raises ConfigError for settings that cannot be.
        """
        lines = _texts("texts", texts)
        starts = None if prefixes is None else _texts("prefixes", prefixes)
        if starts is not None and len(starts) != len(lines):
            raise ValueError(f"{len(lines)} texts, but {len(starts)} prefixes")
        return self._translate(lines, starts, 1, self._request(**settings))

    def stream(
        self,
        lines: Iterable[str],
        *,
        interactive: bool = False,
        prefix: str | None = None,
        **settings: Unpack[SearchSettings],
    ) -> Iterator[Translation]:
        """Translate lines as they come, in order, holding only some of them at a time.

        Lines are translated together by the hundred; `ArrivingLines` are not waited for to fill a hundred,
        and where `interactive` each line is answered before the next is asked for. Each translation begins
        with `prefix`; `settings` are as in `translate`.
        """
        request = self._request(**settings)
        first_line = 1
        for chunk in _chunks(lines, 1 if interactive else CHUNK_LINES):
            starts = None if prefix is None else [prefix] * len(chunk)
            yield from self._translate(chunk, starts, first_line, request)
            first_line += len(chunk)

    def attention(
        self, text: str, *, prefix: str | None = None, **settings: Unpack[SearchSettings]
    ) -> Alignment:
        """Translate one text and tell where the decoder looked for each token, in every layer and head.

        The weights are those of the finished translation read back in float32. Raises DataError for a blank
        text, ConfigError for an ensemble.
        """
        if len(self.networks) > 1:
            raise ConfigError("an ensemble has no one attention", hint="name one of its models alone")
        request = self._request(**settings)
        (source,), (start,), (found,) = self._search([text], prefix and [prefix], 1, request.options)
        (translation,) = self._translations([text], [source], [start], [found], request)
        target = [*found[0].ids, *([EOS] if found[0].finished else [])]
        if not source.ids or not target:
            raise DataError("a blank line has no attention", hint="give it a sentence")
        src, src_keep = (tensor.to(self.device) for tensor in pad_source([source.ids]))
        tgt_in = torch.tensor([[BOS, *target[:-1]]], device=self.device)  # (1,T)
        with self._lock, torch.inference_mode():
            attention = self.model.network.attention(src, src_keep, tgt_in)
        return Alignment(
            translation,
            tuple(self.model.src_vocabulary.pieces[i] for i in src[0].tolist()),
            tuple(self.model.tgt_vocabulary.pieces[i] for i in target),
            torch.cat(attention.decoder_cross).float().cpu(),  # (L,H,T,S)
        )

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Source ids of each text, as preparation makes them: without specials, none for a blank text."""
        return [self.model.src_vocabulary.encode(tokens) for tokens in self._tokenize(texts)]

    def _request(
        self,
        *,
        nbest: int = 1,
        sample: float | None = None,
        seed: int = 1,
        copy_unknown: bool = False,
        align: bool = False,
        **decode: Any,
    ) -> _Request:
        """The settings, checked; `decode` are keys of the config's section."""
        if copy_unknown and self.model.tgt_vocabulary.kind != "word":
            raise ConfigError(
                "unknown words are copied by word models, and this one spells words in pieces",
                hint="leave out --copy-unknown (in Python copy_unknown)",
            )
        if unknown := decode.keys() - SearchSettings.__annotations__.keys():
            raise TypeError(f"unknown search setting: {', '.join(sorted(unknown))}")
        options = SearchOptions(
            decode=changed_decode(self.model.config, **decode),
            nbest=nbest,
            sample_temperature=sample,
            seed=seed,
            allow_unk=copy_unknown,
        )
        return _Request(options, copy_unknown, align)

    def _translate(
        self, texts: Sequence[str], prefixes: Sequence[str] | None, first_line: int, request: _Request
    ) -> list[Translation]:
        return self._translations(texts, *self._search(texts, prefixes, first_line, request.options), request)

    def _search(
        self, texts: Sequence[str], prefixes: Sequence[str] | None, first_line: int, options: SearchOptions
    ) -> tuple[list[_Spelling], list[_Spelling], list[tuple[Hypothesis, ...]]]:
        """Each text as far as it is read, its prefix, and what was found."""
        sources = []
        for number, tokens in enumerate(self._tokenize(texts), first_line):
            source = _spell(tokens, self.model.src_vocabulary)
            warn_if_cut(number, len(source.ids), options.decode)
            sources.append(source.first(options.decode.max_source_tokens))
        starts = self._spell_prefixes(prefixes) if prefixes else [_Spelling((), ())] * len(texts)
        options = replace(options, prefixes=[start.ids for start in starts])
        sentences = [source.ids for source in sources]
        with self._lock, computing_in(self._dtype, self.device):  # the table of positions grows on use
            return sources, starts, search(self.networks, sentences, options, device=self.device)

    def _translations(
        self,
        texts: Sequence[str],
        sources: Sequence[_Spelling],
        starts: Sequence[_Spelling],
        found: Sequence[Sequence[Hypothesis]],
        request: _Request,
    ) -> list[Translation]:
        """The best translation of each text, its alternatives in it."""
        rows = [
            (row, hypothesis)
            for row, hypotheses in enumerate(found)
            for hypothesis in hypotheses
            if sources[row].ids and (request.align or (request.copy_unknown and UNK in hypothesis.ids))
        ]
        attended = self._attended([(sources[row].ids, hypothesis.ids) for row, hypothesis in rows])
        looked_at = {(row, each.ids): places for (row, each), places in zip(rows, attended, strict=True)}
        translations = []
        for row, (text, source, start) in enumerate(zip(texts, sources, starts, strict=True)):
            best, *others = [
                self._translation(
                    text, source, start, each, looked_at.get((row, each.ids), ()), request.align
                )
                for each in found[row]
            ]
            translations.append(replace(best, alternatives=tuple(others)))
        return translations

    def _translation(
        self,
        text: str,
        source: _Spelling,
        start: _Spelling,
        hypothesis: Hypothesis,
        looked_at: Sequence[int],
        align: bool,
    ) -> Translation:
        """looked_at: the source token for each of the hypothesis's, where that is needed."""
        tokens = [
            start.pieces[place]
            if place < len(start.pieces)
            else source.pieces[looked_at[place]]
            if token == UNK
            else self.model.tgt_vocabulary.pieces[token]
            for place, token in enumerate(hypothesis.ids)
        ]
        return Translation(
            text,
            detokenize(tokens),
            hypothesis.score,
            tuple(tokens),
            hypothesis.log_prob,
            hypothesis.token_log_probs,
            tuple(source.pieces),
            tuple(looked_at) if align else None,
        )

    def _attended(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[int, ...]]:
        """For each target token of each pair of ids, the place of the source token that was looked at most.

        It is the mean of the last layer's heads, and of an ensemble's networks; `<eos>`, which is no token of
        the source's, is left out.
        """
        best: list[tuple[int, ...]] = [()] * len(pairs)
        if not pairs:
            return best
        sources = Ragged.of([source for source, _ in pairs], len(self.model.src_vocabulary))
        targets = Ragged.of([target for _, target in pairs], len(self.model.tgt_vocabulary))
        split, longest = Split("", sources, targets), np.maximum(sources.lengths, targets.lengths) + 1
        for rows in cut_batches(np.argsort(longest, kind="stable"), longest, ALIGN_TOKENS):
            batch = make_batch(split, rows).to(self.device)
            with self._lock, torch.inference_mode():
                weights = mean_attention(self.networks, batch)  # (B,T,S)
            weights = weights.masked_fill(((batch.src == EOS) | ~batch.src_keep)[:, None, :], -1.0)
            for row, found in zip(rows.tolist(), weights.argmax(-1).tolist(), strict=True):
                best[row] = tuple(found[: targets.lengths[row]])
        return best

    def _tokenize(self, texts: Iterable[str]) -> list[list[str]]:
        with self._lock:  # one tokeniser, whose tables grow on use
            lines = (normalise(text, lowercase=self._lowercase) for text in texts)
            return list(self._tokenizer.tokenize_many(lines))

    def _spell_prefixes(self, prefixes: Sequence[str]) -> list[_Spelling]:
        lines = [normalise(text, lowercase=self.model.config.data.tgt_lowercase) for text in prefixes]
        return [
            _spell(tokens, self.model.tgt_vocabulary) for tokens in self._tgt_tokenizer.tokenize_many(lines)
        ]

    @functools.cached_property
    def _tgt_tokenizer(self) -> Tokenizer:
        data = self.model.config.data
        return Tokenizer(data.tgt_lang, data.tgt_pipeline)


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
    """A context in which the network computes in `dtype`, its weights staying float32.

    On the CPU `nmt.model.packed` sees to it.
    """
    if device.type == "cpu" or dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def changed_decode(config: Config, **given: Any) -> DecodeConfig:
    """The config's settings for the search with those changed that are not None; raises ConfigError."""
    changed = {key: value for key, value in given.items() if value is not None}
    if not changed:
        return config.decode
    values = config.model_dump(mode="json")
    values["decode"] |= changed
    return config_from_mapping(values, "the search's settings").decode


def warn_if_cut(line: int, length: int, decode: DecodeConfig) -> bool:
    """Say that a source line is longer than is read; returns whether it is."""
    limit = decode.max_source_tokens
    if length > limit:
        log.warning("line %d: cut from %d tokens to %d (decode.max_source_tokens)", line, length, limit)
    return length > limit


def warn_of_another_language(file: Path, language: str, does: str) -> None:
    """Say that a file's ending names another language than the one that the model "reads" or "writes"."""
    ending = Path(file.name.removesuffix(".gz")).suffix[1:]
    if ending in LANGUAGES.split() and language not in (ending, "xx"):  # xx is any language
        log.warning("%s ends in .%s, but the model %s %s", file, ending, does, language)


def readable(piece: str) -> str:
    """A piece as a reader takes it: plain where a space stands before it, else with a `+` in front."""
    if piece in SPECIALS:
        return piece
    text = unescape(piece.removeprefix(MARK)).replace(" ", "␣")
    return text or "␣" if piece.startswith(MARK) else f"+{text}"


def mean_attention(networks: Sequence[Transformer], batch: Batch) -> torch.Tensor:
    """The mean (B,T,S) of the heads of the last layers' attention over the source, and of the networks."""
    looks = []
    for network in networks:
        record: list[torch.Tensor] = []
        memory = network.memory_keys_values(network.encode(batch.src, batch.src_keep))
        network.advance(batch.tgt_in, memory, batch.src_keep, record=record)
        looks.append(record[-1].mean(1))
    return torch.stack(looks).mean(0)


def _texts(name: str, texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise TypeError(f"translate takes a list of {name}: [text] for a single one")
    lines = list(texts)
    if wrong := [type(line).__name__ for line in lines if not isinstance(line, str)]:
        raise TypeError(f"translate takes texts, and a {wrong[0]} is none")
    return lines


def _spell(tokens: Iterable[str], vocabulary: Vocabulary) -> _Spelling:
    """The tokens' ids, each with its piece; where that is `<unk>`, with what stands there in the token."""
    all_ids: list[int] = []
    pieces: list[str] = []
    for token in tokens:
        ids = vocabulary.encode([token])
        all_ids += ids
        known = [vocabulary.pieces[i] for i in ids]
        if UNK in ids:
            pattern = "".join("(.+?)" if i == UNK else f"({re.escape(vocabulary.pieces[i])})" for i in ids)
            match = re.fullmatch(pattern, token, re.DOTALL)
            known = list(match.groups()) if match else known
        pieces += known
    return _Spelling(all_ids, pieces)


def _warn_of_another_spacy(models: Sequence[Model]) -> None:
    here = package_version("spacy")
    trained = {model.provenance.get("versions", {}).get("spacy") for model in models} - {None, here}
    for version in sorted(trained):
        log.warning(
            "the model was trained with spaCy %s, here is %s: words may be cut otherwise", version, here
        )


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
