"""Attention against torch's own, and at its edges.

Letters: B batch, H heads, D head width, T queries, S keys.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.config import ModelConfig
from nmt.model.attention import (
    MultiHeadAttention,
    attend,
    attention_bias,
    causal_keep,
)


def random_qkv(dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 3, n, 4, generator=generator, dtype=dtype) for n in (5, 6, 6))  # type: ignore[return-value]


def random_keep(seed: int = 1) -> Tensor:
    """(2,1,5,6) bool; each query may attend to its first key at least."""
    keep = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(seed)) > 0.5
    keep[..., 0] = True
    return keep


def torch_attention(ours: MultiHeadAttention, d_model: int) -> nn.MultiheadAttention:
    """torch's module with the same weights."""
    theirs = nn.MultiheadAttention(d_model, ours.heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((ours.query.weight, ours.key_value.weight)))
        theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key_value.bias)))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return theirs


@pytest.mark.parametrize("masked", [False, True])
def test_attend_equals_the_fused_kernel_of_torch(masked: bool) -> None:
    query, key, value = random_qkv()
    keep = random_keep() if masked else None
    bias = None if keep is None else attention_bias(keep, query.dtype)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    torch.testing.assert_close(attend(query, key, value, bias), expected, atol=1e-6, rtol=1e-5)


def test_one_query_by_hand() -> None:
    # Scores ln 3 and 0 give weights 3/4 and 1/4.
    query = torch.tensor([[[[math.log(3.0)]]]])
    key = torch.tensor([[[[1.0], [0.0]]]])
    value = torch.tensor([[[[8.0], [4.0]]]])
    assert attend(query, key, value, None).item() == pytest.approx(7.0)


def test_multi_head_attention_equals_torch_with_the_same_weights() -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(ModelConfig(d_model=24, heads=4), over_itself=False)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs = torch_attention(ours, 24)
    queries, keys = torch.randn(3, 5, 24), torch.randn(3, 7, 24)
    keep = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]  # (B,S)

    found = ours(queries, ours.keys_values(keys), attention_bias(keep[:, None, None, :], queries.dtype))

    expected, _ = theirs(queries, keys, keys, key_padding_mask=~keep)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_gradients_of_attend_equal_finite_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in random_qkv(torch.float64)]
    bias = attention_bias(random_keep(), torch.float64)
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, bias), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_masked_key_has_no_influence_at_all(dtype: torch.dtype) -> None:
    query, key, value = random_qkv(dtype)
    bias = attention_bias(torch.arange(6) < 4, dtype)  # (S)
    other_key, other_value = key.clone(), value.clone()
    other_key[..., 4:, :], other_value[..., 4:, :] = 30.0, -7.0
    assert torch.equal(attend(query, key, value, bias), attend(query, other_key, other_value, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_query_with_nothing_to_attend_to_takes_the_mean(
    dtype: torch.dtype,
) -> None:
    inputs = [tensor.requires_grad_() for tensor in random_qkv(dtype)]
    query, key, value = inputs
    context = attend(query, key, value, attention_bias(torch.zeros(6, dtype=torch.bool), dtype))
    mean = value.mean(2, keepdim=True).expand_as(context)
    torch.testing.assert_close(context, mean, atol=2e-2 if dtype != torch.float32 else 1e-6, rtol=1e-2)
    context.float().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in inputs)


def test_the_causal_mask_shows_each_position_itself_and_what_stands_before() -> None:
    keep = causal_keep(0, 4, 4, torch.device("cpu"))
    assert keep.tolist() == [[s <= t for s in range(4)] for t in range(4)]
    later = causal_keep(2, 4, 6, torch.device("cpu"))  # two queries, and keys with room for two more
    assert later.tolist() == [[s <= t for s in range(6)] for t in (2, 3)]


def test_attention_weights_are_dropped_only_while_training() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(ModelConfig(d_model=24, heads=4, attention_dropout=0.5), over_itself=True)
    states = torch.randn(2, 9, 24)
    keys_values = attention.keys_values(states)

    attention.eval()
    assert torch.equal(attention(states, keys_values, None), attention(states, keys_values, None))
    attention.train()
    assert not torch.equal(attention(states, keys_values, None), attention(states, keys_values, None))
