"""Read a folder of Hugging Face into our settings and keys, accounting for every tensor."""

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
from finetune.checkpoints.hf.form import POOLED, POSITIONS, Form, Pair, shapes
from finetune.checkpoints.hf.forms import FORMS, NOT_OURS, OWN
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
"""Ending of their class name -> kind of our head."""
PROBLEMS = {
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
"""`problem_type` -> kind of our head."""
MOST_LABELS = 1_000_000
"""Outputs of a head; a config with more would allocate gigabytes of names."""


@dataclass(frozen=True)
class Imported:
    """The content of a folder, in our settings and keys."""

    form: Form
    folder: Path
    """The folder of the model's and the tokenizer's files."""
    encoder_config: EncoderConfig
    weights: dict[str, Tensor]
    """`encoder.…`, `head.…` and `pooler.…`, float32 on the CPU."""
    head: dict[str, Any]
    """`kind` and the settings of the head; {} where none was imported."""
    labels: tuple[str, ...]
    """Names of the head's classes in order."""
    kept: list[str]
    """Names of their tensors that were imported."""
    left_out: list[str]
    """Names of the other tensors, and of a sentence encoder's further modules."""


def read_hf(folder: Path) -> Imported:
    """Read the settings and weights of a folder.

    Args:
        folder: A folder with config.json and weights.

    Returns:
        Its content; each of their tensors is in `kept` or in `left_out`.

    Raises:
        CheckpointError: A file is missing or damaged, our settings cannot express the family or a
            field, or a tensor is missing, unknown or of another shape.
    """
    model = model_folder(folder)
    settings = read_json(model / CONFIG)
    form = _form(settings, model / CONFIG)
    try:
        config = form.encoder_config(settings)
    except CheckpointError as error:
        raise CheckpointError(f"{model}: {error}") from None
    check_file_size(parameters(config), weight_files(model), model / CONFIG)
    tensors = _Tensors(form, model, read_tensors(model), form.absent(settings))
    pooling = str(settings.get("pooling", "cls")) if form.any_pooling else "cls"
    kind = _head_kind(form, config, settings, tensors, pooling)
    labels = _labels(settings, model) if kind in POOLED else ()
    weights = tensors.ours(config, kind, _outputs(kind, labels), pooling)
    return Imported(
        form=form,
        folder=model,
        encoder_config=config,
        weights=weights,
        head=_head_settings(kind, settings, pooling),
        labels=labels if kind in ("classification", "multi_label") else (),
        kept=sorted(tensors.kept),
        left_out=tensors.left_out() + other_modules(folder),
    )


def _form(settings: Mapping[str, Any], path: Path) -> Form:
    name = settings.get("model_type")
    if str(name) in NOT_OURS:
        raise CheckpointError(f"{path}: {name} cannot be imported: {NOT_OURS[str(name)]}")
    forms = {**FORMS, OWN.name: OWN}
    if str(name) not in forms:
        given = "none" if name is None else f"{name!r}"
        raise CheckpointError(
            f"{path}: expected a model_type that can be imported, got {given}; "
            f"{nearest(str(name), FORMS)}"
        )
    if "quantization_config" in settings:
        raise CheckpointError(
            f"{path}: expected plain weights, got a quantization_config; take the model before "
            "quantization"
        )
    return forms[str(name)]


class _Tensors:
    """Their tensors under their full names, and which of them were imported."""

    def __init__(
        self, form: Form, folder: Path, stored: Mapping[str, Tensor], absent: Sequence[str]
    ) -> None:
        self.form, self.folder, self.absent = form, folder, absent
        self.names = {_full_name(name, form, stored): name for name in stored}
        """Full name -> name in the files."""
        self.full_names = {name: full for full, name in self.names.items()}
        self.tensors = {full: stored[name] for full, name in self.names.items()}
        if len(self.names) < len(stored):
            duplicates = sorted(set(stored) - set(self.full_names))
            raise CheckpointError(
                f"{folder}: expected each tensor once, got {duplicates[0]} under two names; "
                "convert the folder with a current version of transformers"
            )
        self.kept: set[str] = set()
        """Names in the files."""

    def has_any(self, keys: Iterable[str]) -> bool:
        return any(key in self.tensors for key in keys)

    def ours(
        self, config: EncoderConfig, kind: str | None, outputs: int, pooling: str
    ) -> dict[str, Tensor]:
        """The tensors of a checkpoint of ours: encoder, head and pooler."""
        self._fold_aliases(config)
        expected = shapes(config, kind, outputs, pooling)
        groups: dict[str, list[str]] = {}
        for ours, theirs in self._pairs(config, kind, pooling):
            groups.setdefault(theirs, []).append(ours)
        size = config.hidden_size
        expected |= {"pooler.weight": (size, size), "pooler.bias": (size,)}
        self._check_complete(groups)
        weights: dict[str, Tensor] = {}
        for theirs, keys in groups.items():
            if theirs not in self.tensors:
                weights |= {key: torch.zeros(expected[key]) for key in keys}
                continue
            weights |= self._split(theirs, {key: expected[key] for key in keys}, config)
        self._keep_tied(config)
        return weights

    def _pairs(self, config: EncoderConfig, kind: str | None, pooling: str) -> list[Pair]:
        """All pairs of keys; those of a pooler only if the files have one."""
        pairs = self.form.pairs(config, kind, pooling)
        pooler = [theirs for ours, theirs in pairs if ours.startswith("pooler.")]
        if self.has_any(pooler):
            return pairs
        return [pair for pair in pairs if not pair[0].startswith("pooler.")]

    def _check_complete(self, names: Iterable[str]) -> None:
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
        """Split one of their tensors along its first dimension into ours, float32."""
        tensor = self.form.in_our_order(theirs, self.tensors[theirs])
        first, *_ = ours.values()
        if not first and not tensor.dim():  # a count of batches
            self.kept.add(self.names[theirs])
            return dict.fromkeys(ours, tensor.clone())
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
        """Rename a tensor that the files have under its second name to its first name.

        Where the files have both and the numbers differ, transformers computes with the second if
        the output weights are not tied; if they are tied, that depends on its version.
        """
        for second, first in self.form.aliases.items():
            if second not in self.tensors:
                continue
            alone = first not in self.tensors
            differ = not alone and not _equal(self.tensors[first], self.tensors[second])
            if differ and config.tie_word_embeddings:
                raise CheckpointError(
                    f"{self.folder}: expected the same numbers in {second} and {first}, got "
                    "different ones, and it is not known which count; save the model again with "
                    "transformers"
                )
            if alone or differ:
                self.tensors[first], self.names[first] = self.tensors[second], self.names[second]

    def _keep_tied(self, config: EncoderConfig) -> None:
        """Count duplicates as imported: of a bias, and of tied output weights if they agree."""
        duplicates = dict(self.form.aliases)
        if config.tie_word_embeddings and self.form.output:
            duplicates[self.form.output] = self.form.word_embeddings
        for second, first in duplicates.items():
            if second in self.tensors and self.names.get(first) in self.kept:
                if _equal(self.tensors[first], self.tensors[second]):
                    self.kept.add(self.names[second])

    def left_out(self) -> list[str]:
        """Their tensors that were not imported, by the names in the files.

        Raises:
            CheckpointError: The family is not known to have one of them: silence about it could
                hide that a part of the network is missing.
        """
        known = self.form.known_patterns()
        rest = sorted(set(self.full_names) - self.kept)
        for name in rest:
            if not _is_any(self.full_names[name], known):
                raise CheckpointError(
                    f"{self.folder}: {name} is not a tensor of a {self.form.name} model with these "
                    "settings; config.json and weights do not fit each other"
                )
        return rest


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)


