"""Fresh word embeddings start from published word vectors."""

from __future__ import annotations

from pathlib import Path

import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.files.checksums import file_digest
from finetune.runs.folder import say
from finetune.runs.inputs import Input, Inputs
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.word_vectors import piece_vectors, vector_size


def check_vectors(file: str | None, config: EncoderConfig) -> None:
    """Refuse vectors of another width than the embeddings.

    Raises:
        ConfigError: They have another one.
        DataError: The file cannot be read.
    """
    if file is None:
        return
    size, expected = vector_size(Path(file)), config.word_embedding_size
    if size != expected:
        raise ConfigError(
            f"word_vectors: expected vectors of {expected} numbers, the width of the embeddings, "
            f"got {size} in {file}; set embedding_size to {size}: it is projected to hidden_size"
        )


def vector_input(file: str | None) -> Inputs:
    """The file of word vectors that a run starts from, by content."""
    return {} if file is None else {"word vectors": Input(file_digest(Path(file)), file)}


@torch.no_grad()
def start_from_vectors(encoder: Encoder, file: str | None, tokenizer: Tokenizer) -> None:
    """Replace fresh word embeddings by the file's vectors, in place.

    All vectors are multiplied by one factor, so that their numbers have the root mean square of
    fresh embeddings (`initializer_range`), beside which positions and segments count.

    Args:
        encoder: With fresh weights; pieces without a vector keep theirs.
        file: The vectors; None changes nothing.
        tokenizer: Its pieces are those of the embeddings.
    """
    weight = encoder.embeddings.word_embeddings.weight
    if file is None or weight.is_meta:  # a process that gets its weights from the first one
        return
    pieces = piece_vectors(Path(file), tokenizer)
    known, is_known = torch.from_numpy(pieces.vectors), torch.from_numpy(pieces.is_known)
    if not is_known.any():
        raise ConfigError(
            f"word_vectors: expected words of the tokenizer's language, got none in {file} that it "
            "can split; choose other vectors"
        )
    size = known[is_known].square().mean().sqrt()
    weight[is_known] = known[is_known] * (encoder.config.initializer_range / size)
    whole, parts = int(pieces.is_word.sum()), int((pieces.is_known & ~pieces.is_word).sum())
    say(
        f"word vectors: {pieces.words:,} words of {known.shape[1]} in {file}; of "
        f"{len(weight):,} pieces {whole:,} have the vector of a word, {parts:,} the mean of the "
        f"words that contain them, {len(weight) - whole - parts:,} random ones"
    )
