"""The report on a model: one HTML page that needs nothing else, from plain values."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from nmt.files import write_whole
from nmt.scoring.metrics import Score
from nmt.scoring.plots import last_words, standing

MAX_POINTS = 1000
"""Most points of a training curve; of a longer run every so many steps are shown."""

Facts = Sequence[tuple[str, str]]
"""Pairs of a name and what is to be shown for it, such as ("perplexity", "6.21")."""


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """The sentences whose sources have about the same length, scored by themselves."""

    label: str
    """Such as "1 to 7 words"."""
    sentences: int
    score: float
    """Corpus BLEU (or what `SplitReport.scores` names first) of these sentences."""
    length_ratio: float
    """Length of their translations over that of their references."""


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """Where the decoder looked: what is shown of one sentence's cross-attention.

    Letters: S source tokens, T target tokens.
    """

    source: Sequence[str]
    """(S) labels as a reader takes them."""
    target: Sequence[str]
    """(T) labels as a reader takes them."""
    weights: Sequence[Sequence[float]]
    """(T,S) from 0 to 1, the mean over heads; a numpy array or nested lists. Written as hundredths."""


@dataclass(frozen=True, slots=True)
class ReportSentence:
    """One sentence of a split; lengths are in `SplitReport.length_unit`."""

    source: str
    hypothesis: str
    reference: str
    bleu: float
    chrf: float
    source_length: int
    hypothesis_length: int
    reference_length: int
    attention: AttentionMap | None = None
    """None: nothing is said of it."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What a model did with one split."""

    name: str
    scores: Sequence[Score]
    """The main one first."""
    length_ratio: float
    """Of all translations over all references."""
    facts: Facts
    """Loss, perplexity, unknown rate, speed, ...: name and value as they are to be read."""
    by_length: Sequence[LengthGroup]
    """Short sources first."""
    sentences: Sequence[ReportSentence]
    length_unit: str = "words"


@dataclass(frozen=True, slots=True)
class Report:
    """All that the page shows; every text may be anything and is escaped."""

    title: str
    facts: Facts
    """The model: file, parameters, vocabulary, date, ..."""
    src_lang: str
    """A language code, for the browser's fonts, hyphens and voices."""
    tgt_lang: str
    splits: Sequence[SplitReport]
    """One or more; the first is shown first."""
    events: Sequence[Mapping[str, Any]] = ()
    """Those of the run's metrics.jsonl; none: no training curves."""
    attention_of: str = ""
    """What the maps are a mean of, such as "mean of the 8 heads of decoder layer 3"."""


def write_report(path: Path, report: Report) -> None:
    """Write the page as one file that appears whole or not at all.

    Raises MachineError if it cannot be written.
    """
    page = _page(report)
    write_whole(path, page.encode("utf-8", "backslashreplace"))  # in JSON a lone surrogate then is an escape


def _page(report: Report) -> str:
    style, script = _part("report.css"), _part("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"  # nothing else runs
    )
    data = json.dumps(_data(report), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Template(_part("report.html")).substitute(
        title=html.escape(report.title),
        policy=policy,
        style=style,
        script=script,
        data=data.replace("<", "\\u003c"),  # so that no text ends the element, whatever it says
    )


def _part(name: str) -> str:
    return files("nmt.scoring").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """What a content security policy calls a text by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(report: Report) -> dict[str, Any]:
    """What report.js reads."""
    return {
        "facts": report.facts,
        "src_lang": report.src_lang,
        "tgt_lang": report.tgt_lang,
        "attention_of": report.attention_of,
        "curves": _curves(last_words(report.events)),
        "splits": [_split(split) for split in report.splits],
    }


def _split(split: SplitReport) -> dict[str, Any]:
    return {
        "name": split.name,
        "scores": [
            [score.name, score.signature, *map(_number, (score.value, score.low, score.high))]
            for score in split.scores
        ],
        "facts": split.facts,
        "length_unit": split.length_unit,
        "length_ratio": _number(split.length_ratio),
        "by_length": [
            [group.label, int(group.sentences), _number(group.score), _number(group.length_ratio)]
            for group in split.by_length
        ],
        "rows": [_row(sentence) for sentence in split.sentences],
    }


def _row(sentence: ReportSentence) -> list[Any]:
    return [
        sentence.source,
        sentence.hypothesis,
        sentence.reference,
        _number(sentence.bleu, 2),
        _number(sentence.chrf, 2),
        [int(sentence.source_length), int(sentence.hypothesis_length), int(sentence.reference_length)],
        _attention(sentence.attention) if sentence.attention else None,
    ]


def _attention(attention: AttentionMap) -> list[Any]:
    """Labels, and the weights in hundredths as two digits each, row after row."""
    weights = np.asarray(attention.weights, dtype=np.float64).reshape(-1, len(attention.source))  # (T,S)
    if len(weights) != len(attention.target):
        raise ValueError(f"{len(weights)} rows of weights for {len(attention.target)} target tokens")
    hundredths = np.clip(np.rint(100 * np.nan_to_num(weights)), 0, 99).astype(int)
    digits = "".join(map("{:02d}".format, hundredths.ravel().tolist()))
    return [list(attention.source), list(attention.target), digits]


def _curves(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The points of a run's curves: no more steps than can be told apart."""
    steps = [event for event in events if event["event"] == "step"]
    validations = [event for event in events if event["event"] == "validation"]
    scored = [event for event in validations if _number(event.get("bleu")) is not None]
    best = max(scored, key=standing, default=None)
    return {
        "steps": [_point(event, "loss", "learning_rate") for event in _thinned(steps)],
        "validations": [_point(event, "loss", "bleu") for event in validations if not event.get("weights")],
        "best": best and [int(best["step"]), _number(best["bleu"]), best.get("weights") or ""],
    }


def _point(event: Mapping[str, Any], *keys: str) -> list[Any]:
    return [int(event["step"]), *(_number(event.get(key), 6) for key in keys)]


def _thinned(events: Sequence[Any]) -> Sequence[Any]:
    stride = -(-len(events) // MAX_POINTS) or 1
    return events[::-1][::stride][::-1]  # the last one stays


def _number(value: float | None, digits: int = 6) -> float | None:
    """The value with so many digits behind the point; none for what JSON cannot say."""
    return round(float(value), digits) if value is not None and math.isfinite(value) else None
