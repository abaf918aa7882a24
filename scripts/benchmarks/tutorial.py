"""Training beside the loop of a tutorial: torch.nn.Transformer, cross-entropy over all positions, Adam.

Letters: B batch, S source length, T target length.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.base import (
    Bench,
    Section,
    precisions,
    synchronise,
)
from benchmarks.training import Runner, Steps, Training, training_race
from nmt.config import Config
from nmt.data.batching import Batch, Rows, make_batch
from nmt.data.vocabulary import PAD
from nmt.model.positions import sinusoids

TITLE = "training beside a tutorial's loop"


class TutorialTransformer(nn.Module):
    """torch.nn.Transformer between embeddings and a linear layer, as in PyTorch's translation tutorial."""

    positions: Tensor

    def __init__(self, config: Config, src_vocab_size: int, tgt_vocab_size: int) -> None:
        super().__init__()
        model = config.model
        self.scale = math.sqrt(model.d_model)
        self.src_embedding = nn.Embedding(src_vocab_size, model.d_model)
        self.tgt_embedding = nn.Embedding(tgt_vocab_size, model.d_model)
        self.register_buffer("positions", sinusoids(1024, model.d_model))
        self.dropout = nn.Dropout(model.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that pre-norm has no fast path for inference
            self.transformer = nn.Transformer(
                model.d_model,
                model.heads,
                model.encoder_layers,
                model.decoder_layers,
                model.feed_forward,
                model.dropout,
                norm_first=model.norm == "pre",
                batch_first=True,
            )
        self.generator = nn.Linear(model.d_model, tgt_vocab_size)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits (B,T,V) from ids (B,S) and (B,T)."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device).isinf()
        states = self.transformer(
            self._embedded(self.src_embedding, src),
            self._embedded(self.tgt_embedding, tgt),
            tgt_mask=causal,
            src_key_padding_mask=src == PAD,
            tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=src == PAD,
        )
        logits: Tensor = self.generator(states)
        return logits

    def _embedded(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(embedding(ids) * self.scale + self.positions[: ids.size(1)])
        return dropped


class Tutorial:
    """The tutorial's training loop; each call goes on with the same network."""

    def __init__(self, bench: Bench, precision: torch.dtype) -> None:
        data, settings = bench.data, bench.config.train
        torch.manual_seed(bench.config.seed)
        network = TutorialTransformer(bench.config, len(data.src_vocabulary), len(data.tgt_vocabulary))
        self.network = network.to(bench.device).train()
        self.loss = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=settings.label_smoothing)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
        self.split, self.device, self.precision = data.split(data.train), bench.device, precision

    def steps(self, plan: Sequence[Rows]) -> Steps:
        """A step on each batch of a plan, padding it included."""
        found = Steps([], [])
        for rows in plan:
            begun = time.perf_counter()
            batch = make_batch(self.split, rows).to(self.device)
            self._step(batch)
            synchronise(self.device)
            found.seconds.append(time.perf_counter() - begun)
            found.tokens.append(batch.num_tokens)
        return found

    def _step(self, batch: Batch) -> None:
        half = self.precision == torch.bfloat16
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            logits = self.network(batch.src, batch.tgt_in)
            loss = self.loss(logits.reshape(-1, logits.size(-1)), batch.tgt_out.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()


def tutorial_section(bench: Bench) -> Section:
    """Training of nmt and of the tutorial's loop, in each precision."""
    runners: dict[str, Runner] = {}
    for name, dtype in precisions(bench):
        runners[f"nmt, {name}"] = Training(bench, dtype).steps
        runners[f"tutorial, {name}"] = Tutorial(bench, dtype).steps
    note = "the tutorial's network has three vocabulary matrices where nmt's may share one"
    return training_race(bench, TITLE, runners, (note,))
