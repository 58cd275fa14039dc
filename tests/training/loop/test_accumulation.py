"""One step over several batches and processes has the gradient of one batch that holds them all."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.plugins import MixedPrecision
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from finetune.encoder import Encoder
from finetune.heads import Classification, HeadConfig, MultiLabel, Regression, Span, SpanConfig
from finetune.text.corpus.corpus import Corpus
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import LoaderConfig, RegularizationConfig
from finetune.training.loop.accumulation import StepWeights, labelled
from finetune.training.loop.data import CorpusData, OrderedData
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.task_data import TaskData
from finetune.training.optimizer import OptimizerConfig
from finetune.training.schedules import ScheduleConfig
from finetune.training.unfreezing.phases import Phases
from finetune.training.unfreezing.plan import Pace
from finetune.training.unfreezing.policies import UnfreezeConfig, make_plan
from finetune.training.unfreezing.rates import RatePlan
from tasks.glue.task import glue_task
from tests.training.test_own_trainer import CONFIG, OWN

Batch = dict[str, Tensor]
STILL = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
HARDLY = OptimizerConfig(learning_rate=1e-30, weight_decay=0.0)
"""No weight moves, so every step has the gradient of the first weights."""
SIZES = (1, 4, 2, 3, 2)
"""Units of each batch: with two or three to a step the last step is short."""


class Gradients(pl.Callback):
    """Keeps the gradient of each step, as the optimizer used it, and the losses that are logged."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.losses: list[float] = []

    def keep(self, module: nn.Module) -> None:
        given = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        self.steps += [given] if given else []

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.keep(module)  # of the step before

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.keep(module)


class Losses(Logger):
    """Keeps `train/loss` of each step."""

    name, version = "losses", 0

    def __init__(self, kept: list[float]) -> None:
        super().__init__()
        self.kept = kept

    def log_hyperparams(self, *args: Any, **more: Any) -> None:
        """There are none."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.kept += [metrics["train/loss"]] if "train/loss" in metrics else []


class Tuner(FineTuner):
    """Its second pass over a batch gives other logits, as if dropout had drawn others."""

    passes = 0

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        self.passes = 0
        return super().training_step(batch, batch_idx)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        self.passes += 1
        return super().forward(batch) * (1.5 if self.passes == 2 else 1.0)


def batches(task: str) -> list[Batch]:
    """Batches of different sizes; in one of them a unit without a label."""
    random = torch.Generator().manual_seed(3)
    made = []
    for size in SIZES:
        batch = {"input_ids": torch.randint(5, 60, (size, 8), generator=random)}
        if task == "pretraining":
            places = torch.randperm(size * 8, generator=random)[: 2 * size * size].sort().values
            batch |= {"positions": places}
            batch |= {"labels": torch.randint(5, 60, (len(places),), generator=random)}
        elif task in ("regression", "multi_label"):
            shape = (size,) if task == "regression" else (size, 3)
            batch["labels"] = torch.randint(0, 2, shape, generator=random).float()
        else:
            shape = (size, 2) if task == "span" else (size,)
            batch["labels"] = torch.randint(0, 3, shape, generator=random)
        if task != "pretraining":
            batch["index"] = torch.arange(size)
        made.append(batch)
    if not made[1]["labels"].is_floating_point():
        made[1]["labels"][0] = -100
    return made


def union(parts: Sequence[Batch]) -> Batch:
    """One batch of all members."""
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if "positions" in whole:
        before = [0]
        for part in parts:
            before.append(before[-1] + part["input_ids"].numel())
        shifted = [part["positions"] + start for part, start in zip(parts, before, strict=False)]
        whole["positions"] = torch.cat(shifted)
    return whole


def module_for(task: str, **regularization: float) -> EncoderWithHead:
    torch.manual_seed(0)
    encoder = Encoder(STILL)
    if task == "pretraining":
        return Pretrainer(encoder, optimizer=HARDLY)
    settings: Any = HeadConfig("mean")
    head = {
        "classification": lambda: Classification(STILL, settings, 3, [0.5, 1.0, 2.0]),
        "regression": lambda: Regression(STILL, settings),
        "multi_label": lambda: MultiLabel(STILL, settings, 3),
        "span": lambda: Span(STILL, settings, SpanConfig()),
    }[task]()
    own: Any = dataclasses.make_dataclass("Own", ["train_split", "sequences_per_example"])(
        "train", 1
    )
    config: Any = RegularizationConfig(**regularization)
    tuner = Tuner(encoder, head, own, optimizer=HARDLY, regularization=config)
    tuner._pretrained = {name: torch.zeros_like(w) for name, w in tuner._pretrained.items()}
    return tuner


def gradients(module: EncoderWithHead, given: Sequence[Batch], **settings: Any) -> Gradients:
    """Train an epoch of these batches under a Trainer of one's own."""
    kept = Gradients()
    more = {**OWN, "max_epochs": 1, "enable_checkpointing": False, "logger": Losses(kept.losses)}
    loader = DataLoader(list(given), batch_size=None, shuffle=False)  # type: ignore[arg-type]
    pl.Trainer(callbacks=[kept], **more | settings).fit(module, loader)
    return kept


