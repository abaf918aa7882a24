"""The parts of the Transformer ("Attention Is All You Need", sections 3.1, 3.3 to 3.5).

Letters: B batch, S source length, T target length, H heads, D head width, d_model = H * D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.attention import KeysValues, MultiHeadAttention
from nmt.model.dropout import Dropout, dropout

Norm = Literal["pre", "post"]


def sinusoids(length: int, d_model: int) -> Tensor:
    """Sinusoidal positions (length, d_model), section 3.5: sine in even, cosine in odd columns."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000.0) / d_model))
    angles = position * frequency  # (length, d_model/2)
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
            with torch.inference_mode(False):  # else a table that grew while decoding could not be written to
                self.table = sinusoids(2 * end, self.table.size(1)).to(self.table)
        return states + self.table[start:end]


class Embedding(nn.Module):
    """Token ids to states: sqrt(d_model) times the row, plus the position, then dropout (3.4, 3.5)."""

    def __init__(self, vocab_size: int, d_model: int, drop: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = Positions(d_model)
        self.dropout = Dropout(drop)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids (B,T) -> (B,T,d_model)."""
        states: Tensor = self.tokens(ids) * math.sqrt(self.tokens.embedding_dim)
        states = self.dropout(self.positions(states, start))
        return states


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, equation 2."""

    def __init__(self, d_model: int, inner: int, drop: float) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, inner)
        self.contract = nn.Linear(inner, d_model)
        self.drop = drop

    def forward(self, states: Tensor) -> Tensor:
        """(B,T,d_model) -> (B,T,d_model)."""
        hidden: Tensor = self.expand(states).relu()  # (B,T,inner)
        if self.training:
            hidden = dropout(hidden, self.drop)
        output: Tensor = self.contract(hidden)
        return output


class Residual(nn.Module):
    """A sublayer's frame (3.1): norm(x + dropout(f(x))) or, with norm "pre", x + dropout(f(norm(x)))."""

    def __init__(self, d_model: int, norm: Norm, drop: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(drop)
        self.pre = norm == "pre"

    def forward(self, states: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,T,d_model) -> (B,T,d_model)."""
        inner = self.norm(states) if self.pre else states
        states = states + self.dropout(sublayer(inner))
        return states if self.pre else self.norm(states)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, norm, drop = config.d_model, config.norm, config.dropout
        self.self_attention = MultiHeadAttention(d_model, config.heads, config.attention_dropout)
        self.feed_forward = FeedForward(d_model, config.feed_forward, config.activation_dropout)
        self.self_attention_residual = Residual(d_model, norm, drop)
        self.feed_forward_residual = Residual(d_model, norm, drop)

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        """states (B,S,d_model), bias broadcastable to (B,H,S,S)."""
        attention = self.self_attention
        states = self.self_attention_residual(states, lambda x: attention(x, attention.keys_values(x), bias))
        states = self.feed_forward_residual(states, self.feed_forward)
        return states


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward (figure 1, right)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, norm, drop = config.d_model, config.norm, config.dropout
        self.self_attention = MultiHeadAttention(d_model, config.heads, config.attention_dropout)
        self.cross_attention = MultiHeadAttention(d_model, config.heads, config.attention_dropout)
        self.feed_forward = FeedForward(d_model, config.feed_forward, config.activation_dropout)
        self.self_attention_residual = Residual(d_model, norm, drop)
        self.cross_attention_residual = Residual(d_model, norm, drop)
        self.feed_forward_residual = Residual(d_model, norm, drop)

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

        states = self.self_attention_residual(states, look_back)
        states = self.cross_attention_residual(states, lambda x: self.cross_attention(x, memory, memory_bias))
        states = self.feed_forward_residual(states, self.feed_forward)
        assert present is not None
        return states, present


def _append(past: KeysValues | None, new: KeysValues) -> KeysValues:
    if past is None:
        return new
    return torch.cat((past[0], new[0]), dim=2), torch.cat((past[1], new[1]), dim=2)
