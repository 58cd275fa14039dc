"""One function a run; everything is put together here and only here."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from finetune.checkpoint import Checkpoint, check_vocabulary, find_tokenizer, load_checkpoint
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError, ConfigError
from finetune.predictions import write_predictions
from finetune.run_folder import (
    Results,
    check_folder,
    check_writable,
    is_first_process,
    note,
    open_run,
    over_seeds,
    read_run,
    say,
    write_results,
)
from finetune.run_settings import FitRun, PretrainRun, TokenizerRun
from finetune.session import Session
from finetune.task import Task, majority
from finetune.text.corpus import build_corpus
from finetune.text.documents import corpus_sources, read_documents
from finetune.text.tokenizer import Tokenizer
from finetune.text.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.data import CorpusData, TaskData
from finetune.training.finetuner import FineTuner, collapsed, predict
from finetune.training.pretrainer import Pretrainer, masked_lm_metrics
from finetune.training.randomness import seed_weights
from finetune.training.trainer import pick_device

MakeTask = Callable[[FitRun], Task]


def make_tokenizer(run: TokenizerRun) -> Tokenizer:
    """Train a tokenizer and write its folder.

    Raises:
        ConfigError: The folder holds something already.
    """
    folder = Path(run.out)
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; name a new folder for --out")
    tokenizer = _train_tokenizer(
        run.corpus, run.vocabulary, text_field=run.text_field, file_is_document=run.file_is_document
    )
    tokenizer.save(folder)
    say(f"{tokenizer.vocab_size:,} tokens; the tokenizer is in {folder}")
    return tokenizer


def _train_tokenizer(
    corpus: list[str], config: TokenizerConfig, *, text_field: str, file_is_document: bool
) -> Tokenizer:
    note(
        f"training a {config.algorithm} tokenizer of {config.vocab_size:,} tokens on "
        f"{' '.join(corpus)}"
    )
    texts = read_documents(
        corpus_sources(corpus), text_field=text_field, file_is_document=file_is_document
    )
    return train_tokenizer(texts, config)


def pretrain(run: PretrainRun) -> Results:
    """From raw text to a pretrained encoder.

    Args:
        run: All settings.

    Returns:
        What RUN/results.json holds.
    """
    folder = Path(run.out)
    if not any(dataclasses.astuple(run.length)):
        raise ConfigError(
            "how long to train is not said: give --max-steps, --max-epochs or --max-minutes"
        )
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    tokenizer = _tokenizer_for(run, folder)
    corpus = build_corpus(run.corpus, tokenizer, run.data, run.seed, cache_folder(run.cache_dir))
    say(corpus.statistics.as_text())
    config = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
    _check_length(run.data.max_length, config)
    open_run(folder, run, resume=run.resume, overwrite=run.overwrite)
    if run.tokenizer is None and not run.resume and is_first_process():
        tokenizer.save(folder / "tokenizer")
    data = CorpusData(
        corpus,
        tokenizer,
        run.masks,
        run.loader,
        seed=run.seed,
        causal=config.causal,
        separate=run.data.documents == "separate",
    )
    seed_weights(run.seed)
    module = Pretrainer(
        Encoder(config), optimizer=run.optimizer, schedule=run.schedule, seed=run.seed
    )
    session = Session(run, folder, module, data, tokenizer, head={"kind": "masked_lm"})
    session.train(
        monitor="val/loss",
        higher_is_better=False,
        task="pretrain",
        unigram_entropy=corpus.statistics.unigram_entropy,
    )
    scored = min(len(corpus.validation), run.loader.validation_batches * run.loader.batch_size)
    metrics = _score_best(folder, module, data, pick_device(run.trainer.accelerator))
    results = session.results("pretrain", "validation", metrics, scored)
    results["data"] = {"corpus": run.corpus, **dataclasses.asdict(corpus.statistics)}
    write_results(folder, results)
    session.close(results)
    return results


def _score_best(
    folder: Path, module: Pretrainer, data: CorpusData, device: torch.device
) -> dict[str, float]:
    """Score the best checkpoint on the validation blocks; nothing where there are none."""
    load_checkpoint(folder).load_into(module)
    return masked_lm_metrics(module.to(device), data.val_dataloader())


def fit(run: FitRun, make_task: MakeTask) -> Results:
    """Fine-tune on a task: one run, or one a seed.

    Args:
        run: All settings.
        make_task: Builds the task that the settings name.

    Returns:
        What RUN/results.json holds.
    """
    run = dataclasses.replace(run, out=folder_of(run))
    task = make_task(run)
    if not run.seeds:
        return _fit_seed(run, task)
    if len(set(run.seeds)) < len(run.seeds):
        raise ConfigError(f"--seeds {run.seeds}: a seed is given twice; its runs would be the same")
    folder = Path(str(run.out))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    _inputs(run, task)  # what is wrong with them is told before the folder is touched
    open_run(folder, run, resume=run.resume, overwrite=run.overwrite)
    results = []
    for seed in run.seeds:
        place = folder / f"seed-{seed}"
        resume = run.resume and (place / "config.yaml").is_file()
        one = dataclasses.replace(
            run, seed=seed, seeds=None, out=str(place), resume=resume, overwrite=False
        )
        results.append(_fit_seed(one, task))
    together = over_seeds(results)
    write_results(folder, together)
    return together


def _fit_seed(run: FitRun, task: Task) -> Results:
    folder = Path(str(run.out))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    encoder, tokenizer, data = _inputs(run, task)
    open_run(folder, run, resume=run.resume, overwrite=run.overwrite)
    module = FineTuner(
        encoder,
        task.head(encoder.config, run.head),
        task,
        validation={split: data.examples(split) for split in task.validation_splits},
        optimizer=run.optimizer,
        schedule=run.schedule,
        seed=run.seed,
    )
    head = {"kind": module.head.kind, **dataclasses.asdict(run.head)}
    session = Session(run, folder, module, data, tokenizer, head=head, task=task)
    session.train(monitor=f"val/{task.monitor}", higher_is_better=True, task=task.name)
    split = task.validation_splits[0]
    metrics, flags = _evaluate_best(
        folder, module, data, task, pick_device(run.trainer.accelerator)
    )
    results = session.results(task.name, split, metrics, len(data.examples(split)))
    results |= flags | {"majority": majority(task, split), "data": data.description()}
    write_results(folder, results)
    session.close(results)
    return results


def _inputs(run: FitRun, task: Task) -> tuple[Encoder, Tokenizer, TaskData]:
    """All that fine-tuning starts from: read and found good before the run folder is touched."""
    start = None if run.encoder_from == "none" else load_checkpoint(run.encoder_from)
    tokenizer, config = _start(run, start)
    _check_length(run.max_length, config)
    data = _task_data(run, task, tokenizer)
    for split in (task.train_split, *task.validation_splits):
        data.features(split)
    seed_weights(run.seed)
    encoder = Encoder(config)
    if start is not None:
        encoder.load_state_dict(start.encoder().state_dict())
    return encoder, tokenizer, data


def _task_data(run: FitRun, task: Task, tokenizer: Tokenizer) -> TaskData:
    return TaskData(
        task,
        tokenizer,
        run.loader,
        max_length=run.max_length,
        seed=run.seed,
        cache_dir=cache_folder(run.cache_dir),
    )


def _evaluate_best(
    folder: Path,
    module: FineTuner,
    data: TaskData,
    task: Task,
    device: torch.device,
    splits: Sequence[str] = (),
) -> tuple[dict[str, float], Results]:
    """Score the best checkpoint on each split (the validation splits), and write its answers."""
    load_checkpoint(folder).load_into(module)
    module.to(device)
    metrics: dict[str, float] = {}
    flags: Results = {"collapsed": False}
    for number, split in enumerate(splits or task.validation_splits):
        answers = task.answers(predict(module, data.loader(split)), data.examples(split))
        if is_first_process():
            write_predictions(answers, folder / "predictions" / f"{split}.jsonl")
        prefix = f"{split}/" if number else ""
        metrics |= {prefix + name: value for name, value in task.score(answers).items()}
        flags["collapsed"] |= collapsed(answers)
    return metrics, flags


def evaluate(folder: Path, make_task: MakeTask, split: str | None = None) -> Results:
    """Score a finished fine-tuning run again, from its best checkpoint.

    Args:
        folder: RUN; of several seeds, each is scored.
        make_task: Builds the task that the run's settings name.
        split: Another labelled split; the validation splits when left out.

    Returns:
        `task`, `split` and `metrics`; for several seeds as results.json has them.
    """
    run = read_run(FitRun, folder)
    if run.seeds:
        return over_seeds(
            [evaluate(folder / f"seed-{seed}", make_task, split) for seed in run.seeds]
        )
    task = make_task(run)
    checkpoint = load_checkpoint(folder)
    data = _task_data(run, task, checkpoint.tokenizer())
    encoder = Encoder(checkpoint.encoder_config)
    module = FineTuner(encoder, task.head(checkpoint.encoder_config, run.head), task)
    splits = [split] if split else task.validation_splits
    device = pick_device(run.trainer.accelerator)
    metrics, flags = _evaluate_best(folder, module, data, task, device, splits)
    return {
        "task": task.name,
        "split": splits[0],
        "metrics": metrics,
        "examples": len(data.examples(splits[0])),
        "seed": run.seed,
        **flags,
    }


def folder_of(run: PretrainRun | FitRun) -> str:
    """The run's folder, by default named after its task."""
    return run.out or f"runs/{run.task.replace('/', '-')}"  # type: ignore[union-attr]


