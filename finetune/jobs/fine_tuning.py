"""Fine-tuning on a task: one run, or one a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from finetune.checkpoints.folder import (
    Checkpoint,
    check_vocabulary,
    find_tokenizer,
    load_checkpoint,
)
from finetune.checkpoints.hub import find_checkpoint, head_left_out, origin
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import PooledHead
from finetune.jobs.adapting import adapt, check_ended
from finetune.jobs.caching import Choice, choose, open_caches, row_sets, sizes
from finetune.jobs.data_summary import show_data
from finetune.jobs.evaluation import (
    Scorer,
    score_splits,
    task_data,
    warn_of_other_answers,
    write_answers,
)
from finetune.jobs.find_lr import check_search, find
from finetune.jobs.inputs import encoder_inputs, example_inputs, tokenizer_input
from finetune.jobs.plan import put_plan, show_plan
from finetune.jobs.pretraining import check_length, with_dropout
from finetune.jobs.session import Session, check_machine
from finetune.jobs.untrained import answer, check_untrained, is_trained
from finetune.machine.processes import is_first_process, join
from finetune.runs.families import Family, complete, family_of, installed_families, make_task
from finetune.runs.folder import RunFolder, say
from finetune.runs.opening import check_folder, open_folder, settle_folder
from finetune.runs.results import Results, over_seeds
from finetune.runs.settings import FitRun, PretrainRun
from finetune.task.interface import Task
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.finetuner import FineTuner, Scored
from finetune.training.loop.required_memory import check_training
from finetune.training.loop.task_data import TaskData
from finetune.training.loop.trainer import pick_device
from finetune.training.prefix.cache import RowSet
from finetune.training.randomness import seed_weights
from finetune.training.unfreezing.plan_table import Row


def fit(run: FitRun, families: Mapping[str, Family] | None = None) -> Results:
    """Fine-tune on a task: one run, or one a seed.

    >>> import finetune
    >>> from finetune.tracking import TrackingConfig
    >>> run = finetune.FitRun(
    ...     "runs/pretrained", "classify/own", out="runs/own",
    ...     train="data/train.csv", validation="data/validation.csv",
    ...     tracking=TrackingConfig(wandb=False),
    ... )
    >>> results = finetune.fit(run)
    >>> results["task"], sorted(results["metrics"])
    ('classify/own', ['accuracy', 'macro_f1'])

    Args:
        run: All settings; a plain FitRun leaves those of the task's family at their defaults.
        families: Those there are; left out, the installed ones.

    Returns:
        What RUN/results.json holds.
    """
    families = installed_families() if families is None else families
    join(run.trainer.devices)
    check_machine(run)
    run = complete(dataclasses.replace(run, out=folder_of(run)), families)
    task = make_task(run, families)
    run = family_of(run.task, families).resolve(run, task)
    _check(run, task)
    if not is_trained(task):
        return answer(run, task, families)
    if run.dry_run:
        return _dry(run, task)
    if run.find_lr:
        return _find(run, task)
    _check_seeds(run)
    if run.adapt is not None:
        run = _adapted(run, task, families)
    if not run.seeds:
        return _fit_seed(run, task)
    folder = RunFolder(Path(str(run.out)))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    ready = _get_ready(run, task)  # what is wrong is reported before the folder is touched
    with folder.hold():
        _open(run, folder, ready)
        together = over_seeds([_fit_seed(_of_seed(run, seed), task) for seed in run.seeds])
        folder.write_results(together)
    return together


def _check(run: FitRun, task: Task) -> None:
    """Refuse settings that do not go together, before anything is trained or written.

    Raises:
        ConfigError: They do not.
    """
    if not is_trained(task):
        check_untrained(run, task)
    if run.seeds and len(set(run.seeds)) < len(run.seeds):
        raise ConfigError(f"--seeds {run.seeds}: a seed is given twice; its runs would be the same")
    if run.find_lr:
        check_search(run)
    if run.adapt is not None:
        run.adaptation()
        if run.find_lr:
            raise ConfigError(
                "--find-lr tries the rates of one stage: run finetune adapt first, and name its "
                "folder by --encoder in place of --adapt"
            )


def _check_seeds(run: FitRun) -> None:
    """Find out before the first seed is trained what would stop a later one that is resumed.

    Raises:
        ConfigError: A seed's folder holds another run.
    """
    if run.adapt is not None:
        run = dataclasses.replace(run, encoder_from=run.adaptation().out)
    for seed in run.seeds or () if run.resume else ():
        one = _of_seed(run, seed)
        check_folder(RunFolder(Path(str(one.out))), one, resume=one.resume, overwrite=False)


def _of_seed(run: FitRun, seed: int) -> FitRun:
    """One of several seeds, in a folder of its own."""
    place = RunFolder(Path(str(run.out))).seed(seed)
    resume = run.resume and place.config_file.is_file()
    return dataclasses.replace(
        run, seed=seed, seeds=None, out=str(place.path), resume=resume, overwrite=False
    )


@dataclasses.dataclass(frozen=True)
class _Ready:
    """All that a run needs, read and found good; nothing is written yet."""

    module: FineTuner
    tokenizer: Tokenizer
    data: TaskData
    baseline: dict[str, float]
    """Metrics of the baseline."""
    plan: list[Row]
    sets: dict[str, RowSet]
    choice: Choice
    """What of the frozen part is kept."""
    start: Checkpoint | None
    """What the encoder's weights are from."""


