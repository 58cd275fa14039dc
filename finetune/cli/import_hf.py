"""`finetune import-hf NAME_OR_DIR --out DIR`: a published encoder as a checkpoint of ours."""

from __future__ import annotations

import json
from pathlib import Path

from finetune.cli.parser import add_json, command_parser
from finetune.console.output import counted
from finetune.errors import ConfigError


def command(arguments: list[str]) -> int:
    """Import, and list what was imported and left out: in words on stderr, as JSON on stdout."""
    parser = command_parser(
        "import-hf", "Convert a Hugging Face encoder into a checkpoint of this project."
    )
    parser.add_argument("source", help="a folder with config.json and weights, or a hub name")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    add_json(parser, "print the folder and the names of all tensors as JSON on stdout")
    space = parser.parse_args(arguments)
    from finetune.checkpoints.hub import import_hf
    from finetune.runs.folder import say
    from finetune.runs.opening import check_writable

    check_writable(space.out)
    if space.out.exists() and any(space.out.iterdir()):
        raise ConfigError(f"{space.out} is not empty; name a new folder for --out")
    imported = import_hf(space.source, space.out)
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
    }
    facts |= {"pooler": pooler, "tensors": len(imported.kept), "left_out": imported.left_out}
    if space.json:
        facts |= {"out": str(space.out), "kept": imported.kept}
    print(json.dumps(facts))
    return 0
