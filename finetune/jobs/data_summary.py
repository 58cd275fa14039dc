"""What the splits of a task contain, a line each on the terminal, and warnings of what is odd."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from finetune.console.output import counted
from finetune.machine.processes import is_first_process
from finetune.runs.folder import say
from finetune.task.statistics import shared_texts
from finetune.training.loop.task_data import TaskData


def show_data(data: TaskData) -> None:
    """Print what the splits contain, a line each, and how they were read; warn of what is odd."""
    for split in (data.train_split, *data.task.validation_splits):
        say(_about_split(data, split))
        if is_first_process():
            for message in data.warnings(split, training=split == data.train_split):
                warnings.warn(message, stacklevel=2)
    for line in (*data.task.notes(), *_shared(data)):
        say(line)
    if data.train_examples is not None:
        say(f"train examples {data.train_examples:,}: drawn by seed {data.seed}")
    if data.choose_on_half:
        say("validating on a half; finetune evaluate RUN --split fresh scores the other half")
    if data.limit is not None:
        say(f"limit {data.limit:,}: a test of the setup; its scores are of a part of each split")


def _shared(data: TaskData) -> Iterator[str]:
    """Warn of validation texts that the training data have, too."""
    train, files = data.train_split, data.task.data_files(data.train_split)
    for split in data.task.validation_splits:
        examples = data.examples(split)
        shared = shared_texts(data.examples(train), examples)
        if data.task.data_files(split) == files and shared == len(examples):
            yield f"warning: {split} is read from the training file itself; its scores say little"
        elif shared:
            yield (
                f"warning: {shared:,} of {counted(len(examples), 'example')} of {split} "
                f"{'has' if shared == 1 else 'have'} the texts of a training example; their scores "
                "say little"
            )


CUT_AS = {
    "cut": "cut to {} tokens",
    "head-tail": "cut to {} tokens from both ends",
    "windows": "not read to the end",
}
"""How long texts are read -> what is said of those that lose tokens."""


def _about_split(data: TaskData, split: str) -> str:
    about = data.describe(split, training=split == data.train_split)
    files = ", ".join(Path(file).name for file in about.pop("files")[:3])
    examples, sequences = about.pop("examples"), about.pop("sequences")
    facts = [counted(examples, "example")]
    if sequences != examples:  # windows of passages, options of questions
        facts.append(counted(sequences, "sequence"))
    if left_out := about.pop("left_out"):
        facts.append(f"{left_out:,} that cannot be learnt from")
    if trimmed := about.pop("trimmed"):
        facts.append(f"{100 * trimmed:.1f} % {CUT_AS[data.task.long.long]}".format(data.max_length))
    if in_windows := about.pop("in_windows", 0.0):
        facts.append(
            f"{100 * in_windows:.1f} % read in several windows of {data.max_length} tokens"
        )
    facts += [
        f"{reason.replace('_', ' ')} skipped: {count:,}"
        for reason, count in about.pop("skipped", {}).items()
    ]
    facts += [
        f"{name.replace('_', ' ')}: {value}"
        for name, value in about.items()
        if name not in data.task.told_in_notes
    ]
    return f"{split} ({files}): {', '.join(facts)}"
