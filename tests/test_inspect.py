"""What `nmt inspect` tells of models and configs: counts that add up, facts that are the file's."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.config import Config, config_from_mapping, load_config
from nmt.data.dataset import PreparedData
from nmt.data.vocabulary import SPECIALS
from nmt.errors import ConfigError, ModelFileError, NmtError
from nmt.inspect import Inspection, Part, draw_position_table, inspect
from nmt.modelfile import Model, save_model, shipped_model

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 120


def described(tmp_path: Path, **model: Any) -> Inspection:
    """A small config with these model settings, inspected."""
    joint = model.get("share_embeddings", "all") == "all"
    vocabulary = {"kind": "word", "max_size": VOCABULARY - len(SPECIALS), "joint": joint}
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 4, "feed_forward": 40}
    config = Config.model_validate({"vocabulary": vocabulary, "model": {**sizes, **model}})
    path = tmp_path / "small.yaml"
    path.write_text(config.to_yaml(), "utf-8")
    return inspect(path)


def by_hand(config: Config) -> dict[str, int]:
    """Parameters by part, from the shapes in the paper's equations."""
    m = config.model
    d, queries, values = m.d_model, m.heads * m.key_width, m.heads * m.head_value_width
    attention = 2 * d * queries + 2 * d * values + m.projection_bias * (2 * queries + values + d)
    feed_forward = d * m.feed_forward + m.feed_forward + m.feed_forward * d + d
    norm = 2 * d
    matrices = {"none": 2, "target": 2, "all": 1}[m.share_embeddings]
    rows = m.max_positions if m.positions == "learned" else 0
    return {
        "embeddings": matrices * VOCABULARY * d + 2 * rows * d + 2 * m.embedding_norm * norm,
        "encoder": m.encoder_layers * (attention + feed_forward + 2 * norm) + m.has_final_norm * norm,
        "decoder": m.decoder_layers * (2 * attention + feed_forward + 3 * norm) + m.has_final_norm * norm,
        "projection": (m.share_embeddings == "none") * VOCABULARY * d + m.output_bias * VOCABULARY,
    }


VARIANTS: list[dict[str, Any]] = [
    {},
    {"share_embeddings": "target", "output_bias": True},
    {"share_embeddings": "none", "scale": "none"},
    {"norm": "post", "embedding_norm": True, "projection_bias": False, "head_width": 5, "value_width": 7},
    {"norm": "post", "final_norm": True, "positions": "learned", "scale": "prj"},
    {"final_norm": False, "positions": "rotary", "activation": "gelu"},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda settings: ", ".join(settings) or "base")
def test_parameters_by_part_are_those_counted_by_hand(settings: dict[str, Any], tmp_path: Path) -> None:
    inspection = described(tmp_path, **settings)
    parameters = inspection.parameters
    total = sum(weight.numel() for weight in set(inspection.network.parameters()))
    assert parameters == {**by_hand(inspection.config), "total": total}
    assert inspection.memory_bytes["weights"] == 4 * total


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda settings: ", ".join(settings) or "base")
def test_every_branch_of_the_tree_is_the_sum_of_its_parts(settings: dict[str, Any], tmp_path: Path) -> None:
    inspection = described(tmp_path, **settings)
    depths = {
        "encoder": inspection.config.model.encoder_layers,
        "decoder": inspection.config.model.decoder_layers,
    }

    def check(part: Part) -> Iterator[str]:
        copies = {"layer": depths.get(part.name, 1)}
        if part.parts:
            assert part.parameters == sum(copies.get(p.name, 1) * p.parameters for p in part.parts), part.name
        for child in part.parts:
            yield from check(child)
        yield part.name

    names = set(check(inspection.architecture))
    assert {"embeddings", "encoder", "decoder", "projection", "cross-attention", "feed-forward"} <= names


@pytest.mark.parametrize(
    ("name", "part", "parameters"),
    [("prenorm-annotated", "decoder", 25_225_216), ("bert-encoder", "encoder", 85_054_464)],
)
def test_the_stacks_of_the_seeds_have_the_published_sizes(name: str, part: str, parameters: int) -> None:
    assert inspect(f"seeds/{name}.yaml").parameters[part] == parameters


def test_training_needs_weights_gradients_two_moments_and_the_average_where_there_is_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("extends: base.yaml\n")
    for overrides, copies, said in (([], 5, True), (["train.ema_decay=null"], 4, False)):
        inspection = inspect(path, overrides=overrides)
        memory = inspection.memory_bytes
        assert memory["training"] == copies * memory["weights"]
        assert ("moving average" in str(inspection)) == said


