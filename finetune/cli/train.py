"""The commands that train: their arguments are the settings of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli.parser import read_settings
from finetune.cli.results_table import show_results

if TYPE_CHECKING:
    from finetune.runs.settings import FitRun


def tokenizer(arguments: list[str]) -> int:
    """Train a tokenizer; takes the arguments after `finetune tokenizer`."""
    from finetune import jobs
    from finetune.runs.settings import TokenizerRun

    run = read_settings(TokenizerRun, "tokenizer", arguments)
    if run is not None:
        size = jobs.make_tokenizer(run).vocab_size
        if "--json" in arguments:
            print(json.dumps({"tokenizer": run.out, "vocab_size": size}))
    return 0


def pretrain(arguments: list[str]) -> int:
    """Pretrain an encoder; takes the arguments after `finetune pretrain`."""
    from finetune import jobs
    from finetune.runs.settings import PretrainRun

    run = read_settings(PretrainRun, "pretrain", arguments)
    if run is not None:
        show_results(jobs.pretrain(run), Path(run.out), arguments, trained=not run.find_lr)
    return 0


def adapt(arguments: list[str]) -> int:
    """Continue an encoder's pretraining; takes the arguments after `finetune adapt`."""
    from finetune import jobs
    from finetune.runs.settings import AdaptRun

    run = read_settings(AdaptRun, "adapt", arguments)
    if run is not None:
        show_results(jobs.adapt(run), Path(run.out), arguments, trained=not run.find_lr)
    return 0


def fine_tune(arguments: list[str]) -> int:
    """Fine-tune on a task; takes the family's word and those after it."""
    from finetune import jobs
    from finetune.runs.families import families
    from finetune.runs.fits import folder_of
    from finetune.runs.settings import fit_settings

    word, *arguments = arguments
    family = families()[word]
    run = read_settings(
        fit_settings(word),
        word,
        arguments,
        fixed={"task": f"{word}/{family.only}"} if family.only else None,
        names=family.names(),
        about=family.about(),
        check=_refuse_shape_flags,
    )
    if run is not None:
        run = replace(run, out=folder_of(run))
        trained = not (run.dry_run or run.find_lr)
        show_results(jobs.fit(run), Path(str(run.out)), arguments, trained=trained)
    return 0


def _refuse_shape_flags(run: FitRun, keys: Iterable[str]) -> None:
    if any(key.startswith("encoder.") for key in keys):
        from finetune.jobs.inputs import refuse_shape

        refuse_shape(run, keys)
