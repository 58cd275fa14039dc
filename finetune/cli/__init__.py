"""The command line: YAML and flags -> dataclasses -> a function of `runs`.

Each command imports what it needs when it is called, so that `finetune --help` answers at once.
Every error that a user can cause ends here, as one line on stderr and exit status 2.
"""

from finetune.cli.commands import Command
from finetune.cli.main import main
from finetune.cli.parser import add_ensemble, add_json, command_parser, whole

__all__ = ["Command", "add_ensemble", "add_json", "command_parser", "main", "whole"]
