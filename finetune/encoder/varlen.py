"""Unpadded tokens all the way on a GPU: attention within each sequence, in one kernel.

Torch's kernel for sequences of several lengths (flash attention over cumulative lengths;
Dao, 2024) takes the tokens one after the other, so that nothing at all is computed for padding or
between the documents of a block. It has no dropout, no bias and no masks but a causal one: what
needs one of these, or has no such device, is computed side by side as everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder.config import EncoderConfig
from finetune.encoder.layout import PADDED, Padded, Unpadded, document_starts, separates
from finetune.encoder.masks import checked_mask

AMPERE = 8  # major compute capability of the first devices that the kernel runs on
WIDEST, STEP = 256, 8  # widths of a head that it takes: multiples of STEP, up to WIDEST


@dataclass(frozen=True)
class Varlen(Unpadded):
    """Real tokens one after the other, (N, D), which attend within their sequence.

    Attributes:
        bounds: Where each of the S sequences begins among the N, and N, int32 (S + 1,).
        causal: Whether a token sees itself and earlier tokens only.
    """

    bounds: Tensor
    causal: bool

    @classmethod
    def of(cls, mask: Tensor, *, causal: bool) -> Varlen | None:
        """Find the sequences of a batch.

        Args:
            mask: True where a token may be attended to, bool (B, T); or bool (B, T, T), True where
                two tokens belong to one document.
            causal: As of the layout.

        Returns:
            The layout; None where the mask says something else than sequences, or hides the first
            token of a row, which a head may read all the same.

        Raises:
            ConfigError: The mask is not bool, or has other than two or three dimensions.
        """
        if checked_mask(mask).dim() == 2:
            is_read = mask
            begins = torch.zeros_like(mask)
            begins[:, 0] = True
        else:
            is_read, begins = mask.diagonal(0, 1, 2), document_starts(mask)
        sequence = begins.flatten().cumsum(dim=0)  # (B T)
        # The host must know N, and waits for the GPU here: once a batch, as what it looks at below
        # is computed at once. It waits while the GPU works on the last step, which then loses the
        # time of these few small kernels. Lengths that the collator knows would spare that, if all
        # that moves, divides or compares batches took along what is no tensor of a GPU.
        if not bool(is_read[:, 0].all()):
            return None
        if mask.dim() == 3 and not separates(mask, sequence.view(begins.shape)):
            return None
        indices = is_read.flatten().nonzero().squeeze(1)  # (N)
        is_start = F.pad(sequence[indices].diff() != 0, (1, 0), value=True)
        bounds = F.pad(is_start.nonzero().squeeze(1), (0, 1), value=len(indices))
        shape = (mask.shape[0], mask.shape[1])
        return cls(indices, len(indices), shape, bounds.to(torch.int32), causal)

    def of_tokens(self, context: Tensor) -> Tensor:
        """Take the tokens' rows out of what blocks share, (1 or B, X, T, Y) -> (1, X, N, Y)."""
        batch, length = self.shape
        rows = context.expand(batch, -1, length, -1).transpose(0, 1).flatten(1, 2)
        return rows.index_select(1, self.indices).unsqueeze(0)

    def first(self) -> Padded:
        """The layout of the first token of each row, (B, 1, D)."""
        return Picked(torch.searchsorted(self.indices, self._starts()).unsqueeze(1), self)

    def choose(self, positions: Tensor, batch: int, length: int) -> Padded:
        """The layout of some tokens, which must be real ones: (M, D)."""
        places = torch.searchsorted(self.indices, positions)
        return Picked(places.clamp(max=self.tokens - 1), self)

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections (N, D) among the heads, -> (1, H, N, K)."""
        return PADDED.split_heads(projected.unsqueeze(0), num_heads)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (1, H, N, K) side by side again, -> (N, D)."""
        return PADDED.merge_heads(mixed).squeeze(0)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend within each sequence.

        Args:
            query: (1, H, N, K).
            key: (1, H, N, K).
            value: (1, H, N, K).
            scale: Factor of the logits.

        Returns:
            (1, H, N, K).
        """
        query, key, value = (s.squeeze(0).transpose(0, 1) for s in (query, key, value))  # (N, H, K)
        # T for the longest sequence: more blocks are started than needed, which end at once.
        mixed = attend(
            query, key, value, self.bounds, self.shape[1], scale=scale, causal=self.causal
        )
        return mixed.transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True)
class Picked(Padded):
    """Some of the tokens, (M, D) or (B, 1, D), out of unpadded hidden states (N, D).

    All N are queries of the kernel, the others zeros, as it wants sequences; linear layers see the
    M alone.

    Attributes:
        places: Row of each among the N, none twice, int64 (M,) or (B, 1).
        whole: The layout of all N.
    """

    places: Tensor
    whole: Varlen

    def take(self, hidden: Tensor) -> Tensor:
        """Take the tokens out, (N, D) -> (M, D) or (B, 1, D)."""
        return hidden.index_select(0, self.places.flatten()).view(*self.places.shape, -1)

    def split_heads(self, projected: Tensor, num_heads: int) -> Tensor:
        """Divide projections of this layout among the heads, -> (1, H, N, K)."""
        rows = projected.new_zeros(self.whole.tokens, projected.shape[-1])
        rows = rows.index_copy(0, self.places.flatten(), projected.flatten(0, -2))
        return self.whole.split_heads(rows, num_heads)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Put the heads (1, H, N, K) side by side again, in this layout."""
        return self.take(self.whole.merge_heads(mixed))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    *,
    scale: float,
    causal: bool,
) -> Tensor:
    """Call the kernel.

    Args:
        query: (N, H, K), half precision, on a GPU.
        key: (N, H, K).
        value: (N, H, K).
        bounds: Where each sequence begins, and N, int32 (S + 1,).
        longest: Tokens of the longest sequence, or more.
        scale: Factor of the logits.
        causal: Whether a token sees itself and earlier tokens only.

    Returns:
        (N, H, K).
    """
    # Here: it imports torch's compiler, which takes a second.
    from torch.nn.attention.varlen import varlen_attn

    mixed = varlen_attn(
        query, key, value, bounds, bounds, longest, longest,
        scale=scale, window_size=(-1, 0 if causal else -1),
    )  # fmt: skip
    return cast(Tensor, mixed)  # a pair only where the sums of the softmax are asked for


