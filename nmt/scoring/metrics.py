"""How good translations are, and which of two systems translates better (the only user of sacreBLEU)."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.errors import DataError

log = logging.getLogger("nmt")

TER_LIMIT_S = 60.0
"""TER searches for shifted words, seconds for a long line that was translated badly: then it is given up."""
TER_QUIET_S = 5.0

MOST_RESAMPLES, FEWEST_RESAMPLES = 1_000, 100
MOST_TRIALS = 10_000
RESAMPLED_LINES = 10_000_000
"""sacreBLEU holds all resamples in memory at once (some 1 GB of this many lines): of a long text it takes
fewer of them."""


@dataclass(frozen=True, slots=True)
class Score:
    """A figure together with the signature that says how it was taken."""

    name: str
    value: float
    signature: str
    low: float | None = None
    """Where the 95 % interval begins, which bootstrap resampling estimates; None where it was not taken."""
    high: float | None = None
    """Where it ends."""

    def __str__(self) -> str:
        interval = "" if self.low is None else f", 95 %: {self.low:.2f} to {self.high:.2f}"
        return f"{self.name} = {self.value:.2f} ({self.signature}){interval}"


@dataclass(frozen=True, slots=True)
class CorpusScores:
    """What can be said of a whole text's translation."""

    scores: tuple[Score, ...]
    """BLEU, chrF2 and TER; the last is missing where it took too long."""
    length_ratio: float
    """Tokens of the hypotheses over those of the references, as BLEU counts them; 0 where there are none."""


@dataclass(frozen=True, slots=True)
class PairedScores:
    """Two systems' scores on the same text, and how likely a difference like theirs is by chance."""

    a: Score
    b: Score
    bootstrap_p: float
    """Of paired bootstrap resampling (Koehn, 2004)."""
    randomisation_p: float
    """Of approximate randomisation (Riezler and Maxwell, 2005)."""
    resamples: int
    trials: int


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """Corpus BLEU, 0 to 100, of detokenised hypotheses against raw references, line by line.

    Tokenised by sacreBLEU's 13a and cased unless `lowercase`; the `sacrebleu` command gives the same number.
    Raises DataError if the counts differ or there is nothing to score. Source: Post (2018).
    """
    _check(hypotheses, references)
    return _plain(_bleu(lowercase), hypotheses, references)


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> CorpusScores:
    """BLEU, chrF2 and TER with their 95 % intervals; settings, numbers and intervals are sacreBLEU's own.

    TER is lower-cased, as is its custom; BLEU and chrF are cased unless `lowercase`. Raises DataError as
    `bleu` does.
    """
    _check(hypotheses, references)
    resamples = _resamples(len(references))
    found = []
    for make in (_bleu, _chrf, _ter):
        try:
            found.append(
                _resampled(make(lowercase), [hypotheses], references, "bs", resamples)[0].score
                if resamples
                else _plain(make(lowercase), hypotheses, references)
            )
        except _TooSlowError:
            _say_too_slow()
    translated, wanted = (sum(len(score_tokens(line)) for line in side) for side in (hypotheses, references))
    return CorpusScores(tuple(found), translated / wanted if wanted else 0.0)


