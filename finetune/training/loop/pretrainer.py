"""Pretraining: the encoder learns to name masked tokens (Devlin et al., 2019, section 3.1).

The vocabulary projection, most of the arithmetic of a small model, is done at masked positions
only. A causal encoder learns the next token instead; its batches mark every position but the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytorch_lightning as pl
import torch
from torch import Tensor

from finetune.encoder import Encoder
from finetune.encoder.cost import forward_flops_per_token, lm_head_fraction, unread_flops
from finetune.encoder.memory import Memory
from finetune.errors import DataError
from finetune.heads import MaskedLM
from finetune.metrics.semantics import TOKEN_ACCURACIES
from finetune.training.loop.accumulation import labelled
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.streams import StreamMemory
from finetune.training.optimizer import OptimizerConfig
from finetune.training.ranks import ALONE, Ranks
from finetune.training.schedules import ScheduleConfig


class Pretrainer(EncoderWithHead):
    """Encoder and language-model head.

    A batch has `input_ids` int64 (B, T), `positions` int64 (N,): places in the flattened (B * T)
    batch where a token is to be named, and `labels` int64 (N,): the ids that belong there.

    Under any Trainer of Lightning it logs `train/loss`, `val/loss`, `val/perplexity` and
    `val/masked_accuracy` (causal: `val/next_token_accuracy`); the Trainer's length gives the
    schedule its end.

    >>> import pytorch_lightning as pl
    >>> from finetune import CorpusData, Encoder, Pretrainer, Tokenizer
    >>> from finetune.text import CorpusConfig, build_corpus
    >>> encoder = Encoder.from_pretrained("runs/pretrained")
    >>> tokenizer = Tokenizer.load("runs/pretrained/tokenizer")
    >>> corpus = build_corpus(["data/corpus.txt"], tokenizer, CorpusConfig(max_length=32),
    ...                       seed=1, cache_dir="data/cache")
    >>> trainer = pl.Trainer(max_steps=2, log_every_n_steps=1, accelerator="cpu", logger=False,
    ...                      enable_checkpointing=False, enable_progress_bar=False,
    ...                      enable_model_summary=False)
    >>> trainer.fit(Pretrainer(encoder), datamodule=CorpusData(corpus, tokenizer))
    >>> "train/loss" in trainer.callback_metrics
    True
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        seed: int = 0,
    ) -> None:
        """Put a language-model head on an encoder.

        Args:
            encoder: The network to pretrain.
            optimizer: Rates and decay.
            schedule: Shape of the rate over the run.
            seed: Keys the dropout of every step.
        """
        head = MaskedLM(encoder.config, encoder.embeddings.word_embeddings)
        super().__init__(encoder, head, optimizer=optimizer, schedule=schedule, seed=seed)
        self.accuracy = TOKEN_ACCURACIES[encoder.config.causal]
        """What the fraction of tokens that are predicted correctly is called."""
        self.lm_fraction: float | None = None
        """Fraction of the tokens that the head sees; None: 15 %, or all where causal."""
        self.separate = False
        """Whether the documents of a block do not see each other (`documents: separate`)."""
        size = encoder.config.memory
        self.streams = StreamMemory(size) if size else None

    def configure_callbacks(self) -> list[pl.Callback]:
        """Have what rows remember saved with the run, where the encoder has a memory."""
        return [self.streams] if self.streams else []

    def new_memory(self) -> Memory | None:
        """A memory that has read nothing yet; None where the encoder has none."""
        size = self.encoder.config.memory
        return Memory(size) if size else None

    def forward(self, batch: Mapping[str, Tensor], memory: Memory | None = None) -> Tensor:
        """Logits at the marked positions.

        Args:
            batch: `input_ids` (B, T), `positions` (N,), and optionally the encoder's other keys.
            memory: What the rows have read before; extended.

        Returns:
            Logits (N, V).
        """
        # Positions in the flattened batch: a row's number of masked tokens varies.
        output = self.encoder(batch, positions=batch["positions"], memory=memory)
        logits: Tensor = self.head(output.last_hidden_state)  # of (N, D)
        return logits

    def flops_per_token(self, length: float) -> float:
        """Count the arithmetic of a step: head and last block are of the masked positions alone."""
        config, tokens = self.encoder.config, round(length)
        if self.separate and config.global_tokens != "none":  # tiles do not have both
            config = replace(config, local_attention=0, global_tokens="none")
        read = lm_head_fraction(config) if self.lm_fraction is None else self.lm_fraction
        forward = forward_flops_per_token(config, tokens, read)
        if self.encoder.reads_few(read, tokens):
            forward -= unread_flops(config, tokens, read)
        return 3 * forward

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The loss, nats a masked token; on logged steps also the fraction predicted correctly."""
        logits = self(batch, self.streams.of(batch, batch_idx) if self.streams else None)
        outputs = {"loss": self.head.loss(logits, batch["labels"])}
        if self.is_logged_step:  # a pass over (N, V) logits that the other steps can do without
            right = logits.detach().argmax(-1) == batch["labels"]
            outputs[self.accuracy] = right.float().mean()
        return outputs

    def on_validation_epoch_start(self) -> None:
        """Start with no figures of validation batches."""
        super().on_validation_epoch_start()
        self._figures: list[Tensor] = []
        self._read = self.new_memory()

    def validation_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Keep the figures of a batch on its device."""
        if batch:  # otherwise another process has one, and this one none
            self._figures.append(self._measure(batch, self._read))

    def validation_metrics(self) -> dict[str, float]:
        """`val/loss`, `val/perplexity` and the accuracy; of all processes, which must all ask."""
        figures = _of_all(self._figures, Ranks.of(self._trainer))
        metrics = _metrics(figures, self.accuracy)
        return {f"val/{name}": value for name, value in metrics.items()}

    def _measure(self, batch: Mapping[str, Tensor], memory: Memory | None) -> Tensor:
        """Mean loss, tokens named rightly and tokens, (3,); does not wait for the device."""
        logits, labels = self(batch, memory), batch["labels"]
        loss = self.head.loss(logits, labels)
        right = (logits.argmax(-1) == labels).sum()
        return torch.stack([loss, right.float(), labelled(labels)])


