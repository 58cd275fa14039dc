"""What all blocks share of a batch, prepared once: masks, positions, tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from finetune.encoder.config import EncoderConfig
from finetune.encoder.embeddings import Rotation, rotation
from finetune.encoder.layout import PADDED, Padded, Rows
from finetune.encoder.masks import global_tokens, mask_bias, visible_tokens
from finetune.encoder.relative import alibi_bias, distance_table
from finetune.encoder.tiles import Tiles
from finetune.encoder.varlen import Varlen

Contexts = dict[bool, tuple[Tensor | Tiles | Rows | None, Rotation | None, Tensor | None]]
"""Bias of the logits or the tiles that they come in, rotary positions and sinusoids of distances,
for blocks with local attention (True) and others; for blocks without attention where the sequences
are."""


def contexts_of(
    config: EncoderConfig,
    hidden: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None,
    past: int = 0,
    *,
    segments: Tensor | None = None,
    dense: bool = False,
    layout: Padded = PADDED,
) -> Contexts:
    """Prepare once what blocks share: the bias of the logits, and positions.

    Args:
        config: Of the encoder or decoder.
        hidden: States of the tokens that are read, (B, T, D).
        mask: As of `visible_tokens`.
        position_ids: int64 (B, T), which rotary positions read; None: from 0.
        past: Tokens before these whose keys and values are cached.
        segments: The batch's `token_type_ids`, which tell what a question is.
        dense: Whether the weights of all pairs of tokens are wanted.
        layout: How the tokens lie between the blocks; some layouts need no mask.
    """
    length, device = hidden.shape[1], hidden.device
    if config.block != "transformer":
        return {False: (None if mask is None else Rows.from_mask(mask), None, None)}
    if position_ids is None and config.position == "rotary":
        position_ids = torch.arange(length, device=device).unsqueeze(0)  # (1, T)
    contexts: Contexts = {}
    keys, distances, alibi = past + length, None, None
    if config.position == "relative":
        width, causal = config.hidden_size, config.causal
        distances = distance_table(length, keys, width, causal=causal, device=device)
        distances = distances.to(hidden.dtype)
    if config.position == "alibi":
        alibi = alibi_bias(config.num_attention_heads, length, keys, device).to(hidden.dtype)
    # A graph that is traced, for ONNX too, is for any T, and tiles are for one.
    dense = dense or past > 0 or torch.compiler.is_compiling()
    is_global = global_tokens(config.global_tokens, hidden.shape, mask, segments, device)
    if is_global is not None and mask is not None and mask.dim() == 3:
        dense = True
    # A mask and a rotation for each kind of block, not for each block: there are two at most.
    for local in {config.is_local(depth) for depth in range(1, config.num_hidden_layers + 1)}:
        rotary = None
        if config.position == "rotary" and position_ids is not None:
            rotary = rotation(position_ids, config.head_size, config.theta(local=local))
        if isinstance(layout, Varlen):
            turned = rotary and (layout.of_tokens(rotary[0]), layout.of_tokens(rotary[1]))
            contexts[local] = None, turned, None
            continue
        if local and not dense and not config.untiled(length):
            contexts[local] = Tiles.of(config, mask, is_global, hidden), rotary, None
            continue
        visible = visible_tokens(
            mask,
            causal=config.causal,
            length=keys,
            device=device,
            queries=length,
            window=config.local_attention if local else 0,
            pattern=config.local_pattern,
            is_global=is_global,
        )
        bias = mask_bias(visible, hidden.dtype)
        if alibi is not None:
            bias = alibi if bias is None else bias + alibi
        contexts[local] = bias, rotary, distances
    return contexts
