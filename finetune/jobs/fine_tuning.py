"""Fine-tuning on a task: one run or one a seed, after an adaptation or not; or only the plan."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from finetune.checkpoints.folder import load_checkpoint
from finetune.elementary import TRIVIAL
from finetune.errors import ConfigError
from finetune.jobs import find_lr as rate_search
from finetune.jobs.adapting import adapt, check_ended
from finetune.jobs.adapting import show_plan as show_adaptation
from finetune.jobs.baselines import Scores, baselines_of
from finetune.jobs.caching import open_caches
from finetune.jobs.data_summary import show_data
from finetune.jobs.estimate import estimate_fit
from finetune.jobs.evaluation import warn_of_other_answers
from finetune.jobs.preparation import Preparation, prepare
from finetune.jobs.scoring import Scorer, score_splits, write_answers
from finetune.jobs.session import Session, check_machine, with_devices
from finetune.jobs.untrained import answer_without_training, check_untrained, is_trained
from finetune.machine.processes import is_first_process, place
from finetune.runs.families import family_of, make_task
from finetune.runs.fits import complete, folder_of, with_recorded_name
from finetune.runs.folder import RunFolder, say
from finetune.runs.opening import after_restart, check_folder, open_folder, opened, settle_folder
from finetune.runs.results import Results, over_seeds
from finetune.runs.settings import AdaptRun, FitRun
from finetune.task.interface import Task
from finetune.training.loop.launching import taking_part
from finetune.training.loop.sharding import shards
from finetune.training.ranks import ALONE, Ranks, pick_device


def fit(run: FitRun) -> Results:
    """Fine-tune on a task: one run, or one for each seed; see `finetune.fit`."""
    with taking_part(run.trainer.devices) as devices:
        return _fit(with_devices(run, devices))


def _fit(run: FitRun) -> Results:
    run = after_restart(run)
    run = with_recorded_name(complete(dataclasses.replace(run, out=folder_of(run))))
    task = make_task(run)
    run = family_of(run.task).resolve(run, task)
    check_settings(run, task)
    return _mode(run, task)(run, task)


def _mode(run: FitRun, task: Task) -> Callable[[FitRun, Task], Results]:
    """What the settings ask for."""
    if not is_trained(task):
        return answer_without_training
    if run.dry_run:
        return plan
    if run.find_lr:
        return find_lr
    if run.adapt is not None:
        return adapt_then_fit
    return fit_seeds if run.seeds else fit_once


def check_settings(run: FitRun, task: Task) -> None:
    """Refuse what is wrong with the settings, before anything is written or trained.

    Raises:
        ConfigError: They do not go together, the machine cannot do it, or the folder of one of the
            stages or seeds contains something else.
    """
    check_machine(run)
    _check_sharded(run)
    if not is_trained(task):
        check_untrained(run, task)
    if run.seeds and len(set(run.seeds)) < len(run.seeds):
        raise ConfigError(f"--seeds {run.seeds}: a seed is given twice; its runs would be the same")
    if run.find_lr:
        rate_search.check_search(run)
    if run.find_lr and run.adapt is not None:
        raise ConfigError(
            "--find-lr tries the rates of one stage: run finetune adapt first, and name its "
            "folder by --encoder in place of --adapt"
        )
    stages = list(_stages(run))
    for stage in () if run.dry_run else stages:
        folder = RunFolder(Path(str(stage.out)))
        check_folder(folder, stage, resume=stage.resume, overwrite=stage.overwrite)


def _check_sharded(run: FitRun) -> None:
    """Refuse what reads whole weights in each step, or changes in mid-run what is trained.

    Raises:
        ConfigError: It is asked for with weights divided among processes.
    """
    pulls = [name for name in ("mixout", "l2_sp") if getattr(run.regularization, name)]
    freezes = run.unfreezing.unfreeze != "all" or bool(run.unfreezing.phases)
    unfit = [*pulls, "unfreeze"] if freezes else pulls
    if shards(run.trainer) and unfit:
        raise ConfigError(
            f"strategy {run.trainer.strategy!r}: expected training of all layers without mixout "
            f"and l2_sp, got {unfit[0]}; remove it, or set strategy to ddp"
        )


def _stages(run: FitRun) -> Iterator[AdaptRun | FitRun]:
    """The run with a folder of its own for each stage, and those of its seeds that continue."""
    if run.adapt is not None:
        yield run.adaptation()
        run = _after_adaptation(run)
    yield run
    if run.resume:  # otherwise their folders are removed, or refused, with the run's
        yield from _seed_runs(run)


def _after_adaptation(run: FitRun) -> FitRun:
    """The second stage: fine-tuning from the encoder that the first one adapts."""
    before, folder = run.adaptation(), RunFolder(Path(str(run.out)))
    # A run that was stopped in its first stage has nothing to resume in the second.
    resume = run.resume and not before.resume
    if run.resume and folder.config_file.is_file():
        encoder = folder.read_settings(type(run)).encoder_from  # of a folder that may have moved
        resume = os.path.abspath(encoder) == os.path.abspath(before.out)
    return dataclasses.replace(run, encoder_from=before.out, resume=resume)


def _seed_runs(run: FitRun) -> Iterator[FitRun]:
    """A run for each of several seeds, in a folder of its own."""
    for seed in run.seeds or ():
        folder = RunFolder(Path(str(run.out))).seed(seed)
        resume = run.resume and folder.config_file.is_file()
        yield dataclasses.replace(
            run, seed=seed, seeds=None, out=str(folder.path), resume=resume, overwrite=False
        )


def plan(run: FitRun, task: Task) -> Results:
    """Show what the run would do and about what it costs, and write nothing into its folder."""
    results: Results = {"task": task.name, "split": task.validation_splits[0], "metrics": {}}
    if run.adapt is not None:
        results["adaptation"] = show_adaptation(run.adaptation(), task)
    preparation = prepare(run, task)
    preparation.show()
    estimate = estimate_fit(preparation)
    seeds = len(run.seeds or [run.seed])
    say(f"estimated: {estimate}" + (f", for each of {seeds} seeds" if seeds > 1 else ""))
    results["estimate"] = dataclasses.asdict(estimate) | {"seeds": seeds}
    return results | {"plan": preparation.plan}


def find_lr(run: FitRun, task: Task) -> Results:
    """Try learning rates, as the first of several seeds would start, and train nothing."""
    run = dataclasses.replace(run, seed=run.seeds[0] if run.seeds else run.seed)
    if not is_first_process():
        return rate_search.left_to_first(run, task.name)
    preparation = prepare(run, task)
    show_data(preparation.data)
    folder = RunFolder(Path(str(run.out)))
    return rate_search.find(run, folder, preparation.module, preparation.data, task.name)


def adapt_then_fit(run: FitRun, task: Task) -> Results:
    """Adapt the encoder in a run of its own, unless that has ended, and fine-tune it."""
    before, run = run.adaptation(), _after_adaptation(run)
    folder = RunFolder(Path(before.out))
    if before.resume and folder.results_file.is_file():
        check_ended(before, task)
        with folder.hold():  # as one that ends does: nothing is left of one that was killed
            settle_folder(folder)
    else:
        # What the second stage would refuse is reported before the first one takes its time.
        first = prepare(dataclasses.replace(run, encoder_from=before.encoder_from), task).run
        with _planned(first):
            adapt(before, task)
    return fit_seeds(run, task) if run.seeds else fit_once(run, task)


@contextmanager
def _planned(run: FitRun) -> Iterator[None]:
    """Have the run's folder while its encoder is adapted, with the settings to resume it by."""
    folder = RunFolder(Path(str(run.out)))
    with folder.hold():
        if not run.resume:
            open_folder(folder, run, resume=False, overwrite=run.overwrite)
        yield


