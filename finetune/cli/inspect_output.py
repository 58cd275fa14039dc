"""What the kinds of `finetune inspect` share: their parser, the table on stdout, files in --out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.cli.parser import add_json, command_parser
from finetune.console.output import put

RUN = "folder of a run or checkpoint"
RUNS = "run folders; a folder with several seeds means all of them"
ABOUT = {
    "attention": "attention weights of a text or a pair, by layer and head",
    "alignment": "cross-attention: from which words a run wrote each word",
    "heads": "statistics of each attention head over many texts",
    "probe": "what a linear classifier can predict from each layer",
    "similarity": "similarity of the layers of one run, or of several (CKA)",
    "logit-lens": "what the language-model head predicts from each layer",
    "pairs": "minimal pairs: how often the good sentence is more probable",
    "words": "nearest neighbours of words in the word embeddings",
    "frequency": "loss of a pretraining run by frequency of the token",
}
"""Word after `finetune inspect` -> what it does, in a line."""


def make_parser(word: str, more: str = "", *, png: bool = False) -> argparse.ArgumentParser:
    """A parser for one kind, with the options that all have; `more` follows its options."""
    about = ABOUT[word]
    end = "" if about.endswith("?") else "."
    parser = command_parser(f"inspect {word}", f"{about[0].upper()}{about[1:]}{end}", more)
    help_ = "folder for the files (default: inspection)"
    parser.add_argument("--out", type=Path, default=Path("inspection"), help=help_)
    if word == "attention":  # whose figures are a file of megabytes
        add_json(parser, "print the tokens and the files written, as JSON on stdout")
    else:
        add_json(parser, "print the numbers as JSON on stdout instead of the table")
    if png:
        parser.add_argument("--png", action="store_true", help="also write a PNG figure")
    return parser


def check_ready(space: argparse.Namespace) -> None:
    """Find out before the work what would stop it at the end."""
    from finetune.runs.opening import check_writable

    check_writable(space.out)
    if getattr(space, "png", False):
        from finetune.inspection.plots import check_plots

        check_plots()


def show(space: argparse.Namespace, table: str, content: Mapping[str, Any]) -> None:
    """Print the table, or the content as JSON."""
    put(json.dumps(content, ensure_ascii=False) if space.json else table)


def write(folder: Path, name: str, content: Mapping[str, Any] | str | bytes) -> None:
    """Write a file whole or not at all, and say where it is."""
    from finetune.files.writing import write_bytes, write_json, write_text
    from finetune.runs.folder import say

    if isinstance(content, bytes):
        write_bytes(folder / name, content)
    elif isinstance(content, str):
        write_text(folder / name, content)
    else:
        write_json(folder / name, content)
    say(f"{folder / name}")
