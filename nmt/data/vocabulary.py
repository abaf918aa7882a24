"""Tokens to ids and back: word and subword vocabularies (the only user of torchtext and sentencepiece).

Both kinds take marked tokens (see `nmt.data.text`). Building a word vocabulary needs torchtext, building or
encoding with subwords needs sentencepiece; reading a saved vocabulary and decoding need neither.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nmt.errors import ConfigError, DataError

UNK, PAD, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<unk>", "<pad>", "<bos>", "<eos>")

Kind = Literal["word", "subword"]

# sentencepiece cuts its training text wherever a special's name stands in it, so that "<unk>" as ordinary
# text would lose its characters. Inside its model the specials get names that no token can hold.
_MODEL_SPECIALS = tuple(f"\x01{name}" for name in SPECIALS)

# sentencepiece separates fields by tab, keeps U+2585 for itself and reads a space as the mark. Tokens from
# `nmt.data.text` hold none of these; in any other they are unknown characters.
_UNTRAINABLE = re.compile("[\\s\\x00\\x01\u2585\ud800-\udfff]")
_MAX_TRAINED_CHARS = 1000  # sentencepiece skips lines above 4,192 bytes
_CACHED_TOKENS = 100_000

# sentencepiece writes its training text out, each token as often as it occurs, and takes 13 bytes of memory
# for each byte of that (measured with 0.2.3: 6.7 GB for 2.9 million pairs). Four million words fit in.
_MOST_TRAINED_BYTES = 1 << 25


@dataclass(frozen=True, slots=True)
class VocabularyState:
    """All that a vocabulary is, as plain values; `model` is a subword vocabulary's sentencepiece model."""

    kind: str
    pieces: list[str]
    model: bytes | None


