"""`finetune describe`, `cache` and `bench`: what an encoder costs, its cache, and its speed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import add_json, command_parser, positive, seconds
from finetune.console.output import put
from finetune.errors import ConfigError

if TYPE_CHECKING:
    from finetune.checkpoints.folder import Checkpoint
    from finetune.encoder import EncoderConfig

TINY = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
"""What `bench` measures where no encoder is named: BERT-tiny."""
SOURCE = "a YAML config, a run or checkpoint folder, a Hugging Face folder or hub name"


def describe(arguments: list[str]) -> int:
    """Count parameters and arithmetic; takes the arguments after `finetune describe`."""
    parser = command_parser(
        "describe", "Count parameters, and floating-point operations per token, part by part."
    )
    parser.add_argument("source", type=Path, nargs="+", help=SOURCE)
    add_json(parser, "print the counts of each encoder as JSON on stdout")
    space = parser.parse_args(arguments)
    from finetune.encoder import cost

    checkpoints = {str(source): _checkpoint(source) for source in space.source}
    configs = {
        name: _of_settings(Path(name)) if one is None else one.encoder_config
        for name, one in checkpoints.items()
    }
    heads = {name: None if one is None else _task_head(one) for name, one in checkpoints.items()}
    if space.json:
        counts = {name: cost.counts(config) for name, config in configs.items()}
        for name, head in heads.items():
            counts[name] |= {} if head is None else {"task_head": head}
        print(json.dumps(counts))
        return 0
    tables = [
        "\n".join(
            [
                cost.describe(config),
                *_about_head(heads[name]),
                *textwrap.wrap(_exports(config, checkpoints[name]), 80),
            ]
        )
        for name, config in configs.items()
    ]
    if len(tables) > 1:
        tables = [f"{name}\n{text}" for name, text in zip(configs, tables, strict=True)]
    put("\n\n".join(tables))
    return 0


def cache(arguments: list[str]) -> int:
    """List or remove hidden states; takes the arguments after `finetune cache`."""
    parser = command_parser(
        "cache", "List or clear the cached hidden states of frozen encoders, which runs share."
    )
    parser.add_argument(
        "action", choices=("list", "clear"), help="list the cached states, or delete them"
    )
    parser.add_argument(
        "--cache-dir", help="cache folder (default: FINETUNE_CACHE or ~/.cache/finetune)"
    )
    add_json(parser, "print the entries, or the number of bytes freed, as JSON on stdout")
    space = parser.parse_args(arguments)
    from finetune.runs.folder import cache_folder

    folder = cache_folder(space.cache_dir) / "hidden"
    return (_clear if space.action == "clear" else _list)(folder, in_json=space.json)


def _clear(folder: Path, *, in_json: bool) -> int:
    from finetune.files.writing import sweep
    from finetune.training.prefix.store import GIB, clear

    freed = clear(folder)
    for place in (folder.parent, folder.parent / "encoders"):
        sweep(place)  # what killed processes left there
    if in_json:
        print(json.dumps({"folder": str(folder), "freed_bytes": freed}))
    else:
        put(f"{freed / GIB:.3f} GiB freed in {folder}")
    return 0


def _list(folder: Path, *, in_json: bool) -> int:
    from finetune.console.tables import table
    from finetune.training.prefix.store import GIB, list_entries

    entries = list_entries(folder)
    if in_json:
        contents = [
            {
                "set": entry.about,
                "encoder": entry.encoder,
                "depth": entry.depth,
                "precision": entry.precision,
                "sequences": entry.rows,
                "bytes": entry.bytes,
            }
            for entry in entries
        ]
        put(json.dumps({"folder": str(folder), "entries": contents}, ensure_ascii=False))
        return 0
    put(f"{folder}: {len(entries)} entries, the last used first")
    rows = [
        [
            one.about,
            Path(one.encoder).name,
            str(one.depth),
            one.precision,
            f"{one.rows:,}",
            f"{one.bytes / GIB:.3f}",
        ]
        for one in entries
    ]
    if rows:
        print(table(rows, ["set", "encoder", "depth", "precision", "sequences", "GiB"]))
    return 0


def bench(arguments: list[str]) -> int:
    """Measure this machine and encoders on it; takes the arguments after `finetune bench`."""
    parser = command_parser(
        "bench", "Measure matrix products, and a training step of each encoder."
    )
    parser.add_argument("source", type=Path, nargs="*", help=f"{SOURCE}; default: 2 blocks of 128")
    parser.add_argument(
        "--batch-size", type=positive, default=32, help="sequences in a batch (default: 32)"
    )
    parser.add_argument(
        "--length", type=positive, default=128, help="longest sequence in tokens (default: 128)"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=2.0, help="seconds for each measurement (default: 2)"
    )
    add_json(parser)
    space = parser.parse_args(arguments)
    from finetune.encoder import EncoderConfig, benchmark
    from finetune.runs.folder import note
    from finetune.training.loop.trainer import flush_denormals
    from finetune.training.ranks import pick_device

    flush_denormals()
    results = {}
    encoders = {str(source): _encoder_config(source) for source in space.source}
    for source, config in (encoders or {"2x128": EncoderConfig.from_dict(TINY)}).items():
        learned = config.position == "learned"
        note(f"measuring {source}")
        longest = config.max_position_embeddings if learned else space.length
        results[source] = benchmark.bench(
            config,
            pick_device("auto"),
            batch_size=space.batch_size,
            length=min(space.length, longest),
            seconds=space.seconds,
        )
    if space.json:
        print(json.dumps(results))
    else:  # three at a time fit a terminal
        groups = (list(results.items())[first : first + 3] for first in range(0, len(results), 3))
        put("\n\n".join(benchmark.bench_table(dict(group)) for group in groups))
    return 0


def _exports(config: EncoderConfig, checkpoint: Checkpoint | None) -> str:
    """Which formats the network of a checkpoint, or an encoder alone, can be exported to."""
    from finetune.checkpoints.hf import exports_as

    if checkpoint is None:  # settings are described without torch
        return exports_as(config, {}, reasons=True)
    from finetune.export.source import Source
    from finetune.runs.folder import RunFolder

    run = RunFolder.of_checkpoint(checkpoint.folder)
    results = run.read_results() if run is not None and run.results_file.is_file() else {}
    family = Source(checkpoint, results).family
    return exports_as(config, checkpoint.head, first=family, reasons=True)


HEAD_LENGTH = 128
"""T of the texts for which the operations of a head are counted."""


def _task_head(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What the head of a fine-tuned checkpoint costs; None without one that pools or writes."""
    from finetune.checkpoints.hf.form import POOLED

    kind = str(checkpoint.head.get("kind"))
    if kind == "seq2seq":
        return _decoder(checkpoint)
    if kind not in POOLED:
        return None
    from finetune.heads import Classification, HeadConfig

    outputs = len(checkpoint.labels) if kind in ("classification", "multi_label") else 1
    config = HeadConfig.from_dict(checkpoint.head)
    # The layers of all these kinds are alike.
    head = Classification(checkpoint.encoder_config, config, outputs)
    parameters = sum(parameter.numel() for parameter in head.parameters())
    cost = {"parameters": parameters, "flops_per_text": head.flops(HEAD_LENGTH)}
    return {"kind": kind, "pooling": head.config.pooling, **cost}


