"""Pretraining: the right loss and gradients at masked places, the right metrics, every variant."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from finetune import jobs as runs
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import GATED_ACTIVATIONS, NORM_POSITIONS, POSITIONS
from finetune.encoder.cost import forward_flops_per_token, unread_flops
from finetune.encoder.feedforward import ACTIVATIONS
from finetune.encoder.scores import SCORES
from finetune.errors import DataError
from finetune.jobs.session import Session
from finetune.metrics.semantics import TOKEN_ACCURACIES
from finetune.runs.settings import PretrainRun
from finetune.settings import fields as settings
from finetune.text.corpus.corpus import Corpus
from finetune.text.corpus.masking import MaskingConfig
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import LoaderConfig
from finetune.training.loop.data import CorpusData
from finetune.training.loop.pretrainer import Pretrainer, masked_lm_metrics
from finetune.training.optimizer import make_optimizer

Batch = dict[str, torch.Tensor]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def pretrainer(tokenizer: Tokenizer, **encoder: Any) -> Pretrainer:
    torch.manual_seed(0)
    config = EncoderConfig(vocab_size=tokenizer.vocab_size, **SIZES | encoder)
    return Pretrainer(Encoder(config))


@pytest.fixture
def corpus_data(blocks: Corpus, tokenizer: Tokenizer) -> CorpusData:
    loader = LoaderConfig(batch_size=5)
    return CorpusData(blocks, tokenizer, MaskingConfig(), loader, seed=1)


def all_places(module: Pretrainer, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of every place (B * T, V), and labels with -100 where nothing is masked (B * T,)."""
    logits = module.head(module.encoder(batch).last_hidden_state.flatten(0, 1))
    labels = torch.full((batch["input_ids"].numel(),), -100)
    labels[batch["positions"]] = batch["labels"]
    return logits, labels


@pytest.mark.parametrize("tied", [True, False])
def test_masked_places_alone_give_the_loss_and_gradients_of_all_places(
    tied: bool, corpus_data: CorpusData, tokenizer: Tokenizer
) -> None:
    module = pretrainer(tokenizer, tie_word_embeddings=tied).eval()  # no dropout
    batch = next(iter(corpus_data.train_dataloader()))
    loss = module.training_step(batch, 0)["loss"]
    loss.backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    expected = F.cross_entropy(*all_places(module, batch), ignore_index=-100)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-5)


def direct_metrics(module: Pretrainer, data: CorpusData) -> dict[str, float]:
    """Every masked token of the validation blocks weighs the same."""
    losses, rights = [], []
    for batch in data.val_dataloader():
        logits, labels = all_places(module, batch)
        masked = labels != -100
        losses += F.cross_entropy(logits[masked], labels[masked], reduction="none").tolist()
        rights += (logits[masked].argmax(-1) == labels[masked]).tolist()
    mean = math.fsum(losses) / len(losses)
    accuracy = sum(rights) / len(rights)
    return {"loss": mean, "masked_accuracy": accuracy, "perplexity": math.exp(mean)}