def fit_seeds(run: FitRun, task: Task) -> Results:
    """Fine-tune once for each seed, and average the results."""
    preparation = prepare(run, task)  # what is wrong is reported before the folder is touched
    folder = RunFolder(Path(str(run.out)))
    with opened(folder, preparation.run, preparation.inputs()):
        baselines = None
        if run.train_examples is None:  # otherwise each seed draws what they are fitted to
            baselines = baselines_of(run, preparation.data, preparation.trivial, folder)
        runs = list(_seed_runs(run))
        ended: list[Results] = []
        for number, one in enumerate(runs, start=1):
            say(f"seed {number} of {len(runs)}: {one.seed}")
            if run.extend_epochs is None:  # what was begun for one seed is done for all
                epochs = max((results.get("extended_epochs", 0) for results in ended), default=0)
                one = dataclasses.replace(one, extend_epochs=epochs or None)
            ended.append(fit_once(one, task, baselines, seeds_to_come=len(runs) - number))
        results = over_seeds(ended)
        folder.write_results(results)
    return results


def fit_once(
    run: FitRun, task: Task, baselines: dict[str, Scores] | None = None, *, seeds_to_come: int = 0
) -> Results:
    """Fine-tune with one seed, and score the best checkpoint.

    Args:
        run: The settings.
        task: What they name.
        baselines: Metrics of the baselines; None: computed, those that the settings want.
        seeds_to_come: Seeds that are trained after this one, for the time left.

    Returns:
        What RUN/results.json contains.
    """
    preparation = prepare(run, task, None if baselines is None else baselines[TRIVIAL])
    folder = RunFolder(Path(str(run.out)))
    with opened(folder, preparation.run, preparation.inputs()):
        if baselines is None:
            baselines = baselines_of(run, preparation.data, preparation.trivial, folder)
        return _train(folder, preparation, baselines, seeds_to_come)


