"""How cost grows: by size of corpus, sentence and batch, and by threads."""

from __future__ import annotations

import random
import statistics

import torch

from benchmarks.base import (
    Bench,
    Run,
    Section,
    seconds_of,
)
from benchmarks.decoding import Decoder, decoder_of
from benchmarks.starting import prepare_run
from nmt.config import load_config
from nmt.data.captions import generate
from nmt.data.vocabulary import SPECIALS

CORPUS_TIMES = (1, 10, 100)
SOURCE_LENGTHS = (10, 25, 50, 100, 200, 400)
BATCH_SIZES = (1, 4, 16, 64, 256)


def growth_of_prepare_section(bench: Bench) -> Section:
    """Time and memory of `nmt prepare` for the captions, once and repeated."""
    times = CORPUS_TIMES[:2] if bench.quick else CORPUS_TIMES
    runs = {factor: _prepare(bench, factor) for factor in times}
    first = runs[times[0]]
    ratios = {}
    for factor in times[1:]:
        ratios[f"time of {factor}x / 1x the sentences"] = runs[factor].seconds / first.seconds
        ratios[f"memory of {factor}x / 1x the sentences"] = runs[factor].peak_mib / first.peak_mib
    figures = {f"{factor}x: s": run.seconds for factor, run in runs.items()}
    figures |= {f"{factor}x: peak MiB": run.peak_mib for factor, run in runs.items()}
    note = f"1x is {len(generate()['train']):,} training pairs of captions; repeated ones have no new words"
    return Section("growth of prepare", ratios, figures, (note,))


def _prepare(bench: Bench, factor: int) -> Run:
    text = bench.folder / f"captions-{factor}x"
    text.mkdir()
    for split, pairs in generate().items():
        for side, language in (("source", "de"), ("target", "en")):
            lines = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            times = factor if split == "train" else 1
            (text / f"{split}.{language}").write_text(lines * times, encoding="utf-8")
    return prepare_run(load_config("captions.yaml", source=str(text)), bench.folder / f"growth-{factor}x")


def growth_of_decoding_section(bench: Bench) -> Section:
    """Time a target token of greedy search, each translation being as long as its source."""
    decoder = decoder_of(bench)
    limit = decoder.system.model.network.max_positions
    lengths = [length for length in SOURCE_LENGTHS if limit is None or length < limit]
    lengths = lengths[:3] if bench.quick else lengths
    sizes = BATCH_SIZES[:3] if bench.quick else BATCH_SIZES
    figures = {
        f"{length} tokens, batch 16: ms a token": _ms_a_token(bench, decoder, length, 16)
        for length in lengths
    }
    ratios = {
        f"ms a token of {length} / {lengths[0]} tokens": spent / next(iter(figures.values()))
        for length, spent in zip(lengths[1:], list(figures.values())[1:], strict=True)
    }
    by_size = {size: _ms_a_token(bench, decoder, 20, size) for size in sizes}
    figures |= {f"20 tokens, batch {size}: ms a token": spent for size, spent in by_size.items()}
    ratios |= {
        f"ms a token of batch {size} / 1": spent / by_size[1] for size, spent in by_size.items() if size > 1
    }
    by_threads = _by_threads(bench, decoder)
    figures |= {f"{count} threads: sentences/s": speed for count, speed in by_threads.items()}
    ratios |= {
        f"sentences/s of {count} threads / 1": speed / by_threads[1]
        for count, speed in by_threads.items()
        if count > 1
    }
    note = "random sources; a translation is made exactly as long as its source; batch 16 is 16 sentences"
    return Section("growth of decoding", ratios, figures, (note,))


def _ms_a_token(bench: Bench, decoder: Decoder, length: int, size: int) -> float:
    """Median milliseconds a target token of a batch whose translations are as long as their sources."""
    numbers = random.Random(1)
    known = range(len(SPECIALS), len(decoder.system.model.src_vocabulary))
    sentences = [numbers.choices(known, k=length) for _ in range(size)]
    forced = {
        "beam": 1,
        "min_length": length,
        "max_length_ratio": 1.0,
        "max_length_extra": 0,
        "max_source_tokens": length,
        "batch_tokens": size * (length + 1),
    }
    spent = [
        seconds_of(lambda: decoder.translate(sentences, **forced), bench.device)[0]
        for _ in range(1 + (1 if bench.quick else 3))
    ]
    return 1e3 * statistics.median(spent[1:]) / (size * length)


def _by_threads(bench: Bench, decoder: Decoder) -> dict[int, float]:
    """Sentences a second of greedy search over the split with 1, 2, 4, … threads."""
    if bench.device.type != "cpu":
        return {}
    threads = torch.get_num_threads()
    counts = sorted({threads, *(2**power for power in range(threads.bit_length()) if 2**power <= threads)})
    speeds = {}
    try:
        for count in counts:
            torch.set_num_threads(count)
            decoder.translate(decoder.sentences[:8], beam=1)
            seconds, _ = seconds_of(lambda: decoder.translate(decoder.sentences, beam=1), bench.device)
            speeds[count] = len(decoder.sentences) / seconds
    finally:
        torch.set_num_threads(threads)
    return speeds
