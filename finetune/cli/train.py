"""The commands that train: their arguments are the settings of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli.parser import read_settings
from finetune.cli.results_table import show_results

if TYPE_CHECKING:
    from finetune.runs.settings import FitRun, PretrainRun


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


def corpus(arguments: list[str]) -> int:
    """Prepare a corpus; takes the arguments after `finetune corpus`."""
    from finetune import jobs
    from finetune.runs.folder import say
    from finetune.runs.settings import CorpusRun

    run = read_settings(CorpusRun, "corpus", arguments)
    if run is not None:
        facts = jobs.prepare_corpus(run)
        say(f"prepared in {facts['cache']}")
        if "--json" in arguments:
            print(json.dumps(facts))
    return 0


def pretrain(arguments: list[str]) -> int:
    """Pretrain an encoder; takes the arguments after `finetune pretrain`."""
    from finetune import jobs

    run = read_pretrain_settings("pretrain", arguments)
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
    from finetune.runs.fits import folder_of

    word, *arguments = arguments
    run = read_fit_settings(word, arguments)
    if run is not None:
        run = replace(run, out=folder_of(run))
        trained = not (run.dry_run or run.find_lr)
        show_results(jobs.fit(run), Path(str(run.out)), arguments, trained=trained)
    return 0


def read_pretrain_settings(
    word: str, arguments: list[str], fixed: Mapping[str, object] | None = None
) -> PretrainRun | None:
    """The settings of a pretraining; see `read_fit_settings`."""
    from finetune.runs.settings import PretrainRun

    return read_settings(PretrainRun, word, arguments, fixed=fixed)


def read_fit_settings(
    word: str, arguments: list[str], fixed: Mapping[str, object] | None = None
) -> FitRun | None:
    """The settings of a fine-tuning from its words; None where they are only printed.

    Args:
        word: The family's.
        arguments: Those after it.
        fixed: Settings that override them, by key.
    """
    from finetune.runs.families import families
    from finetune.runs.settings import fit_settings

    family = families()[word]
    task = {"task": f"{word}/{family.only}"} if family.only else {}
    return read_settings(
        fit_settings(word),
        word,
        arguments,
        fixed={**task, **(fixed or {})},
        names=family.names(),
        about=family.about(),
        check=_refuse_shape_flags,
    )


def _refuse_shape_flags(run: FitRun, keys: Iterable[str]) -> None:
    if any(key.startswith("encoder.") for key in keys):
        from finetune.jobs.inputs import refuse_shape

        refuse_shape(run, keys)
