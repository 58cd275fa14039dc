"""A run's checkpoint as a folder that `transformers` loads, with the same logits.

The keys and settings are those of the tables in `finetune.checkpoints.hf`; what these cannot
express is refused before anything is written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from finetune.checkpoints.folder import CONFIG, WEIGHTS, Checkpoint
from finetune.checkpoints.hf import FORMS, Form, export_form, their_weights
from finetune.checkpoints.hf.form import POOLED
from finetune.checkpoints.hf.reading import HEADS, PROBLEMS
from finetune.errors import CheckpointError
from finetune.export.card import model_card
from finetune.export.place import CARD
from finetune.export.source import Source, find_source
from finetune.files.writing import new_folder, write_json
from finetune.text.tokenizer.tokenizer import Tokenizer

WAYS_OUT = "take --format onnx, or finetune.load from Python"


def export_hf(run: Path, out: Path) -> None:
    """Write a folder that `AutoModelFor…` and `AutoTokenizer` of `transformers` load.

    Args:
        run: A run's folder (of several seeds: the best one's weights), or a checkpoint's.
        out: The folder; it is written completely or not at all, and replaces an old one.

    Raises:
        ConfigError: The run has no weights.
        CheckpointError: There is no checkpoint, or no model of `transformers` computes the same;
            the encoder's field or the head is named.
        OSError: It cannot be written.
    """
    source = find_source(run)
    checkpoint, kind = source.checkpoint, source.kind
    form = _form(checkpoint, kind, source.family)
    _check_head(checkpoint, kind)
    settings = _settings(checkpoint, kind, form)
    weights = _weights(checkpoint, kind, form)
    tokenizer = checkpoint.tokenizer()
    card = model_card(source, title=out.name, usage=_usage(kind, out.name), library="transformers")

    with new_folder(out) as folder:
        write_json(folder / CONFIG, settings)
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        # safetensors makes a file that only its owner may read; the folder is to be shared.
        shutil.copymode(folder / CONFIG, folder / WEIGHTS)
        _write_tokenizer(folder, tokenizer, source, kind)
        (folder / CARD).write_text(card, encoding="utf-8")


def _check_head(checkpoint: Checkpoint, kind: str | None) -> None:
    """Refuse poolings that the classifiers of `transformers` do not have."""
    pooling = checkpoint.head.get("pooling") or "cls"
    if kind in POOLED and pooling != "cls":
        alternative = "" if checkpoint.encoder_config.causal else ", or train with --pooling cls"
        raise CheckpointError(
            f"{checkpoint.folder}: the head pools by '{pooling}', and those of Hugging Face read "
            f"the first token only; {WAYS_OUT}{alternative}"
        )


def _form(checkpoint: Checkpoint, kind: str | None, family: str | None) -> Form:
    """The family it was imported from, if it has such a head; else the first that can express it.

    Raises:
        CheckpointError: None can; the message names the field of the encoder, or the head.
    """
    config = checkpoint.encoder_config
    try:
        original = FORMS.get(family or "")
        if original is not None and _can_express(original, checkpoint, kind):
            return original
        form = export_form(config)
        form.pairs(config, kind)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.folder}: {error}; {WAYS_OUT}") from None
    return form


def _can_express(form: Form, checkpoint: Checkpoint, kind: str | None) -> bool:
    try:
        form.settings(checkpoint.encoder_config)
        form.pairs(checkpoint.encoder_config, kind)
    except CheckpointError:
        return False
    return True


def _settings(checkpoint: Checkpoint, kind: str | None, form: Form) -> dict[str, Any]:
    """Their config.json."""
    settings: dict[str, Any] = {"architectures": [_architecture(kind, form)]}
    settings |= form.settings(checkpoint.encoder_config)
    labels = checkpoint.labels or (("LABEL_0",) if kind == "regression" else ())
    if labels:
        settings["id2label"] = {str(number): name for number, name in enumerate(labels)}
        settings["label2id"] = {name: number for number, name in enumerate(labels)}
    for problem, of_kind in PROBLEMS.items():
        if of_kind == kind:
            settings["problem_type"] = problem
    if kind in POOLED and checkpoint.head.get("head_dropout") is not None:
        settings["classifier_dropout"] = checkpoint.head["head_dropout"]
    return settings


def _architecture(kind: str | None, form: Form) -> str:
    """Name of the class that loads it."""
    their_kind = "classification" if kind in PROBLEMS.values() else kind
    endings = [ending for ending, of_kind in HEADS.items() if of_kind == their_kind]
    return form.classes + (endings[0] if endings else "Model")


def _weights(checkpoint: Checkpoint, kind: str | None, form: Form) -> dict[str, Tensor]:
    """The tensors under their names in `transformers`."""
    ours = checkpoint.weights()
    try:
        named = their_weights(ours, form, checkpoint.encoder_config, kind)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.folder}: {error}") from None
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, source: Source, kind: str | None) -> None:
    """Write the tokenizer and the settings with which `transformers` uses it."""
    tokenizer.save(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if source.max_length is not None:
        settings["model_max_length"] = source.max_length
    # Without this list the generic tokenizer class of transformers returns no segments.
    segments = ["token_type_ids"] if source.checkpoint.encoder_config.type_vocab_size > 1 else []
    settings["model_input_names"] = ["input_ids", *segments, "attention_mask"]
    if kind not in (None, "masked_lm"):  # for those two, a [MASK] in a text means the mask
        settings["split_special_tokens"] = True  # a [SEP] in a text is plain text, as in training
    write_json(path, settings)


CLASSIFY = """\
from transformers import pipeline

