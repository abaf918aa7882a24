"""The one schema of every setting: strict YAML, `extends`, overrides from the command line.

A config is read once, checked as a whole, and is frozen from then on. A key that is not known is an
error that names file, line and the nearest known key; so is a value of the wrong kind.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nmt.errors import ConfigError

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Alpha = Annotated[float, Field(ge=0.0, le=10.0)]
NotNegativeFloat = Annotated[float, Field(ge=0.0)]


class Section(BaseModel):
    """What all sections share: frozen, no unknown keys, no silent conversions, finite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class DataConfig(Section):
    """Which text is used and how it is cut into tokens."""

    source: Annotated[str, Field(min_length=1)] = "multi30k"
    """`multi30k`, `captions`, or a folder with train.SRC, train.TGT, val.SRC, val.TGT and so on."""
    mirror: str | None = None
    """Where Multi30k's files are taken from instead of the public address: a web address or a folder."""
    src_lang: Annotated[str, Field(min_length=2)] = "de"
    """Language of the source side: spaCy's code and the ending of the files."""
    tgt_lang: Annotated[str, Field(min_length=2)] = "en"
    """Language of the target side: spaCy's code and the ending of the files."""
    train: Annotated[str, Field(min_length=1)] = "train"
    """Name of the training split."""
    val: Annotated[str, Field(min_length=1)] = "val"
    """Name of the validation split."""
    tests: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Names of the test splits; null takes both Flickr test sets of Multi30k, or all others of a folder."""
    extra: Annotated[str, Field(min_length=1)] | None = None
    """More training pairs, synthetic ones say: FOLDER/NAME for NAME.SRC and NAME.TGT there; null has none."""
    src_pipeline: str | None = None
    """An installed spaCy pipeline whose tokeniser is used for the source; null takes the blank one."""
    tgt_pipeline: str | None = None
    """An installed spaCy pipeline whose tokeniser is used for the target; null takes the blank one."""
    src_lowercase: bool = False
    """Lower-case the source before it is tokenised."""
    tgt_lowercase: bool = False
    """Lower-case the target; scores are then taken on lower-cased references, and say so."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000)] = 128
    """A training pair with more vocabulary tokens than this on a side is dropped and counted."""

    @field_validator("source", "extra")
    @classmethod
    def _one_spelling_for_one_folder(cls, value: str | None) -> str | None:
        return value and os.path.normpath(os.path.expanduser(value))

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if self.src_lang == self.tgt_lang:
            raise ValueError(
                f"src_lang and tgt_lang are both {self.src_lang!r}: their files would be the same"
            )
        if self.train == self.val or {self.train, self.val} & set(self.tests or ()):
            raise ValueError(f"train {self.train!r}, val {self.val!r} and tests must be different splits")
        return self


class VocabularyConfig(Section):
    """How tokens become numbers."""

    kind: Literal["subword", "word"] = "subword"
    """`subword`: pieces of spaCy's tokens (sentencepiece, unigram); `word`: spaCy's tokens themselves."""
    joint: bool = True
    """One vocabulary for both sides, or one for each."""
    size: Annotated[int, Field(ge=8)] = 8000
    """Entries of a subword vocabulary, specials included; fewer where the text does not give so many."""
    min_freq: Count = 1
    """A word vocabulary keeps the words seen at least so often."""
    max_size: Count | None = None
    """A word vocabulary keeps at most so many words; null keeps all."""


