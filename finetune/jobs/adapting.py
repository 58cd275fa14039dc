"""ULMFiT's second stage: continued language modelling on the texts of the later task.

Howard and Ruder, 2018, section 3.2: the target's own text, labelled or not, with discriminative
rates and a slanted triangular schedule.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from finetune.checkpoints.folder import Checkpoint
from finetune.checkpoints.hub import find_checkpoint, origin
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError, DataError
from finetune.files.writing import write_text
from finetune.jobs.estimate import estimate_steps
from finetune.jobs.find_lr import check_search, find, left_to_first
from finetune.jobs.inputs import corpus_inputs, encoder_inputs
from finetune.jobs.pretraining import (
    check_length,
    check_memory,
    corpus_data,
    train_language_model,
    with_dropout,
)
from finetune.jobs.session import check_machine, with_devices
from finetune.machine.processes import is_first_process
from finetune.runs.families import family_of, make_task
from finetune.runs.folder import RunFolder, cache_folder, say
from finetune.runs.inputs import Input, Inputs
from finetune.runs.opening import after_restart, check_folder, check_inputs, opened
from finetune.runs.results import Results
from finetune.runs.settings import AdaptRun, FitRun, fit_settings
from finetune.task.drawing import limited
from finetune.task.interface import Task
from finetune.text.corpus.corpus import build_corpus, source_digests
from finetune.training.loop.launching import taking_part
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.trainer import check_training
from finetune.training.randomness import seed_weights


def adapt(run: AdaptRun, task: Task | None = None) -> Results:
    """Continue language modelling: masked, or left to right where the encoder is causal.

    Args:
        run: All settings.
        task: What `run.task` names, where it is at hand.

    Returns:
        What RUN/results.json holds; the encoder is in RUN/checkpoints/best.
    """
    if (run.corpus is None) == (run.task is None):
        raise ConfigError("what to read is not said: give one of --corpus and --task")
    if run.corpus is not None and run.limit is not None:
        raise ConfigError(
            "limit is for the texts of a --task; name a smaller --corpus, or --max-steps"
        )
    if run.find_lr:
        check_search(run)
    with taking_part(run.trainer.devices) as devices:
        return _adapt(with_devices(run, devices), task)


def _adapt(run: AdaptRun, task: Task | None) -> Results:
    if run.find_lr and not is_first_process():
        return left_to_first(run, "adapt")
    run = after_restart(run)
    check_machine(run)
    folder = RunFolder(Path(run.out))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    if run.task is not None and task is None:
        fit = _fit(run)
        task = make_task(fit)
        run = dataclasses.replace(run, data=family_of(run.task).resolve(fit, task).data)
    start = find_checkpoint(run.encoder_from, run.cache_dir)
    if source := origin(start):
        say(source)
    if start.pooler() is not None:  # it would no longer fit the first token's states
        say("left out: the encoder's pooler, which language modelling does not train")
    tokenizer = start.tokenizer()
    config = _shape(run, start)
    check_length(run.text.max_length, config)
    check_training(config, run.trainer, language_model=True)
    cache = cache_folder(run.cache_dir)
    sources = _sources(run, task)
    digests = source_digests(sources, cache)
    inputs = _inputs(run, start, digests)
    check_inputs(folder, run, inputs)  # before a corpus that has changed is tokenized
    text = dataclasses.replace(run.text, text_field="text") if run.task else run.text
    corpus = build_corpus(sources, tokenizer, text, run.seed, cache, digests=digests)
    check_memory(start.encoder_config, text, corpus)
    module = _module(run, start)
    name = f"adapt {run.task}" if run.task else "adapt"
    if run.find_lr:
        return find(run, folder, module, corpus_data(run, module, tokenizer, corpus, text), name)
    read = [run.task] if run.task else sources
    with opened(folder, run, inputs):
        return train_language_model(run, module, tokenizer, corpus, text, name, read, start.source)


def show_plan(run: AdaptRun, task: Task) -> Results:
    """Say what an adaptation would read, and about how long it would take; write nothing.

    Returns:
        `out`, `steps`, and the estimated `seconds` and `peak_gib`.
    """
    start = find_checkpoint(run.encoder_from, run.cache_dir)
    sources = _sources(run, task)
    digests = source_digests(sources)
    text = dataclasses.replace(run.text, text_field="text")
    cache, tokenizer = cache_folder(run.cache_dir), start.tokenizer()
    corpus = build_corpus(sources, tokenizer, text, run.seed, cache, digests=digests)
    module = _module(run, start)
    data = corpus_data(run, module, tokenizer, corpus, text)
    steps = run.length.max_steps
    if run.length.max_epochs is not None:
        steps = run.length.max_epochs * data.batches_per_epoch
    estimate = estimate_steps(module, data, run.trainer, run.length)
    facts = corpus.statistics
    say(
        f"first stage, adaptation in {run.out}: {facts.documents:,} texts of {run.task}, "
        f"{facts.tokens:,} tokens, {steps:,} steps, peak learning rate "
        f"{run.optimizer.learning_rate:.2g}; {estimate}"
    )
    return {"out": run.out, "steps": steps, **dataclasses.asdict(estimate)}


def check_ended(run: AdaptRun, task: Task) -> None:
    """Refuse an adaptation that has ended but was made with other settings or from other inputs.

    Args:
        run: The settings that it should have been made with.
        task: What `run.task` names.

    Raises:
        ConfigError: A setting or an input has changed since.
    """
    folder = RunFolder(Path(run.out))
    check_folder(folder, run, resume=True, overwrite=False)
    start = find_checkpoint(run.encoder_from, run.cache_dir)
    digests = source_digests(_sources(run, task))
    check_inputs(folder, run, _inputs(run, start, digests))


def _sources(run: AdaptRun, task: Task | None) -> list[str]:
    """The corpus that is named, or a file of the task's texts."""
    if run.corpus is not None:
        return run.corpus
    read = task or make_task(_fit(run))
    return [str(_written_texts(read, cache_folder(run.cache_dir), run.limit))]


