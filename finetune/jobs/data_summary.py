"""What the terminal shows of the data before training: each split, how it was read, warnings."""

from __future__ import annotations

import warnings
from pathlib import Path

from finetune.console.output import counted
from finetune.machine.processes import is_first_process
from finetune.runs.folder import say
from finetune.training.loop.task_data import TaskData


def show_data(data: TaskData) -> None:
    """Show what the splits hold, a line each, and how they were read."""
    for split in (data.train_split, *data.task.validation_splits):
        about = data.describe(split, training=split == data.train_split)
        files = ", ".join(Path(file).name for file in about.pop("files")[:3])
        facts = [counted(about.pop(f"{noun}s"), noun) for noun in ("example", "sequence")]
        if left_out := about.pop("left_out"):
            facts.append(f"{left_out:,} that cannot be learnt from")
        if trimmed := about.pop("trimmed"):
            facts.append(f"{100 * trimmed:.1f} % cut to {data.max_length} tokens")
        facts += [
            f"{reason.replace('_', ' ')} skipped: {count:,}"
            for reason, count in about.pop("skipped", {}).items()
        ]
        facts += [
            f"{name.replace('_', ' ')}: {value}"
            for name, value in about.items()
            if name not in data.task.told_in_notes
        ]
        say(f"{split} ({files}): {', '.join(facts)}")
        if is_first_process():
            for message in data.warnings(split, training=split == data.train_split):
                warnings.warn(message, stacklevel=2)
    for line in data.task.notes():
        say(line)
