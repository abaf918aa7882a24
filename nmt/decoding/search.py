"""Translations of any number of sentences: batches, lengths, and which kind of search it is.

Letters: B sentences, N rows being decoded, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.config import DecodeConfig
from nmt.data.batching import cut_batches, pad_source
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.decoding.beam import beam_search
from nmt.decoding.greedy import greedy
from nmt.decoding.rules import Rules
from nmt.decoding.sampling import batch_noise, draw
from nmt.decoding.state import Hypothesis
from nmt.errors import ConfigError, DataError
from nmt.model.transformer import Transformer

MAX_ROWS = 192
"""Most hypotheses decoded at once, so that keys and values of many short ones do not fill the memory."""

Ids = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What to search for, beside the settings in `decode`. Raises ConfigError for what cannot be."""

    decode: DecodeConfig
    nbest: int = 1
    """So many translations of each sentence, best first; without sampling no more than `decode.beam`."""
    prefixes: Sequence[Ids] | None = None
    """One for each sentence: the ids that its translation begins with; they count as if they were found."""
    sample_temperature: float | None = None
    """Draw from softmax(log_probs / temperature) in place of searching; `decode.beam` has no say then."""
    seed: int = 1
    """Together with the sentence's ids it decides what is drawn, and nothing else does."""
    allow_unk: bool = False
    """Whether `<unk>` may come."""

    def __post_init__(self) -> None:
        temperature, beam = self.sample_temperature, self.decode.beam
        if self.nbest < 1:
            raise ConfigError(f"{self.nbest} translations of a sentence: at least one is needed")
        if temperature is None and self.nbest > beam:
            raise ConfigError(
                f"{self.nbest} translations of a sentence cannot come from a beam of {beam}",
                hint=f"widen the beam to {self.nbest} or more, or ask for fewer",
            )
        if temperature is not None and not 0.0 < temperature < math.inf:
            raise ConfigError(
                f"a sampling temperature of {temperature}: it must be above 0 and finite",
                hint="1 draws from the model's own probabilities; the most probable tokens need no sampling",
            )
        if self.seed < 0:
            raise ConfigError(f"a seed of {self.seed}: it must be 0 or more")

    @property
    def rows(self) -> int:
        """Hypotheses of a sentence that are decoded side by side."""
        return self.decode.beam if self.sample_temperature is None else self.nbest


