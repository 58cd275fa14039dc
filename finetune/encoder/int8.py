"""Linear layers with weights of 8 bits, for answering on a CPU (dynamic quantization).

A weight is a whole number of -127 to 127 times the scale of its output. What a layer reads is
rounded too, to 7 bits of its range in the batch: so an answer depends a little on the texts in its
batch. Sums are exact, and what leaves the layer is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finetune.errors import ConfigError

STEPS = 127
"""Of weights on each side of 0, and of the whole range of inputs: with 8 bits of these, processors
without instructions for it (VNNI) would add up more than their 16 bits hold."""
_LEAST = 1e-30


class Int8Linear(nn.Module):
    """A linear layer in 8 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        """Round a layer's weights; it is not changed itself.

        Args:
            linear: With float weights, on the CPU.

        Raises:
            ConfigError: This build of torch lacks oneDNN, which computes them.
        """
        super().__init__()
        if not torch._C._has_mkldnn:
            raise ConfigError("int8 needs oneDNN, which this build of torch lacks; remove it")
        weight = linear.weight.detach().float()
        self._scales = weight.abs().amax(dim=1).clamp(min=_LEAST) / STEPS  # (F,)
        rounded = (weight / self._scales[:, None]).round().to(torch.int8)
        self._packed: Tensor = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros(len(rounded), dtype=torch.int64)
        self._bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer, (..., D) -> (..., F)."""
        low, high = (float(end) for end in torch.aminmax(inputs))
        low, high = min(low, 0.0), max(high, 0.0)  # 0 is exact, as padding has it
        step = max((high - low) / STEPS, _LEAST)
        zero = round(-low / step)
        rounded = (inputs / step).round_().add_(zero).clamp_(0, STEPS).to(torch.uint8)
        weights = self._packed, self._scales, self._zeros, self._bias
        outputs: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded, step, zero, *weights, 1.0, 0, torch.float32, "none", [], ""
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
