"""`finetune predict`: new texts answered by a finished run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from finetune.cli.parser import add_json, check_is_there, command_parser, positive
from finetune.errors import ConfigError


def command(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    space = _parser().parse_args(arguments)
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
    )
    if space.json:
        print(json.dumps({"answers": count, "output": space.output}))
    return 0


def _parser() -> argparse.ArgumentParser:
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
    add_json(parser, "print the number of answers written to --output, as JSON on stdout")
    return parser
