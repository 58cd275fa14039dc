"""The families of tasks, each with its command; a new family is a line in the table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from finetune.errors import CheckpointError, ConfigError
from finetune.runs.families import Anchor, Family

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.runs.settings import FitRun
    from finetune.task.interface import Task
    from tasks.own.text import ClassifyTask
    from tasks.run_settings import (
        AnswerRun,
        ChoiceRun,
        ChooseRun,
        ClassifyRun,
        GlueRun,
        OwnRun,
        SpanRun,
        WriteRun,
    )

Labels = tuple[str, ...] | None
R = TypeVar("R", bound="FitRun")


def _glue(run: GlueRun, labels: Labels) -> Task:
    from tasks.glue.task import glue_task

    task = glue_task(_name(run), _data(run), run.files(), labels=labels, train_wnli=run.train_wnli)
    return dataclasses.replace(task, long=run.long_texts)


def _squad(run: SpanRun, labels: Labels) -> Task:
    from tasks.squad.task import squad_task

    return squad_task(_name(run), _data(run), run.files(), windows=run.windows, spans=run.spans)


def _answer(run: AnswerRun, labels: Labels) -> Task:
    from tasks.squad.task import answer_task

    return answer_task(run.files(), windows=run.windows, spans=run.spans, name=_own_name(run))


def _race(run: ChoiceRun, labels: Labels) -> Task:
    from tasks.race.task import race_task

    task = race_task(_name(run), _data(run), run.files(), labels=labels)
    return dataclasses.replace(task, long=run.long_texts)


def _choose(run: ChooseRun, labels: Labels) -> Task:
    from tasks.own.choose import choose_task

    task = choose_task(run.files(), labels=labels, name=_own_name(run))
    return dataclasses.replace(task, long=run.long_texts)


def _write(run: WriteRun, labels: Labels) -> Task:
    from tasks.write.sets import set_task
    from tasks.write.task import WriteTask

    if labels:
        raise CheckpointError(
            f"{run.task}: expected a head that writes texts, got one for the labels "
            f"{', '.join(labels)}; name a run that has learned to write"
        )
    parts = run.decoder, run.search, _shape_of
    if run.dataset is not None:
        return set_task(run.dataset, _data(run), run.files(), *parts)
    return WriteTask(*parts, files=run.files(), given_name=_own_name(run))


def _shape_of(place: str) -> EncoderConfig:
    """The shape of a causal language model that a decoder starts from."""
    from finetune.checkpoints.hub import find_checkpoint

    shape = find_checkpoint(place).encoder_config
    if shape.block != "transformer":
        raise ConfigError(
            f"decoder_from {place}: expected a causal transformer, got block {shape.block}; a "
            "decoder beside one has blocks of its own: leave decoder_from out"
        )
    return shape


def _classify(run: ClassifyRun, labels: Labels) -> Task:
    from tasks.own.text import classify_task
    from tasks.own.text_sets import text_set_task

    if run.dataset is None:
        task = classify_task(run.files(), run.table, labels=labels, name=run.name)
        return dataclasses.replace(task, long=run.long_texts)
    if run.train or run.validation:
        raise ConfigError(
            "--dataset names the data, and so do --train and --validation: give one of them"
        )
    task = text_set_task(run.dataset, _data(run), run.files(), run.table, labels=labels)
    return dataclasses.replace(task, long=run.long_texts)


def _resolve_data(run: R, task: Task) -> R:
    """The settings with the folder of the official files, also where FINETUNE_DATA names it."""
    data = getattr(task, "data", None)  # None: they are the hub's
    splits = {task.train_split, *task.validation_splits} - {None}
    is_read = data is not None and not splits <= run.files().keys()
    run = _resolve_long(run, task)
    return dataclasses.replace(run, data=str(data)) if is_read else run


def _resolve_long(run: R, task: Task) -> R:
    """The settings with what the task does with long texts, also where a program has set it."""
    if not hasattr(run, "long_texts"):
        return run
    return dataclasses.replace(run, long_texts=task.long)  # type: ignore[call-arg]


def _resolve_table(run: ClassifyRun, task: ClassifyTask) -> ClassifyRun:
    run = dataclasses.replace(_resolve_long(run, task), table=task.resolved)
    if run.dataset is not None:
        return _resolve_data(run, task)
    return dataclasses.replace(run, name=_name(task))


def _resolve_pairs(run: WriteRun, task: Task) -> WriteRun:
    if run.dataset is not None:
        return _resolve_data(run, task)
    return dataclasses.replace(run, name=_name(task))


def _resolve_name(run: OwnRun, task: Task) -> OwnRun:
    return dataclasses.replace(_resolve_long(run, task), name=_name(task))


def _own_name(run: OwnRun) -> str:
    """The name of the user's data, by default that of the training file."""
    from tasks.own.names import OWN, name_of

    return run.name or (name_of(Path(run.train)) if run.train else OWN)


