"""Decoding beside CTranslate2, with the same weights.

Each program is given the settings at which it is fastest, found by trying them; then they take turns.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.base import (
    BATCH_SIZES,
    BEAMS,
    Bench,
    Section,
    search_name,
    seconds_of,
)
from benchmarks.decoding import Decoder, decoder_of, longest_translation
from nmt.decoding.search import MAX_ROWS
from nmt.decoding.state import Hypothesis
from nmt.errors import DeviceError
from nmt.export import export
from nmt.runtime import DecodingPrecision

CTRANSLATE2_PRECISIONS = ("float32", "int8")
BLEU_TOLERANCE = 0.2
TITLE = "decoding beside CTranslate2"


@dataclass(frozen=True, slots=True)
class Setting:
    """How a program is run."""

    batch_size: int
    """Sentences at once."""
    inter_threads: int
    """Batches side by side; nmt decides that itself."""
    intra_threads: int
    """Threads for each of them."""

    def __str__(self) -> str:
        return f"batches of {self.batch_size}, {self.inter_threads} x {self.intra_threads} threads"


Translate = Callable[[Setting, int, Sequence[int]], list[Hypothesis]]
"""Setting, beam and the rows of the split -> a translation of each row."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program in one precision."""

    name: str
    translate: Translate
    layouts: Sequence[tuple[int, int]]
    """(inter, intra) threads that are tried."""
    most_rows: int
    """Most hypotheses that it decodes side by side."""

    def settings(self, beam: int, sizes: Sequence[int]) -> list[Setting]:
        """What is tried to find its best."""
        batches = dict.fromkeys(min(size, self.most_rows // beam) for size in sizes)
        return [Setting(size, *layout) for size in batches for layout in self.layouts]


def programs_of(bench: Bench) -> list[Program]:
    """nmt in each precision that it decodes in here, and CTranslate2."""
    threads, found = torch.get_num_threads(), []
    for precision in typing.get_args(DecodingPrecision):
        if precision == "auto":
            continue
        try:
            translate = _nmt(decoder_of(bench, precision))
        except DeviceError:
            continue
        layouts = [(1, count) for count in dict.fromkeys((1, threads))]
        found.append(Program(f"nmt, {precision}", translate, layouts, MAX_ROWS))
    exported = export(bench.model, format="ctranslate2", out=bench.folder / "ctranslate2").path
    layouts = [(inter, threads // inter) for inter in range(1, threads + 1) if threads % inter == 0]
    for precision in CTRANSLATE2_PRECISIONS:
        translate = _ctranslate2(bench, decoder_of(bench), exported, precision)
        found.append(Program(f"CTranslate2, {precision}", translate, layouts, 10**6))
    return found


def _nmt(decoder: Decoder) -> Translate:
    longest = max(map(len, decoder.sentences)) + 1

    def translate(setting: Setting, beam: int, rows: Sequence[int]) -> list[Hypothesis]:
        torch.set_num_threads(setting.inter_threads * setting.intra_threads)
        sentences = [decoder.sentences[row] for row in rows]
        return decoder.translate(sentences, beam=beam, batch_tokens=setting.batch_size * beam * longest)

    return translate


def _ctranslate2(bench: Bench, decoder: Decoder, exported: Path, precision: str) -> Translate:
    """CTranslate2 with the search settings that the README of an export names."""
    import ctranslate2

    source, target = decoder.system.model.src_vocabulary.pieces, decoder.system.model.tgt_vocabulary.pieces
    numbers = {piece: number for number, piece in enumerate(target)}
    sentences = [[source[i] for i in ids] for ids in decoder.sentences]
    decode, most = decoder.decode, longest_translation(bench, decoder.decode)

    @functools.lru_cache(maxsize=1)
    def loaded(inter_threads: int, intra_threads: int) -> Any:
        return ctranslate2.Translator(
            str(exported),
            device=bench.device.type,
            compute_type=precision,
            inter_threads=inter_threads,
            intra_threads=intra_threads,
        )

    def translate(setting: Setting, beam: int, rows: Sequence[int]) -> list[Hypothesis]:
        results = loaded(setting.inter_threads, setting.intra_threads).translate_batch(
            [sentences[row] for row in rows],
            max_batch_size=setting.batch_size,
            beam_size=beam,
            length_penalty=decode.length_penalty,
            patience=2 if beam > 1 else 1,
            min_decoding_length=decode.min_length,
            max_decoding_length=most,
            disable_unk=True,
            suppress_sequences=[["<pad>"], ["<bos>"]],
        )
        found = (tuple(numbers[piece] for piece in result.hypotheses[0]) for result in results)
        return [Hypothesis(ids, 0.0, 0.0, True) for ids in found]

    return translate


@dataclass(frozen=True, slots=True)
class Race:
    """One search by all programs in turn: all sentences together, or some of them one by one."""

    bench: Bench
    decoder: Decoder
    programs: Sequence[Program]
    beam: int
    one_by_one: bool

    @property
    def rows(self) -> range:
        """The sentences that count."""
        few = 10 if self.bench.quick else 60
        return range(min(len(self.decoder.sentences), few if self.one_by_one else 10**6))

    @property
    def words(self) -> str:
        """What is done, in words."""
        return f"{search_name(self.beam)}, {'one by one' if self.one_by_one else 'together'}"

    def run(self, program: Program, setting: Setting, rows: range) -> tuple[float, list[Hypothesis]]:
        """Seconds, where sentences come one by one the median one's, and the translations."""
        calls = [[row] for row in rows] if self.one_by_one else [list(rows)]
        answers = [
            seconds_of(functools.partial(program.translate, setting, self.beam, call), self.bench.device)
            for call in calls
        ]
        return statistics.median(spent for spent, _ in answers), [
            each for _, found in answers for each in found
        ]

    def best_setting(self, program: Program) -> Setting:
        """The fastest on the first 256 sentences."""
        sizes = (1,) if self.one_by_one else BATCH_SIZES[:1] if self.bench.quick else BATCH_SIZES
        spent = {}
        for setting in program.settings(self.beam, sizes):
            self.run(program, setting, self.rows[:4])
            spent[setting] = self.run(program, setting, self.rows[:256])[0]
        return min(spent, key=lambda setting: spent[setting])

    def result(self) -> Section:
        """Let them run; the section's part on this race."""
        settings = {program.name: self.best_setting(program) for program in self.programs}
        seconds: dict[str, list[float]] = {name: [] for name in settings}
        scores: dict[str, float] = {}
        for _ in range(self.bench.rounds):
            for program in self.programs:
                spent, found = self.run(program, settings[program.name], self.rows)
                seconds[program.name].append(spent)
                if not self.one_by_one:
                    scores[f"{program.name}, {search_name(self.beam)}: BLEU"] = self.decoder.bleu(found)
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        notes = [f"{self.words}, best of {name}: {setting}" for name, setting in settings.items()]
        if scores and max(scores.values()) - min(scores.values()) > BLEU_TOLERANCE:
            between = f"between {min(scores.values()):.2f} and {max(scores.values()):.2f}"
            notes.append(f"{self.words}: BLEU lies {between}, further apart than {BLEU_TOLERANCE}")
        return Section(self.words, self.ratios(medians), self.figures(medians) | scores, tuple(notes))

    def ratios(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Each of nmt's speeds over each of CTranslate2's."""
        mine = {name: spent for name, spent in seconds.items() if name.startswith("nmt")}
        return {
            f"{self.words}: speed of {name} / {other}": theirs / spent
            for other, theirs in seconds.items()
            if other not in mine
            for name, spent in mine.items()
        }

    def figures(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Milliseconds of one sentence, or sentences a second."""
        if self.one_by_one:
            return {f"{name}, {self.words}: median ms": 1e3 * spent for name, spent in seconds.items()}
        return {
            f"{name}, {self.words}: sentences/s": len(self.rows) / spent for name, spent in seconds.items()
        }


def ctranslate2_section(bench: Bench) -> Section:
    """Throughput, latency and BLEU of the same weights in nmt and CTranslate2, each at its best settings."""
    if importlib.util.find_spec("ctranslate2") is None:
        return Section(TITLE, {}, {}, ("not measured: CTranslate2 is not installed",))
    if not bench.trained:
        return Section(TITLE, {}, {}, ("not measured: name a trained model with --model",))
    threads = torch.get_num_threads()
    try:
        programs, decoder = programs_of(bench), decoder_of(bench)
        parts = [
            Race(bench, decoder, programs, beam, one_by_one).result()
            for one_by_one in (False, True)
            for beam in BEAMS
        ]
    finally:
        torch.set_num_threads(threads)
    ratios = {name: value for part in parts for name, value in part.ratios.items()}
    figures = {name: value for part in parts for name, value in part.figures.items()}
    return Section(TITLE, ratios, figures, tuple(note for part in parts for note in part.notes))
