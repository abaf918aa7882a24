"""Scores and tests of significance: the numbers that the sacrebleu command gives, or an error."""

from __future__ import annotations

import itertools
import json
import logging
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt.errors import DataError
from nmt.scoring import metrics
from nmt.scoring.metrics import (
    Score,
    bleu,
    corpus_scores,
    paired_scores,
    score_tokens,
    sentence_bleu,
    sentence_chrf,
)

HYPOTHESES = (
    "A dog runs through the snow.",
    "Two men are standing in front of a house.",
    "",
    'A girl says "hello" to her friends, and they wave.',
    "Ein Mädchen läuft über die Straße; es ist 3.5 Meter breit.",
)
REFERENCES = (
    "A dog is running through the snow.",
    "Two Men stand in front of a House.",
    "Nobody is here.",
    'A girl says "Hello!" to her friends and they wave.',
    "Ein Mädchen läuft über die Straße, sie ist 3,5 Meter breit.",
)


def varied(seed: int, share: float) -> list[str]:
    """The references many times over, with some of their words left out."""
    numbers = random.Random(seed)
    return [
        " ".join(word for word in line.split() if numbers.random() > share)
        for line in REFERENCES
        for _ in range(8)
    ]


MANY = [line for line in REFERENCES for _ in range(8)]


def score_by_command(
    folder: Path,
    hypotheses: Sequence[str],
    references: Sequence[str],
    *options: str,
    other: Sequence[str] = (),
) -> str:
    texts = {"hyp": hypotheses, "ref": references, **({"other": other} if other else {})}
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    systems = [str(folder / name) for name in texts if name != "ref"]
    command = [sys.executable, "-m", "sacrebleu", str(folder / "ref"), "-i", *systems, *options]
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert other or answer.stderr == ""
    return answer.stdout.strip()


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_sacrebleu_command_gives_the_same_number_and_signature(tmp_path: Path, lowercase: bool) -> None:
    score = bleu(HYPOTHESES, REFERENCES, lowercase=lowercase)
    options = ("-f", "text", "-w", "4", *(["-lc"] if lowercase else []))
    line = score_by_command(tmp_path, HYPOTHESES, REFERENCES, *options)
    assert line.startswith(f"BLEU|{score.signature} = {score.value:.4f} ")
    assert 0 < score.value < 100


def test_case_counts_unless_it_is_told_not_to_and_the_signature_says_which() -> None:
    mixed, lower = bleu(HYPOTHESES, REFERENCES), bleu(HYPOTHESES, REFERENCES, lowercase=True)
    assert lower.value > mixed.value
    assert "|case:mixed|" in mixed.signature
    assert "|case:lc|" in lower.signature
    assert "|tok:13a|" in mixed.signature


def test_a_perfect_translation_scores_100_and_an_empty_one_0() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100.0)
    assert bleu([""] * len(REFERENCES), REFERENCES).value == 0.0


def test_unequal_counts_are_an_error_that_names_both() -> None:
    with pytest.raises(DataError, match=r"119 hypotheses .* 120 references"):
        bleu(["A dog."] * 119, ["A dog."] * 120)


def test_nothing_is_not_scored() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        bleu([], [])


def test_detokenised_text_draws_no_warning_and_nothing_reaches_standard_output(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        bleu(["A dog runs."] * 200, ["A dog is running."] * 200)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG):
        bleu(["A dog runs ."] * 200, ["A dog is running ."] * 200)  # this is what the warning is for
    assert caplog.records
    assert capsys.readouterr().out == ""


