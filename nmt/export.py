"""Stage: a model file in, the same model for another program or in another precision out.

This is the only user of ctranslate2. What its graph lacks is made up for in the weights, so that every
variant of the model can be exported: sinusoids become a table, and where d_k and d_v differ, the narrower
heads are filled up with zeros, which change no product.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nmt import __version__
from nmt.config import Config, ModelConfig
from nmt.data.vocabulary import BOS, EOS, SPECIALS, UNK, Vocabulary
from nmt.errors import ExportError, ModelFileError
from nmt.files import only_one, whole_folder
from nmt.model.attention import MultiHeadAttention
from nmt.model.layers import DecoderLayer, Embedding, FeedForward, Residual
from nmt.model.positions import sinusoids
from nmt.modelfile import Model, load_model, read_header, resolve_model, save_model

Format = Literal["ctranslate2", "safetensors"]

QUANTIZATIONS: Mapping[Format, tuple[str, ...]] = {
    "ctranslate2": (
        "float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16",
    ),
    "safetensors": ("float32", "float16", "bfloat16"),
}  # fmt: skip
"""What the weights of each format can be stored in."""

FACTS = "nmt.json"
"""The file by which a folder is known to be an export: where its model comes from."""

_README_NAME = "README.md"

_MAX_INPUT_TOKENS = 1024
"""What CTranslate2 cuts a source at unless it is told otherwise; the table of sinusoids reaches as far."""

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and the sizes of both."""

    path: Path
    format: Format
    quantization: str
    size_bytes: int
    model: Path
    model_bytes: int

    @property
    def example(self) -> Path | None:
        """The file that says how to run it; a model file needs none."""
        return self.path / _README_NAME if self.format == "ctranslate2" else None

    def __str__(self) -> str:
        sizes = f"{self.size_bytes / 1e6:,.1f} MB, {self.model} has {self.model_bytes / 1e6:,.1f} MB"
        return f"{self.path}: {self.format}, {self.quantization}, {sizes}"


