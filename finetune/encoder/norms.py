"""Normalization of hidden states: with the mean taken off, or by their size alone."""

from __future__ import annotations

from torch import nn

from finetune.encoder.config import EncoderConfig

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {
    "layer": nn.LayerNorm,  # (x - mean) / sqrt(variance + eps) ⊙ g + b (Ba et al., 2016, section 3)
    "rms": nn.RMSNorm,  # x / sqrt(mean of x² + eps) ⊙ g (Zhang and Sennrich, 2019, section 3)
}
"""Name in a config -> the module, made from the width of what it normalizes."""


def make_norm(config: EncoderConfig, size: int) -> nn.LayerNorm | nn.RMSNorm:
    """Make the norm that the config names, for vectors of this size."""
    return NORMS[config.norm](size, eps=config.layer_norm_eps)
