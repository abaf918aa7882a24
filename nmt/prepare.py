"""Stage: raw parallel text in, a prepared folder out."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nmt import __version__
from nmt.config import Config, DataConfig, VocabularyConfig, config_from_mapping
from nmt.data import captions, multi30k
from nmt.data.batching import plan_batches, token_share
from nmt.data.corpus import Pair, SplitFiles, find_split, find_splits, iter_parallel
from nmt.data.dataset import (
    MANIFEST,
    Flags,
    Manifest,
    PreparedData,
    Ragged,
    Split,
    SplitCounts,
    SplitPart,
    extra_name,
    is_prepared,
    open_prepared,
    prepared_folder,
    read_manifest,
    running_sum,
    write_prepared,
)
from nmt.data.spool import Spool, Types
from nmt.data.text import Tokenizer
from nmt.data.vocabulary import Vocabulary, build_subword_vocabulary, build_word_vocabulary
from nmt.errors import ConfigError, DataError
from nmt.files import only_one, scratch_file, sha256
from nmt.runtime import cache_folder, offline

log = logging.getLogger("nmt")

MULTI30K_TESTS = ("test_2016_flickr", "test_2017_flickr")
LOCK_TIMEOUT_S = 3600.0
EXTRA = "extra/"
"""What the inputs of data.extra are called after, so that no training file has the name of one."""
PART_PAIRS = 4096
"""Pairs that are tokenised, encoded and written at once: memory holds no more of the text than these."""


@dataclass(frozen=True, slots=True)
class PreparedSummary:
    """What `prepare` did."""

    data: PreparedData
    fresh: bool
    """True when the folder was made now, False when it was already there."""
    config: Config

    @property
    def folder(self) -> Path:
        """The prepared folder."""
        return self.data.folder

    def table(self) -> str:
        """The counts of every split as lines of text."""
        return _table(self)


@dataclass(frozen=True, slots=True)
class _Source:
    """The text of every split, not yet read, and the hashes that say whether it has changed."""

    files: Mapping[str, SplitFiles]
    pairs: Mapping[str, Sequence[Pair]]
    tests: tuple[str, ...]
    inputs: Mapping[str, str]

    def read(self, split: str) -> Iterator[Pair]:
        if split in self.pairs:
            return iter(self.pairs[split])
        files = self.files[split]
        return iter_parallel(files.source, files.target)


@dataclass(frozen=True, slots=True)
class _Side:
    """How one side's lines become numbers of distinct tokens."""

    tokenizer: Tokenizer
    lowercase: bool
    types: Types = field(default_factory=Types)

    def number(self, lines: Iterable[str]) -> Ragged:
        return self.types.number(self.tokenizer.tokenize_many(lines, self.lowercase))


_Sides = tuple[_Side, _Side]


def prepare(config: Config, *, out: Path | None = None) -> PreparedSummary:
    """Make the prepared folder that `config` asks for, unless it is there and its inputs are unchanged.

    Raises DataError for text that cannot be used, DownloadError for files that cannot be had.
    """
    folder = out or prepared_folder(config)
    _refuse_absent_source(config.data)
    fresh = not _is_current(folder, config) and _prepare_alone(folder, config)
    return PreparedSummary(open_prepared(folder), fresh, config)


def open_or_prepare(config: Config) -> tuple[Config, PreparedData]:
    """The prepared data of `config`, made first where it is missing or out of date.

    Where `data.source` is itself a prepared folder it is used as it is, and the returned config has the
    settings it was made with.
    """
    if is_prepared(config.data.source):
        data = open_prepared(Path(config.data.source))
        return adopt_settings(config, data.manifest), data
    folder = prepared_folder(config)
    if not _is_current(folder, config):
        log.info("preparing %s first (no current prepared data there)", folder)
        _refuse_absent_source(config.data)
        _prepare_alone(folder, config)
    return config, open_prepared(folder)


