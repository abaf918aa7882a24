"""The command line: parse, call one stage, print; the only place that exits or writes to standard output.

Everything heavy is imported inside the command that needs it, so that `nmt --help` answers at once.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from nmt.errors import AnotherRankError, ConfigError, DataError, ModelFileError, NmtError
from nmt.runtime import is_out_of_memory, spare_the_machine

if TYPE_CHECKING:
    from nmt.data.dataset import PreparedData
    from nmt.translate import SearchSettings, Translation

log = logging.getLogger("nmt")

BASE_CONFIG = "base.yaml"
EXAMPLE = "Zwei Kinder spielen im Park."

DONE, BUG, MENDABLE, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141
"""The exit codes; a training run that a signal stopped ends with 128 and the signal's number."""

MACHINE_FAULTS = {
    errno.ENOSPC: "free some space, or work in a folder on another disk",
    errno.EDQUOT: "free some space, or work in a folder on another disk",
    errno.EFBIG: "work in a folder on another disk",
    errno.EACCES: "check who may read and write there, or work in another folder",
    errno.EPERM: "check who may read and write there, or work in another folder",
    errno.EROFS: "work in a folder that can be written to",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "name a folder",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EMFILE: "close some files, or raise the limit: ulimit -n",
    errno.ENOMEM: "close other programs",
    errno.EIO: "check the disk",
    errno.EEXIST: "name another file or folder",
    errno.ENOENT: "see whether somebody has removed it meanwhile",
}
"""Errors of the system that are the machine's and not ours, each with the way out."""

SMALLER_BATCHES = "train with a lower train.batch_tokens, or translate fewer or shorter lines at once"


# --- how the command ends ---------------------------------------------------------------------------------


@contextmanager
def exits() -> Iterator[None]:
    """Turn what goes wrong into one message, one hint and an exit code; a bug keeps its traceback.

    The scripts end by it too.
    """
    try:
        yield
    except AnotherRankError:
        _leave(MENDABLE)  # it has said why
    except NmtError as error:
        _leave(MENDABLE, error.message, error.hint)
    except KeyboardInterrupt:
        _leave(INTERRUPTED, "interrupted")
    except BrokenPipeError:
        _leave(READER_GONE)
    except (OSError, MemoryError, RuntimeError) as error:
        fault = _machine_fault(error)
        if fault is None:
            raise
        _leave(MENDABLE, *fault)


def _leave(code: int, message: str | None = None, hint: str | None = None) -> None:
    _drop_broken_output()
    with suppress(OSError):  # nobody may be reading standard error; the exit code still tells
        if message is not None:
            print(f"error: {message}" if code == MENDABLE else message, file=sys.stderr)
        if hint is not None:
            print(f"hint: {hint}", file=sys.stderr)
    raise SystemExit(code)


def _drop_broken_output() -> None:
    """Where standard output takes nothing more, let Python's own last flush go nowhere in silence."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _machine_fault(error: BaseException) -> tuple[str, str] | None:
    """Message and hint where the machine is at its limits, None where the error is a bug."""
    if isinstance(error, OSError):
        reason = MACHINE_FAULTS.get(error.errno or 0)
        where = f"{error.filename}: " if error.filename else ""
        return (f"{where}{error.strerror}", reason) if reason else None
    if is_out_of_memory(error):
        first_line = str(error).partition("\n")[0]
        return first_line if "out of memory" in first_line else "out of memory", SMALLER_BATCHES
    return None


class _Commands(TyperGroup):
    """The group of all commands: what goes wrong anywhere in it is met here."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with exits():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with exits():
            try:
                return super().invoke(ctx)
            except Exception as error:
                _reword(error)
                raise


def _reword(error: Exception) -> None:
    """Say what is wrong with an option's value, which typer has pydantic read, as is said of a config's."""
    if (faults := getattr(error.__cause__, "errors", None)) and hasattr(error, "param"):
        fault = faults()[0]
        kinds = {"int_parsing": "should be a whole number", "float_parsing": "should be a number"}
        said = kinds.get(fault["type"]) or fault["msg"].removeprefix("Input ").removeprefix("Value error, ")
        value = "" if fault["type"] == "value_error" else f', not "{fault["input"]}"'  # else it is in there
        error.message = f"{said}{value}"  # type: ignore[attr-defined]


