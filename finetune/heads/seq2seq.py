"""The sequence-to-sequence head: a decoder that writes a target, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from finetune.decoder import (
    Decoder,
    DecoderCache,
    Found,
    SearchConfig,
    beam_search,
    greedy_search,
)
from finetune.encoder import Dropout, Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.heads.config import PAIR_POOLINGS, HeadConfig
from finetune.heads.masked_lm import MaskedLM
from finetune.heads.pooling import Pooling, find_mix, find_pooling
from finetune.heads.protocol import TaskHead, cross_entropy


class Seq2Seq(nn.Module, TaskHead):
    """An encoder-decoder's upper half (Sutskever et al., 2014; Vaswani et al., 2017).

    p(target | source) = Π p(token | tokens before it, source): a decoder whose cross-attention
    reads the encoder's states, and the output layer of a language model, whose weights are the
    decoder's word embeddings. It is trained on the right tokens so far (teacher forcing), and
    answers with those that it has written itself.

    With a pooling there is no attention to the source: all that the decoder reads is one vector
    (Cho et al., 2014), the bottleneck that attention removed (Bahdanau et al., 2015).

    >>> import torch
    >>> from finetune import EncoderConfig, HeadConfig
    >>> from finetune.decoder import DecoderConfig, SearchConfig
    >>> from finetune.heads import Seq2Seq
    >>> config = EncoderConfig(vocab_size=100, hidden_size=16, num_attention_heads=2,
    ...                        num_hidden_layers=1, intermediate_size=32)
    >>> head = Seq2Seq(config, HeadConfig(), DecoderConfig().shape(config), start=2, end=3).eval()
    >>> sources = torch.zeros(2, 7, 16)  # the encoder's states of two sources
    >>> head(sources, None, torch.tensor([[2, 17, 42], [2, 5, 0]])).shape  # six tokens
    torch.Size([6, 100])
    >>> head.generate(sources, {}).shape  # a score and 64 tokens for each source
    torch.Size([2, 65])
    """

    kind = "seq2seq"
    generates = True

    def __init__(
        self,
        config: EncoderConfig,
        head: HeadConfig,
        decoder: EncoderConfig,
        *,
        start: int,
        end: int,
        cross_score: str | None = None,
        search: SearchConfig | None = None,
        starts_from: str | None = None,
    ) -> None:
        """Make the decoder and the output layer.

        Args:
            config: The encoder's config.
            head: Names the layers that are read, and the pooling in place of attention.
            decoder: Shape of the decoder, see `DecoderConfig.shape`.
            start: Token that begins a target.
            end: Token that ends it.
            cross_score: Score of cross-attention; None = that of the decoder's self-attention.
            search: How a target is searched for.
            starts_from: Place of the causal language model that a new decoder starts from.

        Raises:
            ConfigError: The pooling is one of pairs, or a target may be longer than the decoder's
                positions reach.
        """
        super().__init__()
        self.search = search or SearchConfig()
        self.max_target_length = self.search.target_length(decoder)
        self.config, self.cross_score = head, cross_score
        self.start, self.end, self.starts_from = start, end, starts_from
        self._target_length = 0  # of the last batch
        _check(head)
        self.mix = find_mix(head.layers, config)
        self.all_layers = head.layers == "mix"
        self.pool: Pooling | None = find_pooling(head.pooling, config) if head.pooling else None
        width = config.hidden_size * (3 if head.pooling == "concat" else 1)
        self.dropout = Dropout(head.head_dropout or 0.0)
        self.decoder = Decoder(decoder, width, cross_score)
        self.output = MaskedLM(decoder, self.decoder.embeddings.word_embeddings)

    def settings(self) -> dict[str, Any]:
        """What a checkpoint says of the head, so that it can be built again."""
        return {
            **dataclasses.asdict(self.config),
            "decoder": self.decoder.config.to_dict(),
            "cross_score": self.cross_score,
        }

    def start_from(self, encoder: Encoder, output: Mapping[str, Tensor] | None = None) -> None:
        """Start from pretrained weights; see `Decoder.start_from`.

        Args:
            encoder: A causal one of the decoder's shape; or another, whose words are taken.
            output: Weights of a language model's output layer, by the names of `MaskedLM`.
        """
        self.decoder.start_from(encoder)
        if output:
            self.output.load_state_dict(output)

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        """Score the next token of each place of the targets (teacher forcing).

        Args:
            hidden: The encoder's states, (B, T, D); those of all layers where `all_layers` says so.
            attention_mask: True where a source has a token, bool (B, T); None if everywhere.
            decoder_input_ids: The right targets, from the start token on, int64 (B, S).

        Returns:
            Logits (B S, V).

        Raises:
            ValueError: There are no targets.
        """
        if decoder_input_ids is None:
            raise ValueError(
                "teacher forcing reads the targets: give decoder_input_ids; or generate"
            )
        self._target_length = decoder_input_ids.shape[1]
        memory, mask = self._memory(hidden, attention_mask)
        states = self.decoder(decoder_input_ids, memory, mask).last_hidden_state
        logits: Tensor = self.output(states.flatten(0, 1))
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropy over the tokens of the targets.

        Args:
            logits: (B S, V).
            labels: int64 (B S,), -100 behind the end of a target.

        Returns:
            Nats a token, float32 scalar; 0 where there is none.
        """
        return cross_entropy(logits, labels)

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Refuse: an answer is not read off the logits of the right one.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("expected a head whose answers are read off logits; this one generates")

    def generate(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Write a target for each source.

        Args:
            hidden: The encoder's states, (B, T, D).
            batch: Has `attention_mask` bool (B, T) where a source is padded.

        Returns:
            The score, and then the token ids of the target and end tokens behind it, float32
            (B, 1 + max_target_length): a float32 has every number up to 16,777,216.
        """
        found = self.search_targets(hidden, batch.get("attention_mask"))
        return torch.cat((found.scores.unsqueeze(1), found.ids.float()), dim=1)

    def flops(self, sources: int, targets: int) -> float:
        """Count a forward pass over a source of T tokens and a target of S; see `Decoder.flops`."""
        return self.decoder.flops(sources if self.pool is None else 1, targets)

    def flops_per_token(self, length: float) -> float:
        """The decoder's; targets are taken to be as long as the longest of the last batch."""
        targets = self._target_length
        return self.flops(round(length), targets) / length if targets else 0.0

    def search_targets(self, hidden: Tensor, attention_mask: Tensor | None) -> Found:
        """Search a target for each source, greedily or with beams; see `generate`."""
        memory, mask = self._memory(hidden, attention_mask)
        cache = DecoderCache(len(self.decoder.blocks))

        def step(prefixes: Tensor, rows: Tensor) -> Tensor:
            nonlocal mask
            mask = None if mask is None else mask[rows]
            cache.select(rows)
            # The memory's keys and values are in the cache from the first step on.
            states = self.decoder(prefixes[:, -1:], memory, mask, cache=cache).last_hidden_state
            logits: Tensor = self.output(states[:, -1])
            return logits.float().log_softmax(dim=-1)

        start = torch.full((len(memory),), self.start, device=memory.device)
        found, length = self.search, self.max_target_length
        if found.beams == 1:
            return greedy_search(step, start, self.end, length, found.length_penalty)
        return beam_search(step, start, self.end, length, found.beams, found.length_penalty)

    def align(self, hidden: Tensor, attention_mask: Tensor | None, ids: Tensor) -> Tensor:
        """Weights of cross-attention while targets are written.

        Args:
            hidden: The encoder's states, (B, T, D).
            attention_mask: bool (B, T), or None.
            ids: Targets without their start token, int64 (B, S).

        Returns:
            (L, B, H, S, T): how much of each token of a source each token of its target was
            written from; each row sums to 1.

        Raises:
            ConfigError: The decoder reads one vector.
        """
        if self.pool is not None:
            raise ConfigError(
                f"expected a decoder with attention to the source, got one that reads one vector "
                f"(pooling {self.config.pooling}); train without --pooling"
            )
        memory, mask = self._memory(hidden, attention_mask)
        start = torch.full_like(ids[:, :1], self.start)
        inputs = torch.cat((start, ids[:, :-1]), dim=1)
        output = self.decoder(inputs, memory, mask, output_attentions=True)
        return torch.stack(output.cross_attentions)

    def _memory(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the decoder reads: all states of the source, or one vector."""
        states = self.dropout(self.mix(hidden))
        if self.pool is None:
            return states, mask
        return self.pool(states, mask).unsqueeze(1), None


def _check(head: HeadConfig) -> None:
    if head.pooling in PAIR_POOLINGS:
        raise ConfigError(
            f"pooling '{head.pooling}' compares two texts, and a decoder reads one source; leave "
            "it out for attention, or choose mean"
        )
