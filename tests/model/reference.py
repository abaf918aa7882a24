"""The Transformer written a second time, plainly, from the equations: one sentence, one head at a time.

It shares no code with `nmt.model` and pads nothing; only the weights are the network's. In float64 it is what
the tests hold the network against.

Letters: S source length, T target length, d_model width, D head width, V vocabulary.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.model.transformer import Transformer


def logits(network: Transformer, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Logits (T,V) for one unpadded sentence: src (S) and tgt_in (T) ids."""
    config = network.config
    memory = embed(network.src_embedding, network, src)
    for layer in network.encoder:
        memory = residual(network, layer.self_attention_residual, memory, self_attention(network, layer))
        memory = residual(network, layer.feed_forward_residual, memory, feed_forward(network, layer))
    memory = norm(network.encoder_norm, memory, config.norm_eps)

    states = embed(network.tgt_embedding, network, tgt_in)
    for layer in network.decoder:
        looks_back = self_attention(network, layer, causal=True)
        states = residual(network, layer.self_attention_residual, states, looks_back)
        looks_across = cross_attention(network, layer, memory)
        states = residual(network, layer.cross_attention_residual, states, looks_across)
        states = residual(network, layer.feed_forward_residual, states, feed_forward(network, layer))
    states = norm(network.decoder_norm, states, config.norm_eps)

    found = states @ network.projection.weight.T
    if network.projection.bias is not None:
        found = found + network.projection.bias
    return found / math.sqrt(config.d_model) if config.scale == "prj" else found


def position(place: int, column: int, width: int) -> float:
    """PE(place, column): "Attention Is All You Need", section 3.5."""
    angle = place / 10_000 ** (column // 2 * 2 / width)
    return math.cos(angle) if column % 2 else math.sin(angle)


def positions(length: int, width: int) -> Tensor:
    """PE for all of (length, width)."""
    return torch.tensor(
        [[position(place, column, width) for column in range(width)] for place in range(length)],
        dtype=torch.float64,
    )


def embed(embedding: Any, network: Transformer, ids: Tensor) -> Tensor:
    """Section 3.4: the row times sqrt(d_model), where that is asked for; 3.5: plus the position."""
    config = network.config
    states = embedding.tokens.weight[ids]
    if config.scale == "emb":
        states = states * math.sqrt(config.d_model)
    if config.positions == "sinusoidal":
        # the network's table is kept in float32, so the comparison is with that rounding
        states = states + positions(len(ids), config.d_model).float().to(states.dtype)
    if config.positions == "learned":
        states = states + embedding.positions.table[: len(ids)]
    return norm(embedding.norm, states, config.norm_eps) if config.embedding_norm else states


def norm(module: Any, x: Tensor, eps: float) -> Tensor:
    """Layer norm (Ba et al., 2016, equations 3 and 4), or nothing where the module has no weights."""
    if not list(module.parameters()):
        return x
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * module.weight + module.bias


def residual(network: Transformer, frame: Any, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    """Section 3.1: LayerNorm(x + Sublayer(x)); with norm "pre" x + Sublayer(LayerNorm(x))."""
    eps = network.config.norm_eps
    if network.config.norm == "pre":
        return x + sublayer(norm(frame.norm, x, eps))
    return norm(frame.norm, x + sublayer(x), eps)


def feed_forward(network: Transformer, layer: Any) -> Callable[[Tensor], Tensor]:
    """Equation 2."""
    part = layer.feed_forward

    def gelu(x: Tensor) -> Tensor:
        return x / 2 * (1 + torch.erf(x / math.sqrt(2)))

    def gelu_tanh(x: Tensor) -> Tensor:
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    phi = {"relu": lambda x: x.clamp(min=0), "gelu": gelu, "gelu_tanh": gelu_tanh}[network.config.activation]
    return lambda x: (
        phi(x @ part.expand.weight.T + part.expand.bias) @ part.contract.weight.T + part.contract.bias
    )


def self_attention(network: Transformer, layer: Any, causal: bool = False) -> Callable[[Tensor], Tensor]:
    """Section 3.2.3: queries, keys and values from the same place."""
    turned = network.config.positions == "rotary"
    return lambda x: multi_head(network, layer.self_attention, x, x, causal=causal, turned=turned)


def cross_attention(network: Transformer, layer: Any, memory: Tensor) -> Callable[[Tensor], Tensor]:
    """Section 3.2.3: queries from the decoder, keys and values from the encoder's output."""
    return lambda x: multi_head(network, layer.cross_attention, x, memory, causal=False, turned=False)


def multi_head(
    network: Transformer, part: Any, x: Tensor, memory: Tensor, *, causal: bool, turned: bool
) -> Tensor:
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O."""
    config = network.config
    d_k = config.head_width or config.d_model // config.heads
    d_v = config.value_width or config.d_model // config.heads
    key_rows = config.heads * d_k

    def project(weight: Tensor, bias: Tensor | None, y: Tensor) -> Tensor:
        return y @ weight.T + (0 if bias is None else bias)

    both = part.key_value
    queries = project(part.query.weight, part.query.bias, x)
    keys = project(both.weight[:key_rows], None if both.bias is None else both.bias[:key_rows], memory)
    values = project(both.weight[key_rows:], None if both.bias is None else both.bias[key_rows:], memory)
    heads = []
    for head in range(config.heads):
        query = queries[:, head * d_k : (head + 1) * d_k]
        key = keys[:, head * d_k : (head + 1) * d_k]
        value = values[:, head * d_v : (head + 1) * d_v]
        if turned:
            query, key = turn(query), turn(key)
        heads.append(attention(query, key, value, causal=causal))
    return project(part.output.weight, part.output.bias, torch.cat(heads, dim=1))


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Equation 1, a sum at a time; a causal query sees no later key."""
    rows = []
    for t in range(len(query)):
        seen = t + 1 if causal else len(key)
        scores = torch.stack([(query[t] * key[s]).sum() / math.sqrt(query.size(1)) for s in range(seen)])
        weights = torch.exp(scores) / torch.exp(scores).sum()
        rows.append((weights[:, None] * value[:seen]).sum(0))
    return torch.stack(rows)


def turn(states: Tensor) -> Tensor:
    """Rotary positions as RoFormer's equation 12 has them: pairs as complex numbers times e^(i m theta)."""
    length, width = states.shape
    # the network keeps sines and cosines in float32, so the comparison is with that rounding
    factors = [
        [cmath.exp(1j * place * 10_000 ** (-pair / width)) for pair in range(0, width, 2)]
        for place in range(length)
    ]
    rounded = torch.tensor(factors, dtype=torch.complex128).to(torch.complex64).to(torch.complex128)
    pairs = torch.view_as_complex(states.reshape(length, width // 2, 2).contiguous())
    return torch.view_as_real(pairs * rounded).reshape(length, width)