def export(
    model: str | Path,
    *,
    format: Format,
    out: str | Path,
    quantization: str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a model file, or a run folder's best model, as `out`: a folder, or for safetensors a file.

    Without `quantization` a CTranslate2 model is stored in float32; safetensors only changes the precision,
    which has to be named. The result is whole or not there; what is refused is refused before anything is
    written. Raises ExportError for what cannot be exported or would be lost, ModelFileError, MachineError.
    """
    kind = _checked_quantization(format, quantization)
    file = resolve_model(Path(model))
    target = Path(os.path.realpath(out))
    if format == "safetensors":
        _refuse_to_lose_a_file(target, file, overwrite)
    else:
        _refuse_to_lose_a_folder(target, overwrite)
        _load_ctranslate2()
    loaded = load_model(file)
    if kind.endswith("float16") and "bfloat16" not in kind:
        _refuse_what_overflows(loaded.network)
    if format == "safetensors":
        _write_file(target, loaded, kind)
    else:
        _write_folder(target, loaded, kind)
    return Exported(Path(out), format, kind, _size_bytes(target), file, file.stat().st_size)


# --- what is refused --------------------------------------------------------------------------------------


def _checked_quantization(format: Format, quantization: str | None) -> str:
    known = QUANTIZATIONS[format]
    if quantization is None and format == "safetensors":
        raise ExportError(
            "a model file is exported to change its precision, and none is named",
            hint=f"add --quantization with one of {', '.join(known)}",
        )
    if quantization is not None and quantization not in known:
        raise ExportError(
            f"{format} knows no quantization {quantization!r}", hint=f"it knows {', '.join(known)}"
        )
    return quantization or "float32"


def _refuse_to_lose_a_file(target: Path, model: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if target.is_dir():
        raise ExportError(f"{target} is a folder", hint="name a file, such as model.safetensors")
    if target.samefile(model):
        raise ExportError(f"{target} is the model itself, which would be lost", hint="name another file")
    if not overwrite:
        raise ExportError(f"{target} is there already", hint="add --overwrite, or name another file")
    try:
        read_header(target)
    except ModelFileError as error:
        raise ExportError(
            f"{target} is no model file; it is left as it is", hint="name another file"
        ) from error


def _refuse_to_lose_a_folder(target: Path, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / FACTS).is_file():
        raise ExportError(
            f"{target} is there and is no export; it is left as it is", hint="name another folder"
        )
    if not overwrite:
        raise ExportError(f"{target} holds an export already", hint="add --overwrite, or name another folder")
    if strangers := sorted(path.name for path in target.iterdir() if not _is_of_an_export(path)):
        raise ExportError(
            f"{target} holds {strangers[0]}, which is not of the export; it is left as it is",
            hint="move it away, or name another folder",
        )


def _is_of_an_export(path: Path) -> bool:
    return path.is_file() and (
        path.name in (FACTS, _README_NAME, "config.json", "model.bin")
        or path.name.endswith(("_vocabulary.json", ".spm"))
    )


def _refuse_what_overflows(network: nn.Module) -> None:
    largest = torch.finfo(torch.float16).max
    for name, weight in network.named_parameters():
        if (found := weight.abs().max().item()) > largest:
            raise ExportError(
                f"{name} holds {found:.3g}, and float16 ends at {largest:.0f}", hint="take bfloat16"
            )


def _load_ctranslate2() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise ExportError(
            f"CTranslate2 cannot be imported: {error}",
            hint='python -m pip install "ctranslate2>=4.8,<5"',
        ) from error
    return ctranslate2


# --- writing ----------------------------------------------------------------------------------------------


def _write_file(target: Path, model: Model, kind: str) -> None:
    provenance = {**model.provenance, "precision": kind}
    save_model(target, replace(model, provenance=provenance), dtype=getattr(torch, kind))


def _write_folder(target: Path, model: Model, kind: str) -> None:
    spec = ctranslate2_spec(model)
    spec.validate()
    spec.optimize(quantization=kind)
    lock = target.with_name(f".{target.name}.lock")
    with only_one(lock, doing=f"exporting to {target}", timeout_s=0):
        with whole_folder(target) as draft:
            spec.save(str(draft))
            for name, content in _files_beside(model, kind):
                (draft / name).write_bytes(content)
        with suppress(OSError):  # Windows keeps a file that is open
            lock.unlink()


def _files_beside(model: Model, kind: str) -> Iterable[tuple[str, bytes]]:
    """What a user of the folder needs beside CTranslate2's own files."""
    facts = {
        "format": "ctranslate2",
        "quantization": kind,
        "nmt_version": __version__,
        "config": model.config.model_dump(mode="json"),
        "provenance": dict(model.provenance),
    }
    yield FACTS, f"{json.dumps(facts, ensure_ascii=False, indent=1, sort_keys=True)}\n".encode()
    yield _README_NAME, _readme(model, kind).encode()
    yield from _subword_models(model).items()


def _subword_models(model: Model) -> dict[str, bytes]:
    """The sentencepiece models by file name: one of both sides, or one of each; none for words."""
    src, tgt = model.src_vocabulary.to_state(), model.tgt_vocabulary.to_state()
    named = {"shared.spm": src} if src == tgt else {"source.spm": src, "target.spm": tgt}
    return {name: state.model for name, state in named.items() if state.model is not None}


def _size_bytes(path: Path) -> int:
    return sum(part.stat().st_size for part in (path.iterdir() if path.is_dir() else (path,)))


# --- the network in CTranslate2's terms -------------------------------------------------------------------


@torch.no_grad()
def ctranslate2_spec(model: Model) -> Any:
    """The model as a `ctranslate2.specs.TransformerSpec`, with its vocabularies; the weights are copies."""
    transformer_spec = _load_ctranslate2().specs.transformer_spec
    network, config = model.network, model.config.model
    encoder = transformer_spec.TransformerEncoderSpec(
        config.encoder_layers, config.heads, **_shape_of_layers(config)
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers, config.heads, alignment_heads=config.heads, **_shape_of_layers(config)
    )
    rows = longest_sequence(model.config)
    _fill_ends(encoder, encoder.embeddings[0], network.src_embedding, network.encoder_norm, config, rows)
    _fill_ends(decoder, decoder.embeddings, network.tgt_embedding, network.decoder_norm, config, rows)
    for layers, stack in ((encoder.layer, network.encoder), (decoder.layer, network.decoder)):
        for layer_spec, layer in zip(layers, stack, strict=True):
            _fill_layer(layer_spec, layer, config)
    _fill_linear(decoder.projection, network.projection.weight, network.projection.bias)
    if config.scale == "prj":
        decoder.scale_outputs = np.float32(config.d_model**-0.5)
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    _add_vocabularies(spec, model.src_vocabulary, model.tgt_vocabulary)
    spec.config.layer_norm_epsilon = config.norm_eps
    return spec


def longest_sequence(config: Config) -> int:
    """Rows of the table of positions: the longest source or target, `<eos>` or `<bos>` counted."""
    if config.model.positions == "learned":
        return config.model.max_positions
    source = config.decode.max_source_tokens
    target = int(config.decode.max_length_ratio * source) + config.decode.max_length_extra
    return max(_MAX_INPUT_TOKENS, source, target) + 1


def _shape_of_layers(config: ModelConfig) -> dict[str, Any]:
    """What both stacks are told, as if norms came first: only then can a spec have a final norm."""
    activations = _load_ctranslate2().specs.Activation
    return {
        "pre_norm": True,
        "no_final_norm": not config.has_final_norm,
        "activation": getattr(activations, _ACTIVATIONS[config.activation]),
        "layernorm_embedding": config.embedding_norm,
        "head_dim": max(config.key_width, config.head_value_width),
        "rotary_dim": config.key_width if config.positions == "rotary" else None,
    }


def _fill_ends(
    spec: Any, embeddings: Any, embedding: Embedding, final_norm: nn.Module, config: ModelConfig, rows: int
) -> None:
    """What an encoder or a decoder has before and behind its layers."""
    spec.pre_norm = config.norm == "pre"
    spec.scale_embeddings = config.scale == "emb"
    embeddings.weight = _copy(embedding.tokens.weight)
    if config.positions == "sinusoidal":
        spec.position_encodings.encodings = sinusoids(rows, config.d_model)
    elif config.positions == "learned":
        spec.position_encodings.encodings = _copy(embedding.positions.table)  # type: ignore[union-attr,arg-type]
    if embedding.norm is not None:
        _fill_norm(spec.layernorm_embedding, embedding.norm)
    if isinstance(final_norm, nn.LayerNorm):
        _fill_norm(spec.layer_norm, final_norm)


def _fill_layer(spec: Any, layer: Any, config: ModelConfig) -> None:  # EncoderLayer or DecoderLayer
    _fill_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual, config)
    if isinstance(layer, DecoderLayer):
        _fill_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual, config)
    _fill_feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual)


