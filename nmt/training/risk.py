"""Minimum risk training (Shen et al., 2016): lower the expected cost of translations that the model draws.

Letters: B pairs, K translations drawn of each, T target length, M real positions of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.data.batching import pad_target
from nmt.data.vocabulary import PAD
from nmt.training.loss import projection_loss, token_losses


@dataclass(frozen=True, slots=True)
class Drawn:
    """Translations drawn of each pair of a batch, and their costs."""

    tgt_in: Tensor
    """(B*K,T) ids, those of a pair in turn."""
    tgt_out: Tensor
    """(B*K,T) ids, one step ahead."""
    costs: Tensor
    """(B,K), from 0 for one that is as good as the reference to 1."""

    @classmethod
    def of(cls, translations: Sequence[Sequence[int]], costs: Tensor, device: torch.device) -> Drawn:
        """From ids without specials, those of a pair in turn, and costs (B,K)."""
        tgt_in, tgt_out = pad_target(translations)
        return cls(tgt_in.to(device), tgt_out.to(device), costs.to(device))


def expected_risk(states: Tensor, drawn: Drawn, projection: nn.Linear, shares: Tensor) -> Tensor:
    """The sum over pairs of shares (B) times the expected cost of their translations.

    The expectation is over the K that were drawn, each as probable as exp of its mean log-probability per
    token says (Shen et al., 2016, equations 6 and 7; by the mean: Edunov et al., 2018, equation 9).

    states (B*K,T,d_model): the decoder's output. The gradient is that of the mean losses m, d risk / d m_k =
    -Q_k (cost_k - risk), given to each token as a weight of its own loss, so that no logits are kept.
    """
    real = drawn.tgt_out != PAD
    states, targets, lengths = states[real], drawn.tgt_out[real], real.sum(1)  # (M,d_model), (M), (B*K)
    losses = token_losses(states, projection.weight, targets, projection.bias)  # (M)
    of = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)  # (M)
    means = losses.new_zeros(len(lengths)).index_add_(0, of, losses) / lengths
    costs = drawn.costs.to(losses.dtype)
    probabilities = (-means).view_as(costs).softmax(1)  # Q, (B,K)
    risks = (probabilities * costs).sum(1, keepdim=True)  # (B,1)
    pull = -probabilities * (costs - risks) * shares[:, None]
    weights = (pull.flatten() / lengths)[of]
    weighted, _ = projection_loss(
        states, projection.weight, targets, 0.0, bias=projection.bias, weights=weights
    )
    total = (shares * risks[:, 0]).sum()
    return weighted + (total - weighted).detach()