def paired_scores(
    a: Sequence[str], b: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> tuple[PairedScores, ...]:
    """Two systems' BLEU, chrF2 and TER, and the p-values of their differences by both of sacreBLEU's tests.

    Equal scores have p = 1. sacreBLEU counts only trials that differ by more than the systems do, so where k
    lines were translated differently the p-value of approximate randomisation is raised to 2^(1 - k), the
    share of the trials that must differ by as much. Raises DataError as `bleu` does.
    """
    _check(a, references)
    _check(b, references)
    differing = sum(one != other for one, other in zip(a, b, strict=True))
    found = []
    for make in (_bleu, _chrf, _ter):
        try:
            found.append(_paired(functools.partial(make, lowercase), a, b, references, differing))
        except _TooSlowError:
            _say_too_slow()
    return tuple(found)


def sentence_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> list[float]:
    """BLEU of each sentence by itself, over the orders of n-grams that it has; raises DataError as `bleu`."""
    _check(hypotheses, references)
    metric = _bleu(lowercase, effective_order=True)
    return _each(metric, hypotheses, references)


def sentence_chrf(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> list[float]:
    """chrF2 of each sentence by itself; raises DataError as `bleu` does."""
    _check(hypotheses, references)
    return _each(_chrf(lowercase), hypotheses, references)


def score_tokens(line: str, *, lowercase: bool = False) -> list[str]:
    """The tokens that BLEU compares of a line: words, and signs by themselves."""
    return _tokenizer()(line.lower() if lowercase else line).split()


# --- sacreBLEU's metrics ----------------------------------------------------------------------------------


@functools.cache
def _tokenizer() -> Callable[[str], str]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()  # type: ignore[no-untyped-call]


def _bleu(lowercase: bool, *, effective_order: bool = False) -> Any:
    from sacrebleu import BLEU

    return BLEU(lowercase=lowercase, tokenize="13a", effective_order=effective_order)


def _chrf(lowercase: bool) -> Any:
    from sacrebleu import CHRF

    return CHRF(lowercase=lowercase)


def _ter(_lowercase: bool) -> Any:
    """sacreBLEU's TER, which says when it takes long, and raises _TooSlowError when it takes too long."""
    from sacrebleu import TER

    start_s = 0.0
    has_said = False

    class PatientTer(TER):
        def _compute_segment_statistics(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal start_s, has_said
            start_s = start_s or time.monotonic()
            elapsed_s = time.monotonic() - start_s
            if elapsed_s > TER_LIMIT_S:
                raise _TooSlowError
            if elapsed_s > TER_QUIET_S and not has_said:
                has_said = True
                log.info("TER takes longer; after %g s it is left out", TER_LIMIT_S)
            return super()._compute_segment_statistics(*args, **kwargs)

    return PatientTer()


class _TooSlowError(Exception):
    """TER has taken too long."""


def _say_too_slow() -> None:
    log.warning(
        "TER is left out: it takes more than %g s; the sacrebleu command gives it: -m ter", TER_LIMIT_S
    )


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):  # sacreBLEU scores the lines that both have, and says nothing
        raise DataError(
            f"{len(hypotheses)} hypotheses cannot be scored against {len(references)} references",
            hint="line k of the one must belong to line k of the other: look for a missing or an extra line",
        )
    if not references:
        raise DataError("there is nothing to score: no hypotheses and no references")


def _each(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    pairs = zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def _plain(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """A score without its interval."""
    result = metric.corpus_score(hypotheses, [references])
    return Score(str(result.name), float(result.score), str(metric.get_signature()))


# --- resampling -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Resampled:
    """A system's score, and the p-value of its difference from the first one's."""

    score: Score
    p_value: float | None


def _resampled(
    metric: Any, systems: Sequence[Sequence[str]], references: Sequence[str], kind: str, samples: int
) -> list[_Resampled]:
    """Score one system or more, and test the others against the first.

    kind: "bs", bootstrap resampling, which also gives the intervals, or "ar", approximate randomisation.
    sacreBLEU's `corpus_score(n_bootstrap=...)` gives the same intervals, but fails where some resamples score
    a plain 0.
    """
    from sacrebleu.significance import PairedTest

    named = [(str(number), system) for number, system in enumerate(systems)]
    columns: Any
    signatures, columns = PairedTest(named, {"": metric}, [references], kind, n_samples=samples)()
    ((name, signature),) = signatures.items()
    for key in ("bs", "ar", "seed"):  # of the resampling, which the score itself does not hang on
        signature.update(key, None)
    found = []
    for result in columns[name]:
        value, middle, half = float(result.score), result.mean, result.ci
        ends = () if middle is None else (float(middle) - float(half), float(middle) + float(half))
        if ends:  # a normal distribution's ends, which few sentences put where no score can be
            ends = max(ends[0], 0.0), ends[1] if name == "TER" else min(ends[1], 100.0)
        found.append(_Resampled(Score(name, value, str(signature), *ends), result.p_value))
    return found


def _paired(
    make: Callable[[], Any], a: Sequence[str], b: Sequence[str], references: Sequence[str], differing: int
) -> PairedScores:
    resamples = _resamples(len(references)) or FEWEST_RESAMPLES
    trials = max(min(MOST_TRIALS, 10 * RESAMPLED_LINES // len(references)), FEWEST_RESAMPLES)
    first, second = _resampled(make(), [a, b], references, "bs", resamples)
    _, shuffled = _resampled(make(), [a, b], references, "ar", trials)
    equal = first.score.value == second.score.value
    least = 2.0 ** (1 - min(differing, 60))
    return PairedScores(
        first.score,
        second.score,
        bootstrap_p=1.0 if equal else float(second.p_value or 0.0),
        randomisation_p=1.0 if equal else min(1.0, max(float(shuffled.p_value or 0.0), least)),
        resamples=resamples,
        trials=trials,
    )


def _resamples(lines: int) -> int:
    """How often a text of so many lines is resampled: not at all (0) where that would take too much."""
    count = min(MOST_RESAMPLES, RESAMPLED_LINES // lines)
    return count if count >= FEWEST_RESAMPLES else 0
