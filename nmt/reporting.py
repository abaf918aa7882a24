"""From an evaluation to the page that shows it: what `scoring/report` is to draw, as plain values.

Letters: B batch, H heads, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nmt.config import DecodeConfig
from nmt.data.batching import cut_batches, make_batch
from nmt.data.dataset import Ragged, Split
from nmt.data.vocabulary import EOS
from nmt.decoding.state import Hypothesis
from nmt.modelfile import Model
from nmt.scoring.groups import LENGTHS, Group, grouped
from nmt.scoring.metrics import CorpusScores, bleu, score_tokens, sentence_bleu, sentence_chrf
from nmt.scoring.report import (
    AttentionMap,
    Facts,
    LengthGroup,
    Report,
    ReportSentence,
    SplitReport,
)
from nmt.training.tracking import read_events
from nmt.translate import mean_attention, readable

MAX_MAPS = 2_000
"""Sentences of a split whose attention is kept: the page holds them all."""
MAX_MAP_TOKENS = 100
"""A longer source or translation gets no map, which nobody could read."""
MAP_BATCH_TOKENS = 2_048


def make_report(
    files: Sequence[Path], models: Sequence[Model], decode: DecodeConfig, splits: Sequence[SplitReport]
) -> Report:
    """The page on what a model, or an ensemble, did with some splits.

    Training curves are those of the first model's run folder, where it lies in one.
    """
    data = models[0].config.data
    return Report(
        title=" + ".join(dict.fromkeys(model.config.name for model in models)),
        facts=_model_facts(files, models, decode),
        src_lang=data.src_lang,
        tgt_lang=data.tgt_lang,
        splits=splits,
        events=read_events(files[0].parent / "metrics.jsonl"),
        attention_of=_attention_words(models),
    )


def split_report(
    name: str,
    lines: tuple[Sequence[str], Sequence[str], Sequence[str]],
    found: CorpusScores,
    facts: Facts,
    maps: Sequence[AttentionMap | None],
    *,
    lowercase: bool,
) -> SplitReport:
    """What there is to say of one split; lines: sources, hypotheses and references."""
    lengths = tuple([len(score_tokens(line)) for line in side] for side in lines)
    each = (measure(*lines[1:], lowercase=lowercase) for measure in (sentence_bleu, sentence_chrf))
    return SplitReport(
        name,
        found.scores,
        found.length_ratio,
        facts,
        [_length_group(group, lines[1:], lengths[1:], lowercase) for group in grouped(lengths[0], LENGTHS)],
        [ReportSentence(*row) for row in zip(*lines, *each, *lengths, maps, strict=True)],
        length_unit="tokens",
    )


def _length_group(
    group: Group, lines: Sequence[Sequence[str]], lengths: Sequence[Sequence[int]], lowercase: bool
) -> LengthGroup:
    """lines and lengths: of hypotheses and references."""
    hypotheses, references = ([side[row] for row in group.rows] for side in lines)
    translated, wanted = (sum(side[row] for row in group.rows) for side in lengths)
    score = bleu(hypotheses, references, lowercase=lowercase).value
    return LengthGroup(f"{group.label} tokens", len(group.rows), score, translated / max(wanted, 1))


def attention_maps(
    models: Sequence[Model], sources: Ragged, hypotheses: Sequence[Hypothesis]
) -> list[AttentionMap | None]:
    """Where the last decoder layer looked for each token of the translations: the mean of its heads.

    Of an ensemble it is the mean over its models. sources: ids as they were translated. None for a blank or
    a long sentence, and for those behind the first MAX_MAPS.
    """
    first = models[0]
    targets = [[*hypothesis.ids] for hypothesis in hypotheses]
    split = Split("", sources, Ragged.of(targets, len(first.tgt_vocabulary)))
    longest = np.maximum(sources.lengths, split.tgt.lengths)
    shown = (np.minimum(sources.lengths, longest) > 0) & (longest <= MAX_MAP_TOKENS)
    rows = shown.nonzero()[0][:MAX_MAPS]
    order = rows[np.argsort(longest[rows], kind="stable")]
    device = next(first.network.parameters()).device
    maps: list[AttentionMap | None] = [None] * len(hypotheses)
    for batch_rows in cut_batches(order, longest + 1, MAP_BATCH_TOKENS):
        batch = make_batch(split, batch_rows).to(device)
        with torch.inference_mode():
            looks = mean_attention([model.network for model in models], batch)  # (B,T,S)
        mean = looks.float().cpu().numpy()
        for place, row in enumerate(batch_rows.tolist()):
            src, tgt = (
                [*sources[row].tolist(), EOS],
                [*targets[row], *([EOS] if hypotheses[row].finished else [])],
            )
            maps[row] = AttentionMap(
                [readable(first.src_vocabulary.pieces[i]) for i in src],
                [readable(first.tgt_vocabulary.pieces[i]) for i in tgt],
                mean[place, : len(tgt), : len(src)].tolist(),
            )
    return maps


def _attention_words(models: Sequence[Model]) -> str:
    config = models[0].config.model
    if len(models) > 1:
        return f"mean of all heads of the last decoder layers of {len(models)} models"
    return f"mean of the {config.heads} heads of decoder layer {config.decoder_layers}"


def _model_facts(
    files: Sequence[Path], models: Sequence[Model], decode: DecodeConfig
) -> list[tuple[str, str]]:
    first = models[0]
    data, vocabulary = first.config.data, first.config.vocabulary
    sizes = f"{len(first.src_vocabulary):,}"
    if not vocabulary.joint:
        sizes += f" and {len(first.tgt_vocabulary):,}"
    parameters = " + ".join(
        f"{sum(weight.numel() for weight in model.network.parameters()):,}" for model in models
    )
    search = "greedy" if decode.beam == 1 else f"beam {decode.beam}, length penalty {decode.length_penalty:g}"
    facts = [
        ("model" if len(files) == 1 else "ensemble", ", ".join(map(str, files))),
        ("languages", f"{data.src_lang} → {data.tgt_lang}"),
        ("parameters", parameters),
        ("vocabulary", f"{sizes} {vocabulary.kind}s"),
        ("search", search),
    ]
    step, epoch = (first.provenance.get(key) for key in ("step", "epoch"))
    if len(models) == 1 and step is not None:
        facts.append(("trained", f"step {step:,}" + (f", epoch {epoch:g}" if epoch is not None else "")))
    return facts
