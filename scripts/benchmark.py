"""Measure nmt on this machine: training, decoding, starting; beside its peers; and how cost grows.

    python scripts/benchmark.py                          the captions, a network of theirs, untrained
    python scripts/benchmark.py --model runs/base --peers --growth
    python scripts/benchmark.py --model runs/base --only --peers ctranslate2

Prints ratios first and absolute figures after them, and saves both as JSON. Figures of two machines, or of
two moments of a busy one, are not comparable; ratios within one run are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import exits
from nmt.runtime import spare_the_machine

if TYPE_CHECKING:
    from benchmarks.base import Bench, Measure, Section

PARTS = ("matmul", "training", "decoding", "start", "prepare")
"""What is measured of nmt alone."""
PEERS = ("tutorial", "joeynmt", "ctranslate2")
"""What it is measured beside."""


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure nmt on this machine.")
    parser.add_argument(
        "--config", help="by default the model's own settings, without a model captions.yaml", metavar="NAME"
    )
    parser.add_argument("--set", "-s", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--model", type=Path, metavar="RUN_OR_FILE", help="decode with this trained model")
    parser.add_argument(
        "--only", nargs="*", default=list(PARTS), metavar="PART", help=f"some or none of {', '.join(PARTS)}"
    )
    parser.add_argument("--peers", nargs="*", metavar="PEER", help=f"all or some of {', '.join(PEERS)}")
    parser.add_argument("--growth", action="store_true", help="how cost grows with the input")
    parser.add_argument("--quick", action="store_true", help="few steps and sentences: to see that it works")
    parser.add_argument("--steps", type=int, help="training steps that are timed (default 40)")
    parser.add_argument("--rounds", type=int, help="rounds in which peers alternate (default 3)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmark.json"), metavar="FILE.json")
    parser.add_argument(
        "--work", type=Path, default=Path("build/benchmark"), help="where the peers' environments are kept"
    )
    arguments = parser.parse_args(words)
    for option, named, known in (("--only", arguments.only, PARTS), ("--peers", arguments.peers, PEERS)):
        if unknown := sorted(set(named or ()) - set(known)):
            parser.error(f"{option} knows no {unknown[0]}: it knows {', '.join(known)}")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Measure]:
    """What makes each section that was asked for."""
    from benchmarks import ctranslate2, decoding, growth, joeynmt, starting, training, tutorial

    known: dict[str, tuple[Measure, ...]] = {
        "matmul": (training.matmul_section,),
        "training": (training.training_section,),
        "decoding": (decoding.decoding_section,),
        "start": (starting.start_section,),
        "prepare": (starting.prepare_section,),
        "tutorial": (tutorial.tutorial_section,),
        "joeynmt": (joeynmt.joeynmt_training_section, joeynmt.joeynmt_decoding_section),
        "ctranslate2": (ctranslate2.ctranslate2_section,),
    }
    names = [*arguments.only, *(() if arguments.peers is None else arguments.peers or PEERS)]
    measures = [measure for name in names for measure in known[name]]
    if arguments.growth:
        measures += [growth.growth_of_prepare_section, growth.growth_of_decoding_section]
    return measures


def measured(bench: Bench, measures: Sequence[Measure]) -> list[Section]:
    """Every section; each is told of on standard error as it begins."""
    from benchmarks.base import ProgramError, Section

    found = []
    for measure in measures:
        words = measure.__name__.replace("_", " ").removesuffix(" section")
        print(f"measuring {words} …", file=sys.stderr, flush=True)
        try:
            found.append(measure(bench))
        except ProgramError as error:
            found.append(Section(words, {}, {}, (str(error),)))
    return found


def table(sections: Sequence[Section]) -> str:
    """The ratios of all sections, then their figures, with each section's notes under it."""
    lines = []
    for title, kind in (("ratios", "ratios"), ("absolute figures", "figures")):
        lines += [title.upper(), ""]
        for section in sections:
            values: dict[str, float] = getattr(section, kind)
            if values:
                lines.append(section.name)
                width = max(map(len, values))
                lines += [f"  {name:<{width}}  {number(value):>12}" for name, value in values.items()]
                lines.append("")
    notes = [f"{section.name}: {note}" for section in sections for note in section.notes]
    return "\n".join([*lines, "NOTES", "", *notes])


def number(value: float) -> str:
    """Four digits or so."""
    digits = 0 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"


def main(words: Sequence[str]) -> None:
    """Measure, print, save."""
    arguments = parsed(words)
    spare_the_machine()  # as the nmt command does, before torch is imported
    from benchmarks.base import machine, opened

    with exits():
        with tempfile.TemporaryDirectory() as folder:
            bench = opened(arguments, Path(folder))
            facts = machine(bench)
            print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n", flush=True)
            sections = measured(bench, chosen(arguments))
        print(table(sections))
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        report = {"machine": facts} | {section.name: section.to_dict() for section in sections}
        arguments.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nsaved: {arguments.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