def _fill_attention(
    spec: Any, attention: MultiHeadAttention, residual: Residual, config: ModelConfig
) -> None:
    """Attention over itself takes queries, keys and values as one matrix, that over others the last two."""
    _fill_norm(spec.layer_norm, residual.norm)
    packed = [attention.query, attention.key_value]
    matrices = _evenly_wide_parts([linear.weight for linear in packed], attention, config)
    biases = [linear.bias for linear in packed if linear.bias is not None]
    vectors = _evenly_wide_parts(biases, attention, config)
    cuts = (slice(3),) if len(spec.linear) == 2 else (slice(1), slice(1, 3))
    for linear, cut in zip(spec.linear[:-1], cuts, strict=True):
        _fill_linear(linear, torch.cat(matrices[cut]), torch.cat(vectors[cut]) if vectors else None)
    _fill_linear(spec.linear[-1], _evenly_wide(attention.output.weight.T, config).T, attention.output.bias)
    if config.key_width < config.head_value_width:
        spec.queries_scale = np.float32(config.key_width**-0.5)  # else it takes the width with the zeros


def _evenly_wide_parts(
    packed: Sequence[Tensor], attention: MultiHeadAttention, config: ModelConfig
) -> list[Tensor]:
    """The weights of queries, keys and values, cut apart and all of one size."""
    if not packed:
        return []
    width, value_width = attention.widths  # of all heads together
    query, key, value = torch.split(torch.cat(list(packed)), [width, width, value_width])
    return [_evenly_wide(part, config) for part in (query, key, value)]


def _evenly_wide(weight: Tensor, config: ModelConfig) -> Tensor:
    """(H * d, …) -> (H * max(d_k, d_v), …): each head filled up with zeros."""
    width = max(config.key_width, config.head_value_width)
    heads = weight.reshape(config.heads, -1, *weight.shape[1:])  # (H,d,…)
    wide = weight.new_zeros(config.heads, width, *weight.shape[1:])
    wide[:, : heads.size(1)] = heads
    return wide.flatten(0, 1)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward, residual: Residual) -> None:
    _fill_norm(spec.layer_norm, residual.norm)
    _fill_linear(spec.linear_0, feed_forward.expand.weight, feed_forward.expand.bias)
    _fill_linear(spec.linear_1, feed_forward.contract.weight, feed_forward.contract.bias)


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _copy(weight)
    if bias is not None:
        spec.bias = _copy(bias)


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _copy(norm.weight), _copy(norm.bias)


def _add_vocabularies(spec: Any, src: Vocabulary, tgt: Vocabulary) -> None:
    """Pieces by id, and the specials: a source ends with `<eos>`, a target starts with `<bos>`."""
    spec.register_source_vocabulary(list(src.pieces))
    spec.register_target_vocabulary(list(tgt.pieces))
    spec.config.unk_token, spec.config.eos_token = SPECIALS[UNK], SPECIALS[EOS]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIALS[BOS]
    spec.config.add_source_eos = True


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().clone().contiguous()  # int8 quantization rounds what it is given in place


# --- the folder's README ----------------------------------------------------------------------------------

