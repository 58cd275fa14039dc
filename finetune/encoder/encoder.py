"""The encoder: embeddings, then a row of blocks, which can be cut in two at any depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from finetune.console.output import counted
from finetune.encoder.block import BLOCKS, call_compiled
from finetune.encoder.cache import Cache
from finetune.encoder.config import EncoderConfig
from finetune.encoder.contexts import contexts_of
from finetune.encoder.cost import parameters
from finetune.encoder.embeddings import Embeddings
from finetune.encoder.layout import PADDED, Padded, without_padding
from finetune.encoder.memory import Memory
from finetune.encoder.norms import make_norm
from finetune.encoder.varlen import by_sequence
from finetune.errors import ConfigError
from finetune.machine.memory import FLOAT, check_fits


class EncoderOutput(NamedTuple):
    """What the encoder gives for a batch."""

    last_hidden_state: Tensor
    """(B, T, D)."""
    hidden_states: tuple[Tensor, ...] | None
    """Boundary d = 0 .. L, each (B, T, D): what `prefix(batch, d)` gives."""
    attentions: tuple[Tensor, ...] | None
    """Attention weights of each block, before dropout, each (B, H, T, T)."""


def initialize_weights(module: nn.Module, initializer_range: float) -> None:
    """Start all linear layers and embeddings below a module as BERT does.

    Weights come from N(0, initializer_range²); biases and the padding embedding are zero.
    Scores start their own weights (`scores.py`).
    """
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=initializer_range)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])  # as torch made it, before normal_


def check_compiles(config: EncoderConfig) -> None:
    """Refuse to compile blocks that torch's compiler was not tried on.

    Raises:
        ConfigError: The blocks are no transformers.
    """
    if config.block != "transformer":
        raise ConfigError(
            f"compile: expected block transformer, got {config.block}; leave compile out"
        )


class Encoder(nn.Module):
    """A bidirectional transformer encoder (Devlin et al., 2019, section 3) and its variants.

    A plain torch module: ids go in, hidden states come out, and any training loop can use it.

    >>> import torch
    >>> from finetune import Encoder, EncoderConfig
    >>> encoder = Encoder(EncoderConfig(vocab_size=100, hidden_size=16, num_hidden_layers=2,
    ...                                 num_attention_heads=2, intermediate_size=32)).eval()
    >>> batch = {"input_ids": torch.tensor([[2, 17, 42, 3]])}
    >>> encoder(batch).last_hidden_state.shape
    torch.Size([1, 4, 16])

    It can be cut in two at any depth:

    >>> lower = encoder.prefix(batch, depth=1)
    >>> upper = encoder.suffix(lower, mask=None, depth=1)
    >>> torch.equal(upper, encoder(batch).last_hidden_state)
    True
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Build the encoder with fresh weights from torch's default generator.

        Raises:
            ConfigError: Its weights are more than this machine's memory.
        """
        super().__init__()
        # On another device (a GPU, or meta for shapes alone) the weights take none of this memory.
        if torch.get_default_device().type == "cpu":
            weights = parameters(config)
            what = f"an encoder of {weights:,} parameters in float32"
            check_fits(weights * FLOAT, what, "lower its sizes")
        self.config = config
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(
            BLOCKS[config.block](config, number) for number in range(config.num_hidden_layers)
        )
        self._compiles = False
        self.final_norm: nn.Module = nn.Identity()
        if config.norm_position != "post":  # the blocks leave a sum that is not normalized
            self.final_norm = make_norm(config, config.hidden_size)
        initialize_weights(self, config.initializer_range)

    @classmethod
    def from_pretrained(cls, place: str | Path) -> Encoder:
        """Read a pretrained encoder, trained here or elsewhere.

        >>> from finetune import Encoder
        >>> encoder = Encoder.from_pretrained("runs/pretrained")
        >>> encoder.config.num_hidden_layers
        2

        `finetune.find_checkpoint` reads the same places and gives the tokenizer too.

        Args:
            place: A run or checkpoint folder of ours, a Hugging Face folder, or a name on its hub.

        Returns:
            The encoder with its weights, on the CPU and in eval mode.

        Raises:
            CheckpointError: There is no encoder in this place, or none that can be expressed here.
        """
        # The only import from a higher layer: this is where users look for the method.
        from finetune.checkpoints.hub import find_checkpoint

        return find_checkpoint(place).encoder()

    def forward(
        self,
        batch: Mapping[str, Tensor],
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        first_only: bool = False,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            batch: `input_ids` int64 (B, T). Optionally `attention_mask`, True = may be attended
                to, bool (B, T) or (B, T, T), row = query; `token_type_ids` int64 (B, T);
                `position_ids` int64 (B, T). Without a mask nothing is hidden, which is fastest.
            output_hidden_states: Whether the states at all boundaries are wanted.
            output_attentions: Whether the attention weights are wanted; slower.
            first_only: Whether the last block computes the first token alone: the last hidden
                state is (B, 1, D) then, for less work.
            positions: Tokens whose last hidden states are wanted alone, int64 (N,), numbered among
                all B T, none twice and none hidden by a mask (B, T): the last hidden state is
                (N, D) then, for less work.
            cache: Keys and values of the S tokens before these T, extended by theirs. A mask is
                bool (B, S + T) then, or (B, T, S + T); positions go on from S unless they are
                given.
            memory: States of the tokens before these, extended by theirs. Not with a cache.

        Returns:
            The last hidden state, and the rest as asked for.

        Raises:
            ConfigError: The batch, with what is cached, is longer than learned positions reach, or
                a cache is given and a token sees later ones; or a memory does not suit the config.
        """
        if memory is not None:
            self.config.check_memory()
            if cache is not None:
                raise ConfigError("memory: expected no cache beside it; give one of the two.")
        if cache is not None:
            batch = cache.continued(batch, self.config)
        return self._run(
            self.embeddings(batch),
            range(1, len(self.blocks) + 1),
            batch.get("attention_mask"),
            batch.get("position_ids"),
            segments=batch.get("token_type_ids"),
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            first_only=first_only,
            positions=positions,
            cache=cache,
            memory=memory,
        )

    def prefix(self, batch: Mapping[str, Tensor], depth: int) -> Tensor:
        """Run the embeddings and the first `depth` blocks.

        Args:
            batch: As for `forward`.
            depth: 0 (embeddings only) .. L (everything, the final norm included).

        Returns:
            Hidden states at that boundary, (B, T, D).

        Raises:
            ConfigError: The depth lies outside 0 .. L.
        """
        self._check_depth(depth)
        mask, position_ids = batch.get("attention_mask"), batch.get("position_ids")
        segments = batch.get("token_type_ids")
        return self._run(
            self.embeddings(batch), range(1, depth + 1), mask, position_ids, segments=segments
        ).last_hidden_state

    def suffix(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        depth: int,
        *,
        until: int | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        first_only: bool = False,
        positions: Tensor | None = None,
        layout: Padded = PADDED,
    ) -> Tensor:
        """Run the blocks behind a boundary: `suffix(prefix(batch, d), mask, d)` is `forward`.

        Args:
            hidden: What `prefix` gave at the boundary, (B, T, D).
            mask: The batch's `attention_mask`, bool (B, T) or (B, T, T), or None.
            depth: The boundary, 0 .. L.
            until: The boundary to stop at, `depth` .. L; None for the last.
            position_ids: The batch's, int64 (B, T); only rotary positions need them again.
            token_type_ids: The batch's, int64 (B, T); global tokens of a question need them again.
            first_only: Whether only the first token's state is wanted.
            positions: Tokens whose states are wanted alone, as for `forward`.
            layout: How tokens lie between the blocks: in an unpadded layout of the mask nothing is
                computed for padding, whose states come out as zeros. Not with `first_only` or
                `positions`.

        Returns:
            The hidden state there, (B, T, D); of the first token alone (B, 1, D), of chosen ones
            (N, D).

        Raises:
            ConfigError: A boundary lies outside 0 .. L.
        """
        last = len(self.blocks) if until is None else until
        self._check_depth(depth)
        self._check_depth(last)
        depths = range(depth + 1, last + 1)
        hidden = self._run(
            hidden, depths, mask, position_ids,
            segments=token_type_ids, first_only=first_only, positions=positions, layout=layout,
        ).last_hidden_state  # fmt: skip
        return hidden[:, :1] if first_only else hidden  # all tokens, where no block ran

    def compile_blocks(self) -> None:
        """Train with blocks that torch.compile has compiled, for batches of any size.

        Weights, their names and what is computed in evaluation stay as they are.

        Raises:
            ConfigError: The blocks are no transformers.
        """
        check_compiles(self.config)
        self._compiles = True

    def layer_groups(self) -> dict[str, list[nn.Module]]:
        """Group the modules by depth, from the input up; each parameter is in one group.

        Returns:
            `embeddings`, `block_1` .. `block_L`; the last block has the final norm with it.
        """
        groups: dict[str, list[nn.Module]] = {"embeddings": [self.embeddings]}
        for depth, block in enumerate(self.blocks, start=1):
            groups[f"block_{depth}"] = [block]
        groups[f"block_{len(self.blocks)}"].append(self.final_norm)
        return groups

    def _run(
        self,
        hidden: Tensor,
        depths: range,
        mask: Tensor | None,
        position_ids: Tensor | None,
        *,
        segments: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        first_only: bool = False,
        positions: Tensor | None = None,
        layout: Padded = PADDED,
        cache: Cache | None = None,
        memory: Memory | None = None,
    ) -> EncoderOutput:
        """Run the blocks of these depths, the one loop over blocks that there is."""
        self._check_attention(weights=output_attentions, cache=cache is not None)
        past = cache.length if cache else memory.length if memory else 0
        if memory:  # which all may see; its positions come before those of the batch
            mask = None if mask is None else F.pad(mask, (past, 0), value=True)
            position_ids = torch.arange(past + hidden.shape[1], device=hidden.device).unsqueeze(0)
        all_tokens = output_hidden_states or output_attentions or cache or memory
        if layout is PADDED and not all_tokens:
            layout = self._layout(mask, hidden, depths, positions)
        contexts = contexts_of(
            self.config, hidden, mask, position_ids, past,
            segments=segments, dense=output_attentions, layout=layout,
        )  # fmt: skip
        batch, length = hidden.shape[:2]
        chosen = None if positions is None else layout.choose(positions, batch, length)
        few = positions is not None and self.reads_few(len(positions) / (batch * length), length)
        read = layout.first() if first_only else chosen if few else None
        states, attentions = [hidden], []
        hidden = layout.unpad(hidden)
        for depth in depths:
            hidden, weights = self._run_block(
                depth,
                hidden,
                *contexts[self.config.is_local(depth)],
                queries=read if depth == depths[-1] else None,
                layout=layout,
                output_attentions=output_attentions,
                past=cache.blocks[depth - 1] if cache else None,
                earlier=memory.extend(depth - 1, hidden) if memory else None,
            )
            if output_hidden_states:  # otherwise inference frees each state after the next
                states.append(hidden)
            if weights is not None:
                attentions.append(weights)
        if chosen and not (read and len(depths)):
            hidden = chosen.take(hidden)
        return EncoderOutput(
            hidden if chosen or (read and len(depths)) else layout.pad(hidden),
            tuple(states) if output_hidden_states else None,
            tuple(attentions) if output_attentions else None,
        )

    def _run_block(
        self, depth: int, hidden: Tensor, *context: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run block number `depth` (from 1); the last one takes the final norm with it."""
        block = self.blocks[depth - 1]
        trains = block.training and torch.is_grad_enabled()
        run: Callable[..., tuple[Tensor, Tensor | None]] = block
        if self._compiles and trains:  # to compile it for evaluation as well takes as long again
            run = partial(call_compiled, block)
        # Not reentrant: that form gives no gradients where no input has any (frozen embeddings).
        if self.config.gradient_checkpointing and trains:
            hidden, weights = checkpoint(run, hidden, *context, use_reentrant=False, **options)
        else:
            hidden, weights = run(hidden, *context, **options)
        return self.final_norm(hidden) if depth == len(self.blocks) else hidden, weights

    def _layout(
        self, mask: Tensor | None, hidden: Tensor, depths: range, positions: Tensor | None
    ) -> Padded:
        """How the tokens lie between the blocks: without padding where that is less work."""
        blocks = [self.blocks[depth - 1] for depth in depths]
        if (varlen := by_sequence(self.config, blocks, mask, hidden)) is not None:
            return varlen
        layout = without_padding(mask) if self._unpads() else PADDED
        if positions is None or mask is None or layout is PADDED:
            return layout
        # Without its padding a batch has no state for a token that is hidden.
        return layout if bool(mask.flatten()[positions].all()) else PADDED

    def _unpads(self) -> bool:
        """Whether blocks may be given real tokens alone: they train, and each token for itself."""
        config, trains = self.config, self.blocks[-1].training and torch.is_grad_enabled()
        # Locked dropout is one draw a sequence, and what reads in order would pad in any case.
        return trains and config.block == "transformer" and not config.locked_dropout

    def reads_few(self, fraction: float, length: int) -> bool:
        """Whether the last block computes the chosen tokens alone: not where they are most."""
        if self.config.is_local(len(self.blocks)) and not self.config.untiled(length):
            return False  # tiles are of tokens side by side
        # Relative positions count a query's distances by its row, so there must be all rows; and
        # locked dropout is one draw a sequence, of which tokens side by side would make one in all.
        whole_rows = self.config.position == "relative" or self.config.locked_dropout
        return fraction < 1 / 2 and not whole_rows

    def _check_attention(self, **wanted: bool) -> None:
        """Refuse what only blocks with attention have."""
        for name, is_wanted in wanted.items():
            if is_wanted and self.config.block != "transformer":
                raise ConfigError(
                    f"attention {name}: expected block transformer, got {self.config.block}, "
                    "which has no attention"
                )

    def _check_depth(self, depth: int) -> None:
        if not 0 <= depth <= len(self.blocks):
            raise ConfigError(
                f"an encoder of {counted(len(self.blocks), 'block')} can be cut at depth "
                f"0 to {len(self.blocks)}, got {depth}."
            )
