"""Beam search: each sentence follows its K most probable beginnings.

A step extends the K live hypotheses of a sentence by every token and looks at the 2K most probable results.
Of the first K, those that end in `<eos>` are finished: their score log_prob / length^alpha is fixed and they
are kept apart. The K most probable others live on; with 2K there are always enough, for each live hypothesis
ends in one way only. A sentence is done when the best live hypothesis cannot overtake the finished ones that
are asked for: log_prob only falls and length never exceeds the limit, so no score that is still to come is
above log_prob / max_length^alpha. That bound holds for every alpha >= 0. Where alpha > 0 it is a wide one, so
with a patience a sentence is also done once patience * K of its hypotheses have ended (Kasai et al., 2022, "A
Call for Clarity in Beam Search").

Letters: B sentences, n of them still in the batch, K beams, N = n * K rows, S source length, T longest
translation, V vocabulary, J hypotheses of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS
from nmt.decoding.greedy import KEEP_SHARE
from nmt.decoding.largest import largest
from nmt.decoding.rules import Rules
from nmt.decoding.state import Ensemble, Hypothesis
from nmt.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Beams:
    """J hypotheses of each of n sentences, best first; one whose score is -inf is none."""

    tokens: Tensor
    """(n,J,T+1) ids, filled up with `<eos>`."""
    gains: Tensor
    """(n,J,T+1) the log-probability of each."""
    scores: Tensor
    """(n,J) log_prob of live hypotheses, log_prob / length^alpha of finished ones."""

    @classmethod
    def start(cls, sentences: int, beams: int, length: int, device: torch.device) -> Beams:
        """One empty hypothesis of each sentence, and beams - 1 that are none."""
        tokens = torch.full((sentences, beams, length), EOS, device=device)
        scores = torch.full((sentences, beams), -torch.inf, device=device)
        scores[:, 0] = 0.0
        return cls(tokens, torch.zeros(tokens.shape, device=device), scores)

    def scored(self, scores: Tensor) -> Beams:
        """The same with other scores (n,J)."""
        return Beams(self.tokens, self.gains, scores)

    def of(self, sentences: Tensor) -> Beams:
        """Those of some sentences."""
        return Beams(self.tokens[sentences], self.gains[sentences], self.scores[sentences])

    def first(self, count: int) -> Beams:
        """The first `count` of each sentence."""
        return Beams(self.tokens[:, :count], self.gains[:, :count], self.scores[:, :count])

    def pick(self, which: Tensor) -> Beams:
        """The hypotheses `which` (n,J') of each sentence."""
        places = which[:, :, None].expand(-1, -1, self.tokens.size(2))
        return Beams(
            self.tokens.gather(1, places), self.gains.gather(1, places), self.scores.gather(1, which)
        )

    def best_with(self, others: Beams) -> Beams:
        """The J best of these and the others; of equals these come first."""
        both = Beams(
            torch.cat((self.tokens, others.tokens), dim=1),
            torch.cat((self.gains, others.gains), dim=1),
            torch.cat((self.scores, others.scores), dim=1),
        )
        order = both.scores.argsort(dim=1, descending=True, stable=True)
        return both.pick(order[:, : self.scores.size(1)])


@torch.inference_mode()
def beam_search(
    networks: Sequence[Transformer],
    src: Tensor,
    src_keep: Tensor,
    rules: Rules,
    *,
    beam: int,
    nbest: int = 1,
    length_penalty: float = 0.0,
    patience: float | None = None,
) -> list[tuple[Hypothesis, ...]]:
    """The up to `nbest` best translations of each sentence of a padded batch, by networks in eval mode.

    src (B,S) ids ending in `<eos>`, src_keep (B,S) bool, True = attend. Hypotheses that the length limit cut
    come behind all that ended. With a patience, 1 or more, a sentence is done at the latest when patience *
    beam have ended; without one, when nothing better can come. In float32 a sentence's result does not depend
    on its neighbours.
    """
    limit = int(rules.max_lengths.max())
    most = beam if patience is None else round(patience * beam)
    live = Beams.start(len(src), beam, limit + 1, src.device)
    finished = Beams.start(len(src), most, limit + 1, src.device)
    finished = finished.scored(torch.full_like(finished.scores, -torch.inf))
    sentences = torch.arange(len(src), device=src.device)  # (n)
    running = torch.ones_like(sentences, dtype=torch.bool)  # (n)
    state = Ensemble.start(networks, src, src_keep, beam)
    last = src.new_full((len(src) * beam,), BOS)  # (N)
    results: dict[int, tuple[Hypothesis, ...]] = {}
    for position in range(limit + 1):
        log_probs, state = state.step(last)  # (N,V)
        rules.forbid(log_probs, position, sentences.repeat_interleave(beam))
        before = live
        live, parents, finished = _advance(live, finished, log_probs, position, length_penalty)
        limits = rules.max_lengths[sentences]  # (n)
        bounds = live.scores[:, 0] / (limits + 1) ** length_penalty
        over = (limits <= position) | (bounds <= finished.scores[:, nbest - 1])
        if patience is not None:
            over |= finished.scores[:, -1] > -torch.inf
        over &= running
        if over.any():
            cut = before.scored(before.scores.masked_fill(limits[:, None] > position, -torch.inf))
            found = _collect(finished.of(over), cut.of(over), limits[over], nbest, length_penalty)
            results.update(zip(sentences[over].tolist(), found, strict=True))
            running = running & ~over
        if len(results) == len(src):
            break
        rows = parents + beam * torch.arange(len(parents), device=src.device)[:, None]  # (n,K)
        if len(src) - len(results) <= KEEP_SHARE * len(rows):
            state = state.reorder(rows[running].flatten(), running.nonzero().squeeze(1))
            live, finished, sentences = live.of(running), finished.of(running), sentences[running]
            running = running[running]
        else:
            state = state.reorder_past(rows.flatten())
        last = live.tokens[:, :, position].flatten()
    return [results[sentence] for sentence in range(len(src))]


def _advance(
    live: Beams, finished: Beams, log_probs: Tensor, position: int, length_penalty: float
) -> tuple[Beams, Tensor, Beams]:
    """One step: the next live hypotheses, the beams (n,K) that they come from, and the best finished ones."""
    beam = live.scores.size(1)
    candidates, parents = _extend(live, log_probs, position)
    ended = candidates.tokens[:, :, position] == EOS  # (n,2K)
    scores = candidates.scores / (position + 1) ** length_penalty
    final = candidates.scored(scores.masked_fill(~ended, -torch.inf)).first(beam)
    going = ended.byte().argsort(dim=1, stable=True)[:, :beam]  # (n,K), the first that have not ended
    return candidates.pick(going), parents.gather(1, going), finished.best_with(final)


def _extend(live: Beams, log_probs: Tensor, position: int) -> tuple[Beams, Tensor]:
    """The 2K most probable of all extensions by one token, and the beam (n,2K) that each comes from.

    log_probs (N,V). Of equally probable ones the lower beam comes first, then the lower token.
    """
    vocabulary = log_probs.size(1)
    gains = log_probs.view(len(live.scores), -1)  # (n,K*V)
    totals = (live.scores[:, :, None] + gains.view(*live.scores.shape, vocabulary)).flatten(1)
    best = largest(totals, 2 * live.scores.size(1))  # (n,2K)
    parents = best // vocabulary
    candidates = live.pick(parents)
    candidates.tokens[:, :, position] = best % vocabulary
    candidates.gains[:, :, position] = gains.gather(1, best)
    return candidates.scored(totals.gather(1, best)), parents


def _collect(
    finished: Beams, cut: Beams, limits: Tensor, nbest: int, length_penalty: float
) -> list[tuple[Hypothesis, ...]]:
    """Each sentence's best: of what has ended and, where that is too little, of what the limits (n) cut.

    A cut hypothesis that has ended as well counts once.
    """
    results = []
    for ended, stopped, limit in zip(_rows(finished), _rows(cut), limits.tolist(), strict=True):
        lengths = [tokens.index(EOS) + 1 for tokens, _ in ended]
        whole = [
            Hypothesis.of(tokens[:length], gains[:length], length_penalty)
            for (tokens, gains), length in zip(ended, lengths, strict=True)
        ]
        known = {hypothesis.ids for hypothesis in whole}
        parts = [Hypothesis.of(tokens[:limit], gains[:limit], length_penalty) for tokens, gains in stopped]
        parts = [hypothesis for hypothesis in parts if hypothesis.ids not in known]
        results.append(tuple((_ranked(whole) + _ranked(parts))[:nbest]))
    return results


def _ranked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def _rows(beams: Beams) -> Iterator[list[tuple[list[int], list[float]]]]:
    """The tokens and gains of each sentence's hypotheses, as plain values."""
    lists = beams.tokens.tolist(), beams.gains.tolist(), beams.scores.tolist()
    for tokens, gains, scores in zip(*lists, strict=True):
        rows = zip(tokens, gains, scores, strict=True)
        yield [(ids, row_gains) for ids, row_gains, score in rows if score != -math.inf]