def training_text(config: Config) -> list[Pair]:
    """The raw training pairs of a config, fetched first where needed, without those of data.extra."""
    return list(_open_source(config).read(config.data.train))


def adopt_settings(config: Config, manifest: Manifest) -> Config:
    """`config` with the data settings that a prepared folder was made with."""
    values = {**config.model_dump(mode="json"), **manifest.settings}
    return config_from_mapping(values, MANIFEST)


def _prepare_alone(folder: Path, config: Config) -> bool:
    """Make the folder, unless another process has just done so; whether it was made here."""
    lock = folder.with_name(f".{folder.name}.lock")
    with only_one(lock, doing=f"preparing {folder}", timeout_s=LOCK_TIMEOUT_S):
        if _is_current(folder, config):
            return False
        _refuse_foreign_folder(folder, config)
        _build(folder, config)
        return True


def _is_current(folder: Path, config: Config) -> bool:
    """Whether `folder` was made with these settings and inputs (out of reach, they count as the same)."""
    try:
        manifest = _manifest_of(folder, config)
    except DataError as error:
        log.warning("%s; preparing anew", error.message)
        return False
    return manifest is not None and _has_this_text(manifest, config)


def text_has_changed(config: Config) -> bool:
    """Whether the prepared folder was made with these settings from other text than there is now."""
    if is_prepared(config.data.source):
        return False
    with contextlib.suppress(DataError):  # a damaged folder, or no text: whoever prepares says so
        manifest = _manifest_of(prepared_folder(config), config)
        return manifest is not None and not _has_this_text(manifest, config)
    return False


def _manifest_of(folder: Path, config: Config) -> Manifest | None:
    """The manifest of what was prepared in `folder` with these settings, or None; DataError if damaged."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = open_prepared(folder).manifest
    return manifest if manifest.settings == config.data_settings() else None


def _has_this_text(manifest: Manifest, config: Config) -> bool:
    """Whether a prepared folder holds the text that there is now; one out of reach counts as the same."""
    own, extra = _known_inputs(config), _known_extra(config)
    of_extra = {name: value for name, value in manifest.inputs.items() if name.startswith(EXTRA)}
    of_own = {name: value for name, value in manifest.inputs.items() if name not in of_extra}
    return (own is None or own == of_own) and (extra is None or extra == of_extra)


def _known_extra(config: Config) -> Mapping[str, str] | None:
    """The hashes of data.extra's files, or None where there are none or they are out of reach."""
    if config.data.extra is None or not Path(config.data.extra).parent.is_dir():
        return None
    return _hash_extra(_find_extra(config.data.extra, config.data))


def _find_extra(extra: str, data: DataConfig) -> SplitFiles:
    place = Path(extra)
    try:
        return find_split(place.parent, place.name, data.src_lang, data.tgt_lang)
    except DataError as error:
        hint = "make these pairs, with scripts/diversify.py say, or go without them: --set data.extra=null"
        if place.suffix in (f".{data.src_lang}", f".{data.tgt_lang}"):
            hint = f"leave off the ending: --set data.extra={place.with_suffix('')}"
        raise DataError(f"data.extra is {extra}, but {error.message}", hint=hint) from error


def _hash_extra(files: SplitFiles) -> dict[str, str]:
    return {f"{EXTRA}{name}": value for name, value in _hash_files({files.name: files}).items()}


def _known_inputs(config: Config) -> Mapping[str, str] | None:
    """The hashes of a config's inputs, or None where they are pinned or out of reach."""
    if config.data.source == "captions":
        return {"captions": captions.VERSION}
    if config.data.source == "multi30k" or not Path(config.data.source).is_dir():
        return None
    return _folder_source(config).inputs