def _decoder(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the decoder of a checkpoint costs, with its output layer."""
    from finetune.encoder import EncoderConfig
    from finetune.heads import HeadConfig, Seq2Seq

    head = Seq2Seq(
        checkpoint.encoder_config,
        HeadConfig.from_dict(checkpoint.head),
        EncoderConfig.from_dict(checkpoint.head["decoder"]),
        start=0,
        end=0,
        cross_score=checkpoint.head.get("cross_score"),
    )
    parameters = sum(parameter.numel() for parameter in head.parameters())
    cost = {"parameters": parameters, "flops_per_text": head.flops(HEAD_LENGTH, HEAD_LENGTH)}
    return {"kind": "seq2seq", "pooling": head.config.pooling, **cost}


def _about_head(head: Mapping[str, Any] | None) -> list[str]:
    """A line about the head of `_task_head`, if there is one."""
    if head is None:
        return []
    name, texts = f"head ({head['kind']}, pooling {head['pooling']})", "a text"
    if head["kind"] == "seq2seq":
        name, texts = "decoder", "a source and a target"
    line = (
        f"The {name} has {head['parameters']:,} parameters and takes "
        f"{head['flops_per_text'] / 1e6:,.2f} million operations {texts} of {HEAD_LENGTH} tokens"
    )
    return [f"{line}{' each' if head['kind'] == 'seq2seq' else ''}."]


def _encoder_config(source: Path) -> EncoderConfig:
    """The encoder that a checkpoint holds, or that a run with these settings would start from."""
    checkpoint = _checkpoint(source)
    return _of_settings(source) if checkpoint is None else checkpoint.encoder_config


def _checkpoint(source: Path) -> Checkpoint | None:
    """The checkpoint in a folder or of a name on the hub; None for anything else."""
    from finetune.checkpoints.hub import HUB_NAME, find_checkpoint

    on_the_hub = not source.exists() and source.suffix not in (".yaml", ".yml")
    if source.is_dir() or (on_the_hub and HUB_NAME.fullmatch(str(source))):
        return find_checkpoint(source)
    return None


def _of_settings(source: Path) -> EncoderConfig:
    """The encoder of a run with the settings in a file."""
    from finetune.checkpoints.folder import find_tokenizer
    from finetune.checkpoints.hub import find_checkpoint
    from finetune.settings import fields as settings
    from finetune.settings.values import load

    content = load(source)
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: expected the settings of a run, got none")
    if "command" in content and "parameters" in content:
        raise ConfigError(
            f"{source}: expected the settings of a run, got a sweep; describe the config that its "
            "command names"
        )
    kind = _kind_of(content)
    missing = {"encoder_from": "none", "corpus": ["-"], "out": "-"}
    wanted = {field.name for field in fields(kind)} - content.keys()
    run = settings.read(kind, source, {key: missing[key] for key in missing.keys() & wanted})
    _check_names_encoder(source, content, kind)
    if (start := getattr(run, "encoder_from", "none")) != "none":
        return find_checkpoint(start, run.cache_dir).encoder_config
    size = run.vocabulary.vocab_size if "vocabulary" in vars(run) else run.encoder.vocab_size
    if run.tokenizer is not None:
        size = find_tokenizer(run.tokenizer).vocab_size
    config: EncoderConfig = replace(run.encoder, vocab_size=size)
    return config


def _kind_of(content: Mapping[str, object]) -> type[Any]:
    """The kind of run that settings are for: the first of those that know most of the keys."""
    from finetune.runs.families import families
    from finetune.runs.settings import AdaptRun, FitRun, PretrainRun, fit_settings

    kinds = [PretrainRun, FitRun, AdaptRun, *map(fit_settings, families())]
    known = [len(content.keys() & {field.name for field in fields(kind)}) for kind in kinds]
    return kinds[known.index(max(known))]


def _check_names_encoder(source: Path, content: Mapping[str, object], kind: type[Any]) -> None:
    """Refuse settings of training alone, which would be described as the default encoder."""
    from finetune.runs.settings import FitRun, PretrainRun

    names = {"encoder", "encoder_from"}
    if kind is PretrainRun:  # which builds an encoder, if need be by the defaults alone
        names |= {field.name for field in fields(kind)} - {field.name for field in fields(FitRun)}
    if not names & content.keys():
        raise ConfigError(
            f"{source}: expected an encoder (encoder: its sizes, or encoder_from: where it is), "
            "got settings of training alone; describe the encoder that such a run starts from"
        )
