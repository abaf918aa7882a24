"""Stage: a model and splits in, scores out, with the hypotheses and references that they were taken on."""

from __future__ import annotations

import difflib
import json
import logging
import math
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.config import Config, DecodeConfig
from nmt.data.batching import Batch, cut_batches, make_batch
from nmt.data.corpus import read_parallel
from nmt.data.dataset import PreparedData, Ragged, Split, open_prepared, prepared_folder
from nmt.data.text import Tokenizer, detokenize, normalise
from nmt.data.vocabulary import PAD, UNK, Vocabulary
from nmt.decoding.search import SearchOptions, search, translate_ids
from nmt.decoding.state import Hypothesis
from nmt.errors import DataError
from nmt.files import write_whole
from nmt.model.packed import packed
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, load_models, model_name, resolve_model, work_folder
from nmt.progress import progress
from nmt.reporting import attention_maps, make_report, split_report
from nmt.runtime import (
    ALONE,
    DecodingPrecision,
    Ranks,
    device_line,
    joined_ranks,
    select_device,
    select_precision,
)
from nmt.scoring.metrics import CorpusScores, Score, bleu, corpus_scores
from nmt.scoring.report import SplitReport, write_report
from nmt.translate import Translator, changed_decode, computing_in, warn_if_cut, warn_of_another_language

log = logging.getLogger("nmt")

