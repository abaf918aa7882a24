"""Measure nmt on this machine: training, decoding, starting; beside its peers; and how cost grows.

    python scripts/benchmark.py                          the captions, a network of theirs, untrained
    python scripts/benchmark.py --model runs/base --peers --growth

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

from nmt.errors import NmtError
from nmt.runtime import spare_the_machine

if TYPE_CHECKING:
    from benchmark_own import Bench, Section

PARTS = ("matmul", "training", "decoding", "start")
"""What is measured of nmt alone."""


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure nmt on this machine.")
    parser.add_argument(
        "--config", help="by default the model's own settings, without a model captions.yaml", metavar="NAME"
    )
    parser.add_argument("--set", "-s", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--model", type=Path, metavar="RUN_OR_FILE", help="decode with this trained model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--peers", action="store_true", help="a tutorial's loop, JoeyNMT, CTranslate2")
    parser.add_argument("--growth", action="store_true", help="how cost grows with the input")
    parser.add_argument("--quick", action="store_true", help="few steps and sentences: to see that it works")
    parser.add_argument("--steps", type=int, help="training steps that are timed (default 40)")
    parser.add_argument("--rounds", type=int, help="rounds in which peers alternate (default 3)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmark.json"), metavar="FILE.json")
    parser.add_argument(
        "--work", type=Path, default=Path("build/benchmark"), help="where the peers' environments are kept"
    )
    return parser.parse_args(words)


def measured(bench: Bench, arguments: argparse.Namespace) -> list[Section]:
    """Every section that was asked for; each says on standard error that it begins."""
    import benchmark_ctranslate2
    import benchmark_growth
    import benchmark_own
    import benchmark_peers

    sections = {name: getattr(benchmark_own, f"{name}_section") for name in arguments.only}
    if arguments.peers:
        sections |= benchmark_peers.SECTIONS | benchmark_ctranslate2.SECTIONS
    if arguments.growth:
        sections |= benchmark_growth.SECTIONS
    found = []
    for name, measure in sections.items():
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        try:
            found.append(measure(bench))
        except benchmark_peers.PeerError as error:
            found.append(benchmark_own.Section(name, {}, {}, (str(error),)))
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


def main(words: Sequence[str]) -> int:
    """Measure, print, save; 2 where a user can mend what is wrong."""
    arguments = parsed(words)
    spare_the_machine()  # as the nmt command does, before torch is imported
    from benchmark_own import machine, opened

    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = opened(arguments, Path(folder))
            facts = machine(bench)
            print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n", flush=True)
            sections = measured(bench, arguments)
    except NmtError as error:
        print(f"{error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    print(table(sections))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": facts} | {section.name: section.to_dict() for section in sections}
    arguments.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nsaved: {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
