"""The seeds of a run answering together: averages of what each says, or of their weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.checkpoints.folder import Checkpoint
from finetune.checkpoints.hub import find_checkpoint
from finetune.console.output import are
from finetune.errors import CheckpointError, ConfigError
from finetune.jobs.loading import answerer_of
from finetune.runs.folder import RunFolder
from finetune.runs.settings import FitRun
from finetune.task.decision import TEMPERATURE
from finetune.text.tokenizer.tokenizer import TOKENIZER_FILES, Tokenizer
from finetune.training.answering import Answerer

if TYPE_CHECKING:
    from finetune.jobs.scoring import Scorer


def together(kind: str, logits: Sequence[Tensor]) -> Tensor:
    """The logits of several models as those of one that gives their average answer.

    Args:
        kind: Of their heads: of `classification`, `choice` and `multi_label` the probabilities are
            averaged; of `regression` the numbers; of `span` the scores of the first and the last
            token, and so those of every passage.
        logits: Calibrated logits of each model, all of one shape.
    """
    each = torch.stack(list(logits)).float()  # (S, …)
    if kind in ("classification", "choice"):
        return each.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))
    if kind == "multi_label":
        return F.logsigmoid(each).logsumexp(dim=0) - F.logsigmoid(-each).logsumexp(dim=0)
    # Padding has the lowest finite score, the sum of which may round to less.
    return (each / len(logits)).sum(dim=0).clamp(min=torch.finfo(each.dtype).min)


class Ensemble(nn.Module):
    """Several fine-tuned models that answer together, in place of one `Answerer`."""

    def __init__(self, members: Sequence[Answerer]) -> None:
        """Put models together.

        Args:
            members: Models of one task, with heads of one kind and labels in the same order, each
                with its own decision. Thresholds are averaged, too.

        Raises:
            ConfigError: They write texts, which have no average.
        """
        super().__init__()
        if members[0].head.generates:
            raise ConfigError(
                f"ensemble: {members[0].task.name} writes texts, which have no average; leave "
                "--ensemble out, or load with average_weights=True"
            )
        self.members = nn.ModuleList(members)
        self.temperatures = [one.decision.get(TEMPERATURE, 1.0) for one in members]
        self.task, self.head = members[0].task, members[0].head
        self.decision = mean_thresholds([one.decision for one in members])

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of a batch, in the head's shape."""
        pairs = zip(self.members, self.temperatures, strict=True)
        return together(str(self.head.kind), [one(batch) / heat for one, heat in pairs])

    def read(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers to a batch are read off."""
        return self.outputs(self(batch), batch)

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers are read off, as of each member."""
        return self.head.outputs(logits, batch).float()


def average_weights(members: Sequence[Answerer]) -> Answerer:
    """One model with the mean of the weights (uniform soup: Wortsman et al., 2022, section 2).

    Args:
        members: Models of one shape that started from the same weights; the first one is changed.
    """
    states = [one.state_dict() for one in members]
    mean = {
        name: sum(state[name] for state in states) / len(states)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in states[0].items()
    }
    members[0].load_state_dict(mean)
    members[0].decision = _mean([one.decision for one in members])
    return members[0]


def _mean(decisions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of the numbers that every member has."""
    shared = [name for name in decisions[0] if all(name in one for one in decisions)]
    return {name: sum(one[name] for one in decisions) / len(decisions) for name in shared}


def mean_thresholds(decisions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers by which an ensemble decides: no temperature, as each member has its own."""
    return {name: value for name, value in _mean(decisions).items() if name != TEMPERATURE}


def member_folders(folder: RunFolder) -> list[RunFolder]:
    """The folders of the seeds of a run, all of which have ended.

    Raises:
        ConfigError: The run has one seed, or one of several has not ended.
    """
    seeds = folder.planned_seeds or folder.seeds
    if len(seeds) < 2:
        raise ConfigError(
            f"{folder.path}: an ensemble needs a run of several seeds, got one seed; leave "
            "--ensemble out, or train with --seeds 1,2,3"
        )
    missing = [seed for seed in seeds if not (seed.results_file.is_file() and seed.has_weights)]
    if missing:
        raise ConfigError(
            f"{folder.path}: expected {len(seeds)} seeds that have ended, got "
            f"{', '.join(seed.path.name for seed in missing)} that {are(len(missing))} missing or "
            "unfinished; continue the run with --resume"
        )
    return seeds


def member_checkpoints(folder: RunFolder, cache_dir: str | None = None) -> list[Checkpoint]:
    """The best checkpoint of each seed of a run, in order.

    Raises:
        ConfigError: As for `member_folders`.
        CheckpointError: A checkpoint is damaged, or they do not answer in the same form.
    """
    seeds = member_folders(folder)
    made = [find_checkpoint(seed.path, cache_dir) for seed in seeds]
    for checkpoint, seed in zip(made, seeds, strict=True):
        _check_alike(made[0], checkpoint, seed.path)
    return made


def _check_alike(first: Checkpoint, other: Checkpoint, place: Path) -> None:
    """Refuse a member whose outputs mean something else than those of the first one."""
    tokenizers = [
        {name: digest for name, digest in one.digests().items() if name in TOKENIZER_FILES}
        for one in (first, other)
    ]
    for what, a, b in (
        ("the labels", list(first.labels), list(other.labels)),
        ("a head of the kind", first.head.get("kind"), other.head.get("kind")),
        ("the tokenizer", *tokenizers),
    ):
        if a != b:
            given = "" if what == "the tokenizer" else f" {a}, got {b}"
            raise CheckpointError(
                f"{place}: expected {what} of the other seeds{given or ', got another'}; an "
                "ensemble needs seeds of one training, which differ in nothing else"
            )


def digest_of(checkpoints: Sequence[Checkpoint]) -> str:
    """One hash of all members, 64 hexadecimal digits, as `Checkpoint.digest` is of one."""
    text = " ".join(checkpoint.digest for checkpoint in checkpoints)
    return hashlib.sha256(f"ensemble {text}".encode()).hexdigest()


def load_members(folder: RunFolder, run: FitRun) -> tuple[list[Answerer], Tokenizer, str]:
    """The models of all seeds of a run, their tokenizer, and one digest of their checkpoints.

    Args:
        folder: The run's, with a folder for each seed.
        run: As for `load_answerer`.

    Raises:
        ConfigError: The run has one seed, or one of several has not ended.
        CheckpointError: A checkpoint is damaged, or they do not answer in the same form.
    """
    checkpoints = member_checkpoints(folder, run.cache_dir)
    tokenizer = checkpoints[0].tokenizer()  # that of all of them
    members = [answerer_of(one, tokenizer, one.folder, run) for one in checkpoints]
    return members, tokenizer, digest_of(checkpoints)


def load_ensemble(folder: RunFolder, run: FitRun) -> tuple[list[Answerer], Scorer]:
    """The seeds of a run, and all of them with the data of its task; see `load_members`."""
    from finetune.jobs.scoring import (  # with Lightning, which a first answer lacks
        Scorer,
        task_data,
    )

    members, tokenizer, digest = load_members(folder, run)
    task = members[0].task
    return members, Scorer(Ensemble(members), task, task_data(run, task, tokenizer), digest)
