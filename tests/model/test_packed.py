"""Packed linear layers: the same numbers as the plain ones, as far as their type can tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.packed import PackedLinear, can_pack, packed
from nmt.model.transformer import Transformer

TYPES = [dtype for dtype in (torch.float32, torch.bfloat16, torch.int8) if can_pack(dtype)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.int8: 4e-2}
"""Of the largest number."""

pytestmark = pytest.mark.skipif(not TYPES, reason="this torch has no kernels for packed matrices")


def build(**settings: Any) -> Transformer:
    torch.manual_seed(3)
    config = ModelConfig(
        encoder_layers=2, decoder_layers=2, d_model=64, heads=4, feed_forward=96, dropout=0.3, **settings
    )
    return Transformer(config, 300, 300).eval()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    src_keep = torch.arange(9) < torch.tensor([9, 4, 1, 7])[:, None]
    src = torch.randint(4, 300, (4, 9), generator=generator).where(src_keep, 0)
    return src, src_keep, torch.randint(4, 300, (4, 6), generator=generator)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 24), (3, 5, 24), (200, 1, 24)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_packed_layer_is_the_plain_one(
    dtype: torch.dtype, shape: tuple[int, ...], bias: bool, relu: bool
) -> None:
    torch.manual_seed(0)
    linear, states = nn.Linear(24, 40, bias=bias), torch.randn(shape)
    with torch.no_grad():
        linear.weight[3] = 0.0
        expected = linear(states).relu() if relu else linear(states)
        close(PackedLinear(linear, dtype, relu=relu)(states), expected, dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation": "gelu", "norm": "post"},
        {"projection_bias": False, "share_embeddings": "none", "output_bias": True},
        {"positions": "rotary", "scale": "prj", "head_width": 12, "value_width": 8},
        {"positions": "learned", "embedding_norm": True},
    ],
    ids=str,
)
def test_a_packed_network_is_the_plain_one(dtype: torch.dtype, settings: dict[str, Any]) -> None:
    network = build(**settings)
    with torch.inference_mode():
        close(packed(network, dtype)(*inputs()), network(*inputs()), dtype)


def test_the_network_itself_stays_as_it_was_and_shares_what_is_not_packed() -> None:
    network = build().train()
    twin = packed(network)
    assert network.training
    assert not any(module.training for module in twin.modules())
    assert not any(isinstance(module, PackedLinear) for module in network.modules())
    assert not any(isinstance(module, nn.Linear) for module in twin.modules())
    assert twin.tgt_embedding.tokens.weight is network.tgt_embedding.tokens.weight
    network(*inputs()).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_what_cannot_be_packed_comes_back_itself() -> None:
    network = build().double()
    assert packed(network) is network
    assert packed(build().bfloat16(), torch.bfloat16).tgt_embedding.tokens.weight.dtype == torch.bfloat16
