"""A tokenizer of few pieces."""

from __future__ import annotations

import pytest

from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.texts import small_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return small_tokenizer()
