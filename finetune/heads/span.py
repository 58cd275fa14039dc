"""The span head: where in a passage the answer begins and ends.

What is read off its logits is a short list of the best spans of each window, so that no logits
need to be stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Dropout, EncoderConfig, initialize_weights
from finetune.heads.config import HeadConfig, SpanConfig
from finetune.heads.pooling import find_mix, last_position
from finetune.heads.protocol import TaskHead, cross_entropy


class Span(nn.Module, TaskHead):
    """First and last token of an answer, chosen apart (Devlin et al., 2019, section 4.2).

    [CLS] as first and last token stands for "no answer" (section 4.3). In a causal encoder [CLS]
    sees no other token: what stands for it is then scored by the state of the last token, which has
    seen the whole window, and which is itself no part of an answer.

    >>> import torch
    >>> from finetune import EncoderConfig, HeadConfig, Span
    >>> from finetune.heads import SpanConfig
    >>> config = EncoderConfig(hidden_size=16, num_attention_heads=2)
    >>> head = Span(config, HeadConfig(), SpanConfig(n_best=2))
    >>> logits = head(torch.zeros(1, 9, 16))  # one window of nine tokens
    >>> logits.shape
    torch.Size([1, 9, 2])
    >>> context = torch.tensor([[4, 8]])  # where the answer may be
    >>> head.outputs(logits, {"context": context})[0, :, :2].tolist()  # no answer, then the best
    [[0.0, 0.0], [4.0, 4.0], [4.0, 5.0]]
    """

    kind = "span"

    def __init__(self, config: EncoderConfig, head: HeadConfig, spans: SpanConfig) -> None:
        """Make the output layer, with BERT's names for its two outputs.

        Args:
            config: The encoder's config.
            head: Names the layers; its dropout is used where it is set, BERT has none here. There
                is no pooling.
            spans: Which spans `outputs` looks at.
        """
        super().__init__()
        self.spans = spans
        self.causal = config.causal
        self.mix = find_mix(head.layers, config)
        self.all_layers = head.layers == "mix"
        self.dropout = Dropout(head.head_dropout or 0.0)
        self.layer = nn.Linear(config.hidden_size, 2)
        initialize_weights(self, config.initializer_range)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Score each token as the first and as the last one of the answer.

        Args:
            hidden: Last hidden states, (B, T, D); those of all layers, (L + 1, B, T, D), where
                `all_layers` says so.
            attention_mask: True where there is a token, bool (B, T); None if everywhere.

        Returns:
            Logits (B, T, 2); the lowest finite number where there is no token.
        """
        logits: Tensor = self.layer(self.dropout(self.mix(hidden)))
        lowest = torch.finfo(logits.dtype).min  # finite: a label at padding gives no infinite loss
        if attention_mask is not None:
            logits = logits.masked_fill(~attention_mask.unsqueeze(-1), lowest)
        return _null_from_last(logits, attention_mask) if self.causal else logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropies of the first and of the last token.

        Args:
            logits: (B, T, 2).
            labels: int64 (B, 2), first and last position; -100 in both where a window takes no
                part.

        Returns:
            Nats a labelled window and end, float32 scalar; 0 where no window is labelled.
        """
        # Positions take the place of classes: (B, T, 2) against (B, 2).
        return cross_entropy(logits, labels)

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Find the best spans of each window.

        Args:
            logits: (B, T, 2).
            batch: Has `context`, int64 (B, 2): the first position that an answer may take and
                the one after the last.

        Returns:
            First position, last position and score of n_best + 1 spans, float32
            (B, n_best + 1, 3). The first is no answer: (0, 0) and the score of [CLS]. Then those
            of `best_spans`.
        """
        starts, ends = logits.float().unbind(dim=-1)  # (B, T) each
        null = F.pad((starts[:, :1] + ends[:, :1]).unsqueeze(-1), (2, 0))  # (B, 1, 3)
        best = best_spans(
            starts, ends, batch["context"], self.spans.n_best, self.spans.max_answer_length
        )
        return torch.cat((null, best), dim=1)


