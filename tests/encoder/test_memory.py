from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.cache import Cache
from finetune.encoder.cost import cost
from finetune.encoder.memory import Memory
from finetune.errors import ConfigError
from tests.encoder.test_relative import copy_xlnet, randomized, xlnet

Tiny = Callable[..., EncoderConfig]


@torch.no_grad()
def test_states_and_memory_are_those_of_xlnet(tiny: Tiny) -> None:
    config = tiny(position="relative", causal=True)
    ours, theirs = Encoder(config).eval(), xlnet(config, mem_len=6)
    copy_xlnet(theirs, ours)
    memory, mems = Memory(6), None
    for block in torch.randint(1, 50, (3, 2, 4)):
        expected = theirs(block, mems=mems, use_mems=True)
        mems = expected.mems
        hidden = ours._run(theirs.word_embedding(block), range(1, 3), None, None, memory=memory)
        torch.testing.assert_close(
            hidden.last_hidden_state, expected.last_hidden_state, atol=1e-5, rtol=1e-5
        )
        for boundary, states in memory.states.items():
            other = mems[boundary].transpose(0, 1)
            torch.testing.assert_close(states, other[:, -6:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "variant",
    [
        *({"position": name} for name in ("relative", "alibi", "rotary", "none")),
        {"position": "relative", "norm_position": "pre", "attention_score": "additive"},
        {"position": "rotary", "local_attention": 3, "global_every": 2},
        {"position": "alibi", "gradient_checkpointing": True, "norm_position": "output"},
    ],
    ids=str,
)
def test_blocks_with_a_long_memory_are_one_text(tiny: Tiny, variant: dict[str, Any]) -> None:
    encoder = randomized(Encoder(tiny(causal=True, memory=20, **variant)))
    ids, memory = torch.randint(1, 50, (2, 12)), Memory(20)
    encoder.train()  # without dropout
    parts = [
        encoder({"input_ids": part}, memory=memory).last_hidden_state
        for part in ids.split([4, 5, 3], dim=1)
    ]
    whole = encoder({"input_ids": ids}).last_hidden_state
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_only_the_last_tokens_are_remembered(tiny: Tiny) -> None:
    encoder = randomized(Encoder(tiny(causal=True, position="alibi", num_hidden_layers=1)))
    first, second = torch.randint(1, 50, (2, 1, 6))

    def after(block: torch.Tensor) -> torch.Tensor:
        memory = Memory(2)
        encoder({"input_ids": block}, memory=memory)
        assert memory.length == 2
        hidden: torch.Tensor = encoder({"input_ids": second}, memory=memory).last_hidden_state
        return hidden

    before = after(first)
    changed = first.clone()
    changed[0, :4] += 1
    assert torch.equal(after(changed), before)
    changed[0, 4] += 1
    assert not torch.equal(after(changed), before)


def test_no_gradient_reaches_the_block_before(tiny: Tiny) -> None:
    encoder, memory = Encoder(tiny(causal=True, position="relative")), Memory(4)
    words = encoder.embeddings.word_embeddings.weight
    for word in (7, 8, 9):  # the second block's states are joined with those of the first
        hidden = encoder({"input_ids": torch.full((1, 3), word)}, memory=memory).last_hidden_state
    hidden.sum().backward()
    assert words.grad is not None
    assert [bool(words.grad[word].any()) for word in (7, 8, 9)] == [False, False, True]


def test_a_mask_is_that_of_the_batch(tiny: Tiny) -> None:
    encoder = randomized(Encoder(tiny(causal=True, position="relative")))
    ids = torch.randint(1, 50, (1, 4))

    def second(mask: torch.Tensor | None) -> torch.Tensor:
        memory = Memory(4)
        encoder({"input_ids": ids}, memory=memory)
        batch = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
        hidden: torch.Tensor = encoder(batch, memory=memory).last_hidden_state
        return hidden

    everything = torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(second(everything), second(None))
    everything[0, 0] = False
    assert not torch.allclose(second(everything), second(None))


def test_a_batch_may_have_fewer_rows_than_the_one_before(tiny: Tiny) -> None:
    encoder = randomized(Encoder(tiny(causal=True, position="alibi")))
    ids, memory, alone = torch.randint(1, 50, (2, 3, 4)), Memory(4), Memory(4)
    encoder({"input_ids": ids[0]}, memory=memory)
    encoder({"input_ids": ids[0, :1]}, memory=alone)
    few = encoder({"input_ids": ids[1, :1]}, memory=memory).last_hidden_state
    expected = encoder({"input_ids": ids[1, :1]}, memory=alone).last_hidden_state
    torch.testing.assert_close(few, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "relative"}, "memory: expected a causal encoder"),
        ({"causal": True}, "got position 'learned'; choose relative, alibi, rotary or none"),
    ],
)
def test_what_cannot_have_a_memory_says_so(
    tiny: Tiny, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(memory=4, **changes)
    with pytest.raises(ConfigError, match=message):
        Encoder(tiny(**changes))({"input_ids": torch.ones(1, 2).long()}, memory=Memory(4))


def test_a_memory_beside_a_cache_is_refused(tiny: Tiny) -> None:
    encoder = Encoder(tiny(causal=True, position="alibi"))
    with pytest.raises(ConfigError, match="memory: expected no cache beside it"):
        encoder({"input_ids": torch.ones(1, 2).long()}, cache=Cache(2), memory=Memory(4))


def test_a_memory_costs_what_is_seen_and_projected(tiny: Tiny) -> None:
    plain = cost(tiny(causal=True, position="alibi"), 8)
    remembering = cost(tiny(causal=True, position="alibi", memory=8), 8)
    assert remembering["scores and mixing"].flops == 2 * plain["scores and mixing"].flops
    projected = remembering["attention projections"].flops
    assert projected == 1.5 * plain["attention projections"].flops
    assert sum(p.parameters for p in remembering.values()) == sum(
        p.parameters for p in plain.values()
    )
