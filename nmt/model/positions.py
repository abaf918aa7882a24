"""Where a token stands: sinusoids, learned rows, rotations.

Letters: B batch, H heads, T positions, D head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoids(length: int, width: int) -> Tensor:
    """Sinusoidal positions (length, width), "Attention Is All You Need", section 3.5.

    Column j has the sine (j even) or cosine (j odd) of position / 10000^(2 floor(j/2) / width).
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angles = position * frequency  # (length, width/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width].float()


class SinusoidTable(nn.Module):
    """The first rows of `sinusoids`; more are made when a longer input comes, so there is no last one."""

    table: Tensor

    def __init__(self, width: int, length: int = 256) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, width), persistent=False)

    def rows(self, start: int, end: int) -> Tensor:
        """Positions start to end - 1, (end - start, width)."""
        table = self.table
        if end > table.size(0):
            with torch.inference_mode(False):  # else a table that grew while decoding could not be written to
                self.table = table = sinusoids(2 * end, table.size(1)).to(table)
        return table[start:end]  # of this call's table: another thread may have set a shorter one


class SinusoidalPositions(SinusoidTable):
    """Adds its sinusoid to each state (section 3.5)."""

    def forward(self, states: Tensor, start: int = 0) -> Tensor:
        """states (B,T,d_model), whose first column stands at position `start`."""
        return states + self.rows(start, start + states.size(1))


class LearnedPositions(nn.Module):
    """Adds a learned row to each state (Gehring et al., 2017, section 3.1); the table has a last row."""

    def __init__(self, d_model: int, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, d_model))

    def forward(self, states: Tensor, start: int = 0) -> Tensor:
        """states (B,T,d_model), whose first column stands at position `start`.

        Raises ValueError where the table ends before the states do.
        """
        end = start + states.size(1)
        if end > len(self.table):
            raise ValueError(f"position {end} is asked for, and the learned table ends at {len(self.table)}")
        return states + self.table[start:end]


class RotaryPositions(SinusoidTable):
    """Turns queries and keys by angles that grow with the position (RoFormer, Su et al., 2021, equation 34).

    The score of a query and a key then depends on their distance, not on where they stand.
    """

    def forward(self, states: Tensor, start: int = 0) -> Tensor:
        """states (B,H,T,D), queries or keys, whose first column stands at position `start`."""
        rows = self.rows(start, start + states.size(2))  # (T,D)
        sine, cosine = rows[:, 0::2], rows[:, 1::2]  # (T,D/2)
        even, odd = states[..., 0::2], states[..., 1::2]  # (B,H,T,D/2)
        turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
        return turned.flatten(-2).to(states.dtype)  # (B,H,T,D)