class _TakesSentences(TyperCommand):
    """A command that says how to give a sentence which was taken for an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer brings its own click, whose classes have no public name
            option = getattr(error, "option_name", None)
            if option and any(word.startswith(option) and _is_sentence(word) for word in given):
                error.message = (  # type: ignore[attr-defined]
                    f"No such option: {option} (a sentence that begins with a dash stands after two more: "
                    'nmt translate -- "…")'
                )
            raise


def _is_sentence(word: str) -> bool:
    """Whether something that begins with a dash looks like text."""
    return any(map(str.isspace, word)) or word[1:2].isdigit()


def main() -> None:
    """Run the command line; this is what `nmt` and `python -m nmt` call."""
    _speak_utf8()
    spare_the_machine()
    app(prog_name="nmt")


def _speak_utf8() -> None:
    """Write UTF-8 whatever the locale; names of files that are not UTF-8 are written as they came."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller: nobody listens
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open for good)
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                encoding="utf-8", errors="surrogateescape" if os.name == "posix" else "backslashreplace"
            )


# --- what it says -----------------------------------------------------------------------------------------


class _PlainLines(logging.Handler):
    """Messages as plain lines on standard error, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if record.levelno >= logging.WARNING:
                line = f"{record.levelname.lower()}: {line}"
            if "tqdm" in sys.modules:
                sys.modules["tqdm"].tqdm.write(line, file=sys.stderr)
            else:
                print(line, file=sys.stderr)
        except OSError:
            pass  # nobody reads standard error any more; the work itself goes on


def _be_quiet(value: bool) -> bool:
    """Send messages to standard error; where `value` only warnings and worse."""
    if not any(isinstance(handler, _PlainLines) for handler in log.handlers):
        log.addHandler(_PlainLines())
        log.setLevel(logging.INFO)
    if value:
        log.setLevel(logging.WARNING)
    return value


def _print(*lines: str, file: TextIO | None = None) -> None:
    """A result, written through at once."""
    for line in lines:
        print(line, file=file or sys.stdout)
    (file or sys.stdout).flush()


def _show_version(value: bool) -> None:
    if value:
        _be_quiet(False)

        from nmt.runtime import version_lines

        _print(*version_lines())
        raise typer.Exit(DONE)


# --- the options ------------------------------------------------------------------------------------------


class Precision(StrEnum):
    """What --precision takes."""

    auto = "auto"
    float32 = "float32"
    bf16 = "bf16"


class DecodingPrecision(StrEnum):
    """What --precision takes where nothing is trained."""

    auto = "auto"
    float32 = "float32"
    bf16 = "bf16"
    int8 = "int8"


class ExportFormat(StrEnum):
    """What --format takes."""

    ctranslate2 = "ctranslate2"
    safetensors = "safetensors"


ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="NAME",
        help="A config file, or the name of one that comes with nmt; without it base.yaml.",
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR_OR_NAME",
        help="In place of the config's: multi30k, captions, a folder of parallel text, or a prepared folder.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key of the config; may be given often."),
]
ModelsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        metavar="PATH",
        help="A model file, a run folder, or multi30k-de-en, which comes with nmt. Without it $NMT_MODEL, "
        "else the config's run folder, else multi30k-de-en if the config names its text. Given more than "
        "once, an ensemble: their probabilities are averaged.",
    ),
]
BeamOption = Annotated[
    int | None,
    typer.Option("--beam", metavar="N", min=1, help="Hypotheses followed side by side; 1 is greedy search."),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="ALPHA",
        min=0.0,
        help="Rank hypotheses by log-probability / length^ALPHA.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="auto (a usable GPU, else the CPU), cpu, cuda, cuda:N or mps."
    ),
]
PrecisionOption = Annotated[
    Precision | None,
    typer.Option("--precision", help="auto trains in bf16 where that is native, and decodes in float32."),
]
DecodingPrecisionOption = Annotated[
    DecodingPrecision | None,
    typer.Option(
        "--precision",
        help="auto is float32, where a translation does not depend on its neighbours; bf16 and, on a CPU, "
        "int8 are faster.",
    ),
]
PositionsOption = Annotated[
    Path | None,
    typer.Option("--positions", metavar="FILE.png", help="Draw the positional encoding to this file."),
]
AttentionOption = Annotated[
    Path | None,
    typer.Option(
        "--attention", metavar="FILE.png", help="Of one sentence, draw which source tokens were looked at."
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", callback=_be_quiet, is_eager=True, help="Only warnings and results."),
]

app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text starts faster, and needs no way to switch its colours off
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The whole pipeline in a minute, without a download: nmt train --config smoke.yaml",
)


@app.callback()
def _nmt(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show what a bug report needs, and exit."
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a translator from parallel text on your own machine, and use it."""


