"""The parts of the Transformer ("Attention Is All You Need", sections 3.1, 3.3 to 3.5).

Letters: B batch, S source length, T target length, H heads, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from nmt.config import ModelConfig
from nmt.model.attention import KeysValues, MultiHeadAttention
from nmt.model.dropout import Dropout, dropout
from nmt.model.positions import LearnedPositions, SinusoidalPositions

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda states: F.gelu(states, approximate="tanh"),
}
"""GELU is Hendrycks and Gimpel (2016), section 2; its tanh form their approximation there."""


class Embedding(nn.Module):
    """Token ids to states: the scaled row plus the position, then dropout (3.4, 3.5), then perhaps a norm."""

    def __init__(self, vocab_size: int, config: ModelConfig) -> None:
        super().__init__()
        d_model, drop = config.d_model, config.embedding_dropout
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.scale = math.sqrt(d_model) if config.scale == "emb" else 1.0
        self.positions = _positions(config)
        self.dropout = Dropout(config.dropout if drop is None else drop)
        self.norm = nn.LayerNorm(d_model, config.norm_eps) if config.embedding_norm else None

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids (B,T), the first at position `start` -> (B,T,d_model)."""
        states: Tensor = self.tokens(ids) * self.scale
        if self.positions is not None:
            states = self.positions(states, start)
        states = self.dropout(states)
        return states if self.norm is None else self.norm(states)


def _positions(config: ModelConfig) -> nn.Module | None:
    """What is added to embeddings; None where attention turns queries and keys instead."""
    match config.positions:
        case "sinusoidal":
            return SinusoidalPositions(config.d_model)
        case "learned":
            return LearnedPositions(config.d_model, config.max_positions)
        case "rotary":
            return None


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, equation 2; or with GELU in place of max(0, .)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.d_model, config.feed_forward)
        self.contract = nn.Linear(config.feed_forward, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.drop = config.activation_dropout

    def forward(self, states: Tensor) -> Tensor:
        """(B,T,d_model) -> (B,T,d_model)."""
        hidden = self.activation(self.expand(states))  # (B,T,feed_forward)
        if self.training:
            hidden = dropout(hidden, self.drop)
        output: Tensor = self.contract(hidden)
        return output


class Residual(nn.Module):
    """A sublayer's frame: norm(x + dropout(f(x))) with norm "post" (3.1), else x + dropout(f(norm(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def forward(self, states: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,T,d_model) -> (B,T,d_model)."""
        inner = self.norm(states) if self.pre else states
        states = states + self.dropout(sublayer(inner))
        return states if self.pre else self.norm(states)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, over_itself=True)
        self.feed_forward = FeedForward(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, states: Tensor, bias: Tensor, record: list[Tensor] | None = None) -> Tensor:
        """states (B,S,d_model), bias broadcastable to (B,H,S,S).

        The weights of self-attention are appended to `record` where there is one.
        """

        def look_around(x: Tensor) -> Tensor:
            keys_values = self.self_attention.keys_values(x)
            return self.self_attention(x, keys_values, bias, record=record)  # type: ignore[no-any-return]

        states = self.self_attention_residual(states, look_around)
        states = self.feed_forward_residual(states, self.feed_forward)
        return states


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, feed-forward (figure 1, right)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, over_itself=True)
        self.cross_attention = MultiHeadAttention(config, over_itself=False)
        self.feed_forward = FeedForward(config)
        self.self_attention_residual = Residual(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        states: Tensor,
        memory: KeysValues,
        causal_bias: Tensor | None,
        memory_bias: Tensor,
        past: KeysValues | None = None,
        start: int = 0,
        record: list[Tensor] | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """One layer on (B,T,d_model), the first at position `start`.

        memory: keys and values of the encoder's output, (B,H,S,D) each; or (B/K,H,S,D), where K rows in turn
        share a source. past: keys and values with room for start + T positions, those before `start` filled
        in, or None where there are none. Returns the new states and `past`, in which those of the T positions
        have been written, or without it a pair that holds just them. The weights of self-attention and then
        those over the encoder's output are appended to `record` where there is one.
        """
        present: KeysValues | None = None

        def look_back(x: Tensor) -> Tensor:
            nonlocal present
            present = _write(self.self_attention.keys_values(x, start), past, start)
            return self.self_attention(x, present, causal_bias, start, record)  # type: ignore[no-any-return]

        def look_across(x: Tensor) -> Tensor:
            together = x.view(len(memory[0]), -1, x.size(-1))  # (B/K,K*T,d_model)
            return self.cross_attention(together, memory, memory_bias, record=record).view_as(x)  # type: ignore[no-any-return]

        states = self.self_attention_residual(states, look_back)
        states = self.cross_attention_residual(states, look_across)
        states = self.feed_forward_residual(states, self.feed_forward)
        assert present is not None
        return states, present


def _write(new: KeysValues, past: KeysValues | None, start: int) -> KeysValues:
    """Put the keys and values of the positions from `start` on into `past`, if there is one."""
    if past is None:
        return new
    for room, part in zip(past, new, strict=True):
        room[:, :, start : start + part.size(2)] = part
    return past
