"""Poolings: the hidden states of a text, or of the two texts of a pair, become one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Dropout, EncoderConfig
from finetune.errors import ConfigError
from finetune.heads.config import PAIR_POOLINGS


def first_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Take the state of [CLS], (B, T, D) -> (B, D)."""
    return hidden[:, 0]


def last_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Take the state of the last attended token, (B, T, D) and bool (B, T) -> (B, D).

    Of (B, 1, D) it takes the only one there is, which is the last token's, whatever T is.
    """
    if attention_mask is None or hidden.shape[1] == 1:
        return hidden[:, -1]
    position = last_position(attention_mask)[:, None, None]  # (B, 1, 1)
    return hidden.gather(1, position.expand(-1, 1, hidden.shape[-1])).squeeze(1)


def last_position(attention_mask: Tensor) -> Tensor:
    """Find the last attended token, bool (B, T) -> int64 (B,); 0 where there is none."""
    # Not the number of tokens less one: a mask may have gaps, or padding on the left.
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return (positions * attention_mask).amax(dim=1)


def mean_over_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average over attended tokens, (B, T, D) and bool (B, T) -> (B, D)."""
    if attention_mask is None:
        return hidden.mean(dim=1)
    attended = attention_mask.unsqueeze(-1)  # (B, T, 1)
    return (hidden * attended).sum(dim=1) / attended.sum(dim=1).clamp(min=1)


