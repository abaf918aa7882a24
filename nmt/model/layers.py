"""The parts of the Transformer ("Attention Is All You Need", sections 3.1, 3.3 to 3.5).

Letters: B batch, S source length, T target length, H heads, D head width, d_model = H * D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nmt.model.attention import KeysValues, MultiHeadAttention
from nmt.model.dropout import Dropout, dropout

Norm = Literal["pre", "post"]


def sinusoids(length: int, d_model: int) -> Tensor:
    """Sinusoidal positions (length, d_model), section 3.5: sine in even, cosine in odd columns."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    wavelength = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000.0) / d_model))
    angles = position * wavelength  # (length, d_model/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


class Positions(nn.Module):
    """Adds the sinusoidal position to each state; the table grows when a longer input comes."""

    table: Tensor

    def __init__(self, d_model: int, length: int = 256) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, d_model), persistent=False)

    def forward(self, states: Tensor, start: int = 0) -> Tensor:
        """states (B,T,d_model), whose first column stands at position `start`."""
        end = start + states.size(1)
        if end > self.table.size(0):
            self.table = sinusoids(2 * end, self.table.size(1)).to(self.table)
        return states + self.table[start:end]


class Embedding(nn.Module):
    """Token ids to states: sqrt(d_model) times the token's row, plus its position, then dropout (3.4, 3.5)."""

    def __init__(self, vocab_size: int, d_model: int, drop: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = Positions(d_model)
        self.dropout = Dropout(drop)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids (B,T) -> (B,T,d_model)."""
        states = self.tokens(ids) * math.sqrt(self.tokens.embedding_dim)
        return self.dropout(self.positions(states, start))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, equation 2."""

    def __init__(self, d_model: int, inner: int, drop: float) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, inner)
        self.contract = nn.Linear(inner, d_model)
        self.drop = drop

    def forward(self, states: Tensor) -> Tensor:
        """(B,T,d_model) -> (B,T,d_model)."""
        hidden = self.expand(states).relu()
        return self.contract(dropout(hidden, self.drop) if self.training else hidden)


class Residual(nn.Module):
    """A sublayer's frame: x + dropout(f(norm(x))) with norm "pre", norm(x + dropout(f(x))) with "post" (3.1)."""

    def __init__(self, d_model: int, norm: Norm, drop: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(drop)
        self.pre = norm == "pre"

    def forward(self, states: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,T,d_model) -> (B,T,d_model)."""
        if self.pre:
            return states + self.dropout(sublayer(self.norm(states)))
        return self.norm(states + self.dropout(sublayer(states)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    def __init__(
        self, d_model: int, heads: int, inner: int, *, norm: Norm, drop: float, attention: float, activation: float
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads, attention)
        self.feed_forward = FeedForward(d_model, inner, activation)
        self.residuals = nn.ModuleList(Residual(d_model, norm, drop) for _ in range(2))

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        """states (B,S,d_model), bias broadcastable to (B,H,S,S)."""
        attention = self.self_attention
        states = self.residuals[0](states, lambda x: attention(x, attention.keys_values(x), bias))
        return self.residuals[1](states, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward (figure 1, right)."""

    def __init__(
        self, d_model: int, heads: int, inner: int, *, norm: Norm, drop: float, attention: float, activation: float
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads, attention)
        self.cross_attention = MultiHeadAttention(d_model, heads, attention)
        self.feed_forward = FeedForward(d_model, inner, activation)
        self.residuals = nn.ModuleList(Residual(d_model, norm, drop) for _ in range(3))

    def forward(
        self,
        states: Tensor,
        memory: KeysValues,
        causal_bias: Tensor | None,
        memory_bias: Tensor,
        past: KeysValues | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """One layer on (B,T,d_model), with what stands before it.

        memory: keys and values of the encoder's output, each (B,H,S,D). past: keys and values of the t
        earlier positions, each (B,H,t,D), or None. Returns the new states and the keys and values of all
        t + T positions.
        """
        present: KeysValues | None = None

        def look_back(x: Tensor) -> Tensor:
            nonlocal present
            present = _append(past, self.self_attention.keys_values(x))
            return self.self_attention(x, present, causal_bias)  # type: ignore[no-any-return]

        states = self.residuals[0](states, look_back)
        states = self.residuals[1](states, lambda x: self.cross_attention(x, memory, memory_bias))
        states = self.residuals[2](states, self.feed_forward)
        assert present is not None
        return states, present


def _append(past: KeysValues | None, new: KeysValues) -> KeysValues:
    if past is None:
        return new
    return torch.cat((past[0], new[0]), dim=2), torch.cat((past[1], new[1]), dim=2)