def _refuse_foreign_folder(folder: Path, config: Config) -> None:
    """Never replace a folder that `prepare` did not make, or made with other settings."""
    found = None
    if (folder / MANIFEST).is_file():
        with contextlib.suppress(DataError):  # a damaged one is ours, and made anew
            found = read_manifest(folder).settings
        if found is not None and found != config.data_settings():
            raise DataError(
                f"{folder} was prepared with other settings; it is left as it is",
                hint="name another folder with --out, or delete this one",
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"{folder} exists and is no prepared folder; it is left as it is",
            hint="name another folder with --out",
        )


def _build(folder: Path, config: Config) -> None:
    settings = config.data
    sides = (
        _Side(Tokenizer(settings.src_lang, settings.src_pipeline), settings.src_lowercase),
        _Side(Tokenizer(settings.tgt_lang, settings.tgt_pipeline), settings.tgt_lowercase),
    )
    source = _open_source(config)
    training = [settings.train]
    if settings.extra is not None:
        training.append(extra_name(settings.train))
        source = _with_extra(source, settings.extra, settings)
    evaluation = (settings.val, *source.tests)
    sizes = _count_pairs(source, (*training, *evaluation))
    with scratch_file(beside=folder) as file:
        spool = Spool(file)
        for name, size in sizes.items():
            log.info("tokenising %s: %s pairs", name, f"{size:,}")
            spool.write(name, _number(name, source.read(name), sides))
        log.info("building the vocabulary")
        vocabularies = _build_vocabularies(config.vocabulary, *_count_tokens(spool, settings.train, sides))
        spellings = sides[0].types.encode(vocabularies[0]), sides[1].types.encode(vocabularies[1])
        write_prepared(
            folder,
            settings=config.data_settings(),
            inputs=source.inputs,
            versions=_versions(),
            splits={
                name: _encode_training(spool.read(name), spellings, config)
                if name in training
                else _encode(spool.read(name), spellings)
                for name in sizes
            },
            raw={
                name: (
                    (pair.source for pair in source.read(name)),
                    (pair.target for pair in source.read(name)),
                )
                for name in evaluation
            },
            src_vocabulary=vocabularies[0],
            tgt_vocabulary=vocabularies[1],
        )


def _open_source(config: Config) -> _Source:
    match config.data.source:
        case "multi30k":
            return _multi30k_source(config)
        case "captions":
            return _captions_source(config)
        case _:
            return _folder_source(config)


def _with_extra(source: _Source, extra: str, data: DataConfig) -> _Source:
    files = _find_extra(extra, data)
    return replace(
        source,
        files={**source.files, extra_name(data.train): files},
        inputs={**source.inputs, **_hash_extra(files)},
    )


def _multi30k_source(config: Config) -> _Source:
    data = config.data
    if {data.src_lang, data.tgt_lang} != set(multi30k.LANGUAGES):
        raise ConfigError(
            f"Multi30k is here in de and en, not in {data.src_lang} and {data.tgt_lang}",
            hint="set data.src_lang and data.tgt_lang, or name a folder of your own: --data FOLDER",
        )
    tests = data.tests if data.tests is not None else MULTI30K_TESTS
    files = multi30k.fetch(
        (data.train, data.val, *tests),
        cache=cache_folder(),
        mirror=data.mirror,
        offline=offline(),
        languages=(data.src_lang, data.tgt_lang),
    )
    return _Source(files, {}, tests, _hash_files(files))


def _captions_source(config: Config) -> _Source:
    data = config.data
    if {data.src_lang, data.tgt_lang} != {"de", "en"}:
        raise ConfigError(f"the captions are in de and en, not in {data.src_lang} and {data.tgt_lang}")
    pairs = captions.generate()
    if data.src_lang == "en":
        pairs = {name: [Pair(pair.target, pair.source) for pair in split] for name, split in pairs.items()}
    tests = data.tests if data.tests is not None else ("test",)
    for name in (data.train, data.val, *tests):
        if name not in pairs:
            raise DataError(f"the captions have no split {name}: they have {', '.join(pairs)}")
    return _Source({}, pairs, tests, {"captions": captions.VERSION})


