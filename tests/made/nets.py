"""Tiny encoders, of ours and of Hugging Face, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from finetune.encoder import Encoder, EncoderConfig
from finetune.text.tokenizer.tokenizer import Tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def tiny_config(**changes: Any) -> EncoderConfig:
    """A config with BERT's defaults but for its sizes; what differs is given by name."""
    return EncoderConfig(**SIZES | changes)


def tiny_encoder(seed: int = 0, **changes: Any) -> Encoder:
    """An encoder in eval mode, with weights so large that its heads and layers differ."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(tiny_config(**{"initializer_range": 0.3} | changes)).eval()


def hugging_face_model(
    ending: str,
    tokenizer: Tokenizer,
    folder: Path | None = None,
    family: str = "Bert",
    **settings: Any,
) -> nn.Module:
    """A model of transformers, in eval mode.

    Args:
        ending: What follows the family in the name of its class.
        tokenizer: Written beside it.
        folder: Where it is written, if anywhere.
        family: The beginning of its class's name.
        settings: What differs from SIZES.
    """
    torch.manual_seed(0)
    sizes = SIZES | {"vocab_size": 40, "intermediate_size": 24, "max_position_embeddings": 16}
    config = getattr(transformers, f"{family}Config")(**{**sizes, **settings})
    model: nn.Module = getattr(transformers, f"{family}{ending}")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    if folder is not None:
        model.save_pretrained(folder)
        tokenizer.save(folder)
    return model.eval()
