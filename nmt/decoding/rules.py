"""What translations have to keep to, whichever search finds them: lengths, a prefix, forbidden tokens.

Letters: B sentences, N rows being decoded, P longest prefix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, UNK

_FREE = -1
"""Fills prefixes: the search chooses the token."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of B sentences, each by its own lengths, `<eos>` not counted, and its own prefix."""

    max_lengths: Tensor
    """(B) the most tokens; `<eos>` may still follow them."""
    min_lengths: Tensor
    """(B) the fewest tokens; no more than `max_lengths`."""
    prefixes: Tensor
    """(B,P) the first ids of each translation, then `_FREE`."""
    allow_unk: bool = False

    @classmethod
    def of(
        cls,
        max_lengths: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
        min_length: int = 0,
        allow_unk: bool = False,
        device: torch.device | str = "cpu",
    ) -> Rules:
        """From plain values, a length and a prefix for each sentence."""
        prefixes = [()] * len(max_lengths) if prefixes is None else prefixes
        longest = max(map(len, prefixes))
        padded = [[*prefix, *[_FREE] * (longest - len(prefix))] for prefix in prefixes]
        most = torch.tensor(max_lengths, device=device)
        starts = torch.tensor(padded, dtype=torch.long, device=device)
        return cls(most, most.clamp(max=min_length), starts, allow_unk)

    def forbid(self, log_probs: Tensor, position: int, sentences: Tensor) -> None:
        """Set what may not come at a position to -inf, in place: log_probs (N,V), sentences (N) of the rows.

        All others keep the probability that teacher forcing gives them. A prefix may hold any token.
        """
        forced = self.prefixes[sentences, position] if position < self.prefixes.size(1) else None  # (N)
        if forced is not None:
            rows = (forced != _FREE).nonzero().squeeze(1)
            tokens = forced[rows]
            gains = log_probs[rows, tokens]
        log_probs[:, PAD : BOS + 1] = -torch.inf
        if not self.allow_unk:
            log_probs[:, UNK] = -torch.inf
        log_probs[:, EOS].masked_fill_(self.min_lengths[sentences] > position, -torch.inf)
        if forced is not None:
            log_probs[rows] = -torch.inf
            log_probs[rows, tokens] = gains