class ModelConfig(Section):
    """The shape of the Transformer."""

    encoder_layers: Count = 3
    """Layers of the encoder."""
    decoder_layers: Count = 3
    """Layers of the decoder."""
    d_model: Count = 256
    """Width of embeddings and layers."""
    heads: Count = 8
    """Attention heads."""
    head_width: Count | None = None
    """Width of a head's queries and keys; null takes d_model / heads."""
    value_width: Count | None = None
    """Width of a head's values; null takes d_model / heads."""
    projection_bias: bool = True
    """Biases in attention's four projections."""
    feed_forward: Count = 1024
    """Inner width of the feed-forward sublayer."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "relu"
    """The feed-forward's nonlinearity: ReLU, GELU, or GELU approximated by tanh."""
    dropout: Probability = 0.3
    """Dropout on each sublayer's output, before it is added to the residual."""
    embedding_dropout: Probability | None = None
    """Dropout on the sum of embedding and position; null takes that of `dropout`."""
    attention_dropout: Probability = 0.0
    """Dropout on attention weights."""
    activation_dropout: Probability = 0.0
    """Dropout after the feed-forward's nonlinearity."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer, or after each residual sum."""
    final_norm: bool | None = None
    """A last layer norm behind each stack; null has one with norm pre and none with post."""
    embedding_norm: bool = False
    """A layer norm behind the embedding's dropout, before the first layer."""
    norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5
    """What layer norms add to the variance."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Sinusoids or learned rows added to the embedding, or queries and keys rotated in self-attention."""
    max_positions: Count = 512
    """Rows of a learned table: no sentence is longer. Sinusoids and rotations go on without end."""
    share_embeddings: Literal["none", "target", "all"] = "all"
    """Share nothing; target embedding with output projection; or the source embedding too."""
    scale: Literal["emb", "prj", "none"] = "emb"
    """Multiply embeddings by sqrt(d_model); or logits by 1/sqrt(d_model), where embeddings are shared."""
    output_bias: bool = False
    """A bias in the output projection."""
    initialisation: Literal["xavier", "xavier_all", "depth_scaled"] = "xavier"
    """Xavier-uniform matrices; embeddings too; or, in layer l of a stack, divided by sqrt(l)."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if (self.head_width is None or self.value_width is None) and self.d_model % self.heads:
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of heads {self.heads}: "
                "change one, or give head_width and value_width"
            )
        if self.positions == "rotary" and self.key_width % 2:
            raise ValueError(
                f"positions is 'rotary', which turns pairs of columns, but a head is {self.key_width} wide: "
                "change d_model, heads or head_width"
            )
        if self.scale == "prj" and self.share_embeddings == "none":
            raise ValueError(
                "scale is 'prj' but share_embeddings is 'none': "
                "scaled logits make up for a projection that is an embedding"
            )
        return self

    @property
    def key_width(self) -> int:
        """Width of a head's queries and keys, d_k."""
        return self.head_width or self.d_model // self.heads

    @property
    def head_value_width(self) -> int:
        """Width of a head's values, d_v."""
        return self.value_width or self.d_model // self.heads

    @property
    def has_final_norm(self) -> bool:
        """Whether a layer norm closes each stack."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm


class TrainConfig(Section):
    """How the model is trained."""

    epochs: Count = 30
    """Passes over the training pairs."""
    max_steps: Count | None = None
    """Stop after so many steps, whatever the epochs; null sets no limit."""
    batch_tokens: Count = 4096
    """Most positions, padding included, that one step has on either side, over all devices."""
    batch_sentences: Count | None = None
    """Most pairs that one step has; null sets no limit."""
    accumulation: Count = 1
    """A step's pairs are computed in so many parts, one after the other, where memory is short."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-3
    """Highest learning rate, reached at the end of the warm-up."""
    warmup_steps: NotNegative = 400
    """Steps in which the learning rate rises from zero to its highest value."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "linear"
    """After the warm-up: fall with 1/sqrt(step), in a line or a half cosine towards zero, or stay."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.98)
    """AdamW's two decay rates."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-9
    """AdamW's epsilon."""
    weight_decay: NotNegativeFloat = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    clip_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Gradients with a larger norm are scaled down to it; null leaves them alone."""
    max_skipped_steps: NotNegative = 10
    """Training stops when more steps in a row than this had a loss or gradient that is no number."""
    label_smoothing: Probability = 0.1
    """Probability mass that is taken from the right token."""
    smoothing_mass: Literal["all", "others"] = "all"
    """Who gets that mass, evenly: all tokens of the vocabulary, or all but the right one and padding."""
    r_drop: NotNegativeFloat = 0.0
    """Weight of the divergence between two passes with different dropout (R-Drop); 0 makes one pass."""
    risk_epochs: NotNegative = 0
    """The last so many epochs lower the expected cost of translations that the model draws (minimum risk)."""
    risk_weight: Annotated[float, Field(gt=0.0)] = 40.0
    """Weight of that cost, 1 - sentence BLEU, beside the cross-entropy per token."""
    risk_samples: Annotated[int, Field(ge=2)] = 6
    """Translations that are drawn of each pair."""
    risk_learning_rate: Annotated[float, Field(gt=0.0)] = 1e-4
    """Learning rate at the beginning of those epochs; it falls in a line towards zero."""
    subword_dropout: Probability = 0.1
    """Share of the training words that are cut into other subwords at random, anew each epoch."""
    word_dropout: Probability = 0.0
    """Share of the source tokens that are read as <unk> at random in training."""
    rare_words: Probability = 0.3
    """Share of the training pairs in which a rare word and its translation stand in for frequent ones."""
    extra_share: Probability = 0.5
    """Share of an epoch's pairs that are drawn from data.extra, where there is any, in place of others."""
    ema_decay: Probability | None = 0.998
    """Validate and keep a moving average of the weights with this decay a step; null keeps the weights."""
    average_checkpoints: NotNegative = 0
    """At the end, try the mean of so many last weights, and of as many around the best; 0: neither."""
    validate_every_epochs: Count = 1
    """Epochs between two validations (loss and greedy BLEU on the validation split)."""
    patience: Count | None = None
    """Stop when so many validations in a row brought no better BLEU; null never stops early."""
    log_every_steps: Count = 50
    """Steps between two lines of metrics.jsonl."""
    keep_checkpoints: Count = 2
    """How many of the last checkpoints are kept."""

    @model_validator(mode="after")
    def _risk_epochs_come(self) -> Self:
        if self.risk_epochs >= self.epochs:
            raise ValueError(
                f"risk_epochs is {self.risk_epochs}, but they are the last of {self.epochs} epochs: "
                "a model that has learned nothing yet would learn nothing from what it draws"
            )
        if self.risk_epochs and self.patience is not None:
            raise ValueError(
                f"patience is {self.patience} and risk_epochs {self.risk_epochs}: "
                "a run that stops early would not come to its last epochs"
            )
        return self

    @property
    def first_risk_epoch(self) -> int:
        """The number, from 0, of the first epoch that lowers the risk; `epochs` where none does."""
        return self.epochs - self.risk_epochs


