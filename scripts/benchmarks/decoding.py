"""Decoding with nmt: sentences a second by batch size, and how long one sentence takes."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.base import (
    BEAMS,
    Bench,
    Section,
    search_name,
    seconds_of,
)
from nmt.config import DecodeConfig
from nmt.decoding.search import SearchOptions, search
from nmt.decoding.state import Hypothesis
from nmt.evaluate import System, load_system, split_task, translated_lines
from nmt.scoring.metrics import bleu

BATCHES = (1, 16, 128)
"""So many sentences at once."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model as `nmt translate` uses it, on the sentences of the split that is decoded."""

    system: System
    sentences: list[list[int]]
    references: list[str]

    def translate(self, sentences: Sequence[Sequence[int]], **decode: Any) -> list[Hypothesis]:
        """The best translation of each; `decode` are settings in place of the model's."""
        settings = self.system.decode.model_copy(update=decode)
        with computing_in(self.system):
            found = search(
                self.system.decoders, sentences, SearchOptions(decode=settings), device=self.system.device
            )
        return [hypotheses[0] for hypotheses in found]

    def bleu(self, hypotheses: Sequence[Hypothesis]) -> float:
        """BLEU of the translations of all sentences."""
        texts = translated_lines(self.system, hypotheses)
        return bleu(texts, self.references, lowercase=self.system.lowercase).value

    @property
    def decode(self) -> DecodeConfig:
        """The model's own settings for the search."""
        return self.system.decode


def computing_in(system: System) -> contextlib.AbstractContextManager[Any]:
    """The context that evaluation decodes in."""
    from nmt.translate import computing_in as context

    return context(system.dtype, system.device)


def decoder_of(bench: Bench, precision: Any = "auto") -> Decoder:
    """The model in a precision; raises DeviceError where the device does not have it."""
    system = load_system((bench.model,), device=str(bench.device), precision=precision)
    task = split_task(system.model, bench.data, bench.split_name)
    count = min(bench.sentences, len(task.ids))
    sentences = [task.ids.src[row].tolist() for row in range(count)]
    return Decoder(system, sentences, list(task.references[:count]))


def longest_translation(bench: Bench, decode: DecodeConfig) -> int:
    """The most tokens that any translation of the split that is decoded may have."""
    longest = int(bench.data.split(bench.split_name).src.lengths.max(initial=1))
    return int(decode.max_length_ratio * longest) + decode.max_length_extra


def decoding_section(bench: Bench) -> Section:
    """Sentences a second by batch size, and how long one sentence takes."""
    decoder = decoder_of(bench)
    speeds, latencies = {}, {}
    for beam in BEAMS:
        words = search_name(beam)
        decoder.translate(decoder.sentences[:4], beam=beam)
        for size in BATCHES:
            each = decode_in_calls(decoder, size, beam, bench)
            speeds[words, size] = 1 / statistics.fmean(each)
            if size == 1:
                latencies[words] = 1e3 * statistics.median(each)
    ratios = {
        f"{words}: batch {size} / batch 1": speeds[words, size] / speeds[words, 1]
        for words, size in speeds
        if size > 1
    }
    ratios["beam 5 / greedy, batch 128"] = speeds["beam 5", 128] / speeds["greedy", 128]
    figures = {f"{words}, batch {size}: sentences/s": speed for (words, size), speed in speeds.items()}
    figures |= {f"{words}: median ms of one sentence": spent for words, spent in latencies.items()}
    notes = ["batch N: N sentences of the split are given at once; nmt may cut them into smaller batches"]
    if not bench.trained:
        notes.append("the network is untrained and decodes each sentence to its length limit")
    return Section("decoding", ratios, figures, tuple(notes))


def decode_in_calls(decoder: Decoder, size: int, beam: int, bench: Bench) -> list[float]:
    """Seconds a sentence in each of several calls with `size` sentences."""
    sentences = decoder.sentences[: max(size, 16) if bench.quick else max(4 * size, 96)]
    parts = [sentences[start : start + size] for start in range(0, len(sentences), size)]
    return [
        seconds_of(functools.partial(decoder.translate, part, beam=beam), bench.device)[0] / len(part)
        for part in parts
    ]
