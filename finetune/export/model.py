"""Encoder and head of a checkpoint as one module from tensors to tensors, for other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from finetune.checkpoints.folder import Checkpoint
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.attention import SelfAttention
from finetune.encoder.recurrent import Reader, Recurrent
from finetune.encoder.scores import Additive
from finetune.errors import CheckpointError, nearest
from finetune.export.onnx_lstm import RecordedReader
from finetune.export.source import calibrated
from finetune.heads import (
    Classification,
    HeadConfig,
    MaskedLM,
    MultiLabel,
    MultipleChoice,
    PooledHead,
    Regression,
    Span,
    SpanConfig,
    TaskHead,
    head_logits,
    states_for,
)
from finetune.heads.windows import Windows
from finetune.jobs.ensembles import together

HEADS: dict[str, Callable[[EncoderConfig, HeadConfig, int], TaskHead]] = {
    "classification": Classification,
    "multi_label": MultiLabel,
    "choice": MultipleChoice,
    "regression": lambda config, head, _: Regression(config, head),
    "span": lambda config, head, _: Span(config, head, SpanConfig()),
}
"""Kind of a head -> the head with a number of classes or options."""


class WholeModel(nn.Module):
    """Encoder and head in eval mode: token ids to logits, or to hidden states without a head."""

    def __init__(
        self,
        encoder: Encoder,
        head: TaskHead | MaskedLM | None,
        *,
        pools_windows: bool = False,
    ) -> None:
        """Combine the two.

        Args:
            encoder: The encoder; its config defines whether there are segments.
            head: The head; its `kind` defines inputs and outputs. None for an encoder alone.
            pools_windows: Whether a batch is the windows of one text, which get one output.
        """
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.pools_windows = pools_windows
        self.kind = "none" if head is None else str(head.kind)
        self.eval().requires_grad_(False)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arguments of `forward`, in order."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        return names if self.encoder.config.type_vocab_size else names[:2]

    @property
    def first_axis(self) -> str:
        """What the first axis of an input counts."""
        return "windows" if self.pools_windows else "batch"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results of `forward`, in order."""
        if self.kind == "span":
            return "start_logits", "end_logits"
        return ("last_hidden_state",) if self.head is None else ("logits",)

    @property
    def options(self) -> int | None:
        """C, the sequences of one example; None where an example is one sequence."""
        return self.head.num_choices if isinstance(self.head, MultipleChoice) else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute the outputs of a batch.

        Args:
            input_ids: int64 (B, T); for multiple choice (B, C, T).
            attention_mask: 1 where there is a token and 0 for padding, int64, same shape; None if
                nothing is padded.
            token_type_ids: Segment of each token, int64, same shape; None for segment 0.

        Returns:
            Logits (B, C) of classes or options; numbers (B,); logits (B, T) and (B, T) of the first
            and the last token of an answer, the lowest finite number at padding; logits (B, T, V)
            of tokens. Without a head the hidden states, (B, T, D). For the windows of a text B is 1
            in all of these.
        """
        batch = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        batch["attention_mask"] = None if attention_mask is None else attention_mask != 0
        given = {name: tensor for name, tensor in batch.items() if tensor is not None}
        if self.options is not None:
            given = {name: tensor.flatten(0, 1) for name, tensor in given.items()}  # (B C, T)
        if self.pools_windows:  # all options have the same windows
            given["window_of"] = torch.arange(self.options or 1).repeat(input_ids.shape[0])
        if self.head is None:
            return (self.encoder(given).last_hidden_state,)
        return self._answer(self.head, given)

    def _answer(self, head: TaskHead | MaskedLM, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        hidden = states_for(head, self.encoder, batch)
        if isinstance(head, MaskedLM):
            return (head(hidden),)  # (B, T, V)
        logits = head_logits(head, hidden, batch)
        return logits.unbind(-1) if self.kind == "span" else (logits,)


class WholeEnsemble(WholeModel):
    """Several models of one task as one, whose logits give their average answer."""

    def __init__(self, members: Sequence[WholeModel]) -> None:
        """Combine models with heads of one kind and labels in the same order."""
        first = members[0]
        super().__init__(first.encoder, first.head, pools_windows=first.pools_windows)
        self.members = nn.ModuleList(members)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Compute the outputs of a batch; arguments and outputs as of each member."""
        given = (input_ids, attention_mask, token_type_ids)
        each = [torch.stack(member(*given), dim=-1) for member in self.members]
        mean = together(self.kind, each if self.kind == "span" else [one[..., 0] for one in each])
        return mean.unbind(-1) if self.kind == "span" else (mean,)


