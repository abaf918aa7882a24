"""Stage: a model file or a config in, a description out: architecture, sizes, memory, history, scores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmt.config import Config, ModelConfig, find_config, load_config
from nmt.data.dataset import MANIFEST, is_prepared, open_prepared, prepared_folder
from nmt.data.vocabulary import SPECIALS
from nmt.errors import ConfigError, ModelFileError
from nmt.model.positions import sinusoids
from nmt.model.transformer import Transformer
from nmt.modelfile import Model, blank_network, is_shipped, load_model, resolve_model, work_folder
from nmt.scoring.heatmaps import Matrix, draw_positions

FLOAT32_BYTES = 4
MAX_DRAWN_POSITIONS = 512

VERSIONS = {"nmt": "nmt", "python": "Python", "torch": "torch", "spacy": "spaCy"}
"""What is shown of a model's environment."""

PART_OF = {
    "src_embedding": "embeddings",
    "tgt_embedding": "embeddings",
    "encoder": "encoder",
    "encoder_norm": "encoder",
    "decoder": "decoder",
    "decoder_norm": "decoder",
    "projection": "projection",
}
"""The part that each child of the network is counted under."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the network in words, and how many parameters it has with everything below it."""

    name: str
    meaning: str
    parameters: int
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class VocabularySizes:
    """Entries on each side, specials included, and how they are known."""

    source: int
    target: int
    known_from: str