def _folder_source(config: Config) -> _Source:
    data = config.data
    folder = Path(data.source)
    if (folder / MANIFEST).is_file():
        raise DataError(f"{folder} is a prepared folder already", hint="name it with --data when you train")
    _refuse_absent_source(data)
    langs = data.src_lang, data.tgt_lang
    needed = (data.train, data.val, *(data.tests or ()))
    files = {name: find_split(folder, name, *langs) for name in needed}
    tests = data.tests
    if tests is None:
        others = find_splits(folder, *langs)
        tests = tuple(name for name in sorted(others) if name not in files)
        files.update((name, others[name]) for name in tests)
    return _Source(files, {}, tests, _hash_files(files))


def _refuse_absent_source(data: DataConfig) -> None:
    """Before anything is made: a name that is mistyped, or a folder that lies elsewhere."""
    if data.source not in ("multi30k", "captions") and not Path(data.source).is_dir():
        raise DataError(
            f"{data.source} is neither multi30k nor captions nor a folder in {Path.cwd()}",
            hint=f"a folder of your own needs train.{data.src_lang}, train.{data.tgt_lang}, "
            f"val.{data.src_lang}, val.{data.tgt_lang}",
        )


def _hash_files(files: Mapping[str, SplitFiles]) -> dict[str, str]:
    return {path.name: sha256(path) for split in files.values() for path in (split.source, split.target)}


def _count_pairs(source: _Source, names: Iterable[str]) -> dict[str, int]:
    """The pairs of each split; text that cannot be read is refused here, before the long work."""
    sizes = {name: sum(1 for _ in source.read(name)) for name in names}
    for name, size in sizes.items():
        if not size:
            files = source.files[name]
            raise DataError(
                f"split {name} is empty: {files.source}, {files.target}",
                hint="put sentences into these files",
            )
    return sizes


def _number(name: str, pairs: Iterator[Pair], sides: _Sides) -> Iterator[Split]:
    """A split in parts, as numbers of the sides' types."""
    src, tgt = sides
    while part := list(itertools.islice(pairs, PART_PAIRS)):
        yield Split(name, src.number(pair.source for pair in part), tgt.number(pair.target for pair in part))


def _drop_empty(split: Split) -> Split:
    return split.select(((split.src.lengths > 0) & (split.tgt.lengths > 0)).nonzero()[0])


def _count_tokens(spool: Spool, train: str, sides: _Sides) -> tuple[Counter[str], Counter[str]]:
    """How often each token occurs in the training pairs that are not dropped as empty."""
    src, tgt = (side.types for side in sides)
    counts = (
        src.count(_drop_empty(part).src for part in spool.read(train)),
        tgt.count(_drop_empty(part).tgt for part in spool.read(train)),
    )
    if not counts[0]:
        raise DataError("no training pair has text on both sides")
    return counts


def _build_vocabularies(
    settings: VocabularyConfig, src_counts: Counter[str], tgt_counts: Counter[str]
) -> tuple[Vocabulary, Vocabulary]:
    if settings.joint:
        joint = _build_vocabulary(settings, src_counts + tgt_counts)
        return joint, joint
    return _build_vocabulary(settings, src_counts), _build_vocabulary(settings, tgt_counts)


def _build_vocabulary(settings: VocabularyConfig, counts: Counter[str]) -> Vocabulary:
    if settings.kind == "word":
        return build_word_vocabulary(counts, min_freq=settings.min_freq, max_size=settings.max_size)
    return build_subword_vocabulary(counts, size=settings.size)


def _encode(parts: Iterable[Split], spellings: tuple[Ragged, Ragged]) -> Iterator[SplitPart]:
    """Numbered lines as ids, all of them; `spellings` has the ids of each source and target type."""
    for words in parts:
        ids = _spell(words, spellings)
        yield SplitPart(ids, SplitCounts.of(ids, pairs_read=len(words)))


