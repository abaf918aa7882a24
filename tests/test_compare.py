"""Which of two systems is better: wins by a hand-made table, models and files alike, faults by name."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from nmt.compare import Comparison, Wins, compare, is_model
from nmt.data.corpus import read_lines
from nmt.data.dataset import PreparedData
from nmt.errors import DataError, ModelFileError
from nmt.evaluate import evaluate
from nmt.modelfile import Model, save_model
from nmt.scoring.metrics import bleu, corpus_scores, paired_scores, score_tokens, sentence_chrf

REFERENCES = (
    "A dog runs.",
    "Two men stand in front of a big house.",
    "A girl waves.",
    "A dog sleeps in front of a house, and a man in a red coat looks at it.",
    "",
)
A = ("A dog runs.", "Two men stand in a house.", "Girl.", "A dog sleeps and a man looks.", "")
B = ("A cat runs.", "Two men stand in front of a house.", "A girl.", "A dog sleeps and a man looks.", "")


def written(folder: Path, **texts: tuple[str, ...] | list[str]) -> list[Path]:
    """Each text as a file of that name."""
    paths = [folder / name for name in texts]
    for path, lines in zip(paths, texts.values(), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return written(tmp_path_factory.mktemp("files"), a=A, b=B, reference=REFERENCES)


@pytest.fixture(scope="module")
def comparison(files: list[Path]) -> Comparison:
    a, b, reference = files
    return compare(a, b, reference=reference)


@pytest.fixture(scope="module")
def other_model_path(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_model` with its weights moved a little, in a run folder of its own."""
    network = copy.deepcopy(tiny_model.network)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * weight.std(correction=0) * torch.randn(weight.shape, generator=noise)
    path = tmp_path_factory.mktemp("other") / "best.safetensors"
    save_model(path, dataclasses.replace(tiny_model, network=network))
    return path


def table(groups: tuple[Wins, ...]) -> list[tuple[str, int, int, int, int]]:
    return [(each.label, each.sentences, each.a_better, each.b_better, each.equal) for each in groups]


# ---------------------------------------------------------------- two files


def test_wins_are_those_of_a_hand_made_table(comparison: Comparison) -> None:
    assert (comparison.sentences, comparison.differing) == (5, 3)
    assert table((comparison.overall,)) == [("all", 5, 1, 2, 2)]
    # in tokens, signs counted: 4, 10, 4, 20, 0
    assert table(comparison.by_length) == [
        ("0", 1, 0, 0, 1),
        ("1 to 5", 2, 1, 1, 0),
        ("6 to 10", 1, 0, 1, 0),
        ("16 to 20", 1, 0, 0, 1),
    ]
    # the rarest tokens: "runs" once, "Two" once, "girl" once, "sleeps" once; none at all in the blank line
    assert comparison.counted_in == "the references"
    assert table(comparison.by_rarest_token) == [("0", 1, 0, 0, 1), ("1", 4, 1, 2, 1)]


def test_scores_are_those_of_each_system_alone(comparison: Comparison) -> None:
    assert [pair.a for pair in comparison.scores] == list(corpus_scores(A, REFERENCES).scores)
    assert [pair.b.value for pair in comparison.scores] == [
        score.value for score in corpus_scores(B, REFERENCES).scores
    ]
    assert comparison.overall.a_bleu == bleu(A, REFERENCES).value
    long = comparison.by_length[2]
    assert (long.a_bleu, long.b_bleu) == (
        bleu(A[1:2], REFERENCES[1:2]).value,
        bleu(B[1:2], REFERENCES[1:2]).value,
    )


def test_the_sentences_that_differ_most_come_first_and_equal_ones_not_at_all(comparison: Comparison) -> None:
    scores = list(zip(sentence_chrf(A, REFERENCES), sentence_chrf(B, REFERENCES), strict=True))
    apart = sorted(
        (row for row in range(5) if scores[row][0] != scores[row][1]),
        key=lambda row: -abs(scores[row][0] - scores[row][1]),
    )
    assert [each.line for each in comparison.most_different] == [row + 1 for row in apart]
    for each in comparison.most_different:
        row = each.line - 1
        assert (each.reference, each.a, each.b) == (REFERENCES[row], A[row], B[row])
        assert (each.a_chrf, each.b_chrf) == scores[row]
        assert each.source is None