def _get_ready(run: FitRun, task: Task) -> _Ready:
    start = None
    if run.encoder_from != "none":
        start = find_checkpoint(run.encoder_from, run.cache_dir)
    encoder, tokenizer, data, baseline = _inputs(run, task, start)
    head = task.head(encoder.config, run.head)
    if isinstance(head, PooledHead) and start is not None and (pooler := start.pooler()):
        head.start_from(pooler)
    module = FineTuner(
        encoder,
        head,
        task,
        validation={
            split: Scored(data.examples(split), data.features(split))
            for split in task.validation_splits
        },
        optimizer=run.optimizer,
        schedule=run.schedule,
        regularization=run.regularization,
        seed=run.seed,
    )
    plan = put_plan(run, module, data)
    sets = row_sets(module.phases, data)
    choice = choose(run, module, sets)
    return _Ready(module, tokenizer, data, baseline, plan, sets, choice, start)


def _tell_all(run: FitRun, ready: _Ready) -> None:
    """Say where the encoder is from, what the splits hold, and the plan."""
    if ready.start is not None:
        for told in filter(None, (origin(ready.start), head_left_out(ready.start))):
            say(told)
    show_data(ready.data)
    width, precision = ready.module.encoder.config.hidden_size, run.caching.cache_precision
    show_plan(run, ready.plan, sizes(ready.choice, width, precision))


def _dry(run: FitRun, task: Task) -> Results:
    """Show what would be done, and touch no run folder."""
    ready = _get_ready(run, task)
    _tell_all(run, ready)
    split = task.validation_splits[0]
    return {"task": task.name, "split": split, "metrics": {}, "plan": ready.plan}


def _find(run: FitRun, task: Task) -> Results:
    """Try learning rates, as the first of several seeds would start, and train nothing."""
    run = dataclasses.replace(run, seed=run.seeds[0] if run.seeds else run.seed)
    folder = RunFolder(Path(str(run.out)))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    ready = _get_ready(run, task)
    show_data(ready.data)
    return find(run, folder, ready.module, ready.data, task.name)


def _adapted(run: FitRun, task: Task, families: Mapping[str, Family]) -> FitRun:
    """Adapt the encoder in a run of its own, unless that has ended, and start from it."""
    before = run.adaptation()
    folder, second = RunFolder(Path(before.out)), RunFolder(Path(str(run.out)))
    # A run that was stopped in its first stage has nothing to resume in the second.
    resume = run.resume and (not before.resume or second.config_file.is_file())
    run = dataclasses.replace(run, encoder_from=before.out, resume=resume)
    check_folder(second, run, resume=run.resume, overwrite=run.overwrite)
    if before.resume and folder.results_file.is_file():
        check_ended(before, families, task)
        with folder.hold():  # as one that ends does: nothing is left of one that was killed
            settle_folder(folder)
    else:
        # What the second stage would refuse is reported before the first one takes its time.
        _get_ready(dataclasses.replace(run, encoder_from=before.encoder_from), task)
        adapt(before, families, task)
    return run


def _fit_seed(run: FitRun, task: Task) -> Results:
    folder = RunFolder(Path(str(run.out)))
    check_folder(folder, run, resume=run.resume, overwrite=run.overwrite)
    ready = _get_ready(run, task)
    with folder.hold():
        _open(run, folder, ready)
        return _train(run, task, folder, ready)


def _open(run: FitRun, folder: RunFolder, ready: _Ready) -> None:
    """Take the run's folder, where it says from what the run is made."""
    data, task = ready.data, ready.data.task
    splits = [data.train_split, *task.validation_splits, *(task.test_splits if run.test else ())]
    if ready.start is None:
        start = tokenizer_input(ready.tokenizer, str(run.tokenizer))
    else:
        start = encoder_inputs(ready.start, run.encoder_from)
    inputs = {**start, **example_inputs(data, splits)}
    open_folder(folder, run, resume=run.resume, overwrite=run.overwrite, inputs=inputs)