classify = pipeline("text-classification", model={folder}{more})
print(classify("A text.", truncation=True))
print(classify({{"text": "A text.", "text_pair": "And its pair."}}, truncation=True))"""

FILL = """\
from transformers import pipeline

fill = pipeline("fill-mask", model={folder})
print(fill(f"A {{fill.tokenizer.mask_token}} text."))"""

LOAD = """\
import torch
from transformers import AutoModel{ending}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder})
model = AutoModel{ending}.from_pretrained({folder}).eval()
"""

ANSWER = """\
question, context = "Who wrote it?", "A text about the one who wrote it."
inputs = tokenizer(question, context, truncation="only_second", return_tensors="pt")
with torch.inference_mode():
    output = model(**inputs)
allowed = torch.tensor([part == 1 for part in inputs.sequence_ids(0)])  # the context
scores = output.start_logits.T + output.end_logits
scores = scores.masked_fill(~(allowed[:, None] & allowed).triu(), -torch.inf)
first, last = divmod(int(scores.argmax()), len(allowed))
print(tokenizer.decode(inputs["input_ids"][0, first : last + 1]))"""

CHOOSE = """\
text, question, options = "A text.", "What is it?", ["a text", "a picture"]
pairs = [text] * len(options), [f"{question} {option}" for option in options]
inputs = tokenizer(*pairs, truncation="only_first", padding=True, return_tensors="pt")
with torch.inference_mode():
    logits = model(**{name: tensor[None] for name, tensor in inputs.items()}).logits
print(options[int(logits.argmax())])"""

READ = """\
inputs = tokenizer("A text.", truncation=True, return_tensors="pt")
with torch.inference_mode():
    print(model(**inputs).last_hidden_state.shape)"""


def _usage(kind: str | None, folder: str) -> str:
    """How to predict with the folder, as a block of Python for the card."""
    folder = json.dumps(folder, ensure_ascii=False)
    if kind == "span":
        code = LOAD.format(folder=folder, ending="ForQuestionAnswering") + ANSWER
    elif kind == "choice":
        code = LOAD.format(folder=folder, ending="ForMultipleChoice") + CHOOSE
    elif kind == "masked_lm":
        code = FILL.format(folder=folder)
    elif kind is None:
        code = LOAD.format(folder=folder, ending="") + READ
    else:
        code = CLASSIFY.format(folder=folder, more=", top_k=None" if kind == "multi_label" else "")
    return f"```python\n{code}\n```"
