"""The command `finetune check`: what a run would read and what it would refuse, without a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.console.output import counted, put
from finetune.elementary import TRIVIAL
from finetune.errors import ConfigError, FinetuneError, nearest
from finetune.metrics.semantics import column_title, shown
from finetune.task.interface import Example, Task, most_frequent
from finetune.task.statistics import data_statistics
from tasks.own.text import ClassifyConfig

USER_ERROR = 2
MOST_CLASSES = 20
"""Classes that a line lists."""


@dataclass
class CheckRun:
    """Check the data of a run before anything is trained."""

    task: str = "classify"
    """Task whose files are checked, such as glue/rte, or how FILE is read: classify, answer or
    choose."""
    data: str | None = None
    """Folder with the official files (glue_data/ …); none = FINETUNE_DATA, or the hub."""
    validation: str | None = None
    """File to validate on."""
    test: str | None = None
    """File to test on."""
    table: ClassifyConfig = field(default_factory=ClassifyConfig)


def check(words: list[str]) -> int:
    """Check data; see `finetune check --help`. Returns 0, or 2 where a run would refuse them."""
    from finetune.cli import add_json, command_parser
    from finetune.settings import fields

    parser = command_parser("check", str(CheckRun.__doc__))
    parser.add_argument("file", nargs="?", help="file to train on")
    add_json(parser, "print the facts, the trivial baseline and what is refused as JSON on stdout")
    fields.add_flags(parser, CheckRun)
    parser.usage = "%(prog)s [FILE] [options]"
    space = parser.parse_args(words)
    run = fields.read(CheckRun, None, fields.given(CheckRun, space))
    page = check_data(_task(run, space))
    put(json.dumps(page, ensure_ascii=False) if space.json else "\n".join(_lines(page)))
    return USER_ERROR if page["refused"] else 0


def _task(run: CheckRun, space: argparse.Namespace) -> Task:
    from finetune.runs.families import families, make_task
    from finetune.runs.settings import fit_settings

    word, _, name = run.task.partition("/")
    if word not in families():
        raise ConfigError(f"check: unknown task '{run.task}'; {nearest(word, families())}")
    family = families()[word]
    if not (name or family.only):
        raise ConfigError(f"check: --task {word}/NAME; {nearest(name, family.names())}")
    if not name and space.file is None:
        raise ConfigError("check: name a FILE, or an official task by --task glue/rte")
    more: dict[str, Any] = {"table": run.table} if word == "classify" else {}
    files = {"data": run.data, "train": space.file, "validation": run.validation, "test": run.test}
    settings = fit_settings(word)
    return make_task(
        settings(encoder_from="none", task=f"{word}/{name or family.only}", **files, **more)
    )


def check_data(task: Task) -> dict[str, Any]:
    """Read all that a run of a task would read.

    Returns:
        `task`; `files`: split -> its files; the facts of `data_statistics`; `skipped`: split ->
        rows left out, by reason; `notes`: how the data were read; `trivial`: that baseline's answer
        and its metrics on the validation split (without one, on the training split); and
        `refused`: why a run would stop, a message each.
    """
    page: dict[str, Any] = {"files": {}, "skipped": {}, "notes": [], TRIVIAL: {}, "refused": []}
    examples: dict[str, list[Example]] = {}
    for split in _splits(task, page):
        with _refusals(page):
            examples[split] = task.examples(split)
            page["files"][split] = [str(path) for path in task.data_files(split)]
            if skipped := task.skipped(split):
                page["skipped"][split] = skipped
    page |= data_statistics(examples)
    if page["refused"] or not examples:
        return page
    page["task"] = task.name
    with _refusals(page):
        page["notes"] = task.notes()
        page[TRIVIAL] = _trivial(task, examples)
    return page


class _refusals:
    """In the block, an error is written down, once."""

    def __init__(self, page: dict[str, Any]) -> None:
        self.page = page

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, FinetuneError):
            return False
        if str(error) not in self.page["refused"]:
            self.page["refused"].append(str(error))
        return True


def _splits(task: Task, page: dict[str, Any]) -> list[str]:
    """The splits that a run reads: to train on, to validate on, and a test file that is named."""
    train = [task.train_split] if task.train_split else []
    named = getattr(task, "files", None)
    tests = [] if isinstance(named, Mapping) and "test" not in named else [*task.test_splits]
    validation: tuple[str, ...] = ()
    with _refusals(page):
        validation = task.validation_splits
    return [*train, *validation, *tests]


def _trivial(task: Task, examples: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    if task.train_split is None:
        return {}
    train = examples[task.train_split]
    split = next((name for name in task.validation_splits), task.train_split)
    answers = task.baseline_answers(train, examples[split])
    labels = [example.label for example in train]
    single = all(isinstance(label, str | int | float) for label in labels)
    answer = {"answer": most_frequent(labels)} if single else {}
    return {"split": split, **answer, "metrics": task.score(answers)}


def _lines(page: Mapping[str, Any]) -> Iterator[str]:
    """The page for people."""
    for split, facts in page["splits"].items():
        files = ", ".join(Path(file).name for file in page["files"].get(split, [])[:3])
        yield f"{split} ({files}): {', '.join(_facts(facts))}"
        for reason, count in page["skipped"].get(split, {}).items():
            yield f"  {reason.replace('_', ' ')} skipped: {count:,}"
        if not page["notes"]:  # which say it, too
            yield from _labels(facts)
    yield from page["notes"]
    for pair, count in page["shared_texts"].items():
        first, _, second = pair.partition("/")
        yield f"warning: {counted(count, 'example')} of {second} have the texts of one of {first}"
    yield from _about_trivial(page[TRIVIAL])
    if "validation" not in "".join(page["splits"]) and not page["refused"]:
        yield (
            "note: no validation data; a run needs --validation FILE, or --holdout 0.2, which "
            "takes a fifth of the training rows"
        )
    yield from (f"refused: {message}" for message in page["refused"])


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    words = facts["words"]
    yield counted(facts["examples"], "example")
    yield f"{words['min']} to {words['max']} words, median {words['median']:g}"
    for name in ("unlabelled", "empty_texts", "duplicate_texts", "conflicting_labels"):
        if facts.get(name):
            yield f"{name.replace('_', ' ')}: {facts[name]:,}"


def _labels(facts: Mapping[str, Any]) -> Iterator[str]:
    if classes := facts.get("classes"):
        listed = [f"{name} {count:,}" for name, count in list(classes.items())[:MOST_CLASSES]]
        more = [f"… ({len(classes):,} in all)"] if len(classes) > MOST_CLASSES else []
        yield f"  labels: {', '.join([*listed, *more])}"
    if numbers := facts.get("numbers"):
        yield (
            f"  labels: numbers from {numbers['min']:g} to {numbers['max']:g}, mean "
            f"{numbers['mean']:.4g}, standard deviation {numbers['std']:.4g}"
        )


def _about_trivial(trivial: Mapping[str, Any]) -> Iterator[str]:
    if not trivial.get("metrics"):
        return
    answer = f" (always {trivial['answer']})" if "answer" in trivial else ""
    scores = [
        f"{column_title(name)} {shown(name, value)}" for name, value in trivial["metrics"].items()
    ]
    yield f"trivial baseline{answer} on {trivial['split']}: {', '.join(scores)}"
