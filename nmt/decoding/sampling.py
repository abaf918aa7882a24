"""Random translations that depend on the seed and their own sentence, and on nothing beside it.

Letters: N rows being decoded, T longest translation, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def batch_noise(seed: int, sentences: Sequence[Sequence[int]], samples: int, positions: int) -> Tensor:
    """Numbers spread evenly over [0, 1), one for each sample and position: (sentences * samples, positions).

    They are drawn for the triple of seed, sample and sentence (its source ids), so a sentence gets the same
    ones in any batch, place and file, and asking for more of anything leaves the first ones as they were.
    """
    rows = [
        np.random.default_rng([seed, sample, *sentence]).random(positions, dtype=np.float32)
        for sentence in sentences
        for sample in range(samples)
    ]
    return torch.from_numpy(np.stack(rows))


def draw(log_probs: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Tokens (N) from softmax(log_probs / temperature), one for each row of log_probs (N,V) and noise (N).

    Each is the first at which the running sum of the probabilities exceeds the row's noise.
    """
    best, likeliest = log_probs.max(-1, keepdim=True)  # (N,1)
    sums = ((log_probs - best) / temperature).softmax(-1).cumsum(-1)  # (N,V)
    drawn = torch.searchsorted(sums, noise[:, None] * sums[:, -1:], right=True)  # (N,1)
    drawn = drawn.clamp(max=log_probs.size(-1) - 1)
    # rounding of the sums must not let a token through that cannot come
    return torch.where(log_probs.gather(1, drawn).isneginf(), likeliest, drawn).squeeze(1)