def cache_folder(given: str | None) -> Path:
    """Where tokenized texts are kept: the setting, FINETUNE_CACHE, or ~/.cache/finetune."""
    return Path(given or os.environ.get("FINETUNE_CACHE") or "~/.cache/finetune").expanduser()


def _tokenizer_for(run: PretrainRun, folder: Path) -> Tokenizer:
    """The tokenizer that is named, or that of the run that goes on, or one trained now."""
    if run.tokenizer is not None:
        return find_tokenizer(run.tokenizer)
    if run.resume or not is_first_process():
        return Tokenizer.load(folder / "tokenizer")
    return _train_tokenizer(
        run.corpus,
        run.vocabulary,
        text_field=run.data.text_field,
        file_is_document=run.data.file_is_document,
    )


def _start(run: FitRun, start: Checkpoint | None) -> tuple[Tokenizer, EncoderConfig]:
    """The tokenizer and the shape: the checkpoint's, or those named for a fresh encoder."""
    if start is not None:
        tokenizer = find_tokenizer(run.tokenizer) if run.tokenizer else start.tokenizer()
        check_vocabulary(tokenizer, start.encoder_config, Path(run.tokenizer or start.folder))
        if tokenizer.fingerprint != start.tokenizer().fingerprint:
            raise CheckpointError(
                f"{run.tokenizer}: not the tokenizer that {run.encoder_from} was trained with; "
                "leave "
                "--tokenizer out, the checkpoint brings its own"
            )
        return tokenizer, _with_dropout(start.encoder_config, run.dropout)
    if run.tokenizer is None:
        raise ConfigError(
            "--encoder none starts from random weights: name a vocabulary by --tokenizer DIR"
        )
    tokenizer = find_tokenizer(run.tokenizer)
    config = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
    return tokenizer, _with_dropout(config, run.dropout)


def _with_dropout(config: EncoderConfig, dropout: float | None) -> EncoderConfig:
    if dropout is None:
        return config
    return dataclasses.replace(
        config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )


def _check_length(max_length: int, config: EncoderConfig) -> None:
    if config.position == "learned" and max_length > config.max_position_embeddings:
        raise ConfigError(
            f"max_length ({max_length}) must not exceed the encoder's max_position_embeddings "
            f"({config.max_position_embeddings}); lower it"
        )