class Vocabulary(ABC):
    """Pieces numbered from 0, the four specials first; text never encodes to a special but `<unk>`."""

    kind: Kind

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = tuple(pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    @abstractmethod
    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Ids of marked tokens, without `<bos>` or `<eos>`; safe to call from several threads."""

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Pieces in order, specials left out; an id outside the vocabulary raises IndexError."""
        pieces = []
        for i in ids:
            if i < 0:  # would count from the end
                raise IndexError(f"id {i} is below 0")
            if i >= len(SPECIALS):
                pieces.append(self.pieces[i])
        return pieces

    def to_state(self) -> VocabularyState:
        """The vocabulary as plain values."""
        return VocabularyState(self.kind, list(self.pieces), None)

    @staticmethod
    def from_state(state: VocabularyState) -> Vocabulary:
        """The vocabulary that `to_state` described; DataError if it describes none."""
        _check_state(state)
        if state.model is None:
            return WordVocabulary(state.pieces)
        return SubwordVocabulary(state.pieces, state.model)

    def save(self, folder: Path, name: str) -> None:
        """Write `folder/NAME.json`, and `folder/NAME.spm` for subwords."""
        state = self.to_state()
        content: dict[str, Any] = {"kind": state.kind, "pieces": state.pieces}
        if state.model is not None:
            (folder / f"{name}.spm").write_bytes(state.model)
            content["model_sha256"] = hashlib.sha256(state.model).hexdigest()
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        (folder / f"{name}.json").write_bytes(text.encode("utf-8"))


class WordVocabulary(Vocabulary):
    """One id per marked token; a token that is not listed is `<unk>`."""

    kind = "word"

    def __init__(self, pieces: Iterable[str]) -> None:
        super().__init__(pieces)
        first = len(SPECIALS)
        self._ids = {piece: i for i, piece in enumerate(self.pieces[first:], start=first)}

    def encode(self, tokens: Iterable[str]) -> list[int]:
        get = self._ids.get
        return [get(token, UNK) for token in tokens]


class SubwordVocabulary(Vocabulary):
    """Each marked token cut into pieces that join to it exactly.

    A run of characters never seen in training becomes one `<unk>` instead.
    """

    kind = "subword"

    def __init__(self, pieces: Iterable[str], model: bytes) -> None:
        super().__init__(pieces)
        self.model = model
        self._lock = threading.Lock()
        self._processor: Any = None  # loaded at the first encode
        self._encode_token = functools.lru_cache(_CACHED_TOKENS)(self._encode_new_token)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        encode_token = self._encode_token
        return [i for token in tokens for i in encode_token(token)]

    def cuts(self, token: str, most: int) -> list[list[int]]:
        """At most `most` ways to cut a token: that of `encode`, then the likeliest others of known pieces."""
        best = self.encode([token])
        likeliest = self._loaded().nbest_encode(_UNTRAINABLE.sub("\0", token), nbest_size=most, out_type=int)
        return [best, *(cut for cut in likeliest if cut != best and UNK not in cut)]

    def log_probabilities(self) -> list[float]:
        """The unigram model's log-probability of each piece; 0 for the specials."""
        return [self._loaded().get_score(i) for i in range(len(self))]

    def to_state(self) -> VocabularyState:
        return VocabularyState(self.kind, list(self.pieces), self.model)

    def _encode_new_token(self, token: str) -> tuple[int, ...]:
        return tuple(self._loaded().encode(_UNTRAINABLE.sub("\0", token), out_type=int))

    def _loaded(self) -> Any:  # sentencepiece.SentencePieceProcessor
        if self._processor is None:
            with self._lock:
                self._processor = self._processor or _load_processor(self.model, self.pieces)
        return self._processor


def build_word_vocabulary(
    token_counts: Counter[str], *, min_freq: int, max_size: int | None
) -> WordVocabulary:
    """The tokens that occur `min_freq` times or more, at most `max_size` of them beside the specials.

    Ordered by count, then by token. Raises DataError if none is left.
    """
    from torchtext.vocab import Vocab

    words = Vocab(token_counts, min_freq=min_freq, max_size=max_size, specials=list(SPECIALS)).itos
    if len(words) == len(SPECIALS):
        most = max(token_counts.values(), default=0)
        limit = "null" if max_size is None else max_size
        raise DataError(
            f"the vocabulary is empty: min_freq is {min_freq}, max_size is {limit}, "
            f"and the most frequent token occurs {most} times",
            hint="lower min_freq, raise max_size, or train on more text",
        )
    return WordVocabulary(words)


def build_subword_vocabulary(token_counts: Counter[str], *, size: int) -> SubwordVocabulary:
    """At most `size` pieces, specials included, learned from marked tokens (unigram model, Kudo 2018).

    Few tokens give fewer pieces; of more than some four million, every k-th is learned from. Raises
    ConfigError if `size` cannot hold every character of the tokens, DataError if there are no tokens.
    """
    counts = {
        token: count
        for token, count in token_counts.items()
        if 0 < len(token) <= _MAX_TRAINED_CHARS and count > 0 and not _UNTRAINABLE.search(token)
    }
    if not counts:
        raise DataError("the training text holds no tokens to learn subwords from")
    needed = len({character for token in counts for character in token}) + len(SPECIALS)
    if size < needed:
        raise ConfigError(
            f"a vocabulary of {size} pieces is too small: the text's characters alone need {needed}",
            hint=f"set the vocabulary's size well above {needed}",
        )
    model = _train_model(_thin_out(counts), size)
    return SubwordVocabulary(_model_pieces(model), model)


def load_vocabulary(folder: Path, name: str) -> Vocabulary:
    """The vocabulary that `save` wrote; DataError names the file that is missing or damaged."""
    file = folder / f"{name}.json"
    try:
        content = json.loads(file.read_bytes())
        model = None
        if content["kind"] == "subword":
            file = folder / f"{name}.spm"
            model = file.read_bytes()
            if hashlib.sha256(model).hexdigest() != content["model_sha256"]:
                raise ValueError("its hash is not the recorded one")
        return Vocabulary.from_state(VocabularyState(content["kind"], content["pieces"], model))
    except FileNotFoundError as error:
        raise DataError(f"{file} is missing", hint="run nmt prepare again") from error
    except (ValueError, KeyError, TypeError, DataError) as error:
        raise DataError(f"{file} is damaged: {error}", hint="run nmt prepare again") from error


def _check_state(state: VocabularyState) -> None:
    if state.kind not in ("word", "subword"):
        raise DataError(f"unknown kind of vocabulary: {state.kind!r}")
    if (state.kind == "subword") != (state.model is not None):
        raise DataError("a subword vocabulary comes with its sentencepiece model, a word vocabulary without")
    pieces = state.pieces
    if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
        raise DataError("the vocabulary's pieces are no list of texts")
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS or len(set(pieces)) != len(pieces):
        raise DataError("the vocabulary's pieces are not the specials followed by distinct pieces")


def _train_model(counts: dict[str, int], size: int) -> bytes:
    """The bytes of a sentencepiece model, the same on every run: sorted input, one thread, no path inside."""
    import sentencepiece

    model = io.BytesIO()
    unk, pad, bos, eos = _MODEL_SPECIALS
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_training_rows(counts)),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_unicode_script=False,  # spaCy has split already, and "T-Shirt" or "'s" is one piece
            split_by_number=False,
            num_threads=1,
            minloglevel=2,
            unk_id=UNK, pad_id=PAD, bos_id=BOS, eos_id=EOS,
            unk_piece=unk, pad_piece=pad, bos_piece=bos, eos_piece=eos,
        )  # fmt: skip
    except RuntimeError as error:
        raise DataError(f"sentencepiece could not learn subwords: {error}") from error
    return model.getvalue()