def _of_all(figures: Sequence[Tensor], ranks: Ranks) -> Sequence[Tensor]:
    """The figures of all processes' batches, in order."""
    return figures if ranks.size == 1 else ranks.merged([one.cpu() for one in figures])


def _metrics(figures: Sequence[Tensor], accuracy: str) -> dict[str, float]:
    """Means over all masked tokens of the batches: every token weighs the same."""
    # float64: a float32 sum of a million tokens' losses has steps of half a nat.
    losses, rights, counts = torch.stack(list(figures)).cpu().double().unbind(1)
    loss, right, tokens = float(losses @ counts), float(rights.sum()), float(counts.sum())
    if not tokens:
        raise DataError(
            "expected tokens to predict in the validation blocks, got unknown and special ones "
            "alone; train a tokenizer on this corpus, or hold out more by --validation-fraction"
        )
    return {
        "loss": loss / tokens,
        accuracy: right / tokens,
        "perplexity": math.exp(min(loss / tokens, 700.0)),  # e to 710 is no float any more
    }


@torch.no_grad()
def masked_lm_metrics(
    module: Pretrainer, loader: Iterable[Mapping[str, Tensor]], ranks: Ranks = ALONE
) -> dict[str, float]:
    """Loss (nats), accuracy and perplexity over all labelled tokens of a loader.

    Args:
        module: On the device where it is to run; put into eval mode.
        loader: Batches as for training.
        ranks: Processes that each have a part of the batches.

    Returns:
        The three metrics; empty where there is no batch.
    """
    module.eval()
    device, memory = next(module.parameters()).device, module.new_memory()
    figures = [
        module._measure(
            {name: t.to(device, non_blocking=True) for name, t in batch.items()}, memory
        )
        for batch in filter(None, loader)
    ]
    figures = list(_of_all(figures, ranks))
    return _metrics(figures, module.accuracy) if figures else {}
