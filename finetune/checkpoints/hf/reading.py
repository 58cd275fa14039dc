"""A folder of Hugging Face into our settings and keys; every tensor of it is accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finetune.checkpoints.hf.files import (
    CONFIG,
    model_folder,
    other_modules,
    read_tensors,
    weight_files,
)
from finetune.checkpoints.hf.form import POOLED, Form, Pair, shapes
from finetune.checkpoints.hf.forms import FORMS, NOT_OURS
from finetune.checkpoints.stored import check_file_size, check_numbers, is_precise
from finetune.console.output import quoted
from finetune.encoder import EncoderConfig
from finetune.encoder.cost import parameters
from finetune.errors import CheckpointError, nearest
from finetune.text.tokenizer.stated import read_json

HEADS = {
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "masked_lm",
    "ForSequenceClassification": "classification",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "choice",
}
"""How the name of their class ends -> kind of our head."""
PROBLEMS = {
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
"""`problem_type` -> kind of our head."""
MOST_LABELS = 1_000_000
"""Outputs of a head."""
POSITIONS = "encoder.embeddings.position_embeddings.weight"


@dataclass(frozen=True)
class Imported:
    """What a folder holds, in our terms."""

    form: Form
    folder: Path
    """Where the model's files are; the tokenizer's are there too."""
    encoder_config: EncoderConfig
    weights: dict[str, Tensor]
    """`encoder.…`, `head.…` and `pooler.…`, float32 on the CPU."""
    head: dict[str, Any]
    """`kind` and the settings of the head; {} where none came along."""
    labels: tuple[str, ...]
    """Names of the head's classes in order."""
    kept: list[str]
    """Names of their tensors that were taken over."""
    left_out: list[str]
    """Names of the others, and of a sentence encoder's further modules."""


def is_hf_folder(folder: Path) -> bool:
    """Whether this looks like a folder of Hugging Face: its config.json has another format."""
    path = model_folder(folder) / CONFIG
    return path.is_file() and "format" not in read_json(path)


def read_hf(folder: Path) -> Imported:
    """Read the settings and weights of a folder.

    Args:
        folder: Holds config.json and weights.

    Returns:
        All of it in our terms; each of their tensors is in `kept` or in `left_out`.

    Raises:
        CheckpointError: A file is missing or damaged, the family or a field is none that ours can
            express, or a tensor is missing, unknown or of another shape.
    """
    place = model_folder(folder)
    settings = read_json(place / CONFIG)
    form = _form(settings, place / CONFIG)
    try:
        config = form.encoder_config(settings)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}") from None
    check_file_size(parameters(config), weight_files(place), place / CONFIG)
    tensors = _Tensors(form, place, read_tensors(place), form.absent(settings))
    kind = _head_kind(form, config, settings, tensors)
    labels = _labels(settings, place) if kind in POOLED else ()
    weights = tensors.ours(config, kind, _outputs(kind, labels))
    return Imported(
        form=form,
        folder=place,
        encoder_config=config,
        weights=weights,
        head=_head_settings(kind, settings),
        labels=labels if kind in ("classification", "multi_label") else (),
        kept=sorted(tensors.kept),
        left_out=tensors.left_out() + other_modules(folder),
    )


def _form(settings: Mapping[str, Any], path: Path) -> Form:
    name = settings.get("model_type")
    if str(name) in NOT_OURS:
        raise CheckpointError(f"{path}: {name} cannot be imported: {NOT_OURS[str(name)]}")
    if str(name) not in FORMS:
        found = "none" if name is None else f"{name!r}"
        raise CheckpointError(
            f"{path}: expected a model_type that can be imported, got {found}; "
            f"{nearest(str(name), FORMS)}"
        )
    if "quantization_config" in settings:
        raise CheckpointError(
            f"{path}: expected plain weights, got a quantization_config; take the folder that "
            "was quantised"
        )
    return FORMS[str(name)]