def _thin_out(counts: dict[str, int]) -> dict[str, int]:
    """Every k-th token, the smallest k with which they fit into `_MOST_TRAINED_BYTES`; no character is lost.

    The tokens stand in order of frequency, so each keeps its share and rare ones stand for their like.
    """
    size = sum(count * (len(token.encode()) + 1) for token, count in counts.items())
    step = -(-size // _MOST_TRAINED_BYTES)
    if step == 1:
        return counts
    thinned: dict[str, int] = {}
    seen: set[str] = set()
    end = 0
    for token, count in _by_frequency(counts):
        begin, end = end, end + count
        kept = end // step - begin // step or int(not seen.issuperset(token))
        if kept:
            thinned[token] = kept
            seen.update(token)
    return thinned


def _by_frequency(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _training_rows(counts: dict[str, int]) -> Iterator[str]:
    """Rows "token<TAB>count", most frequent first.

    sentencepiece looks for pieces among the strings that go on in two ways somewhere in the list of distinct
    tokens. A whole token that begins no other, however frequent ("▁woman"), would never be considered. It
    takes a special's name for a boundary, so one occurrence of each token, put in front of such a boundary,
    lets the token end in two ways. That makes Multi30k 13 % shorter at 8,000 joint pieces.
    """
    boundary = _MODEL_SPECIALS[EOS]
    for token, count in _by_frequency(counts):
        if count == 1:
            yield f"{token}\t1"
        else:
            yield f"{token}\t{count - 1}"
            yield f"{token}{boundary}\t1"


def _model_pieces(model: bytes) -> tuple[str, ...]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = (processor.id_to_piece(i) for i in range(len(SPECIALS), processor.get_piece_size()))
    return (*SPECIALS, *pieces)


def _load_processor(model: bytes, pieces: Sequence[str]) -> Any:
    import sentencepiece

    sentencepiece.set_min_log_level(2)  # it would report each word too long for all of its cuts to be weighed
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        same = _model_pieces(model) == tuple(pieces)
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"the vocabulary's sentencepiece model is damaged: {error}") from error
    if not same:
        raise DataError("the vocabulary's sentencepiece model and its list of pieces differ")
    return processor
