"""Linear layers with weights of 8 bits, for answering on a CPU (dynamic quantization).

A weight is a whole number of -127 to 127 times the scale of its output. What a layer reads gets 8
bits too, by its range in the batch: so an answer depends a little on the texts in its batch. Sums
are exact, and what leaves the layer is float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 127.0


class Int8Linear(nn.Module):
    """A linear layer in 8 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        """Round a layer's weights; it is not changed itself.

        Args:
            linear: With float weights, on the CPU.
        """
        super().__init__()
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny) / LARGEST
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self._packed: Any = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer, (..., D) -> (..., F)."""
        # 7 bits for the inputs: without instructions for it (VNNI), sums of 8 bits overflow.
        outputs: Tensor = torch.ops.quantized.linear_dynamic(
            inputs.contiguous(), self._packed, reduce_range=True
        )
        return outputs


def to_int8(module: nn.Module) -> nn.Module:
    """Put 8-bit layers in the place of all linear layers below a module; returns it."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            to_int8(child)
    return module
