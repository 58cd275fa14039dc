"""Fine-tuning: the head's loss, logits in the examples' order, and the task's own metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

from finetune.encoder import Dropout, Encoder, EncoderConfig
from finetune.encoder.cost import training_flops_per_token
from finetune.errors import ConfigError
from finetune.heads import Classification, HeadConfig, MaskedLM, Regression, states_for
from finetune.jobs.pretraining import with_dropout
from finetune.task.interface import Example, Task
from finetune.text.features.pairs import Features, collate
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.answering import UnitBatches, in_order, is_degenerate, predict
from finetune.training.config import LoaderConfig, RegularizationConfig
from finetune.training.loop.finetuner import FineTuner, Scored
from finetune.training.loop.task_data import TaskData
from finetune.training.optimizer import OptimizerConfig
from finetune.training.regularization import symmetric_kl
from tasks.glue.task import glue_task
from tests.made.nets import tiny_config

CONFIG = tiny_config(max_position_embeddings=16)


@pytest.fixture
def task_data(data: Path, tokenizer: Tokenizer, tmp_path: Path) -> TaskData:
    task, loader = glue_task("sst2", data), LoaderConfig(batch_size=7)
    return TaskData(task, tokenizer, loader, max_length=16, seed=1, cache_dir=tmp_path)


def fine_tuner(task: Any, head: nn.Module | None = None, **more: Any) -> FineTuner:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG)
    return FineTuner(encoder, head or task.head(CONFIG, HeadConfig()), task, **more)


def one_by_one(module: FineTuner, features: Sequence[Features]) -> np.ndarray[Any, Any]:
    """Logits of each example alone, without padding."""
    module.eval()
    with torch.no_grad():
        rows = [module(collate(features, [number], 0)) for number in range(len(features))]
    return torch.cat(rows).numpy()


def test_logits_go_back_into_the_examples_order() -> None:
    logits = [torch.tensor([[3.0], [0.0]]), torch.tensor([[2.0], [1.0], [4.0]])]
    order = [torch.tensor([3, 0]), torch.tensor([2, 1, 4])]
    assert in_order(logits, order).tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert in_order(logits, order).dtype == np.float32
    flat = in_order([batch.squeeze(-1) for batch in logits], order)
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("pooling", ["cls", "mean", "concat"])
def test_a_prediction_does_not_depend_on_its_batch(pooling: str, task_data: TaskData) -> None:
    head = Classification(CONFIG, HeadConfig(pooling), 2)
    module = fine_tuner(task_data.task, head).train()
    logits = predict(module, task_data.loader("validation"))
    assert not module.training
    assert logits.shape == (30, 2)
    expected = one_by_one(module, task_data.features("validation"))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1, CONFIG.num_hidden_layers])
def test_mixed_layers_over_a_frozen_part_are_those_of_the_encoder(
    depth: int, task_data: TaskData
) -> None:
    head = Classification(CONFIG, HeadConfig("mean", layers="mix"), 2)
    module = fine_tuner(task_data.task, head).eval()
    batch = next(one for one in task_data.loader("validation") if "attention_mask" in one)
    expected = states_for(head, module.encoder, batch)
    module.phases = SimpleNamespace(frozen_depth=depth)  # type: ignore[assignment]
    states = module.hidden(batch)
    seen = batch["attention_mask"]
    torch.testing.assert_close(states[:, seen], expected[:, seen], atol=1e-5, rtol=0)
    module(batch).sum().backward()
    trained = [one.attention.output.weight.grad is not None for one in module.encoder.blocks]
    assert trained == [number >= depth for number in range(CONFIG.num_hidden_layers)]


@pytest.mark.parametrize("layers", ["last", "mix"])
def test_blocks_above_a_frozen_part_know_which_text_is_the_question(
    layers: str, task_data: TaskData
) -> None:
    config = tiny_config(local_attention=1, global_every=2, global_tokens="question")
    head = Classification(config, HeadConfig("mean", layers=layers), 2)
    module = FineTuner(Encoder(config), head, task_data.task).eval()
    batch = {
        "input_ids": torch.randint(5, 20, (2, 12)),
        "token_type_ids": (torch.arange(12) >= 4).long().repeat(2, 1),
    }
    expected = states_for(head, module.encoder, batch)
    module.phases = SimpleNamespace(frozen_depth=1)  # type: ignore[assignment]
    torch.testing.assert_close(module.hidden(batch), expected, atol=1e-5, rtol=0)


def test_a_prediction_of_numbers_is_one_number_an_example(task_data: TaskData) -> None:
    module = fine_tuner(task_data.task, Regression(CONFIG, HeadConfig()))
    logits = predict(module, task_data.loader("validation"))
    assert logits.shape == (30,)
    expected = one_by_one(module, task_data.features("validation"))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_the_loss_is_the_heads(task_data: TaskData) -> None:
    batch = next(iter(task_data.train_dataloader()))
    module = fine_tuner(task_data.task).eval()
    expected = F.cross_entropy(module(batch), batch["labels"])
    torch.testing.assert_close(module.training_step(batch, 0)["loss"], expected)
    module = fine_tuner(task_data.task, Regression(CONFIG, HeadConfig())).eval()
    expected = (module(batch) - batch["labels"]).square().mean()
    torch.testing.assert_close(module.training_step(batch, 0)["loss"], expected)


@torch.no_grad()
def validated(module: FineTuner, loaders: list[Any]) -> dict[str, float]:
    """What a validation logs."""
    logged: list[dict[str, float]] = []
    module.log_validation = logged.append  # type: ignore[method-assign,assignment]
    module.eval()
    for _ in range(2):  # the second one starts anew
        module.on_validation_epoch_start()
        for split, loader in enumerate(loaders):
            for number, batch in enumerate(loader):
                module.validation_step(batch, number, split)
        module.on_validation_epoch_end()
    assert logged[0] == pytest.approx(logged[1])
    return logged[0]


def test_validation_gives_the_tasks_own_scores(task_data: TaskData) -> None:
    task, examples = task_data.task, task_data.examples("validation")
    features = task_data.features("validation")
    module = fine_tuner(task, validation={"validation": Scored(examples, features)})
    logged = validated(module, task_data.val_dataloader())
    logits = one_by_one(module, features)
    answers = task.answers(logits, examples, features)
    expected = {f"val/{k}": v for k, v in task.score(answers).items()}
    labels = torch.tensor([f.label for f in features])
    loss = F.cross_entropy(torch.from_numpy(logits), labels)  # every example weighs the same
    assert logged == pytest.approx({"val/loss": loss.item(), **expected}, rel=1e-5)


class Watcher(pl.Callback):
    """A user's callback: it notes a value at each of the hooks of a validation's end."""

    def __init__(self) -> None:
        self.at_epoch_end: list[float] = []
        self.at_end: list[float] = []

    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.at_epoch_end.append(float(trainer.callback_metrics["val/loss"]))

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.at_end.append(float(trainer.callback_metrics["val/loss"]))


def test_every_validation_hook_of_a_callback_sees_this_epochs_metrics(task_data: TaskData) -> None:
    watcher, logged = Watcher(), list[float]()
    module = fine_tuner(task_data.task, optimizer=OptimizerConfig(learning_rate=1e-2))
    log = module.log_validation

    def noted(values: Mapping[str, float]) -> None:
        logged.append(values["val/loss"])
        log(values)

    module.log_validation = noted  # type: ignore[method-assign]
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        callbacks=[watcher],
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=task_data)
    assert len(set(logged)) == 3
    assert watcher.at_epoch_end == pytest.approx(logged)
    assert watcher.at_end == pytest.approx(logged)


class Sum(Task):
    """A task of two validation splits whose score is the sum of the predictions."""

    name, monitor, labels = "sum", "sum", ()

    def __init__(self) -> None:
        self.tuned_on: list[int] = []
        """How many answers each time."""

    def tune(self, answers: Sequence[dict[str, Any]]) -> dict[str, float]:
        self.tuned_on.append(len(answers))
        return {}

    def answers(
        self, logits: Any, examples: Sequence[Example], features: Sequence[Features]
    ) -> list[dict[str, Any]]:
        return [
            {"id": example.id, "prediction": float(value)}
            for value, example in zip(logits, examples, strict=True)
        ]

    def score(self, answers: Sequence[dict[str, Any]]) -> dict[str, float]:
        return {"sum": sum(answer["id"] * answer["prediction"] for answer in answers)}


def test_further_splits_are_logged_under_their_names() -> None:
    rows = [[2, 5, 6, 3], [2, 7, 3], [2, 8, 9, 10, 3], [2, 11, 3], [2, 12, 13, 3]]
    features = [Features(ids, [0] * len(ids), float(len(ids))) for ids in rows]
    splits = {"matched": [0, 1, 2], "mismatched": [3, 4]}
    examples = {
        split: [Example(number, ("",)) for number in range(len(numbers))]
        for split, numbers in splits.items()
    }
    task = Sum()
    parts = {split: [features[n] for n in numbers] for split, numbers in splits.items()}
    scored = {split: Scored(examples[split], part) for split, part in parts.items()}
    module = fine_tuner(task, Regression(CONFIG, HeadConfig()), validation=scored)
    loaders = [
        [UnitBatches(part, 0)[np.array([number])] for number in reversed(range(len(part)))]
        for part in parts.values()
    ]
    logged = validated(module, loaders)
    values = {split: one_by_one(module, part) for split, part in parts.items()}
    sums = {split: float(np.arange(len(v)) @ v) for split, v in values.items()}
    lengths = np.array([4.0, 3.0, 5.0])
    assert logged == pytest.approx(
        {
            "val/loss": np.mean((values["matched"] - lengths) ** 2),
            "val/sum": sums["matched"],
            "val/mismatched/sum": sums["mismatched"],
        },
        rel=1e-4,
        abs=1e-6,
    )
    assert set(task.tuned_on) == {3}  # the other split has no part in it


def test_a_run_has_collapsed_if_it_gives_one_answer_only() -> None:
    def answers(*predictions: Any) -> list[dict[str, Any]]:
        return [{"id": n, "prediction": value} for n, value in enumerate(predictions)]

    assert is_degenerate(answers("yes", "yes", "yes"))
    assert is_degenerate(answers(2.5, 2.5))
    assert not is_degenerate(answers("yes", "no", "yes"))
    assert not is_degenerate(answers("yes"))  # of one example nothing can be said
    assert not is_degenerate([])


def test_a_steps_arithmetic_leaves_out_what_is_frozen_and_kept(data: Path) -> None:
    module = fine_tuner(glue_task("sst2", data))
    whole = training_flops_per_token(CONFIG, 8, one_token=True)
    assert module.flops_per_token(8.2) == whole

    phases: Any = SimpleNamespace(frozen_depth=1, prefix_is_original=True)
    module.phases = phases
    computed = module.flops_per_token(8.0)
    caches: Any = {"train": SimpleNamespace(depths=(1,))}
    module.caches = caches
    kept = module.flops_per_token(8.0)
    phases.prefix_is_original = False
    assert module.flops_per_token(8.0) == computed
    assert kept < computed < whole
    phases.prefix_is_original = True
    module.caches = {"dev": caches["train"]}  # no training step reads them
    assert module.flops_per_token(8.0) == computed


def test_a_process_without_validation_examples_needs_no_numbers_of_them(data: Path) -> None:
    """Of several processes, where the frozen states are cached and the split is one batch."""
    module = fine_tuner(glue_task("sst2", data))
    caches: Any = {"train": object()}
    module.caches = caches
    device = torch.device("cpu")
    assert module._apply_batch_transfer_handler({}, device) == {}
    batch = {"index": torch.tensor([3])}
    moved = module._apply_batch_transfer_handler(batch, device)
    assert module._index[0] is moved["index"]


def shouting(module: FineTuner) -> FineTuner:
    """Its logits are large: no two batches have nearly the same loss."""
    with torch.no_grad():
        for parameter in module.head.parameters():
            parameter.mul_(50)
    return module


def test_the_validation_loss_weighs_each_labelled_example_the_same(task_data: TaskData) -> None:
    examples, features = task_data.examples("validation"), task_data.features("validation")
    scored = {"validation": Scored(examples, features)}
    module = shouting(fine_tuner(task_data.task, validation=scored))
    made = UnitBatches(features, 0)
    parts = [made[np.arange(start, stop)] for start, stop in ((0, 1), (1, 25), (25, 30))]
    parts[0]["labels"][:], parts[1]["labels"][:] = 1, 0
    parts[2]["labels"][1:] = -100  # of the last five, one is labelled
    logged = validated(module, [parts])
    logits = torch.from_numpy(one_by_one(module, features))
    labels = torch.cat([part["labels"] for part in parts])
    expected = F.cross_entropy(logits, labels, ignore_index=-100).item()
    means = [F.cross_entropy(module(part), part["labels"], ignore_index=-100) for part in parts]
    assert abs(torch.stack(means).mean().item() - expected) > 0.01
    assert logged["val/loss"] == pytest.approx(expected, rel=1e-5)


def test_r_drop_compares_two_passes_of_different_dropout(task_data: TaskData) -> None:
    regularization = RegularizationConfig(r_drop=3.0)
    module = shouting(fine_tuner(task_data.task, regularization=regularization)).train()
    batch = next(iter(task_data.train_dataloader()))
    torch.manual_seed(5)
    logits = (module(batch), module(batch))
    first, second = (F.cross_entropy(one, batch["labels"]) for one in logits)
    assert symmetric_kl(*logits) > 0.001
    torch.manual_seed(5)
    loss = module.training_step(batch, 0)["loss"]
    expected = (first + second + 3.0 * symmetric_kl(*logits)) / 2
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("where", ["meta", torch.float64])
def test_the_pretrained_weights_go_where_the_trained_ones_go(
    where: Any, task_data: TaskData
) -> None:
    module = fine_tuner(task_data.task, regularization=RegularizationConfig(l2_sp=0.1)).to(where)
    names = dict(module.encoder.named_parameters())
    assert module._pretrained.keys() == names.keys()
    for name, weight in module._pretrained.items():
        assert (weight.device, weight.dtype) == (names[name].device, names[name].dtype)
        names[name].grad = torch.zeros_like(names[name])
    module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))


def test_one_dropout_for_the_encoder_is_that_of_every_part() -> None:
    of_awd_lstm = {"weight_dropout_prob", "word_dropout_prob", "locked_dropout"}  # set one by one
    names = {field.name for field in dataclasses.fields(EncoderConfig) if "dropout" in field.name}
    names -= of_awd_lstm
    assert len(names) == 3
    settings = dataclasses.replace(CONFIG, **dict.fromkeys(names, 0.4))
    chosen = with_dropout(settings, 0.05)
    parts = {
        name: part for name, part in Encoder(chosen).named_modules() if isinstance(part, Dropout)
    }
    assert parts.pop("embeddings.word_dropout").p == 0
    assert {part.p for part in parts.values()} == {0.05}
    assert chosen.attention_probs_dropout_prob == 0.05
    assert with_dropout(settings, None) == settings


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_pretrained_pooler_starts_afresh_with_the_blocks_above_it(
    blocks: int, task_data: TaskData
) -> None:
    pooler = {"weight": torch.full((16, 16), 0.5), "bias": torch.full((16,), 0.5)}
    head = Classification(CONFIG, HeadConfig("cls"), 2)
    head.start_from(pooler)
    module = fine_tuner(
        task_data.task, head, regularization=RegularizationConfig(reinit_blocks=blocks)
    )
    weight, bias = module.head.layers[0].weight, module.head.layers[0].bias  # type: ignore[union-attr, index]
    if blocks == 0:
        assert torch.equal(weight, pooler["weight"])
    else:
        assert float(weight.detach().std()) == pytest.approx(CONFIG.initializer_range, rel=0.2)
        assert not bias.any()


def test_cached_states_are_read_without_a_look_at_the_batch_on_the_device(
    task_data: TaskData,
) -> None:
    """A look at numbers on a GPU waits for all that it has to do; `meta` refuses any look."""
    module = fine_tuner(task_data.task)
    cache: Any = SimpleNamespace(depths=(1,))
    module.caches, module.split = {"train": cache}, "train"
    module.phases = SimpleNamespace(prefix_is_original=True)  # type: ignore[assignment]
    batch = {"index": torch.tensor([3, 1]), "input_ids": torch.ones(2, 4, dtype=torch.int64)}
    moved = module._apply_batch_transfer_handler(batch, torch.device("meta"))
    assert moved["index"].is_meta
    for given in (moved, batch):  # the second as it came, without a Trainer
        found, rows = module._cached(given)
        assert found is cache
        assert rows.tolist() == [3, 1]


def causal_tuner(task: Any, weight: float, *, with_head: bool = True, **changes: Any) -> FineTuner:
    """A causal encoder with a task's head, and with its language-model head besides."""
    torch.manual_seed(0)
    encoder = Encoder(dataclasses.replace(CONFIG, causal=True, hidden_dropout_prob=0.0, **changes))
    lm_head = MaskedLM(encoder.config, encoder.embeddings.word_embeddings) if with_head else None
    head = task.head(encoder.config, HeadConfig(head_dropout=0.0))
    regularization = RegularizationConfig(lm_weight=weight)
    return FineTuner(encoder, head, task, regularization=regularization, lm_head=lm_head)