def test_a_printed_score_shows_value_and_full_signature() -> None:
    score = Score("BLEU", 39.7123, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0")
    assert str(score) == "BLEU = 39.71 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0)"


# ---------------------------------------------------------------- all scores of a text


@pytest.mark.parametrize("lowercase", [False, True])
def test_every_score_and_interval_is_that_of_the_sacrebleu_command(tmp_path: Path, lowercase: bool) -> None:
    hypotheses = varied(1, 0.2)
    found = corpus_scores(hypotheses, MANY, lowercase=lowercase)
    options = ["-m", "bleu", "chrf", "ter", "-w", "6", *(["-lc", "--chrf-lowercase"] if lowercase else [])]
    plain = json.loads(score_by_command(tmp_path, hypotheses, MANY, *options))
    bounded = json.loads(score_by_command(tmp_path, hypotheses, MANY, *options, "--confidence"))
    assert [score.name for score in found.scores] == [answer["name"] for answer in plain]
    for score, answer, interval in zip(found.scores, plain, bounded, strict=True):
        assert score.value == pytest.approx(answer["score"], abs=1e-6)
        assert score.signature == answer["signature"]
        assert score.low is not None
        assert score.high is not None
        assert (score.low + score.high) / 2 == pytest.approx(interval["confidence_mean"], abs=1e-4)
        assert (score.high - score.low) / 2 == pytest.approx(interval["confidence_var"], abs=1e-4)
        assert score.low < score.value < score.high
    assert found.scores[0].value == bleu(hypotheses, MANY, lowercase=lowercase).value
    assert [("case:lc" in score.signature) for score in found.scores] == [lowercase, lowercase, True]


def test_the_length_ratio_counts_tokens_as_bleu_does() -> None:
    # A dog runs . = 4 of "A dog is running ." = 5; twice "Yes , I do !" = 5
    found = corpus_scores(["A dog runs.", "Yes, I do!"], ["A dog is running.", "Yes, I do!"])
    assert found.length_ratio == pytest.approx(9 / 10)
    assert corpus_scores(["", ""], ["A dog.", "B"]).length_ratio == 0.0


def test_a_text_of_which_some_resamples_score_nothing_has_its_intervals() -> None:
    found = corpus_scores(["Ein Hund.", "", "日本"], ["A dog.", "Two children.", "Nothing."])
    for score in found.scores:
        assert score.low is not None
        assert score.low <= score.value <= (score.high or 0.0) + 1e-6


def test_tokens_are_words_and_signs() -> None:
    assert score_tokens("Yes, it's 3.5 m!") == ["Yes", ",", "it's", "3.5", "m", "!"]
    assert score_tokens("A Dog", lowercase=True) == ["a", "dog"]
    assert score_tokens("") == []


def test_ter_is_given_up_where_it_takes_too_long_and_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "TER_LIMIT_S", -1.0)
    with caplog.at_level(logging.WARNING, logger="nmt"):
        found = corpus_scores(HYPOTHESES, REFERENCES)
        pairs = paired_scores(HYPOTHESES, REFERENCES, REFERENCES)
    assert [score.name for score in found.scores] == ["BLEU", "chrF2"]
    assert [pair.a.name for pair in pairs] == ["BLEU", "chrF2"]
    assert "-m ter" in caplog.text


def test_of_a_long_text_fewer_resamples_are_taken_and_of_a_huge_one_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hypotheses = varied(1, 0.2)
    usual = corpus_scores(hypotheses, MANY).scores[0]
    monkeypatch.setattr(metrics, "RESAMPLED_LINES", 200 * len(MANY))
    fewer = corpus_scores(hypotheses, MANY).scores[0]
    assert fewer.value == usual.value
    assert None not in (fewer.low, fewer.high)
    assert (fewer.low, fewer.high) != (usual.low, usual.high)
    assert paired_scores(hypotheses, MANY, MANY)[0].resamples == 200
    monkeypatch.setattr(metrics, "RESAMPLED_LINES", len(MANY))
    huge = corpus_scores(hypotheses, MANY).scores[0]
    assert (huge.value, huge.low, huge.high) == (usual.value, None, None)
    assert "95 %" not in str(huge)


def test_an_interval_is_printed_behind_the_signature() -> None:
    assert (
        str(Score("BLEU", 39.7123, "nrefs:1", 38.0, 41.255)) == "BLEU = 39.71 (nrefs:1), 95 %: 38.00 to 41.26"
    )