def max_over_tokens(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Take the largest value over attended tokens, (B, T, D) and bool (B, T) -> (B, D)."""
    if attention_mask is None:
        return hidden.amax(dim=1)
    lowest = torch.finfo(hidden.dtype).min
    largest = hidden.masked_fill(~attention_mask.unsqueeze(-1), lowest).amax(dim=1)
    # A row of padding alone: the lowest number could become infinite in the layers above.
    return largest.masked_fill(~attention_mask.any(dim=1, keepdim=True), 0.0)


def first_max_and_mean(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Concatenate three poolings, (B, T, D) and bool (B, T) -> (B, 3D)."""
    poolings = (first_token, max_over_tokens, mean_over_tokens)
    return torch.cat([pool(hidden, attention_mask) for pool in poolings], dim=-1)


def last_max_and_mean(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Concatenate three poolings, (B, T, D) and bool (B, T) -> (B, 3D); for a causal encoder."""
    poolings = (last_token, max_over_tokens, mean_over_tokens)
    return torch.cat([pool(hidden, attention_mask) for pool in poolings], dim=-1)


class ScalarMix(nn.Module):
    """A learned weighted average of all layers: γ Σ_j s_j h_j with s = softmax(w).

    Equation 1 of ELMo (Peters et al., 2018, section 3.2), without its optional norm of each layer.
    It starts at the plain mean: w = 0 and γ = 1.
    """

    def __init__(self, num_hidden_layers: int) -> None:
        """Make L + 1 weights and the factor."""
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_hidden_layers + 1))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states: Tensor) -> Tensor:
        """Average the states of the embeddings and each block, (L + 1, B, T, D) -> (B, T, D)."""
        return self.scale * torch.einsum("l,lbtd->btd", self.weights.softmax(dim=0), states)


def find_mix(layers: str, config: EncoderConfig) -> nn.Module:
    """What makes one state a token of those that the head gets: nothing, for the last ones."""
    return ScalarMix(config.num_hidden_layers) if layers == "mix" else nn.Identity()


class AttentionPooling(nn.Module):
    """Average over attended tokens by the softmax of their products with a learned query.

    The sentence attention of Yang et al. (2016, section 2.2) without its hidden layer: token t has
    the weight exp(q · h_t) / Σ exp(q · h). The query starts near zero, so near the plain mean.
    """

    def __init__(self, hidden_size: int) -> None:
        """Make the query, of D numbers."""
        super().__init__()
        self.query = nn.Linear(hidden_size, 1, bias=False)  # a bias is nothing to a softmax

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Average the states, (B, T, D) and bool (B, T) -> (B, D), zeros for no token."""
        weights = self._scores(hidden, attention_mask).softmax(dim=1)
        if attention_mask is not None:  # or a text without tokens would be the mean of its padding
            weights = weights * attention_mask.unsqueeze(-1)
        return (weights * hidden).sum(dim=1)

    def log_weight(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The logarithm of Σ exp(q · h): what a window counts beside others, (B, T, D) -> (B,)."""
        return self._scores(hidden, attention_mask).float().logsumexp(dim=(1, 2))

    def _scores(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        scores: Tensor = self.query(hidden)  # (B, T, 1)
        if attention_mask is None:
            return scores
        # Finite: in a row of padding alone the softmax of -inf would be no number.
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~attention_mask.unsqueeze(-1), lowest)


FIRST, SECOND = 1, 2
"""Numbers of the two texts of a pair in the result of `text_segments`."""


def text_segments(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Say which text of a pair each token belongs to, by the separators among the ids.

    Every family has separators, but not every one has segment ids (`token_type_ids`): RoBERTa,
    DistilBERT and ModernBERT have none. The separator is the token that ends a sequence, as in
    `[CLS] a [SEP] b [SEP]` and `<s> a </s></s> b </s>`; a text never contains it, because the
    tokenizer reads its name in a text as text.

    Args:
        input_ids: int64 (B, T).
        attention_mask: True where there is a token, bool (B, T); None if everywhere.

    Returns:
        1 in the first text, 2 in the second, 0 at the token that begins a sequence, at separators
        and at padding; int64 (B, T). A text without a second one is all 1.
    """
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
    separator = input_ids.gather(1, last_position(attention_mask).unsqueeze(1))  # (B, 1)
    is_separator = attention_mask & (input_ids == separator)
    is_first_token = attention_mask.cumsum(dim=1) <= 1
    behind_separator = is_separator.cumsum(dim=1) > 0
    segments = torch.where(behind_separator, SECOND, FIRST)
    return segments * (attention_mask & ~is_separator & ~is_first_token)


def given(input_ids: Tensor | None) -> Tensor:
    """The ids that a pooling of two texts needs.

    Raises:
        ValueError: There are none.
    """
    if input_ids is None:
        raise ValueError(
            "a pooling that compares two texts distinguishes them by the separators among the ids, "
            "got no ids; give the head input_ids as its third argument"
        )
    return input_ids


def segment_pair(
    hidden: Tensor,
    attention_mask: Tensor | None,
    input_ids: Tensor | None,
    pool: Callable[[Tensor, Tensor], Tensor] = mean_over_tokens,
) -> Tensor:
    """Compare two texts: [u, v, |u - v|, u * v] of their means (Conneau et al., 2017, section 3.1).

    Args:
        hidden: (B, T, D).
        attention_mask: True where there is a token, bool (B, T); None if everywhere.
        input_ids: int64 (B, T).
        pool: What makes u and v of the states and the text's mask; of no token zeros.

    Returns:
        (B, 4D).
    """
    segments = text_segments(given(input_ids), attention_mask)
    u, v = (pool(hidden, segments == text) for text in (FIRST, SECOND))  # (B, D)
    return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)


class SegmentAttention(nn.Module):
    """`segment_pair` with attention pooling in place of means, one query for both texts.

    After the inner attention of Conneau et al. (2017, section 3.2.3), without its hidden layer and
    with one query in place of several.
    """

    def __init__(self, hidden_size: int) -> None:
        """Make the query, of D numbers."""
        super().__init__()
        self.each = AttentionPooling(hidden_size)

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None, input_ids: Tensor | None
    ) -> Tensor:
        """Compare the texts, as in `segment_pair`, -> (B, 4D)."""
        return segment_pair(hidden, attention_mask, input_ids, self.each)


SAME_TOKEN = 4.0
"""What an equal token adds to a score at the start: its weight is e^4 times as large then."""


class AlignPooling(nn.Module):
    """Compare each token of a text with the tokens of the other that it fits (Parikh et al., 2016).

    Decomposable attention over an encoder's states, with both poolings of ESIM (Chen et al., 2017,
    section 3.3), the comparison of Tai et al. (2015, section 4.2) and DrQA's exact match (Chen et
    al., 2017a, section 3.2). With ĥ the state h after layer norm, each token i of one text reads
    all tokens j of the other:

        e_ij = ĥ_i · ĥ_j / √D + w [id_i = id_j],   a_i = Σ_j softmax_j(e_ij) ĥ_j
        c_i = ReLU(W [|ĥ_i - a_i|, ĥ_i * a_i, ĥ_i · a_i / √D, √D match_i] + b)

    where match_i is 1 if the other text has the same token, and w is learned. The mean and the
    maximum of c over each text are the result: [mean u, max u, mean v, max v]. The layer does not
    see ĥ and a themselves: on a small training set it would learn single words by heart.
    """

    def __init__(self, config: EncoderConfig, dropout: float = 0.0) -> None:
        """Make the comparing layer, 2D + 2 -> D, and the weight of an equal token."""
        super().__init__()
        size, self.eps = config.hidden_size, config.layer_norm_eps
        self.same_token = nn.Parameter(torch.tensor(SAME_TOKEN))
        self.dropout = Dropout(dropout)
        self.compare = nn.Linear(2 * size + 2, size)

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None, input_ids: Tensor | None
    ) -> Tensor:
        """Align and compare.

        Args:
            hidden: (B, T, D).
            attention_mask: True where there is a token, bool (B, T); None if everywhere.
            input_ids: int64 (B, T).

        Returns:
            (B, 4D); of a text without a token zeros, and what is aligned to it is zero.
        """
        ids = given(input_ids)
        segments = text_segments(ids, attention_mask)
        states = F.layer_norm(hidden, hidden.shape[-1:], eps=self.eps)
        is_other = segments.unsqueeze(2) + segments.unsqueeze(1) == FIRST + SECOND  # (B, T, T)
        is_same = is_other & (ids.unsqueeze(2) == ids.unsqueeze(1))
        scores = states @ states.transpose(1, 2) * states.shape[-1] ** -0.5
        scores = scores + self.same_token * is_same
        # Finite: where the other text is empty the softmax of -inf would be no number.
        scores = scores.masked_fill(~is_other, torch.finfo(scores.dtype).min)
        aligned = (scores.softmax(dim=-1) * is_other) @ states  # (B, T, D)
        compared = self._compare(states, aligned, is_same.any(dim=-1, keepdim=True))
        texts = [segments == text for text in (FIRST, SECOND)]
        pools = (mean_over_tokens, max_over_tokens)
        return torch.cat([pool(compared, text) for text in texts for pool in pools], dim=-1)

    def _compare(self, states: Tensor, aligned: Tensor, is_matched: Tensor) -> Tensor:
        """Compare tokens with counterparts, 2 x (B, T, D) and bool (B, T, 1) -> (B, T, D)."""
        product, scale = states * aligned, states.shape[-1] ** 0.5
        # Scaled, so that each of the two numbers counts as much as a whole state.
        match = scale * is_matched.to(states.dtype)
        fit = product.sum(dim=-1, keepdim=True) / scale
        features = [(states - aligned).abs(), product, fit, match]
        return F.relu(self.compare(self.dropout(torch.cat(features, dim=-1))))

    def flops(self, length: int) -> int:
        """Operations a text of `length` tokens, forward: scores, mixing and the comparing layer."""
        size = self.compare.out_features
        return length * (4 * length * size + 2 * self.compare.weight.numel())


