"""BLEU: the number that the sacrebleu command gives, or an error."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.errors import DataError
from nmt.scoring.metrics import Score, bleu

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


def score_by_command(
    folder: Path, hypotheses: tuple[str, ...], references: tuple[str, ...], *options: str
) -> str:
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "sacrebleu", str(folder / "ref"), "-i", str(folder / "hyp"), *options]
    answer = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    assert answer.stderr == ""
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
