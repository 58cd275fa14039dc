"""The table of commands: what each does, and the function that does it, imported when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.machine.packages import import_own
from finetune.runs.families import families


@dataclass(frozen=True)
class Command:
    """A word after `finetune`."""

    group: str
    """Heading under which `finetune --help` lists it."""
    help: str
    """One line for that list."""
    run: str
    """`module:function`; it takes the arguments after the command, returns the exit status."""
    before: tuple[str, ...] = ()
    """Words that the function gets before those of the user."""
    resumes: bool = False
    """Whether `--resume` continues what was interrupted; otherwise the same command does."""
    kinds: str = ""
    """`module:name` of a table by the words of which one comes first, with options of its own."""

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run it; returns the exit status."""
        status: int = _load(self.run)([*self.before, *arguments])
        return status

    def kind_words(self) -> list[str]:
        """The words of which one comes first; none for most commands."""
        return list(_load(self.kinds)) if self.kinds else []


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_own(module), attribute)


HERE = "finetune.cli"
PRETRAINING = {
    "tokenizer": Command("build", "train a tokenizer on a corpus", f"{HERE}.train:tokenizer"),
    "corpus": Command("build", "tokenize a corpus into the cache", f"{HERE}.train:corpus"),
    "pretrain": Command(
        "build", "pretrain an encoder on raw text", f"{HERE}.train:pretrain", resumes=True
    ),
    "adapt": Command(
        "build",
        "continue pretraining on the texts of a task",
        f"{HERE}.train:adapt",
        resumes=True,
    ),
}
OTHERS = {
    "sweep": Command(
        "build",
        "train with many settings, and score the best on fresh rows",
        f"{HERE}.sweep:command",
    ),
    "baseline": Command(
        "measure",
        "score elementary baselines on a task: bag of words, word overlap",
        f"{HERE}.baseline:command",
        kinds=f"{HERE}.baseline:KINDS",
    ),
    "import-hf": Command(
        "build", "convert a Hugging Face encoder into our format", f"{HERE}.use:import_hf"
    ),
    "evaluate": Command("use", "score a finished run on a split or file", f"{HERE}.use:evaluate"),
    "predict": Command("use", "predict labels or answers for new texts", f"{HERE}.use:predict"),
    "generate": Command(
        "use", "continue a text with a causal language model", f"{HERE}.generate:command"
    ),
    "export": Command(
        "use",
        "export a run's best checkpoint to Hugging Face or ONNX",
        f"{HERE}.use:export",
    ),
    "runs": Command(
        "look", "list the runs in a folder, with scores and states", f"{HERE}.runs:command"
    ),
    "compare": Command(
        "look",
        "compare two runs: confidence intervals and significance tests",
        f"{HERE}.compare:command",
    ),
    "inspect": Command(
        "look",
        "inspect attention, layers and embeddings of a run",
        f"{HERE}.inspect:command",
        kinds=f"{HERE}.inspect:KINDS",
    ),
    "report": Command("look", "write a report of runs as one HTML file", f"{HERE}.report:report"),
    "dashboard": Command(
        "look",
        "create a workspace and report in Weights & Biases",
        f"{HERE}.report:dashboard",
    ),
    "describe": Command(
        "measure",
        "count parameters and FLOPs of a config or checkpoint",
        f"{HERE}.measure:describe",
    ),
    "cache": Command("measure", "list or clear the cached hidden states", f"{HERE}.measure:cache"),
    "bench": Command(
        "measure", "measure the speed of encoders on this machine", f"{HERE}.measure:bench"
    ),
    "completion": Command(
        "start",
        "print a script that completes commands and options in your shell",
        f"{HERE}.completion:command",
    ),
}


def command_table(more: Mapping[str, Command]) -> dict[str, Command]:
    """All commands by word.

    Args:
        more: Further commands, which `finetune --help` lists first.
    """
    fine_tuning = {
        word: Command(family.group, family.help, f"{HERE}.train:fine_tune", (word,), resumes=True)
        for word, family in families().items()
    }
    return {**more, **PRETRAINING, **fine_tuning, **OTHERS}
