"""Scaled dot-product and multi-head attention ("Attention Is All You Need", section 3.2).

Letters: B batch, H heads, T queries, S keys, D width of a head (d_k for queries and keys, d_v for values).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.config import ModelConfig
from nmt.model.dropout import dropout
from nmt.model.positions import RotaryPositions

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one attention, (B,H,S,d_k) and (B,H,S,d_v)."""

ROOM = 16
"""Keys and values of decoding have room for a multiple of so many positions: a vector of the CPU's. With
fewer than one vector's keys its softmax and its products take several times as long, and in bf16 with any
number that does not fill its vectors; so softmax is always given float32 and at least one vector."""


def attention_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where `keep` is True, else a number that softmax turns into exactly 0.

    keep: bool, True = attend. The number is finite, so a row with nothing to attend to gives an even
    distribution and not NaN.
    """
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill_(
        ~keep, torch.finfo(dtype).min / 2
    )


def causal_keep(start: int, end: int, keys: int, device: torch.device) -> Tensor:
    """(end - start, keys) bool, True where the query at start, start + 1, … may see key s (section 3.2.3)."""
    return torch.arange(keys, device=device) <= torch.arange(start, end, device=device)[:, None]


def with_room(keys_values: KeysValues, length: int) -> KeysValues:
    """Keys and values with room for `length` positions or more; where it is made, it is zero.

    For a weight of zero does not hide what is no number.
    """
    keys, values = keys_values
    missing = length - keys.size(2)
    if missing <= 0:
        return keys_values
    return F.pad(keys, (0, 0, 0, missing)), F.pad(values, (0, 0, 0, missing))


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias), the weights of equation 1.

    query (B,H,T,d_k), key (B,H,S,d_k), bias broadcastable to (B,H,T,S) or None; returns (B,H,T,S), in
    float32 where the product is narrower.
    """
    scores = query @ key.mT / math.sqrt(query.size(-1))
    if bias is not None:
        scores = scores + bias
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    keys = scores.size(-1)
    if keys >= ROOM or scores.device.type != "cpu":
        return scores.softmax(-1)
    return F.pad(scores, (0, ROOM - keys), value=-torch.inf).softmax(-1)[..., :keys]


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, drop: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias) V, equation 1.

    query (B,H,T,d_k), key (B,H,S,d_k), value (B,H,S,d_v), bias broadcastable to (B,H,T,S) or None, drop
    the probability with which attention weights are dropped. Returns (B,H,T,d_v).

    On the CPU this is two matrix products and a softmax: the backward pass of torch's fused kernel is
    several times slower there on sentences. Elsewhere the fused kernel is used.
    """
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=drop)
    return dropout(attention_weights(query, key, bias), drop).to(value.dtype) @ value


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each on its own projection of the input (section 3.2.2).

    Where positions are rotary, self-attention turns its queries and keys; attention over the encoder's
    output, whose positions count another sentence, does not.
    """

    def __init__(self, config: ModelConfig, *, over_itself: bool) -> None:
        super().__init__()
        d_model, bias = config.d_model, config.projection_bias
        self.heads = config.heads
        self.drop = config.attention_dropout
        self.widths = config.heads * config.key_width, config.heads * config.head_value_width
        self.query = nn.Linear(d_model, self.widths[0], bias=bias)
        self.key_value = nn.Linear(d_model, sum(self.widths), bias=bias)
        self.output = nn.Linear(self.widths[1], d_model, bias=bias)
        turns = over_itself and config.positions == "rotary"
        self.rotary = RotaryPositions(config.key_width) if turns else None

    def keys_values(self, states: Tensor, start: int = 0) -> KeysValues:
        """Project (B,S,d_model), the first at position `start`, to (B,H,S,d_k) and (B,H,S,d_v)."""
        key, value = (self._split(part) for part in self.key_value(states).split(self.widths, dim=-1))
        return key if self.rotary is None else self.rotary(key, start), value

    def forward(
        self,
        states: Tensor,
        keys_values: KeysValues,
        bias: Tensor | None,
        start: int = 0,
        record: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend from (B,T,d_model), the first at position `start`, to `keys_values`; returns (B,T,d_model).

        The weights (B,H,T,S) are appended to `record` where there is one; nothing is dropped from them then.
        """
        query = self._split(self.query(states))
        if self.rotary is not None:
            query = self.rotary(query, start)
        if record is not None:
            record.append(attention_weights(query, keys_values[0], bias))
            context = record[-1] @ keys_values[1]
        else:
            context = attend(query, *keys_values, bias, self.drop if self.training else 0.0)  # (B,H,T,d_v)
        output: Tensor = self.output(context.transpose(1, 2).flatten(2))
        return output

    def _split(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)  # (B,H,T,D)
