"""`--find-lr`: a learning-rate range test in place of the run; its curve is saved and drawn."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator

from finetune.checkpoints.seed_folders import RATE_CURVE
from finetune.errors import ConfigError
from finetune.runs.folder import RunFolder, note, say
from finetune.runs.opening import open_folder
from finetune.runs.results import Results
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.training.loop.data import OrderedData
from finetune.training.loop.freed_memory import keep_freed_memory
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.trainer import flush_denormals
from finetune.training.loop.workers import Batch
from finetune.training.lr_finder import STEPS, RateCurve, find_rate
from finetune.training.ranks import pick_device

WIDTH, HEIGHT = 80, 14
"""Columns of a plot, scale included, and its rows."""
MARGIN = 9  # columns of the scale


def check_search(run: PretrainRun | AdaptRun | FitRun) -> None:
    """Refuse a search for a rate in a run that is to be resumed.

    Raises:
        ConfigError: It is to be resumed.
    """
    if run.resume:
        raise ConfigError(
            "--find-lr tries rates on weights that a run starts from, not on those of a run that "
            "is resumed; remove --resume"
        )


def find(
    run: PretrainRun | AdaptRun | FitRun,
    folder: RunFolder,
    module: EncoderWithHead,
    data: OrderedData,
    task: str,
) -> Results:
    """Try learning rates on the training data, save and show the curve, and stop.

    A run that has begun in the folder is left as it is: only the curve is written beside it. In
    another folder config.yaml is written too, so that the run itself can begin there.

    Args:
        run: The settings.
        folder: RUN.
        module: As it would be trained; it is left as it was.
        data: Gives the training batches.
        task: What the run is called.

    Returns:
        `task`, `split`, `metrics` (none), `seed`, and `suggestion` as in RUN/rate_curve.json.

    Raises:
        DataError: There is nothing to train on.
        ConfigError: The run is to be resumed; or the folder holds something else than a run, or
            another process holds it.
    """
    check_search(run)
    trainer, parts = run.trainer, run.trainer.devices * run.loader.micro_batches
    flush_denormals()
    keep_freed_memory()
    note(f"trying {STEPS} learning rates")
    curve = find_rate(
        module,
        training_batches(data, parts),
        pick_device(trainer.accelerator),
        gradient_clip=trainer.gradient_clip,
        accumulate=parts,
        half_precision="16" in trainer.precision,
    )
    with folder.hold():
        if not folder.has_started:
            open_folder(folder, run, resume=False, overwrite=False)
        say(save_curve(folder, curve))
    results = {"task": task, "split": "train", "metrics": {}, "seed": run.seed}
    return results | {"suggestion": dataclasses.asdict(curve.suggestion)}


def left_to_first(run: PretrainRun | AdaptRun | FitRun, task: str) -> Results:
    """What the other processes of a run return: the first one alone tries rates."""
    return {"task": task, "split": "train", "metrics": {}, "seed": run.seed, "suggestion": None}


def training_batches(data: OrderedData, parts: int) -> Iterator[Batch]:
    """All training batches in the order of a run, epoch after epoch, without an end.

    The parts of a batch follow one another, as those of several processes stand side by side.
    """
    for epoch in itertools.count():
        yield from data.parts_loader(epoch, parts)


def save_curve(folder: RunFolder, curve: RateCurve) -> str:
    """Write RUN/rate_curve.json, whole or not at all.

    It holds `curve`: a list of `step`, `learning_rate` (of the topmost group), `loss`, `smoothed`;
    `ending`; and `suggestion`: `learning_rate`, `minimum`, `steepest` (rates or null), `reason`.

    Args:
        folder: RUN, which exists.
        curve: What was suggestion.

    Returns:
        The curve as text for a terminal, with the suggestion in words below.
    """
    content = {
        "curve": [
            {"step": step, "learning_rate": rate, "loss": loss, "smoothed": mean}
            for step, (rate, loss, mean) in enumerate(
                zip(curve.rates, curve.losses, curve.smoothed, strict=True)
            )
        ],
        "ending": curve.ending,
        "suggestion": dataclasses.asdict(curve.suggestion),
    }
    folder.write_files({RATE_CURVE: json.dumps(content, indent=2, allow_nan=False) + "\n"})
    return f"{plot(curve)}\n{_in_words(curve)}\nthe curve: {folder.rate_curve_file}"


def _in_words(curve: RateCurve) -> str:
    suggestion = curve.suggestion
    if suggestion.learning_rate is None:
        return f"no learning rate is suggested: {suggestion.reason}"
    at = suggestion.steepest
    steepest = "" if at is None else f" (steepest fall at {at:.1e})"
    return (
        f"suggested: --learning-rate {suggestion.learning_rate:.1e}, the topmost group's peak; "
        f"{suggestion.reason}{steepest}"
    )


def plot(curve: RateCurve, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Draw losses over rates, in ASCII.

    Where the loss explodes it leaves the picture by the top, so that its fall can be seen.

    Args:
        curve: With any number of losses.
        width: Columns at most, from 40.
        height: Rows of the picture itself, from 3.

    Returns:
        Lines without an end of line: `.` a loss, `*` the running mean, `^` either above the
        picture, and on the axis `M` the lowest mean and `S` the suggestion.
    """
    if not curve.losses:
        return "no loss was finite"
    bottom, top = _bounds(curve)
    columns = _columns(len(curve.losses), width - MARGIN - 2)
    rows = [[" "] * (columns[-1] + 1) for _ in range(height)]
    for values, sign in ((curve.losses, "."), (curve.smoothed, "*")):
        for column, value in zip(columns, values, strict=True):
            row = round((top - value) / (top - bottom) * (height - 1))
            rows[min(max(row, 0), height - 1)][column] = sign if row >= 0 else "^"
    scale = [""] * height
    scale[0], scale[-1] = _short(top), _short(bottom)
    lines = [
        f"{mark:>{MARGIN}} |{''.join(row)}".rstrip() for mark, row in zip(scale, rows, strict=True)
    ]
    return "\n".join([f"{'loss':>{MARGIN}}", *lines, *_axis(curve, columns)])


