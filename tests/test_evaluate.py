"""Scores that anyone can take again: raw references, saved hypotheses, the sacrebleu command's number."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.config import Config
from nmt.data.corpus import read_lines
from nmt.data.dataset import PreparedData
from nmt.errors import DataError, MachineError
from nmt.evaluate import Evaluation, evaluate, score_ids
from nmt.modelfile import Model, save_model
from nmt.prepare import prepare
from nmt.scoring.metrics import bleu
from nmt.translate import Translator

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def evaluation(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory
) -> Evaluation:
    out = tmp_path_factory.mktemp("evaluation")
    return evaluate(tiny_model_path, prepared=tiny_prepared, device="cpu", out=out)


def number_of(evaluation: Evaluation) -> str:
    """What the evaluation's own command prints, to as many digits as JSON keeps."""
    command = shlex.split(evaluation.command)
    assert command[0] == "sacrebleu"
    arguments = [*command[1:], "-b", "-w", "8"]
    answer = subprocess.run(
        [sys.executable, "-m", *command[:1], *arguments], capture_output=True, encoding="utf-8"
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "", "such as the warning of tokenised periods"
    return answer.stdout.strip()


# ---------------------------------------------------------------- an honest score


def test_the_sacrebleu_command_gives_the_same_number_on_the_saved_files(evaluation: Evaluation) -> None:
    assert number_of(evaluation) == f"{evaluation.score.value:.8f}"
    assert 0 < evaluation.score.value < 100
    assert "|case:mixed|" in evaluation.score.signature


def test_references_are_the_raw_lines_and_no_line_is_dropped(
    evaluation: Evaluation, tiny_folder: Path
) -> None:
    assert evaluation.references.read_bytes() == (tiny_folder / "test.en").read_bytes()
    assert len(read_lines(evaluation.hypotheses)) == evaluation.sentences == 30
    assert (evaluation.hypotheses.name, evaluation.references.name) == ("test.hyp.en", "test.ref.en")


def test_hypotheses_are_what_translate_says(
    evaluation: Evaluation, tiny_model: Model, tiny_prepared: PreparedData
) -> None:
    found = Translator(tiny_model).translate(tiny_prepared.sources("test"))
    assert read_lines(evaluation.hypotheses) == [translation.text for translation in found]


def test_a_lower_casing_model_is_scored_on_lower_case_and_the_signature_says_so(
    evaluation: Evaluation, tiny_model: Model, tiny_folder: Path, tmp_path: Path
) -> None:
    data = tiny_model.config.data.model_copy(update={"tgt_lowercase": True})
    path = tmp_path / "last.safetensors"
    save_model(path, dataclasses.replace(tiny_model, config=tiny_model.config.replace(data=data)))
    loud = tmp_path / "loud.en"
    loud.write_bytes((tiny_folder / "test.en").read_bytes().upper())
    lower = evaluate(path, source=tiny_folder / "test.de", reference=loud, device="cpu")
    assert "|case:lc|" in lower.score.signature
    assert "case:lc" in str(lower)
    assert number_of(lower) == f"{lower.score.value:.8f}"
    assert lower.references.read_bytes() == loud.read_bytes(), "raw, in their own case"
    hypotheses = read_lines(evaluation.hypotheses)
    assert lower.score == bleu(hypotheses, read_lines(evaluation.references), lowercase=True)
    assert bleu(hypotheses, read_lines(loud)).value < lower.score.value


def test_the_same_model_scores_the_same_twice(
    evaluation: Evaluation, tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    again = evaluate(tiny_model_path.parent, prepared=tiny_prepared, split="test", device="cpu", out=tmp_path)
    assert again.score == evaluation.score
    assert again.hypotheses.read_bytes() == evaluation.hypotheses.read_bytes()


def test_a_validation_while_training_gives_the_number_that_evaluate_gives(
    tiny_model: Model, tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    tiny_model.network.train()
    try:
        score, _ = score_ids(
            tiny_model.network,
            tiny_prepared.split("val").src,
            tiny_prepared.references("val"),
            tiny_model.tgt_vocabulary,
            tiny_model.config,
        )
        assert tiny_model.network.training, "training goes on with dropout"
    finally:
        tiny_model.network.eval()
    later = evaluate(tiny_model_path, prepared=tiny_prepared, split="val", device="cpu", out=tmp_path)
    assert score == later.score


# ---------------------------------------------------------------- what it leaves and says


def test_files_lie_beside_the_model_and_hold_all_that_is_said(
    tiny_model_path: Path, tiny_prepared: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = evaluate(tiny_model_path, prepared=tiny_prepared, split="val", device="cpu")
    folder = tiny_model_path.parent / "evaluation"
    assert sorted(path.name for path in folder.iterdir()) == ["val.hyp.en", "val.json", "val.ref.en"]
    report = json.loads((folder / "val.json").read_text(encoding="utf-8"))
    assert report == json.loads(evaluation.to_json())
    assert report["score"] == {
        "name": "BLEU",
        "value": evaluation.score.value,
        "signature": evaluation.score.signature,
    }
    assert report["sentences"] == 20
    assert Path(report["model"]) == tiny_model_path
    for words in (f"{evaluation.score.value:.2f}", evaluation.score.signature, str(evaluation.hypotheses)):
        assert words in str(evaluation)
    assert evaluation.command in str(evaluation)
    written = capsys.readouterr()
    assert written.out == ""
    assert "\r" not in written.err


def test_prepared_ids_are_scored_without_spacy_and_torchtext(
    tiny_model_path: Path, tiny_prepared: PreparedData, evaluation: Evaluation, tmp_path: Path
) -> None:
    code = f"""
import sys
from pathlib import Path
from nmt.data.dataset import open_prepared
from nmt.evaluate import evaluate
sys.modules["spacy"] = sys.modules["torchtext"] = None  # as where they are not installed
prepared = open_prepared(Path({str(tiny_prepared.folder)!r}))
out = Path({str(tmp_path)!r})
print(evaluate(Path({str(tiny_model_path)!r}), prepared=prepared, device="cpu", out=out).score.value)
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert answer.returncode == 0, answer.stderr
    assert float(answer.stdout) == evaluation.score.value


def test_a_folder_that_cannot_be_written_is_an_error_of_the_machine(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="could not be written"):
        evaluate(tiny_model_path, prepared=tiny_prepared, device="cpu", out=tmp_path / "file" / "folder")


# ---------------------------------------------------------------- other data


def test_two_files_score_like_the_prepared_split(
    evaluation: Evaluation, tiny_model_path: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "my.own.de.gz"
    source.write_bytes(gzip.compress((tiny_folder / "test.de").read_bytes()))
    found = evaluate(
        tiny_model_path, source=source, reference=tiny_folder / "test.en", device="cpu", out=tmp_path / "out"
    )
    assert found.score == evaluation.score
    assert found.hypotheses.read_bytes() == evaluation.hypotheses.read_bytes()
    assert found.hypotheses.name == "my.own.hyp.en"


def test_a_reference_one_line_short_is_an_error_with_both_names_and_counts(
    tiny_model_path: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.en"
    short.write_bytes(b"".join((tiny_folder / "test.en").read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError) as caught:
        evaluate(
            tiny_model_path,
            source=tiny_folder / "test.de",
            reference=short,
            device="cpu",
            out=tmp_path / "out",
        )
    for word in ("test.de", "short.en", "30", "29"):
        assert word in caught.value.message
    assert not (tmp_path / "out").exists()


def test_blank_and_overlong_lines_keep_their_places(
    tiny_model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "odd.de").write_text(
        "Ein Hund läuft.\n\n" + "Hund " * 300 + "\nEine Frau\u2028lacht.\n", "utf-8"
    )
    (tmp_path / "odd.en").write_text("A dog is running.\nNothing.\nDogs.\nA woman\u2028laughs.\n", "utf-8")
    with caplog.at_level(logging.WARNING, logger="nmt"):
        evaluation = evaluate(
            tiny_model_path, source=tmp_path / "odd.de", reference=tmp_path / "odd.en", device="cpu"
        )
    hypotheses = read_lines(evaluation.hypotheses)
    assert [bool(line) for line in hypotheses] == [True, False, True, True]
    assert read_lines(evaluation.references)[3] == "A woman\u2028laughs."
    assert (evaluation.sentences, evaluation.cut_sources) == (4, 1)
    assert "line 3" in caplog.text
    assert number_of(evaluation) == f"{evaluation.score.value:.8f}"


def test_data_prepared_with_another_vocabulary_is_tokenised_again(
    tiny_config: Config,
    tiny_model_path: Path,
    evaluation: Evaluation,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vocabulary = tiny_config.vocabulary.model_copy(update={"kind": "word"})
    other = prepare(tiny_config.replace(vocabulary=vocabulary), out=tmp_path / "word").data
    with caplog.at_level(logging.INFO, logger="nmt"):
        found = evaluate(tiny_model_path, prepared=other, device="cpu", out=tmp_path / "out")
    assert "again" in caplog.text
    assert found.hypotheses.read_bytes() == evaluation.hypotheses.read_bytes()


def test_data_of_another_direction_is_refused(
    tiny_config: Config, tiny_model_path: Path, tmp_path: Path
) -> None:
    data = tiny_config.data.model_copy(update={"src_lang": "en", "tgt_lang": "de"})
    other = prepare(tiny_config.replace(data=data), out=tmp_path / "reversed").data
    with pytest.raises(DataError, match="de to en"):
        evaluate(tiny_model_path, prepared=other, device="cpu", out=tmp_path / "out")


@pytest.mark.parametrize("split", ["test_2018", "train"])
def test_a_split_that_cannot_be_scored_is_an_error_that_names_those_that_can(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path, split: str
) -> None:
    with pytest.raises(DataError, match=r"val, test$"):
        evaluate(tiny_model_path, prepared=tiny_prepared, split=split, device="cpu", out=tmp_path)


def test_one_file_alone_or_files_beside_a_split_are_refused(tiny_model_path: Path, tiny_folder: Path) -> None:
    source, reference = tiny_folder / "test.de", tiny_folder / "test.en"
    with pytest.raises(DataError, match="together"):
        evaluate(tiny_model_path, source=source)
    with pytest.raises(DataError, match="either"):
        evaluate(tiny_model_path, source=source, reference=reference, split="test")


def test_without_prepared_data_the_folder_of_the_models_config_is_taken(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        evaluate(tiny_model_path, device="cpu")
    assert "nmt prepare" in (caught.value.hint or "")
