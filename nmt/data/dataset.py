"""The prepared folder: flat arrays of ids with offsets, raw evaluation text, vocabularies, a manifest.

A prepared folder is whole or not there: it is written under another name and renamed. Arrays are
memory-mapped, so opening one costs no more for a large corpus than for a small one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nmt.config import Config
from nmt.data.corpus import read_lines
from nmt.data.vocabulary import UNK, Vocabulary, load_vocabulary
from nmt.errors import DataError
from nmt.files import whole_folder

FORMAT = 2
MANIFEST = "manifest.json"
Ids = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sentences of different lengths in one flat array; sentence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sentence, without special tokens."""
        return np.diff(self.offsets)

    def select(self, rows: npt.NDArray[np.int64]) -> Ragged:
        """The given sentences, in their order."""
        ids = [self[row] for row in rows.tolist()]
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return Ragged(np.concatenate([self.ids[:0], *ids]), offsets)

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]], vocabulary_size: int) -> Ragged:
        """Pack lists of ids, two bytes an id where the vocabulary allows."""
        offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
        np.cumsum([len(sentence) for sentence in sentences], out=offsets[1:])
        kind = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        ids = itertools.chain.from_iterable(sentences)
        return cls(np.fromiter(ids, dtype=np.int32, count=int(offsets[-1])).astype(kind), offsets)


@dataclass(frozen=True, slots=True)
class Split:
    """One split as ids, source and target line by line."""

    name: str
    src: Ragged
    tgt: Ragged

    def __len__(self) -> int:
        return len(self.src)

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
    def val(self) -> str:
        """Name of the validation split."""
        return str(self.manifest.settings["data"]["val"])

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the test splits."""
        return self.manifest.tests

    def split(self, name: str) -> Split:
        """The ids of a split; raises DataError naming the known ones."""
        self._known(name, (self.train, self.val, *self.tests))
        return Split(name, *(_load_ragged(self.folder, f"{name}.{side}") for side in ("src", "tgt")))

    def word_starts(self, side: Literal["src", "tgt"]) -> Flags:
        """Which ids of the training split's side open a word; DataError where each id is a word."""
        path = self.folder / f"{self.train}.{side}.starts.npy"
        if not path.is_file():
            raise DataError(f"{self.folder} tells no words from subwords: its vocabulary holds whole words")
        split = self.split(self.train)
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
                hint="prepare it too, and name that folder with --data: "
                f"nmt prepare --out DIR --set 'data.tests=[{', '.join((*self.tests, name))}]'",
            )


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
    splits: Mapping[str, tuple[Split, SplitCounts]],
    raw: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    src_vocabulary: Vocabulary,
    tgt_vocabulary: Vocabulary,
    word_starts: tuple[Flags, Flags] | None = None,
) -> None:
    """Write a prepared folder so that it appears at once and whole, in place of an older one.

    `splits` holds every split's ids and counts; `raw` the source and target lines of evaluation splits;
    `word_starts` says which source and target ids of the training split open a word, where not all do.
    The same arguments give the same bytes.
    """
    sides = ("src", "tgt")
    with whole_folder(folder) as draft:
        for name, (split, _) in splits.items():
            for side, ragged in zip(sides, (split.src, split.tgt), strict=True):
                np.save(draft / f"{name}.{side}.ids.npy", ragged.ids, allow_pickle=False)
                np.save(draft / f"{name}.{side}.offsets.npy", ragged.offsets, allow_pickle=False)
        for side, flags in zip(sides, word_starts or (), strict=False):
            name = f"{settings['data']['train']}.{side}.starts.npy"
            np.save(draft / name, np.packbits(flags), allow_pickle=False)
        for name, texts in raw.items():
            for side, lines in zip(sides, texts, strict=True):
                _write_lines(draft / f"{name}.{side}.txt", lines)
        src_vocabulary.save(draft, "src")
        tgt_vocabulary.save(draft, "tgt")
        manifest = Manifest(
            settings=settings,
            inputs=inputs,
            versions=versions,
            tests=tuple(name for name in raw if name != settings["data"]["val"]),
            counts={name: counts for name, (_, counts) in splits.items()},
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
    vocabularies = (load_vocabulary(folder, side) for side in ("src", "tgt"))
    return PreparedData(folder, manifest, *vocabularies)


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
