"""A text is read and another one is written: the user's own pairs, and what all sets share.

A row has a source and a target: `{"source": "…", "target": "…"}`, JSON lines or a table with these
two columns. A test file may lack the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from finetune.console.output import counted
from finetune.decoder.config import DecoderConfig, SearchConfig
from finetune.errors import ConfigError, DataError
from finetune.task.answers.classes import constant_answers
from finetune.task.interface import Answer, Example, Outputs, Task, most_frequent
from finetune.text.tokenizer.tokenizer import is_empty
from tasks.own.names import OWN
from tasks.sources.reader import (
    BadRows,
    NamedSplits,
    UniqueIds,
    check_files,
    check_split,
    first_of,
)

if TYPE_CHECKING:
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, TaskHead
    from finetune.text.features.pairs import Features
    from finetune.text.tokenizer.tokenizer import Tokenizer

SPLITS = ("train", "validation", "test")
SOURCE, TARGET = "source", "target"
"""Fields of a row."""
METRICS = ("word_error_rate", "character_error_rate", "exact_match", "bleu", "chrf", "rouge")
"""Of one's own texts, the headline first; see `finetune.metrics.texts`."""


@dataclass(eq=False)
class PairTask(Task):
    """Pairs of a source, one text or two, and a target."""

    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """How the decoder differs from the encoder."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """How a target is searched for."""
    find_shape: Callable[[str], EncoderConfig] | None = field(default=None, repr=False)
    """Place of a causal language model -> its shape, where the decoder starts from one."""
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    """What `bind` was given: it turns token ids into texts."""
    saved_head: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What a checkpoint says of its head; {} where a new one is made."""
    longest_target: int | None = field(default=None, repr=False)
    """Tokens of a target at most, where `bind` was given the encoder."""
    places: dict[int | str, str] = field(default_factory=dict, repr=False)
    """Id of an example -> `FILE:LINE`, for messages."""

    labels = ()
    sequences_per_example = 1
    fixed_answer = None
    metrics: ClassVar[tuple[str, ...]] = METRICS
    """Of `finetune.metrics.texts`."""
    monitor = METRICS[0]

    @property
    def feature_settings(self) -> str:
        """The length of a target, by which it is refused."""
        return f"target={self._longest}"

    @property
    def _longest(self) -> int:
        return self.longest_target or self.search.target_length()

    def example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        """Read a user's row: the fields of a source and perhaps `id`; or a bare text."""
        known = row.get("id")
        if known in (None, ""):
            known = number
        return Example(known if isinstance(known, int) else str(known), self.texts_of(row, where))

    def texts_of(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """The source of a user's row."""
        return (text_of(row, "text" if set(row) == {"text"} else SOURCE, where),)

    def vocabulary_texts(self) -> Iterator[str]:
        """Sources and targets to train on."""
        for example in self.examples(self.train_split) if self.train_split else ():
            yield from (*example.texts, str(example.label))

    def bind(
        self,
        tokenizer: Tokenizer,
        head: Mapping[str, Any] | None = None,
        encoder: EncoderConfig | None = None,
    ) -> None:
        """Keep the tokenizer, the shape of a trained decoder, and how long a target may be."""
        self.tokenizer = tokenizer
        self.saved_head = head or self.saved_head
        if encoder is not None:
            self.longest_target = self.search.target_length(self._shape(encoder))

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_length: int,
        *,
        training: bool,
    ) -> list[Features]:
        """Encode the sources, and the targets where all are known."""
        from finetune.text.features.pairs import encode_pairs

        firsts = [one.texts[0] for one in examples]
        pair = len(examples[0].texts) == 2
        seconds = [one.texts[1] for one in examples] if pair else None
        features = encode_pairs(tokenizer, firsts, seconds, max_length)
        targets = [one.label for one in examples if isinstance(one.label, str)]
        if len(targets) < len(examples):
            return features
        start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
        for feature, ids in zip(features, tokenizer.encode_ids(targets), strict=True):
            feature.target = [start, *ids, end]
        self._check_targets(examples, features)
        return features

    def _check_targets(self, examples: Sequence[Example], features: Sequence[Features]) -> None:
        """Refuse targets that no answer can be, as it would be cut."""
        longest = self._longest
        long = [
            (len(feature.target) - 1, example)
            for example, feature in zip(examples, features, strict=True)
            if feature.target is not None and len(feature.target) - 1 > longest
        ]
        if long:
            length, example = long[0]
            where = self.places.get(example.id, f"{self.name}, example {example.id!r}")
            most = max(length for length, _ in long)
            others = f", and {counted(len(long) - 1, 'other target')} too long" if long[1:] else ""
            raise DataError(
                f"{where}: expected a target of at most {longest} tokens (its end counts), got "
                f"{length}{others}; raise max_target_length to {most}, or shorten the targets"
            )

    def head(self, config: EncoderConfig, head: HeadConfig) -> TaskHead:
        """A `Seq2Seq` head, of the shape of a trained one where there is one."""
        from finetune.heads.seq2seq import Seq2Seq

        tokenizer = self._tokenizer()
        return Seq2Seq(
            config,
            head,
            self._shape(config),
            start=tokenizer.cls_token_id,
            end=tokenizer.sep_token_id,
            cross_score=self.decoder.cross_score,
            search=self.search,
            starts_from=self.decoder.decoder_from,
        )

    def _shape(self, encoder: EncoderConfig) -> EncoderConfig:
        """The decoder's: that of a trained one, of the language model it starts from, or a new."""
        from finetune.encoder import EncoderConfig

        place = self.decoder.decoder_from
        if saved := self.saved_head.get("decoder"):
            return EncoderConfig.from_dict(saved)
        return self.find_shape(place) if place and self.find_shape else self.decoder.shape(encoder)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ConfigError(
                f"{self.name}: expected a tokenizer before its head is made; call "
                "task.bind(tokenizer), or make its TaskData first"
            )
        return self.tokenizer

    def answers(
        self, outputs: Outputs, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[Answer]:
        """Turn the tokens that were written into texts."""
        from finetune.task.answers.texts import text_answers

        return text_answers(outputs, examples, self._tokenizer().decode)

    def baseline_answers(
        self, train: Sequence[Example], examples: Sequence[Example]
    ) -> list[Answer]:
        """The most frequent target for each source."""
        return constant_answers(most_frequent([one.label for one in train]), examples)

    def score(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Compute the metrics; none where the targets are withheld."""
        from finetune.metrics.texts import text_scores

        if not answers or any("label" not in row for row in answers):
            return {}
        written, right = ([row[key] for row in answers] for key in ("prediction", "label"))
        return text_scores(written, right, self.metrics)

    def report(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The first metric over the length of the source (Bahdanau et al., 2015, figure 2)."""
        from finetune.task.answers.texts import by_source_length

        if not answers or not all({"label", "source_words"} <= row.keys() for row in answers):
            return {}

        def first(rows: Sequence[Answer]) -> dict[str, float]:
            return {self.monitor: self.score(rows)[self.monitor]}

        return {"by_source_length": by_source_length(answers, first)}


@dataclass(eq=False)
class WriteTask(NamedSplits, PairTask):
    """Pairs of the user's own files."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Split -> file."""
    given_name: str = OWN
    """What the user calls the data."""

    def __post_init__(self) -> None:
        """Refuse files of other splits."""
        check_files(self.name, self.files, SPLITS)

    @property
    def name(self) -> str:
        """`write/` and the name of the data."""
        return f"write/{self.given_name}"

    def data_files(self, split: str) -> list[Path]:
        """The file of a split."""
        check_split(self.name, split, self.files)
        missing = (
            f"expected the {split} file of {self.name} at {self.files[split]}, got none; name a "
            "file that is there"
        )
        return [first_of([self.files[split]], missing)]

    def examples(self, split: str) -> list[Example]:
        """Read a split; see `Task.examples`."""
        (path,) = self.data_files(split)
        examples, ids, bad = [], UniqueIds(), BadRows()
        for number, (where, row) in enumerate(_rows(path, bad)):
            with bad.collected():
                example = self.example(row, where, number)
                ids.add(example.id, where)
                self.places[example.id] = where
                withheld = split == "test" and row.get(TARGET) in (None, "")
                target = None if withheld else text_of(row, TARGET, where)
                examples.append(Example(example.id, example.texts, target))
        bad.report(path, len(examples) + len(bad))
        return examples


def _rows(path: Path, bad: BadRows) -> Iterator[tuple[str, dict[str, Any]]]:
    from finetune.text.features.rows import read_rows

    return read_rows(path, on_error=bad.add)


def text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """A field of a row that has a text in it."""
    value = row.get(name)
    if not isinstance(value, str):
        fields = ", ".join(map(str, row)) or "no field"
        got = f"the fields {fields}" if value is None else f"{value!r}"
        raise DataError(f"{where}: expected a text in the field '{name}', got {got}")
    if is_empty(value):
        raise DataError(f"{where}: expected a {name} with text in it, got an empty one")
    return value
