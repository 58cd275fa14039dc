"""The decoder: embeddings, then a row of blocks that look at the encoder's states."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn

from finetune.decoder.block import DecoderBlock
from finetune.encoder import Encoder, EncoderConfig, initialize_weights
from finetune.encoder.cache import Cache
from finetune.encoder.contexts import contexts_of
from finetune.encoder.cost import cost, forward_flops_per_token
from finetune.encoder.embeddings import Embeddings
from finetune.encoder.masks import mask_bias, visible_tokens
from finetune.encoder.norms import make_norm
from finetune.errors import ConfigError


class DecoderOutput(NamedTuple):
    """What the decoder gives for targets."""

    last_hidden_state: Tensor
    """(B, S, D)."""
    cross_attentions: tuple[Tensor, ...] | None
    """Weights of cross-attention of each block, before dropout, each (B, H, S, T)."""


class DecoderCache:
    """Keys and values of the targets so far, and of the encoder's states."""

    def __init__(self, num_hidden_layers: int) -> None:
        """Start with no tokens in any of L blocks."""
        self.targets, self.sources = Cache(num_hidden_layers), Cache(num_hidden_layers)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, int64 (B',), in this order."""
        self.targets.select(rows)
        self.sources.select(rows)


class Decoder(nn.Module):
    """A transformer decoder over an encoder's states (Vaswani et al., 2017, section 3.1).

    >>> import torch
    >>> from finetune import EncoderConfig
    >>> from finetune.decoder import Decoder, DecoderConfig
    >>> encoder = EncoderConfig(vocab_size=100, hidden_size=16, num_hidden_layers=2,
    ...                         num_attention_heads=2, intermediate_size=32)
    >>> decoder = Decoder(DecoderConfig().shape(encoder), memory_size=16).eval()
    >>> memory = torch.zeros(1, 7, 16)  # the encoder's states of a source of seven tokens
    >>> decoder(torch.tensor([[2, 17, 42]]), memory).last_hidden_state.shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self, config: EncoderConfig, memory_size: int, cross_score: str | None = None
    ) -> None:
        """Build the decoder with fresh weights from torch's default generator.

        Args:
            config: Sizes and variants, of a causal encoder.
            memory_size: Width of the encoder's states.
            cross_score: Score of cross-attention; None = `attention_score`.
        """
        super().__init__()
        self.config, self.memory_size = config, memory_size
        self.cross_score = cross_score or config.attention_score
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(
            DecoderBlock(config, memory_size, cross_score, first=number == 0)
            for number in range(config.num_hidden_layers)
        )
        self.final_norm: nn.Module = nn.Identity()
        if config.norm_position != "post":  # whose blocks leave a sum that is not normalized
            self.final_norm = make_norm(config, config.hidden_size)
        initialize_weights(self, config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
        cache: DecoderCache | None = None,
    ) -> DecoderOutput:
        """Read targets, each token with those before it and with the encoder's states.

        Args:
            input_ids: Targets from their start token on, int64 (B, S).
            memory: The encoder's states, (B, T, memory_size).
            memory_mask: True where a source has a token, bool (B, T); None if everywhere.
            output_attentions: Whether the weights of cross-attention are wanted; slower.
            cache: Keys and values of the tokens before these and of the memory; extended.

        Returns:
            The hidden states, and the weights if asked for.
        """
        count, device = input_ids.shape[1], input_ids.device
        cache = cache or DecoderCache(len(self.blocks))
        length = cache.targets.length + count
        positions = torch.arange(length - count, length, device=device).unsqueeze(0)  # (1, S)
        hidden = self.embeddings({"input_ids": input_ids, "position_ids": positions})  # (B, S, D)
        contexts = contexts_of(self.config, hidden, None, positions, length - count)
        sources = visible_tokens(
            memory_mask, causal=False, length=memory.shape[1], device=memory.device
        )
        memory_bias = mask_bias(sources, hidden.dtype)
        attentions = []
        for number, block in enumerate(self.blocks):
            hidden, weights = block(
                hidden,
                memory,
                memory_bias,
                *contexts[self.config.is_local(number + 1)],
                output_attentions=output_attentions,
                past=cache.targets.blocks[number],
                memory_past=cache.sources.blocks[number],
            )
            attentions.append(weights)
        return DecoderOutput(
            self.final_norm(hidden), tuple(attentions) if output_attentions else None
        )

    def flops(self, sources: int, targets: int) -> float:
        """Count a forward pass over a pair, with the output layer: an encoder's, and what it adds.

        Args:
            sources: Tokens of the memory, T.
            targets: Tokens of the target, S.

        Returns:
            Floating-point operations.
        """
        config, size, count = self.config, self.config.hidden_size, len(self.blocks)
        queries = count * 4 * size**2  # and outputs
        keys = count * 4 * self.memory_size * size  # and values
        look = dataclasses.replace(config, attention_score=self.cross_score, position="none")
        looks = cost(look, sources)["scores and mixing"].flops
        own = forward_flops_per_token(config, targets, lm_fraction=1.0)
        return targets * (own + queries + looks) + sources * keys

    def start_from(self, encoder: Encoder) -> None:
        """Start from a pretrained encoder; cross-attention, which it lacks, stays fresh.

        Of a causal transformer all weights are taken (Rothe et al., 2020); of another encoder the
        word embeddings alone, which both then share at the start.

        Raises:
            ConfigError: The causal encoder has other weights than a decoder.
        """
        if not (encoder.config.causal and encoder.config.block == "transformer"):
            words = encoder.embeddings.word_embeddings.weight
            with torch.no_grad():
                self.embeddings.word_embeddings.weight.copy_(words)
            return
        missing, unexpected = self.load_state_dict(encoder.state_dict(), strict=False)
        if unexpected or any(".cross_attention" not in name for name in missing):
            other = (unexpected or missing)[0]
            raise ConfigError(
                f"expected a causal encoder of the decoder's shape, got another {other}; "
                "make the decoder from its config"
            )
