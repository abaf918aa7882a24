"""The model that comes with nmt: it works offline, its card agrees with it, and it can be built anew."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from nmt.config import Config, load_config
from nmt.data.corpus import read_lines
from nmt.modelfile import SHIPPED, load_model, read_header, shipped_model
from nmt.runtime import StopSignals
from nmt.train import train
from nmt.translate import Translator

PRETRAINED = shipped_model().parent
GERMAN = "Eine Gruppe von Menschen steht vor einem Iglu."
CARD = """# A card

<!-- scores -->
nothing yet
<!-- end -->

The end.
"""


@pytest.fixture
def builder(script: Callable[[str], Any]) -> Any:
    """scripts/build_pretrained.py."""
    return script("build_pretrained")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a card that is to be filled in."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "MODEL_CARD.md").write_text(CARD, "utf-8")
    return folder


def block(card: str) -> str:
    """What stands between the card's markers."""
    return card.partition("<!-- scores -->\n")[2].partition("<!-- end -->")[0]


# --- what is shipped --------------------------------------------------------------------------------------


def test_it_is_there_with_card_and_notice_and_is_no_larger_than_20_megabytes() -> None:
    assert shipped_model().stat().st_size <= 20_000_000
    for name in ("MODEL_CARD.md", "NOTICE"):
        assert "non-commercial" in (PRETRAINED / name).read_text("utf-8")


def test_it_translates_german_into_english_without_a_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NMT_MODEL", raising=False)
    monkeypatch.setattr("socket.socket", None)
    monkeypatch.chdir(tmp_path)
    (translation,) = Translator.load(device="cpu").translate([GERMAN])
    assert "people" in translation.text
    assert list(tmp_path.iterdir()) == []


def test_its_file_names_the_text_the_terms_and_the_scores_and_no_place_of_whoever_made_it() -> None:
    header = read_header(shipped_model())
    data, provenance = header["config"]["data"], header["provenance"]
    assert (data["source"], data["src_lang"], data["tgt_lang"]) == ("multi30k", "de", "en")
    assert data["mirror"] is None
    assert "non-commercial" in provenance["terms"]
    assert provenance["precision"] == "float16"
    assert {score["beam"] for score in provenance["scores"]} == {1, 5}
    assert "/home" not in json.dumps(header)
    assert "/tmp" not in json.dumps(header)


def test_its_card_has_the_scores_of_its_file(builder: Any) -> None:
    scores = read_header(shipped_model())["provenance"]["scores"]
    assert block((PRETRAINED / "MODEL_CARD.md").read_text("utf-8")) == builder.table(scores)


# --- building it ------------------------------------------------------------------------------------------


def some_scores() -> list[dict[str, Any]]:
    rows = [
        ("val", 1, "BLEU", 40.0),
        ("val", 1, "TER", 41.25),
        ("val", 5, "BLEU", 42.5),
        ("test", 1, "BLEU", 9.0),
    ]
    return [
        {"split": split, "beam": beam, "name": name, "value": value, "signature": f"of {name}"}
        for split, beam, name, value in rows
    ]


def test_the_table_has_a_line_for_each_split_and_search(builder: Any) -> None:
    assert builder.table(some_scores()).splitlines() == [
        "| split | search | BLEU | TER |",
        "|---|---|---|---|",
        "| val | greedy | 40.00 | 41.25 |",
        "| val | beam 5 | 42.50 |  |",
        "| test | greedy | 9.00 |  |",
        "",
        "Signatures: BLEU `of BLEU`, TER `of TER`.",
    ]


def test_a_card_is_filled_in_again_and_again_and_nothing_else_in_it_changes(builder: Any) -> None:
    once = builder.filled(CARD, some_scores())
    assert block(once) == builder.table(some_scores())
    assert builder.filled(once, some_scores()) == once
    assert once.replace(block(once), "nothing yet\n") == CARD


@pytest.mark.parametrize("card", ["# A card\n", CARD + CARD])
def test_a_card_without_one_place_for_scores_is_refused_before_any_work(
    card: str,
    builder: Any,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    tiny_model_path: Path,
    tmp_path: Path,
) -> None:
    (out / "MODEL_CARD.md").write_text(card, "utf-8")
    model = shutil.copy(tiny_model_path, tmp_path / "best.safetensors")
    with pytest.raises(SystemExit, match=r"^2$"):
        builder.main(["--run", str(model), "--out", str(out)])
    assert "one block for the scores" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors", "out"]
    assert (out / "MODEL_CARD.md").read_text("utf-8") == card