def test_the_language_models_loss_is_added_as_in_gpt(task_data: TaskData) -> None:
    tuner = causal_tuner(task_data.task, 0.5, attention_probs_dropout_prob=0.0).train()
    features = task_data.features("train")
    batch = collate(features, range(5), 0)
    assert "attention_mask" in batch
    alone = causal_tuner(task_data.task, 0.0, attention_probs_dropout_prob=0.0).train()
    classes = alone.training_step(batch, 0)["loss"]
    means = []
    lm_head = tuner._lm_head[0]
    assert lm_head is not None
    for number in range(5):  # each text by itself: every token from those before it
        ids = torch.tensor([[*map(int, features[number].input_ids)]])
        logits = lm_head(tuner.encoder({"input_ids": ids}).last_hidden_state[0, :-1])
        means.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))
    expected = classes + 0.5 * torch.stack(means).mean()
    loss = tuner.training_step(batch, 0)["loss"]
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    torch.autograd.backward(loss)
    words = tuner.encoder.embeddings.word_embeddings.weight.grad
    assert words is not None
    unseen = [number for number in range(len(words)) if number not in batch["input_ids"]]
    assert words[unseen].any()  # by way of the tied output weights
    assert not any(name.startswith("_lm") for name, _ in tuner.named_parameters())
    # All tokens are computed then, though the head reads the last one alone.
    assert tuner.flops_per_token(8) == training_flops_per_token(tuner.encoder.config, 8)
    assert alone.flops_per_token(8) < tuner.flops_per_token(8)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_language_models_loss_needs_no_trained_encoder(task_data: TaskData, depth: int) -> None:
    """From the frozen part on, as without one; in evaluation the last token alone is computed."""
    tuner = causal_tuner(task_data.task, 0.5, attention_probs_dropout_prob=0.0).train()
    batch = collate(task_data.features("train"), range(5), 0)
    expected = tuner.training_step(batch, 0)["loss"]
    phases: Any = SimpleNamespace(frozen_depth=depth, prefix_is_original=True)
    tuner.phases = phases
    torch.testing.assert_close(tuner.training_step(batch, 0)["loss"], expected)
    assert tuner.hidden(batch).shape[1] == batch["input_ids"].shape[1]
    assert tuner.eval().hidden(batch).shape[1] == 1


def test_a_language_models_loss_needs_a_causal_encoder_and_its_head(task_data: TaskData) -> None:
    with pytest.raises(ConfigError, match="lm_weight needs the language-model head"):
        causal_tuner(task_data.task, 0.5, with_head=False)
    with pytest.raises(ConfigError, match="lm_weight is for a causal encoder"):
        fine_tuner(task_data.task, regularization=RegularizationConfig(lm_weight=0.5))