# ---------------------------------------------------------------- sentences


@pytest.mark.parametrize("lowercase", [False, True])
def test_sentence_scores_are_those_of_the_sacrebleu_command(tmp_path: Path, lowercase: bool) -> None:
    lower = {"bleu": ["-lc"], "chrf": ["--chrf-lowercase"]} if lowercase else {}
    for name, measure in (("bleu", sentence_bleu), ("chrf", sentence_chrf)):
        options = ("-m", name, "--sentence-level", "-b", "-w", "6", *lower.get(name, []))
        printed = score_by_command(tmp_path, HYPOTHESES, REFERENCES, *options)
        found = measure(HYPOTHESES, REFERENCES, lowercase=lowercase)
        assert found == pytest.approx([float(line) for line in printed.splitlines()], abs=1e-6)


def test_sentences_of_unequal_counts_are_refused() -> None:
    with pytest.raises(DataError, match=r"1 hypotheses .* 2 references"):
        sentence_chrf(["A"], ["A", "B"])


# ---------------------------------------------------------------- two systems


def test_p_values_and_intervals_are_those_of_the_sacrebleu_command(tmp_path: Path) -> None:
    one, other = varied(1, 0.15), varied(2, 0.2)
    found = paired_scores(one, other, MANY)
    for option, p_of in (("--paired-bs", "bootstrap_p"), ("--paired-ar", "randomisation_p")):
        options = ("-m", "bleu", "chrf", "ter", option, "-w", "6", "-f", "text")
        table = score_by_command(tmp_path, one, MANY, *options, other=other)
        printed = [float(p) for p in re.findall(r"\(p = ([\d.]+)\)", table)]
        assert [getattr(pair, p_of) for pair in found] == pytest.approx(printed, abs=6e-5)
        if option == "--paired-bs":
            rows = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", table)  # three of A, three of B
            sides = [*(pair.a for pair in found), *(pair.b for pair in found)]
            for side, (score, mean, half) in zip(sides, rows, strict=True):
                assert side.value == pytest.approx(float(score), abs=1e-6)
                assert side.low == pytest.approx(float(mean) - float(half), abs=1e-4)
                assert side.high == pytest.approx(float(mean) + float(half), abs=1e-4)
    assert 0.001 < found[0].bootstrap_p < 0.5, "neither plain nor hopeless"
    assert [pair.a for pair in found] == list(corpus_scores(one, MANY).scores)


def test_two_equal_systems_do_not_differ() -> None:
    for pair in paired_scores(HYPOTHESES, HYPOTHESES, REFERENCES):
        assert pair.a == pair.b
        assert (pair.bootstrap_p, pair.randomisation_p) == (1.0, 1.0)


@pytest.mark.parametrize("differing", [1, 2, 4])
def test_a_few_sentences_cannot_be_more_significant_than_their_permutations_allow(differing: int) -> None:
    worse = [line.rsplit(" ", 1)[0] if row < differing else line for row, line in enumerate(MANY)]
    found = paired_scores(MANY, worse, MANY)[0]
    # exact: every way to swap the sentences that differ
    observed, extreme = abs(found.a.value - found.b.value), 0
    swaps = list(itertools.product((False, True), repeat=differing))
    for swap in swaps:
        one = [worse[row] if swap[row] else MANY[row] for row in range(differing)]
        other = [MANY[row] if swap[row] else worse[row] for row in range(differing)]
        rest = MANY[differing:]
        difference = bleu([*one, *rest], MANY).value - bleu([*other, *rest], MANY).value
        extreme += abs(difference) >= observed - 1e-9
    assert found.randomisation_p >= extreme / len(swaps) - 1e-9
    assert found.randomisation_p == pytest.approx(2.0 ** (1 - differing))


def test_unequal_counts_of_two_systems_are_an_error() -> None:
    with pytest.raises(DataError, match=r"4 hypotheses .* 5 references"):
        paired_scores(HYPOTHESES, HYPOTHESES[:4], REFERENCES)