def _train(run: FitRun, task: Task, folder: RunFolder, ready: _Ready) -> Results:
    """Train and score, in a folder that is open for the run."""
    module, data = ready.module, ready.data
    used = module.head.config if isinstance(module.head, PooledHead) else run.head
    head = {"kind": module.head.kind, **dataclasses.asdict(used)}
    session = Session(run, folder, module, data, ready.tokenizer, head=head, task=task)
    _tell_all(run, ready)
    module.caches = open_caches(run, module, data, ready.sets, ready.choice)
    session.train(monitor=f"val/{task.monitor}", task=task.name)
    for cache in module.caches.values():
        cache.close()
    metrics, told = _score_best(run, ready, folder, session.save_tuned)
    split = task.validation_splits[0]
    results = session.results(task.name, split, metrics, len(data.examples(split)))
    results |= told | {"majority": ready.baseline, "data": data.description(), "plan": ready.plan}
    if ready.start is not None and ready.start.source:
        results["imported"] = dict(ready.start.source)
    folder.write_results(results)
    session.close(results)
    return results


def _score_best(
    run: FitRun, ready: _Ready, folder: RunFolder, save_tuned: Callable[[], None]
) -> tuple[dict[str, float], Results]:
    """Score the best checkpoint on the validation splits, and on a test file that was named."""
    module = ready.module
    module.phases, module.caches = None, {}  # answers are those of the plain encoder
    best = load_checkpoint(folder.path)
    best.load_into(module)
    module.decision = dict(best.decision)
    module.to(pick_device(run.trainer.accelerator))
    scorer = Scorer(module, module.task, ready.data, best.digest)
    if scorer.tune() != best.decision:
        save_tuned()
        if is_first_process():  # which alone writes it, and what the answers are of
            scorer = dataclasses.replace(scorer, checkpoint=load_checkpoint(folder.path).digest)
    metrics, told = score_splits(scorer, folder, module.task.validation_splits)
    if run.test is not None:
        (split,) = module.task.test_splits
        told["test"] = _tested(scorer, folder, split)
        told["predictions"][split] = dataclasses.asdict(scorer.origin(split))
    warn_of_other_answers(folder, scorer.checkpoint)
    return metrics, told


def _tested(scorer: Scorer, folder: RunFolder, split: str) -> Results:
    """Answer the test file that was named; score it if it has labels."""
    answers = scorer.answers(split)
    write_answers(scorer.task, folder, split, answers, scorer.origin(split))
    labelled = all(example.label is not None for example in scorer.data.examples(split))
    metrics = scorer.task.score(answers) if labelled else {}
    skipped = scorer.task.skipped(split)
    return {
        "metrics": metrics,
        "examples": len(answers),
        **({"skipped": skipped} if skipped else {}),
    }


def _inputs(
    run: FitRun, task: Task, start: Checkpoint | None
) -> tuple[Encoder, Tokenizer, TaskData, dict[str, float]]:
    """All that fine-tuning starts from: read and found good before the run folder is touched.

    Returns:
        Encoder, tokenizer, data, and the metrics of the baseline.
    """
    tokenizer, config = _start(run, start)
    check_length(run.max_length, config)
    of_all = run.unfreezing.unfreeze == "all" and run.unfreezing.phases is None
    check_training(config, run.trainer, all_trained=of_all)
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
    """The metrics of the baseline on the monitored split.

    Raises:
        DataError: There is no split to score on, or it has no labels.
    """
    task = data.task
    if not task.validation_splits:
        raise DataError(f"{task.name}: no validation data; name a file by --validation")
    split = task.validation_splits[0]
    examples = data.examples(split)
    scores = task.score(task.baseline_answers(data.examples(data.train_split), examples))
    if task.monitor not in scores:
        raise DataError(
            f"{task.name}: expected a labelled {split} split to choose the best checkpoint on, "
            "got none of its answers; name another file by --validation"
        )
    return scores


def folder_of(run: PretrainRun | FitRun) -> str:
    """The run's folder, by default named after its task."""
    return run.out or f"runs/{run.task.replace('/', '-')}"  # type: ignore[union-attr]


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
        return tokenizer, with_dropout(start.encoder_config, run.dropout)
    if run.tokenizer is None:
        raise ConfigError(
            "--encoder none starts from random weights: name a vocabulary by --tokenizer DIR"
        )
    tokenizer = find_tokenizer(run.tokenizer)
    config = dataclasses.replace(run.encoder, vocab_size=tokenizer.vocab_size)
    return tokenizer, with_dropout(config, run.dropout)