class DecodeConfig(Section):
    """How translations are searched for."""

    beam: Count = 5
    """Hypotheses of a sentence that are followed side by side; 1 is greedy search, as validations have it."""
    length_penalty: Alpha = 1.0
    """alpha: hypotheses are ranked by log_prob / length^alpha, where <eos> counts; 0 ranks by probability."""
    patience: Annotated[float, Field(ge=1.0)] | None = 2.0
    """A search ends once patience * beam hypotheses have ended; null ends it once none better can come."""
    min_length: NotNegative = 0
    """A translation has at least so many tokens, if its greatest length allows them."""
    batch_tokens: Count = 4096
    """Most source positions, padding included, that are decoded at once; each hypothesis of a beam counts."""
    max_length_ratio: Annotated[float, Field(gt=0.0)] = 2.0
    """A translation has at most max_length_ratio * source tokens + max_length_extra tokens."""
    max_length_extra: NotNegative = 10
    """See max_length_ratio."""
    max_source_tokens: Count = 256
    """Longer source lines are cut here, with a warning."""


class Config(Section):
    """Every setting of a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "base"
    """The run's name: its folder is runs/NAME."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Fixes initial weights, dropout and the order of the batches."""
    device: str = "auto"
    """`auto` takes a usable GPU, else the CPU; or `cpu`, `cuda`, `cuda:1`, `mps`."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """`auto` trains in bf16 where the hardware has it, and translates in float32."""
    data: DataConfig = DataConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError(f"{value!r} is none of auto, cpu, cuda, cuda:N, mps")
        return value

    @model_validator(mode="after")
    def _sharing_needs_a_joint_vocabulary(self) -> Self:
        if self.model.share_embeddings == "all" and not self.vocabulary.joint:
            raise ValueError(
                "model.share_embeddings is 'all' but vocabulary.joint is false: "
                "one embedding for both sides needs one vocabulary"
            )
        return self

    @model_validator(mode="after")
    def _learned_positions_reach_far_enough(self) -> Self:
        rows = self.model.max_positions
        for name, longest in (
            ("data.max_tokens", self.data.max_tokens),
            ("decode.max_source_tokens", self.decode.max_source_tokens),
        ):
            if self.model.positions == "learned" and longest + 1 > rows:
                raise ValueError(
                    f"{name} is {longest}, with <eos> one more, but model.max_positions is {rows}: "
                    "learned positions end there"
                )
        return self

    def to_yaml(self) -> str:
        """The whole config as YAML that `load_config` reads back to an equal value."""
        values = self.model_dump(mode="json")
        return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))

    def data_settings(self) -> dict[str, Any]:
        """The settings that decide what a prepared folder holds (where files come from does not)."""
        absent = {"extra"} if self.data.extra is None else set()  # a folder without is what it always was
        return {
            "data": self.data.model_dump(mode="json", exclude={"mirror", *absent}),
            "vocabulary": self.vocabulary.model_dump(mode="json"),
        }

    def data_hash(self) -> str:
        """Eight hexadecimal digits that differ when `data_settings` do."""
        canonical = json.dumps(self.data_settings(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:8]

    def replace(self, **sections: Any) -> Config:
        """A checked copy with some fields given anew."""
        return Config.model_validate(
            {**{name: getattr(self, name) for name in type(self).model_fields}, **sections}
        )


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """YAML with the scalars of its version 1.2: `1e-4` is a number, `no` is a string, no dates."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Quotes what `_Loader` would take for something else than a string."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError, KeyError, AttributeError)
"""What PyYAML raises, for 5,000 digits, 1,000 brackets, an anchor inside itself, a wrong tag."""

