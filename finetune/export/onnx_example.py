"""The example.py of an exported folder: a prediction in a few lines, for each kind of head.

It needs numpy, onnxruntime and tokenizers, but not this package.
"""

from __future__ import annotations

START = '''\
"""How to predict with this model; needs: pip install numpy onnxruntime tokenizers."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

here = Path(__file__).parent
labels = json.loads((here / "config.json").read_text(encoding="utf-8"))["labels"]

tokenizer = tokenizers.Tokenizer.from_file(str(here / "tokenizer.json"))  # truncates and pads
tokenizer.encode_special_tokens = True  # a [SEP] in a text is plain text
session = onnxruntime.InferenceSession(str(here / "model.onnx"))
'''
_AS_TEXT = "tokenizer.encode_special_tokens = True  # a [SEP] in a text is plain text\n"

TEXTS = """\
encoded = tokenizer.encode_batch(["A text.", "Another one."])  # of a pair: ("one", "the other")
"""
ASK = """\
inputs = {{{inputs}}}
{outputs} = session.run(None, inputs)
"""
INPUTS = {
    "input_ids": '"input_ids": np.array([each.ids for each in encoded]){more}',
    "attention_mask": '"attention_mask": np.array([each.attention_mask for each in encoded]){more}',
    "token_type_ids": '"token_type_ids": np.array([each.type_ids for each in encoded]){more}',
}

CLASSES = TEXTS + ASK + "print([labels[best] for best in logits.argmax(axis=1)])\n"
LABEL_SETS = (
    TEXTS
    + ASK
    + """\
decision = json.loads((here / "config.json").read_text(encoding="utf-8"))["decision"]
thresholds = np.array([decision.get(f"threshold/{{label}}", 0.5) for label in labels])
applies = 1 / (1 + np.exp(-logits)) > thresholds
print([[label for label, yes in zip(labels, row) if yes] for row in applies])
"""
)
NUMBERS = TEXTS + ASK + "print(logits.tolist())\n"
STATES = TEXTS + ASK + "print(hidden.shape)\n"
WORDS = (
    'encoded = tokenizer.encode_batch(["A {mask} text."])\n'
    + ASK
    + "print(tokenizer.decode(logits[0].argmax(axis=1)[np.array(encoded[0].ids) == {mask_id}]))\n"
)
SPAN = (
    'question, context = "Who wrote it?", "A text about the one who wrote it."\n'
    "encoded = tokenizer.encode_batch([(question, context)])  # its rest: encoded[0].overflowing\n"
    + ASK
    + """\
second = np.array([owner == 1 for owner in encoded[0].sequence_ids])  # tokens of the context
scores = np.where(second, start[0], -np.inf)[:, None] + np.where(second, end[0], -np.inf)
first, last = np.unravel_index(np.triu(np.exp(scores - scores.max())).argmax(), scores.shape)
print(context[encoded[0].offsets[first][0] : encoded[0].offsets[last][1]])
"""
)
OPTIONS = (
    """\
text, question, options = "A text.", "What is it?", {options}
encoded = tokenizer.encode_batch([(text, f"{{question}} {{option}}") for option in options])
"""
    + ASK
    + "print(labels[logits[0].argmax()])\n"
)

BODIES = {
    "classification": (CLASSES, "(logits,)"),
    "multi_label": (LABEL_SETS, "(logits,)"),
    "regression": (NUMBERS, "(logits,)"),
    "masked_lm": (WORDS, "(logits,)"),
    "none": (STATES, "(hidden,)"),
    "span": (SPAN, "start, end"),
    "choice": (OPTIONS, "(logits,)"),
}
"""Kind of a head -> the rest of the example, and the names of the outputs."""


def example(
    kind: str, inputs: tuple[str, ...], *, mask: tuple[str, int], options: int | None
) -> str:
    """Write example.py.

    Args:
        kind: Kind of the head.
        inputs: Names of the graph's inputs.
        mask: The tokenizer's mask token and its id.
        options: C of a multiple-choice head.
    """
    body, outputs = BODIES[kind]
    more = "" if options is None else "[None]"  # (C, T) -> (1, C, T)
    lines = ",\n    ".join(INPUTS[name].format(more=more) for name in inputs)
    start = START
    if kind == "masked_lm":  # here a [MASK] in a text means the mask
        start = start.replace(_AS_TEXT, "")
    text = body.format(
        inputs=f"\n    {lines},\n",
        outputs=outputs,
        mask=mask[0],
        mask_id=mask[1],
        options=[f"option {number}" for number in range(1, (options or 0) + 1)],
    )
    if "labels" not in text:
        start = start.replace("import json\n", "")
        start = "".join(line for line in start.splitlines(True) if not line.startswith("labels"))
    return start + text
