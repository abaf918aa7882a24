"""Stage: a model and a split in, a score out, with the hypotheses and references that it was taken on."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from nmt.config import Config, DecodeConfig
from nmt.data.corpus import read_parallel
from nmt.data.dataset import PreparedData, Ragged, open_prepared, prepared_folder
from nmt.data.text import detokenize
from nmt.data.vocabulary import Vocabulary
from nmt.decoding.greedy import translate_ids
from nmt.errors import DataError
from nmt.files import write_whole
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, load_model, resolve_model
from nmt.runtime import Precision, device_line, select_device, select_precision
from nmt.scoring.metrics import Score, bleu
from nmt.translate import Translator, computing_in, warn_if_cut

log = logging.getLogger("nmt")

PROGRESS_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A score and all that is needed to take it again."""

    split: str
    score: Score
    sentences: int
    cut_sources: int
    """Source lines longer than decode.max_source_tokens: their ends were not translated."""
    elapsed_s: float
    """Time that translating took; loading and scoring not counted."""
    model: Path
    hypotheses: Path
    references: Path

    @property
    def command(self) -> str:
        """The sacreBLEU command that gives the same number from the saved files."""
        lowercase = ("-lc",) if "|case:lc|" in self.score.signature else ()
        return shlex.join(
            ("sacrebleu", str(self.references), "-i", str(self.hypotheses), "-w", "2", *lowercase)
        )

    def to_json(self) -> str:
        """One JSON object."""
        values = {**asdict(self), "command": self.command}
        return json.dumps(values, ensure_ascii=False, indent=2, default=str)

    def __str__(self) -> str:
        cut = f", {self.cut_sources:,} of them cut" if self.cut_sources else ""
        return "\n".join(
            (
                f"{self.split}: {self.score}",
                f"{self.sentences:,} sentences{cut}, {self.elapsed_s:.1f} s",
                f"hypotheses: {self.hypotheses}",
                f"the same by hand: {self.command}",
            )
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be translated, as ids, and what it is scored against."""

    name: str
    sources: Ragged
    references: Sequence[str]


def evaluate(
    model: Path,
    *,
    prepared: PreparedData | None = None,
    split: str | None = None,
    source: Path | None = None,
    reference: Path | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    out: Path | None = None,
) -> Evaluation:
    """Translate a split, score it against its raw references, and save both as text files.

    model: a model file or a run folder. Scored are `source` against `reference`, if given; else `split` of
    `prepared`, which are the first test split and the folder that the model's config names. The files
    SPLIT.hyp.LANG, SPLIT.ref.LANG and SPLIT.json go to `out`, by default `evaluation` beside the model.
    Raises DataError for text that cannot be used, ModelFileError, DeviceError, MachineError.
    """
    if (source is None) != (reference is None):
        raise DataError(
            "a source and a reference file are scored together", hint="give both: --input F --reference F"
        )
    if source is not None and split is not None:
        raise DataError(
            "either a split or two files can be scored", hint="leave out --split, or --input and --reference"
        )
    file = resolve_model(model)
    where = select_device(device)
    dtype = select_precision(precision, where, training=False)
    loaded = load_model(file, where)
    log.info("model %s on %s", file, device_line(where, dtype))
    if source is not None and reference is not None:
        task = _files_task(loaded, source, reference)
    else:
        prepared = prepared or open_prepared(prepared_folder(loaded.config))
        task = _prepared_task(loaded, prepared, split or _first_test(prepared))
    return _evaluate(task, loaded, file, where, dtype, out or file.parent / "evaluation")


def score_ids(
    network: Transformer, sources: Ragged, references: Sequence[str], vocabulary: Vocabulary, config: Config
) -> Score:
    """BLEU of a network's translations of `sources`, for the validations of a training run.

    vocabulary: the target's.
    """
    device = next(network.parameters()).device
    hypotheses = translate_split(network, sources, vocabulary, config.decode, device=device)
    return bleu(hypotheses, references, lowercase=config.data.tgt_lowercase)


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
    sentences = [sources[row].tolist() for row in range(len(sources))]
    hypotheses = translate_ids(network, sentences, decode, device=device, progress=progress)
    return [detokenize(vocabulary.decode(hypothesis.ids)) for hypothesis in hypotheses]


def _evaluate(
    task: _Task, model: Model, file: Path, device: torch.device, dtype: torch.dtype, folder: Path
) -> Evaluation:
    data, decode = model.config.data, model.config.decode
    cut = sum(
        warn_if_cut(line, int(length), decode) for line, length in enumerate(task.sources.lengths, start=1)
    )
    start_s = time.monotonic()
    with _progress(task.name, len(task.sources)) as progress, computing_in(dtype, device):
        hypotheses = translate_split(
            model.network, task.sources, model.tgt_vocabulary, decode, device=device, progress=progress
        )
    elapsed_s = round(time.monotonic() - start_s, 3)
    evaluation = Evaluation(
        split=task.name,
        score=bleu(hypotheses, task.references, lowercase=data.tgt_lowercase),
        sentences=len(hypotheses),
        cut_sources=cut,
        elapsed_s=elapsed_s,
        model=file,
        hypotheses=folder / f"{task.name}.hyp.{data.tgt_lang}",
        references=folder / f"{task.name}.ref.{data.tgt_lang}",
    )
    _save(evaluation, hypotheses, task.references, folder / f"{task.name}.json")
    return evaluation


def _first_test(prepared: PreparedData) -> str:
    if not prepared.tests:
        raise DataError(
            f"{prepared.folder} has no test split", hint=f"name the validation split: --split {prepared.val}"
        )
    return prepared.tests[0]


def _prepared_task(model: Model, prepared: PreparedData, split: str) -> _Task:
    """A prepared split: its ids if they mean to the model what they meant there, else its raw lines."""
    references = prepared.references(split)
    if _same_ids(model, prepared):
        return _Task(split, prepared.split(split).src, references)
    log.info("%s was not prepared for this model: tokenising its lines again", prepared.folder)
    return _Task(split, _encode(model, prepared.sources(split)), references)


def _files_task(model: Model, source: Path, reference: Path) -> _Task:
    pairs = read_parallel(source, reference)
    name = source.name.removesuffix(".gz").removesuffix(f".{model.config.data.src_lang}")
    return _Task(name, _encode(model, [pair.source for pair in pairs]), [pair.target for pair in pairs])


def _encode(model: Model, lines: Sequence[str]) -> Ragged:
    return Ragged.of(Translator(model).encode(lines), len(model.src_vocabulary))


def _same_ids(model: Model, prepared: PreparedData) -> bool:
    """Whether the prepared ids are those that the model's own tokeniser and vocabulary give."""
    settings, data = prepared.manifest.settings["data"], model.config.data
    if any(settings[side] != getattr(data, side) for side in ("src_lang", "tgt_lang")):
        raise DataError(
            f"the model translates {data.src_lang} to {data.tgt_lang}, "
            f"but {prepared.folder} holds {settings['src_lang']} to {settings['tgt_lang']}"
        )
    same_text = all(settings[name] == getattr(data, name) for name in ("src_pipeline", "src_lowercase"))
    return same_text and prepared.vocabulary_hash == model.provenance.get("vocabulary_hash")


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, unless the log is quiet; elsewhere a line of the log now and then."""
    if sys.stderr.isatty() and log.isEnabledFor(logging.INFO):
        from tqdm import tqdm

        with tqdm(total=total, desc=name, unit=" sentences", leave=False, file=sys.stderr) as bar:
            yield lambda count: bar.update(count) and None
        return
    done, last_s = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last_s
        done += count
        if time.monotonic() - last_s >= PROGRESS_INTERVAL_S:
            last_s = time.monotonic()
            log.info("%s: %d of %d sentences", name, done, total)

    yield advance


def _save(evaluation: Evaluation, hypotheses: Sequence[str], references: Sequence[str], report: Path) -> None:
    for path, lines in ((evaluation.hypotheses, hypotheses), (evaluation.references, references)):
        write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    write_whole(report, f"{evaluation.to_json()}\n".encode())