Place = tuple[str, int | None]
"""A file (or `--set`) and a line in it."""

Places = dict[tuple[str, ...], Place]
"""Where each key was written, by its path."""


class _Settings:
    """Nested settings together with the place where each of them was written."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: Places = {}

    def merge(self, values: Mapping[str, Any], places: Places) -> None:
        """Lay `values` over what is there, section by section; an empty section changes nothing."""
        empty = [key for key, value in values.items() if value is None and key in _sections()]
        _merge_into(self.values, {key: value for key, value in values.items() if key not in empty})
        self.places.update(places)

    def place(self, path: Sequence[str | int]) -> str:
        """Where a key was written, as `file, line 3: ` (the nearest enclosing key that was written)."""
        keys = tuple(str(part) for part in path)
        while keys and keys not in self.places:
            keys = keys[:-1]
        if not keys:
            return ""
        name, line = self.places[keys]
        return f"{name}, line {line}: " if line else f"{name}: "


def _merge_into(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge_into(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


def shipped_configs() -> Path:
    """The folder of the configs that come with nmt: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """The file that `--config NAME` means: a path if it exists, else a shipped config of that name.

    Raises ConfigError when there is neither, naming the shipped ones.
    """
    path = Path(name)
    return path if path.is_file() else _shipped_config(name)


def _shipped_config(name: str) -> Path:
    folder = shipped_configs()
    for candidate in (folder / name, folder / f"{name}.yaml"):
        if candidate.is_file() and folder in candidate.resolve().parents:
            return candidate
    known = sorted(found.relative_to(folder).as_posix() for found in folder.rglob("*.yaml"))
    stems = {path.removesuffix(".yaml"): path for path in known}
    nearest = difflib.get_close_matches(name.removesuffix(".yaml"), stems, n=1)
    hint = f"did you mean {stems[nearest[0]]}? " if nearest else ""
    raise ConfigError(
        f"config {name}: no such file, and no shipped config of that name",
        hint=f"{hint}shipped configs: {', '.join(known) or 'none'}",
    )


