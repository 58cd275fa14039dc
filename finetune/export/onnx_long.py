"""The example.py of a run that reads long texts otherwise than by cutting them, without torch.

It does what `finetune.text.features.long_texts` does, from the `long_texts` and `template` of the
folder's config.json: the tokenizer's own truncation knows neither both ends of a text, nor windows
of the longer text of a pair.
"""

from __future__ import annotations

from finetune.text.tokenizer.tokenizer import Tokenizer

START = '''\
"""How to predict with this model; needs: pip install numpy onnxruntime tokenizers."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

here = Path(__file__).parent
config = json.loads((here / "config.json").read_text(encoding="utf-8"))
labels, long, template = config["labels"], config["long_texts"], config["template"]
temperature = config["decision"].get("temperature", 1.0)  # 1 where the graph has divided by it

tokenizer = tokenizers.Tokenizer.from_file(str(here / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # a [SEP] in a text is plain text
session = onnxruntime.InferenceSession(str(here / "model.onnx"))


def ids_of(text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def kept(ids, length):
    """What is read of a text in one sequence: its beginning, or both ends."""
    if len(ids) <= length or long["long"] != "head-tail":
        return ids[:length]
    head = round(128 / 510 * length)
    return ids[:head] + ids[len(ids) - length + head :]


def pieces(ids, length):
    """What is read of a text, in one sequence or several that overlap."""
    if len(ids) <= length or long["long"] != "windows":
        return [kept(ids, length)]
    starts = range(0, len(ids) - long["stride"], length - long["stride"])
    return [ids[start : start + length] for start in starts][: long["max_windows"]]


def space_of(kind):
    special = template[kind]
    return config["max_length"] - sum(len(special[part]) for part in ("prefix", "middle", "suffix"))


def sequence(first, second, kind):
    """Ids and segments of one sequence."""
    special = template[kind]
    before = special["prefix"] + first + special["middle"]
    after = second + special["suffix"]
    types = [0] * len(before) + [special["second_type"] if kind == "pair" else 0] * len(after)
    return before + after, types


def padded(rows):
    """Sequences as the graph's inputs."""
    longest = max(len(ids) for ids, _ in rows)
    sizes = [(len(ids), longest - len(ids)) for ids, _ in rows]
    pad = config["padding"]
    return {
        "input_ids": np.array([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "attention_mask": np.array([[1] * size + [0] * rest for size, rest in sizes]),
        "token_type_ids": np.array([types + [0] * (longest - len(types)) for _, types in rows]),
    }


def run(inputs):
    """The logits of a batch."""
    return session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})[0]
'''
TEXTS = '''

def sequences(first, second=None):
    """All sequences of a text, or of a pair."""
    a = ids_of(first)
    if second is None:
        return [sequence(piece, [], "single") for piece in pieces(a, space_of("single"))]
    b, space = ids_of(second), space_of("pair")
    fits = len(a) + len(b) <= space
    short = min(len(a), len(b)) if fits else min(len(a), len(b), space // 2)
    if len(a) > len(b):
        b = kept(b, short)
        return [sequence(piece, b, "pair") for piece in pieces(a, space - short)]
    a = kept(a, short)
    return [sequence(a, piece, "pair") for piece in pieces(b, space - short)]


texts = ["A text.", "Another one. " * 99]  # of a pair: ("one", "the other")
'''
EACH = """\
rows, owners = [], []
for number, text in enumerate(texts):
    of_text = sequences(*([text] if isinstance(text, str) else text))
    rows += of_text
    owners += [number] * len(of_text)
logits, owners = run(padded(rows)), np.array(owners)
"""
TOGETHER = """\
windows = [sequences(*([text] if isinstance(text, str) else text)) for text in texts]
logits = np.concatenate([run(padded(rows)) for rows in windows])  # the windows of a text at a time
owners = np.arange(len(texts))
"""
CLASSES = """\
odds = np.exp(logits - logits.max(axis=1, keepdims=True))
each = odds / odds.sum(axis=1, keepdims=True)  # probabilities by each row of logits
means = np.array([each[owners == number].mean(axis=0) for number in range(len(texts))])
calibrated = means ** (1 / temperature)
calibrated /= calibrated.sum(axis=1, keepdims=True)
print([labels[best] for best in calibrated.argmax(axis=1)])
"""
LABEL_SETS = """\
each = 1 / (1 + np.exp(-logits))  # probabilities by each row of logits
means = np.array([each[owners == number].mean(axis=0) for number in range(len(texts))])
calibrated = 1 / (1 + (1 / means - 1) ** (1 / temperature))
thresholds = np.array([config["decision"].get(f"threshold/{label}", 0.5) for label in labels])
print([[label for label, yes in zip(labels, row) if yes] for row in calibrated > thresholds])
"""
NUMBERS = "print([float(logits[owners == number].mean()) for number in range(len(texts))])\n"
OPTIONS = '''

def sequences(passage, seconds):
    """A window of the passage after the other, each with all options."""
    a, others, space = ids_of(passage), [ids_of(text) for text in seconds], space_of("pair")
    length = space - max(len(ids) for ids in others)
    if long["long"] == "windows" and len(a) > length > long["stride"]:
        return [sequence(piece, ids, "pair") for piece in pieces(a, length) for ids in others]
    others = [ids[:space] for ids in others]
    return [sequence(kept(a, space - len(ids)), ids, "pair") for ids in others]


text, question, options = "A text. " * 99, "What is it?", {options}
rows = padded(sequences(text, [f"{{question}} {{option}}" for option in options]))
logits = run({{name: rows[name].reshape(-1, len(options), rows[name].shape[1]) for name in rows}})
odds = np.exp(logits - logits.max(axis=1, keepdims=True))
print(labels[(odds / odds.sum(axis=1, keepdims=True)).mean(axis=0).argmax()])
'''
BODIES = {
    "classification": CLASSES,
    "multi_label": LABEL_SETS,
    "regression": NUMBERS,
}
"""Kind of a head -> what is done with the logits: a row for each owner, or several."""


def long_example(kind: str, options: int | None, *, together: bool = False) -> str:
    """Write example.py of a run that reads long texts.

    Args:
        kind: Kind of the head: of a text, or `choice`.
        options: C of a multiple-choice head.
        together: The graph reads the windows of a text together.
    """
    if options is None:
        return START + TEXTS + (TOGETHER if together else EACH) + BODIES[kind]
    return START + OPTIONS.format(options=[f"option {number}" for number in range(1, options + 1)])


def templates(tokenizer: Tokenizer) -> dict[str, dict[str, object]]:
    """The special tokens around a text and a pair, for config.json."""
    return {name: tokenizer.template(pair=name == "pair")._asdict() for name in ("single", "pair")}