# ---------------------------------------------------------------- configs


def test_a_config_needs_nothing_around_it_and_draws_no_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    inspection = inspect("base.yaml")
    assert torch.equal(torch.get_rng_state(), before), "weights were drawn, which takes long"
    assert (inspection.vocabulary.source, inspection.vocabulary.target) == (8000, 8000)
    assert inspection.facts is None
    assert list(tmp_path.iterdir()) == []


def test_overrides_change_what_is_described() -> None:
    assert inspect("base.yaml", overrides=["vocabulary.size=500"]).vocabulary.source == 500
    deep = inspect("base.yaml", overrides=["model.encoder_layers=6"]).parameters
    shallow = inspect("base.yaml", overrides=["model.encoder_layers=3"]).parameters
    assert deep["decoder"] == shallow["decoder"]
    final_norm = 2 * 256
    assert deep["encoder"] - final_norm == 2 * (shallow["encoder"] - final_norm)


def test_an_open_vocabulary_is_that_of_the_prepared_folder_or_the_specials_alone(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nmt.prepare import prepare

    monkeypatch.chdir(tmp_path)
    open_words = {"kind": "word", "joint": False}
    config = Config.model_validate(
        {
            "data": {"source": str(tiny_folder)},
            "vocabulary": open_words,
            "model": {"share_embeddings": "target"},
        }
    )
    path = tmp_path / "words.yaml"
    path.write_text(config.to_yaml(), "utf-8")

    before = inspect(path)
    assert (before.vocabulary.source, before.vocabulary.target) == (4, 4)
    assert "vocabulary.max_size" in str(before)
    assert inspect(path, overrides=["vocabulary.max_size=50"]).vocabulary.source == 54

    data = prepare(config).data
    after = inspect(path)
    assert (after.vocabulary.source, after.vocabulary.target) == (
        len(data.src_vocabulary),
        len(data.tgt_vocabulary),
    )
    assert str(data.folder) in str(after)


def test_a_prepared_folder_as_the_source_settles_the_sizes(tiny_prepared: PreparedData) -> None:
    inspection = inspect("base.yaml", overrides=[f"data.source={tiny_prepared.folder}"])
    assert inspection.vocabulary.source == len(tiny_prepared.src_vocabulary) != 8000


# ---------------------------------------------------------------- models


@pytest.fixture
def run_folder(tiny_model: Model, tmp_path: Path) -> Path:
    """A run folder: the best model with a history, and one score each of best and last."""
    provenance = {
        **tiny_model.provenance,
        "step": 1234,
        "epoch": 7,
        "data": {"source": "captions", "extra": "pairs", "hash": "0123abcd"},
        "best": {"bleu": 12.345, "loss": 1.5, "step": 1200},
        "environment": {"nmt": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "device": "cpu, 2 threads"},
    }
    folder = tmp_path / "runs" / "tiny"
    model = Model(
        None,
        tiny_model.config,
        tiny_model.network,
        tiny_model.src_vocabulary,
        tiny_model.tgt_vocabulary,
        provenance,
    )
    save_model(folder / "best.safetensors", model)
    (folder / "evaluation").mkdir()
    for split, name, value in (("test", "best", 30.25), ("val", "last", 99.0)):
        score = {"name": "BLEU", "value": value, "signature": "nrefs:1|tok:13a"}
        report = {"split": split, "score": score, "model": f"runs/tiny/{name}.safetensors"}
        (folder / "evaluation" / f"{split}.json").write_text(json.dumps(report))
    (folder / "evaluation" / "notes.json").write_text("{")
    (folder / "evaluation" / "other.json").write_text('["no report"]')
    return folder


def test_a_run_folder_is_its_best_model_with_history_and_its_own_scores(
    run_folder: Path, tiny_model: Model
) -> None:
    inspection = inspect(run_folder)
    facts = inspection.facts
    assert facts is not None
    assert inspection.path == run_folder / "best.safetensors"
    assert inspection.config == tiny_model.config
    assert facts.file_bytes == inspection.path.stat().st_size
    assert inspection.parameters["total"] == sum(weight.numel() for weight in tiny_model.network.parameters())
    assert [(score.split, score.value) for score in facts.scores] == [("test", 30.25)], (
        "the last model's is not ours"
    )
    text = str(inspection)
    for words in (
        "step 1,234, epoch 7",
        "captions with pairs (0123abcd)",
        "BLEU 12.35",
        "torch 2.13.0",
        "nrefs:1|tok:13a",
    ):
        assert words in text
    assert "older than" not in text


def test_a_score_from_before_the_model_was_written_is_marked(run_folder: Path) -> None:
    written_s = (run_folder / "best.safetensors").stat().st_mtime
    os.utime(run_folder / "evaluation" / "test.json", (written_s - 60, written_s - 60))
    assert "older than the model file" in str(inspect(run_folder))


def test_terms_and_scores_in_a_model_file_are_shown_before_those_beside_it(
    tiny_model: Model, run_folder: Path
) -> None:
    score = {"split": "val", "beam": 5, "name": "BLEU", "value": 41.5, "signature": "nrefs:1|mine"}
    others = [{**score, "beam": 1, "value": 40.25}, {**score, "name": "chrF2", "value": 60.0}]
    provenance = {"terms": "for research alone", "scores": [score, *others, {"split": "val"}, "none"]}
    save_model(run_folder / "best.safetensors", dataclasses.replace(tiny_model, provenance=provenance))
    inspection = inspect(run_folder)
    assert inspection.facts is not None
    values = [(found.split, found.beam, found.name, found.value) for found in inspection.facts.scores]
    assert values[:3] == [("val", 5, "BLEU", 41.5), ("val", 1, "BLEU", 40.25), ("val", 5, "chrF2", 60.0)]
    assert values[3:] == [("test", 1, "BLEU", 30.25)], "what is no score is passed over"
    lines = [re.split("  +", line) for line in str(inspection).splitlines()]
    assert ["terms", "for research alone"] in lines
    assert ["on val", "BLEU 41.50, beam 5, nrefs:1|mine"] in lines
    found = json.loads(inspection.to_json())
    assert found["terms"] == "for research alone"
    assert found["scores"][0].items() >= score.items()
    assert found["provenance"] == provenance


@pytest.mark.parametrize(
    "provenance", [{}, {"terms": None, "scores": None}, {"scores": {"BLEU": 3}}, {"scores": "high"}]
)
def test_a_model_file_need_not_hold_terms_or_scores(
    provenance: dict[str, Any], tiny_model: Model, tmp_path: Path
) -> None:
    save_model(tmp_path / "model.safetensors", dataclasses.replace(tiny_model, provenance=provenance))
    inspection = inspect(tmp_path / "model.safetensors")
    assert inspection.facts is not None
    assert (inspection.facts.terms, inspection.facts.scores) == (None, ())
    assert "terms" not in str(inspection)


def test_the_model_that_comes_with_nmt_is_shown_by_its_name_with_its_terms_and_scores() -> None:
    shown = str(inspect("multi30k-de-en"))
    assert str(shipped_model()) in shown
    assert "non-commercial" in shown
    assert re.search(r"^on val +BLEU \d\d\.\d\d, beam 5, nrefs:1", shown, re.M)


def test_a_score_that_somebody_took_of_it_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = Path("runs/multi30k-de-en/evaluation/test.json")
    report.parent.mkdir(parents=True)
    score = {"name": "BLEU", "value": 12.5, "signature": "nrefs:1"}
    found = {"model": "multi30k-de-en.safetensors", "split": "test", "score": score, "beam": 5}
    report.write_text(json.dumps(found))
    shown = str(inspect("multi30k-de-en"))
    assert re.search(rf"^on test +BLEU 12\.50, beam 5, nrefs:1.*, by {report}$", shown, re.M)
    assert not re.search(r"^on val .* by ", shown, re.M)


def test_a_model_file_without_history_is_described_all_the_same(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    inspection = inspect(shutil.copy(tiny_model_path, tmp_path))
    assert inspection.facts is not None
    assert inspection.facts.scores == ()
    assert "trained" not in str(inspection)


def test_json_holds_all_of_it_and_its_config_is_the_config(run_folder: Path) -> None:
    model, config = inspect(run_folder), inspect("base.yaml")
    for inspection in (model, config):
        found = json.loads(inspection.to_json())
        assert config_from_mapping(found["config"], "json") == inspection.config
        assert found["parameters"] == inspection.parameters
        parts = {name: count for name, count in found["parameters"].items() if name != "total"}
        assert sum(parts.values()) == found["parameters"]["total"] == found["architecture"]["parameters"]
        assert found["memory_bytes"] == inspection.memory_bytes
        assert found["vocabulary"]["source"] == inspection.vocabulary.source
    assert json.loads(model.to_json())["scores"][0]["value"] == 30.25
    assert json.loads(model.to_json())["provenance"]["step"] == 1234
    assert json.loads(config.to_json())["provenance"] is None
    assert set(json.loads(model.to_json())) == set(json.loads(config.to_json()))


def test_lines_are_aligned_and_numbers_flush_right(run_folder: Path) -> None:
    for inspection in (inspect(run_folder), inspect("base.yaml")):
        tree, facts = (block.splitlines() for block in str(inspection).split("\n\n"))
        assert len({len(line) for line in tree}) == 1
        labels = [line.split("  ")[0] for line in facts]
        assert len(set(labels)) == len(labels)


@pytest.mark.slow
def test_inspecting_loads_neither_spacy_nor_matplotlib(tiny_model_path: Path) -> None:
    code = f"""
import sys
from nmt.inspect import inspect
inspect("base.yaml"), inspect({str(tiny_model_path)!r})
assert not {{"spacy", "torchtext", "sentencepiece", "matplotlib"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ---------------------------------------------------------------- what cannot be inspected


def test_what_is_neither_model_nor_config_is_named_with_both_ways_out(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match=r"model.* nor is it a config") as caught:
            inspect(path)
        assert "nmt train" in str(caught.value.hint)
        assert "base.yaml" in str(caught.value.hint)
    with pytest.raises(ConfigError) as caught:
        inspect("bsae.yaml")
    assert "did you mean base.yaml?" in str(caught.value.hint)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_model_file_is_an_error_of_model_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError):
        inspect(path)


def test_a_file_is_known_by_what_it_holds_not_by_its_name(tiny_model_path: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_path, tmp_path / "my model.yaml")
    assert inspect(tmp_path / "my model.yaml").facts is not None
    (tmp_path / "settings").write_text("extends: base.yaml\n")
    assert inspect(tmp_path / "settings").facts is None


def test_a_folder_with_the_name_of_a_shipped_config_hides_it_only_with_a_model(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("captions").mkdir()
    assert inspect("captions").facts is None
    shutil.copy(tiny_model_path, "captions/best.safetensors")
    assert inspect("captions").facts is not None


def test_settings_of_a_model_cannot_be_overridden(tiny_model_path: Path) -> None:
    with pytest.raises(ConfigError, match="settings are fixed"):
        inspect(tiny_model_path, overrides=["seed=2"])


# ---------------------------------------------------------------- positions


def drawn(inspection: Inspection, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tables that would be drawn."""
    found: dict[str, Any] = {}
    monkeypatch.setattr("nmt.inspect.draw_positions", lambda tables, path: found.update(tables))
    draw_position_table(inspection, Path("unused.png"))
    return found


@pytest.mark.parametrize(("positions", "width"), [("sinusoidal", 24), ("rotary", 6)])
def test_computed_positions_are_drawn_as_the_formula_has_them(
    positions: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = drawn(described(tmp_path, positions=positions), monkeypatch).values()
    assert table.shape == (129, width), "data.max_tokens and <eos>; d_model, or the width of a head"
    position, column = 100, 3
    angle = torch.tensor(position / 10_000 ** (2 / width), dtype=torch.float64)
    assert table[position, column] == pytest.approx(float(angle.cos()), abs=1e-5)


def test_learned_positions_are_a_models_tables_and_a_config_has_none(
    tiny_model: Model, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nmt.model.transformer import Transformer

    settings = tiny_config.model.model_copy(update={"positions": "learned", "max_positions": 200})
    config = tiny_config.replace(model=settings)
    network = Transformer(settings, len(tiny_model.src_vocabulary), len(tiny_model.tgt_vocabulary))
    path = tmp_path / "learned.safetensors"
    save_model(path, Model(None, config, network, tiny_model.src_vocabulary, tiny_model.tgt_vocabulary, {}))
    tables = drawn(inspect(path), monkeypatch)
    assert [table.shape for table in tables.values()] == [(200, 48), (200, 48)]
    for (title, table), side in zip(tables.items(), ("src", "tgt"), strict=True):
        assert {"src": "source", "tgt": "target"}[side] in title
        weight = dict(network.named_parameters())[f"{side}_embedding.positions.table"]
        assert torch.equal(torch.from_numpy(table), weight)

    with pytest.raises(NmtError, match="nothing has learned them yet"):
        draw_position_table(described(tmp_path, positions="learned"), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_the_default_config_is_what_a_run_of_it_would_be() -> None:
    assert inspect("base.yaml").config == load_config("base.yaml")