@torch.no_grad()
def test_metrics_are_means_over_masked_tokens(
    corpus_data: CorpusData, tokenizer: Tokenizer
) -> None:
    module = pretrainer(tokenizer).eval()
    counts = {len(batch["labels"]) for batch in corpus_data.val_dataloader()}
    assert len(counts) > 1  # or a mean over batches would do
    expected = direct_metrics(module, corpus_data)
    assert masked_lm_metrics(module, corpus_data.val_dataloader()) == pytest.approx(expected)
    assert masked_lm_metrics(module, []) == {}
    unknown = {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    unknown |= {name: torch.empty(0, dtype=torch.long) for name in ("positions", "labels")}
    with pytest.raises(DataError, match="expected tokens to predict in the validation blocks"):
        masked_lm_metrics(module, [unknown])


@torch.no_grad()
def test_validation_logs_the_metrics_of_the_validation_blocks(
    corpus_data: CorpusData, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, logged = pretrainer(tokenizer).eval(), []
    monkeypatch.setattr(module, "log_validation", logged.append)
    for _ in range(2):  # the second one starts anew
        module.on_validation_epoch_start()
        for number, batch in enumerate(corpus_data.val_dataloader()):
            module.validation_step(batch, number)
        module.on_validation_epoch_end()
    expected = {f"val/{name}": v for name, v in direct_metrics(module, corpus_data).items()}
    assert logged == [pytest.approx(expected)] * 2


def test_an_encoder_that_knows_frequencies_only_stands_at_the_unigram_entropy(
    blocks: Corpus, tokenizer: Tokenizer
) -> None:
    counts = np.bincount(
        np.concatenate([block.input_ids for block in blocks.train]), minlength=tokenizer.vocab_size
    ).astype(float)
    counts[list(tokenizer.special_ids)] = 0
    module = pretrainer(tokenizer, tie_word_embeddings=False)
    with torch.no_grad():
        module.head.decoder.weight.zero_()  # type: ignore[union-attr]
        frequencies = torch.from_numpy(counts / counts.sum()).float()
        module.head.bias.copy_(frequencies.clamp(min=1e-9).log())  # type: ignore[operator]
    everything = MaskingConfig(mask_rate=1.0)
    loader = LoaderConfig(batch_size=8)
    data = CorpusData(blocks, tokenizer, everything, loader, seed=1)
    metrics = masked_lm_metrics(module, data.train_dataloader())
    assert metrics["loss"] == pytest.approx(blocks.statistics.unigram_entropy, rel=0.01)


VARIANTS: list[dict[str, Any]] = [
    {},
    *({"attention_score": name} for name in SCORES),
    *({"position": name} for name in POSITIONS),
    *({"norm_position": name} for name in NORM_POSITIONS),
    *({"hidden_act": name} for name in ACTIVATIONS | GATED_ACTIVATIONS),
    {"causal": True},
    {"causal": True, "position": "none", "documents": "separate"},
    {"tie_word_embeddings": False},
    {"embedding_size": 8},
    {"embedding_size": 24, "tie_word_embeddings": False},
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": True, "attention_score": "additive", "position": "rotary"},
    {"type_vocab_size": 0},
    {"documents": "separate"},
    {"documents": "separate", "position": "rotary", "attention_score": "bilinear"},
]


def name_of(variant: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in variant.items()) or "bert"


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_every_variant_trains_from_a_yaml(
    variant: dict[str, Any],
    corpus: Path,
    tokenizer: Tokenizer,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Session, "_ceiling", lambda self: None)  # half a second of products
    documents = variant.get("documents", "joined")
    encoder = SIZES | {name: value for name, value in variant.items() if name != "documents"}
    tokenizer.save(tmp_path / "vocabulary")
    given = {
        "corpus": [str(corpus)],
        "out": str(tmp_path / "run"),
        "tokenizer": str(tmp_path / "vocabulary"),
        "cache_dir": str(tmp_path_factory.getbasetemp() / "variants"),
        "encoder": encoder,
        "data": {"max_length": 16, "documents": documents, "validation_fraction": 0.1},
        "loader": {"batch_size": 32},
        "optimizer": {"learning_rate": 0.01},
        "schedule": {"schedule": "constant", "warmup_ratio": 0.0},
        "length": {"max_steps": 8},
        "trainer": {"log_every_steps": 1, "validate_every_steps": 8, "progress": False},
        "tracking": {"wandb": False},
    }
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(given))  # JSON is YAML
    run = settings.read(PretrainRun, config)
    results = runs.pretrain(run)
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(losses) == 8
    assert all(map(math.isfinite, losses))
    assert np.mean(losses[-3:]) < losses[0]
    assert math.isfinite(results["metrics"]["loss"])
    causal = bool(variant.get("causal"))
    name, other = TOKEN_ACCURACIES[causal], TOKEN_ACCURACIES[not causal]
    assert 0 <= results["metrics"][name] <= 1
    assert all(f"train/{name}" in line for line in lines if "train/loss" in line)
    assert any(f"val/{name}" in line for line in lines)
    assert not any(key.endswith(other) for line in lines for key in line)


@pytest.mark.parametrize(
    ("score", "position", "norm", "causal", "separate"),
    list(product(SCORES, POSITIONS, NORM_POSITIONS, (False, True), (False, True))),
)
def test_variants_train_in_every_combination(
    score: str,
    position: str,
    norm: str,
    causal: bool,
    separate: bool,
    combination_batches: Callable[..., list[Batch]],
    tokenizer: Tokenizer,
) -> None:
    module = pretrainer(
        tokenizer, attention_score=score, position=position, norm_position=norm, causal=causal
    )
    optimizer = make_optimizer(module.layers(), module.optimizer_config)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    batches, losses = combination_batches(causal, separate), []
    for number, batch in enumerate([batches[0], *batches, batches[0]]):
        loss = module.training_step(batch, number)["loss"]
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def combination_batches(
    blocks: Corpus, tokenizer: Tokenizer
) -> Callable[[bool, bool], list[Batch]]:
    def make(causal: bool, separate: bool) -> list[Batch]:
        loader = LoaderConfig(batch_size=16)
        data = CorpusData(
            blocks, tokenizer, MaskingConfig(), loader, seed=1, causal=causal, separate=separate
        )
        dataset = data.training_set(0)
        return [dataset[indices] for indices in data.order(0)[:3]]

    return make


@pytest.mark.parametrize(("causal", "share"), [(False, 0.4), (True, 1.0)])
def test_the_arithmetic_of_a_step_is_that_of_the_masks(
    causal: bool,
    share: float,
    pretraining: Callable[..., PretrainRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules: list[Pretrainer] = []

    def keep(session: Session, *args: Any, **more: Any) -> None:
        modules.append(session.module)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "train", keep)
    encoder = EncoderConfig(**SIZES, causal=causal)
    run = pretraining("run", encoder=encoder, masks=MaskingConfig(mask_rate=0.4))
    with pytest.raises(KeyboardInterrupt):
        runs.pretrain(run)
    config = modules[0].encoder.config
    expected = forward_flops_per_token(config, 16, share) - unread_flops(config, 16, share)
    assert modules[0].flops_per_token(16) == 3 * expected