def test_no_more_than_twenty_sentences_are_shown(tmp_path: Path) -> None:
    a, b, reference = written(tmp_path, a=["A dog."] * 30, b=["A cat."] * 30, reference=["A dog runs."] * 30)
    found = compare(a, b, reference=reference)
    assert [each.line for each in found.most_different] == list(range(1, 21))


def test_text_and_json_say_the_same(comparison: Comparison, files: list[Path]) -> None:
    values = json.loads(comparison.to_json())
    assert values == json.loads(json.dumps(dataclasses.asdict(comparison), default=str))
    assert (values["a"], values["b"]) == (str(files[0]), str(files[1]))
    text = str(comparison)
    for pair in comparison.scores:
        assert pair.a.signature in text
        assert f"{pair.b.value - pair.a.value:+.2f}" in text
    for words in ("A better in 1, B better in 2, equal in 2", "TER", "lower is better", "line 3", "A girl."):
        assert words in text
    assert not any(line != line.rstrip() for line in text.splitlines() if "95 %" in line)


def test_a_system_does_not_differ_from_itself(files: list[Path]) -> None:
    a, _, reference = files
    found = compare(a, a, reference=reference)
    assert (found.differing, found.overall.equal, found.most_different) == (0, 5, ())
    assert {(pair.bootstrap_p, pair.randomisation_p) for pair in found.scores} == {(1.0, 1.0)}
    assert "0 of them translated differently" in str(found)


def test_exchanging_the_systems_exchanges_their_wins(comparison: Comparison, files: list[Path]) -> None:
    a, b, reference = files
    found = compare(b, a, reference=reference)
    assert (found.overall.a_better, found.overall.b_better) == (2, 1)
    for there, back in zip(comparison.scores, found.scores, strict=True):
        assert (there.a, there.b.value) == (back.b, back.a.value)
        assert there.bootstrap_p == back.bootstrap_p


def test_lower_case_is_scored_where_it_is_asked_for(files: list[Path], tmp_path: Path) -> None:
    a, b, reference = files
    (loud,) = written(tmp_path, loud=[line.upper() for line in A])
    found = compare(loud, b, reference=reference, lowercase=True)
    assert found.scores[0].a.value == bleu(A, REFERENCES, lowercase=True).value
    assert "case:lc" in found.scores[0].a.signature
    assert "case:mixed" in compare(a, b, reference=reference).scores[0].a.signature


def test_files_of_different_counts_are_an_error_with_both_names_and_counts(
    files: list[Path], tmp_path: Path
) -> None:
    a, _, reference = files
    (short,) = written(tmp_path, short=B[:-1])
    for systems in ((a, short), (short, a)):
        with pytest.raises(DataError) as caught:
            compare(*systems, reference=reference)
        for words in (f"{short} has 4 lines", f"{reference} has 5"):
            assert words in caught.value.message
    with pytest.raises(DataError, match=r"short has 4 lines, but .*reference has 5"):
        compare(a, a, source=short, reference=reference)


def test_what_cannot_be_compared_is_refused(files: list[Path], tiny_model_path: Path) -> None:
    a, b, reference = files
    with pytest.raises(DataError, match="need references"):
        compare(a, b)
    with pytest.raises(DataError, match="either a split or files"):
        compare(a, b, split="test", reference=reference)
    with pytest.raises(DataError, match="a source needs its reference"):
        compare(a, b, source=reference)
    with pytest.raises(DataError, match="a model needs a source"):
        compare(a, tiny_model_path, reference=reference)
    (empty,) = written(a.parent, empty=())
    with pytest.raises(DataError, match="empty has no lines: there is nothing to score"):
        compare(empty, empty, reference=empty)
    with pytest.raises(DataError, match="does not exist"):
        compare(a, a.with_name("nowhere"), reference=reference)
    with pytest.raises(ModelFileError, match="holds no model"):
        compare(a, a.parent, reference=reference, source=reference)


# ---------------------------------------------------------------- models


