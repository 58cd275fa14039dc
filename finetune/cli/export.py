"""`finetune export`: a finished run as a folder that other software reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetune.cli.parser import add_json, command_parser
from finetune.errors import ConfigError

FORMATS = ("hf", "onnx")
MORE = """\
formats:
  hf     for transformers: AutoModelFor…, AutoTokenizer and pipeline load it;
         with trust_remote_code=True where no class of transformers computes
         the model, as the folder then has its own code
  onnx   a graph for onnxruntime and others, checked against the run; it takes
         pip install finetune[onnx]

Of a run of several seeds the best one's weights are exported; RUN/seed-N names another.
"""


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("export", "Export a run's best checkpoint for other software.", MORE)
    parser.add_argument("run", type=Path, help="folder of a run or checkpoint")
    parser.add_argument("--format", choices=FORMATS, required=True, help="target format, see below")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--int8",
        action="store_true",
        help="onnx: also write weights of 8 bits, and report the change in score",
    )
    parser.add_argument("--data", help="--int8: data folder to measure on (default: the run's)")
    parser.add_argument("--license", help="model card: license, as hubs name it: apache-2.0")
    parser.add_argument("--language", default="", help="model card: languages of the texts: en,de")
    parser.add_argument("--overwrite", action="store_true", help="replace the export in --out")
    add_json(parser, "print the folder and the measurements as JSON on stdout")
    space = parser.parse_args(arguments)
    if space.int8 and space.format != "onnx":
        raise ConfigError("--int8 goes with --format onnx; remove it")
    if space.data is not None and not space.int8:
        raise ConfigError("--data goes with --int8, which scores the run again; remove it")
    from finetune.export.card import Terms
    from finetune.export.source import check_out
    from finetune.runs.folder import say

    check_out(space.out, space.run, overwrite=space.overwrite)
    terms = Terms(space.license, tuple(filter(None, space.language.split(","))))
    content: dict[str, Any] = {"out": str(space.out), "format": space.format}
    if space.format == "onnx":
        from finetune.export.onnx import export_onnx

        made = export_onnx(space.run, space.out, int8=space.int8, data=space.data, terms=terms)
        content |= asdict(made)
    else:
        from finetune.export.hf import export_hf

        written = export_hf(space.run, space.out, terms)
        content |= {"architecture": written.architecture, "lacking": written.lacking}
        if written.remark is not None:
            say(written.remark)
    say(f"exported: {space.out}")
    if space.json:
        print(json.dumps(content))
    return 0
