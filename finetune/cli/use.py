"""`finetune import-hf`, `evaluate`, `predict` and `export`: models come in, are used, go out."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import (
    add_ensemble,
    add_json,
    check_is_there,
    command_parser,
    positive,
    whole,
)
from finetune.cli.results_table import show_results
from finetune.console.output import counted
from finetune.errors import ConfigError
from finetune.machine.processes import is_first_process

if TYPE_CHECKING:
    from finetune.export.card import Terms

FORMATS = ("hf", "onnx")
EXPORT_FORMATS = """\
formats:
  hf     for transformers: AutoModelFor…, AutoTokenizer and pipeline load it;
         with trust_remote_code=True where no class of transformers computes
         the model, as the folder then has its own code
  onnx   a graph for onnxruntime and others, checked against the run; it takes
         pip install finetune[onnx]

Of a run of several seeds the best one's weights are exported; RUN/seed-N names another.
"""


def import_hf(arguments: list[str]) -> int:
    """Import, and list what was imported and left out: in words on stderr, as JSON on stdout."""
    parser = command_parser(
        "import-hf", "Convert a Hugging Face encoder into a checkpoint of this project."
    )
    parser.add_argument("source", help="a folder with config.json and weights, or a hub name")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    add_json(parser, "print the folder and the names of all tensors as JSON on stdout")
    space = parser.parse_args(arguments)
    from finetune.checkpoints import hub
    from finetune.runs.folder import say
    from finetune.runs.opening import check_writable

    check_writable(space.out)
    if space.out.exists() and any(space.out.iterdir()):
        raise ConfigError(f"{space.out} is not empty; name a new folder for --out")
    imported = hub.import_hf(space.source, space.out)
    config, head = imported.encoder_config, imported.head.get("kind")
    pooler = any("pooler" in name for name in imported.kept)
    say(
        f"{imported.form.name}: {counted(config.num_hidden_layers, 'block')} of "
        f"{config.hidden_size}, {len(imported.kept)} tensors kept; head: {head or 'none'}, "
        f"pooler: {'kept' if pooler else 'none'}"
    )
    if imported.left_out:
        say(f"left out: {', '.join(imported.left_out)}")
    say(f"checkpoint: {space.out}")
    facts: dict[str, object] = {
        "family": imported.form.name,
        "head": head,
        "labels": imported.labels,
        "pooler": pooler,
        "tensors": len(imported.kept),
        "left_out": imported.left_out,
    }
    if space.json:
        facts |= {"out": str(space.out), "kept": imported.kept}
    print(json.dumps(facts))
    return 0


def evaluate(arguments: list[str]) -> int:
    """Score a finished run again; takes the arguments after `finetune evaluate`."""
    space = _evaluate_parser().parse_args(arguments)
    _check_corpus(space)
    check_is_there(space.run)
    if space.corpus:
        from finetune.jobs.corpus_score import evaluate_corpus

        found = evaluate_corpus(space.run, space.corpus, stride=space.stride)
        show_results(found, space.run, arguments)
        return 0
    from finetune.jobs import evaluation

    results = evaluation.evaluate(
        space.run,
        space.split,
        space.file,
        ensemble=space.ensemble,
        int8=space.int8,
        devices=space.devices,
        beams=space.beams,
    )
    show_results(results, space.run, arguments)
    return 0


def _evaluate_parser() -> argparse.ArgumentParser:
    parser = command_parser("evaluate", "Score the best checkpoint of a finished run.")
    parser.add_argument(
        "run", type=Path, help="folder of a fine-tuning run; with --corpus of a causal pretraining"
    )
    parser.add_argument(
        "--split",
        help="split with labels (default: the validation split); fresh = the half of it that a "
        "run with --choose-on-half left out",
    )
    parser.add_argument(
        "--file", help="another file with labels, scored as the split --split (default: test)"
    )
    parser.add_argument(
        "--corpus",
        nargs="+",
        help="score a causal pretraining run on text: nats per token, word perplexity, bits per "
        "byte",
    )
    parser.add_argument(
        "--stride",
        type=positive,
        help="--corpus: tokens that each window scores (default: half of what the encoder reads)",
    )
    _add_beams(parser)
    add_ensemble(parser, "score")
    _add_int8(parser, "also score")
    _add_devices(parser)
    add_json(parser)
    return parser


def _check_corpus(space: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    if space.stride and not space.corpus:
        raise ConfigError("--stride goes with --corpus FILE; name a text, or remove it")
    others = {"--split": space.split, "--file": space.file, "--ensemble": space.ensemble}
    others |= {"--int8": space.int8, "--devices": space.devices > 1, "--beams": space.beams}
    for flag, value in others.items():
        if space.corpus and value:
            raise ConfigError(f"{flag} does not go with --corpus; remove one of them")


def _add_beams(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beams",
        type=whole(1, 1000),
        help="runs of finetune write: hypotheses of beam search, 1 = greedy (default: the run's)",
    )


def _add_int8(parser: argparse.ArgumentParser, verb: str) -> None:
    about = "the encoder with linear layers of 8 bits, on the CPU: faster, a little less exact"
    parser.add_argument("--int8", action="store_true", help=f"{verb} {about}")


def _add_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--devices",
        type=whole(1, 1024),
        default=1,
        help="number of processes on this machine, each with one device (default: 1)",
    )


def predict(arguments: list[str]) -> int:
    """Answer new texts with a finished run; takes the arguments after `finetune predict`."""
    space = _predict_parser().parse_args(arguments)
    if space.json and space.output == "-":
        raise ConfigError(
            "--json goes with --output FILE: answers on standard output are JSON already"
        )
    check_is_there(space.run)
    from finetune.jobs.prediction import predict_file

    count = predict_file(
        space.run,
        space.input,
        space.output,
        kind=space.format,
        batch_size=space.batch_size,
        top=space.top_k,
        ensemble=space.ensemble,
        int8=space.int8,
        devices=space.devices,
        beams=space.beams,
    )
    if space.json and is_first_process():
        print(json.dumps({"answers": count, "output": space.output}))
    return 0


def _predict_parser() -> argparse.ArgumentParser:
    from finetune.text.features.rows import READERS

    parser = command_parser(
        "predict", "Predict labels or answers for new texts with the best checkpoint of a run."
    )
    parser.add_argument(
        "run",
        type=Path,
        help="folder of a fine-tuning run; a pretraining run fills in [MASK]",
    )
    parser.add_argument("--input", default="-", help="file with texts; - = standard input")
    parser.add_argument(
        "--output",
        default="-",
        help="file with the answers beside the input's columns: .jsonl, .csv, .tsv or .parquet; "
        "- = standard output (JSONL)",
    )
    parser.add_argument(
        "--format",
        choices=READERS,
        help="format of the input (default: by file extension or first line)",
    )
    parser.add_argument(
        "--batch-size", type=positive, help="texts in a batch (default: the run's batch_size)"
    )
    parser.add_argument("--top-k", type=positive, help="candidates for each [MASK] (default: 5)")
    _add_beams(parser)
    add_ensemble(parser, "predict")
    _add_int8(parser, "predict by")
    _add_devices(parser)
    add_json(parser, "print the number of answers written to --output, as JSON on stdout")
    return parser


def export(arguments: list[str]) -> int:
    """Write a run for other software; takes the arguments after `finetune export`."""
    space = _export_parser().parse_args(arguments)
    if space.int8 and space.format != "onnx":
        raise ConfigError("--int8 goes with --format onnx; remove it")
    if space.ensemble and space.format == "hf":
        raise ConfigError(
            "--ensemble goes with --format onnx: transformers has no class for several models; "
            "export one, such as RUN/seed-1, or take --format onnx"
        )
    if space.ensemble and space.int8:
        raise ConfigError("--int8 is measured on one model: remove it or --ensemble")
    if space.data is not None and not space.int8:
        raise ConfigError("--data goes with --int8, which scores the run again; remove it")
    from finetune.export.source import check_out
    from finetune.runs.folder import say

    check_out(space.out, space.run, overwrite=space.overwrite)
    made = (_export_onnx if space.format == "onnx" else _export_hf)(space)
    say(f"exported: {space.out}")
    if space.json:
        print(json.dumps({"out": str(space.out), "format": space.format, **made}))
    return 0


def _export_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "export", "Export a run's best checkpoint for other software.", EXPORT_FORMATS
    )
    parser.add_argument("run", type=Path, help="folder of a run or checkpoint")
    parser.add_argument("--format", choices=FORMATS, required=True, help="target format, see below")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--int8",
        action="store_true",
        help="onnx: also write weights of 8 bits, and report the change in score",
    )
    add_ensemble(parser, "onnx: write a graph of")
    parser.add_argument("--data", help="--int8: data folder to measure on (default: the run's)")
    parser.add_argument("--license", help="model card: license, as hubs name it: apache-2.0")
    parser.add_argument("--language", default="", help="model card: languages of the texts: en,de")
    parser.add_argument("--overwrite", action="store_true", help="replace the export in --out")
    add_json(parser, "print the folder and the measurements as JSON on stdout")
    return parser


def _export_onnx(space: argparse.Namespace) -> dict[str, Any]:
    from finetune.export.onnx import export_onnx

    made = export_onnx(
        space.run,
        space.out,
        int8=space.int8,
        data=space.data,
        terms=_terms(space),
        ensemble=space.ensemble,
    )
    return asdict(made)


def _export_hf(space: argparse.Namespace) -> dict[str, Any]:
    from finetune.export.hf import export_hf
    from finetune.runs.folder import say

    made = export_hf(space.run, space.out, _terms(space))
    if made.remark is not None:
        say(made.remark)
    return {"architecture": made.architecture, "lacking": made.lacking}


def _terms(space: argparse.Namespace) -> Terms:
    from finetune.export.card import Terms

    return Terms(space.license, tuple(filter(None, space.language.split(","))))
