"""Scaled dot-product and multi-head attention ("Attention Is All You Need", section 3.2).

Letters: B batch, H heads, D head width, T queries, S keys, d_model = H * D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.model.dropout import dropout

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one attention, each (B,H,S,D)."""


def attention_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where `keep` is True, else a number that softmax turns into exactly 0.

    keep: bool, True = attend. The number is finite, so a row with nothing to attend to gives an even
    distribution and not NaN.
    """
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill_(
        ~keep, torch.finfo(dtype).min / 2
    )


def causal_keep(length: int, device: torch.device) -> Tensor:
    """(T,T) bool, True where query t may see key s <= t (section 3.2.3)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, drop: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(D) + bias) V, equation 1.

    query (B,H,T,D), key and value (B,H,S,D), bias broadcastable to (B,H,T,S) or None, drop the
    probability with which attention weights are dropped. Returns (B,H,T,D).

    On the CPU this is two matrix products and a softmax: the backward pass of torch's fused kernel is
    several times slower there on sentences. Elsewhere the fused kernel is used.
    """
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=drop)
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B,H,T,S)
    if bias is not None:
        scores = scores + bias
    return dropout(scores.softmax(-1), drop) @ value


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each on its own projection of the input (section 3.2.2)."""

    def __init__(self, d_model: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads = heads
        self.drop = drop
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def keys_values(self, states: Tensor) -> KeysValues:
        """Project (B,S,d_model) to keys and values, each (B,H,S,D)."""
        key, value = self.key_value(states).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def forward(self, states: Tensor, keys_values: KeysValues, bias: Tensor | None) -> Tensor:
        """Attend from (B,T,d_model) to `keys_values`; returns (B,T,d_model)."""
        drop = self.drop if self.training else 0.0
        context = attend(self._split(self.query(states)), *keys_values, bias, drop)  # (B,H,T,D)
        output: Tensor = self.output(context.transpose(1, 2).flatten(2))
        return output

    def _split(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)  # (B,H,T,D)
