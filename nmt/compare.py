"""Stage: two models, or two translations, of a split in; out comes which is better, where, and how surely."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nmt.data.corpus import read_lines, read_parallel
from nmt.data.dataset import MANIFEST, PreparedData, open_prepared, prepared_folder
from nmt.data.text import detokenize
from nmt.errors import DataError
from nmt.evaluate import (
    System,
    chosen_splits,
    files_task,
    load_system,
    refuse_nothing,
    split_task,
    translate_task,
    translated_lines,
    warn_of_other_languages,
)
from nmt.modelfile import is_shipped_name
from nmt.runtime import DecodingPrecision
from nmt.scoring.groups import LENGTHS, Group, grouped
from nmt.scoring.metrics import PairedScores, bleu, paired_scores, score_tokens, sentence_chrf

log = logging.getLogger("nmt")

MOST_DIFFERENT = 20
COUNTS = (1, 4, 19, 99)
"""How often the rarest token of a group's sentences was counted, at most."""
MAX_COUNTED = 100_000
"""Training sentences whose tokens are counted: the first ones."""


@dataclass(frozen=True, slots=True)
class Wins:
    """Some of the sentences: which system's translation has the higher chrF2 how often, and both BLEUs."""

    label: str
    sentences: int
    a_better: int
    b_better: int
    equal: int
    a_bleu: float
    b_bleu: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """A sentence that both systems translated."""

    line: int
    source: str | None
    """None where only translations and references were given."""
    reference: str
    a: str
    b: str
    a_chrf: float
    b_chrf: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems, A and B, on the same references."""

    split: str
    a: Path
    b: Path
    sentences: int
    differing: int
    """Sentences whose translations are not the same."""
    scores: tuple[PairedScores, ...]
    overall: Wins
    by_length: tuple[Wins, ...]
    """By the reference's length in tokens as BLEU counts them."""
    by_rarest_token: tuple[Wins, ...]
    """By how often the reference's rarest token stands in `counted_in`."""
    counted_in: str
    most_different: tuple[Contrast, ...]
    """The sentences whose chrF2 differ most, the widest apart first."""

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=2, default=str)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclass(frozen=True, slots=True)
class _Text:
    """What was to be translated, as lines."""

    name: str
    sources: Sequence[str] | None
    references: Sequence[str]
    origin: str
    """Where the references come from."""


def compare(
    a: Path,
    b: Path,
    *,
    prepared: PreparedData | None = None,
    split: str | None = None,
    source: Path | None = None,
    reference: Path | None = None,
    lowercase: bool = False,
    device: str = "auto",
    precision: DecodingPrecision = "auto",
    beam: int | None = None,
    length_penalty: float | None = None,
) -> Comparison:
    """Score two systems on the same references, test their difference, and tell where it lies.

    a, b: a model file, a run folder, or a file of translations. References are those of a `split` of
    `prepared` (by default its first test split) or the lines of `reference`; models translate that split or
    `source`. Scores are lower-cased if asked for, and where one of the models writes lower case. Raises
    DataError, naming both, for files of different counts of lines, and the errors of `load_system`.
    """
    if split is not None and reference is not None:
        raise DataError("either a split or files can be compared on", hint="leave out --split or --reference")
    if source is not None and reference is None:
        raise DataError("a source needs its reference", hint="give both: --input F --reference F")
    systems = {
        path: load_system(
            [path], device=device, precision=precision, beam=beam, length_penalty=length_penalty
        )
        for path in (a, b)
        if is_model(path)
    }
    if systems and reference is not None and source is None:
        raise DataError("a model needs a source to translate", hint="give both: --input F --reference F")
    models = list(systems.values())
    if reference is None:
        prepared = prepared or _prepared_of(models)
    text = _text(prepared, split, source, reference)
    refuse_nothing(text.origin, text.references)
    if source is not None and reference is not None:
        warn_of_other_languages([system.model for system in models], source, reference)
    sides = {path: _read_translations(path, text) for path in (a, b) if path not in systems}
    for path, system in systems.items():
        sides[path] = _translations(system, text, prepared, source, reference)
    training = _training_text(prepared, models)
    lower = lowercase or any(system.lowercase for system in models)
    return _compare(text, (a, b), (sides[a], sides[b]), training, lower)