def assert_same(ours: Gradients, theirs: Gradients) -> None:
    assert len(ours.steps) == len(theirs.steps)
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=1e-5, msg=name)
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-6)


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]
CASES: list[tuple[str, dict[str, float]]] = [
    ("pretraining", {}),
    ("classification", {}),
    ("classification", {"label_smoothing": 0.1, "r_drop": 2.0, "l2_sp": 0.5}),
    ("regression", {}),
    ("multi_label", {}),
    ("span", {"l2_sp": 0.5}),
]


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize(("task", "regularization"), CASES)
def test_batches_of_a_step_have_the_gradient_of_their_union(
    task: str, regularization: dict[str, float], accumulate: int
) -> None:
    given = batches(task)
    parted = gradients(
        module_for(task, **regularization), given, accumulate_grad_batches=accumulate
    )
    steps = [union(given[at : at + accumulate]) for at in range(0, len(given), accumulate)]
    assert_same(parted, gradients(module_for(task, **regularization), steps))


def test_the_gradient_of_the_union_is_what_is_clipped() -> None:
    given, module = batches("pretraining"), module_for("pretraining")
    clipped = gradients(module, given, accumulate_grad_batches=3, gradient_clip_val=0.01)
    steps = [union(given[:3]), union(given[3:])]
    assert_same(clipped, gradients(module_for("pretraining"), steps, gradient_clip_val=0.01))


class Scaled(MixedPrecision):
    """The gradient scaler of fp16, without its rounding."""

    def forward_context(self) -> AbstractContextManager[None]:
        return nullcontext()


