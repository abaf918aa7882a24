"""scripts/experiment.py: what it reads and refuses, what it repeats, and what it shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import ConfigError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

TINY = """
config: captions.yaml
settings:
  data.source: {source}
  device: cpu
  vocabulary.size: 200
  model.encoder_layers: 1
  model.decoder_layers: 1
  model.d_model: 32
  model.heads: 2
  model.feed_forward: 32
  train.epochs: 2
  train.warmup_steps: 2
  train.validate_every_epochs: 1
  decode.max_length_ratio: 0.5
seeds: [1, 2]
runs:
  base: {{}}
  no-ema:
    settings: {{train.ema_decay: null}}
evaluate:
- {{split: test, beam: 2, length_penalty: 0.6}}
"""


@pytest.fixture
def plan(script: Any, tmp_path: Path) -> Any:
    """Writes a grid file, reads it and plans its runs."""
    grids, path = script("experiments.grid"), tmp_path / "grid.yaml"

    def planned(text: str) -> list[Any]:
        path.write_text(text, encoding="utf-8")
        runs: list[Any] = grids.planned(path, grids.read_grid(path))
        return runs

    return planned


# --- the grid file ----------------------------------------------------------------------------------------


def test_each_run_has_the_settings_of_all_its_own_and_its_seeds(plan: Any) -> None:
    runs = plan(
        "settings: {train.epochs: 3, train.learning_rate: 1e-4}\n"
        "seeds: [1, 2]\n"
        "runs:\n"
        "  base:\n"
        "  other: {settings: {train.epochs: 4, train.ema_decay: null, train.betas: [0.8, 0.9]}, seeds: [7]}\n"
    )
    assert [run.folder_name for run in runs] == ["base-seed1", "base-seed2", "other-seed7"]
    assert [run.config.seed for run in runs] == [1, 2, 7]
    assert [run.config.name for run in runs] == [run.folder_name for run in runs]
    assert runs[0].config.train.learning_rate == runs[2].config.train.learning_rate == 1e-4
    assert (runs[0].config.train.epochs, runs[0].config.train.ema_decay) == (3, 0.998)
    assert (runs[2].config.train.epochs, runs[2].config.train.ema_decay) == (4, None)
    assert runs[2].config.train.betas == (0.8, 0.9)
    assert runs[0].settings == {}


def test_a_grid_is_every_combination_named_after_what_differs(plan: Any) -> None:
    runs = plan(
        "runs: {base: {}}\n"
        "grid:\n"
        "  model.dropout: [0.1, 0.2]\n"
        "  train.schedule: [cosine, inverse_sqrt]\n"
        "  train.ema_decay: [null]\n"
    )
    assert [run.name for run in runs] == [
        "base",
        "dropout-0.1_schedule-cosine_ema_decay-null",
        "dropout-0.1_schedule-inverse_sqrt_ema_decay-null",
        "dropout-0.2_schedule-cosine_ema_decay-null",
        "dropout-0.2_schedule-inverse_sqrt_ema_decay-null",
    ]
    assert [run.config.model.dropout for run in runs] == [0.3, 0.1, 0.1, 0.2, 0.2]
    assert runs[1].settings == {"model.dropout": 0.1, "train.schedule": "cosine", "train.ema_decay": None}


def test_keys_of_one_last_name_are_written_out(plan: Any) -> None:
    runs = plan("grid: {train.batch_tokens: [512], decode.batch_tokens: [256], train.betas: [[0.9, 0.98]]}")
    assert [run.name for run in runs] == ["train.batch_tokens-512_decode.batch_tokens-256_betas-0.9-0.98"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seedz: [1]", "line 1: unknown key seedz"),
        ("runs:\n  a:\n    setting: {}", "line 3: unknown key runs.a.setting"),
        ("runs: {a: {}}\nevaluate:\n- {split: val, bean: 1}", "line 2: unknown key evaluate.0.bean"),
        ("runs: {a: {}}\nevaluate: [{beam: 1}]", "missing key evaluate.0.split"),
        ("runs: {a: {}}\nevaluate: [{split: val, beam: 0}]", "evaluate.0.beam: should be greater"),
        ("runs: {a: {}}\nseeds: 1", "line 2: seeds: should be a list"),
        ("runs: {a: {}}\nseeds: []", "line 2: seeds: should not be empty"),
        ("runs: {a: {}}\nruns: {b: {}}", "runs is given twice"),
        ("runs: {a/b: {}}", "runs.a/b: should be of letters"),
        ("runs: {a: {settings: {train: {epochs: 3}}}}", "write each key by itself"),
        ("settings: {seed: 3}\nruns: {a: {}}", "settings.seed: the runs have"),
        ("runs: {a: {settings: {train.epochz: 3}}}", "run a: --set train.epochz=3: unknown key"),
        ("runs: {a: {settings: {train.epochs: many}}}", "run a: --set train.epochs="),
        ("config: nowhere.yaml\nruns: {a: {}}", "nowhere.yaml"),
        ("runs: {a: {seeds: [1, 1]}}", "run a-seed1 is there twice"),
        ("runs: {dropout-0.1: {}}\ngrid: {model.dropout: [0.1]}", "run dropout-0.1-seed1 is there twice"),
        ("runs: {a: {}}\nevaluate: [{split: val}, {split: val}]", "score val is there twice"),
        ("config: base.yaml", "no runs"),
    ],
)
def test_what_is_wrong_in_a_grid_is_told_before_anything_runs(plan: Any, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(text)
    assert words in caught.value.message
    assert "grid.yaml" in caught.value.message


def test_an_unknown_key_is_answered_with_the_known_ones(plan: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        plan("runs: {a: {x: 1}}")
    assert caught.value.hint == "known here: settings, seeds"
    with pytest.raises(ConfigError) as caught:
        plan("run: {}")
    assert caught.value.hint == "known here: config, settings, seeds, runs, grid, evaluate"


@pytest.mark.parametrize("name", ["ablation.yaml", "captions.yaml"])
def test_the_grids_that_come_with_nmt_are_fine_and_leave_test_splits_alone(script: Any, name: str) -> None:
    grids, path = script("experiments.grid"), SCRIPTS / "experiments" / name
    grid = grids.read_grid(path)
    runs = grids.planned(path, grid)
    assert runs[0].name == "base"
    assert {scoring.split for scoring in grid.evaluate} == {"val"}
    configs = [run.config.replace(name="same") for run in runs]
    assert all(config not in configs[:number] for number, config in enumerate(configs))


def test_a_mistake_exits_with_2_and_a_hint(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("runs: {a: {}, b: {}}")
    with pytest.raises(SystemExit, match=r"^2$"):
        script("experiment").main([str(path), "--only", "a", "c", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().err == f"error: {path} has no run c\nhint: it has a, b\n"
    with pytest.raises(SystemExit, match=r"^2$"):
        script("experiment").main([str(tmp_path / "none.yaml")])
    assert not (tmp_path / "out").exists()


def test_a_split_that_is_not_there_is_told_before_anything_trains(
    script: Any,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "grid.yaml"
    path.write_text(TINY.format(source=tiny_folder).replace("split: test", "split: tset"))
    with pytest.raises(SystemExit, match=r"^2$"):
        script("experiment").main([str(path)])
    said = capsys.readouterr().err
    assert "there is no split tset" in said
    assert "known: val, test" in said
    assert not (tmp_path / "runs").exists()


# --- what a run tells -------------------------------------------------------------------------------------


def validated(step: int, elapsed_s: float, bleu: float, **changed: Any) -> dict[str, Any]:
    """A validation as metrics.jsonl has it, of epochs of 100 steps."""
    values = {"step": step, "epoch": step / 100, "elapsed_s": elapsed_s, "bleu": bleu, "loss": 1.5}
    return {"event": "validation", **values, "best": True, **changed}


EVENTS: list[dict[str, Any]] = [
    {"event": "step", "step": 50, "epoch": 0.5, "elapsed_s": 9.0},
    validated(100, 20.0, 34.9),
    validated(200, 40.0, 39.0, loss=1.4),
    validated(300, 60.0, 37.0, best=False),
    validated(400, 80.5, 40.0),
    validated(400, 82.5, 39.9, best=False, weights="mean of the last 2"),
    {"event": "time", "step": 400, "step_s": 70.0},
]


def test_the_seconds_to_a_bleu_are_those_of_the_first_validation_that_reached_it(
    script: Any, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS) + '{"event": "st')
    results = script("experiments.results")
    found = results.told(results.read_events(path))
    assert found["seconds_to_bleu"] == {"35": 40.0, "38": 40.0, "40": 80.5, "42": None}
    assert (found["epochs"], found["steps"], found["training_s"]) == (4, 400, 82.5)
    assert (found["best_epoch"], found["val_loss"], found["val_bleu"]) == (4, 1.5, 40.0)


def test_a_run_without_a_validation_has_told_nothing_yet(script: Any) -> None:
    found = script("experiments.results").told([])
    assert found["val_bleu"] is found["best_epoch"] is None
    assert set(found["seconds_to_bleu"].values()) == {None}


# --- the table --------------------------------------------------------------------------------------------


def made_row(name: str, seed: int, bleu: float, **changed: Any) -> dict[str, Any]:
    """A line of results.jsonl as a run leaves it."""
    score = {"value": bleu, "low": bleu - 1.5, "high": bleu + 1.5, "signature": "sig"}
    return {
        "name": name,
        "seed": seed,
        "settings": {} if name == "base" else {"model.dropout": 0.1},
        "shared": {},
        "config": "base.yaml",
        "parameters": 7_578_624,
        "best_epoch": 27,
        "val_loss": 1.575,
        "val_bleu": bleu - 1,
        "training_s": 90.0,
        "seconds_to_bleu": {"35": 60.4, "38": None},
        "scores": {"val, beam 5": {"split": "val", "BLEU": score}},
        "test_splits": [],
        "machine": {"device": "cpu, 1 threads"},
    } | changed


def cells(text: str) -> dict[str, dict[str, str]]:
    """A table's cells by the name of the run and the title of the column."""
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"
    ]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_the_table_has_means_over_seeds_and_differences_from_the_first(script: Any) -> None:
    rows = [
        made_row("low", 2, 39.5),
        made_row("low", 3, 30.0, seconds_to_bleu={"35": None, "38": None}),
        made_row("base", 1, 41.0),
        made_row("base", 2, 1.0),  # repeated: the last one counts
        made_row("base", 2, 40.0),
    ]
    text = script("experiments.results").table(rows, ["base", "low", "not-done"])
    found = cells(text)
    assert list(found) == ["base", "low"]
    assert found["base"]["val, beam 5"] == "40.50 (41.00, 40.00)"
    assert found["low"]["val, beam 5"] == "34.75 (39.50, 30.00) -0.50"  # by seed 2, which both have
    assert found["low"]["settings"] == "model.dropout=0.1"
    assert found["base"]["parameters"] == "7,578,624 (7,578,624, 7,578,624)"
    assert found["base"]["s to BLEU 35"] == "60 (60, 60)"
    assert found["low"]["s to BLEU 35"] == "– (60, –)"
    assert "s to BLEU 38" not in found["base"]
    assert found["base"]["minutes"] == "1.5 (1.5, 1.5)"
    assert "Differences are from base" in text
    assert "±1.5" in text
    assert "`sig`" in text
    assert "Test splits" not in text