def test_a_run_that_is_trained_becomes_the_shipped_file_and_its_card(
    builder: Any, out: Path, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    run.mkdir()
    shutil.copy(tiny_model_path, run)
    builder.main(["--run", "run", "--out", str(out), "--split", "val", "test"])
    built = load_model(out / f"{SHIPPED}.safetensors")
    scores = built.provenance["scores"]
    places = [(score["split"], score["beam"], score["name"]) for score in scores]
    assert places == [
        (split, beam, name)
        for split in ("val", "test")
        for beam in (1, 5)
        for name in ("BLEU", "chrF2", "TER")
    ]
    saved = json.loads((run / "evaluation" / "float16-beam5" / "test.json").read_text("utf-8"))
    assert scores[9]["value"] == pytest.approx(saved["score"]["value"], abs=0.005)
    assert scores[9]["signature"] == saved["score"]["signature"]
    assert block((out / "MODEL_CARD.md").read_text("utf-8")) == builder.table(scores)
    assert built.config.name == SHIPPED
    assert {path.name for path in run.iterdir()} == {"best.safetensors", "evaluation"}
    tensors = [path.stat().st_size for path in (run / "best.safetensors", out / f"{SHIPPED}.safetensors")]
    assert tensors[1] < 0.7 * tensors[0], "weights of half the size"


def test_the_shipped_model_can_be_scored_again_and_the_package_holds_no_draft_meanwhile(
    builder: Any, out: Path, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny_model_path, out / f"{SHIPPED}.safetensors")
    monkeypatch.setattr("nmt.modelfile.shipped_model", lambda: out / f"{SHIPPED}.safetensors")
    builder.main(["--run", SHIPPED, "--out", str(out), "--split", "val"])
    assert {path.name for path in out.iterdir()} == {f"{SHIPPED}.safetensors", "MODEL_CARD.md"}
    assert [path.name for path in Path("runs", SHIPPED).iterdir()] == ["evaluation"]


class AskedToStop(StopSignals):
    """A signal that comes as soon as training begins."""

    def __enter__(self) -> Self:
        entered = super().__enter__()
        signal.raise_signal(signal.SIGTERM)
        return entered


@pytest.mark.slow
def test_extra_pairs_are_made_first_by_other_models_and_once(
    builder: Any, out: Path, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tiny_config.data
    stages = {
        "first": (1, data),
        "second": (2, data.model_copy(update={"extra": "made/pairs"})),
        "back": (1, data.model_copy(update={"src_lang": data.tgt_lang, "tgt_lang": data.src_lang})),
    }
    for name, (epochs, text) in stages.items():
        settings = tiny_config.train.model_copy(update={"epochs": epochs, "warmup_steps": 2})
        config = tiny_config.replace(name=name, data=text, train=settings)
        Path(f"{name}.yaml").write_text(config.to_yaml(), "utf-8")
    command = ["--config", "first.yaml", "second.yaml", "--reverse", "back.yaml", "--seed", "4"]
    command += ["--out", str(out), "--split", "val"]
    builder.main(command)

    german, english = (read_lines(Path(f"made/pairs.{lang}")) for lang in ("de", "en"))
    own = [read_lines(Path(data.source, f"train.{lang}")) for lang in ("de", "en")]
    assert len(german) == len(english) == 2 * len(own[0])
    assert german[: len(own[0])] == own[0]
    assert english[len(own[0]) :] == own[1]
    assert read_header(out / f"{SHIPPED}.safetensors")["provenance"]["data"]["extra"] == "pairs"
    teacher = load_config("runs/teacher/config.yaml")
    assert teacher.data.extra is None
    assert (teacher.seed, load_config("runs/second/config.yaml").seed) == (1, 4)
    before = {
        path: path.stat().st_mtime_ns for path in (*Path("made").iterdir(), *Path("runs/teacher").iterdir())
    }
    builder.main(command)
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.slow
def test_one_command_trains_and_builds_and_goes_on_where_it_was_stopped(
    builder: Any, out: Path, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stages = []
    for name, epochs in (("first", 2), ("second", 4)):
        settings = tiny_config.train.model_copy(update={"epochs": epochs, "warmup_steps": 2})
        Path(f"{name}.yaml").write_text(tiny_config.replace(name=name, train=settings).to_yaml(), "utf-8")
        stages.append(f"{name}.yaml")
    command = ["--config", *stages, "--seed", "1", "--out", str(out), "--split", "val"]

    with monkeypatch.context() as patched:
        patched.setattr("nmt.training.trainer.StopSignals", AskedToStop)
        stopped_in: list[str] = []
        while stopped_in.count("second") < 2:  # after each step
            with pytest.raises(SystemExit) as stopped:
                builder.main(command)
            assert stopped.value.code == 143
            stopped_in.append(load_config("runs/second/config.yaml").name)
    assert stopped_in.count("first") > 1
    assert not (out / f"{SHIPPED}.safetensors").exists()

    builder.main(command)
    scores = read_header(out / f"{SHIPPED}.safetensors")["provenance"]["scores"]
    assert block((out / "MODEL_CARD.md").read_text("utf-8")) == builder.table(scores)
    train(load_config("first.yaml"), run_dir=Path("whole"))
    train(load_config("second.yaml"), run_dir=Path("whole"), resume=True)
    whole, stepwise = (load_model(Path(run, "best.safetensors")) for run in ("whole", "runs/second"))
    torch.testing.assert_close(stepwise.network.state_dict(), whole.network.state_dict(), rtol=0, atol=0)
    before = (Path("runs/second/best.safetensors")).read_bytes()
    builder.main(command)
    assert Path("runs/second/best.safetensors").read_bytes() == before, "it is trained once"
