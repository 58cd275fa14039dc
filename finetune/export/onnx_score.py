"""Score a graph on the validation split of its run, in 32 and in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from finetune.console.output import counted
from finetune.errors import ConfigError, FinetuneError
from finetune.export.onnx_graph import Session
from finetune.heads.protocol import mask_choices
from finetune.jobs.scoring import Scorer, load_scorer
from finetune.metrics.semantics import goodness
from finetune.runs.fits import read_fit
from finetune.runs.folder import RunFolder, note, say
from finetune.task import decision
from finetune.training.answering import in_order

SEQUENCES = ("input_ids", "attention_mask", "token_type_ids")
"""What of a batch has a row for each sequence."""


@dataclass(frozen=True)
class GraphScores:
    """Metrics of a graph in float32 and of the same graph in 8 bits, on the same examples."""

    split: str
    """The validation split."""
    examples: int
    """Its examples."""
    fp32: dict[str, float]
    """Metric -> fraction."""
    int8: dict[str, float]
    """Metric -> fraction."""

    @property
    def lost(self) -> dict[str, float]:
        """Metric -> loss by 8 bits: above zero where int8 is worse."""
        return {name: goodness(name, value - self.int8[name]) for name, value in self.fp32.items()}


def score_graphs(
    checkpoint: Path,
    fp32: Path,
    int8: Path,
    *,
    data: str | None = None,
) -> GraphScores | None:
    """Score two graphs on the first validation split of the run that a checkpoint belongs to.

    Args:
        checkpoint: RUN/checkpoints/best.
        fp32: The graph in float32.
        int8: The graph in 8 bits.
        data: Another data folder than the run's.

    Returns:
        The scores; None, with a line that gives the reason, if the data cannot be read.
    """
    try:
        scorer, split = find_scorer(checkpoint, data)
        examples = len(scorer.data.examples(split))
    except FinetuneError as error:
        say(f"the score of int8 was not measured: {error}")
        return None
    note(f"scoring {counted(examples, 'example')} of {split}, in fp32 and in int8")
    scores = [score_graph(scorer, Session(path), split) for path in (fp32, int8)]
    return GraphScores(split, examples, *scores)


def find_scorer(checkpoint: Path, data: str | None) -> tuple[Scorer, str]:
    """The run that a checkpoint belongs to, its data, and its first validation split.

    Args:
        checkpoint: RUN/checkpoints/best.
        data: Another data folder than the run's.

    Raises:
        ConfigError: It belongs to no fine-tuning run, or to one without a validation split.
    """
    folder = RunFolder.of_checkpoint(checkpoint)
    if folder is None or not folder.config_file.is_file():
        raise ConfigError(f"{checkpoint} belongs to no run whose validation split could be read")
    run = read_fit(folder.path)
    run = replace(run, data=data or run.data)
    scorer = load_scorer(checkpoint, run)
    if not scorer.task.validation_splits:
        raise ConfigError(f"{scorer.task.name} has no validation split")
    return scorer, scorer.task.validation_splits[0]


def score_graph(scorer: Scorer, session: Session, split: str) -> dict[str, float]:
    """Predict a split with a graph in place of the model, and score the answers.

    Args:
        scorer: The run's task and data; its model is used only to interpret the logits.
        session: The graph.
        split: A labelled split.

    Returns:
        Metric -> fraction.
    """
    outputs, order = [], []
    read = _text_by_text if scorer.task.long.pools_windows else _logits
    for batch in scorer.data.loader(split):
        logits = read(session, batch, scorer.task.sequences_per_example)
        if "choices" in batch:
            logits = mask_choices(logits, batch["choices"])
        outputs.append(scorer.module.outputs(logits, batch))
        order.append(batch["index"])
    task, data = scorer.task, scorer.data
    given = (task, in_order(outputs, order), data.examples(split), data.features(split))
    numbers = scorer.module.decision
    if not task.long.averages_windows:  # otherwise the graph has divided by the temperature itself
        numbers = numbers | {decision.TEMPERATURE: 1.0}
    return task.score(decision.answers(*given, numbers))


def _logits(session: Session, batch: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor:
    """A batch's logits in the shape that the head returns."""
    mask = batch.get("attention_mask")
    arrays = {
        "input_ids": batch["input_ids"],
        "attention_mask": torch.ones_like(batch["input_ids"]) if mask is None else mask,
        "token_type_ids": batch["token_type_ids"],
    }
    if rows > 1:
        arrays = {name: each.view(-1, rows, each.shape[1]) for name, each in arrays.items()}
    arrays_out = session({name: each.numpy() for name, each in arrays.items()})
    logits = [torch.from_numpy(each) for each in arrays_out]
    return logits[0] if len(logits) == 1 else torch.stack(logits, dim=-1)


def _text_by_text(session: Session, batch: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor:
    """A batch's logits, of a graph that reads the windows of one text."""
    tensors = {name: batch[name] for name in SEQUENCES if name in batch}
    owners = batch.get("window_of", torch.arange(len(batch["input_ids"]))) // rows
    texts = (owners == text for text in range(int(owners.max()) + 1))
    return torch.cat(
        [
            _logits(session, {name: each[own] for name, each in tensors.items()}, rows)
            for own in texts
        ]
    )