def is_model(path: Path) -> bool:
    """Whether a path is a run folder, a model file or a model's name, and not a file of translations."""
    if path.is_dir() or path.suffix == ".safetensors" or is_shipped_name(path):
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(9)  # of a model file: the length of its header, then JSON; text holds no zeros
    return start[5:] == b"\0\0\0{"


# --- what is compared -------------------------------------------------------------------------------------


def _prepared_of(systems: Sequence[System]) -> PreparedData:
    if not systems:
        raise DataError(
            "two files of translations need references", hint="name them: --reference FILE, or --split NAME"
        )
    return open_prepared(prepared_folder(systems[0].model.config))


def _text(
    prepared: PreparedData | None, split: str | None, source: Path | None, reference: Path | None
) -> _Text:
    if reference is not None:
        if source is None:
            return _Text(reference.name, None, read_lines(reference), str(reference))
        pairs = read_parallel(source, reference)
        sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
        return _Text(reference.name, sources, references, str(reference))
    assert prepared is not None
    names = chosen_splits(prepared, [] if split is None else [split])
    if len(names) > 1:
        raise DataError("systems are compared on one split at a time", hint=f"one of {', '.join(names)}")
    (name,) = names
    return _Text(name, prepared.sources(name), prepared.references(name), f"{prepared.folder}, split {name}")


def _translations(
    system: System, text: _Text, prepared: PreparedData | None, source: Path | None, reference: Path | None
) -> list[str]:
    if source is not None and reference is not None:
        task = files_task(system.model, source, reference)
    else:
        assert prepared is not None
        task = split_task(system.model, prepared, text.name)
    return translated_lines(system, translate_task(system, task))


def _read_translations(path: Path, text: _Text) -> list[str]:
    lines = read_lines(path)
    if len(lines) != len(text.references):
        raise DataError(
            f"{path} has {len(lines)} lines, but {text.origin} has {len(text.references)}",
            hint="line k of the one must translate line k of the other: look for a missing or an extra line",
        )
    return lines


def _training_text(prepared: PreparedData | None, systems: Sequence[System]) -> PreparedData | None:
    """The prepared folder whose training text tells which tokens are rare, if there is one."""
    if prepared is not None:
        return prepared
    folders = (prepared_folder(system.model.config) for system in systems)
    return next((open_prepared(folder) for folder in folders if (folder / MANIFEST).is_file()), None)


# --- where they differ ------------------------------------------------------------------------------------


def _compare(
    text: _Text,
    paths: tuple[Path, Path],
    sides: tuple[list[str], list[str]],
    training: PreparedData | None,
    lowercase: bool,
) -> Comparison:
    references = text.references
    log.info("scoring and testing %d sentences", len(references))
    scores = paired_scores(*sides, references, lowercase=lowercase)
    a_chrf, b_chrf = (sentence_chrf(side, references, lowercase=lowercase) for side in sides)
    tokens = [score_tokens(line, lowercase=lowercase) for line in references]

    def wins(group: Group) -> Wins:
        chosen = [[lines[row] for row in group.rows] for lines in (*sides, references)]
        pairs = [(a_chrf[row], b_chrf[row]) for row in group.rows]
        bleus = (bleu(side, chosen[2], lowercase=lowercase).value for side in chosen[:2])
        a_better, b_better = (
            sum(one > other for one, other in pairs),
            sum(one < other for one, other in pairs),
        )
        return Wins(group.label, len(pairs), a_better, b_better, len(pairs) - a_better - b_better, *bleus)

    counts, counted_in = _rarest_counts(references, training, lowercase)
    return Comparison(
        text.name,
        *paths,
        sentences=len(references),
        differing=sum(one != other for one, other in zip(*sides, strict=True)),
        scores=scores,
        overall=wins(Group("all", tuple(range(len(references))))),
        by_length=tuple(map(wins, grouped([len(line) for line in tokens], LENGTHS))),
        by_rarest_token=tuple(map(wins, grouped(counts, COUNTS))),
        counted_in=counted_in,
        most_different=tuple(_contrasts(text, sides, a_chrf, b_chrf)),
    )


