"""Build the model that comes with nmt from nothing: train, store in float16, score, fill in its card.

    python scripts/build_pretrained.py                      train in runs/best as base.yaml says, go on as
                                                            best.yaml says, then build
    python scripts/build_pretrained.py --run runs/best      build from a run that is trained already

The extra pairs that best.yaml asks for are made first, where they are not there (scripts/diversify.py): by a
model of the same two configs without them and with another seed, in runs/teacher, and by one of en-de.yaml.
The same command goes on with a training that was stopped. What is scored is the float16 model as it is
shipped, on every split, greedy and with beam 5; the scores go into the model file and into its card.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diversify import with_mirror, wordings, write_pairs

from nmt.cli import exits
from nmt.config import Config, config_from_mapping, load_config
from nmt.errors import ConfigError
from nmt.files import write_whole
from nmt.modelfile import (
    SHIPPED,
    load_model,
    read_header,
    resolve_model,
    save_model,
    shipped_model,
    work_folder,
)
from nmt.runtime import exit_code, spare_the_machine

log = logging.getLogger("nmt")

BEAMS = (1, 5)
DRAFT = "float16.safetensors"
CARD = "MODEL_CARD.md"
START, END = "<!-- scores -->\n", "<!-- end -->"
SEED, TEACHER_SEED = 2, 1
"""That of the shipped model, of three the best one on val, and of the one that words pairs anew for it."""
TERMS = (
    "learned from Multi30k, whose maintainers allow non-commercial research and education only; "
    "the MIT licence of nmt's code does not cover these weights"
)

Score = Mapping[str, Any]
"""One entry of the model file's `scores`: split, beam, name, value, signature."""


def make_extra(stages: Sequence[Config], reverse: Config) -> None:
    """Make the last stage's extra pairs, where it has some that are not there, and train what that takes."""
    data = stages[-1].data
    if data.extra is None or all(
        Path(f"{data.extra}.{lang}").exists() for lang in (data.src_lang, data.tgt_lang)
    ):
        return
    without = [
        stage.replace(seed=TEACHER_SEED, data=stage.data.model_copy(update={"extra": None}))
        for stage in stages
    ]
    forward = trained(Path("runs/teacher"), without)
    backward = trained(Path("runs", reverse.name), [reverse])
    write_pairs(Path(data.extra), list(wordings(stages[-1], [forward], [backward])), stages[-1])


def trained(run: Path, stages: Sequence[Config]) -> Path:
    """The best model of a run that each config goes on with where the one before it ended.

    It is begun, or gone on with in the stage that it stands in; a signal that stops it ends the program.
    """
    from nmt.train import train

    saved = run / "config.yaml"
    training = load_config(saved).train if saved.exists() else None
    first = next((number for number, stage in enumerate(stages) if stage.train == training), 0)
    for stage in stages[first:]:
        result = train(stage, run_dir=run, resume=run.exists())
        if result.stopped_by is not None:
            log.info("stopped and saved; the same command goes on")
            sys.exit(exit_code(result.stopped_by))
    return result.model


def measured(model: Path, config: Config, splits: Sequence[str]) -> list[Score]:
    """The scores of a model on splits of the config's text, by split, beam and name."""
    from nmt.evaluate import evaluate_splits
    from nmt.prepare import open_or_prepare

    prepared = open_or_prepare(config)[1]
    by_beam = []
    for beam in BEAMS:
        folder = model.parent / "evaluation" / f"{model.stem}-beam{beam}"
        by_beam.append(evaluate_splits(model, prepared=prepared, splits=splits, beam=beam, out=folder))
    return [
        {"split": each.split, "beam": each.beam, "name": score.name}
        | {"value": round(score.value, 2), "signature": score.signature}
        for of_a_split in zip(*by_beam, strict=True)
        for each in of_a_split
        for score in each.scores
    ]


def table(scores: Sequence[Score]) -> str:
    """The card's block: a line for each split and search, and the signatures."""
    signatures = {score["name"]: score["signature"] for score in scores}
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for score in scores:
        rows.setdefault((score["split"], score["beam"]), {})[score["name"]] = score["value"]
    lines = [f"| split | search | {' | '.join(signatures)} |", "|---" * (2 + len(signatures)) + "|"]
    for (split, beam), values in rows.items():
        cells = (f"{values[name]:.2f}" if name in values else "" for name in signatures)
        lines.append(f"| {split} | {'greedy' if beam == 1 else f'beam {beam}'} | {' | '.join(cells)} |")
    words = (f"{name} `{signature}`" for name, signature in signatures.items())
    return "\n".join((*lines, "", f"Signatures: {', '.join(words)}.", ""))


def filled(card: str, scores: Sequence[Score]) -> str:
    """The card with the table of these scores; raises ConfigError where it has no place for it."""
    block = re.compile(f"(?<={START}).*?(?={END})", re.DOTALL)
    if len(block.findall(card)) != 1:
        raise ConfigError(f"the card needs one block for the scores, from {START.strip()} to {END}")
    return block.sub(lambda _: table(scores), card)


def build(model: Path, splits: Sequence[str], mirror: str | None, out: Path) -> Path:
    """Store a trained model in float16 with its scores and terms, and fill in the card; returns the file."""
    import torch

    from nmt.export import export

    card = out / CARD
    filled(card.read_text("utf-8"), [])  # a card that cannot be filled in is refused at once
    draft = work_folder(model) / DRAFT
    export(model, format="safetensors", quantization="float16", out=draft, overwrite=True)
    config = config_from_mapping(read_header(draft)["config"], str(draft))
    scores = measured(draft, with_mirror(config, mirror), splits)
    half = load_model(draft)
    provenance = {**half.provenance, "terms": TERMS, "scores": scores}
    file = out / shipped_model().name
    named = replace(half, config=config.replace(name=SHIPPED), provenance=provenance)
    save_model(file, named, dtype=torch.float16)
    write_whole(card, filled(card.read_text("utf-8"), scores).encode())
    draft.unlink()
    return file


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the model that comes with nmt.")
    stages = ["base.yaml", "best.yaml"]
    parser.add_argument(
        "--config",
        nargs="+",
        default=stages,
        metavar="NAME",
        help=f"what to train, one after the other in one run: {' '.join(stages)}",
    )
    parser.add_argument(
        "--reverse", default="en-de.yaml", metavar="NAME", help="what translates targets back: en-de.yaml"
    )
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"seed of the model: {SEED}")
    parser.add_argument("--run", type=Path, metavar="DIR", help="a run that is trained already, in its place")
    parser.add_argument("--split", nargs="+", default=["all"], metavar="NAME", help="what to score on: all")
    parser.add_argument(
        "--mirror", metavar="PLACE", help="where Multi30k's files are: an address or a folder"
    )
    parser.add_argument(
        "--out", type=Path, default=shipped_model().parent, metavar="DIR", help="nmt/pretrained"
    )
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Train and build."""
    arguments = parsed(words)
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    spare_the_machine()
    with exits():
        if arguments.run:
            model = resolve_model(arguments.run)
        else:
            stages = [
                with_mirror(load_config(name), arguments.mirror).replace(seed=arguments.seed)
                for name in arguments.config
            ]
            make_extra(stages, with_mirror(load_config(arguments.reverse), arguments.mirror))
            model = trained(Path("runs", stages[-1].name), stages)
        file = build(model, arguments.split, arguments.mirror, arguments.out)
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