def _name(named: FitRun | Task) -> str:
    """What follows the family."""
    from finetune.runs.settings import FitRun

    task = named.task if isinstance(named, FitRun) else named.name
    return task.split("/", 1)[1]


def _data(run: FitRun) -> Path | None:
    return Path(run.data) if run.data else None


def _glue_names() -> list[str]:
    from tasks.glue.table import GLUE

    return list(GLUE)


def _glue_about() -> str:
    from tasks.glue.table import glue_table_text

    return glue_table_text()


def _glue_anchors() -> dict[str, list[Anchor]]:
    from tasks.anchors import glue_anchors

    return glue_anchors()


def _squad_anchors() -> dict[str, list[Anchor]]:
    from tasks.anchors import squad_anchors

    return squad_anchors()


def _race_anchors() -> dict[str, list[Anchor]]:
    from tasks.anchors import race_anchors

    return race_anchors()


def _classify_anchors() -> dict[str, list[Anchor]]:
    from tasks.anchors import classify_anchors

    return classify_anchors()


def _glue_run() -> type[GlueRun]:
    from tasks.run_settings import GlueRun

    return GlueRun


def _span_run() -> type[SpanRun]:
    from tasks.run_settings import SpanRun

    return SpanRun


def _choice_run() -> type[ChoiceRun]:
    from tasks.run_settings import ChoiceRun

    return ChoiceRun


def _answer_run() -> type[AnswerRun]:
    from tasks.run_settings import AnswerRun

    return AnswerRun


def _choose_run() -> type[ChooseRun]:
    from tasks.run_settings import ChooseRun

    return ChooseRun


def _write_names() -> list[str]:
    from tasks.write.sets import WRITE_SETS

    return list(WRITE_SETS)


def _write_run() -> type[WriteRun]:
    from tasks.run_settings import WriteRun

    return WriteRun


def _classify_run() -> type[ClassifyRun]:
    from tasks.run_settings import ClassifyRun

    return ClassifyRun


FAMILIES: dict[str, Family] = {
    "glue": Family(
        "fine-tune on a GLUE task",
        _glue,
        _glue_names,
        settings=_glue_run,
        resolve=_resolve_data,
        about=_glue_about,
        anchors=_glue_anchors,
    ),
    "squad": Family(
        "fine-tune on SQuAD: find the answer in the passage",
        _squad,
        lambda: ["1.1", "2.0"],
        settings=_span_run,
        resolve=_resolve_data,
        anchors=_squad_anchors,
    ),
    "race": Family(
        "fine-tune on RACE: choose among four options",
        _race,
        lambda: ["all", "middle", "high"],
        settings=_choice_run,
        resolve=_resolve_data,
        anchors=_race_anchors,
    ),
    "classify": Family(
        "fine-tune on your own tables of texts, or on a public set",
        _classify,
        only="own",
        settings=_classify_run,
        resolve=_resolve_table,
        anchors=_classify_anchors,
        group="your data",
    ),
    "answer": Family(
        "fine-tune on your own questions about passages",
        _answer,
        only="own",
        settings=_answer_run,
        resolve=_resolve_name,
        group="your data",
    ),
    "choose": Family(
        "fine-tune on your own multiple-choice questions",
        _choose,
        only="own",
        settings=_choose_run,
        resolve=_resolve_name,
        group="your data",
    ),
    "write": Family(
        "train to write a text for each text: sequence to sequence",
        _write,
        _write_names,
        only="own",
        settings=_write_run,
        resolve=_resolve_pairs,
        group="your data",
    ),
}
"""Word of the command -> family."""
