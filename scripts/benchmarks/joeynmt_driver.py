"""Run JoeyNMT for joeynmt.py, which calls this with the Python of JoeyNMT's environment.

    python joeynmt_driver.py train CONFIG.yaml BATCHES.json OUT.json
    python joeynmt_driver.py decode CONFIG.yaml JOBS.json OUT.json

`train` is JoeyNMT's own training on the rows of each batch in BATCHES; OUT gets the seconds of each step.
`decode` translates the test split once for each [beam, sentences a batch] in JOBS; OUT gets a list of
[seconds, translations as tokens].
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def train(config: str, batches: list[list[int]]) -> list[float]:
    """Seconds of each step: JoeyNMT asks for the next batch's rows when it has taken the step before."""
    from joeynmt.config import load_config  # type: ignore[import-not-found]
    from joeynmt.datasets import TokenBatchSampler  # type: ignore[import-not-found]
    from joeynmt.helpers import make_model_dir  # type: ignore[import-not-found]
    from joeynmt.training import train as run_training  # type: ignore[import-not-found]

    asked: list[float] = []

    def planned(_: Any) -> Iterator[list[int]]:
        for rows in batches:
            asked.append(time.perf_counter())
            yield rows
        asked.append(time.perf_counter())

    TokenBatchSampler.__iter__ = planned
    settings = load_config(config)
    make_model_dir(Path(settings["model_dir"]), overwrite=True)
    run_training(rank=0, world_size=None, cfg=settings, skip_test=True)
    return [end - begin for begin, end in itertools.pairwise(asked)]


def decode(config: str, jobs: list[list[int]]) -> list[tuple[float, list[list[str]]]]:
    """Seconds and translations of each job."""
    from joeynmt.config import load_config, parse_global_args
    from joeynmt.prediction import predict, prepare  # type: ignore[import-not-found]

    settings = parse_global_args(load_config(config), rank=0, mode="test")
    model, _, _, test_data = prepare(settings, rank=0, mode="test")
    test_data.reset_indices(random_subset=-1)
    answers = []
    for beam, batch_size in jobs:
        search = settings.test._replace(beam_size=beam, batch_size=batch_size, batch_type="sentence")
        begun = time.perf_counter()
        answer = predict(
            model=model,
            data=test_data,
            device=settings.device,
            n_gpu=settings.n_gpu,
            args=search,
            autocast=settings.autocast,
        )
        answers.append((time.perf_counter() - begun, answer[3]))
    return answers


if __name__ == "__main__":
    task, config_file, request_file, out_file = sys.argv[1:]
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    result = train(config_file, request) if task == "train" else decode(config_file, request)
    Path(out_file).write_text(json.dumps(result), encoding="utf-8")