def _train(
    folder: RunFolder, preparation: Preparation, baselines: dict[str, Scores], seeds_to_come: int
) -> Results:
    """Train and score, in a folder that is open for the run."""
    run, module, data = preparation.run, preparation.module, preparation.data
    task, start = data.task, preparation.start
    session = Session(
        run,
        folder,
        module,
        data,
        preparation.tokenizer,
        head=preparation.head,
        task=task,
        seeds_to_come=seeds_to_come,
    )
    preparation.show()
    ranks = session.start_ranks()
    if session.length.extension is None:  # beyond the plan the frozen layers may have been trained
        module.caches = open_caches(
            run, module, data, preparation.sets, preparation.choice, _filling(ranks)
        )
    session.train(monitor=f"val/{run.monitor or task.monitor}", task=task.name)
    for cache in module.caches.values():
        cache.close()
    metrics, more = _score_best(folder, preparation, session.save_tuned, session.ranks)
    split = task.validation_splits[0]
    results = session.results(task.name, split, metrics, len(data.examples(split))) | more
    results |= {"baselines": dict(baselines), "data": data.description()}
    results |= {"plan": preparation.plan}
    if run.monitor is not None and session.best is not None:
        results["monitored"] = {run.monitor: session.best}
    if start is not None and start.source:
        results["imported"] = dict(start.source)
    folder.write_results(results)
    session.close(results)
    return results


def _filling(ranks: Ranks) -> Ranks:
    """The processes that fill a cache together: those of one machine, which share its files."""
    return ranks if place().machines == 1 else ALONE


def _score_best(
    folder: RunFolder, preparation: Preparation, save_tuned: Callable[[], None], ranks: Ranks
) -> tuple[dict[str, float], Results]:
    """Score the best checkpoint on the validation splits, and on a test file that was named."""
    run, module = preparation.run, preparation.module
    best = load_checkpoint(folder.path)
    validated = module.validated(best.weights)  # before what that depends on is changed
    module.phases, module.caches = None, {}  # answers are those of the plain encoder
    best.load_into(module)
    module.decision = dict(best.decision)
    module.to(pick_device(run.trainer.accelerator))
    scorer = Scorer(module, module.task, preparation.data, best.digest, ranks, validated)
    if scorer.tune() != best.decision:
        save_tuned()
        if is_first_process():  # which alone writes it, and what the answers are of
            scorer = dataclasses.replace(scorer, checkpoint=load_checkpoint(folder.path).digest)
    metrics, more = score_splits(scorer, folder, module.task.validation_splits)
    if run.test is not None:
        (split,) = module.task.test_splits
        more["test"] = _score_test(scorer, folder, split)
        more["predictions"][split] = dataclasses.asdict(scorer.origin(split))
    warn_of_other_answers(folder, scorer.checkpoint)
    return metrics, more


def _score_test(scorer: Scorer, folder: RunFolder, split: str) -> Results:
    """Answer the test file that was named; score it if it has labels."""
    answers = scorer.answers(split)
    examples = scorer.data.examples(split)
    write_answers(scorer.task, folder, split, answers, scorer.origin(split), examples)
    labelled = all(example.label is not None for example in examples)
    metrics = scorer.task.score(answers) if labelled else {}
    skipped = scorer.task.skipped(split)
    return {
        "metrics": metrics,
        "examples": len(answers),
        **({"skipped": skipped} if skipped else {}),
    }