def load_config(
    name: str | Path = "base.yaml",
    *,
    overrides: Sequence[str] = (),
    source: str | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Config:
    """Read a config file with everything it extends, then lay `--set` and the options of their own over it.

    `overrides` are `section.key=value`, the value read as YAML; `source` replaces `data.source`, as `device`
    and `precision` replace the keys of their names.
    Raises ConfigError, naming file, line, key and the nearest known key.
    """
    file = find_config(str(name))
    settings = _Settings()
    settings.merge({"name": _default_name(file)}, {})
    _read_file(file, settings, ())
    for text in overrides:
        settings.merge(*_read_override(text))
    options: dict[str, tuple[tuple[str, ...], str | None]] = {
        "--data": (("data", "source"), source),
        "--device": (("device",), device),
        "--precision": (("precision",), precision),
    }
    for option, (path, value) in options.items():
        if value is not None:
            settings.merge(*_nested(path, value, option))
    return _validate(settings)


def config_from_mapping(values: Mapping[str, Any], origin: str) -> Config:
    """A config from values that were read elsewhere (a model file, a run folder); raises ConfigError."""
    settings = _Settings()
    settings.merge(values, {(key,): (origin, None) for key in values})
    return _validate(settings)


def _default_name(path: Path) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("._-")
    return stem or "run"


def _read_file(path: Path, settings: _Settings, chain: tuple[Path, ...]) -> None:
    resolved = path.resolve()
    if resolved in chain:
        names = " -> ".join(str(link) for link in (*chain, resolved))
        raise ConfigError(f"{path}: extends itself: {names}")
    values, places = read_yaml(path)
    parent = values.pop("extends", None)
    if parent is not None:
        if not isinstance(parent, str):
            raise ConfigError(f"{path}: extends: must be the name of one config file")
        beside = path.parent / parent
        if beside.is_file() and beside.resolve() == resolved and not (shipped_configs() / parent).is_file():
            raise ConfigError(f"{path}: extends itself")
        is_another = beside.is_file() and beside.resolve() != resolved
        _read_file(beside if is_another else _shipped_config(parent), settings, (*chain, resolved))
        settings.merge({"name": values.get("name", _default_name(path))}, {})
    settings.merge(values, places)


def read_yaml(path: Path) -> tuple[dict[str, Any], Places]:
    """A YAML file's keys and values, and where in the file each stands; raises ConfigError."""
    return _parse(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        if path.suffix == ".safetensors":
            raise ConfigError(f"{path} is a model, not a config", hint="name it with --model") from error
        raise ConfigError(
            f"{path}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8"
        ) from error


def _parse(text: str, name: str) -> tuple[dict[str, Any], Places]:
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)  # a SafeLoader
        places = dict(_places(node, name, ())) if isinstance(node, yaml.MappingNode) else {}
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem or error.context}") from error
    except _NOT_YAML as error:
        raise ConfigError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from error
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: must hold `key: value` lines", hint="see configs/base.yaml")
    return values, places


def _places(
    node: yaml.MappingNode, name: str, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Place]]:
    seen: set[str] = set()
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in seen:
            raise ConfigError(f"{name}, line {line}: {'.'.join((*path, key))} is given twice")
        seen.add(key)
        yield (*path, key), (name, line)
        if isinstance(value_node, yaml.MappingNode):
            yield from _places(value_node, name, (*path, key))


def _read_override(text: str) -> tuple[dict[str, Any], Places]:
    key, equals, raw = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: must be KEY=VALUE", hint="for example --set train.epochs=3")
    origin = f"--set {text}"
    try:
        value = yaml.load(raw, Loader=_Loader)  # a SafeLoader
    except _NOT_YAML as error:
        raise ConfigError(f"{origin}: not valid YAML", hint="quote it: --set 'key=\"value\"'") from error
    return _nested(path, value, origin)


def _nested(path: Sequence[str], value: Any, origin: str) -> tuple[dict[str, Any], Places]:
    """One value as a tree of sections, with the place where each level of it was written."""
    for part in reversed(path):
        value = {part: value}
    return value, {tuple(path[: depth + 1]): (origin, None) for depth in range(len(path))}


