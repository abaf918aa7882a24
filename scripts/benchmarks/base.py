"""What all parts of the benchmark share: what is measured, how it is reported, and the clocks."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from nmt.config import Config, config_from_mapping, load_config
from nmt.data.batching import Rows, plan_batches
from nmt.data.dataset import PreparedData
from nmt.errors import ModelFileError
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, read_header, resolve_model, save_model
from nmt.prepare import open_or_prepare
from nmt.runtime import bf16_is_native, device_line, seed_everything, select_device, select_precision

T = TypeVar("T")

WARM_UP_STEPS = 5
"""Training steps that do not count: libraries choose their kernels, memory is taken."""
BEAMS = (1, 5)
BATCH_SIZES = (32, 64, 128, 256)
"""Sentences a batch, of which each program takes what suits it where programs are compared."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report; the names of its values say their units."""

    name: str
    ratios: dict[str, float]
    figures: dict[str, float]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As it is saved."""
        values = asdict(self)
        return {key: values[key] for key in ("ratios", "figures", "notes")}


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured, and how thoroughly."""

    config: Config
    data: PreparedData
    device: torch.device
    model: Path
    """A model file; a new network's where none was named."""
    trained: bool
    steps: int
    """Training steps that are timed."""
    rounds: int
    """Rounds in which things that are compared alternate."""
    sentences: int
    """Most sentences of the test split that are decoded."""
    quick: bool
    work: Path
    """Where the peers' environments are kept from one run to the next."""
    folder: Path
    """A temporary folder."""

    @property
    def precision(self) -> torch.dtype:
        """What training computes in."""
        return select_precision(self.config.precision, self.device, training=True)

    @property
    def split_name(self) -> str:
        """The split that is decoded: the first test split, else the validation's."""
        return (*self.data.tests, self.data.val)[0]

    @property
    def plan(self) -> list[Rows]:
        """The batches of the config's first epoch."""
        settings = self.config.train
        return plan_batches(
            self.data.split(self.data.train),
            settings.batch_tokens,
            seed=self.config.seed,
            epoch=0,
            max_rows=settings.batch_sentences,
        )

    def timed_plan(self, steps: int) -> list[Rows]:
        """The batches of the warm-up and of `steps` steps behind it; of a small epoch some come again."""
        plan = self.plan
        return [plan[index % len(plan)] for index in range(WARM_UP_STEPS + steps)]

    def network(self) -> Transformer:
        """A new network on the device."""
        return new_network(self.config, self.data).to(self.device)


def opened(arguments: argparse.Namespace, folder: Path) -> Bench:
    """What the command line asks to measure; prepares data first where that is needed."""
    quick = arguments.quick
    model = arguments.model and resolve_model(arguments.model)
    config, data = open_or_prepare(_config(arguments, model, folder))
    device = select_device(config.device)
    if model is None:
        path = folder / "untrained.safetensors"
        vocabularies = data.src_vocabulary, data.tgt_vocabulary
        provenance = {"vocabulary_hash": data.vocabulary_hash}
        save_model(path, Model(None, config, new_network(config, data), *vocabularies, provenance))
    elif read_header(model)["provenance"].get("vocabulary_hash") != data.vocabulary_hash:
        raise ModelFileError(
            f"{model} was not trained on {data.folder}",
            hint="name the data that it was trained on, such as -s data.mirror=FOLDER",
        )
    return Bench(
        config=config,
        data=data,
        device=device,
        model=model or path,
        trained=model is not None,
        steps=arguments.steps or (4 if quick else 40),
        rounds=arguments.rounds or (1 if quick else 3),
        sentences=128 if quick else 1000,
        quick=quick,
        work=arguments.work.absolute(),
        folder=folder,
    )


def _config(arguments: argparse.Namespace, model: Path | None, folder: Path) -> Config:
    """The named config; else the model's own."""
    name: str = arguments.config or "captions.yaml"
    if model is not None and arguments.config is None:
        own = config_from_mapping(read_header(model)["config"], str(model))
        name = str(folder / "model.yaml")
        Path(name).write_text(own.to_yaml(), encoding="utf-8")
    return load_config(name, overrides=arguments.set)


def new_network(config: Config, data: PreparedData) -> Transformer:
    """The network that training would begin with."""
    seed_everything(config.seed)
    return Transformer(config.model, len(data.src_vocabulary), len(data.tgt_vocabulary))


def machine(bench: Bench) -> dict[str, str]:
    """What it is measured on and with."""
    load = f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown"
    parameters = sum(weight.numel() for weight in new_network(bench.config, bench.data).parameters())
    return {
        "device": device_line(bench.device, bench.precision),
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "processors": f"{os.cpu_count()}, load {load} before the run",
        "data": f"{bench.data.folder}, decoded: {bench.split_name}",
        "network": f"{bench.config.name}, {parameters:,} parameters",
        "decoded with": str(bench.model) if bench.trained else "an untrained network, to its length limit",
    }


# --- clocks -----------------------------------------------------------------------------------------------


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(action: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """How long an action takes, and its result."""
    synchronise(device)
    begun = time.perf_counter()
    result = action()
    synchronise(device)
    return time.perf_counter() - begun, result


@dataclass(frozen=True, slots=True)
class Run:
    """A command that has ended."""

    seconds: float
    peak_mib: float
    """The largest resident memory of the command or of one that it started."""


class ProgramError(RuntimeError):
    """A program that was started has failed: the section that needs it is left out."""


_MEASURE = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
seconds = time.perf_counter() - begun
sys.exit(done.stderr.decode(errors="replace")) if done.returncode else None
unit = 2**20 if sys.platform == "darwin" else 2**10
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / unit]))
"""
"""Run by a small process of its own: a child is charged with the memory of the process that forks it."""


def measured_run(*command: str) -> Run:
    """Run a command to its end; raises ProgramError with its last words where it fails."""
    answer = subprocess.run([sys.executable, "-c", _MEASURE, *command], capture_output=True, encoding="utf-8")
    if answer.returncode:
        raise ProgramError(f"{' '.join(command)}: {answer.stderr.strip()[-2000:]}")
    return Run(*json.loads(answer.stdout))


def nmt_command(*words: str) -> tuple[str, ...]:
    """`nmt …` with this Python."""
    return sys.executable, "-m", "nmt", *words


def precisions(bench: Bench) -> list[tuple[str, torch.dtype]]:
    """float32, and bf16 where the device computes in it."""
    found = [("float32", torch.float32)]
    return [*found, ("bf16", torch.bfloat16)] if bf16_is_native(bench.device) else found


def search_name(beam: int) -> str:
    """A search in words."""
    return "greedy" if beam == 1 else f"beam {beam}"


Measure = Callable[[Bench], Section]
"""Makes one section of the report."""