# --- the commands -----------------------------------------------------------------------------------------


@app.command(short_help="Make text ready for training.")
def prepare(
    config: ConfigOption = None,
    data: DataOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The prepared folder, in place of data/NAME-HASH."),
    ] = None,
    settings: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Tokenise parallel text, build the vocabularies, store both, and print a summary.

    Text that is not here yet is fetched first. A prepared folder is made anew only when its settings or its
    text have changed.
    """
    from nmt.config import load_config

    loaded = load_config(config or BASE_CONFIG, overrides=settings or (), source=data)

    from nmt.prepare import prepare as run_stage

    _print(run_stage(loaded, out=out).table())


@app.command(short_help="Train a model, preparing the data first where needed.")
def train(
    config: ConfigOption = None,
    data: DataOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run folder.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the run folder.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="The run folder, in place of runs/NAME.")
    ] = None,
    settings: SetOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a model, preparing the data first where that is needed.

    The run folder gets the resolved config, metrics, curves, checkpoints, and the best and the last model.
    Ctrl-C saves the state, and --resume goes on from there.
    """
    if resume and overwrite:
        raise typer.BadParameter("--resume and --overwrite exclude each other")

    from nmt.config import load_config

    loaded = load_config(
        config or BASE_CONFIG, overrides=settings or (), source=data, device=device, precision=precision
    )

    from nmt.runtime import exit_code
    from nmt.train import train as run_stage

    result = run_stage(loaded, run_dir=run_dir, resume=resume, overwrite=overwrite)
    if result.stopped_by is not None:
        if result.is_first:
            again = _resume_command() if result.processes == 1 else "the same torchrun command with --resume"
            log.info("stopped and saved after step %d; to go on: %s", result.steps, again)
        raise typer.Exit(exit_code(result.stopped_by))
    if not result.is_first:
        return
    if result.best_bleu is not None:
        _print(f"BLEU on {result.config.data.val}: {result.best_bleu:.2f}")
    example = f' "{EXAMPLE}"' if result.config.data.src_lang == "de" else ""
    _print(f"to use it: nmt translate --model {_quoted(result.model)}{example}")