def _bounds(curve: RateCurve) -> tuple[float, float]:
    """Lowest loss, and the highest before the mean was lowest with a margin above."""
    lowest = min(range(len(curve.losses)), key=curve.smoothed.__getitem__)
    bottom = min(*curve.losses, *curve.smoothed)
    top = max(*curve.losses[: lowest + 1], *curve.smoothed[: lowest + 1])
    margin = max(0.2 * (top - bottom), 1e-3 * abs(top), 1e-12)
    return bottom, top + margin


def _columns(count: int, width: int) -> list[int]:
    """The column of each step; where the width allows it, one each."""
    last = min(count, width) - 1
    return [round(step * last / max(1, count - 1)) for step in range(count)]


def _short(number: float) -> str:
    return f"{number:.4g}"


def _axis(curve: RateCurve, columns: list[int]) -> list[str]:
    """The axis with its marks, and the first and the last rate below it."""
    line = ["-"] * (columns[-1] + 1)
    suggestion = curve.suggestion
    for sign, rate in (("M", suggestion.minimum), ("S", suggestion.learning_rate)):
        if rate is not None:
            near = min(
                range(len(curve.rates)), key=lambda step: abs(math.log(curve.rates[step] / rate))
            )
            line[columns[near]] = sign
    first, last = f"{curve.rates[0]:.0e}", f"{curve.rates[-1]:.0e}"
    ends = first + last.rjust(len(line) - len(first)) if len(line) > 2 * len(first) else first
    marks = "S suggested, M lowest mean" if suggestion.minimum is not None else ""
    pad = " " * (MARGIN + 1)
    legend = ". loss, * running mean" + (f", {marks}" if marks else "")
    return [f"{pad}+{''.join(line)}", f"{pad} {ends}", f"{pad} learning rate: {legend}"]
