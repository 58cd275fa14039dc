"""Write our settings and keys as those of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from finetune.checkpoints.hf.form import Form
from finetune.checkpoints.hf.forms import FORMS
from finetune.checkpoints.hf.reading import POSITIONS
from finetune.encoder import EncoderConfig
from finetune.errors import CheckpointError

WRITTEN = ("bert", "electra", "modernbert")
"""Forms that an encoder can be written in; the first is the one that most software reads."""


def export_form(config: EncoderConfig) -> Form:
    """Choose the family in which an encoder can be written.

    Args:
        config: Shape of the encoder.

    Returns:
        BERT if it can express the encoder, or the next one that can.

    Raises:
        CheckpointError: None can; the message names what each lacks.
    """
    reasons = []
    for name in WRITTEN:
        try:
            FORMS[name].settings(config)
        except CheckpointError as error:
            reasons.append(str(error))
        else:
            return FORMS[name]
    raise CheckpointError(
        f"no family of Hugging Face computes what this encoder does: {'; '.join(reasons)}"
    )


def their_weights(
    ours: Mapping[str, Tensor], form: Form, config: EncoderConfig, head: str | None
) -> dict[str, Tensor]:
    """Rename and join our tensors into theirs.

    Args:
        ours: `encoder.…`, `head.…` and `pooler.…`.
        form: The family.
        config: Shape of the encoder.
        head: Kind of the head; None for an encoder alone.

    Returns:
        Their key -> tensor. Tied output weights are not repeated: transformers ties them itself.

    Raises:
        CheckpointError: A tensor is missing or left over, or the family has no such head.
    """
    pairs = form.pairs(config, head)
    if unknown := sorted(set(ours) - {key for key, _ in pairs}):
        raise CheckpointError(f"{form.name}: the family has no counterpart of {unknown[0]}")
    groups: dict[str, list[Tensor]] = {}
    for key, theirs in pairs:
        if key in ours:
            groups.setdefault(theirs, []).append(ours[key])
        elif not key.startswith("pooler."):
            raise CheckpointError(f"expected the tensor {key}, got none; it cannot be written")
        if key == POSITIONS:
            rows = form.position_rows(config)
            groups[theirs].insert(0, torch.zeros(rows, *ours[key].shape[1:]))
    written = {theirs: torch.cat(parts) for theirs, parts in groups.items()}
    written |= _segments(form, config)
    for second, first in form.aliases.items():
        if first in written:
            written[second] = written[first].clone()
    return written


def _segments(form: Form, config: EncoderConfig) -> dict[str, Tensor]:
    """A table of zeros for an encoder without segments, where the family always has one."""
    theirs = dict(form.encoder).get("embeddings.token_type_embeddings")
    if config.type_vocab_size or theirs is None:
        return {}
    return {f"{form.prefix}{theirs}.weight": torch.zeros(2, config.word_embedding_size)}
