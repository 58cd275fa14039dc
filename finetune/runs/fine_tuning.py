"""One function a run; everything is put together here and only here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from finetune.checkpoint import Checkpoint, check_vocabulary, find_tokenizer, load_checkpoint
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.families import Family, family_of, installed_families, make_task
from finetune.run_folder import (
    Results,
    cache_folder,
    check_folder,
    check_writable,
    is_first_process,
    note,
    open_run,
    over_seeds,
    say,
    versions,
    write_results,
)
from finetune.run_settings import FitRun, PretrainRun, TokenizerRun
from finetune.scoring import (
    Scorer,
    checkpoint_of,
    fixed_answers,
    load_scorer,
    score_splits,
    task_data,
    write_answers,
)
from finetune.session import Session
from finetune.task import Task
from finetune.text.corpus import build_corpus
from finetune.text.documents import corpus_sources, read_documents
from finetune.text.tokenizer import Tokenizer
from finetune.text.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.data import CorpusData
from finetune.training.finetuner import FineTuner, Scored
from finetune.training.pretrainer import Pretrainer, masked_lm_metrics
from finetune.training.randomness import seed_weights
from finetune.training.task_data import TaskData
from finetune.training.trainer import pick_device


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


def fit(run: FitRun, families: Mapping[str, Family] | None = None) -> Results:
    """Fine-tune on a task: one run, or one a seed.

    Args:
        run: All settings.
        families: Those there are; left out, the installed ones.

    Returns:
        What RUN/results.json holds.
    """
    families = installed_families() if families is None else families
    run = dataclasses.replace(run, out=folder_of(run))
    task = make_task(run, families)
    run = family_of(run.task, families).resolve(run, task)
    if task.train_split is None:
        return _answer_only(run, task, families)
    if task.fixed_answer is not None:
        return _answer_alike(run, task)
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
    encoder, tokenizer, data, baseline = _inputs(run, task)
    open_run(folder, run, resume=run.resume, overwrite=run.overwrite)
    module = FineTuner(
        encoder,
        task.head(encoder.config, run.head),
        task,
        validation={
            split: Scored(data.examples(split), data.features(split))
            for split in task.validation_splits
        },
        optimizer=run.optimizer,
        schedule=run.schedule,
        seed=run.seed,
    )
    head = {"kind": module.head.kind, **dataclasses.asdict(run.head)}
    session = Session(run, folder, module, data, tokenizer, head=head, task=task)
    _tell(data)
    session.train(monitor=f"val/{task.monitor}", higher_is_better=True, task=task.name)
    split = task.validation_splits[0]
    best = load_checkpoint(folder)
    best.load_into(module)
    module.decision = dict(best.decision)
    module.to(pick_device(run.trainer.accelerator))
    metrics, told = score_splits(Scorer(module, task, data), folder, task.validation_splits)
    results = session.results(task.name, split, metrics, len(data.examples(split)))
    results |= told | {"majority": baseline, "data": data.description()}
    write_results(folder, results)
    session.close(results)
    return results


def _inputs(run: FitRun, task: Task) -> tuple[Encoder, Tokenizer, TaskData, dict[str, float]]:
    """All that fine-tuning starts from: read and found good before the run folder is touched.

    Returns:
        Encoder, tokenizer, data, and the metrics of the trivial answers.
    """
    start = None if run.encoder_from == "none" else load_checkpoint(run.encoder_from)
    tokenizer, config = _start(run, start)
    _check_length(run.max_length, config)
    data = task_data(run, task, tokenizer)
    data.features(data.train_split, training=True)
    for split in task.validation_splits:
        data.features(split)
    baseline = _baseline(data)
    seed_weights(run.seed)
    encoder = Encoder(config)
    if start is not None:
        encoder.load_state_dict(start.encoder().state_dict())
    return encoder, tokenizer, data, baseline


def _baseline(data: TaskData) -> dict[str, float]:
    """The metrics of the trivial answers on the monitored split.

    Raises:
        DataError: There is no split to score on, or it has no labels.
    """
    task = data.task
    if not task.validation_splits:
        raise DataError(f"{task.name}: no validation data; name a file by --validation")
    split = task.validation_splits[0]
    examples = data.examples(split)
    scores = task.score(task.trivial_answers(data.examples(data.train_split), examples))
    if task.monitor not in scores:
        raise DataError(
            f"{task.name}: expected a labelled {split} split to choose the best checkpoint on, "
            "found none of its answers; name another file by --validation"
        )
    return scores


def _tell(data: TaskData) -> None:
    """Say what the splits hold, a line each."""
    for split in (data.train_split, *data.task.validation_splits):
        about = data.describe(split, training=split == data.train_split)
        files = ", ".join(Path(file).name for file in about.pop("files")[:3])
        facts = [f"{about.pop('examples'):,} examples", f"{about.pop('sequences'):,} sequences"]
        if left_out := about.pop("left_out"):
            facts.append(f"{left_out:,} that cannot be learnt from")
        if trimmed := about.pop("trimmed"):
            facts.append(f"{100 * trimmed:.1f} % cut to {data.max_length} tokens")
        facts += [f"{name.replace('_', ' ')}: {value}" for name, value in about.items()]
        say(f"{split} ({files}): {', '.join(facts)}")


def _answer_only(run: FitRun, task: Task, families: Mapping[str, Family]) -> Results:
    """Answer a task that has nothing to train on with the head of the run that is named."""
    folder = Path(str(run.out))
    if run.encoder_from == "none":
        raise ConfigError(f"{task.name} is not trained on: name a fine-tuned run by --encoder RUN")
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    place = checkpoint_of(folder, run, task)
    scorer = load_scorer(place, run, families)
    split = task.test_splits[0]
    answers = scorer.answers(split)
    open_run(folder, run, resume=run.resume, overwrite=run.overwrite)
    write_answers(task, folder, split, answers)
    results = {**_untrained(run, task, split), "examples": len(answers)}
    write_results(folder, results)
    say(f"{len(answers):,} answers: {folder / 'predictions' / split}.jsonl (no labels, no score)")
    return results


def _answer_alike(run: FitRun, task: Task) -> Results:
    """Give every example of a task the same answer, as the task says, and score that."""
    folder = Path(str(run.out))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    split, answer = task.validation_splits[0], task.fixed_answer
    answers = fixed_answers(task, split)
    results = {
        **_untrained(run, task, split),
        "metrics": task.score(answers),
        "examples": len(answers),
        "fixed_answer": answer,
    }
    open_run(folder, run, resume=run.resume, overwrite=run.overwrite)
    write_answers(task, folder, split, answers)
    write_results(folder, results)
    say(f"not trained: every example is answered '{answer}', the most frequent training label")
    return results


def _untrained(run: FitRun, task: Task, split: str) -> Results:
    return {
        "task": task.name,
        "split": split,
        "metrics": {},
        "seed": run.seed,
        "encoder": run.encoder_from,
        "versions": versions(),
    }


def folder_of(run: PretrainRun | FitRun) -> str:
    """The run's folder, by default named after its task."""
    return run.out or f"runs/{run.task.replace('/', '-')}"  # type: ignore[union-attr]


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