def _validate(settings: _Settings) -> Config:
    try:
        return Config.model_validate(settings.values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _explain(first, settings) from None


def _explain(fault: Any, settings: _Settings) -> ConfigError:
    """One pydantic complaint as one line: place, key, what is wrong; and the way out as the hint."""
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    place = settings.place(path)
    if fault["type"] == "extra_forbidden":
        return ConfigError(f"{place}unknown key {key}", hint=_nearest_key(path))
    if fault["type"] == "value_error":
        return ConfigError(f"{place}{key + ': ' if key else ''}{fault['ctx']['error']}")
    message = _MESSAGES.get(fault["type"]) or str(fault["msg"]).removeprefix("Input ")
    return ConfigError(f"{place}{key}: {message}, not {_as_written(fault['input'])}", hint=_meaning(path))


_MESSAGES = {
    "model_type": "should hold keys and values of its own",
    "tuple_type": "should be a list, such as [a, b]",
    "missing": "has too few entries",
    "too_long": "has too many entries",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text (in quotes a number is text)",
    "string_too_short": "is too short",
    "string_pattern_mismatch": "should be of letters, digits, dots, dashes and underscores",
}
"""Our words for those of pydantic's complaints that speak of Python's types or of patterns."""


def _as_written(value: Any) -> str:
    """A value about as YAML shows it, cut where it is long."""
    if isinstance(value, list | dict):
        return reprlib.repr(value)  # never long, even where YAML's aliases nest a value in itself
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meaning(path: Sequence[str]) -> str | None:
    """What a key is for, in the schema's words; for a section, the keys it has."""
    section = _sections().get(path[0])
    if section is not None and len(path) == 1:
        return f"it has {', '.join(section.model_fields)}"
    field = section.model_fields.get(path[1]) if section else Config.model_fields.get(path[0])
    return field.description if field else None


def _sections() -> dict[str, type[Section]]:
    """The schema's sections by name."""
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def all_keys() -> list[str]:
    """Every key of the schema, as `--set` takes it: `seed`, `train.epochs` and so on."""
    keys: list[str] = []
    sections = _sections()
    for name in Config.model_fields:
        inner = sections[name].model_fields if name in sections else None
        keys.extend([name] if inner is None else [f"{name}.{key}" for key in inner])
    return keys


_KNOWN_ELSEWHERE_AS = {
    "lr": "train.learning_rate",
    "batch_size": "train.batch_tokens",
    "beta1": "train.betas",
    "beta2": "train.betas",
    "grad_clip": "train.clip_norm",
    "early_stopping": "train.patience",
    "nhead": "model.heads",
    "hidden_size": "model.d_model",
    "emb_size": "model.d_model",
    "d_inner": "model.feed_forward",
    "d_ff": "model.feed_forward",
    "ffn_dim": "model.feed_forward",
    "lowercase": "data.src_lowercase",
    "fp16": "precision",
    "bf16": "precision",
}
"""What other programs call some of these keys, where the spelling alone would not lead here."""


def _nearest_key(path: Sequence[str]) -> str:
    """`did you mean …?`, looking in the same section first, then everywhere by the key's own name."""
    wanted = path[-1].lower()
    if wanted in _KNOWN_ELSEWHERE_AS:
        return f"did you mean {_KNOWN_ELSEWHERE_AS[wanted]}?"
    sections = list(_sections())
    keys = [*sections, *all_keys()]
    section = ".".join(path[:-1])
    siblings = [key for key in keys if key.rpartition(".")[0] == section]
    for candidates in (siblings, keys):
        by_name = {key.rpartition(".")[2]: key for key in reversed(candidates)}
        nearest = difflib.get_close_matches(wanted, by_name, n=1, cutoff=0.6)
        if nearest:
            return f"did you mean {by_name[nearest[0]]}?"
    return f"known here: {', '.join(key.rpartition('.')[2] for key in siblings or sections)}"
