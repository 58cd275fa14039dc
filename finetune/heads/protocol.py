"""What a head is to the network and the training around it, and the loss that most heads share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.encoder import Encoder
from finetune.errors import ConfigError
from finetune.heads.pooling import last_position

IGNORED = -100
"""Label of what takes no part in the loss: a token, an example or a window."""


class Head(Protocol):
    """A module that turns hidden states into logits, and logits into a loss."""

    kind: str
    """Its name in a checkpoint."""
    first_only: bool = False
    """Whether it reads the first token's state alone, so that no other need be computed."""
    last_only: bool = False
    """Whether it reads the last token's state alone."""
    all_layers: bool = False
    """Whether it reads the states of all layers: (L + 1, B, T, D) in place of (B, T, D)."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Logits of hidden states, (N, D) or (B, T, D)."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over what is labelled, float32 scalar; 0 where nothing is."""

    def train(self, mode: bool = True) -> Self:
        """Put it in training or eval mode, as every `torch.nn.Module`."""


class TaskHead(Head, Protocol):
    """A head that reads sequences, whose answers a task understands."""

    reads_ids: bool = False
    """Whether it reads the ids too: they say which text of a pair each token belongs to."""
    generates: bool = False
    """Whether its answers are generated token by token; its logits are those of right answers,
    whose `decoder_input_ids` it gets as its third argument."""

    def __call__(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        input_ids: Tensor | None = None,
        window_of: Tensor | None = None,
        /,
    ) -> Tensor:
        """Logits of hidden states (B, T, D), with a mask that is True at tokens, bool (B, T).

        A head that does not read ids gets no third argument, and the fourth, int64 (B,), only where
        texts are read in several windows: the number of the text that each sequence belongs to.
        """

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers are read off: of a fixed size a unit, whatever T is."""

    def generate(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The same of a head that generates, from hidden states in place of logits."""
        raise ConfigError(f"expected a head that generates, got one of the kind {self.kind}")

    def flops_per_token(self, length: float) -> float:
        """Operations of a forward pass for a token of the sequence; 0 for a small head.

        Args:
            length: Mean number of tokens in a sequence.
        """
        return 0.0

    def settings(self) -> dict[str, Any]:
        """What a checkpoint says of the head besides its kind; {} for the run's own settings."""
        return {}


def states_for(
    head: Head, encoder: Encoder, batch: Mapping[str, Tensor], *, all_tokens: bool = False
) -> Tensor:
    """The hidden states of a batch that a head reads.

    Args:
        head: The head.
        encoder: The encoder.
        batch: As for `Encoder.forward`, with a mask of two dimensions, or none.
        all_tokens: Whether those of all tokens are wanted, as a language-model loss does.

    Returns:
        (B, T, D) of the last layer; of the first or the last token alone, (B, 1, D), or of all
        layers, (L + 1, B, T, D), where the head says so.
    """
    if head.all_layers:
        return torch.stack(encoder(batch, output_hidden_states=True).hidden_states)
    if _reads_last(head, all_tokens):
        last: Tensor = encoder(batch, positions=_last_positions(batch)).last_hidden_state
        return last.unsqueeze(1)
    hidden: Tensor = encoder(batch, first_only=head.first_only and not all_tokens).last_hidden_state
    return hidden


def suffix_for(
    head: Head,
    encoder: Encoder,
    batch: Mapping[str, Tensor],
    prefix: Tensor,
    depth: int,
    *,
    all_tokens: bool = False,
) -> Tensor:
    """The same from the hidden states at a boundary, (B, T, D), for a head that mixes no layers."""
    mask, segments = batch.get("attention_mask"), batch.get("token_type_ids")
    if _reads_last(head, all_tokens):
        last = encoder.suffix(
            prefix, mask, depth, token_type_ids=segments, positions=_last_positions(batch)
        )
        return last.unsqueeze(1)
    first = head.first_only and not all_tokens
    return encoder.suffix(prefix, mask, depth, token_type_ids=segments, first_only=first)


def reads_one(head: Head, encoder: Encoder, length: int) -> bool:
    """Whether a last block with attention computes one token of a sequence alone.

    Args:
        head: The head.
        encoder: The encoder.
        length: Tokens of the sequence.
    """
    return head.first_only or (head.last_only and encoder.reads_few(1 / length, length))


def _reads_last(head: Head, all_tokens: bool) -> bool:
    # To choose tokens is to look at their number, which a graph for any batch cannot.
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return head.last_only and not all_tokens and not is_traced


def _last_positions(batch: Mapping[str, Tensor]) -> Tensor:
    """Numbers of the last tokens among all B T, int64 (B,)."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    starts = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
    return starts + (ids.shape[1] - 1 if mask is None else last_position(mask))


def head_logits(head: TaskHead, hidden: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits of a batch, from its hidden states (B, T, D) and what else of it the head reads.

    Args:
        head: The head.
        hidden: As of `states_for`.
        batch: `input_ids` int64 (B, T), `attention_mask` bool (B, T) where a row is padded, and
            `choices` bool (B, C) where a question has fewer than C options: the logits of those
            that it lacks are the lowest finite number. `decoder_input_ids` int64 (B, S) for a head
            that generates; `window_of` int64 (B,) where texts are read in several windows.
    """
    attention_mask = batch.get("attention_mask")
    if head.generates:
        logits = head(hidden, attention_mask, batch["decoder_input_ids"])
    elif "window_of" in batch:
        logits = head(hidden, attention_mask, batch["input_ids"], batch["window_of"])
    elif head.reads_ids:
        logits = head(hidden, attention_mask, batch["input_ids"])
    else:
        logits = head(hidden, attention_mask)
    choices = batch.get("choices")
    return logits if choices is None else mask_choices(logits, choices)


def mask_choices(logits: Tensor, choices: Tensor) -> Tensor:
    """Give the options that a question lacks the probability 0, (B, C) and bool (B, C)."""
    return logits.masked_fill(~choices, torch.finfo(logits.dtype).min)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Average the cross-entropy over what is labelled.

    The sum is divided by the number of labels and not by their weights: so an example counts the
    same in whatever batch it is, also alone.

    Args:
        logits: (N, C), or (N, C, M) of M decisions each.
        labels: int64 (N,) or (N, M), 0 .. C - 1; -100 where something takes no part.
        class_weights: What an example of each class counts, (C,); None: 1 each.
        label_smoothing: ε in [0, 1): the target is (1 - ε) of the label and ε / C of each class
            (Szegedy et al., 2016, section 7, with the uniform distribution).

    Returns:
        Nats a label, float32 scalar; 0 where there is none.
    """
    total = F.cross_entropy(
        # A softmax over V words in half precision loses the digits in which losses differ.
        logits.float(),
        labels,
        weight=class_weights,
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total / (labels != IGNORED).sum().clamp(min=1)