def search(
    networks: Sequence[Transformer],
    sentences: Sequence[Ids],
    options: SearchOptions,
    *,
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """The up to `options.nbest` translations of each sentence (ids without specials), in the order given.

    Several networks are an ensemble: the average of their probabilities counts, so their vocabularies must be
    the same. A sentence without tokens gets one empty, finished hypothesis. Source tokens beyond
    `decode.max_source_tokens` are not read; to warn of them is the caller's part. After each batch `progress`
    is told how many sentences it held. The networks decode in eval mode and get their former modes back.
    Raises DataError for a prefix that the networks have too few positions for.
    """
    decode = options.decode
    prefixes = [()] * len(sentences) if options.prefixes is None else options.prefixes
    _check(networks, sentences, prefixes)
    results: list[tuple[Hypothesis, ...]] = [(Hypothesis((), 0.0, 0.0, True),)] * len(sentences)
    lengths = np.array([min(len(ids), decode.max_source_tokens) for ids in sentences], dtype=np.int64)
    longest_first = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]  # without the empty ones
    budget, most = max(decode.batch_tokens // options.rows, 1), max(MAX_ROWS // options.rows, 1)
    batches = list(cut_batches(longest_first, lengths + 1, budget, most))

    def search_batch(rows: Ids) -> list[tuple[Hypothesis, ...]]:
        batch = [sentences[row][: lengths[row]] for row in rows]
        return _search(networks, batch, [prefixes[row] for row in rows], options, device)

    with _evaluating(networks), _mapping(len(batches), device) as mapped:
        for rows, found in zip(batches, mapped(search_batch, batches), strict=True):
            for row, hypotheses in zip(rows, found, strict=True):
                results[row] = hypotheses
            if progress is not None:
                progress(len(rows))
    if progress is not None and (empty := len(lengths) - len(longest_first)):
        progress(empty)
    return results


def translate_ids(
    network: Transformer,
    sentences: Sequence[Ids],
    decode: DecodeConfig,
    *,
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> list[Hypothesis]:
    """One network's best translation of each sentence; see `search`."""
    found = search([network], sentences, SearchOptions(decode=decode), device=device, progress=progress)
    return [hypotheses[0] for hypotheses in found]


def _search(
    networks: Sequence[Transformer],
    batch: Sequence[Ids],
    prefixes: Sequence[Ids],
    options: SearchOptions,
    device: torch.device | str,
) -> list[tuple[Hypothesis, ...]]:
    """Translate one batch."""
    if options.sample_temperature is not None:
        return _sample(networks, batch, prefixes, options, device)
    decode, alpha = options.decode, options.decode.length_penalty
    source = _source(batch, device)
    rules = _rules(networks, batch, prefixes, options, device)
    if decode.beam > 1:
        return beam_search(
            networks,
            *source,
            rules,
            beam=decode.beam,
            nbest=options.nbest,
            length_penalty=alpha,
            patience=decode.patience,
        )
    return [(found,) for found in greedy(networks, *source, rules, length_penalty=alpha)]


def _sample(
    networks: Sequence[Transformer],
    batch: Sequence[Ids],
    prefixes: Sequence[Ids],
    options: SearchOptions,
    device: torch.device | str,
) -> list[tuple[Hypothesis, ...]]:
    """Draw `options.nbest` translations of each sentence of a batch; each is a row of its own."""
    samples, temperature = options.nbest, options.sample_temperature
    assert temperature is not None
    batch = [ids for ids in batch for _ in range(samples)]
    prefixes = [prefix for prefix in prefixes for _ in range(samples)]
    rules = _rules(networks, batch, prefixes, options, device)
    noise = batch_noise(options.seed, batch[::samples], samples, int(rules.max_lengths.max()) + 1).to(device)

    def choose(log_probs: Tensor, position: int, rows: Tensor) -> Tensor:
        return draw(log_probs, temperature, noise[rows, position])

    alpha = options.decode.length_penalty
    drawn = greedy(networks, *_source(batch, device), rules, length_penalty=alpha, choose=choose)
    groups = [drawn[start : start + samples] for start in range(0, len(drawn), samples)]
    return [tuple(sorted(group, key=lambda hypothesis: -hypothesis.score)) for group in groups]


def _source(batch: Sequence[Ids], device: torch.device | str) -> tuple[Tensor, Tensor]:
    src, src_keep = pad_source(batch)
    return src.to(device), src_keep.to(device)


def _rules(
    networks: Sequence[Transformer],
    batch: Sequence[Ids],
    prefixes: Sequence[Ids],
    options: SearchOptions,
    device: torch.device | str,
) -> Rules:
    decode = options.decode
    limits = [
        max(_limit(len(ids), decode, _positions(networks)), len(prefix))
        for ids, prefix in zip(batch, prefixes, strict=True)
    ]
    return Rules.of(limits, prefixes, decode.min_length, options.allow_unk, device)


def _limit(source_tokens: int, decode: DecodeConfig, max_positions: int | None) -> int:
    """The most tokens of a translation: as the settings say, and with `<bos>` no more than have positions."""
    limit = int(decode.max_length_ratio * source_tokens) + decode.max_length_extra
    return limit if max_positions is None else min(limit, max_positions - 1)


def _positions(networks: Sequence[Transformer]) -> int | None:
    """The longest target, `<bos>` counted, that all networks have positions for; None: any length."""
    return min((n.max_positions for n in networks if n.max_positions is not None), default=None)


def _check(networks: Sequence[Transformer], sentences: Sequence[Ids], prefixes: Sequence[Ids]) -> None:
    sizes = {network.projection.out_features for network in networks}
    if len(sizes) != 1:
        raise ValueError(f"an ensemble needs one target vocabulary, not sizes {sorted(sizes)}")
    positions = _positions(networks)
    for line, (_, prefix) in enumerate(zip(sentences, prefixes, strict=True), start=1):
        if not {PAD, BOS, EOS}.isdisjoint(prefix):
            raise ValueError(f"prefix {line} holds a special token")
        if positions is not None and len(prefix) >= positions:
            raise DataError(
                f"prefix {line} has {len(prefix)} tokens, the model has positions for {positions - 1}",
                hint="shorten it",
            )


@contextmanager
def _mapping(batches: int, device: torch.device | str) -> Iterator[Callable[..., Iterable[Any]]]:
    """What calls a function on one batch after the other: `map`, and on the CPU in as many threads as torch.

    There a thread for each batch is faster than all threads for one, whose steps are short.
    """
    threads = torch.get_num_threads()
    device_type = torch.device(device).type
    if min(threads, batches) < 2 or device_type != "cpu" or torch.is_autocast_enabled(device_type):
        yield map
        return
    pool = ThreadPoolExecutor(min(threads, batches), "nmt-search", torch.set_num_threads, (1,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


@contextmanager
def _evaluating(networks: Sequence[Transformer]) -> Iterator[None]:
    """Eval mode inside, and each module's own mode again afterwards."""
    training = [module for network in networks for module in network.modules() if module.training]
    for module in training:  # mostly there are none, and to look takes less time than to set
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