def _inputs(run: AdaptRun, start: Checkpoint, digests: Mapping[str, str]) -> Inputs:
    texts = corpus_inputs(digests)
    if run.task is not None:  # in a file of the cache, which may be another one
        (digest,) = digests.values()
        texts = {f"texts of {run.task}": Input(digest, run.task)}
    return {**encoder_inputs(start, run.encoder_from), **texts}


def _shape(run: AdaptRun, start: Checkpoint) -> EncoderConfig:
    """The checkpoint's shape, attending as the objective asks for.

    A causal encoder and one that reads in both directions have the same weights: only the mask of
    attention differs, so that training goes on from either.
    """
    config = with_dropout(start.encoder_config, run.dropout)
    if run.objective is None or config.causal == (run.objective == "clm"):
        return config
    if config.block == "lstm":
        raise ConfigError(
            "objective: an LSTM that reads in both directions has weights that a causal one lacks, "
            f"so {run.encoder_from} cannot be turned; leave --objective out"
        )
    memory = config.memory if run.objective == "clm" else 0  # of earlier tokens alone, no weights
    return dataclasses.replace(config, causal=run.objective == "clm", memory=memory)


def _module(run: AdaptRun, start: Checkpoint) -> Pretrainer:
    """The encoder with its language-model head, or with a new one where it brings another."""
    seed_weights(run.seed)
    module = Pretrainer(
        Encoder(_shape(run, start)),
        optimizer=run.optimizer,
        schedule=run.schedule,
        seed=run.seed,
    )
    if start.head.get("kind") == "masked_lm":
        start.load_into(module)
    else:
        module.encoder.load_state_dict(start.encoder().state_dict())
    return module


def _fit(run: AdaptRun) -> FitRun:
    """The settings of a fine-tuning on the texts' task."""
    settings = fit_settings(str(run.task))
    named = {"task": str(run.task), "data": run.data, "train": run.train}
    return settings(encoder_from=run.encoder_from, **named)  # type: ignore[arg-type]


def _written_texts(task: Task, cache: Path, limit: int | None) -> Path:
    """A JSONL file of the task's texts; a corpus is read from files."""
    lines = limited(_lines(task.language_texts()), limit)
    if not lines:
        raise DataError(f"{task.name}: expected texts to adapt to, got none")
    content = "".join(lines)
    name = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    path = cache / f"texts-{name}.jsonl"
    if not path.is_file() or path.read_bytes() != content.encode():  # missing, or damaged
        write_text(path, content)
    return path


def _lines(texts: Iterable[str]) -> list[str]:
    return [json.dumps({"text": text}) + "\n" for text in texts if text.strip()]
