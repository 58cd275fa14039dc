"""The two ends of an export: the checkpoint with its run, and the output folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from finetune.checkpoints.folder import Checkpoint, load_checkpoint
from finetune.errors import CheckpointError, ConfigError
from finetune.jobs.ensembles import mean_thresholds, member_checkpoints
from finetune.runs.folder import RunFolder
from finetune.runs.opening import check_writable
from finetune.runs.results import Results
from finetune.task.decision import TEMPERATURE
from finetune.text.features.long_texts import CUT, LongConfig

CARD = "README.md"
EXPORTS = ("config.json", "model.safetensors", "model.onnx")
"""Files of which an exported folder has at least one, beside its card."""


@dataclass(frozen=True)
class Source:
    """A checkpoint with the results and settings of the run that made it."""

    checkpoint: Checkpoint
    results: Results = field(default_factory=dict)
    """The content of RUN/results.json, over all seeds if there are several; {} without the file."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The content of the run's config.yaml; {} for a checkpoint without a run."""
    seed: int | None = None
    """The seed of the weights, if the run has several; else None."""
    chosen_by: str | None = None
    """The validation metric by which that seed was the best; None if the user named it."""
    members: tuple[Checkpoint, ...] = ()
    """The checkpoints of all seeds, if they are exported together; else none."""

    @property
    def kind(self) -> str | None:
        """Kind of the checkpoint's head; None for an encoder alone."""
        kind = self.checkpoint.head.get("kind")
        return None if kind in (None, "none") else str(kind)

    @property
    def long(self) -> LongConfig:
        """How the run reads texts longer than a sequence."""
        settings = self.settings.get("long_texts")
        return LongConfig(**settings) if isinstance(settings, Mapping) else CUT

    @property
    def averages_windows(self) -> bool:
        """Whether an answer is the average of windows, which comes before the temperature."""
        return self.long.averages_windows and not self.members

    @property
    def thresholds(self) -> dict[str, float]:
        """The numbers that decide answers, without the temperature: the weights have that."""
        numbers = self.checkpoint.decision.items()
        return {name: value for name, value in numbers if name != TEMPERATURE}

    @property
    def task(self) -> str | None:
        """What it was trained on, such as `pretrain` or the name of a task."""
        return self.results.get("task") or self.checkpoint.task

    @property
    def family(self) -> str | None:
        """`model_type` of the published encoder that it started from; None if there is none."""
        run: Results = self.results.get("runs", [self.results])[0]
        return self.checkpoint.source.get("family") or run.get("imported", {}).get("family")

    @property
    def base_model(self) -> str | None:
        """Name on the hub of the published encoder that it is, or began as; None for others."""
        run: Results = self.results.get("runs", [self.results])[0]
        name = self.checkpoint.source.get("name") or run.get("imported", {}).get("name", "")
        is_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists()
        return name if is_name else None

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest sequence in training, else the number of learned positions."""
        sections = (self.settings, self.settings.get("data"), self.settings.get("text"))
        for section in sections:
            if isinstance(section, Mapping) and isinstance(section.get("max_length"), int):
                return int(section["max_length"])
        config = self.checkpoint.encoder_config
        return config.max_position_embeddings if config.position == "learned" else None


def calibrated(weights: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights with the output layer divided by the temperature: its logits are calibrated.

    Args:
        weights: Those of the checkpoint, by name.
        checkpoint: Has the temperature in its decision, or none.
    """
    temperature = checkpoint.decision.get(TEMPERATURE, 1.0)
    places = [int(name.split(".")[2]) for name in weights if name.startswith("head.layers.")]
    if temperature == 1 or not places:
        return dict(weights)
    outputs = f"head.layers.{max(places)}."  # a linear layer, as all pooled heads end
    return {
        name: tensor / temperature if name.startswith(outputs) else tensor
        for name, tensor in weights.items()
    }


def find_source(run: Path) -> Source:
    """Find the checkpoint of a folder, and its run.

    Args:
        run: A run's folder; of several seeds, the best one by the headline metric is
            taken. Or RUN/seed-N, or a checkpoint's folder.

    Raises:
        ConfigError: The run was not trained, or it used another run's weights.
        CheckpointError: There is no checkpoint, or the run of several seeds is not finished.
        DataError: The run's results.json cannot be read.
    """
    folder = RunFolder(run)
    if run.name == "best":  # the run's results are those of this checkpoint
        folder = RunFolder.of_checkpoint(run) or folder
    run = folder.path
    results = folder.read_results() if folder.results_file.is_file() else {}
    settings = folder.read_config()
    if "fixed_answer" in results:
        raise ConfigError(
            f"{run} was not trained: every example is answered '{results['fixed_answer']}'; "
            "there are no weights to export"
        )
    if settings.get("seeds"):
        return _best_seed(folder, results, settings)
    if results and not folder.checkpoints.is_dir() and not (run / "config.json").is_file():
        raise ConfigError(
            f"{run} has no weights: it predicted with those of "
            f"{results.get('encoder', 'another run')}; export that run"
        )
    return Source(load_checkpoint(run), results, settings)


def find_ensemble(run: Path) -> Source:
    """Find the checkpoints of all seeds of a run, and the run.

    Raises:
        ConfigError: The run has one seed, or one of several has not ended.
        CheckpointError: A checkpoint is damaged, or they do not answer in the same form.
        DataError: The run's results.json cannot be read.
    """
    folder = RunFolder(run)
    members = tuple(member_checkpoints(folder))
    decision = mean_thresholds([one.decision for one in members])
    return Source(
        replace(members[0], decision=decision),
        folder.read_results(),
        folder.read_config(),
        members=members,
    )


def _best_seed(run: RunFolder, results: Results, settings: dict[str, Any]) -> Source:
    if not results.get("metrics"):
        started = [seed.path for seed in run.seeds if seed.has_started]
        remedy = f"or name one of its seeds: {started[0]}" if started else "then export it"
        raise CheckpointError(
            f"{run.path}: expected a finished run, got no results.json of all its seeds; "
            f"continue the run with --resume, {remedy}"
        )
    best = run.best_seed()
    seed = best.run.seed
    checkpoint = load_checkpoint(run.seed(seed).path)
    return Source(checkpoint, results, settings, seed, best.metric)


def check_out(out: Path, run: Path, *, overwrite: bool) -> None:
    """Refuse an output folder that must not be replaced; nothing is changed.

    Args:
        out: The output folder.
        run: The run to export.
        overwrite: Whether an older export may be replaced.

    Raises:
        ConfigError: It is or contains the run; it cannot be written; it contains an export and
            `overwrite` is false; or it contains other files.
    """
    if out.name in ("", ".."):
        raise ConfigError(f"--out {out}: name a new folder, such as {out / 'export'}")
    check_writable(out)
    target, source = out.resolve(), run.resolve()
    if target == source or target in source.parents:
        raise ConfigError(f"--out {out}: contains the run that is exported; choose another folder")
    if not out.exists() or not any(out.iterdir()):
        return
    if not _is_export(out):
        raise ConfigError(
            f"{out} is not empty and contains no export; choose a new folder for --out"
        )
    if not overwrite:
        raise ConfigError(
            f"{out} already contains an export; replace it with --overwrite or choose another --out"
        )


def _is_export(folder: Path) -> bool:
    """Whether it is an export: a card, weights or settings, and no further folder."""
    has_files = (folder / CARD).is_file() and any((folder / name).is_file() for name in EXPORTS)
    return has_files and all(path.is_file() for path in folder.iterdir())
