"""`finetune generate`: a causal language model continues a text, word after word."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from finetune.cli.parser import add_json, check_is_there, command_parser
from finetune.console.output import put

ENDED = {
    "max_tokens": "ended after {count} tokens; --max-tokens writes more",
    "max_length": "ended after {count} tokens: the encoder reads no more at once",
}
"""Why a text ends without an end of its own -> what is said of it."""


def command(arguments: Sequence[str]) -> int:
    """Continue a text; takes the arguments after `finetune generate`."""
    from finetune.jobs.generation import GenerationConfig, load_generator
    from finetune.runs.folder import note, say
    from finetune.settings.fields import add_flags, given, read

    parser = command_parser(
        "generate", "Continue a text with the best checkpoint of a causal pretraining run."
    )
    parser.add_argument("run", type=Path, help="folder of a causal pretraining run")
    parser.add_argument("prompt", help="the text to continue")
    add_json(parser, "print the text, its tokens and what ended it as JSON on stdout")
    add_flags(parser, GenerationConfig)
    space = parser.parse_args(arguments)
    config = read(GenerationConfig, None, given(GenerationConfig, space))
    check_is_there(space.run)
    model = load_generator(space.run)
    if memory := model.module.encoder.config.memory:
        say(f"memory {memory} is not used: a text is continued within the tokens of a block")
    if space.json:
        (row,) = model.generate(space.prompt, **asdict(config))
        put(json.dumps(row, ensure_ascii=False))
        return 0
    (row,) = model.generate(space.prompt, **asdict(config), on_text=_show(space.prompt))
    put("")
    if row["ended"] in ENDED:
        note(ENDED[row["ended"]].format(count=len(row["ids"])))
    return 0


def _show(prompt: str) -> Callable[[str], None]:
    """Print pieces as they come, behind the prompt: once there is one, nothing is refused."""
    before = [prompt]

    def show(piece: str) -> None:
        put("".join([*before, piece]), end="")
        before.clear()

    return show
