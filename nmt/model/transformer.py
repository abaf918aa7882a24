"""The encoder-decoder ("Attention Is All You Need", section 3), read from top to bottom.

Letters: B batch, S source length, T target length, H heads, D head width, V vocabulary.
Masks are bool, True = attend.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.attention import KeysValues, attention_bias, causal_keep
from nmt.model.layers import DecoderLayer, Embedding, EncoderLayer


class Transformer(nn.Module):
    """Source ids and target ids in, the score of each next target token out."""

    def __init__(self, config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        width, share = config.d_model, config.share_embeddings
        self.tgt_embedding = Embedding(tgt_vocab_size, width, config.dropout)
        self.src_embedding = Embedding(src_vocab_size, width, config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm = nn.LayerNorm(width) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if config.norm == "pre" else nn.Identity()
        self.projection = nn.Linear(width, tgt_vocab_size, bias=False)
        self._initialise()
        if share in ("target", "all"):
            self.projection.weight = self.tgt_embedding.tokens.weight
        if share == "all":
            if src_vocab_size != tgt_vocab_size:
                raise ValueError(f"one embedding for vocabularies of {src_vocab_size} and {tgt_vocab_size}")
            self.src_embedding.tokens.weight = self.tgt_embedding.tokens.weight

    def forward(self, src: Tensor, src_keep: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits (B,T,V) of the token after each target position.

        src (B,S) ids, src_keep (B,S) True = attend, tgt_in (B,T) ids.
        """
        return self.logits(self.decode(tgt_in, self.encode(src, src_keep), src_keep))

    def encode(self, src: Tensor, src_keep: Tensor) -> Tensor:
        """The encoder's output ("memory"), (B,S,d_model)."""
        states = self.src_embedding(src)
        bias = attention_bias(src_keep[:, None, None, :], states.dtype)  # (B,1,1,S)
        for layer in self.encoder:
            states = layer(states, bias)
        return self.encoder_norm(states)  # type: ignore[no-any-return]

    def decode(self, tgt_in: Tensor, memory: Tensor, src_keep: Tensor) -> Tensor:
        """The decoder's output for all positions at once, (B,T,d_model)."""
        states, _ = self.advance(tgt_in, self.memory_keys_values(memory), src_keep, None)
        return states

    def memory_keys_values(self, memory: Tensor) -> list[KeysValues]:
        """Each decoder layer's keys and values of the encoder's output; computed once a sentence."""
        return [layer.cross_attention.keys_values(memory) for layer in self.decoder]  # type: ignore[union-attr,operator]

    def advance(
        self,
        tgt_in: Tensor,
        memory: Sequence[KeysValues],
        src_keep: Tensor,
        past: Sequence[KeysValues] | None,
    ) -> tuple[Tensor, list[KeysValues]]:
        """Decode T more positions behind the t positions of `past`.

        tgt_in (B,T), memory from `memory_keys_values`, past one pair (B,H,t,D) a layer or None for t = 0.
        Returns the decoder's output (B,T,d_model) and the keys and values of all t + T positions.
        """
        start = 0 if past is None else past[0][0].size(2)
        length = tgt_in.size(1)
        states = self.tgt_embedding(tgt_in, start)
        memory_bias = attention_bias(src_keep[:, None, None, :], states.dtype)  # (B,1,1,S)
        causal_bias = None
        if length > 1:
            causal_bias = attention_bias(
                causal_keep(start + length, states.device)[start:], states.dtype
            )  # (T,t+T)
        present = []
        for index, layer in enumerate(self.decoder):
            before = None if past is None else past[index]
            states, keys_values = layer(states, memory[index], causal_bias, memory_bias, before)
            present.append(keys_values)
        return self.decoder_norm(states), present

    def logits(self, states: Tensor) -> Tensor:
        """Scores over the vocabulary, (…,d_model) -> (…,V) (section 3.4)."""
        return self.projection(states)  # type: ignore[no-any-return]

    def _initialise(self) -> None:
        """Xavier-uniform matrices, zero biases, embeddings with standard deviation d_model^-0.5."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