class _Tensors:
    """Their tensors under their full names, and what has become of each."""

    def __init__(
        self, form: Form, folder: Path, stored: Mapping[str, Tensor], absent: Sequence[str]
    ) -> None:
        self.form, self.folder, self.absent = form, folder, absent
        self.names = {_full_name(name, form, stored): name for name in stored}
        """Full name -> name in the files."""
        self.full_names = {name: full for full, name in self.names.items()}
        self.tensors = {full: stored[name] for full, name in self.names.items()}
        if len(self.names) < len(stored):
            twice = sorted(set(stored) - set(self.full_names))
            raise CheckpointError(f"{folder}: the tensor {twice[0]} is there under two names")
        self.kept: set[str] = set()
        """Names in the files."""

    def has_any(self, keys: Iterable[str]) -> bool:
        return any(key in self.tensors for key in keys)

    def ours(self, config: EncoderConfig, kind: str | None, outputs: int) -> dict[str, Tensor]:
        """Take over what a checkpoint of ours holds: encoder, head and pooler."""
        self._fold_aliases(config)
        expected = shapes(config, kind, outputs)
        groups: dict[str, list[str]] = {}
        for ours, theirs in self._pairs(config, kind):
            groups.setdefault(theirs, []).append(ours)
        size = config.hidden_size
        expected |= {"pooler.weight": (size, size), "pooler.bias": (size,)}
        self._check_there(groups)
        weights: dict[str, Tensor] = {}
        for theirs, keys in groups.items():
            if theirs not in self.tensors:
                weights |= {key: torch.zeros(expected[key]) for key in keys}
                continue
            weights |= self._split(theirs, {key: expected[key] for key in keys}, config)
        self._keep_tied(config)
        return weights

    def _pairs(self, config: EncoderConfig, kind: str | None) -> list[Pair]:
        """All pairs; those of a pooler only where there is one."""
        pairs = self.form.pairs(config, kind)
        pooler = [theirs for ours, theirs in pairs if ours.startswith("pooler.")]
        if self.has_any(pooler):
            return pairs
        return [pair for pair in pairs if not pair[0].startswith("pooler.")]

    def _check_there(self, names: Iterable[str]) -> None:
        missing = [
            name for name in names if name not in self.tensors and not _is_any(name, self.absent)
        ]
        if missing:
            raise CheckpointError(
                f"{self.folder}: expected the tensors that config.json describes, got "
                f"{len(missing)} missing, the first of them {missing[0]}; download the folder again"
            )

    def _split(
        self, theirs: str, ours: Mapping[str, tuple[int, ...]], config: EncoderConfig
    ) -> dict[str, Tensor]:
        """Cut one of their tensors into ours, one below the other; float32."""
        tensor = self.tensors[theirs]
        first, *_ = ours.values()
        before = self.form.position_rows(config) if POSITIONS in ours else 0
        rows = [shape[0] for shape in ours.values()]
        shape = (before + sum(rows), *first[1:])
        if tuple(tensor.shape) != shape or not is_precise(tensor):
            raise CheckpointError(
                f"{self.folder}: by config.json {self.names[theirs]} should be floating-point "
                f"{shape}, got {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
            )
        check_numbers(tensor, self.names[theirs], self.folder)
        self.kept.add(self.names[theirs])
        parts = torch.split(tensor[before:], rows)
        return {
            key: part.to(torch.float32, copy=True) for key, part in zip(ours, parts, strict=True)
        }

    def _fold_aliases(self, config: EncoderConfig) -> None:
        """Give a tensor that the files have by its second name its first one.

        Where they hold both and the numbers differ, theirs computes with the second one if its
        output weights are not tied; with tied ones it depends on the version of their library.
        """
        for second, first in self.form.aliases.items():
            if second not in self.tensors:
                continue
            alone = first not in self.tensors
            differ = not alone and not _equal(self.tensors[first], self.tensors[second])
            if differ and config.tie_word_embeddings:
                raise CheckpointError(
                    f"{self.folder}: expected {second} and {first} to be the same numbers, got "
                    "two sets, of which none can be said to count"
                )
            if alone or differ:
                self.tensors[first], self.names[first] = self.tensors[second], self.names[second]

    def _keep_tied(self, config: EncoderConfig) -> None:
        """Count second names as kept: of a bias, and of tied output weights if they agree."""
        twins = dict(self.form.aliases)
        if config.tie_word_embeddings and self.form.output:
            twins[self.form.output] = self.form.word_embeddings
        for second, first in twins.items():
            if second in self.tensors and self.names.get(first) in self.kept:
                if _equal(self.tensors[first], self.tensors[second]):
                    self.kept.add(self.names[second])

    def left_out(self) -> list[str]:
        """Their tensors that were not taken over, by the names in the files.

        Raises:
            CheckpointError: One of them is none that the family is known to have.
        """
        known = self.form.known_patterns()
        left = sorted(set(self.full_names) - self.kept)
        for name in left:
            if not _is_any(self.full_names[name], known):
                raise CheckpointError(
                    f"{self.folder}: {name} is no tensor of a {self.form.name} model with these "
                    "settings; config.json and weights do not fit each other"
                )
        return left


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)


def _full_name(name: str, form: Form, stored: Iterable[str]) -> str:
    """Their name of today: with the prefix, and with weight and bias for gamma and beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if any(key.startswith(form.prefix) for key in stored):
        return name
    return name if _is_any(name, form.head_patterns()) else form.prefix + name


def _head_kind(
    form: Form, config: EncoderConfig, settings: Mapping[str, Any], tensors: _Tensors
) -> str | None:
    """Kind of the head that comes along; None where there is none, or not one of ours."""
    named = settings.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else ""
    ending = str(architecture).removeprefix(form.classes)
    kind = HEADS.get(ending, "masked_lm")
    if ending == "ForSequenceClassification":
        single = len(_labels(settings, tensors.folder)) == 1
        usual = "regression" if single else "classification"
        kind = PROBLEMS.get(str(settings.get("problem_type")), usual)
        if kind == "regression" and not single:
            return None
    if not form.has_head(config, kind):
        return None
    keys = [theirs for ours, theirs in form.pairs(config, kind) if ours.startswith("head.")]
    return kind if tensors.has_any(keys) else None


def _labels(settings: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Names of the outputs in order; theirs are LABEL_0 and LABEL_1 unless they are named."""
    names = settings.get("id2label")
    if names is None:
        count = settings.get("num_labels", 2)
        if not isinstance(count, int) or not 1 <= count <= MOST_LABELS:
            raise CheckpointError(
                f"{folder}: config.json: expected num_labels to be a whole number from 1 to "
                f"{MOST_LABELS:,}, got {quoted(count)}"
            )
        names = {str(number): f"LABEL_{number}" for number in range(count)}
    if isinstance(names, dict) and 1 <= len(names) <= MOST_LABELS:
        ordered = [names.get(str(number)) for number in range(len(names))]
        if all(isinstance(name, str | int) for name in ordered):
            return tuple(map(str, ordered))
    raise CheckpointError(
        f"{folder}: config.json: expected id2label with a name for 0, 1, 2 …, got {quoted(names)}"
    )


def _outputs(kind: str | None, labels: tuple[str, ...]) -> int:
    return 1 if kind in ("choice", "regression") else len(labels)


def _head_settings(kind: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {}
    if kind == "masked_lm":
        return {"kind": kind}
    dropout = settings.get("classifier_dropout") if kind in POOLED else None
    return {"kind": kind, "pooling": "cls", "head_dropout": dropout}