def test_a_single_seed_has_no_brackets_and_test_splits_are_told(script: Any) -> None:
    text = script("experiments.results").table([made_row("base", 1, 41.0, test_splits=["test"])], ["base"])
    assert cells(text)["base"]["val, beam 5"] == "41.00"
    assert "Test splits were scored: test." in text
    assert script("experiments.results").table([], ["base"]) == "no run is done yet"


def test_the_command_shows_a_table_and_a_picture_and_trains_nothing(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "grid.yaml", tmp_path / "out"
    path.write_text("runs: {base: {}, other: {}}")
    (out / "base-seed1").mkdir(parents=True)
    (out / "base-seed1" / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in EVENTS))
    lines = [made_row("base", 1, 41.0), made_row("other", 1, 40.0)]
    (out / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert (
        script("experiment").main([str(path), "--out", str(out), "--table", "--plot", "--only", "base"]) == 0
    )
    assert list(cells(capsys.readouterr().out)) == ["base"]
    assert (out / "bleu.png").read_bytes()[:4] == b"\x89PNG"
    assert [each.name for each in sorted(out.iterdir())] == ["base-seed1", "bleu.png", "results.jsonl"]


def test_nothing_is_drawn_where_no_run_has_begun(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "grid.yaml", tmp_path / "out"
    path.write_text("runs: {base: {}}")
    with pytest.raises(SystemExit, match=r"^2$"):
        script("experiment").main([str(path), "--out", str(out), "--plot"])
    assert f"{out} has no run to draw" in capsys.readouterr().err
    assert not out.exists()


def test_a_line_that_was_cut_off_costs_only_itself(script: Any, tmp_path: Path) -> None:
    results, path = script("experiments.results"), tmp_path / "results.jsonl"
    results.append(path, {"name": "a"})
    with path.open("a") as file:
        file.write('{"name": "b", "se')
    results.append(path, {"name": "c"})
    assert [row["name"] for row in results.read_events(path)] == ["a", "c"]


# --- what is done again and what is not -------------------------------------------------------------------


def test_a_run_is_done_when_it_has_all_scores_that_are_asked_for(script: Any, plan: Any) -> None:
    experiment, grids = script("experiment"), script("experiments.grid")
    (run,) = plan("runs: {base: {}}")
    asked = grids.Grid(evaluate=(grids.Scoring(split="val", beam=5),))
    assert experiment.is_done(run, asked, [made_row("base", 1, 41.0)])
    assert not experiment.is_done(run, asked, [made_row("base", 2, 41.0)])
    more = grids.Grid(evaluate=(*asked.evaluate, grids.Scoring(split="val", beam=1)))
    assert not experiment.is_done(run, more, [made_row("base", 1, 41.0)])


def test_a_run_with_other_settings_is_refused(script: Any, plan: Any, tmp_path: Path) -> None:
    experiment, grids = script("experiment"), script("experiments.grid")
    (run,) = plan("runs: {low: {settings: {model.dropout: 0.2}}}")
    grid = grids.Grid()
    with pytest.raises(ConfigError, match=r"low-seed1 with other settings: model\.dropout$"):
        experiment.refuse_changed(run, grid, tmp_path, [made_row("low", 1, 40.0)])
    (tmp_path / "low-seed1").mkdir()
    before = run.config.replace(train=run.config.train.model_copy(update={"epochs": 3}))
    (tmp_path / "low-seed1" / "config.yaml").write_text(before.to_yaml())
    with pytest.raises(ConfigError, match=r"with other settings: train\.epochs$"):
        experiment.refuse_changed(run, grid, tmp_path, [])
    (tmp_path / "low-seed1" / "config.yaml").write_text(run.config.to_yaml())
    experiment.refuse_changed(run, grid, tmp_path, [])


def test_a_run_that_fails_takes_no_other_with_it(
    script: Any, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, grids = script("experiment"), script("experiments.grid")
    runs = plan("runs: {base: {}, low: {settings: {model.dropout: 0.1}}}")

    def carried_out(run: Any, *_others: Any) -> dict[str, Any]:
        if run.name == "base":
            raise experiment.FailedError("nmt train ended with exit code -9")
        return made_row(run.name, run.seed, 40.0)

    monkeypatch.setattr(experiment, "carry_out", carried_out)
    monkeypatch.setattr(experiment, "prepare_all", lambda *_: None)
    assert experiment.carry_out_all(tmp_path / "grid.yaml", grids.Grid(), runs, tmp_path / "out") == 1
    assert [row["name"] for row in rows_in(tmp_path / "out")] == ["low"]


# --- from end to end --------------------------------------------------------------------------------------


def rows_in(out: Path) -> list[dict[str, Any]]:
    """The whole lines of results.jsonl."""
    path = out / "results.jsonl"
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


@pytest.fixture
def started(tmp_path: Path, tiny_folder: Path) -> Iterator[Any]:
    """Starts the script on a tiny grid, and leaves none running."""
    (tmp_path / "tiny.yaml").write_text(TINY.format(source=tiny_folder), encoding="utf-8")
    environ: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
    children: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPTS / "experiment.py"), "tiny.yaml", "--out", "out", *words]
        pipe = subprocess.PIPE
        children.append(
            subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe, encoding="utf-8")
        )
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.terminate()
        child.communicate()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_a_grid_that_was_interrupted_goes_on_and_repeats_nothing(started: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = started()
    deadline_s = time.monotonic() + 300
    while not rows_in(out) and child.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM, told
    assert "stopped; the same command goes on" in told
    (first,) = rows_in(out)
    assert (first["name"], first["seed"]) == ("base", 1)
    model = (out / "base-seed1" / "best.safetensors").stat()

    child = started()
    _, told = child.communicate(timeout=300)
    assert child.returncode == 0, told
    assert "run 1 of 4" not in told
    rows = rows_in(out)
    assert rows[0] == first
    assert [(row["name"], row["seed"]) for row in rows] == [
        ("base", 1),
        ("base", 2),
        ("no-ema", 1),
        ("no-ema", 2),
    ]
    assert (out / "base-seed1" / "best.safetensors").stat() == model
    for row in rows:
        assert (row["epochs"], row["steps"] > 0, row["parameters"] > 0) == (2, True, True)
        (score,) = row["scores"].values()
        assert (score["split"], score["beam"], score["length_penalty"]) == ("test", 2, 0.6)
        bleu = score["BLEU"]
        assert bleu["low"] <= bleu["value"] <= bleu["high"]
        assert "tok:13a" in bleu["signature"]
        assert row["test_splits"] == ["test"]
        assert row["machine"]["device"].startswith("cpu")
    assert rows[2]["settings"] == {"train.ema_decay": None}

    child = started("--table")
    table, _ = child.communicate(timeout=60)
    assert list(cells(table)) == ["base", "no-ema"]