@dataclass(frozen=True, slots=True)
class FoundScore:
    """A score that the model file holds, or that an evaluation has left beside it."""

    split: str
    name: str
    value: float
    signature: str
    older_than_model: bool = False
    """The model file was written after it, so it may be another model's."""
    beam: int = 1
    """The hypotheses that its search followed side by side."""
    found_in: str | None = None
    """The report's file, where that does not lie in the model's own folder."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model file tells beyond its config; provenance is free JSON."""

    file_bytes: int
    written: str
    """When the file was last written or copied, as the file system says (ISO 8601, UTC)."""
    provenance: Mapping[str, Any]
    terms: str | None
    """Who may use the weights and for what, where the file says so."""
    scores: tuple[FoundScore, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model or a config, described."""

    path: Path
    config: Config
    network: Transformer
    """Of a config alone the weights mean nothing: they are not drawn."""
    vocabulary: VocabularySizes
    facts: ModelFacts | None
    """None for a config."""

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters by part, which sum to `total`; a shared matrix is counted once, as an embedding."""
        counts = dict.fromkeys(PART_OF.values(), 0)
        for name, weight in self.network.named_parameters():  # names a shared weight once
            counts[PART_OF[name.partition(".")[0]]] += weight.numel()
        return {**counts, "total": sum(counts.values())}

    @property
    def memory_bytes(self) -> dict[str, int]:
        """The weights in float32; and what training keeps of that size, activations not counted."""
        weights = FLOAT32_BYTES * self.parameters["total"]
        return {"weights": weights, "training": sum(_kept_in_training(self.config).values()) * weights}

    @property
    def architecture(self) -> Part:
        """The network as a tree; the layers of a stack are alike, so one stands for all."""
        return _network_part(self)

    def to_json(self) -> str:
        """One JSON object; what only a model file tells is null for a config."""
        facts = asdict(self.facts) if self.facts else dict.fromkeys(f.name for f in fields(ModelFacts))
        values = {
            "path": str(self.path),
            "config": self.config.model_dump(mode="json"),
            "vocabulary": asdict(self.vocabulary),
            "parameters": self.parameters,
            "memory_bytes": self.memory_bytes,
            "architecture": asdict(self.architecture),
            **facts,
        }
        return json.dumps(values, ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join((*_tree_lines(self.architecture), "", *_fact_lines(self)))


def inspect(name: str | Path, *, overrides: Sequence[str] = ()) -> Inspection:
    """Describe a model file, a run folder's best model, or a config (a path, or a shipped config's name).

    `overrides` are `section.key=value` for a config. A config needs no prepared folder: its vocabulary's
    sizes are its settings, see `_config_sizes`. Raises ConfigError, ModelFileError, and DataError for a
    prepared folder that is damaged.
    """
    file = _find_model(Path(name))
    if file is None:
        return _inspect_config(str(name), overrides)
    if overrides:
        raise ConfigError(f"{file} is a model, whose settings are fixed", hint="--set is for a config")
    model = load_model(file)
    sizes = len(model.src_vocabulary), len(model.tgt_vocabulary)
    vocabulary = VocabularySizes(*sizes, "the model file")
    return Inspection(file, model.config, model.network, vocabulary, _model_facts(file, model))


def draw_position_table(inspection: Inspection, path: Path) -> None:
    """Draw the positional encoding as a PNG file: computed, or a model's learned tables.

    Raises ConfigError where a config's table is still to be learned, MachineError.
    """
    draw_positions(_position_tables(inspection), path)


# --- what is inspected ------------------------------------------------------------------------------------


def _find_model(path: Path) -> Path | None:
    """The model file that a path means, None where it is a config's path or name; ConfigError if neither."""
    if os.path.isfile(path):
        with path.open("rb") as file:  # a model file begins with a number of eight bytes; text holds no zeros
            return path if path.suffix == ".safetensors" or b"\0" in file.read(4096) else None
    try:
        return resolve_model(path)
    except ModelFileError as no_model:
        try:
            find_config(str(path))
        except ConfigError as no_config:
            raise ConfigError(
                f"{no_model.message}, nor is it a config", hint=f"{no_model.hint}; {no_config.hint}"
            ) from None
    return None


def _inspect_config(name: str, overrides: Sequence[str]) -> Inspection:
    config = load_config(name, overrides=overrides)
    vocabulary = _config_sizes(config)
    network = blank_network(config.model, vocabulary.source, vocabulary.target)
    return Inspection(find_config(name), config, network, vocabulary, None)


def _config_sizes(config: Config) -> VocabularySizes:
    """Vocabulary sizes as a config sets them; where it leaves them open, as they were prepared."""
    settings = config.vocabulary
    if is_prepared(config.data.source):
        return _prepared_sizes(Path(config.data.source))
    if settings.kind == "subword":
        return VocabularySizes(
            settings.size, settings.size, "vocabulary.size; a small text gives fewer pieces"
        )
    if settings.max_size is not None:
        most = settings.max_size + len(SPECIALS)
        return VocabularySizes(most, most, "vocabulary.max_size; a small text has fewer words")
    folder = prepared_folder(config)
    if (folder / MANIFEST).is_file():
        return _prepared_sizes(folder)
    return VocabularySizes(
        len(SPECIALS),
        len(SPECIALS),
        "only the specials are counted: set vocabulary.max_size, or run nmt prepare first",
    )


def _prepared_sizes(folder: Path) -> VocabularySizes:
    data = open_prepared(folder)
    return VocabularySizes(len(data.src_vocabulary), len(data.tgt_vocabulary), f"prepared in {folder}")


def _model_facts(file: Path, model: Model) -> ModelFacts:
    status = file.stat()
    written = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
    terms, provenance = model.provenance.get("terms"), model.provenance
    scores = *_own_scores(provenance), *_scores_beside(file)
    return ModelFacts(status.st_size, written, provenance, terms and str(terms), scores)


def _own_scores(provenance: Mapping[str, Any]) -> Iterator[FoundScore]:
    """The scores in the model file itself; provenance is free, so what is no score is passed over."""
    scores = provenance.get("scores")
    for score in scores if isinstance(scores, list) else ():
        try:
            yield _found_score(score["split"], score, score["beam"])
        except (ValueError, KeyError, TypeError):
            continue


def _scores_beside(file: Path) -> Iterator[FoundScore]:
    """The scores that `nmt evaluate` has left for this model; other files there are passed over."""
    written_s = file.stat().st_mtime
    for report in sorted((work_folder(file) / "evaluation").glob("*.json")):
        try:
            found = json.loads(report.read_bytes())
            score = found["score"]
            if Path(found["model"]).name == file.name:
                is_older = report.stat().st_mtime < written_s
                found_score = _found_score(found["split"], score, found.get("beam", 1), is_older)
                yield replace(found_score, found_in=str(report)) if is_shipped(file) else found_score
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _found_score(split: Any, score: Mapping[str, Any], beam: Any, is_older: bool = False) -> FoundScore:
    """A score from JSON; raises ValueError, KeyError or TypeError where it is none."""
    name, signature = str(score["name"]), str(score["signature"])
    return FoundScore(str(split), name, float(score["value"]), signature, is_older, int(beam))


def _kept_in_training(config: Config) -> dict[str, int]:
    """What a training step needs, in copies of the weights."""
    average = {} if config.train.ema_decay is None else {"moving average": 1}
    return {"weights": 1, "gradients": 1, "AdamW's two moments": 2, **average}


# --- the network as a tree --------------------------------------------------------------------------------


def _network_part(inspection: Inspection) -> Part:
    config, counts = inspection.config.model, inspection.parameters
    order = "norm(x + dropout(f(x)))" if config.norm == "post" else "x + dropout(f(norm(x)))"
    source, target = inspection.vocabulary.source, inspection.vocabulary.target
    shared = config.share_embeddings != "none"
    bias = ", bias" if config.output_bias else ""
    scale = f", times 1/√{config.d_model}" if config.scale == "prj" else ""
    return Part(
        "Transformer",
        f"each sublayer f is {order}, dropout {config.dropout:g}",
        counts["total"],
        (
            _embeddings_part(config, source, target, inspection.network, counts["embeddings"]),
            _stack_part("encoder", config.encoder_layers, config, inspection.network, counts["encoder"]),
            _stack_part("decoder", config.decoder_layers, config, inspection.network, counts["decoder"]),
            Part(
                "projection",
                f"{config.d_model:,} → {target:,}{bias}{scale}"
                + (", its matrix is that of the target embedding, counted there" if shared else ""),
                counts["projection"],
            ),
        ),
    )


def _embeddings_part(config: ModelConfig, source: int, target: int, network: Transformer, count: int) -> Part:
    width = f"{config.d_model:,}"
    drop = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    scale = f"times √{config.d_model}, " if config.scale == "emb" else ""
    parts = [Part("target", f"{target:,} × {width}", _count(network, "tgt_embedding.tokens"))]
    if config.share_embeddings == "all":
        one = Part("tokens", f"{target:,} × {width}, one matrix for both sides", parts[0].parameters)
        parts = [one]
    else:
        parts.insert(0, Part("source", f"{source:,} × {width}", _count(network, "src_embedding.tokens")))
    positions = {
        "sinusoidal": "sinusoidal, computed, of any length",
        "learned": f"learned, {config.max_positions:,} × {width} for each side",
        "rotary": "rotary, in self-attention, of any length",
    }[config.positions]
    sides = "src_embedding", "tgt_embedding"
    parts.append(Part("positions", positions, sum(_count(network, f"{side}.positions") for side in sides)))
    if config.embedding_norm:
        norms = sum(_count(network, f"{side}.norm") for side in sides)
        parts.append(Part("norms", f"one for each side, eps {config.norm_eps:g}", norms))
    return Part("embeddings", f"{scale}dropout {drop:g}", count, tuple(parts))


def _stack_part(name: str, depth: int, config: ModelConfig, network: Transformer, count: int) -> Part:
    def sublayer(title: str, child: str, meaning: str) -> Part:
        return Part(title, meaning, _count(network, f"{name}.0.{child}"))

    rotary = ", rotary positions" if config.positions == "rotary" else ""
    parts = [sublayer("self-attention", "self_attention", _attention_words(config) + rotary)]
    if name == "decoder":
        parts.append(sublayer("cross-attention", "cross_attention", _attention_words(config)))
    parts.append(sublayer("feed-forward", "feed_forward", _feed_forward_words(config)))
    whole = _count(network, f"{name}.0")
    norms = whole - sum(part.parameters for part in parts)
    parts.append(Part("norms", f"{len(parts)} × {config.d_model:,}, eps {config.norm_eps:g}", norms))
    layers = [Part("layer", f"one of {depth}, each with weights of its own", whole, tuple(parts))]
    if config.has_final_norm:
        layers.append(Part("final norm", f"{config.d_model:,}", _count(network, f"{name}_norm")))
    return Part(name, f"{depth} × layer", count, tuple(layers))


def _attention_words(config: ModelConfig) -> str:
    key, value = config.key_width, config.head_value_width
    widths = f"× {key}" if key == value else f"of width {key} for queries and keys, {value} for values"
    biases = "biases" if config.projection_bias else "no biases"
    return f"{config.heads} heads {widths}, {biases}{_dropout_words(config.attention_dropout, 'weights')}"


def _feed_forward_words(config: ModelConfig) -> str:
    activation = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)"}[config.activation]
    shape = f"{config.d_model:,} → {config.feed_forward:,} → {config.d_model:,}"
    return f"{shape}, {activation}{_dropout_words(config.activation_dropout, 'inner states')}"


def _dropout_words(probability: float, what: str) -> str:
    return f", dropout {probability:g} on {what}" if probability else ""


def _count(network: Transformer, prefix: str) -> int:
    return sum(w.numel() for name, w in network.named_parameters() if name.startswith(f"{prefix}."))


# --- in words ---------------------------------------------------------------------------------------------


def _tree_lines(root: Part) -> list[str]:
    """The tree in three columns: parts, what they are, and parameters flush right."""
    rows = [(root.name, root.meaning, f"{root.parameters:,}"), *_branch_rows(root, "")]
    names, meanings, numbers = (max(map(len, column)) for column in zip(*rows, strict=True))
    head = (f"{'parameters':>{names + 2 + meanings + 2 + numbers}}",)
    return [
        *head,
        *(f"{name:<{names}}  {meaning:<{meanings}}  {number:>{numbers}}" for name, meaning, number in rows),
    ]


def _branch_rows(part: Part, indent: str) -> Iterator[tuple[str, str, str]]:
    for child in part.parts:
        last = child is part.parts[-1]
        yield f"{indent}{'└─' if last else '├─'} {child.name}", child.meaning, f"{child.parameters:,}"
        yield from _branch_rows(child, indent + ("   " if last else "│  "))


def _fact_lines(inspection: Inspection) -> list[str]:
    """What there is to say beside the tree, one labelled line each."""
    config, facts = inspection.config, inspection.facts
    rows = [
        ("config" if facts is None else "model", _file_words(inspection)),
        ("languages", f"{config.data.src_lang} → {config.data.tgt_lang}"),
        ("vocabulary", _vocabulary_words(inspection)),
        ("memory", f"{_megabytes(inspection.memory_bytes['weights'])} of weights in float32"),
        ("to train", _training_memory(inspection)),
    ]
    if facts is not None:
        rows += _history_rows(facts.provenance)
        rows += [("terms", facts.terms)] if facts.terms else []
        rows += dict.fromkeys((f"on {score.split}", _score_words(score)) for score in facts.scores)
    width = max(len(label) for label, _ in rows)
    return [f"{label:<{width}}  {words}" for label, words in rows]


def _file_words(inspection: Inspection) -> str:
    if inspection.facts is None:
        return str(inspection.path)
    written = inspection.facts.written[:16].replace("T", " ")
    return f"{inspection.path}, {_megabytes(inspection.facts.file_bytes)}, dated {written} UTC"


def _vocabulary_words(inspection: Inspection) -> str:
    sizes, settings = inspection.vocabulary, inspection.config.vocabulary
    numbers = f"{sizes.source:,} joint" if settings.joint else f"{sizes.source:,} and {sizes.target:,}"
    return f"{numbers}, {settings.kind}s ({sizes.known_from})"


def _training_memory(inspection: Inspection) -> str:
    kept = ", ".join(_kept_in_training(inspection.config))
    return f"{_megabytes(inspection.memory_bytes['training'])} of {kept}; and a batch's activations"


def _history_rows(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Training facts; a model file that was made otherwise may lack any of them."""
    data, best, made = (provenance.get(key) or {} for key in ("data", "best", "environment"))
    if "step" in provenance:
        source = " with ".join(data[key] for key in ("source", "extra") if data.get(key))
        text = f", on {source} ({data.get('hash')})" if data else ""
        yield "trained", f"step {provenance['step']:,}, epoch {provenance.get('epoch')}{text}"
    if best.get("bleu") is not None:
        yield (
            "best",
            f"BLEU {best['bleu']:.2f}, loss {best['loss']:.4f} on validation at step {best['step']:,}",
        )
    if made:
        versions = [f"{title} {made[key]}" for key, title in VERSIONS.items() if key in made]
        yield "made with", ", ".join((*versions, str(made.get("platform", ""))))
        yield "made on", str(made.get("device", "unknown"))


def _score_words(score: FoundScore) -> str:
    doubt = " (older than the model file)" if score.older_than_model else ""
    search = f"beam {score.beam}" if score.beam > 1 else "greedy"
    place = f", by {score.found_in}" if score.found_in else ""
    return f"{score.name} {score.value:.2f}, {search}, {score.signature}{doubt}{place}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


# --- positions --------------------------------------------------------------------------------------------


def _position_tables(inspection: Inspection) -> dict[str, Matrix]:
    """Tables (positions, columns) by what they are."""
    model = inspection.config.model
    rows = min(inspection.config.data.max_tokens + 1, MAX_DRAWN_POSITIONS)
    match model.positions:
        case "sinusoidal":
            return {"Sinusoidal positions": sinusoids(rows, model.d_model).numpy()}
        case "rotary":
            title = "Rotary positions: sine and cosine of each pair's angle in a head"
            return {title: sinusoids(rows, model.key_width).numpy()}
        case "learned":
            if inspection.facts is None:
                raise ConfigError(
                    f"{inspection.path}: its positions are learned, and nothing has learned them yet",
                    hint="name a model: nmt inspect runs/NAME --positions FILE.png",
                )
            weights = dict(inspection.network.named_parameters())
            return {
                f"Learned positions, {side}": weights[f"{name}_embedding.positions.table"].detach().numpy()
                for name, side in (("src", "source"), ("tgt", "target"))
            }
