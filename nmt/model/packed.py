"""Linear layers for decoding on the CPU, their weights laid out once in the order that the kernels read.

torch's own float32 product leaves half of some processors unused (of an AMD EPYC with AVX-512, for one), and
a product in bf16 lays its matrix out again on each call. oneDNN's kernels over a packed matrix do neither,
and FBGEMM's compute in 8 bits. Both take any number of rows, and both come with torch.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from nmt.model.layers import ACTIVATIONS, FeedForward
from nmt.model.transformer import Transformer

_ROWS = 128
"""So many rows the layout is made for; it serves others as well."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch has the kernels for products in a type; on an x86 processor it has."""
    if "x86" not in torch.backends.quantized.supported_engines:
        return False
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return dtype == torch.int8 or (dtype in (torch.float32, torch.bfloat16) and has_onednn)


def packed(network: Transformer, dtype: torch.dtype = torch.float32) -> Transformer:
    """A copy for decoding whose linear layers multiply in `dtype`; all else stays float32, and shared.

    With int8 each row of a matrix is rounded to 8 bits by its own scale, and so is each input by one scale.
    The network itself comes back where it is not float32 on the CPU, or where `can_pack` says no. Weights
    that change afterwards change the copy in part only.
    """
    weight = network.projection.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not can_pack(dtype):
        return network
    return _packed(network, dtype)  # type: ignore[return-value]


def _packed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A module that shares its tensors with the first, with packed layers inside."""
    if isinstance(module, nn.Linear):
        return PackedLinear(module, dtype)
    twin = copy.copy(module)
    parts = dict(module._modules)
    twin._modules = {}  # one of its own, before anything is set
    if isinstance(module, FeedForward) and module.activation is ACTIVATIONS["relu"]:
        # what `expand` gives goes straight to `contract`, in the type that that takes
        twin.expand = PackedLinear(module.expand, dtype, relu=True, widens=False)
        twin.activation = nn.Identity()
        del parts["expand"]
    for name, part in parts.items():
        twin._modules[name] = part and _packed(part, dtype)
    return twin.eval()


class PackedLinear(nn.Module):
    """`torch.nn.Linear` without gradients: x W^T + b, and max(0, .) of it where `relu` is set.

    The output is float32; without `widens` it is of the type that was multiplied in, if that is a float's.
    """

    def __init__(
        self, linear: nn.Linear, dtype: torch.dtype, *, relu: bool = False, widens: bool = True
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype, self.relu, self.widens = dtype, relu, widens
        weight = linear.weight.detach()
        self.bias = None if linear.bias is None else linear.bias.detach()
        if dtype == torch.int8:
            self.weight = torch.ops.quantized.linear_prepack(_rounded(weight), self.bias)
        else:
            self.bias = None if self.bias is None else self.bias.to(dtype)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), _ROWS)

    def forward(self, states: Tensor) -> Tensor:
        """(…,in_features) -> (…,out_features)."""
        if self.dtype == torch.int8:
            kernels = torch.ops.quantized
            product = kernels.linear_relu_dynamic if self.relu else kernels.linear_dynamic
            return product(states, self.weight)  # type: ignore[no-any-return]
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            states.to(self.dtype), self.weight, self.bias, "relu" if self.relu else "none", [], ""
        )
        return output.float() if self.widens else output


def _rounded(weight: Tensor) -> Tensor:
    """A matrix in 8 bits, each row by its own scale."""
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch 2.13 announces another way to say this
        zeros = torch.zeros(len(weight), dtype=torch.long)
        return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
