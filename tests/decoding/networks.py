"""Small networks and sentences for the tests of decoding, and what their outputs are held against.

Letters: S source length, T target length, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.data.vocabulary import BOS, EOS, UNK
from nmt.decoding.state import Hypothesis
from nmt.model.transformer import Transformer

SRC_WORDS, TGT_WORDS = 31, 13


def build(*, seed: int = 1, words: int = TGT_WORDS, **settings: Any) -> Transformer:
    """A small network in eval mode that says <eos> now and then, and would love to say the other specials."""
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 24, "heads": 4, "feed_forward": 40}
    config = ModelConfig(**{**shape, "dropout": 0.0, "share_embeddings": "none", **settings})
    network = Transformer(config, SRC_WORDS, words).eval()
    torch.manual_seed(seed)
    for (
        name,
        parameter,
    ) in network.named_parameters():  # drawn here, so that no test hangs on how training starts
        if parameter.dim() == 2:
            nn.init.xavier_normal_(parameter, gain=2.0 if "attention" in name else 1.0)
    network.projection = nn.Linear(24, words)
    nn.init.normal_(network.projection.weight, std=0.5)
    nn.init.zeros_(network.projection.bias)
    with torch.no_grad():
        network.projection.bias[:EOS] = 9.0
        network.projection.bias[EOS] = 1.0
    return network


def sentences(count: int, shortest: int = 1, longest: int = 12, seed: int = 0) -> list[list[int]]:
    """Random source sentences whose lengths are spread evenly from `shortest` to `longest`, shuffled."""
    generator = random.Random(seed)
    lengths = [shortest + (longest - shortest) * i // max(count - 1, 1) for i in range(count)]
    generator.shuffle(lengths)
    return [[generator.randrange(4, SRC_WORDS) for _ in range(length)] for length in lengths]


def source(ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One sentence as src (1,S) and src_keep (1,S)."""
    src = torch.tensor([[*ids, EOS]])
    return src, torch.ones_like(src, dtype=torch.bool)


@torch.no_grad()
def force(networks: Sequence[Transformer], ids: Sequence[int], targets: Sequence[Sequence[int]]) -> Tensor:
    """The log-probabilities (B,T+1,V) of all tokens behind each beginning of targets of like length, float64.

    Of several networks the probabilities are averaged.
    """
    src, src_keep = (part.expand(len(targets), -1) for part in source(ids))
    tgt_in = torch.tensor([[BOS, *target] for target in targets])
    found = [network(src, src_keep, tgt_in).double().softmax(-1) for network in networks]
    return torch.stack(found).mean(0).log()


def terms(networks: Sequence[Transformer], ids: Sequence[int], found: Hypothesis) -> list[float]:
    """The log-probability of each token of a hypothesis, and of its <eos>, by teacher forcing."""
    tokens = [*found.ids, *[EOS] * found.finished]
    log_probs = force(networks, ids, [found.ids])[0]
    return [log_probs[position, token].item() for position, token in enumerate(tokens)]


def assert_same(found: Iterable[Hypothesis], expected: Iterable[Hypothesis], tolerance: float = 1e-4) -> None:
    """The same ids in the same order, and log-probabilities and scores as close as case 32 asks."""
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.finished) == (other.ids, other.finished)
        assert one.log_prob == pytest.approx(other.log_prob, abs=tolerance)
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=tolerance)


def search_plainly(
    networks: Sequence[Transformer],
    ids: Sequence[int],
    limit: int,
    *,
    beam: int,
    alpha: float = 0.0,
    min_length: int = 0,
    prefix: Sequence[int] = (),
    allow_unk: bool = False,
    patience: float = math.inf,
) -> list[Hypothesis]:
    """Beam search for one sentence as one would write it first: lists, every token fed again, no early end.

    Returns the `beam` best of all that it ever finished, then of what the limit cut. It stops once
    `patience` * `beam` hypotheses are finished; many programs do with a patience of 1.
    """
    live: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())]
    finished: list[Hypothesis] = []
    for position in range(limit + 1):
        candidates = []
        nexts = force(networks, ids, [tokens for tokens, _ in live])[:, -1].tolist()
        for place, ((tokens, gains), log_probs) in enumerate(zip(live, nexts, strict=True)):
            allowed = [EOS] * (position >= min_length) + list(range(EOS + 1, len(log_probs)))
            allowed += [UNK] * allow_unk
            for token in prefix[position : position + 1] or allowed:
                gain = log_probs[token]
                candidates.append((-sum(gains) - gain, place, token, (*tokens, token), (*gains, gain)))
        best = sorted(candidates)[: 2 * beam]
        ended = {tokens for _, _, token, tokens, _ in best[:beam] if token == EOS}
        finished += [Hypothesis.of(tokens, gains, alpha) for *_, tokens, gains in best if tokens in ended]
        cut = [Hypothesis.of(*one, alpha) for one in live if (*one[0], EOS) not in ended]
        live = [(tokens, gains) for _, _, token, tokens, gains in best if token != EOS][:beam]
        if not live or len(finished) >= patience * beam:
            break
    ranked = sorted(finished, key=lambda one: -one.score)
    if position == limit:
        ranked += sorted(cut, key=lambda one: -one.score)
    return ranked[:beam]