def _encode_training(
    parts: Iterable[Split], spellings: tuple[Ragged, Ragged], config: Config
) -> Iterator[SplitPart]:
    """Numbered pairs as ids, without those that have an empty or an over-long side."""
    max_tokens = config.data.max_tokens
    any_kept, name = False, ""
    for read in parts:
        name = read.name
        words = _drop_empty(read)
        spelt = _spell(words, spellings)
        rows = spelt.rows_within(max_tokens)
        ids, short = spelt.select(rows), words.select(rows)
        counts = SplitCounts.of(
            ids,
            pairs_read=len(read),
            dropped_empty=len(read) - len(words),
            dropped_long=len(words) - len(short),
        )
        starts = None
        if config.vocabulary.kind == "subword":
            starts = _word_starts(short.src, spellings[0]), _word_starts(short.tgt, spellings[1])
        any_kept = any_kept or len(short) > 0
        yield SplitPart(ids, counts, starts)
    if not any_kept:
        raise DataError(
            f"every pair of {name} is empty on a side or longer than {max_tokens} tokens",
            hint="look at its text, or raise data.max_tokens",
        )


def _spell(words: Split, spellings: tuple[Ragged, Ragged]) -> Split:
    return Split(words.name, words.src.spelt(spellings[0]), words.tgt.spelt(spellings[1]))


def _word_starts(words: Ragged, spellings: Ragged) -> Flags:
    """Which ids of spelt lines open a word; sampling other subwords needs to know."""
    ends = running_sum(spellings.lengths[words.ids])
    starts = np.zeros(ends[-1], dtype=np.bool_)
    starts[ends[:-1]] = True
    return starts


def _versions() -> dict[str, str]:
    return {
        "nmt": __version__,
        **{name: importlib.metadata.version(name) for name in ("spacy", "sentencepiece")},
    }


def _table(summary: PreparedSummary) -> str:
    data = summary.data
    head = "split,pairs,kept,empty,too long,src tokens,tgt tokens,src unknown,tgt unknown"
    rows: list[tuple[str, ...]] = [tuple(head.split(","))]
    for name, counts in data.manifest.counts.items():
        numbers = (counts.pairs_read, counts.pairs_kept, counts.dropped_empty, counts.dropped_long)
        tokens = (counts.src_tokens, counts.tgt_tokens)
        shares = ((counts.src_unknown, counts.src_tokens), (counts.tgt_unknown, counts.tgt_tokens))
        rows.append(
            (
                name,
                *(f"{n:,}" for n in (*numbers, *tokens)),
                *(f"{part / max(whole, 1):.2%}" for part, whole in shares),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    train, settings = data.split(data.train), summary.config.train
    plan = plan_batches(
        train, settings.batch_tokens, seed=summary.config.seed, epoch=0, max_rows=settings.batch_sentences
    )
    is_cut_anew = data.src_vocabulary.kind == "subword" and settings.subword_dropout > 0
    more = "; train.subword_dropout makes more of them" if is_cut_anew else ""
    sizes = len(data.src_vocabulary), len(data.tgt_vocabulary)
    joint = data.manifest.settings["vocabulary"]["joint"]
    vocabulary = f"{sizes[0]:,} joint" if joint else f"{sizes[0]:,} source, {sizes[1]:,} target"
    lengths = data.manifest.counts[data.train].src_lengths
    lines += [
        f"vocabulary: {vocabulary} ({data.src_vocabulary.kind})",
        "source lengths: " + ", ".join(f"{span}: {count:,}" for span, count in lengths.items()),
        f"batches: {len(plan):,} of at most {settings.batch_tokens:,} positions a side, "
        f"{token_share(train, plan):.1%} of the positions are tokens{more}",
        f"folder: {data.folder}{'' if summary.fresh else ' (was there already, nothing to do)'}",
    ]
    return "\n".join(lines)