ALL_SPLITS = "all"
LOGIT_ROWS = 1024
"""Target positions whose logits over the whole vocabulary exist at once."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of one split and all that is needed to take them again."""

    split: str
    scores: tuple[Score, ...]
    """BLEU, chrF2 and TER with their 95 % intervals; without TER where that took too long."""
    loss: float | None
    """Teacher-forced on the references: nats per target token, `<eos>` counted; None if there are none."""
    loss_sentences: int
    """The pairs that the loss is taken on: those within decode.max_source_tokens on either side."""
    length_ratio: float
    """Tokens of the translations over those of the references, as BLEU counts them."""
    unknown_rate: float
    """The share of the source tokens that are `<unk>` to the model."""
    sentences: int
    cut_sources: int
    """Source lines longer than decode.max_source_tokens: their ends were not translated."""
    elapsed_s: float
    """Time that translating took; loading and scoring not counted."""
    beam: int
    length_penalty: float
    models: tuple[Path, ...]
    hypotheses: Path
    references: Path

    @property
    def score(self) -> Score:
        """The BLEU."""
        return self.scores[0]

    @property
    def perplexity(self) -> float | None:
        """e to the power of the loss."""
        return None if self.loss is None else math.exp(min(self.loss, 700.0))

    @property
    def sentences_per_s(self) -> float | None:
        """Sentences translated in a second; None where no time passed."""
        return round(self.sentences / self.elapsed_s, 1) if self.elapsed_s else None

    @property
    def command(self) -> str:
        """The sacreBLEU command that gives the same numbers from the saved files."""
        names = [score.name.lower().rstrip("2") for score in self.scores]
        lowercase = ("-lc", "--chrf-lowercase") if "|case:lc|" in self.score.signature else ()
        files = (str(self.references), "-i", str(self.hypotheses))
        return shlex.join(("sacrebleu", *files, "-m", *names, *lowercase, "-w", "2"))

    def to_json(self) -> str:
        """One JSON object; `model` is null for an ensemble, and `score` is the first of `scores`."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2, default=str, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` holds."""
        return {
            "split": self.split,
            "score": asdict(self.score),
            "model": self.models[0] if len(self.models) == 1 else None,
            **asdict(self),
            "perplexity": self.perplexity,
            "sentences_per_s": self.sentences_per_s,
            "command": self.command,
        }

    def __str__(self) -> str:
        cut = f", {self.cut_sources:,} of them cut" if self.cut_sources else ""
        speed = f" ({self.sentences_per_s:,.0f} a second)" if self.sentences_per_s else ""
        search = f", beam {self.beam}, length penalty {self.length_penalty:g}" if self.beam > 1 else ""
        return "\n".join(
            (
                *(f"{self.split}: {score}" for score in self.scores),
                f"{self.sentences:,} sentences{cut}, {self.elapsed_s:.1f} s{speed}{search}",
                ", ".join(f"{name} {words}" for name, words in self.facts),
                f"hypotheses: {self.hypotheses}",
                f"the same by hand: {self.command}",
            )
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What else there is to know of the split, each with its name, as it is to be read."""
        loss = "none" if self.loss is None else f"{self.loss:.4f}"
        perplexity = "none" if self.perplexity is None else f"{self.perplexity:,.2f}"
        left_out = self.sentences - self.loss_sentences
        if left_out:
            perplexity += f" (without {left_out:,} overlong pair{'s' if left_out > 1 else ''})"
        return [
            ("loss", loss),
            ("perplexity", perplexity),
            ("length ratio", f"{self.length_ratio:.3f}"),
            ("unknown source tokens", f"{100 * self.unknown_rate:.2f} %"),
        ]


@dataclass(frozen=True, slots=True)
class System:
    """A model, or several as an ensemble, and how it searches."""

    files: tuple[Path, ...]
    models: tuple[Model, ...]
    decode: DecodeConfig
    device: torch.device
    dtype: torch.dtype
    decoders: tuple[Transformer, ...]
    """The models' networks as they search."""
    ranks: Ranks = ALONE

    @property
    def model(self) -> Model:
        """The first, whose vocabularies are those of all."""
        return self.models[0]

    @property
    def lowercase(self) -> bool:
        """Whether it translates into lower case."""
        return self.model.config.data.tgt_lowercase

    @property
    def max_tokens(self) -> int:
        """The longest side of a pair that the loss is taken on."""
        positions = [network.max_positions for network in self.networks]
        return min([self.decode.max_source_tokens, *(limit - 1 for limit in positions if limit is not None)])

    @property
    def networks(self) -> tuple[Transformer, ...]:
        """The network of each model."""
        return tuple(model.network for model in self.models)


@dataclass(frozen=True, slots=True)
class Task:
    """A split as a system reads it, and the lines as they were written."""

    name: str
    ids: Split
    sources: Sequence[str]
    references: Sequence[str]


def evaluate(
    models: Path | Sequence[Path],
    *,
    prepared: PreparedData | None = None,
    split: str | None = None,
    source: Path | None = None,
    reference: Path | None = None,
    device: str = "auto",
    precision: DecodingPrecision = "auto",
    out: Path | None = None,
) -> Evaluation:
    """Translate one split and score it; see `evaluate_splits`."""
    (evaluation,) = evaluate_splits(
        models,
        prepared=prepared,
        splits=() if split is None else (split,),
        source=source,
        reference=reference,
        device=device,
        precision=precision,
        out=out,
    )
    return evaluation


def evaluate_splits(
    models: Path | Sequence[Path],
    *,
    prepared: PreparedData | None = None,
    splits: Sequence[str] = (),
    source: Path | None = None,
    reference: Path | None = None,
    device: str = "auto",
    precision: DecodingPrecision = "auto",
    beam: int | None = None,
    length_penalty: float | None = None,
    out: Path | None = None,
    report: Path | None = None,
) -> list[Evaluation]:
    """Translate splits, score them against their raw references, and save both as text files.

    models: a model file or a run folder; several are an ensemble, whose probabilities are averaged. Scored is
    `source` against `reference`, if given; else the `splits` of `prepared`, which are the first test split
    and the folder that the model's config names; "all" means every one but the training split. `beam` and
    `length_penalty` take the place of the model's own. The files SPLIT.hyp.LANG, SPLIT.ref.LANG and
    SPLIT.json go to `out`, by default `evaluation` beside the model (`evaluation-ensemble` beside the first
    of several); for the model that comes with nmt it lies in `runs/multi30k-de-en`. `report` is an HTML page
    on all of it. Of several processes that torchrun started each translates its share; the first one writes,
    and the others get an empty list. Raises DataError for text that cannot be used, ConfigError,
    ModelFileError, DeviceError, MachineError.
    """
    if (source is None) != (reference is None):
        raise DataError(
            "a source and a reference file are scored together", hint="give both: --input F --reference F"
        )
    if source is not None and splits:
        raise DataError(
            "either a split or two files can be scored", hint="leave out --split, or --input and --reference"
        )
    paths = (models,) if isinstance(models, Path) else tuple(models)
    with joined_ranks() as ranks:
        system = load_system(
            paths,
            device=device,
            precision=precision,
            beam=beam,
            length_penalty=length_penalty,
            ranks=ranks,
        )
        if source is not None and reference is not None:
            if ranks.is_first:
                warn_of_other_languages(system.models, source, reference)
            tasks = [files_task(system.model, source, reference)]
        else:
            prepared = prepared or open_prepared(prepared_folder(system.model.config))
            tasks = [split_task(system.model, prepared, name) for name in chosen_splits(prepared, splits)]
        for task in tasks:
            refuse_nothing(task.name, task.references)
        done = [(task, _translate_and_force(task, system)) for task in tasks]
    if not ranks.is_first:
        return []
    single = len(system.files) == 1
    folder = out or work_folder(system.files[0]) / ("evaluation" if single else "evaluation-ensemble")
    scored = [_score(task, system, found, folder, with_report=report is not None) for task, found in done]
    if report is not None:
        pages = [page for _, page in scored if page is not None]
        write_report(report, make_report(system.files, system.models, system.decode, pages))
    return [evaluation for evaluation, _ in scored]


def score_ids(
    network: Transformer,
    sources: Ragged,
    references: Sequence[str],
    vocabulary: Vocabulary,
    config: Config,
    ranks: Ranks = ALONE,
) -> tuple[Score, list[str]]:
    """BLEU of a network's greedy translations of `sources`, and these, for the validations of a training run.

    Each rank translates its share of the sentences, and the first one scores them all.
    vocabulary: the target's.
    """
    mine = sources.select(np.array(ranks.share(len(sources)), dtype=np.int64))
    device = next(network.parameters()).device
    greedy = config.decode.model_copy(update={"beam": 1})  # several times as fast
    hypotheses = ranks.collect(translate_split(network, mine, vocabulary, greedy, device=device))

    def score() -> dict[str, Any]:
        return asdict(bleu(hypotheses, references, lowercase=config.data.tgt_lowercase))

    return Score(**ranks.first(score)), hypotheses


def translate_split(
    network: Transformer,
    sources: Ragged,
    vocabulary: Vocabulary,
    decode: DecodeConfig,
    *,
    device: torch.device | str,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """The detokenised translation of each of a split's sources, in order.

    vocabulary: the target's. `progress` is told how many more sentences are done. Needs neither spaCy nor
    torchtext.
    """
    found = translate_ids(packed(network), _sentences(sources), decode, device=device, progress=progress)
    return texts_of([hypothesis.ids for hypothesis in found], vocabulary)


# --- what is evaluated ------------------------------------------------------------------------------------


def load_system(
    paths: Sequence[Path],
    *,
    device: str = "auto",
    precision: DecodingPrecision = "auto",
    beam: int | None = None,
    length_penalty: float | None = None,
    ranks: Ranks = ALONE,
) -> System:
    """Load a model, or several of the same vocabularies as an ensemble, with its search settings changed.

    Raises ModelFileError, DeviceError, and ConfigError for a setting that cannot be.
    """
    files = tuple(resolve_model(path) for path in paths)
    where = select_device(device, ranks)
    dtype = select_precision(precision, where, training=False)
    models = load_models(files, where)
    for file in files:
        log.info("model %s on %s", model_name(file), device_line(where, dtype))
    decode = changed_decode(models[0].config, beam=beam, length_penalty=length_penalty)
    decoders = tuple(packed(model.network, dtype) for model in models)
    return System(files, models, decode, where, dtype, decoders, ranks)


def chosen_splits(prepared: PreparedData, names: Sequence[str]) -> list[str]:
    """The splits that names mean, each once: the first test split for none, and all that "all" stands for.

    Raises DataError, with the nearest name, for a split that is not there.
    """
    if not names:
        return [_first_test(prepared)]
    everything = (prepared.val, *prepared.tests)
    chosen = [each for name in names for each in (everything if name == ALL_SPLITS else (name,))]
    for name in chosen:
        if name not in everything:
            _refuse_split(prepared, name, everything)
    return list(dict.fromkeys(chosen))


def _refuse_split(prepared: PreparedData, unknown: str, known: Sequence[str]) -> None:
    nearest = difflib.get_close_matches(unknown, known, n=1)
    try:
        prepared.references(unknown)
    except DataError as error:
        hint = f"did you mean {nearest[0]}? {error.hint}" if nearest else error.hint
        raise DataError(error.message, hint=hint) from None


def split_task(model: Model, prepared: PreparedData, split: str) -> Task:
    """A prepared split: its ids if they mean to the model what they meant there, else its raw lines."""
    sources, references = prepared.sources(split), prepared.references(split)
    if _same_ids(model, prepared):
        return Task(split, prepared.split(split), sources, references)
    log.info("%s was not prepared for this model: tokenising its lines again", prepared.folder)
    return _lines_task(split, model, sources, references)


def files_task(model: Model, source: Path, reference: Path) -> Task:
    """Two files of the same number of lines; raises DataError naming both counts where these differ.

    It has the source's whole name, so that what is saved of it does not replace what was found for a split.
    """
    pairs = read_parallel(source, reference)
    name = source.name.removesuffix(".gz")
    if "." not in name:  # such as test, which a split may be called
        name += f".{model.config.data.src_lang}"
    return _lines_task(name, model, [pair.source for pair in pairs], [pair.target for pair in pairs])


def warn_of_other_languages(models: Sequence[Model], source: Path, reference: Path) -> None:
    """Say, once, that two files' endings name other languages than those that models translate."""
    data = [model.config.data for model in models]
    for src_lang, tgt_lang in dict.fromkeys((each.src_lang, each.tgt_lang) for each in data):
        warn_of_another_language(source, src_lang, "reads")
        warn_of_another_language(reference, tgt_lang, "writes")


def refuse_nothing(name: str, references: Sequence[str]) -> None:
    """Raise DataError where a text that is to be scored has no lines."""
    if not references:
        raise DataError(f"{name} has no lines: there is nothing to score", hint="name a text that has some")


def translate_task(system: System, task: Task) -> list[Hypothesis]:
    """The best translation of each sentence, with progress; each rank finds those of its share."""
    options = SearchOptions(decode=system.decode)
    sentences = _sentences(task.ids.src)
    mine = [sentences[row] for row in system.ranks.share(len(sentences))]
    with progress(task.name, len(mine)) as advance, computing_in(system.dtype, system.device):
        found = search(system.decoders, mine, options, device=system.device, progress=advance)
    best = [hypotheses[0] for hypotheses in found]
    if system.ranks.world == 1:
        return best
    return [
        Hypothesis(*map(_as_tuple, values))
        for values in system.ranks.collect([astuple(each) for each in best])
    ]


def _as_tuple(value: Any) -> Any:
    """What a list was before it went through JSON."""
    return tuple(value) if isinstance(value, list) else value


def translated_lines(system: System, hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Hypotheses as text."""
    return texts_of([hypothesis.ids for hypothesis in hypotheses], system.model.tgt_vocabulary)


def _first_test(prepared: PreparedData) -> str:
    if not prepared.tests:
        raise DataError(
            f"{prepared.folder} has no test split", hint=f"name the validation split: --split {prepared.val}"
        )
    return prepared.tests[0]


def _lines_task(name: str, model: Model, sources: Sequence[str], references: Sequence[str]) -> Task:
    data, vocabulary = model.config.data, model.tgt_vocabulary
    src = Ragged.of(Translator(model).encode(sources), len(model.src_vocabulary))
    lines = (normalise(line, lowercase=data.tgt_lowercase) for line in references)
    tokenizer = Tokenizer(data.tgt_lang, data.tgt_pipeline)
    tgt = [vocabulary.encode(tokens) for tokens in tokenizer.tokenize_many(lines)]
    return Task(name, Split(name, src, Ragged.of(tgt, len(vocabulary))), sources, references)


def _same_ids(model: Model, prepared: PreparedData) -> bool:
    """Whether the prepared ids are those that the model's own tokenisers and vocabularies give."""
    settings, data = prepared.manifest.settings["data"], model.config.data
    if any(settings[side] != getattr(data, side) for side in ("src_lang", "tgt_lang")):
        raise DataError(
            f"the model translates {data.src_lang} to {data.tgt_lang}, "
            f"but {prepared.folder} holds {settings['src_lang']} to {settings['tgt_lang']}",
            hint="name a model of these languages, or text of the model's own: --data DIR, or --input FILE "
            "--reference FILE",
        )
    names = [f"{side}_{key}" for side in ("src", "tgt") for key in ("pipeline", "lowercase")]
    same_text = all(settings[name] == getattr(data, name) for name in names)
    return same_text and prepared.vocabulary_hash == model.provenance.get("vocabulary_hash")


def _sentences(sources: Ragged) -> list[list[int]]:
    return [sources[row].tolist() for row in range(len(sources))]


def texts_of(sentences: Iterable[Sequence[int]], vocabulary: Vocabulary) -> list[str]:
    """Each sentence of ids as detokenised text."""
    return [detokenize(vocabulary.decode(ids)) for ids in sentences]


# --- one split --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """What a system made of a task."""

    hypotheses: list[Hypothesis]
    elapsed_s: float
    loss: float | None
    loss_sentences: int
    cut_sources: int


def _translate_and_force(task: Task, system: System) -> _Found:
    """The part that a network is needed for; of several ranks each does its share."""
    cut = 0
    if system.ranks.is_first:
        lengths = task.ids.src.lengths.tolist()
        cut = sum(warn_if_cut(line, length, system.decode) for line, length in enumerate(lengths, start=1))
    start_s = time.monotonic()
    found = translate_task(system, task)
    elapsed_s = round(time.monotonic() - start_s, 3)
    short = task.ids.select(task.ids.rows_within(system.max_tokens))
    return _Found(found, elapsed_s, forced_loss(system, short), len(short), cut)


def _score(
    task: Task, system: System, done: _Found, folder: Path, *, with_report: bool
) -> tuple[Evaluation, SplitReport | None]:
    sources, language = task.ids.src, system.model.config.data.tgt_lang
    hypotheses = translated_lines(system, done.hypotheses)
    measured = corpus_scores(hypotheses, task.references, lowercase=system.lowercase)
    evaluation = Evaluation(
        split=task.name,
        scores=measured.scores,
        loss=done.loss,
        loss_sentences=done.loss_sentences,
        length_ratio=measured.length_ratio,
        unknown_rate=float((sources.ids == UNK).mean()) if len(sources.ids) else 0.0,
        sentences=len(hypotheses),
        cut_sources=done.cut_sources,
        elapsed_s=done.elapsed_s,
        beam=system.decode.beam,
        length_penalty=system.decode.length_penalty,
        models=system.files,
        hypotheses=folder / f"{task.name}.hyp.{language}",
        references=folder / f"{task.name}.ref.{language}",
    )
    _save(evaluation, hypotheses, task.references, folder / f"{task.name}.json")
    page = _page(task, system, evaluation, measured, done.hypotheses, hypotheses) if with_report else None
    return evaluation, page


def forced_loss(system: System, split: Split) -> float | None:
    """Mean negative log-likelihood of the targets in nats per token, `<eos>` counted; None without any.

    Of an ensemble it is that of the averaged probabilities, which the search goes by.
    """
    if not len(split):
        return None
    longest = np.maximum(split.src.lengths, split.tgt.lengths) + 1
    order = np.array(system.ranks.share(len(split)), dtype=np.int64)
    order = order[np.argsort(longest[order], kind="stable")]
    total, tokens = 0.0, 0
    for rows in cut_batches(order, longest, system.decode.batch_tokens):
        batch = make_batch(split, rows).to(system.device)
        with torch.inference_mode(), computing_in(system.dtype, system.device):
            each = torch.stack([_log_likelihood(network, batch) for network in system.networks])  # (E,N)
            mean = each.logsumexp(0) - math.log(len(each))
        total -= float(mean.sum())
        tokens += batch.num_tokens
    sums = system.ranks.gather([total, tokens])
    return math.fsum(part[0] for part in sums) / sum(int(part[1]) for part in sums)


def _log_likelihood(network: Transformer, batch: Batch) -> Tensor:
    """The logarithm (N) in float64 of the probability of each of the batch's N target tokens."""
    states = network.decode(batch.tgt_in, network.encode(batch.src, batch.src_keep), batch.src_keep)
    real = batch.tgt_out != PAD
    parts = torch.split(states[real], LOGIT_ROWS), torch.split(batch.tgt_out[real], LOGIT_ROWS)
    losses = [
        F.cross_entropy(network.logits(part).float(), targets, reduction="none")
        for part, targets in zip(*parts, strict=True)
    ]
    return -torch.cat(losses).cpu().double()


def _page(
    task: Task,
    system: System,
    evaluation: Evaluation,
    measured: CorpusScores,
    found: Sequence[Hypothesis],
    hypotheses: Sequence[str],
) -> SplitReport:
    """What the report shows of the split."""
    limit = system.decode.max_source_tokens
    read = Ragged.of([ids[:limit] for ids in _sentences(task.ids.src)], len(system.model.src_vocabulary))
    speed = "" if evaluation.sentences_per_s is None else f"{evaluation.sentences_per_s:,.0f}"
    facts = [*evaluation.facts, ("sentences per second", speed)]
    return split_report(
        task.name,
        (task.sources, hypotheses, task.references),
        measured,
        [(name, words) for name, words in facts if name != "length ratio"],
        attention_maps(system.models, read, found),
        lowercase=system.lowercase,
    )


def _save(evaluation: Evaluation, hypotheses: Sequence[str], references: Sequence[str], report: Path) -> None:
    before = evaluation.references
    if before.is_file() and before.read_bytes() != _as_text(references):
        log.warning(
            "%s: in place of what was found for another text so named; --out DIR keeps both",
            before.parent,
        )
    for path, lines in ((evaluation.hypotheses, hypotheses), (evaluation.references, references)):
        write_whole(path, _as_text(lines))
    write_whole(report, f"{evaluation.to_json()}\n".encode())


def _as_text(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
