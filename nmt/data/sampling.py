"""The training pairs as an epoch reads them: with extra ones, rare words in more places, other subwords.

What an epoch draws is a pure function of the seed and the epoch. The ways each distinct word may be cut are
listed once (some seconds for Multi30k), so that an epoch costs a draw for each word and some indexing.

Letters: W words of a text, N distinct ones, C cuts of all the distinct ones together.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from nmt.data.alignment import Indices
from nmt.data.dataset import Flags, Ids, PreparedData, Ragged, Split, running_sum
from nmt.data.rare_words import Exchanges, exchanged, find_exchanges
from nmt.data.vocabulary import UNK, SubwordVocabulary, Vocabulary

log = logging.getLogger("nmt")

MOST_CUTS = 64
"""How many of a word's likeliest cuts are drawn from: l of Kudo 2018, section 3.2."""
ALPHA = 0.2
"""A cut is drawn in proportion to its likelihood to this power: alpha of Kudo 2018, section 3.2."""

# What a draw is for. None is 0: numpy pads seeds with zeros, and [seed, epoch] is that of the batches' plan.
_SRC_SUBWORDS, _TGT_SUBWORDS, _SRC_UNKNOWN, _RARE_WORDS, _EXTRA = 1, 2, 3, 4, 5


def training_pairs(
    data: PreparedData,
    *,
    subword_dropout: float,
    word_dropout: float,
    rare_words: float,
    extra_share: float = 0.0,
    seed: int,
) -> Callable[[int], Split]:
    """The training split by epoch: a pure function of `seed` and the epoch.

    A share `rare_words` of the pairs have a rare word and its translation in place of a frequent one and its
    (`nmt.data.rare_words`). Where the data has extra pairs, a share `extra_share` of the pairs is left
    out, and as many extra ones are drawn in their place. Then, with probability `subword_dropout`, a word is
    cut into other subwords than the stored ones, drawn from the unigram model (subword regularisation, Kudo
    2018). A word that cannot be cut otherwise stays as it is, and so does a sentence that would outgrow
    data.max_tokens; a side whose vocabulary holds whole words is not cut. After that a source token is with
    probability `word_dropout` read as `<unk>`. Where all of this is 0 it is always the stored split itself.
    """
    names = [data.train, data.extra] if data.extra and extra_share else [data.train]
    own, *others = map(data.split, names)
    if not others and not subword_dropout and not word_dropout and not rare_words:
        return lambda epoch: own
    stored = own + others[0] if others else own  # each epoch reads some of its rows
    if others:
        log.info("extra pairs: %s beside %s (data.extra)", f"{len(stored) - len(own):,}", f"{len(own):,}")
    max_tokens = int(data.manifest.settings["data"]["max_tokens"])

    def word_starts(side: Literal["src", "tgt"]) -> Flags:
        return np.concatenate([data.word_starts(name, side) for name in names])

    @functools.cache
    def cuts() -> tuple[Cuts, Cuts]:  # made when an epoch first needs them
        src = _cuts_of_side(stored.src, data.src_vocabulary, lambda: word_starts("src"))
        return src, _cuts_of_side(stored.tgt, data.tgt_vocabulary, lambda: word_starts("tgt"))

    @functools.cache
    def exchanges() -> Exchanges:
        src, tgt = cuts()
        found = find_exchanges((src.words.part(0, len(own)), tgt.words.part(0, len(own))))
        if count := len(found.rare.row):
            log.info("rare words: %s have places in other sentences too (train.rare_words)", f"{count:,}")
        return found

    def pairs(epoch: int) -> Split:
        def random(purpose: int) -> np.random.Generator:
            return np.random.default_rng([seed, epoch, purpose])

        rows = np.arange(len(own))
        if others:
            rows = _with_extra(len(own), len(stored) - len(own), extra_share, random(_EXTRA))
        if subword_dropout or rare_words:
            of_src, of_tgt = cuts()
            words = of_src.words.part(0, len(own)), of_tgt.words.part(0, len(own))
            if rare_words:
                sizes = of_src.stored_lengths, of_tgt.stored_lengths
                drawn = random(_RARE_WORDS)
                words = exchanged(words, exchanges(), rare_words, drawn, tokens=sizes, max_tokens=max_tokens)
            of_src, of_tgt = (
                replace(side, words=(of_own + side.words.part(len(own), len(stored))).select(rows))
                for side, of_own in zip((of_src, of_tgt), words, strict=True)
            )
            src = cut_anew(of_src, subword_dropout, max_tokens, random(_SRC_SUBWORDS))
            tgt = cut_anew(of_tgt, subword_dropout, max_tokens, random(_TGT_SUBWORDS))
        else:
            src, tgt = stored.src.select(rows), stored.tgt.select(rows)
        if word_dropout:
            src = make_unknown(src, word_dropout, random(_SRC_UNKNOWN))
        return Split(stored.name, src, tgt)

    return pairs


def _with_extra(own: int, extra: int, share: float, random: np.random.Generator) -> Indices:
    """The rows of an epoch, where the extra pairs, each as often as any other, stand behind the own ones."""
    count = round(share * own)
    drawn = random.permutation(extra)[np.arange(count) % extra]
    return np.concatenate([np.sort(random.permutation(own)[count:]), own + np.sort(drawn)])


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

    @property
    def stored_lengths(self) -> Indices:
        """(N,) how many ids the stored cut of each distinct word has."""
        return self.pieces.lengths[self.first[:-1]]


def _cuts_of_side(side: Ragged, vocabulary: Vocabulary, starts: Callable[[], Flags]) -> Cuts:
    """The ways to cut the words of a side; each id of a vocabulary of words is a word with one of them."""
    if isinstance(vocabulary, SubwordVocabulary):
        return find_cuts(side, starts(), vocabulary)
    every = np.arange(len(vocabulary) + 1)
    return Cuts(
        words=side,
        pieces=Ragged(every[:-1].astype(side.ids.dtype), every),
        first=every,
        ends=every[:-1].astype(float),
    )


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
    draws = random.random(len(words))
    changed = np.flatnonzero(draws < share)  # these draws over the share are once more uniform from 0 to 1
    drawn = np.searchsorted(cuts.ends, words[changed] + draws[changed] / share, side="right")
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
