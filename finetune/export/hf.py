"""A run's checkpoint as a folder that `transformers` loads, with the same logits.

The keys and settings are those of the tables in `finetune.checkpoints.hf`; what these cannot
express is refused before anything is written.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from finetune.checkpoints.folder import CONFIG, WEIGHTS, Checkpoint
from finetune.checkpoints.hf import OWN, Form, export_form, export_lacks, their_weights
from finetune.checkpoints.hf.form import POOLED
from finetune.checkpoints.hf.reading import HEADS, PROBLEMS
from finetune.errors import CheckpointError
from finetune.export.card import Terms, write_card
from finetune.export.source import Source, calibrated, find_source
from finetune.files.writing import new_folder, write_json
from finetune.heads import HeadConfig
from finetune.text.tokenizer.tokenizer import Tokenizer

CODE = "modeling_finetune.py"
"""The code of a folder that no class of `transformers` computes."""


@dataclass(frozen=True)
class Written:
    """How a folder was written."""

    architecture: str
    """Name of the class that loads it."""
    lacking: tuple[str, ...] = ()
    """What each class of `transformers` lacks, where the folder brings its own code."""

    @property
    def remark(self) -> str | None:
        """What its reader must know; None for a class of `transformers`."""
        if not self.lacking:
            return None
        return (
            "no class of transformers computes this model, so the folder has its own code "
            f"({CODE}): load it with trust_remote_code=True ({'; '.join(self.lacking)})"
        )


def export_hf(run: Path, out: Path, terms: Terms | None = None) -> Written:
    """Write a folder that `AutoModelFor…` and `AutoTokenizer` of `transformers` load.

    Where no class of theirs computes the same, the folder has the code that does.

    Args:
        run: A run's folder (of several seeds: the best one's weights), or a checkpoint's.
        out: The folder; it is written completely or not at all, and replaces an old one.
        terms: License and languages, for the model card.

    Raises:
        ConfigError: The run has no weights.
        CheckpointError: There is no checkpoint, or its head is of no known kind.
        OSError: It cannot be written.
    """
    source = find_source(run)
    checkpoint, kind = source.checkpoint, source.kind
    _check_network(checkpoint)
    pooling = str(HeadConfig.from_dict(checkpoint.head).resolved(checkpoint.encoder_config).pooling)
    form, lacking = export_form(checkpoint.encoder_config, kind, pooling, first=source.family)
    settings = _settings(checkpoint, kind, form, pooling)
    weights = _weights(checkpoint, kind, form, pooling)
    written = Written(settings["architectures"][0], tuple(lacking))
    tokenizer = checkpoint.tokenizer()

    with new_folder(out) as folder:
        write_json(folder / CONFIG, settings)
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        # safetensors makes a file that only its owner may read; the folder is to be shared.
        shutil.copymode(folder / CONFIG, folder / WEIGHTS)
        if form is OWN:
            code = resources.files("finetune.export").joinpath(CODE).read_text(encoding="utf-8")
            (folder / CODE).write_text(code, encoding="utf-8")
        _write_tokenizer(folder, tokenizer, source, kind)
        usage = _usage(kind, out.name, code=form is OWN)
        card = {"title": out.name, "usage": usage, "notes": _card_notes(written), "terms": terms}
        write_card(folder, source, library="transformers", **card)
    return written


def _check_network(checkpoint: Checkpoint) -> None:
    """Refuse what neither a class of `transformers` nor the exported code computes."""
    config, head = checkpoint.encoder_config, checkpoint.head
    if lacking := export_lacks(config, head, "hf"):
        has_other = not export_lacks(config, head, "onnx")
        remedy = "use --format onnx" if has_other else "predict with finetune predict"
        raise CheckpointError(f"{checkpoint.folder}: --format hf {'; '.join(lacking)}; {remedy}")


def _card_notes(written: Written) -> list[str]:
    if written.remark is None:
        return []
    return [f"The folder has its own code, `{CODE}`, which needs torch and transformers alone."]


def _settings(checkpoint: Checkpoint, kind: str | None, form: Form, pooling: str) -> dict[str, Any]:
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
    if kind == "masked_lm" and checkpoint.encoder_config.causal and form is not OWN:
        tokenizer = checkpoint.tokenizer()  # where its texts begin and end
        settings["bos_token_id"] = tokenizer.cls_token_id
        settings["eos_token_id"] = tokenizer.sep_token_id
    if form is OWN:
        module = CODE.removesuffix(".py")
        classes = {"AutoConfig": f"{form.classes}Config", "AutoModel": f"{form.classes}Model"}
        endings = {ending for ending in HEADS if ending != "ForPreTraining"}
        classes |= {f"AutoModel{ending}": form.classes + ending for ending in sorted(endings)}
        settings["auto_map"] = {auto: f"{module}.{name}" for auto, name in classes.items()}
        settings["pooling"] = pooling
    return settings


def _architecture(kind: str | None, form: Form) -> str:
    """Name of the class that loads it."""
    if kind == "masked_lm":
        return form.classes + form.language_model
    their_kind = "classification" if kind in PROBLEMS.values() else kind
    endings = [ending for ending, of_kind in HEADS.items() if of_kind == their_kind]
    return form.classes + (endings[0] if endings else "Model")


def _weights(
    checkpoint: Checkpoint, kind: str | None, form: Form, pooling: str
) -> dict[str, Tensor]:
    """The tensors under their names in `transformers`."""
    ours = calibrated(checkpoint.weights(), checkpoint)
    try:
        named = their_weights(ours, form, checkpoint.encoder_config, kind, pooling)
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

fill = pipeline("fill-mask", model={folder}{trust})
print(fill(f"A {{fill.tokenizer.mask_token}} text."))"""

LOAD = """\
import torch
from transformers import AutoModel{ending}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({folder}{trust})
model = AutoModel{ending}.from_pretrained({folder}{trust}).eval()
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


def _usage(kind: str | None, folder: str, *, code: bool) -> str:
    """How the folder is asked, as a block of Python for the card."""
    folder = json.dumps(folder, ensure_ascii=False)
    trust = ", trust_remote_code=True" if code else ""
    if kind == "span":
        text = LOAD.format(folder=folder, ending="ForQuestionAnswering", trust=trust) + ANSWER
    elif kind == "choice":
        text = LOAD.format(folder=folder, ending="ForMultipleChoice", trust=trust) + CHOOSE
    elif kind == "masked_lm":
        text = FILL.format(folder=folder, trust=trust)
    elif kind is None:
        text = LOAD.format(folder=folder, ending="", trust=trust) + READ
    else:
        more = ", top_k=None" if kind == "multi_label" else ""
        text = CLASSIFY.format(folder=folder, more=trust + more)
    return f"```python\n{text}\n```"
