"""The prepared folder: flat arrays of ids with offsets, raw evaluation text, vocabularies, a manifest.

A prepared folder is whole or not there: it is written under another name and renamed. Arrays are written part
by part and read memory-mapped, so neither costs more memory for a large corpus than for a small one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from nmt.config import Config
from nmt.data.corpus import read_lines
from nmt.data.vocabulary import UNK, Vocabulary, load_vocabulary
from nmt.errors import DataError
from nmt.files import whole_folder

FORMAT = 2
MANIFEST = "manifest.json"
SIDES = ("src", "tgt")
Ids = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sentences of different lengths in one flat array; sentence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __add__(self, other: Ragged) -> Ragged:
        """These sentences and then those."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Ragged(np.concatenate([self.ids, other.ids]), offsets)

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sentence, without special tokens."""
        return np.diff(self.offsets)

    def part(self, begin: int, end: int) -> Ragged:
        """The sentences from `begin` up to `end`."""
        first, last = self.offsets[begin], self.offsets[end]
        return Ragged(self.ids[first:last], self.offsets[begin : end + 1] - first)

    def select(self, rows: Ids) -> Ragged:
        """The given sentences, in their order."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = running_sum(lengths)
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.ids[places], offsets)

    def spelt(self, words: Ragged) -> Ragged:
        """The sentences with each id i replaced by the ids of the i-th of `words`."""
        spelt = words.select(self.ids)
        return Ragged(spelt.ids, spelt.offsets[self.offsets])

    @classmethod
    def of(cls, sentences: Iterable[Iterable[int]], vocabulary_size: int) -> Ragged:
        """Pack lists of ids, two bytes an id where the vocabulary allows; one list is held at a time."""
        ids, offsets = array("i"), array("q", [0])
        for sentence in sentences:
            ids.extend(sentence)
            offsets.append(len(ids))
        kind = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        return cls(np.array(ids, dtype=kind), np.array(offsets, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Split:
    """One split as ids, source and target line by line."""

    name: str
    src: Ragged
    tgt: Ragged

    def __len__(self) -> int:
        return len(self.src)

    def __add__(self, other: Split) -> Split:
        """These pairs and then those, under the name of these."""
        return Split(self.name, self.src + other.src, self.tgt + other.tgt)

    def rows_within(self, limit: int) -> npt.NDArray[np.int64]:
        """The rows that have at most `limit` tokens on either side."""
        return ((self.src.lengths <= limit) & (self.tgt.lengths <= limit)).nonzero()[0]

    def select(self, rows: npt.NDArray[np.int64]) -> Split:
        """The split of the given rows alone; itself where that is all of them."""
        if len(rows) == len(self):
            return self
        return Split(self.name, self.src.select(rows), self.tgt.select(rows))


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """What became of the lines of a split, and what its ids are like."""

    pairs_read: int
    pairs_kept: int
    dropped_empty: int
    dropped_long: int
    src_tokens: int
    tgt_tokens: int
    src_unknown: int
    tgt_unknown: int
    src_lengths: Mapping[str, int]
    """Histogram of source lengths in tokens: `"1-10"` to the number of pairs."""

    @classmethod
    def of(
        cls, split: Split, *, pairs_read: int, dropped_empty: int = 0, dropped_long: int = 0
    ) -> SplitCounts:
        """Count what a split holds after dropping."""
        return cls(
            pairs_read=pairs_read,
            pairs_kept=len(split),
            dropped_empty=dropped_empty,
            dropped_long=dropped_long,
            src_tokens=len(split.src.ids),
            tgt_tokens=len(split.tgt.ids),
            src_unknown=int((split.src.ids == UNK).sum()),
            tgt_unknown=int((split.tgt.ids == UNK).sum()),
            src_lengths=_histogram(split.src.lengths),
        )

    def __add__(self, other: SplitCounts) -> SplitCounts:
        """What became of the lines of two parts of a split."""
        lengths = Counter(self.src_lengths) + Counter(other.src_lengths)
        ours, theirs = asdict(self), asdict(other)
        del ours["src_lengths"], theirs["src_lengths"]
        return SplitCounts(
            **{name: count + theirs[name] for name, count in ours.items()},
            src_lengths=dict(sorted(lengths.items(), key=lambda item: int(item[0].split("-")[0]))),
        )


@dataclass(frozen=True, slots=True)
class SplitPart:
    """Some lines of a split, those that come next, ready to be written."""

    ids: Split
    counts: SplitCounts
    word_starts: tuple[Flags, Flags] | None = None
    """Which source and target ids open a word, where not all do and it is to be kept."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a prepared folder was made from, and what it holds."""

    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    """Each input's name to the SHA-256 of its text."""
    versions: Mapping[str, str]
    tests: tuple[str, ...]
    counts: Mapping[str, SplitCounts]
    vocabulary_hash: str
    sizes: Mapping[str, int]
    """Each file's size in bytes: a cheap check that the folder is whole."""


@dataclass(frozen=True, slots=True)
class PreparedData:
    """An opened prepared folder."""

    folder: Path
    manifest: Manifest
    src_vocabulary: Vocabulary
    tgt_vocabulary: Vocabulary

    @property
    def vocabulary_hash(self) -> str:
        """Equal for two folders or models whose ids mean the same."""
        return self.manifest.vocabulary_hash

    @property
    def train(self) -> str:
        """Name of the training split."""
        return str(self.manifest.settings["data"]["train"])

    @property
    def extra(self) -> str | None:
        """Name of the split with more training pairs, or None where there are none."""
        return extra_name(self.train) if self.manifest.settings["data"].get("extra") else None

    @property
    def val(self) -> str:
        """Name of the validation split."""
        return str(self.manifest.settings["data"]["val"])

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the test splits."""
        return self.manifest.tests

    def split(self, name: str) -> Split:
        """The ids of a split; raises DataError naming the known ones."""
        extra = (self.extra,) if self.extra else ()
        self._known(name, (self.train, *extra, self.val, *self.tests))
        return Split(name, *(_load_ragged(self.folder, f"{name}.{side}") for side in SIDES))

    def word_starts(self, name: str, side: Literal["src", "tgt"]) -> Flags:
        """Which ids of a training split's side open a word; DataError where each id is a word."""
        path = self.folder / f"{name}.{side}.starts.npy"
        if not path.is_file():
            raise DataError(f"{self.folder} tells no words from subwords: its vocabulary holds whole words")
        split = self.split(name)
        count = len((split.src if side == "src" else split.tgt).ids)
        return np.unpackbits(np.load(path, allow_pickle=False), count=count).astype(np.bool_)

    def sources(self, name: str) -> list[str]:
        """The raw source lines of an evaluation split."""
        self._known(name, (self.val, *self.tests))
        return read_lines(self.folder / f"{name}.src.txt")

    def references(self, name: str) -> list[str]:
        """The raw target lines of an evaluation split."""
        self._known(name, (self.val, *self.tests))
        return read_lines(self.folder / f"{name}.tgt.txt")

    def _known(self, name: str, known: tuple[str, ...]) -> None:
        if name not in known:
            raise DataError(
                f"{self.folder} has no split {name}: it has {', '.join(known)}",
                hint="name one of these, or prepare it too with the same --config: nmt prepare --out DIR "
                f"--set 'data.tests=[{', '.join((*self.tests, name))}]', and then name DIR with --data",
            )


def extra_name(train: str) -> str:
    """What data.extra's pairs are called beside the training split: like no split that has a file's name."""
    return f"{train}+extra"


def is_prepared(source: str) -> bool:
    """Whether data.source is a prepared folder, which has settings of its own."""
    return (Path(source) / MANIFEST).is_file()


def prepared_folder(config: Config, root: Path = Path("data")) -> Path:
    """Where a config's prepared data lies: data/NAME-HASH, the hash that of the data settings."""
    return root / f"{Path(config.data.source).name or 'corpus'}-{config.data_hash()}"


def vocabulary_hash(src: Vocabulary, tgt: Vocabulary) -> str:
    """SHA-256 over what both vocabularies hold."""
    digest = hashlib.sha256()
    for vocabulary in (src, tgt):
        state = vocabulary.to_state()
        digest.update(json.dumps([state.kind, list(state.pieces)]).encode())
        digest.update(state.model or b"")
    return digest.hexdigest()


def write_prepared(
    folder: Path,
    *,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    versions: Mapping[str, str],
    splits: Mapping[str, Iterable[SplitPart]],
    raw: Mapping[str, tuple[Iterable[str], Iterable[str]]],
    src_vocabulary: Vocabulary,
    tgt_vocabulary: Vocabulary,
) -> None:
    """Write a prepared folder so that it appears at once and whole, in place of an older one.

    `splits` holds every split's parts, at least one each, which are asked for one after the other and not
    held; `raw` the source and target lines of evaluation splits. The same text gives the same bytes, in
    whatever parts it comes.
    """
    with whole_folder(folder) as draft:
        counts = {name: _write_split(draft, name, parts) for name, parts in splits.items()}
        for name, texts in raw.items():
            for side, lines in zip(SIDES, texts, strict=True):
                _write_lines(draft / f"{name}.{side}.txt", lines)
        src_vocabulary.save(draft, "src")
        tgt_vocabulary.save(draft, "tgt")
        manifest = Manifest(
            settings=settings,
            inputs=inputs,
            versions=versions,
            tests=tuple(name for name in raw if name != settings["data"]["val"]),
            counts=counts,
            vocabulary_hash=vocabulary_hash(src_vocabulary, tgt_vocabulary),
            sizes={path.name: path.stat().st_size for path in sorted(draft.iterdir())},
        )
        text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2, ensure_ascii=False)
        (draft / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder; raises DataError where there is none or it is damaged."""
    path = folder / MANIFEST
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} is not a prepared folder: no {MANIFEST}", hint="nmt prepare makes one"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}", hint=f"delete {folder} and prepare again"
        ) from error
    if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
        raise DataError(f"{path} is of another format", hint=f"delete {folder} and prepare again")
    try:
        counts = {name: SplitCounts(**value) for name, value in fields.pop("counts").items()}
        return Manifest(**{**fields, "tests": tuple(fields["tests"])}, counts=counts)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error}", hint=f"delete {folder} and prepare again") from error


def open_prepared(folder: Path) -> PreparedData:
    """Open a prepared folder; raises DataError where it is missing or not whole."""
    manifest = read_manifest(folder)
    for name, size in manifest.sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(f"{path} is missing or damaged", hint=f"delete {folder} and prepare again")
    vocabularies = (load_vocabulary(folder, side) for side in SIDES)
    return PreparedData(folder, manifest, *vocabularies)


def running_sum(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sum before each value, and that of all: of lengths, the offsets."""
    return np.concatenate([[0], np.cumsum(values)])


def _write_split(folder: Path, name: str, parts: Iterable[SplitPart]) -> SplitCounts:
    """Write the arrays of a split as its parts come; what they count together."""
    counts = []
    with ExitStack() as opened:
        src, tgt = (opened.enter_context(closing(_SideWriter(folder, f"{name}.{side}"))) for side in SIDES)
        for part in parts:
            src_starts, tgt_starts = part.word_starts or (None, None)
            src.append(part.ids.src, src_starts)
            tgt.append(part.ids.tgt, tgt_starts)
            counts.append(part.counts)
    return functools.reduce(operator.add, counts)


class _SideWriter:
    """The arrays of one side of a split, written part by part."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ids, self._offsets, self._starts = (
            _ArrayFile(folder / f"{name}.{part}.npy") for part in ("ids", "offsets", "starts")
        )
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._end = 0
        self._bits: Flags = np.zeros(0, dtype=np.bool_)  # fewer than eight: the rest of their byte is to come

    def append(self, sentences: Ragged, starts: Flags | None) -> None:
        """Write what comes next; `starts` says which of its ids open a word."""
        self._ids.append(sentences.ids)
        self._offsets.append(self._end + sentences.offsets[1:])
        self._end += len(sentences.ids)
        if starts is not None:
            flags = np.concatenate([self._bits, starts])
            whole = len(flags) // 8 * 8
            self._starts.append(np.packbits(flags[:whole]))
            self._bits = flags[whole:]

    def close(self) -> None:
        if len(self._bits):
            self._starts.append(np.packbits(self._bits))
        for file in (self._ids, self._offsets, self._starts):
            file.close()


class _ArrayFile:
    """A flat .npy file that grows, in the end with the bytes of `np.save`; made when its first part comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._kind = np.dtype(np.uint8)
        self._count = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        if self._file is None:
            self._file = self._path.open("xb")
            self._kind = values.dtype
            self._write_header(self._file)
        self._file.write(values.tobytes())
        self._count += len(values)

    def close(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._write_header(self._file)
            self._file.close()

    def _write_header(self, file: BinaryIO) -> None:
        """numpy leaves room in it, so that it is of one length whatever the count."""
        fields = {"descr": dtype_to_descr(self._kind), "fortran_order": False, "shape": (self._count,)}
        write_array_header_1_0(file, fields)


def _load_ragged(folder: Path, name: str) -> Ragged:
    arrays = (
        np.load(folder / f"{name}.{part}.npy", mmap_mode="r", allow_pickle=False)
        for part in ("ids", "offsets")
    )
    return Ragged(*map(np.asarray, arrays))  # plain views, which are sliced faster


def _histogram(lengths: npt.NDArray[np.int64], width: int = 10) -> dict[str, int]:
    bins, counts = np.unique((np.maximum(lengths, 1) - 1) // width, return_counts=True)
    pairs = zip(bins.tolist(), counts.tolist(), strict=True)
    return {f"{bin_ * width + 1}-{(bin_ + 1) * width}": count for bin_, count in pairs}


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
