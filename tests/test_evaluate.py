"""Scores that anyone can take again: raw references, saved hypotheses, the sacrebleu command's number."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import logging
import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.config import Config
from nmt.data.corpus import read_lines
from nmt.data.dataset import PreparedData
from nmt.data.vocabulary import BOS, EOS, UNK
from nmt.errors import ConfigError, DataError, MachineError, ModelFileError
from nmt.evaluate import Evaluation, evaluate, evaluate_splits, load_system, score_ids
from nmt.inspect import FoundScore, inspect
from nmt.modelfile import Model, save_model
from nmt.prepare import prepare
from nmt.scoring.metrics import bleu, corpus_scores
from nmt.translate import Translator

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def evaluation(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory
) -> Evaluation:
    out = tmp_path_factory.mktemp("evaluation")
    return evaluate(tiny_model_path, prepared=tiny_prepared, device="cpu", out=out)


def numbers_of(evaluation: Evaluation) -> list[dict[str, Any]]:
    """What the evaluation's own command prints, to as many digits as JSON keeps."""
    command = shlex.split(evaluation.command)
    assert command[0] == "sacrebleu"
    arguments = [*command[1:], "-w", "8"]
    answer = subprocess.run(
        [sys.executable, "-m", *command[:1], *arguments], capture_output=True, encoding="utf-8"
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == "", "such as the warning of tokenised periods"
    printed: list[dict[str, Any]] = json.loads(answer.stdout)
    return printed


def assert_taken_by_hand(evaluation: Evaluation) -> None:
    """The command prints the evaluation's names, numbers and signatures."""
    printed = numbers_of(evaluation)
    assert [(score.name, score.signature) for score in evaluation.scores] == [
        (answer["name"], answer["signature"]) for answer in printed
    ]
    for score, answer in zip(evaluation.scores, printed, strict=True):
        assert score.value == pytest.approx(answer["score"], abs=1e-8)


@pytest.fixture(scope="module")
def other_model_path(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_model` with its weights moved a little, in a run folder of its own."""
    network = copy.deepcopy(tiny_model.network)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.05 * weight.std(correction=0) * torch.randn(weight.shape, generator=noise)
    path = tmp_path_factory.mktemp("other") / "best.safetensors"
    save_model(path, dataclasses.replace(tiny_model, network=network))
    return path


def forced_by_hand(models: Sequence[Path], prepared: PreparedData, split: str) -> float:
    """Mean negative log-likelihood by sentence and by token, in float64, without batches."""
    networks = [load_system([path], device="cpu").model.network.double() for path in models]
    ids, total, tokens = prepared.split(split), 0.0, 0
    for row in range(len(ids)):
        src = torch.tensor([[*ids.src[row].tolist(), EOS]])
        tgt = [*ids.tgt[row].tolist(), EOS]
        keep = torch.ones_like(src, dtype=torch.bool)
        with torch.no_grad():
            each = [
                network(src, keep, torch.tensor([[BOS, *tgt[:-1]]])).softmax(-1)[0] for network in networks
            ]
        mean = sum(each) / len(each)
        total -= sum(math.log(float(mean[place, token])) for place, token in enumerate(tgt))
        tokens += len(tgt)
    return total / tokens


# ---------------------------------------------------------------- an honest score


def test_the_sacrebleu_command_gives_the_same_numbers_on_the_saved_files(evaluation: Evaluation) -> None:
    assert_taken_by_hand(evaluation)
    assert [score.name for score in evaluation.scores] == ["BLEU", "chrF2", "TER"]
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
    assert_taken_by_hand(lower)
    assert lower.references.read_bytes() == loud.read_bytes(), "raw, in their own case"
    hypotheses = read_lines(evaluation.hypotheses)
    references = read_lines(evaluation.references)
    assert lower.scores == corpus_scores(hypotheses, references, lowercase=True).scores
    assert bleu(hypotheses, read_lines(loud)).value < lower.score.value


def test_the_same_model_scores_the_same_twice(
    evaluation: Evaluation, tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    again = evaluate(tiny_model_path.parent, prepared=tiny_prepared, split="test", device="cpu", out=tmp_path)
    assert again.scores == evaluation.scores
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
    (later,) = evaluate_splits(
        tiny_model_path, prepared=tiny_prepared, splits=["val"], device="cpu", beam=1, out=tmp_path
    )
    assert (score.value, score.signature) == (later.score.value, later.score.signature)


# ---------------------------------------------------------------- loss and unknown tokens


def test_the_loss_is_that_of_each_token_read_back_by_itself(
    evaluation: Evaluation, tiny_model_path: Path, tiny_prepared: PreparedData
) -> None:
    assert evaluation.loss == pytest.approx(
        forced_by_hand([tiny_model_path], tiny_prepared, "test"), abs=1e-5
    )
    assert evaluation.perplexity == pytest.approx(math.exp(evaluation.loss or 0.0))
    assert evaluation.loss_sentences == 30


def test_an_overlong_pair_is_scored_and_left_out_of_the_loss_which_says_so(
    tiny_model_path: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    texts = {side: read_lines(tiny_folder / f"test.{side}")[:4] for side in ("de", "en")}
    for name, extra in (("plain", ""), ("long", "word " * 300)):
        for side, lines in texts.items():
            added = [extra if side == "en" else lines[0]] if extra else []
            (tmp_path / f"{name}.{side}").write_text(
                "".join(f"{line}\n" for line in [*lines, *added]), "utf-8"
            )
    plain, long = (
        evaluate(
            tiny_model_path,
            source=tmp_path / f"{name}.de",
            reference=tmp_path / f"{name}.en",
            device="cpu",
            out=tmp_path,
        )
        for name in ("plain", "long")
    )
    assert (long.sentences, long.loss_sentences) == (5, 4)
    assert long.loss == pytest.approx(plain.loss, abs=1e-6)
    assert long.score.value < plain.score.value
    assert "without 1 overlong pair" in str(long)
    assert "overlong pair" not in str(plain)


def test_where_every_pair_is_overlong_there_is_no_loss_and_the_report_is_still_json(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.de").write_text("Hund " * 300 + "\n", "utf-8")
    (tmp_path / "long.en").write_text("dog " * 300 + "\n", "utf-8")
    found = evaluate(
        tiny_model_path,
        source=tmp_path / "long.de",
        reference=tmp_path / "long.en",
        device="cpu",
        out=tmp_path,
    )
    assert (found.loss, found.perplexity, found.loss_sentences) == (None, None, 0)
    assert json.loads(found.to_json())["loss"] is None
    assert "loss none" in str(found)


def test_unknown_source_tokens_are_counted(
    tiny_model: Model, tiny_model_path: Path, evaluation: Evaluation, tmp_path: Path
) -> None:
    lines = ["Ein Hund 日本 läuft.", "Zwei Kinder.", ""]
    (tmp_path / "odd.de").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (tmp_path / "odd.en").write_text("A dog.\nTwo children.\nNothing.\n", "utf-8")
    found = evaluate(
        tiny_model_path, source=tmp_path / "odd.de", reference=tmp_path / "odd.en", device="cpu", out=tmp_path
    )
    ids = [i for line in Translator(tiny_model).encode(lines) for i in line]
    assert found.unknown_rate == pytest.approx(ids.count(UNK) / len(ids))
    assert found.unknown_rate > 0 == evaluation.unknown_rate


# ---------------------------------------------------------------- several splits, other searches, ensembles


@pytest.mark.parametrize(
    ("named", "scored"),
    [
        ([], ["test"]),
        (["all"], ["val", "test"]),
        (["test", "val", "test"], ["test", "val"]),
        (["test", "all"], ["test", "val"]),
    ],
)
def test_all_splits_are_scored_in_one_call_and_each_once(
    tiny_model_path: Path,
    tiny_prepared: PreparedData,
    evaluation: Evaluation,
    tmp_path: Path,
    named: list[str],
    scored: list[str],
) -> None:
    found = evaluate_splits(tiny_model_path, prepared=tiny_prepared, splits=named, device="cpu", out=tmp_path)
    assert [each.split for each in found] == scored
    by_name = {each.split: each for each in found}
    assert (by_name["test"].scores, by_name["test"].loss) == (evaluation.scores, evaluation.loss)
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == sorted(scored)


def test_an_unknown_split_among_others_is_refused_before_anything_is_translated(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="nosuch"):
        evaluate_splits(
            tiny_model_path, prepared=tiny_prepared, splits=["val", "nosuch"], device="cpu", out=tmp_path
        )
    assert not list(tmp_path.iterdir())


def test_beam_and_length_penalty_take_the_place_of_the_models_own(
    tiny_model: Model, tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    config = tiny_model.config
    decode = config.decode.model_copy(update={"beam": 3, "length_penalty": 0.5})
    path = tmp_path / "best.safetensors"
    save_model(path, dataclasses.replace(tiny_model, config=config.replace(decode=decode)))
    (own,) = evaluate_splits(path, prepared=tiny_prepared, device="cpu", out=tmp_path / "own")
    (given,) = evaluate_splits(
        tiny_model_path,
        prepared=tiny_prepared,
        device="cpu",
        beam=3,
        length_penalty=0.5,
        out=tmp_path / "given",
    )
    assert own.hypotheses.read_bytes() == given.hypotheses.read_bytes()
    assert (own.scores, own.beam, own.length_penalty) == (given.scores, 3, 0.5)
    assert "beam 3, length penalty 0.5" in str(given)
    with pytest.raises(ConfigError, match=r"decode\.beam"):
        evaluate_splits(tiny_model_path, prepared=tiny_prepared, device="cpu", beam=0, out=tmp_path)
    with pytest.raises(ConfigError, match=r"decode\.length_penalty"):
        evaluate_splits(tiny_model_path, prepared=tiny_prepared, length_penalty=math.nan, out=tmp_path)


def test_an_ensemble_of_one_model_twice_is_that_model(
    evaluation: Evaluation, tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    twice = evaluate([tiny_model_path] * 2, prepared=tiny_prepared, device="cpu", out=tmp_path)
    assert twice.hypotheses.read_bytes() == evaluation.hypotheses.read_bytes()
    assert twice.loss == pytest.approx(evaluation.loss, abs=1e-6)
    assert twice.scores == evaluation.scores


def test_the_loss_of_an_ensemble_is_that_of_the_mean_probabilities(
    tiny_model_path: Path, other_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    paths = [Path(shutil.copy(tiny_model_path, tmp_path)), other_model_path]
    both = evaluate(paths, prepared=tiny_prepared, device="cpu")
    each = [forced_by_hand([path], tiny_prepared, "test") for path in paths]
    assert both.loss == pytest.approx(forced_by_hand(paths, tiny_prepared, "test"), abs=1e-5)
    assert both.loss != pytest.approx(sum(each) / 2, abs=1e-4)
    assert abs(each[0] - each[1]) > 1e-3, "they are two models"
    folder = tmp_path / "evaluation-ensemble"
    assert both.hypotheses == folder / "test.hyp.en"
    report = json.loads((folder / "test.json").read_text("utf-8"))
    assert (report["model"], report["models"]) == (None, [str(path) for path in paths])


def test_models_of_other_vocabularies_are_no_ensemble(
    tiny_config: Config, tiny_model: Model, tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    vocabulary = tiny_config.vocabulary.model_copy(update={"size": 290})
    prepared = prepare(tiny_config.replace(vocabulary=vocabulary), out=tmp_path / "prepared").data
    torch.manual_seed(1)
    src, tgt = prepared.src_vocabulary, prepared.tgt_vocabulary
    network = type(tiny_model.network)(tiny_config.model, len(src), len(tgt))
    other = tmp_path / "other.safetensors"
    save_model(other, Model(None, tiny_config, network, src, tgt, {}))
    with pytest.raises(ModelFileError) as caught:
        evaluate([tiny_model_path, other], prepared=tiny_prepared, device="cpu", out=tmp_path / "out")
    for words in (str(tiny_model_path), str(other), "source vocabulary"):
        assert words in caught.value.message
    data = tiny_config.data.model_copy(update={"tgt_lowercase": True})
    save_model(other, dataclasses.replace(tiny_model, config=tiny_config.replace(data=data)))
    with pytest.raises(ModelFileError, match=r"data\.tgt_lowercase"):
        evaluate([tiny_model_path, other], prepared=tiny_prepared, device="cpu", out=tmp_path / "out")


# ---------------------------------------------------------------- what it leaves and says


def test_inspect_finds_the_score_and_how_wide_the_beam_was(
    tiny_model: Model, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    path = tmp_path / "best.safetensors"
    save_model(path, tiny_model)
    (found,) = evaluate_splits(path, prepared=tiny_prepared, device="cpu", beam=2)
    facts = inspect(path).facts
    assert facts is not None
    (score,) = facts.scores
    assert (score.split, score.value, score.beam) == ("test", found.score.value, 2)
    assert f"BLEU {found.score.value:.2f}, beam 2, nrefs:1" in str(inspect(path))


def test_the_page_holds_every_sentence_and_the_training_curves(
    tiny_model: Model, tiny_prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best.safetensors"
    save_model(path, tiny_model)
    event = {"event": "validation", "step": 7, "loss": 1.25, "bleu": 12.5, "best": True}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(event) + "\n", "utf-8")
    reports: list[tuple[Path, Any]] = []
    monkeypatch.setattr("nmt.evaluate.write_report", lambda path, report: reports.append((path, report)))
    page = tmp_path / "page.html"
    found = evaluate_splits(path, prepared=tiny_prepared, splits=["all"], device="cpu", report=page)
    ((written, report),) = reports
    assert written == page
    assert [split.name for split in report.splits] == ["val", "test"]
    assert (report.title, report.src_lang, report.tgt_lang) == ("tiny", "de", "en")
    assert list(report.events) == [event]
    assert "4 heads of decoder layer 1" in report.attention_of
    split, evaluation = report.splits[1], found[1]
    assert [row.source for row in split.sentences] == tiny_prepared.sources("test")
    assert [row.reference for row in split.sentences] == tiny_prepared.references("test")
    assert [row.hypothesis for row in split.sentences] == read_lines(evaluation.hypotheses)
    assert [(score.name, score.value) for score in split.scores] == [
        (score.name, score.value) for score in evaluation.scores
    ]
    assert sum(group.sentences for group in split.by_length) == 30
    total = sum(row.hypothesis_length for row in split.sentences)
    assert total / sum(row.reference_length for row in split.sentences) == pytest.approx(split.length_ratio)
    translator = Translator(tiny_model)
    for row in split.sentences[:5]:
        alignment = translator.attention(row.source)
        wanted = alignment.weights[-1].mean(0)  # (T,S)
        assert (len(row.attention.target), len(row.attention.source)) == wanted.shape
        assert torch.allclose(torch.tensor(row.attention.weights), wanted, atol=1e-5)


def test_the_page_shows_blank_and_overlong_lines_without_attention(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.de").write_text("Ein Hund läuft.\n\n" + "Hund " * 300 + "\n", "utf-8")
    (tmp_path / "odd.en").write_text("A dog is running.\nNothing.\nDogs.\n", "utf-8")
    reports: list[Any] = []
    monkeypatch.setattr("nmt.evaluate.write_report", lambda path, report: reports.append(report))
    monkeypatch.setattr("nmt.reporting.MAX_MAP_TOKENS", 50)
    evaluate_splits(
        tiny_model_path,
        source=tmp_path / "odd.de",
        reference=tmp_path / "odd.en",
        device="cpu",
        out=tmp_path,
        report=tmp_path / "page.html",
    )
    rows = reports[0].splits[0].sentences
    assert [row.attention is not None for row in rows] == [True, False, False]


def test_the_page_is_written(tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    paths = [tiny_model_path, tiny_model_path]
    evaluate_splits(paths, prepared=tiny_prepared, device="cpu", out=tmp_path, report=page)
    text = page.read_text("utf-8")
    assert text.startswith("<!")
    assert tiny_prepared.sources("test")[0][:10] in text


def test_files_lie_beside_the_model_and_hold_all_that_is_said(
    tiny_model_path: Path, tiny_prepared: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = evaluate(tiny_model_path, prepared=tiny_prepared, split="val", device="cpu")
    folder = tiny_model_path.parent / "evaluation"
    assert sorted(path.name for path in folder.iterdir()) == ["val.hyp.en", "val.json", "val.ref.en"]
    report = json.loads((folder / "val.json").read_text(encoding="utf-8"))
    assert report == json.loads(evaluation.to_json())
    assert report["score"] == report["scores"][0] == dataclasses.asdict(evaluation.score)
    assert report["score"]["name"] == "BLEU"
    assert report["perplexity"] == pytest.approx(math.exp(report["loss"]))
    assert report["sentences_per_s"] == pytest.approx(20 / report["elapsed_s"], abs=0.06)
    assert report["sentences"] == 20
    assert Path(report["model"]) == tiny_model_path
    for score in evaluation.scores:
        assert f"val: {score.name} = {score.value:.2f} ({score.signature}), 95 %: " in str(evaluation)
    for words in (str(evaluation.hypotheses), f"loss {evaluation.loss:.4f}", "perplexity", "length ratio"):
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
    assert found.hypotheses.name == "my.own.de.hyp.en"


@pytest.mark.parametrize(
    ("name", "saved"), [("test.de", "test.de"), ("test.fr", "test.fr"), ("test", "test.de")]
)
def test_files_of_ones_own_do_not_replace_what_was_found_for_a_split_of_their_name(
    tiny_model_path: Path,
    tiny_folder: Path,
    tiny_prepared: PreparedData,
    tmp_path: Path,
    name: str,
    saved: str,
) -> None:
    out = tmp_path / "out"
    split = evaluate(tiny_model_path, prepared=tiny_prepared, device="cpu", out=out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    source = tmp_path / name
    source.write_bytes((tiny_folder / "test.de").read_bytes())
    reference = tiny_folder / "test.en"
    own = evaluate(tiny_model_path, source=source, reference=reference, device="cpu", out=out)
    assert (split.split, own.split) == ("test", saved)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(out.iterdir())) == 2 * len(before)


def test_files_of_other_languages_than_the_models_are_told_of_once_each(
    tiny_model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, reference = tmp_path / "text.fr", tmp_path / "text.de.gz"
    source.write_text("Un chien.\n", "utf-8")
    reference.write_bytes(gzip.compress(b"A dog.\n"))
    models = [tiny_model_path, tiny_model_path]
    evaluate(models, source=source, reference=reference, device="cpu", out=tmp_path / "out")
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{source} ends in .fr, but the model reads de",
        f"{reference} ends in .de, but the model writes en",
    ]


def test_text_without_a_line_is_refused_with_its_name(
    tiny_model_path: Path, tmp_path: Path, tiny_prepared: PreparedData
) -> None:
    empty = tmp_path / "empty.de"
    empty.write_text("")
    with pytest.raises(DataError, match=r"empty\.de has no lines: there is nothing to score") as caught:
        evaluate(tiny_model_path, source=empty, reference=empty, device="cpu", out=tmp_path / "out")
    assert caught.value.hint


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
    assert_taken_by_hand(evaluation)


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
    with pytest.raises(DataError, match="de to en") as caught:
        evaluate(tiny_model_path, prepared=other, device="cpu", out=tmp_path / "out")
    assert "--data DIR" in (caught.value.hint or "")


@pytest.mark.parametrize("split", ["test_2018", "train"])
def test_a_split_that_cannot_be_scored_is_an_error_that_names_those_that_can(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path, split: str
) -> None:
    with pytest.raises(DataError, match=r"val, test$"):
        evaluate(tiny_model_path, prepared=tiny_prepared, split=split, device="cpu", out=tmp_path)


@pytest.mark.parametrize(("split", "hint"), [("tset", "did you mean test? name one"), ("train", "name one")])
def test_a_mistyped_split_is_told_the_nearest(
    tiny_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path, split: str, hint: str
) -> None:
    with pytest.raises(DataError) as caught:
        evaluate(tiny_model_path, prepared=tiny_prepared, split=split, device="cpu", out=tmp_path)
    assert (caught.value.hint or "").startswith(hint)


def test_scores_of_another_text_with_the_same_name_are_replaced_aloud(
    tiny_model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, reference = tmp_path / "news.de", tmp_path / "news.en"
    source.write_text("Ein Hund.\n")
    for text, is_told in (("A dog.\n", False), ("A dog.\n", False), ("A cat.\n", True)):
        reference.write_text(text)
        caplog.clear()
        evaluate(tiny_model_path, source=source, reference=reference, device="cpu", out=tmp_path / "out")
        assert ("for another text so named" in caplog.text) == is_told


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


# ---------------------------------------------------------------- the model that comes with nmt


def test_what_is_saved_of_the_model_that_comes_with_nmt_lies_under_the_current_folder(
    tiny_model: Model, tiny_prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "package" / "multi30k-de-en.safetensors"
    save_model(shipped, tiny_model)
    monkeypatch.setattr("nmt.modelfile.shipped_model", lambda: shipped)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    name = Path("multi30k-de-en")
    found = evaluate(name, prepared=tiny_prepared, device="cpu")
    assert found.hypotheses == Path("runs/multi30k-de-en/evaluation/test.hyp.en")
    assert len(read_lines(found.hypotheses)) == 30
    (together,) = evaluate_splits([name, name], prepared=tiny_prepared, device="cpu", beam=1)
    assert together.hypotheses == Path("runs/multi30k-de-en/evaluation-ensemble/test.hyp.en")
    elsewhere = evaluate(name, prepared=tiny_prepared, device="cpu", out=tmp_path / "out")
    assert elsewhere.hypotheses == tmp_path / "out" / "test.hyp.en"
    assert list(shipped.parent.iterdir()) == [shipped]
    assert [(score.split, score.value) for score in scores_of(name)] == [("test", found.score.value)]


def scores_of(model: Path) -> tuple[FoundScore, ...]:
    """The scores that `nmt inspect` finds for a model."""
    facts = inspect(model).facts
    assert facts is not None
    return facts.scores