_README = """\
# {name}: {src} to {tgt}, for CTranslate2

A Transformer with {parameters:,} parameters, exported by nmt {version} with its weights in {kind}. `{facts}`
tells where it comes from. {terms}To translate a sentence, in this folder:

```python
{example}
```

For this `python -m pip install {packages}`. Of nmt it uses the text functions alone, which load
no torch. Without nmt the same tokens are

```python
import spacy

mark, marked = "▁", []
for word in {spacy}({text}):
    marked.append(mark + word.text)
    mark = "▁" if word.whitespace_ else ""
```

and a translation's text is `" ".join("".join(result.hypotheses[0]).replace("▁", " ").split())`. This differs
only for text that is not in Unicode's form NFC, has invisible characters or several spaces in a row, or holds
one of `\\ ▁ ▅`, which nmt writes as `\\\\ \\_ \\=` in its tokens.

- {vocabulary}
- `<unk>`, `<pad>` and `<bos>` are forbidden, since the model has not learned to say them. Scores are of the
  probabilities that are left to the other tokens.
- With `beam_size=1`, or with `length_penalty=0`, translations in float32 are those of `nmt translate` but for
  ties. With another penalty both end a search once `patience` * `beam_size` hypotheses have ended, which they
  do not count in quite the same way: a few translations may differ.
- {length}
- A blank line should stay blank, without being translated.
"""

_EXAMPLE = """\
import ctranslate2{imports}
from nmt.data.text import Tokenizer, detokenize, normalise

marked = Tokenizer({tokenizer})(normalise({text}))
{source}
(result,) = ctranslate2.Translator(".").translate_batch(
    [source],
    beam_size={beam},
    length_penalty={length_penalty},
    patience={patience},
    min_decoding_length={min_length},
    max_decoding_length={max_length},
    disable_unk=True,
    suppress_sequences=[["<pad>"], ["<bos>"]],
)
print(detokenize(result.hypotheses[0]))"""

_CUT = """\
subwords = sentencepiece.SentencePieceProcessor(model_file={file})
source = [piece for token in marked for piece in subwords.encode(token, out_type=str)][:{longest}]"""


def _readme(model: Model, kind: str) -> str:
    config, data = model.config, model.config.data
    subwords = next(iter(_subword_models(model)), None)
    pipeline = "spacy.load" if data.src_pipeline else "spacy.blank"
    terms = model.provenance.get("terms")
    return _README.format(
        name=config.name,
        src=data.src_lang,
        tgt=data.tgt_lang,
        parameters=sum(weight.numel() for weight in model.network.parameters()),
        version=__version__,
        kind=kind,
        facts=FACTS,
        terms=f"Terms of use: {terms}.\n\n" if terms else "",
        example=_example(config, subwords),
        packages="ctranslate2 sentencepiece" if subwords else "ctranslate2",
        spacy=f"{pipeline}({_quoted(data.src_pipeline or data.src_lang)})",
        text=_sentence(config) + (".lower()" if data.src_lowercase else ""),
        vocabulary=(
            f"`{subwords}` is a sentencepiece model, to which tokens are given one by one."
            if subwords
            else "The vocabularies hold whole tokens; any other is read as `<unk>`."
        ),
        length=(
            f"Sources, `<eos>` counted, and translations end at {longest_sequence(config):,} tokens. "
            f"Of a source nmt reads {config.decode.max_source_tokens:,}."
        ),
    )


def _example(config: Config, subwords: str | None) -> str:
    """Five statements that translate a sentence with the settings of `nmt translate`."""
    data, decode = config.data, config.decode
    longest = decode.max_source_tokens
    max_length = f"int({decode.max_length_ratio} * len(source)) + {decode.max_length_extra}"
    if config.model.positions == "learned":
        max_length = f"min({max_length}, {config.model.max_positions - 1})"
    return _EXAMPLE.format(
        imports=", sentencepiece" if subwords else "",
        tokenizer=", ".join(_quoted(name) for name in (data.src_lang, data.src_pipeline) if name),
        text=_sentence(config) + (", lowercase=True" if data.src_lowercase else ""),
        source=(
            _CUT.format(file=_quoted(subwords), longest=longest)
            if subwords
            else f"source = marked[:{longest}]"
        ),
        beam=decode.beam,
        length_penalty=decode.length_penalty,
        patience=(decode.patience or decode.beam) if decode.beam > 1 and decode.length_penalty > 0 else 1,
        min_length=decode.min_length,
        max_length=max_length,
    )


def _sentence(config: Config) -> str:
    """Something to translate, as Python writes it."""
    german = config.data.src_lang == "de"
    return _quoted("Zwei Kinder spielen im Park." if german else "Put a sentence here.")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
