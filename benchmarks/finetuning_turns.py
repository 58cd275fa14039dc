"""Fine-tuning MiniLM on GLUE, an epoch a turn, beside `transformers`' Trainer. Rows of `bench.py`.

The contestants are those of `finetuning.py`, on a sample of a task's rows and some of its
development rows. A turn's cost is seconds of an example, in the steps alone.
"""

from __future__ import annotations

from pathlib import Path

from finetuning_contestants import SETTINGS, Turn, ours, theirs
from finetuning_made import write_made_encoder, write_made_task
from part_files import sample_glue
from turns import LIMIT, OURS, Contest, Settings
from turns import Turn as TakeTurn

PADDED = "hf-default"
"""The contestant that pads every sequence, which takes ten times as long: it has fewer rows."""
DEVELOPMENT = 32
EVERY = 4
"""The limit multiplies one batch of so many."""


def contests(
    data: Path | None, encoder: Path | None, rows: dict[str, int], padded: int, rounds: int
) -> list[Contest]:
    """A contest for each task.

    Args:
        data: Folder with `glue_data/`; None: made sentences with SST-2's lengths.
        encoder: A Hugging Face folder; None: the installed MiniLM, or random weights.
        rows: Task -> examples of a turn.
        padded: Examples of a turn of the contestant that pads all of them.
        rounds: How many turns each has.
    """
    peers = {name: "finetuning_turns:turn" for name in (OURS, "hf-best", PADDED)}
    settings: Settings = {"data": data and str(data), "encoder": encoder and str(encoder)}
    return [
        Contest(
            f"fine-tuning, {task}" if data else "fine-tuning, made sentences",
            {**peers, LIMIT: "finetuning_turns:products"},
            unit="examples/s",
            rounds=rounds,
            settings={**settings, "task": task, "rows": count, "padded": padded},
        )
        for task, count in (rows if data else {"sst2": rows["sst2"]}).items()
    ]


def turn(settings: Settings) -> TakeTurn:
    """Make a turn of a contestant: seconds of an example."""
    one = _turn(settings)
    train = theirs if one.contestant in SETTINGS else ours
    import torch

    torch.set_num_threads(settings["threads"])
    return lambda: 1 / train(one)["examples_per_second"]


def _turn(settings: Settings) -> Turn:
    """Write the rows, and say what is to be trained."""
    folder, name, task = Path(settings["folder"]), settings["contestant"], settings["task"]
    count = settings["padded"] if name == PADDED else settings["rows"]
    source = Path(settings["data"]) if settings["data"] else write_made_task(folder, count)
    sample_glue(source, task, count, folder / "rows", development=DEVELOPMENT)
    encoder = settings["encoder"] or write_made_encoder(folder / "encoder")[0]
    out = str(folder / "run")
    return Turn(name, task, str(folder / "rows"), str(encoder), out, epochs=1)


def products(settings: Settings) -> TakeTurn:
    """Make a turn of the matrix products of the steps alone: seconds of an example."""
    from contest import prepare
    from products import Step, flops, products_turn

    from finetune.encoder import Encoder
    from finetune.text.features.pairs import length_batches
    from finetune.text.tokenizer.tokenizer import Tokenizer
    from finetune.training.loop.task_data import TaskData
    from tasks.glue.task import glue_task

    prepare(settings["threads"])
    one = _turn(settings)
    data = TaskData(glue_task(one.task, Path(one.data)), Tokenizer.load(one.encoder))
    lengths = data.lengths("train", training=True)
    batches = length_batches(lengths, one.batch_size, seed=0, epoch=0, shuffle=False)
    steps = [
        Step(len(rows), int(lengths[rows].max()), int(lengths[rows].sum())) for rows in batches
    ]
    config, some = Encoder.from_pretrained(one.encoder).config, steps[EVERY // 2 :: EVERY] or steps
    part = sum(flops(config, step) for step in some) / sum(flops(config, step) for step in steps)
    take = products_turn(config, some)
    return lambda: take() / part / len(lengths)
