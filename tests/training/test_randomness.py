"""The dropout of a step: keyed by seed, batch and process, and by nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from finetune.encoder import Encoder
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.randomness import seed_step
from tests.made.nets import tiny_config

CONFIG = tiny_config(
    vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)


def drawn_in_a_step(*, seed: int = 3, batch: int = 5, rank: int = 0) -> torch.Tensor:
    """What a module's dropout draws from as a step begins."""
    module = Pretrainer(Encoder(CONFIG), seed=seed)
    module.progress = lambda: 0.5
    optimizer = module.configure_optimizers()
    module._trainer = SimpleNamespace(  # type: ignore[assignment]
        optimizers=[optimizer],
        fit_loop=SimpleNamespace(total_batch_idx=batch),
        global_rank=rank,
        global_step=batch,
    )
    labels = torch.zeros(1, dtype=torch.int64)
    module.on_train_batch_start({"labels": labels}, 0)
    return torch.rand(64)


def test_each_process_drops_other_units() -> None:
    first = drawn_in_a_step()
    assert torch.equal(first, drawn_in_a_step())
    for other in ({"rank": 1}, {"batch": 6}, {"seed": 4}):
        assert not torch.equal(first, drawn_in_a_step(**other)), other


def test_every_part_of_the_key_counts() -> None:
    draws = []
    for key in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (1, 23, 0), (12, 3, 0)):
        seed_step(*key)
        draws.append(torch.rand(8).tolist())
    assert len({tuple(draw) for draw in draws}) == len(draws)
