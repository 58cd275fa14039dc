"""SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018), and the user's own questions on passages.

The files are the official ones, `DATA/squad/train-v1.1.json` or the same with `.gz`; without a data
folder the hub is asked through `datasets`. In 1.1 each question has an answer in its context, so a
passage is always given. In 2.0 it may have none: the empty answer is given where its score exceeds
that of the best passage by more than a threshold, which is tuned on the validation split. Own data
are read as 1.1, or as 2.0 if any of their questions has no answer.

Windows that do not hold the answer are left out of training in 1.1, where they would teach an
answer that is never right, and teach "no answer" in 2.0, unless `without_answer` says otherwise.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import CheckpointError, ConfigError, DataError, nearest
from finetune.task.interface import Answer, Example, GoldAnswer, Outputs, Task
from finetune.text.tokenizer.tokenizer import is_empty
from tasks.own.names import OWN
from tasks.sources.hub import cache_files
from tasks.sources.reader import (
    BY_DATA,
    check_files,
    check_split,
    check_texts,
    data_folder,
    is_file,
    official_file,
    plain_or_gzipped,
)
from tasks.squad.files import (
    OFFICIAL,
    MovedAnswer,
    hub_examples,
    hub_split,
    read_official,
    read_own,
    text_of,
)
from tasks.squad.warnings import long_answers, moved_answers, unsure_answers

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.heads.config import SpanConfig
    from finetune.text.features.pairs import Features
    from finetune.text.features.windows import WindowConfig
    from finetune.text.tokenizer.tokenizer import Tokenizer

__all__ = ["OFFICIAL", "SquadTask", "answer_task", "squad_task"]

SPLITS = ("train", "validation", "test")
THRESHOLD = "null_threshold"
"""The number that is tuned: a question whose `null_odds` are above it goes unanswered."""


def squad_task(
    name: str,
    data: Path | None = None,
    files: Mapping[str, Path] | None = None,
    *,
    windows: WindowConfig,
    spans: SpanConfig,
    labels: Sequence[str] | None = None,
) -> SquadTask:
    """Find a version by its name in any usual spelling: `1.1`, `v2.0`, `squad/2.0`.

    Args:
        name: The version.
        data: A folder with `squad/`; None: the folder that the variable FINETUNE_DATA names, or
            else the hub.
        files: Files of other names, by split: `{"train": PATH, "validation": PATH, "test": PATH}`.
        windows: How long contexts are cut.
        spans: How answers are read off.
        labels: The classes of a trained head: it must have none.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: SQuAD has no such version, or a file was named for another split.
        CheckpointError: The trained head has classes.
    """
    version = name.lower().removeprefix("squad/").removeprefix("v")
    version = {"1": "1.1", "2": "2.0"}.get(version, version)
    if version not in OFFICIAL:
        raise ConfigError(f"unknown version of SQuAD '{name}'; {nearest(version, OFFICIAL)}")
    task = SquadTask(windows, spans, version, data_folder(data), dict(files or {}))
    return _checked(task, labels)


def answer_task(
    files: Mapping[str, Path],
    windows: WindowConfig,
    spans: SpanConfig,
    labels: Sequence[str] | None = None,
    name: str = OWN,
) -> SquadTask:
    """The user's own questions on passages; see `squad_files.read_own` for their form.

    Args:
        files: Split -> file.
        windows: How long contexts are cut.
        spans: How answers are read off.
        labels: The classes of a trained head: it must have none.
        name: Of the data.

    Returns:
        The task; no file is opened yet.

    Raises:
        ConfigError: A file was named for another split.
        CheckpointError: The trained head has classes.
    """
    task = SquadTask(windows, spans, None, None, dict(files), given_name=name)
    return _checked(task, labels)


def _checked(task: SquadTask, labels: Sequence[str] | None) -> SquadTask:
    if labels:
        raise CheckpointError(
            f"{task.name}: expected a head that finds passages, got one for the labels "
            f"{', '.join(labels)}; name a run that has learnt to answer questions"
        )
    check_files(task.name, task.files, SPLITS)
    return task


@dataclass(frozen=True)
class SquadTask(Task):
    """Questions on passages, read from files or from the hub."""

    windows: WindowConfig
    """How long contexts are cut."""
    spans: SpanConfig
    """How answers are read off."""
    official: str | None = None
    """Version of SQuAD; None: the user's own data, whose version is found out."""
    data: Path | None = None
    """The folder that holds `squad/`; None asks the hub."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file, before any other place."""
    given_name: str = OWN
    """What the user calls the data, where it is not SQuAD."""

    labels = ()
    train_split = "train"
    validation_splits = ("validation",)
    sequences_per_example = 1
    fixed_answer = None
    monitor = "f1"
    """In 2.0 at the threshold of `tune`, so that on the validation split it is the best F1."""

    @property
    def name(self) -> str:
        """`squad/` and the version, or `answer/` and the name of the user's own data."""
        return f"squad/{self.official}" if self.official else f"answer/{self.given_name}"

    @functools.cached_property
    def version(self) -> str:
        """`1.1`, or `2.0` if questions may have no answer."""
        if self.official:
            return self.official
        files = self._own_files()
        # A run may outlive its data. Then `decide` alone knows, by the threshold that was tuned.
        unknown = not files
        labels = (example.label for path in files for example in read_own(path, labelled=True))
        return "2.0" if unknown or any(label == () for label in labels) else "1.1"

    def _own_files(self) -> list[Path]:
        """Those of the user's labelled files that are there."""
        named = [self.files[split] for split in ("train", "validation") if split in self.files]
        return [path for path in plain_or_gzipped(named) if is_file(path)]

    @property
    def test_splits(self) -> tuple[str, ...]:
        """`test` where a file was named for it: the official test sets are hidden."""
        return ("test",) if "test" in self.files else ()

    @property
    def feature_settings(self) -> str:
        """How contexts are cut, and what windows without the answer teach."""
        return f"{self.windows} drop={self._drops}"

    @property
    def _drops(self) -> bool:
        return self.windows.drops(unanswerable=self.version == "2.0")

    def data_files(self, split: str) -> list[Path]:
        """Name the file that a split is read from; from the hub, the files of its local cache."""
        if self._is_on_hub(split):
            return cache_files(hub_split(self.version, split))
        return [self._file(split)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        labelled = split != "test"
        if self._is_on_hub(split):
            return hub_examples(self.version, split)
        path = self._file(split)
        if self.official:
            examples = read_official(path, self.official, labelled=labelled)
        else:
            examples = self._own_examples(path, labelled=labelled)
        if split == self.train_split:
            check_texts(examples, path)
        return examples

    def _own_examples(self, path: Path, *, labelled: bool) -> list[Example]:
        examples = read_own(path, labelled=labelled)
        unanswerable = next((example for example in examples if example.label == ()), None)
        if unanswerable is not None and self.version == "1.1":
            raise DataError(
                f"{path}: expected an answer to each question, as in the training and validation "
                f"files; got none for {unanswerable.id!r}"
            )
        return examples

    def example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        """Read a user's row: `question`, `context` and perhaps `id`; or both texts as a tuple."""
        if set(row) == {"text1", "text2"}:
            row = {"question": row["text1"], "context": row["text2"]}
        texts = text_of(row, "question", where), text_of(row, "context", where)
        known = row.get("id")
        if known in (None, ""):
            return Example(number, texts)
        return Example(known if isinstance(known, int) else str(known), texts)

    def describe(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Count the questions without an answer, and the answers that stood elsewhere."""
        labels = [example.label for example in examples if isinstance(example.label, tuple)]
        if not labels:
            return {}
        moved = sum(isinstance(answer, MovedAnswer) for golds in labels for answer in golds)
        facts = {"answers_moved": moved}
        for name, side in (("empty_questions", 0), ("empty_contexts", 1)):
            if empty := sum(is_empty(example.texts[side]) for example in examples):
                facts[name] = empty
        if self.version == "2.0":
            facts["unanswerable"] = sum(not golds for golds in labels)
        return facts

    def warnings(self, examples: Sequence[Example], features: Sequence[Features]) -> list[str]:
        """Answers that were moved, and those that are too long to be given."""
        longest = self.spans.max_answer_length
        return [
            *moved_answers(examples),
            *unsure_answers(examples),
            *long_answers(examples, features, longest),
        ]

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        *,
        training: bool,
    ) -> list[Features]:
        """Cut the contexts into windows; what is learnt is the first answer of each question."""
        from finetune.text.features.windows import encode_windows

        questions, contexts = ([example.texts[side] for example in examples] for side in (0, 1))
        unlabelled = any(example.label is None for example in examples)
        return encode_windows(
            tokenizer,
            questions,
            contexts,
            max_length,
            self.windows,
            answers=None if unlabelled else [_first_answer(example) for example in examples],
            training=training,
            # Without a question that needs it, the version is not worth reading files for.
            drop=not unlabelled and self._drops,
        )

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """A `Span` head."""
        from finetune.heads.span import Span

        return Span(config, head, self.spans)

    def answers(
        self, outputs: Outputs, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[Answer]:
        """Read the best passages over all windows of each question; in 2.0 also no answer."""
        from finetune.task.answers.spans import span_answers

        return span_answers(
            outputs,
            examples,
            features,
            n_best=self.spans.n_best,
            allow_null=self.version == "2.0",
        )

    def tune(self, answers: Sequence[Answer]) -> dict[str, float]:
        """In 2.0, choose the threshold of the best F1."""
        from finetune.metrics import tuned_threshold

        if self.version == "1.1" or not _labelled(answers):
            return {}
        return {THRESHOLD: tuned_threshold(answers)}

    def decide(self, answers: Sequence[Answer], numbers: Mapping[str, float]) -> list[Answer]:
        """In 2.0, leave the questions unanswered whose null odds are above the threshold."""
        from finetune.task.answers.spans import decide_null

        if self.version == "1.1":
            return list(answers)
        # Own data that are gone and had no threshold had an answer to each question.
        usual = 0.0 if self.official or self._own_files() else math.inf
        return decide_null(answers, numbers.get(THRESHOLD, usual))

    def baseline_answers(
        self, train: Sequence[Example], examples: Sequence[Example]
    ) -> list[Answer]:
        """No answer to any question: all that can be said without reading."""
        nothing = {"prediction": "", "start": None, "end": None, "score": 0.0, "null_odds": 0.0}
        return [
            {"id": example.id, **nothing, "nbest": []}
            | ({} if example.label is None else {"answers": _golds(example)})
            for example in examples
        ]

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Compute the official metrics; none where the answers are withheld."""
        from finetune.metrics import span_scores

        return span_scores(answers, self.version) if _labelled(answers) else {}

    def submission(self, split: str, answers: Sequence[Answer]) -> dict[str, str]:
        """The files that the official evaluation script reads, in a folder for the split."""
        files: dict[str, dict[str, Any]] = {
            "predictions": {str(row["id"]): row["prediction"] for row in answers},
            "nbest_predictions": {str(row["id"]): row["nbest"] for row in answers},
        }
        if self.version == "2.0":
            files["null_odds"] = {str(row["id"]): row["null_odds"] for row in answers}
        return {f"{split}/{name}.json": _json(content) for name, content in files.items()}

    def _is_on_hub(self, split: str) -> bool:
        check_split(self.name, split, SPLITS)
        if split in self.files:
            return False
        if self.official is None or split not in OFFICIAL[self.official].files:
            raise DataError(
                f"{self.name}: expected a {split} file, got none named; give --{split} FILE"
            )
        return self.data is None

    def _file(self, split: str) -> Path:
        if split in self.files:
            named = [self.files[split]]
            return official_file(self.name, split, named, "name a file that is there")
        data, file = self.data or Path(), OFFICIAL[self.version].files[split]
        hint = f"{BY_DATA} squad/, and --{split} FILE a file of another name"
        return official_file(self.name, split, [data / "squad" / file, data / file], hint)


def _labelled(answers: Sequence[Answer]) -> bool:
    """Say whether the right answers are known, of all or of none."""
    known = sum("answers" in answer for answer in answers)
    if known not in (0, len(answers)):
        stranger = next(answer["id"] for answer in answers if "answers" not in answer)
        raise DataError(f"expected right answers to all questions, got none for {stranger!r}")
    return known > 0


def _golds(example: Example) -> list[dict[str, Any]]:
    label = example.label if isinstance(example.label, tuple) else ()
    return [answer._asdict() for answer in label if isinstance(answer, GoldAnswer)]


def _first_answer(example: Example) -> tuple[int, int] | None:
    """First character of the first answer and the one after its last; None where there is none."""
    answer = next(iter(_golds(example)), None)
    return None if answer is None else (answer["start"], answer["start"] + len(answer["text"]))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"
