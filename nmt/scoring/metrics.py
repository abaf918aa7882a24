"""How good translations are (the only user of sacreBLEU)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.errors import DataError


@dataclass(frozen=True, slots=True)
class Score:
    """A figure together with the signature that says how it was taken."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f} ({self.signature})"


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """Corpus BLEU, 0 to 100, of detokenised hypotheses against raw references, line by line.

    Tokenised by sacreBLEU's 13a and cased unless `lowercase`; the `sacrebleu` command gives the same number.
    Raises DataError if the counts differ or there is nothing to score. Source: Post (2018).
    """
    if len(hypotheses) != len(references):  # sacreBLEU scores the lines that both have, and says nothing
        raise DataError(
            f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references",
            hint="line k of the one must belong to line k of the other: look for a missing or an extra line",
        )
    if not references:
        raise DataError("there is nothing to score: no hypotheses and no references")

    from sacrebleu import BLEU

    metric = BLEU(lowercase=lowercase, tokenize="13a")
    value = metric.corpus_score(hypotheses, [references]).score
    return Score("BLEU", float(value), str(metric.get_signature()))
