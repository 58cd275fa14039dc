"""A tiny BERT in the files that Hugging Face writes, with random weights and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}

Make = Callable[..., nn.Module]
"""(ending of the class, settings) -> a model; its folder is written if `folder` is named."""


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = ["the cat sees the dog", "a dog sees a cat", "the old tree"] * 9
    return train_tokenizer(texts, TokenizerConfig(vocab_size=36))


@pytest.fixture
def make(tokenizer: Tokenizer) -> Make:
    def made(
        ending: str, folder: Path | None = None, family: str = "Bert", **settings: Any
    ) -> nn.Module:
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**{**SIZES, **settings})
        model: nn.Module = getattr(transformers, f"{family}{ending}")(config)
        for parameter in model.parameters():
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
        if folder is not None:
            model.save_pretrained(folder)
            tokenizer.save(folder)
        return model.eval()

    return made


@pytest.fixture
def stored(make: Make) -> dict[str, Tensor]:
    """The tensors of a BERT with its masked-LM head, under their names of today."""
    return {name: each.clone() for name, each in make("ForMaskedLM").state_dict().items()}