Pooling = Callable[..., Tensor]
"""(hidden (B, T, D), attention_mask bool (B, T) or None) -> a vector a text; those that compare two
texts are given input_ids int64 (B, T) too."""

POOLINGS: dict[str, Pooling] = {
    "cls": first_token,
    "last": last_token,
    "mean": mean_over_tokens,
    "max": max_over_tokens,
    "concat": first_max_and_mean,
}
"""Name in a config -> how a text becomes one vector, without weights and by its mask alone."""


def find_pooling(name: str, config: EncoderConfig, dropout: float = 0.0) -> Pooling:
    """The pooling of this name over an encoder's states.

    In a causal encoder the first token sees itself alone; the last one has seen the whole text.

    Raises:
        ConfigError: It is `cls`, and the encoder is causal.
    """
    if config.causal and name == "cls":
        choices = [other for other in POOLINGS if other != "cls"]
        raise ConfigError(
            "pooling 'cls' reads the first token, which in a causal encoder sees no other: every "
            f"text would have the same vector; choose {', '.join(choices[:-1])} or {choices[-1]}"
        )
    if name == "attention":
        return AttentionPooling(config.hidden_size)
    if name == "segments-attention":
        return SegmentAttention(config.hidden_size)
    if name in PAIR_POOLINGS:
        return AlignPooling(config, dropout) if name == "align" else segment_pair
    return last_max_and_mean if config.causal and name == "concat" else POOLINGS[name]