@app.command(short_help="Score a model on test splits.")
def evaluate(
    config: ConfigOption = None,
    data: DataOption = None,
    models: ModelsOption = None,
    splits: Annotated[
        list[str] | None,
        typer.Option(
            "--split",
            metavar="NAME",
            help="The split to score; without it the first test split. May be given often; all: every one.",
        ),
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="Score this source text instead.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE", help="Its translation, line by line.")
    ] = None,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the translations go, in place of beside the model."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="Write a page on scores and sentences."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: DeviceOption = None,
    precision: DecodingPrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Translate splits and score the result: BLEU, chrF and TER with 95 % intervals, loss, perplexity.

    Scores are sacreBLEU's, taken against the references as they were written. The splits are those of the
    text that the model was trained on; --data, or --config beside --model, take them from elsewhere.
    Translations and references are saved, so that the scores can be taken again.

    Several --model are an ensemble. --json gives the one split's object, and of more than one split, or
    --split all, {"splits": {NAME: …}}.
    """
    if report is not None and report.suffix.lower() not in (".html", ".htm"):
        raise typer.BadParameter(f"--report {report}: it is a web page, so the name ends in .html")
    files = _find_models(models, config)

    from nmt.evaluate import ALL_SPLITS, evaluate_splits
    from nmt.modelfile import is_shipped
    from nmt.runtime import default_model

    is_named = bool(models or default_model())  # else the config has only named the run, if there is one
    beside = config if is_named or is_shipped(files[0]) else None
    prepared = None if input_file or reference else _prepared_for(files[0], data, beside)
    found = evaluate_splits(
        files,
        prepared=prepared,
        splits=splits or (),
        source=input_file,
        reference=reference,
        device=device or "auto",
        precision=precision.value if precision else "auto",
        beam=beam,
        length_penalty=length_penalty,
        out=out,
        report=report,
    )
    if not found:
        return  # another process speaks for all
    if not json_output:
        _print("\n\n".join(map(str, found)))
    elif splits is not None and (len(splits) > 1 or ALL_SPLITS in splits):
        by_name = {evaluation.split: evaluation.to_dict() for evaluation in found}
        _print(json.dumps({"splits": by_name}, ensure_ascii=False, indent=2, default=str))
    else:
        _print(found[0].to_json())
    if report is not None:
        log.info("report: %s", report)


@app.command(short_help="Say which of two models translates better, and where.")
def compare(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="A model file, a run folder, multi30k-de-en, or a file of translations."
        ),
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    config: ConfigOption = None,
    data: DataOption = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="NAME", help="Compare on this; without it the first test split."),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="The source text, which models translate."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="FILE", help="Compare on these lines instead."),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score in lower case.")] = False,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: DeviceOption = None,
    precision: DecodingPrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Score two models, or two files of translations, on the same text, and test whether they differ.

    Printed are both systems' BLEU, chrF and TER, how likely chance alone makes such a difference (paired
    bootstrap and approximate randomisation, by sacreBLEU), who wins how often by sentence length and by rare
    tokens, and the 20 sentences that differ most. A token is rare by the count of it in the training text, or
    among the references where only files are given. Nothing is written.

    nmt compare runs/a runs/b --split val

    nmt compare a.hyp.en b.hyp.en --reference test.en
    """
    from nmt.compare import compare as run_stage
    from nmt.compare import is_model
    from nmt.modelfile import resolve_model

    prepared = None
    of_a_model = [resolve_model(path) for path in (a, b) if is_model(path)]
    _refuse_twice(of_a_model)
    if reference is None and input_file is None:
        if not of_a_model and split is None and data is None and config is None:
            raise DataError(
                "two files of translations need references",
                hint="name them: --reference FILE, or --split NAME",
            )
        prepared = _prepared_for(of_a_model[0] if of_a_model else None, data, config)
    found = run_stage(
        a,
        b,
        prepared=prepared,
        split=split,
        source=input_file,
        reference=reference,
        lowercase=lowercase,
        device=device or "auto",
        precision=precision.value if precision else "auto",
        beam=beam,
        length_penalty=length_penalty,
    )
    _print(found.to_json() if json_output else str(found))


