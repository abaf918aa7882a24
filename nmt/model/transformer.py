"""The encoder-decoder ("Attention Is All You Need", section 3), read from top to bottom.

Letters: B batch, S source length, T target length, H heads, D head width, V vocabulary.
Masks are bool, True = attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.attention import (
    ROOM,
    KeysValues,
    MultiHeadAttention,
    attention_bias,
    causal_keep,
    with_room,
)
from nmt.model.layers import DecoderLayer, Embedding, EncoderLayer, FeedForward
from nmt.model.positions import LearnedPositions


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Who attends to whom: one tensor a layer, its rows sum to 1."""

    encoder_self: tuple[Tensor, ...]
    """(B,H,S,S)"""
    decoder_self: tuple[Tensor, ...]
    """(B,H,T,T)"""
    decoder_cross: tuple[Tensor, ...]
    """(B,H,T,S), from target positions to source positions."""


class Transformer(nn.Module):
    """Source ids and target ids in, the score of each next target token out."""

    def __init__(self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        width, share = config.d_model, config.share_embeddings
        self.tgt_embedding = Embedding(tgt_vocab_size, config)
        self.src_embedding = Embedding(src_vocab_size, config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm = _final_norm(config)
        self.decoder_norm = _final_norm(config)
        self.projection = nn.Linear(width, tgt_vocab_size, bias=config.output_bias)
        initialise(self)
        if share in ("target", "all"):
            self.projection.weight = self.tgt_embedding.tokens.weight
        if share == "all":
            if src_vocab_size != tgt_vocab_size:
                raise ValueError(f"one embedding for vocabularies of {src_vocab_size} and {tgt_vocab_size}")
            self.src_embedding.tokens.weight = self.tgt_embedding.tokens.weight

    @property
    def max_positions(self) -> int | None:
        """The longest source or target, `<eos>` or `<bos>` counted, that has positions; None: any length."""
        return self.config.max_positions if self.config.positions == "learned" else None

    def forward(self, src: Tensor, src_keep: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits (B,T,V) of the token after each target position.

        src (B,S) ids, src_keep (B,S) True = attend, tgt_in (B,T) ids.
        """
        return self.logits(self.decode(tgt_in, self.encode(src, src_keep), src_keep))

    def attention(self, src: Tensor, src_keep: Tensor, tgt_in: Tensor) -> AttentionWeights:
        """The attention weights of every layer and head, for the inputs that `forward` takes."""
        encoder_record: list[Tensor] = []
        decoder_record: list[Tensor] = []
        memory = self.memory_keys_values(self.encode(src, src_keep, encoder_record))
        self.advance(tgt_in, memory, src_keep, record=decoder_record)
        itself, across = decoder_record[0::2], decoder_record[1::2]  # each layer has recorded both in turn
        return AttentionWeights(tuple(encoder_record), tuple(itself), tuple(across))

    def encode(self, src: Tensor, src_keep: Tensor, record: list[Tensor] | None = None) -> Tensor:
        """The encoder's output ("memory"), (B,S,d_model)."""
        states = self.src_embedding(src)
        bias = attention_bias(src_keep[:, None, None, :], states.dtype)  # (B,1,1,S)
        for layer in self.encoder:
            states = layer(states, bias, record)
        return self.encoder_norm(states)  # type: ignore[no-any-return]

    def decode(self, tgt_in: Tensor, memory: Tensor, src_keep: Tensor) -> Tensor:
        """The decoder's output for all positions at once, (B,T,d_model), as `logits` takes it."""
        states, _ = self.advance(tgt_in, self.memory_keys_values(memory), src_keep)
        return states

    def memory_keys_values(self, memory: Tensor) -> list[KeysValues]:
        """Each decoder layer's keys and values of the encoder's output; computed once a sentence."""
        return [layer.cross_attention.keys_values(memory) for layer in self.decoder]  # type: ignore[union-attr,operator]

    def advance(
        self,
        tgt_in: Tensor,
        memory: Sequence[KeysValues],
        src_keep: Tensor,
        past: Sequence[KeysValues] | None = None,
        start: int = 0,
        record: list[Tensor] | None = None,
    ) -> tuple[Tensor, list[KeysValues]]:
        """Decode T more positions, the first of which is `start`.

        tgt_in (B,T); memory from `memory_keys_values` and src_keep, both of the B rows or, where K rows in
        turn share a source, of the B/K sources. past: one pair (B,H,C,D) a layer whose first `start` of C
        positions are filled, as an earlier call returned it; None for start = 0. Returns the decoder's output
        (B,T,d_model) and such pairs for the next call, which are the same ones while they have room.
        """
        end = start + tgt_in.size(1)
        states = self.tgt_embedding(tgt_in, start)
        memory_bias = attention_bias(src_keep[:, None, None, :], states.dtype)  # (B/K,1,1,S)
        keys = end
        if past is not None:
            past = [with_room(keys_values, end + -end % ROOM) for keys_values in past]
            keys = past[0][0].size(2)
        causal_bias = None
        if keys > 1:
            causal_bias = attention_bias(causal_keep(start, end, keys, states.device), states.dtype)  # (T,C)
        present = []
        for index, layer in enumerate(self.decoder):
            before = None if past is None else past[index]
            states, keys_values = layer(
                states, memory[index], causal_bias, memory_bias, before, start, record
            )
            present.append(keys_values)
        states = self.decoder_norm(states)
        if self.config.scale == "prj":  # here, so that whoever projects the states cannot forget it
            states = states * self.config.d_model**-0.5
        return states, present

    def logits(self, states: Tensor) -> Tensor:
        """Scores over the vocabulary, (…,d_model) -> (…,V) (section 3.4)."""
        return self.projection(states)  # type: ignore[no-any-return]


def _final_norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.d_model, config.norm_eps) if config.has_final_norm else nn.Identity()


@torch.no_grad()
def initialise(network: Transformer) -> None:
    """Draw a network's first weights.

    Matrices are Xavier-uniform (Glorot and Bengio, 2010, equation 16), biases zero, embeddings and learned
    positions normal with standard deviation d_model^-0.5. Keys' and values' matrices count as the one that
    they are packed in, which makes them a little smaller and learns better (docs/results.md); with
    `xavier_all` they are drawn apart, and embeddings and positions are Xavier-uniform too. With
    `depth_scaled` the matrices of a stack's layer l are divided by sqrt(l) (Zhang et al., 2019).
    """
    config = network.config
    for module in network.modules():
        for matrix in _matrices(module, apart=config.initialisation == "xavier_all"):
            nn.init.xavier_uniform_(matrix)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        for table in _tables(module):
            if config.initialisation == "xavier_all":
                nn.init.xavier_uniform_(table)
            else:
                nn.init.normal_(table, std=config.d_model**-0.5)
    if config.initialisation == "depth_scaled":
        for stack in (network.encoder, network.decoder):
            for depth, layer in enumerate(stack, start=1):
                for module in layer.modules():
                    for matrix in _matrices(module, apart=False):
                        matrix /= depth**0.5


def _matrices(module: nn.Module, *, apart: bool) -> tuple[Tensor, ...]:
    """The matrices of one module, without its parts' own; those of keys and values apart or as packed."""
    match module:
        case MultiHeadAttention():
            packed = module.key_value.weight
            key_value = torch.split(packed, list(module.widths)) if apart else (packed,)
            return module.query.weight, *key_value, module.output.weight
        case FeedForward():
            return module.expand.weight, module.contract.weight
        case Transformer():
            return (module.projection.weight,)
        case _:
            return ()


def _tables(module: nn.Module) -> tuple[Tensor, ...]:
    """The rows that one module looks up."""
    match module:
        case nn.Embedding():
            return (module.weight,)
        case LearnedPositions():
            return (module.table,)
        case _:
            return ()
