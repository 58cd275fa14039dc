"""The windows of a text become one vector: a pooling over all of them, or a transformer.

A pooling over windows is that of one long sequence: the mean, the maximum and the attention
over all tokens of all windows. With a causal encoder `concat` is ULMFiT's [h_T, maxpool(H),
meanpool(H)] of a document that is read in pieces (Howard and Ruder, 2018, section 3.3), H being
the states of all windows. What belongs to a window and not to a token, its [CLS] or the comparison
of two texts, is averaged over the windows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from finetune.encoder import EncoderConfig
from finetune.encoder.block import transformer_block
from finetune.encoder.contexts import contexts_of
from finetune.encoder.norms import make_norm
from finetune.errors import ConfigError
from finetune.heads.pooling import AttentionPooling, Pooling, mean_over_tokens

BLOCKS = 2
"""Blocks of the transformer over windows."""


class WindowPooling:
    """Combines what a pooling gives for each window of a text."""

    def __init__(self, name: str, pool: Pooling, *, causal: bool) -> None:
        """Keep the pooling, its name, and whether it reads the last token in place of the first."""
        self.name, self.pool, self.causal = name, pool, causal
        self.group: Callable[[Tensor], Windows] = Windows

    def __call__(
        self, vectors: Tensor, hidden: Tensor, attention_mask: Tensor | None, window_of: Tensor
    ) -> Tensor:
        """Pool over the windows of each text.

        Args:
            vectors: What the pooling gives for each window, (S, P).
            hidden: The states that it has read, (S, T, D).
            attention_mask: True where there is a token, bool (S, T); None if everywhere.
            window_of: Number of the text that each window belongs to, int64 (S,); those of a text
                in order, and the last window is one of the last text.

        Returns:
            (N, P).
        """
        combine = self.group(window_of)
        if self.name == "concat":
            end, largest, mean = vectors.chunk(3, dim=-1)
            ends = combine.last(end) if self.causal else combine.mean(end)
            means = combine.mean(mean, _tokens(hidden, attention_mask))
            return torch.cat([ends, combine.largest(largest), means], dim=-1)
        if self.name == "last":
            return combine.last(vectors)
        if self.name == "max":
            return combine.largest(vectors)
        if self.name == "mean":
            return combine.mean(vectors, _tokens(hidden, attention_mask))
        if isinstance(self.pool, AttentionPooling):
            return combine.mean(vectors, combine.odds(self.pool.log_weight(hidden, attention_mask)))
        return combine.mean(vectors)


def _tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """How many tokens each window has, float32 (S,)."""
    if attention_mask is None:
        return torch.full((len(hidden),), float(hidden.shape[1]), device=hidden.device)
    return attention_mask.sum(dim=1).float()


class Windows:
    """What is taken over the windows of each text: means, maxima, the last, or all in a row."""

    def __init__(self, window_of: Tensor) -> None:
        """Keep which text each window belongs to, int64 (S,)."""
        self.window_of, self.count = window_of, int(window_of[-1]) + 1

    def mean(self, vectors: Tensor, weights: Tensor | None = None) -> Tensor:
        """Average with weights, (S, P) and (S,) -> (N, P)."""
        weights = torch.ones_like(vectors[:, 0]) if weights is None else weights
        sums = vectors.new_zeros(self.count, vectors.shape[1], dtype=torch.float32)
        sums = sums.index_add(0, self.window_of, vectors.float() * weights[:, None].float())
        totals = sums.new_zeros(self.count).index_add(0, self.window_of, weights.float())
        return sums / totals.clamp(min=torch.finfo(totals.dtype).tiny)[:, None]

    def rows(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """The windows of each text in a row, (N, W, D), and where there is one, bool (N, W)."""
        counts = self.window_of.bincount()
        order = self.window_of.argsort(stable=True)
        text = self.window_of[order]
        starts = counts.cumsum(0) - counts
        column = torch.arange(len(vectors), device=vectors.device) - starts[text]
        widest = int(counts.max())
        rows = vectors.new_zeros(len(counts), widest, vectors.shape[1])
        rows = rows.index_put((text, column), vectors[order])
        return rows, torch.arange(widest, device=vectors.device) < counts[:, None]

    def largest(self, vectors: Tensor) -> Tensor:
        """Take the largest value, (S, P) -> (N, P)."""
        start = vectors.new_full((self.count, vectors.shape[1]), -torch.inf)
        places = self.window_of[:, None].expand_as(vectors)
        return start.scatter_reduce(0, places, vectors, "amax")

    def last(self, vectors: Tensor) -> Tensor:
        """Take the last window's, (S, P) -> (N, P)."""
        rows = torch.arange(len(vectors), device=vectors.device)
        last = torch.zeros(self.count, dtype=torch.int64, device=vectors.device)
        return vectors[last.scatter_reduce(0, self.window_of, rows, "amax")]

    def odds(self, logs: Tensor) -> Tensor:
        """The exponentials of numbers, relative to the largest of each text, (S,) -> (S,)."""
        return (logs - self.largest(logs[:, None])[self.window_of, 0]).exp()


class WindowEncoder(nn.Module):
    """A small transformer over the vectors of a text's windows, whose states are averaged.

    The upper level of a hierarchical transformer (Pappagari et al., 2019; Zhang et al., 2019), here
    of two blocks of the encoder's width, normalized before their sublayers, with rotary positions:
    the number of a window in its text.
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make the blocks.

        Raises:
            ConfigError: The encoder's heads do not fit its width, as an LSTM's need not.
        """
        super().__init__()
        self.config = EncoderConfig(
            hidden_size=config.hidden_size,
            num_hidden_layers=BLOCKS,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            hidden_dropout_prob=config.hidden_dropout_prob,
            attention_probs_dropout_prob=config.attention_probs_dropout_prob,
            position="rotary",
            norm_position="pre",
        )
        self.blocks = nn.ModuleList(transformer_block(self.config, n) for n in range(BLOCKS))
        self.norm = make_norm(self.config, config.hidden_size)
        self.group: Callable[[Tensor], Windows] = Windows

    def forward(self, vectors: Tensor, window_of: Tensor | None) -> Tensor:
        """Read the windows of each text together.

        Args:
            vectors: One a window, (S, D).
            window_of: Number of the text that each belongs to, int64 (S,), as for `WindowPooling`;
                None where each is a text.

        Returns:
            (N, D).
        """
        if window_of is None:
            window_of = torch.arange(len(vectors), device=vectors.device)
        hidden, mask = self.group(window_of).rows(vectors)
        bias, rotary, distances = contexts_of(self.config, hidden, mask, None)[False]
        for block in self.blocks:
            hidden, _ = block(hidden, bias, rotary, distances)
        return mean_over_tokens(self.norm(hidden), mask)


ONE_VECTOR = ("cls", "last", "mean", "max", "attention")
"""Poolings whose vector has the encoder's width, as the transformer over windows takes it."""


def find_upper(levels: int, pooling: str, config: EncoderConfig) -> WindowEncoder | None:
    """What is above the pooling of a window.

    Raises:
        ConfigError: There is a second level, and the pooling gives vectors of another width.
    """
    if levels > 1 and pooling not in ONE_VECTOR:
        raise ConfigError(
            f"levels {levels}: expected a pooling of the encoder's width, got {pooling}; choose "
            f"{', '.join(ONE_VECTOR[:-1])} or {ONE_VECTOR[-1]}"
        )
    return WindowEncoder(config) if levels > 1 else None