@app.command(short_help="Translate sentences.", cls=_TakesSentences)
def translate(
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", hidden=True)] = None,
    config: ConfigOption = None,
    models: ModelsOption = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="Translate the lines of a file (plain or gzipped)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to a file, which appears when it is whole."
        ),
    ] = None,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json", help="Write one JSON object a line: source, translation, score, tokens, alignment."
        ),
    ] = False,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    nbest: Annotated[
        int,
        typer.Option(
            "--nbest", metavar="N", min=1, help="With --json, give the N best of a beam of N or more."
        ),
    ] = 1,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample",
            metavar="TEMPERATURE",
            help="Draw words at random; 1 is as probable as the model says.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="With --sample, which words are drawn: the same N draws the same ones; without it 1.",
        ),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="Begin each translation with this.")
    ] = None,
    copy_unknown: Annotated[
        bool,
        typer.Option(
            "--copy-unknown", help="Where a word model has no word, take the source's that it looked at most."
        ),
    ] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option("--batch-tokens", metavar="N", min=1, help="Translate about so many tokens at once."),
    ] = None,
    attention: AttentionOption = None,
    device: DeviceOption = None,
    precision: DecodingPrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Translate sentences: one line in, one line out, in order, empty for empty.

    Each TEXT is one sentence, in quotes; without any, the lines of standard input are translated. A sentence
    that begins with a dash stands after two more: nmt translate -- "- Ein Hund läuft."

    --json gives the translation's score, log_prob / length^ALPHA, the log-probability of each token and of
    the end, and for each token the place (from 0) of the source token that it looked at most. With --nbest N
    there is a list of the N best in it, best first.

    --attention draws the last decoder layer's attention over the source: the mean of its heads, and each.
    """
    _refuse_other_than_png("--attention", attention)
    if texts and input_file is not None:
        raise typer.BadParameter("give either TEXT or --input, not both")
    if nbest > 1 and not json_output:
        raise typer.BadParameter("--nbest goes with --json: without it one line in is one line out")
    if sample is not None and beam is not None:
        raise typer.BadParameter("give either --sample or --beam, not both")
    if seed is not None and sample is None:
        raise typer.BadParameter("--seed goes with --sample")
    if input_file and output and input_file.exists() and output.exists() and input_file.samefile(output):
        raise DataError(f"--output {output} is the input, which would be lost", hint="name another file")
    lines: Iterable[str]
    total = None
    if texts:
        for name in filter(os.path.isfile, texts):
            log.warning("%s is translated as a sentence; for the lines of the file: --input %s", name, name)
        lines = _sentences(texts)
    elif input_file is not None and str(input_file) != "-":
        lines, total = _lines_of(input_file)
    else:
        lines = _standard_input()
    settings: SearchSettings = {
        "beam": beam,
        "length_penalty": length_penalty,
        "batch_tokens": batch_tokens,
        "nbest": nbest,
        "sample": sample,
        "seed": 1 if seed is None else seed,
        "copy_unknown": copy_unknown,
        "align": json_output,
    }
    with _writing_to(output) as file, _progress_unless_seen(total, file) as advance:
        for translation in _translated(
            lines, input_file, models, config, device, precision, attention, prefix, settings
        ):
            _print(_as_json(translation, nbest) if json_output else translation.text, file=file)
            advance(1)


@app.command(short_help="Show what a model or a config is.")
def inspect(
    model_or_config: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_CONFIG",
            help="A model file, a run folder, a config file, or the name of a model or config that comes "
            "with nmt.",
        ),
    ] = BASE_CONFIG,
    settings: SetOption = None,
    positions: PositionsOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Show a network's parts with their parameters, the memory it takes, and a model's history and scores.

    A config needs neither text nor training.
    """
    _refuse_other_than_png("--positions", positions)

    from nmt.inspect import draw_position_table
    from nmt.inspect import inspect as run_stage

    inspection = run_stage(model_or_config, overrides=settings or ())
    if positions is not None:
        draw_position_table(inspection, positions)
        log.info("positions drawn: %s", positions)
    _print(inspection.to_json() if json_output else str(inspection))


