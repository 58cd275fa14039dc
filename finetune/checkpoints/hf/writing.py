"""Write our settings and keys as those of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finetune.checkpoints.hf.form import POSITIONS, Form
from finetune.checkpoints.hf.forms import FORMS, OWN
from finetune.encoder import EncoderConfig
from finetune.errors import CheckpointError
from finetune.heads.config import HeadConfig

if TYPE_CHECKING:
    from torch import Tensor

WRITTEN = ("bert", "electra", "modernbert")
"""Forms that an encoder can be written in; the first is the one that most software reads."""
WRITTEN_CAUSAL = ("gpt2", "openai-gpt")
"""Those of a causal encoder."""


def export_form(
    config: EncoderConfig,
    head: str | None = None,
    pooling: str = "cls",
    *,
    first: str | None = None,
) -> tuple[Form, list[str]]:
    """Choose the family in which an encoder and its head are written.

    Args:
        config: Shape of the encoder.
        head: Kind of the head, or None.
        pooling: That of the head, where it pools.
        first: The family that is tried first, where it is known.

    Returns:
        A family of `transformers` that computes the same, and []; or else `OWN` and what each of
        them lacks.
    """
    lacking = []
    names = WRITTEN_CAUSAL if config.causal else WRITTEN
    for name in dict.fromkeys([*([first] if first in FORMS else []), *names]):
        if not (lacks := FORMS[name].lacks(config, head, pooling)):
            return FORMS[name], []
        lacking.append(f"{name} {', '.join(lacks)}")
    return OWN, lacking


def export_lacks(config: EncoderConfig, head: Mapping[str, Any], form: str) -> list[str]:
    """What an export format lacks to compute a network.

    Args:
        config: Shape of the encoder.
        head: What a checkpoint says of the head; {} without one.
        form: `hf` (a class of `transformers`, or the code that is exported) or `onnx`.

    Returns:
        Phrases that follow the name of the format; [] if it computes the same.
    """
    if head.get("kind") == "seq2seq":
        return ["lacks a head that writes texts"]
    if form == "onnx":
        return []
    lacking = OWN.lacks(config)
    for name, usual in (("layers", "last"), ("levels", 1)):
        if (value := head.get(name, usual)) != usual:
            lacking.append(f"has {name} {usual!r} only, got {value!r}")
    return lacking


def exports_as(
    config: EncoderConfig,
    head: Mapping[str, Any],
    *,
    first: str | None = None,
    reasons: bool = False,
) -> str:
    """Say in a line which formats a network can be exported to; what `export` asks, too.

    Args:
        config: Shape of the encoder.
        head: What a checkpoint says of the head; {} without one.
        first: The family that is tried first, where it is known.
        reasons: Whether to say what each family of `transformers` lacks.
    """
    if lacking := export_lacks(config, head, "onnx"):
        return f"export formats: none (ONNX {'; '.join(lacking)}, and so does transformers)"
    if lacking := export_lacks(config, head, "hf"):
        return f"export formats: ONNX (transformers {'; '.join(lacking)})"
    kind, pooling = head.get("kind"), HeadConfig.from_dict(head).resolved(config).pooling
    form, lacking = export_form(config, kind, str(pooling), first=first)
    if form is not OWN:
        return f"export formats: transformers (as {form.name}), ONNX"
    why = f": {'; '.join(lacking)}" if reasons else ""
    return (
        "export formats: transformers with trust_remote_code=True (the exported folder has its own "
        f"code, as no class of transformers computes this{why}), ONNX"
    )


def their_weights(
    ours: Mapping[str, Tensor],
    form: Form,
    config: EncoderConfig,
    head: str | None,
    pooling: str = "cls",
) -> dict[str, Tensor]:
    """Rename and join our tensors into theirs.

    Args:
        ours: `encoder.…`, `head.…` and `pooler.…`.
        form: The family.
        config: Shape of the encoder.
        head: Kind of the head; None for an encoder alone.
        pooling: That of the head, where it pools.

    Returns:
        Their key -> tensor. Tied output weights are not repeated: transformers ties them itself.

    Raises:
        CheckpointError: A tensor is missing or left over, or the family has no such head.
    """
    import torch

    pairs = form.pairs(config, head, pooling)
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
    joined = {
        theirs: parts[0] if len(parts) == 1 else torch.cat(parts)  # of a number there is no `cat`
        for theirs, parts in groups.items()
    }
    written = {theirs: form.in_our_order(theirs, tensor) for theirs, tensor in joined.items()}
    written |= _segments(form, config)
    for second, first in form.aliases.items():
        if first in written:
            written[second] = written[first].clone()
    return written


def _segments(form: Form, config: EncoderConfig) -> dict[str, Tensor]:
    """A table of zeros for an encoder without segments, where the family always has one."""
    import torch

    theirs = dict(form.encoder).get("embeddings.token_type_embeddings")
    if config.type_vocab_size or theirs is None:
        return {}
    return {f"{form.prefix}{theirs}.weight": torch.zeros(2, config.word_embedding_size)}