def _rarest_counts(
    references: Sequence[str], training: PreparedData | None, lowercase: bool
) -> tuple[list[int], str]:
    """How often each reference's rarest token was seen, and where that was counted."""
    lower = lowercase or (training is not None and training.manifest.settings["data"]["tgt_lowercase"])
    lines, where = (references, "the references") if training is None else _training_lines(training)
    counts = Counter(token for line in lines for token in score_tokens(line, lowercase=lower))
    tokens = (score_tokens(line, lowercase=lower) for line in references)
    return [min((counts[token] for token in line), default=0) for line in tokens], where


def _training_lines(training: PreparedData) -> tuple[Iterator[str], str]:
    """The target side of the training text; what its vocabulary does not know is left out."""
    targets, vocabulary = training.split(training.train).tgt, training.tgt_vocabulary
    rows = min(len(targets), MAX_COUNTED)
    lines = (detokenize(vocabulary.decode(targets[row].tolist())) for row in range(rows))
    part = "" if rows == len(targets) else f"the first {rows:,} sentences of "
    return lines, f"{part}the training text"


def _contrasts(
    text: _Text, sides: tuple[list[str], list[str]], a_chrf: Sequence[float], b_chrf: Sequence[float]
) -> Iterator[Contrast]:
    rows = [row for row, (one, other) in enumerate(zip(a_chrf, b_chrf, strict=True)) if one != other]
    rows.sort(key=lambda row: -abs(a_chrf[row] - b_chrf[row]))
    for row in rows[:MOST_DIFFERENT]:
        source = None if text.sources is None else text.sources[row]
        a, b = (side[row] for side in sides)
        yield Contrast(row + 1, source, text.references[row], a, b, a_chrf[row], b_chrf[row])


# --- in words ---------------------------------------------------------------------------------------------


def _lines(found: Comparison) -> Iterator[str]:
    yield f"{found.split}: {found.sentences:,} sentences, {found.differing:,} of them translated differently"
    yield f"A: {found.a}"
    yield f"B: {found.b}"
    yield ""
    yield from _score_lines(found)
    overall = found.overall
    yield ""
    yield (
        f"sentence by sentence (chrF2): A better in {overall.a_better:,}, B better in {overall.b_better:,}, "
        f"equal in {overall.equal:,}"
    )
    yield from _wins_lines("reference length in tokens", found.by_length)
    yield from _wins_lines(f"rarest reference token, times in {found.counted_in}", found.by_rarest_token)
    if found.most_different:
        yield ""
        yield f"the {len(found.most_different)} sentences that differ most (chrF2)"
    for each in found.most_different:
        yield ""
        yield f"line {each.line:,}"
        if each.source is not None:
            yield f"  source     {each.source}"
        yield f"  reference  {each.reference}"
        yield f"  A {each.a_chrf:6.2f}   {each.a}"
        yield f"  B {each.b_chrf:6.2f}   {each.b}"


def _score_lines(found: Comparison) -> Iterator[str]:
    head = ["", "A", "95 %", "B", "95 %", "B - A", "bootstrap p", "randomisation p"]
    rows = [head]
    for pair in found.scores:
        sides = [
            words
            for side in (pair.a, pair.b)
            for words in (f"{side.value:.2f}", f"{side.low:.2f} to {side.high:.2f}")
        ]
        difference = f"{pair.b.value - pair.a.value:+.2f}"
        rows.append(
            [pair.a.name, *sides, difference, f"{pair.bootstrap_p:.4f}", f"{pair.randomisation_p:.4f}"]
        )
    yield from _table(rows)
    for pair in found.scores:
        lower = ", lower is better" if pair.a.name == "TER" else ""
        yield f"{pair.a.name}: {pair.a.signature}{lower}"
    if found.scores:
        yield (
            f"p: how likely chance alone gives a difference like this "
            f"({found.scores[0].resamples:,} resamples, {found.scores[0].trials:,} trials)"
        )


def _wins_lines(title: str, groups: Sequence[Wins]) -> Iterator[str]:
    yield ""
    yield title
    rows = [["", "sentences", "A better", "B better", "equal", "BLEU A", "BLEU B", "B - A"]]
    for group in groups:
        numbers = (group.sentences, group.a_better, group.b_better, group.equal)
        bleus = (f"{group.a_bleu:.2f}", f"{group.b_bleu:.2f}", f"{group.b_bleu - group.a_bleu:+.2f}")
        rows.append([group.label, *(f"{number:,}" for number in numbers), *bleus])
    yield from _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{row[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        yield "  ".join(cells)
