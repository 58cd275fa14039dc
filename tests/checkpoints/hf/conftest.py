"""A tiny BERT in the files that Hugging Face writes, with random weights and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.nets import hugging_face_model

Make = Callable[..., nn.Module]
"""(ending of the class, settings) -> a model; its folder is written if `folder` is named."""


@pytest.fixture
def make(tokenizer: Tokenizer) -> Make:
    def made(
        ending: str, folder: Path | None = None, family: str = "Bert", **settings: Any
    ) -> nn.Module:
        return hugging_face_model(ending, tokenizer, folder, family, **settings)

    return made


@pytest.fixture
def stored(make: Make) -> dict[str, Tensor]:
    """The tensors of a BERT with its masked-LM head, under their names of today."""
    return {name: each.clone() for name, each in make("ForMaskedLM").state_dict().items()}