def _full_name(name: str, form: Form, stored: Iterable[str]) -> str:
    """Their current name of a tensor: with the prefix, and weight and bias for gamma and beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):  # converted from TensorFlow
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if any(key.startswith(form.prefix) for key in stored):
        return name
    return name if _is_any(name, form.head_patterns()) else form.prefix + name


def _head_kind(
    form: Form,
    config: EncoderConfig,
    settings: Mapping[str, Any],
    tensors: _Tensors,
    pooling: str,
) -> str | None:
    """Kind of the head to import; None without one that computes what ours does."""
    named = settings.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else ""
    ending = str(architecture).removeprefix(form.classes)
    kind = HEADS.get(ending, "masked_lm")
    if ending == "ForSequenceClassification":
        single = len(_labels(settings, tensors.folder)) == 1
        default = "regression" if single else "classification"  # as transformers decides it
        kind = PROBLEMS.get(str(settings.get("problem_type")), default)
        if kind == "regression" and not single:
            return None
    if not form.has_head(config, kind):
        return None
    pairs = form.pairs(config, kind, pooling)
    keys = [theirs for ours, theirs in pairs if ours.startswith("head.")]
    # A tied output layer without a transform has no tensors of its own.
    return kind if tensors.has_any(keys) or not keys else None


def _labels(settings: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Names of the outputs in order; LABEL_0 and LABEL_1 without id2label, as in transformers."""
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


def _head_settings(kind: str | None, settings: Mapping[str, Any], pooling: str) -> dict[str, Any]:
    if kind is None:
        return {}
    if kind == "masked_lm":
        return {"kind": kind}
    dropout = settings.get("classifier_dropout") if kind in POOLED else None
    return {"kind": kind, "pooling": pooling, "head_dropout": dropout}