def _null_from_last(logits: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Move the logits of the last token, (B, T, 2), to the first position, where no answer is."""
    if attention_mask is None:
        attention_mask = torch.ones_like(logits[..., 0], dtype=torch.bool)
    last = last_position(attention_mask)[:, None, None]  # (B, 1, 1)
    null = logits.gather(1, last.expand(-1, 1, 2))  # (B, 1, 2)
    position = torch.arange(logits.shape[1], device=logits.device)[None, :, None]  # (1, T, 1)
    others = logits.masked_fill(position == last, torch.finfo(logits.dtype).min)
    # Not `cat` with a slice: a graph for ONNX would then need a length that is never 2.
    return torch.where(position == 0, null, others)


def best_spans(
    starts: Tensor, ends: Tensor, context: Tensor, n_best: int, max_answer_length: int
) -> Tensor:
    """Find the spans of the highest scores: exactly those that a search over all of them finds.

    The score of a span is the sum of its two logits. Among the `n_best` best spans are only
    starts that are among the `n_best` best ones, when each start is judged by its best end; so
    those are found first, and the spans among theirs.

    Args:
        starts: Logits of the first token, float32 (B, T).
        ends: Logits of the last token, float32 (B, T).
        context: First position that a span may take and the one after the last, int64 (B, 2).
        n_best: Spans to find, 1 or more.
        max_answer_length: Tokens of the longest span, 1 or more.

    Returns:
        First position, last position and score, float32 (B, n_best, 3), the best first; of equal
        scores the earlier start first, then the shorter span. (-1, -1, -inf) where a window has no
        more spans.
    """
    length = min(max_answer_length, starts.shape[1])
    starts, ends = (_inside(logits, context) for logits in (starts, ends))
    ends = F.pad(ends, (0, length - 1), value=-torch.inf)  # (B, T + length - 1)
    # The best end within reach of each start, in one pass over the row.
    best_end = F.max_pool1d(ends.unsqueeze(1), length, stride=1).squeeze(1)  # (B, T)
    # In the order of positions, so that the numbers of spans keep the order of equal scores.
    first = _best(starts + best_end, n_best).sort(dim=1).values  # (B, S)
    last = first.unsqueeze(-1) + torch.arange(length, device=first.device)  # (B, S, length)
    scores = starts.gather(1, first).unsqueeze(-1) + ends.gather(1, last.flatten(1)).view_as(last)
    scores = scores.flatten(1)  # (B, S length)
    chosen = _best(scores, n_best)  # (B, at most n_best)
    spans = torch.stack(
        (
            first.gather(1, chosen // length).float(),
            last.flatten(1).gather(1, chosen).float(),
            scores.gather(1, chosen),
        ),
        dim=-1,
    )
    missing = spans.new_tensor((-1.0, -1.0, -torch.inf))
    spans = torch.where(spans[..., 2:] > -torch.inf, spans, missing)
    lacking = missing.expand(len(spans), n_best - spans.shape[1], 3)
    return torch.cat((spans, lacking), dim=1)


def _inside(logits: Tensor, context: Tensor) -> Tensor:
    """Rule out the positions that no answer may take, and those that have no score."""
    position = torch.arange(logits.shape[1], device=logits.device)
    outside = (position < context[:, :1]) | (position >= context[:, 1:])  # (B, T)
    return logits.masked_fill(outside | logits.isnan(), -torch.inf)


def _best(scores: Tensor, count: int) -> Tensor:
    """Number the highest of each row, float32 (B, N) -> int64 (B, at most count), best first.

    Of equal scores the first one counts as the higher. `topk` does not promise that, so it gets
    whole numbers that are all different: a float's bits, which rise as the float does, above its
    position in the row.
    """
    bits = (scores + 0.0).view(torch.int32).long()  # + 0.0: there is a negative zero, too
    # Below zero a float's bits rise as it falls: they are turned over, the sign left out.
    rising = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    position = torch.arange(scores.shape[1], device=scores.device)
    return ((rising << 32) - position).topk(min(count, scores.shape[1]), dim=1).indices