@app.command(short_help="Write a model for CTranslate2, or in half precision.")
def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model file, a run folder or multi30k-de-en.")
    ],
    format_: Annotated[
        ExportFormat,
        typer.Option("--format", help="A CTranslate2 model's folder, or a model file of another precision."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PATH", help="The folder, or for safetensors the file.")
    ],
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            metavar="NAME",
            help="float32, float16 or bfloat16; for ctranslate2 also int8, int8_float32, int8_float16, "
            "int8_bfloat16 or int16, and without it float32.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write a model for another program: CTranslate2, with an example; or halve its file for nmt itself.

    nmt export runs/base --format ctranslate2 --quantization int8 --out base-ct2
    """
    from nmt.export import export as run_stage

    exported = run_stage(model, format=format_.value, out=out, quantization=quantization, overwrite=overwrite)
    _print(str(exported))
    if exported.example is not None:
        log.info("how to run it: %s", exported.example)


# --- what the commands share ------------------------------------------------------------------------------


def _find_models(options: Sequence[Path] | None, config: str | None) -> list[Path]:
    """The model file of each --model, or the one to use where there is none; see `_find_model`."""
    files = [_find_model(option, config) for option in options or (None,)]
    _refuse_twice(files)
    return files


def _refuse_twice(models: Sequence[Path]) -> None:
    """Raise ModelFileError where a model file is named more than once, by whatever names."""
    from nmt.modelfile import model_name

    files = [os.path.realpath(model) for model in models]
    for place, model in enumerate(models):
        if files[place] in files[:place]:
            raise ModelFileError(f"{model_name(model)} is given twice", hint="name different models")


def _find_model(option: Path | None, config: str | None) -> Path:
    """The model file to use: --model, else $NMT_MODEL, else what the config's run folder holds.

    Else it is the model that comes with nmt, but only for a config of the text that this was trained on.
    """
    from nmt.modelfile import resolve_model, shipped_model_for
    from nmt.runtime import default_model

    if config is not None:
        from nmt.config import find_config

        find_config(config)  # a mistyped name is an error, also where the model is named otherwise
    if option is not None:
        file = resolve_model(option)
        if config is not None:
            _check_languages(file, config)
        return file
    if (named := default_model()) is not None:
        try:
            return resolve_model(named)
        except ModelFileError as error:
            hint = f"name another one there, or none at all; {error.hint}"
            raise ModelFileError(f"$NMT_MODEL names {error.message}", hint=hint) from None

    from nmt.config import load_config

    name = config or BASE_CONFIG
    loaded = load_config(name)
    run_dir = Path("runs") / loaded.name
    try:
        return resolve_model(run_dir)
    except ModelFileError:
        if (shipped := shipped_model_for(loaded)) is not None:
            return shipped
        raise ModelFileError(
            f"no model: {run_dir} holds none, and neither --model nor $NMT_MODEL names one",
            hint=f"train first: nmt train --config {_quoted(name)}",
        ) from None


def _check_languages(model: Path, config: str) -> None:
    """Raise ConfigError for a config of other languages than the model's, which nothing else would notice."""
    from nmt.config import load_config
    from nmt.modelfile import model_name, read_header

    trained, asked = read_header(model)["config"]["data"], load_config(config).data
    there, here = (
        f"{src} to {tgt}"
        for src, tgt in ((trained["src_lang"], trained["tgt_lang"]), (asked.src_lang, asked.tgt_lang))
    )
    if there != here:
        raise ConfigError(
            f"{model_name(model)} translates {there}, but {config} is for {here}",
            hint="name just one of the two",
        )


def _prepared_for(model: Path | None, data: str | None, config: str | None) -> PreparedData:
    """The prepared data to score a model on, made first where it is missing.

    Text and settings are those the model was trained with, unless `data` or `config` name others; without a
    model those of the config.
    """
    from nmt.config import config_from_mapping, load_config
    from nmt.modelfile import read_header
    from nmt.prepare import open_or_prepare

    if config is not None or model is None:
        wanted = load_config(config or BASE_CONFIG, source=data)
    else:
        wanted = config_from_mapping(read_header(model)["config"], str(model))
        if data is not None:
            wanted = wanted.replace(data=wanted.data.model_copy(update={"source": data}))
    # what is scored has no need of extra training pairs
    return open_or_prepare(wanted.replace(data=wanted.data.model_copy(update={"extra": None})))[1]


def _sentences(texts: Sequence[str]) -> list[str]:
    """The sentences that the arguments hold: one each, or one of all where the quotes were forgotten."""
    try:
        # the locale may have read the arguments as something else than the UTF-8 that they are
        sentences = [os.fsencode(text).decode("utf-8") for text in texts]
    except UnicodeDecodeError:
        raise DataError("TEXT is not UTF-8", hint="put it into a UTF-8 file: nmt translate -i FILE") from None
    if len(sentences) > 1 and all(text and not any(map(str.isspace, text)) for text in sentences):
        log.info("taking these %d words for one sentence: put each sentence in quotes", len(sentences))
        return [" ".join(sentences)]
    return sentences


def _lines_of(path: Path) -> tuple[Iterable[str], int]:
    """The lines of a file and their count; a faulty file is refused before any work."""
    from nmt.data.corpus import iter_file, read_lines

    if not os.path.isfile(path):  # a pipe, which can be read but once
        lines = read_lines(path)
        return lines, len(lines)
    count = sum(1 for _ in iter_file(path))
    return (iter_file(path) if count else []), count


def _standard_input() -> Iterable[str]:
    """The lines of standard input as they arrive; none at once where it is empty or closed."""
    if sys.stdin is None:
        return []
    stream: Any = sys.stdin.buffer
    if stream.isatty():
        log.info("type a sentence and press Enter; Ctrl-D ends (on Windows Ctrl-Z and Enter)")
    elif not stream.peek(1):
        return []  # nothing to do: the model need not be loaded

    from nmt.translate import ArrivingLines

    return ArrivingLines(stream, "standard input")


def _translated(
    lines: Iterable[str],
    input_file: Path | None,
    models: Sequence[Path] | None,
    config: str | None,
    device: str | None,
    precision: DecodingPrecision | None,
    attention: Path | None,
    prefix: str | None,
    settings: SearchSettings,
) -> Iterator[Translation]:
    if attention is not None:
        lines = _only_line(lines)
    if isinstance(lines, list) and not lines:
        return
    files = _find_models(models, config)

    from nmt.translate import Translator, warn_of_another_language

    translator = Translator.load(
        files, device=device or "auto", precision=precision.value if precision else "auto"
    )
    if input_file is not None:
        warn_of_another_language(input_file, translator.model.config.data.src_lang, "reads")
    if attention is None:
        yield from translator.stream(lines, prefix=prefix, **settings)
        return
    for line in lines:
        alignment = translator.attention(line, prefix=prefix, **settings)
        alignment.draw(attention)
        log.info("attention drawn: %s", attention)
        yield alignment.translation


def _only_line(lines: Iterable[str]) -> list[str]:
    """The one line that there is; DataError where there are more or none."""
    found = list(islice(lines, 2))
    if len(found) != 1:
        raise DataError(
            f"--attention draws one sentence, and here is {'more than one' if found else 'none'}",
            hint='give one in quotes: nmt translate --attention FILE.png "…"',
        )
    return found


def _refuse_other_than_png(option: str, path: Path | None) -> None:
    if path is not None and path.suffix.lower() != ".png":
        raise typer.BadParameter(f"{option} {path}: pictures are PNG files, so the name ends in .png")


@contextmanager
def _progress_unless_seen(total: int | None, file: TextIO) -> Iterator[Callable[[int], None]]:
    """Shows how much of a file is done, unless the lines appear on a terminal, where they show it."""
    if total is None or file.isatty():
        yield lambda _: None
        return

    from nmt.progress import progress

    with progress("translating", total) as advance:
        yield advance


def _as_json(translation: Translation, nbest: int) -> str:
    found: dict[str, Any] = {"source": translation.source, **_details(translation)}
    found["source_tokens"] = translation.source_tokens
    if nbest > 1:
        found["nbest"] = [_details(each) for each in (translation, *translation.alternatives)]
    return json.dumps(found, ensure_ascii=False)


def _details(translation: Translation) -> dict[str, Any]:
    return {
        "translation": translation.text,
        "score": translation.score,
        "log_prob": translation.log_prob,
        "tokens": translation.tokens,
        "token_log_probs": translation.token_log_probs,
        "alignment": translation.alignment,
    }


@contextmanager
def _writing_to(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that takes its name only when all of it is written."""
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise DataError(f"--output {path}: there is no folder {target.parent}")
    if target.exists() and not target.is_file():  # a device or a pipe, which has no whole state to wait for
        with target.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _resume_command() -> str:
    """This very command, going on with its run."""
    words = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    return " ".join(["nmt", *map(_quoted, words), "--resume"])


def _quoted(word: str | Path) -> str:
    """A word as a shell takes it; only where it is needed, since Windows knows double quotes alone."""
    return shlex.quote(str(word)) if os.name == "posix" else f'"{word}"' if " " in str(word) else str(word)
