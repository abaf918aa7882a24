"""The commands from a cold start: time and memory."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path

from benchmarks.base import (
    Bench,
    Run,
    Section,
    measured_run,
    nmt_command,
)
from nmt.config import Config
from nmt.data.dataset import MANIFEST

SENTENCE = "Ein Hund läuft im Schnee."


def start_section(bench: Bench) -> Section:
    """How long the commands take from a cold start, beside the imports that translating needs."""
    needed = ("spacy", "torchtext", "resource")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        return Section("start", {}, {}, (f"not measured: there is no {' and no '.join(missing)} here",))
    commands = {
        "python -c 'import torch, spacy'": (sys.executable, "-c", "import torch, spacy"),
        "nmt --help": nmt_command("--help"),
        "nmt translate": nmt_command("translate", "-q", "--model", str(bench.model), SENTENCE),
    }
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(1 if bench.quick else max(bench.rounds, 5)):
        for name, command in commands.items():
            runs[name].append(measured_run(*command))
    seconds = {name: statistics.median(run.seconds for run in each) for name, each in runs.items()}
    memory = {name: max(run.peak_mib for run in each) for name, each in runs.items()}
    imports = "python -c 'import torch, spacy'"
    ratios = {
        f"{name} / {imports}": seconds[name] / seconds[imports] for name in ("nmt --help", "nmt translate")
    }
    figures = {f"{name}, s": value for name, value in seconds.items()}
    figures |= {f"{name}, peak MiB": value for name, value in memory.items()}
    return Section("start", ratios, figures)


def prepare_section(bench: Bench) -> Section:
    """How long `nmt prepare` takes for the config's data, into a temporary folder."""
    if (Path(bench.config.data.source) / MANIFEST).is_file():
        return Section("prepare", {}, {}, ("not measured: the data came prepared",))
    if importlib.util.find_spec("resource") is None:
        return Section("prepare", {}, {}, ("not measured: this system does not tell a program's memory",))
    run = prepare_run(bench.config, bench.folder / "cold")
    pairs = sum(counts.pairs_kept for counts in bench.data.manifest.counts.values())
    figures = {"s": run.seconds, "pairs/s": pairs / run.seconds, "peak MiB": run.peak_mib}
    return Section("prepare", {}, figures)


def prepare_run(config: Config, folder: Path) -> Run:
    """`nmt prepare` of a config into a new folder."""
    folder.mkdir()
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return measured_run(
        *nmt_command("prepare", "--config", str(folder / "config.yaml"), "--out", str(folder / "prepared"))
    )