def load_model(checkpoint: Checkpoint, *, pools_windows: bool = False) -> WholeModel:
    """The model of a checkpoint with its calibrated weights, on the CPU and in eval mode.

    Args:
        checkpoint: Of a run.
        pools_windows: As for `WholeModel`.

    Raises:
        CheckpointError: The kind of its head is unknown, or the weights do not fit.
    """
    encoder = Encoder(checkpoint.encoder_config)
    kind = checkpoint.head.get("kind") or "none"
    head = None if kind == "none" else _head(checkpoint, str(kind), encoder)
    model = WholeModel(encoder, head, pools_windows=pools_windows)
    checkpoint.load_into(model)
    model.load_state_dict(calibrated(model.state_dict(), checkpoint))
    return model


def _head(checkpoint: Checkpoint, kind: str, encoder: Encoder) -> TaskHead | MaskedLM:
    if kind == "masked_lm":
        return MaskedLM(encoder.config, encoder.embeddings.word_embeddings)
    if kind not in HEADS:
        raise CheckpointError(
            f"{checkpoint.folder}: expected a head that can be exported, got the kind {kind!r}; "
            f"{nearest(kind, [*HEADS, 'masked_lm'])}"
        )
    return HEADS[kind](
        encoder.config, HeadConfig.from_dict(checkpoint.head), len(checkpoint.labels)
    )


class _AtOnce(Additive):
    """The additive score of all queries at once: a graph has no loop over a length it learns later.

    The numbers are the same; (B, H, T, T, K) of them exist at a time.
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare each query with each key, 2 x (B, H, T, K) -> (B, H, T, T)."""
        from_query = query @ self.query_weight.transpose(-2, -1)  # (B, H, T, K)
        from_key = key @ self.key_weight.transpose(-2, -1)  # (B, H, T, K)
        return self._compare(from_query, from_key)


class _OneText(Windows):
    """The windows of one text, or of the options of one question, which have as many each.

    A graph does not learn from its inputs how many texts there are; the numbers are the same.
    """

    def __init__(self, texts: int, window_of: Tensor) -> None:
        """Set how many texts there are: 1, or C options; int64 (W N,) numbers them in turn."""
        self.count, self.window_of = texts, window_of

    def mean(self, vectors: Tensor, weights: Tensor | None = None) -> Tensor:
        """Average with weights, (W N, P) and (W N,) -> (N, P)."""
        weights = torch.ones_like(vectors[:, 0]) if weights is None else weights
        by_text = self._by_text(weights.float().unsqueeze(1))
        totals = by_text.sum(dim=0).clamp(min=torch.finfo(by_text.dtype).tiny)
        return (self._by_text(vectors.float()) * by_text).sum(dim=0) / totals

    def largest(self, vectors: Tensor) -> Tensor:
        """Take the largest value, (W N, P) -> (N, P)."""
        return self._by_text(vectors).amax(dim=0)

    def last(self, vectors: Tensor) -> Tensor:
        """Take the last window's, (W N, P) -> (N, P)."""
        return self._by_text(vectors)[-1]

    def rows(self, vectors: Tensor) -> tuple[Tensor, None]:
        """The windows of each text in a row, (N, W, D), all of which there are."""
        return self._by_text(vectors).transpose(0, 1), None

    def _by_text(self, vectors: Tensor) -> Tensor:
        return vectors.view(-1, self.count, vectors.shape[1])  # (W, N, P)


def without_loops(model: WholeModel) -> WholeModel:
    """A copy whose computation is the same whatever the length is, so that it can be recorded."""
    copied = deepcopy(model)
    for part in list(copied.modules()):
        if isinstance(part, SelfAttention) and isinstance(part.score, Additive):
            whole = _AtOnce(*part.score.query_weight.shape[:2])
            whole.load_state_dict(part.score.state_dict())
            part.score = whole.requires_grad_(False)
        if isinstance(part, Recurrent):
            for name, reader in list(part.named_children()):
                if isinstance(reader, Reader):
                    setattr(part, name, RecordedReader(reader))
        if isinstance(part, PooledHead):
            one_text = partial(_OneText, model.options or 1)
            part.windows.group = one_text
            if part.upper is not None:
                part.upper.group = one_text
    return copied