def has_kernel(hidden: Tensor) -> bool:
    """Whether the device of hidden states has the kernel, in the precision that is in force."""
    if hidden.device.type != "cuda" or torch.version.hip is not None:  # ROCm: never tried
        return False
    mixed = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if mixed else hidden.dtype
    return (
        dtype in (torch.float16, torch.bfloat16)
        and torch.cuda.get_device_capability(hidden.device)[0] >= AMPERE
        and torch.backends.cuda.is_flash_attention_available()
    )


def by_sequence(
    config: EncoderConfig, blocks: Sequence[nn.Module], mask: Tensor | None, hidden: Tensor
) -> Varlen | None:
    """The layout of a batch whose blocks can attend by the kernel; None where they cannot.

    Args:
        config: The encoder's.
        blocks: Those that are to run.
        mask: As of `visible_tokens`. Without one there is no padding, and the fused kernel of
            sequences side by side does the same.
        hidden: What the first block gets, (B, T, D).
    """
    if mask is None or not blocks or not has_kernel(hidden):
        return None
    is_traced = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
    drops = config.attention_probs_dropout_prob > 0 and any(block.training for block in blocks)
    if is_traced or drops or not _is_plain(config):
        return None
    return Varlen.of(mask, causal=config.causal)


def _is_plain(config: EncoderConfig) -> bool:
    """Whether attention is a product and a softmax over a whole sequence, with nothing added."""
    return (
        config.block == "transformer"
        and config.attention_score != "additive"
        and config.position not in ("alibi", "relative")
        and not config.local_attention
        and not config.locked_dropout  # one draw a sequence, which must lie side by side
        and config.head_size <= WIDEST
        and config.head_size % STEP == 0
    )