def test_a_model_is_known_by_what_it_holds(files: list[Path], tiny_model_path: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.bin"
    renamed.write_bytes(tiny_model_path.read_bytes())
    assert is_model(tiny_model_path)
    assert is_model(tiny_model_path.parent)
    assert is_model(renamed)
    assert not is_model(files[0])
    assert not is_model(tmp_path / "nowhere")


def test_the_name_of_the_model_that_comes_with_nmt_is_a_model_unless_a_file_has_it(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_model(Path("multi30k-de-en"))
    Path("multi30k-de-en").write_bytes(files[0].read_bytes())
    assert not is_model(Path("multi30k-de-en"))


def test_two_models_compare_like_the_translations_that_evaluate_saves(
    tiny_model_path: Path, other_model_path: Path, tiny_prepared: PreparedData, tmp_path: Path
) -> None:
    saved = [
        evaluate(path, prepared=tiny_prepared, device="cpu", out=tmp_path / path.parent.name)
        for path in (tiny_model_path, other_model_path)
    ]
    models = compare(tiny_model_path, other_model_path.parent, prepared=tiny_prepared, device="cpu")
    texts = compare(saved[0].hypotheses, saved[1].hypotheses, prepared=tiny_prepared, split="test")
    assert models.differing > 0
    assert dataclasses.replace(texts, a=models.a, b=models.b) == models
    assert [pair.a for pair in models.scores] == list(saved[0].scores)
    assert models.most_different[0].source in tiny_prepared.sources("test")
    mixed = compare(saved[0].hypotheses, other_model_path, prepared=tiny_prepared, device="cpu")
    assert mixed.scores == models.scores
    lines = [read_lines(each.hypotheses) for each in saved]
    assert models.scores == paired_scores(*lines, tiny_prepared.references("test"))


def test_two_files_are_translated_where_they_are_given(
    tiny_model_path: Path, other_model_path: Path, tiny_prepared: PreparedData, tiny_folder: Path
) -> None:
    split = compare(tiny_model_path, other_model_path, prepared=tiny_prepared, device="cpu")
    given = compare(
        tiny_model_path,
        other_model_path,
        source=tiny_folder / "test.de",
        reference=tiny_folder / "test.en",
        device="cpu",
    )
    assert given.scores == split.scores
    assert given.counted_in == "the references", "the folder that the config names is not here"


def test_files_of_another_language_are_told_of_once_for_two_models(
    tiny_model_path: Path, other_model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, reference = tmp_path / "text.fr", tmp_path / "text.en"
    source.write_text("Un chien.\n", "utf-8")
    reference.write_text("A dog.\n", "utf-8")
    compare(tiny_model_path, other_model_path, source=source, reference=reference, device="cpu")
    assert caplog.text.count("ends in .fr, but the model reads de") == 1


def test_rare_tokens_are_counted_in_the_training_text(
    tiny_prepared: PreparedData, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = tiny_prepared.references("test")
    (same,) = written(tmp_path, same=references)
    found = compare(same, same, prepared=tiny_prepared)
    counts = Counter(token for line in read_lines(tiny_folder / "train.en") for token in score_tokens(line))
    rarest = [min(counts[token] for token in score_tokens(line)) for line in references]
    bounds = {"0": (0, 0), "1": (1, 1), "2 to 4": (2, 4), "5 to 19": (5, 19), "20 to 99": (20, 99)}
    wanted = {label: sum(low <= count <= high for count in rarest) for label, (low, high) in bounds.items()}
    wanted["100 or more"] = sum(count >= 100 for count in rarest)
    assert {each.label: each.sentences for each in found.by_rarest_token} == {
        label: number for label, number in wanted.items() if number
    }
    assert len(found.by_rarest_token) > 2
    assert found.counted_in == "the training text"
    monkeypatch.setattr("nmt.compare.MAX_COUNTED", 50)
    assert (
        compare(same, same, prepared=tiny_prepared).counted_in
        == "the first 50 sentences of the training text"
    )


def test_one_split_is_compared_at_a_time(files: list[Path], tiny_prepared: PreparedData) -> None:
    with pytest.raises(DataError, match="one split at a time"):
        compare(files[0], files[1], prepared=tiny_prepared, split="all")
