"""The training pairs as an epoch reads them: words cut into other subwords, source tokens made unknown.

What an epoch draws is a pure function of the seed and the epoch. The ways each distinct word may be cut are
listed once (some seconds for Multi30k), so that an epoch costs a draw for each word and some indexing.

Letters: W words of a text, N distinct ones, C cuts of all the distinct ones together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from nmt.data.dataset import Flags, Ids, PreparedData, Ragged, Split, running_sum
from nmt.data.vocabulary import UNK, SubwordVocabulary

MOST_CUTS = 64
"""How many of a word's likeliest cuts are drawn from: l of Kudo 2018, section 3.2."""
ALPHA = 0.2
"""A cut is drawn in proportion to its likelihood to this power: alpha of Kudo 2018, section 3.2."""

# What a draw is for. None is 0: numpy pads seeds with zeros, and [seed, epoch] is that of the batches' plan.
_SRC_SUBWORDS, _TGT_SUBWORDS, _SRC_UNKNOWN = 1, 2, 3

Indices = npt.NDArray[np.int64]
Side = Literal["src", "tgt"]


def training_pairs(
    data: PreparedData, *, subword_dropout: float, word_dropout: float, seed: int
) -> Callable[[int], Split]:
    """The training split by epoch: a pure function of `seed` and the epoch.

    With probability `subword_dropout` a word is cut into other subwords than the stored ones, drawn from the
    unigram model (subword regularisation, Kudo 2018). A word that cannot be cut otherwise stays as it is, and
    so does a sentence that would outgrow data.max_tokens; a side whose vocabulary holds whole words stays as
    it is. After that a source token is with probability `word_dropout` read as `<unk>`. Where both are 0 it
    is always the stored split itself.
    """
    stored = data.split(data.train)
    if not subword_dropout and not word_dropout:
        return lambda epoch: stored
    max_tokens = int(data.manifest.settings["data"]["max_tokens"])

    @functools.cache
    def cuts_of(side: Side) -> Cuts | None:  # made when an epoch first needs them
        vocabulary = data.src_vocabulary if side == "src" else data.tgt_vocabulary
        if not subword_dropout or not isinstance(vocabulary, SubwordVocabulary):
            return None
        return find_cuts(getattr(stored, side), data.word_starts(side), vocabulary)

    def pairs(epoch: int) -> Split:
        def random(purpose: int) -> np.random.Generator:
            return np.random.default_rng([seed, epoch, purpose])

        src, tgt = stored.src, stored.tgt
        if (cuts := cuts_of("src")) is not None:
            src = cut_anew(cuts, subword_dropout, max_tokens, random(_SRC_SUBWORDS))
        if (cuts := cuts_of("tgt")) is not None:
            tgt = cut_anew(cuts, subword_dropout, max_tokens, random(_TGT_SUBWORDS))
        if word_dropout:
            src = make_unknown(src, word_dropout, random(_SRC_UNKNOWN))
        return Split(stored.name, src, tgt)

    return pairs


@dataclass(frozen=True, slots=True)
class Cuts:
    """One side of a split as words, and the ways to cut each distinct word."""

    words: Ragged
    """The sentences as numbers of distinct words, W in all."""
    pieces: Ragged
    """The C cuts as ids; those of a word stand together, the stored one first."""
    first: Indices
    """(N+1,) where the cuts of each distinct word begin."""
    ends: npt.NDArray[np.float64]
    """(C,) number of the word, plus the probability of its cuts up to this one; the stored one has none."""


def find_cuts(side: Ragged, starts: Flags, vocabulary: SubwordVocabulary) -> Cuts:
    """The ways to cut each distinct word of a side; `starts` says which of its ids open a word."""
    numbers, words = _distinct_words(side.ids, starts)
    cuts = [_cuts_of(word, vocabulary) for word in words]
    pieces = Ragged.of([cut for cuts_of_word in cuts for cut in cuts_of_word], len(vocabulary))
    first = running_sum(np.array([len(cuts_of_word) for cuts_of_word in cuts]))
    return Cuts(
        words=Ragged(numbers, running_sum(starts)[side.offsets]),
        pieces=pieces,
        first=first,
        ends=_ends(pieces, first, np.array(vocabulary.log_probabilities())),
    )


def cut_anew(cuts: Cuts, share: float, max_tokens: int, random: np.random.Generator) -> Ragged:
    """The sentences with a share of their words cut otherwise; one that outgrows `max_tokens` as it was."""
    words = cuts.words.ids
    stored = cuts.first[words]  # (W,) numbers of cuts
    draws = random.random(len(words)) / share
    changed = np.flatnonzero(draws < 1.0)  # and these draws are once more uniform from 0 to 1
    drawn = np.searchsorted(cuts.ends, words[changed] + draws[changed], side="right")
    chosen = stored.copy()
    # not past the word's last cut: where the sum was rounded up, and where its only cut is the stored one
    chosen[changed] = np.minimum(drawn, cuts.first[words[changed] + 1] - 1)

    lengths = cuts.pieces.lengths
    too_long = np.diff(running_sum(lengths[chosen])[cuts.words.offsets]) > max_tokens
    chosen = np.where(np.repeat(too_long, cuts.words.lengths), stored, chosen)

    return Ragged(chosen, cuts.words.offsets).spelt(cuts.pieces)


def make_unknown(side: Ragged, share: float, random: np.random.Generator) -> Ragged:
    """The sentences with a share of their tokens read as `<unk>`."""
    ids = np.array(side.ids)
    ids[random.random(len(ids)) < share] = UNK
    return Ragged(ids, side.offsets)


def _distinct_words(ids: Ids, starts: Flags) -> tuple[Indices, list[list[int]]]:
    """The number (W,) of each word of a text among the distinct ones, and these as ids."""
    first = np.flatnonzero(starts)
    lengths = np.diff(first, append=len(ids))
    numbers = np.empty(len(first), dtype=np.int64)
    words: list[list[int]] = []
    for length in np.unique(lengths).tolist():
        alike = np.flatnonzero(lengths == length)
        distinct, inverse = np.unique(
            ids[first[alike, None] + np.arange(length)], axis=0, return_inverse=True
        )
        numbers[alike] = len(words) + inverse.reshape(-1)
        words += distinct.tolist()
    return numbers, words


def _cuts_of(word: list[int], vocabulary: SubwordVocabulary) -> list[list[int]]:
    """The cuts of a word, given as its stored one, which comes first; one with `<unk>` has no other."""
    if UNK in word:
        return [word]
    return vocabulary.cuts("".join(vocabulary.pieces[i] for i in word), MOST_CUTS)


def _ends(
    pieces: Ragged, first: Indices, log_probabilities: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """`Cuts.ends`: the stored cut of each word takes no share."""
    word = np.repeat(np.arange(len(first) - 1), np.diff(first))  # (C,)
    scores = ALPHA * np.add.reduceat(log_probabilities[pieces.ids], pieces.offsets[:-1])
    weights = np.exp(scores - np.maximum.reduceat(scores, first[:-1])[word])
    weights[first[:-1]] = 0.0
    sums = running_sum(weights)
    totals = np.diff(sums[first])
    ends: npt.NDArray[np.float64] = (
        word + (sums[1:] - sums[first][word]) / np.where(totals > 0, totals, 1)[word]
    )
    return ends