def test_a_scaled_loss_gives_the_gradient_of_the_union() -> None:
    def plugin() -> Scaled:
        return Scaled("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))

    given = batches("pretraining")
    module = module_for("pretraining")
    scaled = gradients(module, given, accumulate_grad_batches=2, plugins=plugin())
    steps = [union(given[at : at + 2]) for at in (0, 2, 4)]
    assert_same(scaled, gradients(module_for("pretraining"), steps, plugins=plugin()))


def test_one_batch_a_step_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without accumulation there is nothing to count and no pass over the gradients."""
    monkeypatch.setattr("finetune.training.loop.accumulation._added_up", None)
    monkeypatch.setattr(Tensor, "mul_", None)
    given, module = batches("pretraining"), module_for("pretraining")
    assert len(gradients(module, given).steps) == len(given)


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        (torch.tensor([1, -100, 0]), 2.0),
        (torch.tensor([[1, 2], [-100, -100]]), 1.0),
        (torch.tensor([0.5, 1.0]), 2.0),
        (torch.zeros(4, 3), 4.0),
        (torch.empty(0, dtype=torch.int64), 0.0),
    ],
)
def test_labels_are_counted_as_the_losses_count_them(labels: Tensor, count: float) -> None:
    assert float(labelled(labels)) == count


# One global batch, divided


class Course(pl.Callback):
    """The weights of a training at its end; and what was sent between processes in its steps."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.sent: list[list[str]] = []
        self.sums: list[int] = []
        """All-reduces in each step, DDP's own too."""
        self._sending: dict[str, Any] = {}
        self._in_batch: list[str] = []

    def on_before_backward(self, trainer: Any, *rest: Any) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._profile.start()

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self._profile.stop()
        events = [event.name for event in self._profile.events() or ()]
        self.sums.append(events.count("gloo:all_reduce"))

    def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
        self._in_batch = []
        if trainer.fit_loop.total_batch_idx == trainer.accumulate_grad_batches:  # after a first one
            for name in ("all_reduce", "broadcast", "all_gather", "broadcast_object_list"):
                self._sending[name] = getattr(torch.distributed, name)
                setattr(torch.distributed, name, self._noted(name))

    def _noted(self, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            self._in_batch.append(name)
            return self._sending[name](*arguments, **more)

        return call

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        self.sent += [list(self._in_batch)] if self._sending else []

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        for name, function in self._sending.items():
            setattr(torch.distributed, name, function)
        self.weights = {name: w.detach().clone() for name, w in module.named_parameters()}


def course(
    data: OrderedData, processes: int, micro_batches: int, *, gradual: bool = False
) -> tuple[list[float], Course]:
    """Train two epochs of a data module, as so many processes do; losses of the steps, and more."""
    torch.manual_seed(0)
    encoder, kept, losses = Encoder(STILL), Course(), list[float]()
    smooth = OptimizerConfig(learning_rate=1e-2, adam_epsilon=1e-3)  # else it enlarges rounding
    module: EncoderWithHead = Pretrainer(encoder, optimizer=smooth)
    if isinstance(data, TaskData):
        head = data.task.head(STILL, HeadConfig("mean"))
        module = FineTuner(encoder, head, data.task, optimizer=smooth)
    if gradual:
        unfreezing = UnfreezeConfig("gradual", phase_epochs=0.25)
        plan = make_plan(unfreezing, STILL.num_hidden_layers, 2)
        rates = RatePlan(plan, Pace(data.batches_per_epoch), ScheduleConfig("constant"))
        module.phases = Phases(rates, unfreezing)
    data.config.micro_batches = micro_batches
    strategy = "ddp_find_unused_parameters_true" if gradual else "ddp"
    more: dict[str, Any] = {"devices": processes, "strategy": strategy} if processes > 1 else {}
    settings = {**OWN, "max_epochs": 2, "enable_checkpointing": False, "logger": Losses(losses)}
    settings |= {"accumulate_grad_batches": micro_batches, "limit_val_batches": 0}
    trainer = pl.Trainer(callbacks=[kept], use_distributed_sampler=False, **settings | more)
    trainer.fit(module, datamodule=data)
    return losses, kept


def assert_same_course(
    ours: tuple[list[float], Course], theirs: tuple[list[float], Course]
) -> None:
    assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
    assert ours[1].weights.keys() == theirs[1].weights.keys()
    for name, weight in ours[1].weights.items():
        torch.testing.assert_close(weight, theirs[1].weights[name], atol=1e-5, rtol=0, msg=name)


@pytest.fixture
def divided(blocks: Corpus, tokenizer: Tokenizer, data: Path) -> dict[str, OrderedData]:
    """Data of both kinds, whose last batch has fewer examples than twelve parts."""
    loader = LoaderConfig(batch_size=43)
    texts = TaskData(glue_task("sst2", data), tokenizer, loader, max_length=16)
    corpus = CorpusData(blocks, tokenizer, loader=LoaderConfig(batch_size=59))
    for one in (texts, corpus):
        assert 0 < min(map(len, one.order(0))) < 12
    return {"fine-tuning": texts, "pretraining": corpus}


@pytest.mark.parametrize("kind", ["pretraining", "fine-tuning"])
@pytest.mark.parametrize("parts", [2, 3, 12])
def test_a_batch_may_be_divided_into_any_parts(
    kind: str, parts: int, divided: dict[str, OrderedData]
) -> None:
    """Four processes with three micro-batches have the twelve parts of one with twelve."""
    assert_same_course(course(divided[kind], 1, parts), course(divided[kind], 1, 1))


RANKS = """
import pickle
import sys
import torch
from tests.training.loop import test_accumulation as cases

class Own(cases.DataLoader):
    def __iter__(self):  # every second batch belongs to this process
        rank = torch.distributed.get_rank()
        return iter(self.dataset[rank::2])
    def __len__(self):
        return len(self.dataset) // 2

cases.DataLoader = Own
for accumulate in (1, 2):
    given = cases.batches("pretraining")
    found = cases.gradients(
        cases.module_for("pretraining"), [given[0], *given], devices=2, strategy="ddp",
        accumulate_grad_batches=accumulate, use_distributed_sampler=False,
    )
    rank = torch.distributed.get_rank()
    torch.save((found.steps, found.losses), f"{sys.argv[1]}-{accumulate}-{rank}")
with open(sys.argv[1] + ".pickle", "rb") as file:
    divided = pickle.load(file)
for kind, data in divided.items():
    for micro_batches in (1, 3):
        losses, course = cases.course(data, 2, micro_batches)
        path = f"{sys.argv[1]}-{kind}-{micro_batches}-{rank}"
        torch.save((losses, course.weights, course.sent), path)
losses, course = cases.course(divided["fine-tuning"], 2, 1, gradual=True)
torch.save((losses, course.weights, course.sums), f"{sys.argv[1]}-gradual-{rank}")
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[object], Path]:
    """Runs the script in two processes, once."""
    folder = tmp_path_factory.mktemp("ranks")

    def run(divided: object) -> Path:
        script, root = folder / "ranks.py", Path(__file__).parents[3]
        if not script.exists():
            script.write_text(RANKS)
            (folder / "found.pickle").write_bytes(pickle.dumps(divided))
            done = subprocess.run(
                [sys.executable, str(script), str(folder / "found")],
                env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
        return folder

    return run


def test_two_processes_have_the_gradient_of_one_with_their_batches(
    ranks: Callable[[object], Path], divided: dict[str, OrderedData]
) -> None:
    folder = ranks(divided)
    given = [batches("pretraining")[0], *batches("pretraining")]
    for accumulate in (1, 2):
        size = 2 * accumulate
        steps = [union(given[at : at + size]) for at in range(0, len(given), size)]
        expected = gradients(module_for("pretraining"), steps)
        for rank in (0, 1):
            found = Gradients()
            found.steps, found.losses = torch.load(folder / f"found-{accumulate}-{rank}")
            found.losses = found.losses or expected.losses  # the first process alone logs
            assert_same(found, expected)


@pytest.mark.parametrize("kind", ["pretraining", "fine-tuning"])
def test_two_processes_train_as_one_and_send_nothing_but_gradients(
    kind: str, ranks: Callable[[object], Path], divided: dict[str, OrderedData]
) -> None:
    expected = course(divided[kind], 1, 1)
    folder = ranks(divided)
    for micro_batches in (1, 3):
        for rank in (0, 1):
            found = Course()
            losses, found.weights, found.sent = torch.load(
                folder / f"found-{kind}-{micro_batches}-{rank}"
            )
            assert_same_course((losses or expected[0], found), expected)
            # After the first step, a net of this size is one piece.
            others, steps = [[]] * (micro_batches - 1), len(expected[0]) - 1
            assert found.sent == [*others, ["all_reduce"]] * steps


def test_what_is_frozen_is_not_looked_for_in_each_step(
    ranks: Callable[[object], Path], divided: dict[str, OrderedData]
) -> None:
    folder = ranks(divided)
    expected = course(divided["fine-tuning"], 1, 1, gradual=True)
    for rank in (0, 1):
        found = Course()
        losses, found.weights, sums = torch.load(folder / f"found-gradual-{rank}")
        assert_same_course((losses or expected[0], found), expected)
        # A phase begins with several pieces, as does a training.
        assert len(sums) == len(expected[0])
        assert sums.count(1) >= len(sums) - 4


@pytest.mark.parametrize("travel", [True, False])
def test_what_a_strategy_averages_over_processes_is_a_sum_again(travel: bool) -> None:
    """Adam would not notice another scale; clipping and the logged norm would."""
    weights, weight = StepWeights(), nn.Parameter(torch.zeros(1))
    trainer: Any = SimpleNamespace(world_size=2)
    weights.batches, weights._unit, weights.shared.travel = 1, 4.0, travel
    weights.shared.arrive(torch.tensor([8.0, 0.0, 0.0]))
    added_up = 3.0  # over both processes, of losses in units of 4
    weight.grad = torch.tensor([added_up if travel else added_up / 2])
    weights.divide([weight], trainer)
    assert weight.grad.item() == added_up * 4 / 8
