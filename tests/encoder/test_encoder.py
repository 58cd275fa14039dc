"""What holds for the whole encoder, in every variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder import block as blocks
from finetune.encoder.block import BLOCKS
from finetune.encoder.config import GATED_ACTIVATIONS, NORM_POSITIONS, POSITIONS
from finetune.encoder.feedforward import ACTIVATIONS
from finetune.encoder.norms import NORMS
from finetune.encoder.scores import SCORES
from finetune.errors import ConfigError

Tiny = Callable[..., EncoderConfig]
Batch = dict[str, Tensor]

# Each name of each table once, then the settings that are no names, then a mixture of all.
VARIANTS: list[dict[str, Any]] = [
    *({"attention_score": name} for name in SCORES),
    *({"position": name} for name in POSITIONS),
    *({"norm_position": name} for name in NORM_POSITIONS),
    *({"norm": name} for name in NORMS),
    {"residual": False},
    *({"hidden_act": name} for name in ACTIVATIONS | GATED_ACTIVATIONS),
    {"causal": True},
    {"type_vocab_size": 0},
    {"embedding_size": 8},
    {"local_attention": 2, "global_every": 2},
    {"norm_position": "pre", "first_attention_norm": False},
    *({"block": name} for name in BLOCKS if name != "transformer"),
    *({"block": name, "causal": True, "norm_position": "pre"} for name in ("lstm", "conv")),
    {"block": "conv", "conv_widths": (2, 7), "hidden_act": "reglu"},
    {"block": "lstm", "lstm_size": 12, "embedding_size": 8},
    {
        "position": "rotary",
        "norm_position": "pre",
        "hidden_act": "geglu",
        "type_vocab_size": 0,
        "first_attention_norm": False,
        "local_attention": 1,
        "global_every": 2,
        "local_rotary_theta": 100.0,
    },
    {
        "attention_score": "additive",
        "position": "rotary",
        "norm_position": "pre",
        "hidden_act": "swiglu",
        "causal": True,
        "type_vocab_size": 0,
        "embedding_size": 8,
    },
]

each_variant = pytest.mark.parametrize(
    "variant", VARIANTS, ids=lambda v: ",".join(map(str, v.values()))
)


def make(config: EncoderConfig) -> Encoder:
    return Encoder(config).eval()


def documents_mask(*lengths: int) -> Tensor:
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return documents[None, :, None] == documents[None, None, :]


@each_variant
def test_every_variant_learns_a_toy_task(tiny: Tiny, batch: Batch, variant: dict[str, Any]) -> None:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    encoder = Encoder(tiny(**dropout, **variant))
    model, labels = nn.ModuleList([encoder, nn.Linear(16, 2)]), torch.tensor([0, 1, 0])

    def loss() -> Tensor:
        logits = model[1](encoder(batch).last_hidden_state[:, 0])
        return nn.functional.cross_entropy(logits, labels)

    before = loss().item()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(40):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    model.eval()
    assert loss().item() < 0.2 * before


@each_variant
def test_every_parameter_gets_a_finite_gradient(
    tiny: Tiny, batch: Batch, variant: dict[str, Any]
) -> None:
    encoder = Encoder(tiny(**variant))
    batch["position_ids"] = torch.arange(20).repeat(3, 1)[:, :7]
    encoder(batch).last_hidden_state.square().mul(torch.randn(3, 7, 16)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@each_variant
def test_prefix_then_suffix_is_forward_bit_for_bit(
    tiny: Tiny, batch: Batch, variant: dict[str, Any]
) -> None:
    encoder = make(tiny(**variant))
    output = encoder(batch, output_hidden_states=True)
    for depth in range(3):
        hidden = encoder.prefix(batch, depth)
        assert torch.equal(hidden, output.hidden_states[depth])
        last = encoder.suffix(hidden, batch["attention_mask"], depth)
        assert torch.equal(last, output.last_hidden_state)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_cut_keeps_document_masks_and_position_ids(tiny: Tiny, position: str) -> None:
    encoder = make(tiny(position=position))
    batch = {
        "input_ids": torch.randint(1, 50, (1, 7)),
        "attention_mask": documents_mask(4, 3),
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2]]),
    }
    for depth in range(3):
        hidden = encoder.prefix(batch, depth)
        last = encoder.suffix(
            hidden, batch["attention_mask"], depth, position_ids=batch["position_ids"]
        )
        assert torch.equal(last, encoder(batch).last_hidden_state)


def test_the_cut_draws_the_same_dropout_as_forward(tiny: Tiny, batch: Batch) -> None:
    encoder = Encoder(tiny(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5))
    torch.manual_seed(1)
    whole = encoder(batch).last_hidden_state
    torch.manual_seed(1)
    cut = encoder.suffix(encoder.prefix(batch, 1), batch["attention_mask"], 1)
    assert torch.equal(cut, whole)


@each_variant
def test_a_padded_text_gives_the_same_as_alone(
    tiny: Tiny, batch: Batch, variant: dict[str, Any]
) -> None:
    encoder = make(tiny(**variant))
    together = encoder(batch).last_hidden_state
    for row, length in enumerate([7, 4, 2]):
        alone = {name: values[row : row + 1, :length] for name, values in batch.items()}
        del alone["attention_mask"]
        expected = encoder(alone).last_hidden_state[0]
        torch.testing.assert_close(together[row, :length], expected, atol=1e-5, rtol=1e-5)


@each_variant
def test_two_documents_in_a_block_do_not_see_each_other(
    tiny: Tiny, variant: dict[str, Any]
) -> None:
    encoder = make(tiny(**variant))
    ids = torch.randint(1, 50, (1, 7))
    block = {
        "input_ids": ids,
        "attention_mask": documents_mask(4, 3),
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2]]),
    }
    packed = encoder(block).last_hidden_state
    first, second = encoder({"input_ids": ids[:, :4]}), encoder({"input_ids": ids[:, 4:]})
    expected = torch.cat((first.last_hidden_state, second.last_hidden_state), dim=1)
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("causal", [True, False])
def test_a_later_token_changes_earlier_states_unless_causal(
    tiny: Tiny, batch: Batch, name: str, causal: bool
) -> None:
    encoder = make(tiny(attention_score=name, causal=causal))
    before = encoder(batch).last_hidden_state
    batch["input_ids"][0, 5] += 1
    after = encoder(batch).last_hidden_state
    assert torch.equal(before[0, :5], after[0, :5]) == causal
    assert not torch.allclose(before[0, 5:], after[0, 5:])
    assert torch.equal(before[1:], after[1:])


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("mask_for_each_query", [True, False])
def test_rows_that_may_see_nothing_give_no_nan(
    tiny: Tiny, batch: Batch, name: str, dropout: float, mask_for_each_query: bool
) -> None:
    encoder = Encoder(tiny(attention_score=name, attention_probs_dropout_prob=dropout))
    batch["attention_mask"][1] = False
    if mask_for_each_query:
        mask = batch["attention_mask"]
        batch["attention_mask"] = mask[:, :, None] & mask[:, None, :]
    hidden = encoder(batch).last_hidden_state
    hidden.square().sum().backward()
    assert hidden.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_a_mask_that_hides_nothing_equals_no_mask(tiny: Tiny, batch: Batch) -> None:
    encoder = make(tiny())
    batch["attention_mask"] = torch.ones(3, 7, dtype=torch.bool)
    with_mask = encoder(batch).last_hidden_state
    del batch["attention_mask"]
    torch.testing.assert_close(with_mask, encoder(batch).last_hidden_state, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_attention_maps_come_from_the_same_computation(tiny: Tiny, batch: Batch, name: str) -> None:
    encoder = make(tiny(attention_score=name))
    output = encoder(batch, output_attentions=True)
    assert [weights.shape for weights in output.attentions] == [(3, 2, 7, 7)] * 2
    plain = encoder(batch)
    torch.testing.assert_close(output.last_hidden_state, plain.last_hidden_state)
    assert plain.attentions is None
    assert plain.hidden_states is None


@each_variant
def test_gradient_checkpointing_changes_no_gradient(
    tiny: Tiny, batch: Batch, variant: dict[str, Any]
) -> None:
    dropout = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}
    plain = Encoder(tiny(**dropout, **variant))
    saving = Encoder(tiny(**dropout, **variant, gradient_checkpointing=True))
    saving.load_state_dict(plain.state_dict())
    for encoder in (plain, saving):
        torch.manual_seed(1)
        encoder(batch).last_hidden_state[..., 0].sum().backward()
    for (name, one), other in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        assert torch.equal(one.grad, other.grad), name


def test_gradient_checkpointing_computes_trained_blocks_twice_and_frozen_ones_once(
    tiny: Tiny, batch: Batch
) -> None:
    encoder, calls = Encoder(tiny(gradient_checkpointing=True)), []
    for depth, block in enumerate(encoder.blocks, start=1):
        block.feedforward.register_forward_hook(lambda *_, depth=depth: calls.append(depth))
    for module in encoder.layer_groups()["block_1"]:
        module.eval().requires_grad_(False)
    encoder(batch).last_hidden_state.sum().backward()
    assert calls == [1, 2, 2]


@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
def test_each_parameter_is_in_one_layer_group(tiny: Tiny, norm_position: str) -> None:
    encoder = Encoder(tiny(norm_position=norm_position, embedding_size=8))
    groups = encoder.layer_groups()
    assert list(groups) == ["embeddings", "block_1", "block_2"]
    grouped = [p for modules in groups.values() for m in modules for p in m.parameters()]
    assert len(grouped) == len({id(p) for p in grouped})
    assert {id(p) for p in grouped} == {id(p) for p in encoder.parameters()}


def test_weights_start_as_berts_do() -> None:
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
    encoder = Encoder(EncoderConfig(vocab_size=2000, pad_token_id=3, **sizes))
    for name, parameter in encoder.named_parameters():
        if name.endswith(".bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 10_000:
            assert parameter.mean().abs().item() < 0.001, name
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
    assert not encoder.embeddings.word_embeddings.weight[3].any()


@pytest.mark.parametrize("norm_position", ["pre", "output"])
def test_a_sum_without_a_norm_ends_with_one(tiny: Tiny, batch: Batch, norm_position: str) -> None:
    hidden = make(tiny(norm_position=norm_position))(batch).last_hidden_state
    torch.testing.assert_close(hidden.mean(dim=-1), torch.zeros(3, 7), atol=1e-5, rtol=0)
    assert isinstance(Encoder(tiny()).final_norm, nn.Identity)


@pytest.mark.parametrize("depth", [-1, 3])
def test_a_depth_outside_the_encoder_is_refused(tiny: Tiny, batch: Batch, depth: int) -> None:
    encoder = make(tiny())
    message = f"2 blocks can be cut at depth 0 to 2, got {depth}"
    with pytest.raises(ConfigError, match=message):
        encoder.prefix(batch, depth)
    with pytest.raises(ConfigError, match=message):
        encoder.suffix(torch.randn(3, 7, 16), None, depth)


@each_variant
def test_bfloat16_autocast_stays_close(tiny: Tiny, batch: Batch, variant: dict[str, Any]) -> None:
    encoder = make(tiny(**variant))
    batch["attention_mask"][2] = False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = encoder(batch).last_hidden_state
    exact = encoder(batch).last_hidden_state
    assert rough.isfinite().all()
    assert (rough - exact).abs().mean() < 0.05


@each_variant
def test_forward_never_looks_at_values(tiny: Tiny, batch: Batch, variant: dict[str, Any]) -> None:
    # The meta device has shapes only, so anything that would wait for a GPU's numbers fails.
    with torch.device("meta"):
        encoder = Encoder(
            tiny(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **variant)
        )
    on_meta = {name: values.to("meta") for name, values in batch.items()}
    encoder(on_meta).last_hidden_state.sum().backward()


def test_local_blocks_see_only_their_neighbours(tiny: Tiny) -> None:
    config = tiny(
        num_hidden_layers=4, local_attention=1, global_every=4, max_position_embeddings=12
    )
    assert [config.is_local(depth) for depth in (1, 2, 3, 4)] == [False, True, True, True]
    encoder = make(config)
    ids = torch.arange(1, 13)[None]
    weights = encoder({"input_ids": ids}, output_attentions=True).attentions
    assert weights is not None
    places = torch.arange(12)
    far = (places[:, None] - places).abs() > 1
    assert (weights[0][0, :, far] > 0).all()
    assert all((of_block[0, :, far] == 0).all() for of_block in weights[1:])


def test_positions_turn_by_the_base_of_their_kind_of_block(tiny: Tiny) -> None:
    more = {"position": "rotary", "local_attention": 20, "global_every": 2}
    ids = {"input_ids": torch.arange(1, 8)[None]}
    usual, other = make(tiny(**more)), make(tiny(**more, local_rotary_theta=3.0))
    other.load_state_dict(usual.state_dict())
    assert torch.equal(usual.prefix(ids, 1), other.prefix(ids, 1))  # the first block sees all
    assert not torch.allclose(usual.prefix(ids, 2), other.prefix(ids, 2))


@pytest.mark.parametrize("variant", [*VARIANTS, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_the_first_token_has_the_state_and_gradients_that_it_has_among_all(
    tiny: Tiny, batch: Batch, variant: dict[str, Any], padded: bool, depth: int | None
) -> None:
    encoder = Encoder(tiny(**variant)).train()
    if not padded:
        del batch["attention_mask"]

    def state_and_gradients(first_only: bool) -> tuple[Tensor, dict[str, Tensor]]:
        if depth is None:
            hidden = encoder(batch, first_only=first_only).last_hidden_state
        else:
            prefix = encoder.prefix(batch, depth)
            hidden = encoder.suffix(
                prefix, batch.get("attention_mask"), depth, first_only=first_only
            )
        assert hidden.shape == (3, 1 if first_only else 7, 16)
        hidden[:, 0].square().sum().backward()
        gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        encoder.zero_grad()
        return hidden[:, 0], gradients

    expected, expected_gradients = state_and_gradients(first_only=False)
    state, gradients = state_and_gradients(first_only=True)
    torch.testing.assert_close(state, expected, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", [*VARIANTS, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize(
    ("masked", "positions"),
    [("nothing", [15, 2, 8]), ("padding", [1, 2, 8, 15]), ("documents", [3])],
)
def test_chosen_tokens_have_the_states_and_gradients_that_they_have_among_all(
    tiny: Tiny, batch: Batch, variant: dict[str, Any], masked: str, positions: list[int]
) -> None:
    encoder, chosen = Encoder(tiny(**variant)).train(), torch.tensor(positions)
    if masked == "nothing":
        del batch["attention_mask"]
    if masked == "documents":
        document = torch.arange(7) // 3
        batch["attention_mask"] = (document[:, None] == document).expand(3, 7, 7)

    def states_and_gradients(chooses: bool) -> tuple[Tensor, dict[str, Tensor]]:
        output = encoder(batch, positions=chosen if chooses else None).last_hidden_state
        states = output if chooses else output.flatten(0, 1)[chosen]
        states.square().sum().backward()
        gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        encoder.zero_grad()
        return states, gradients

    expected, expected_gradients = states_and_gradients(False)
    states, gradients = states_and_gradients(True)
    torch.testing.assert_close(states, expected, atol=1e-6, rtol=1e-6)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)


def test_the_last_block_computes_no_state_that_is_not_read(tiny: Tiny, batch: Batch) -> None:
    encoder, rows = Encoder(tiny()), []
    for block in encoder.blocks:
        block.feedforward.register_forward_hook(
            lambda _, args, output: rows.append(output.shape[:-1].numel())
        )
    encoder(batch, positions=torch.tensor([1, 2, 8]))
    most = torch.arange(20)
    assert encoder(batch, positions=most).last_hidden_state.shape == (20, 16)
    # The first time without padding; the second time tokens of the padding are asked for too.
    assert rows == [13, 3, 21, 21]


@pytest.mark.gpu
@each_variant
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_gpu_gives_what_the_cpu_gives(
    tiny: Tiny, batch: Batch, variant: dict[str, Any], dtype: torch.dtype | None
) -> None:
    encoder = make(tiny(**variant))
    batch["attention_mask"][2] = False
    expected = encoder(batch).last_hidden_state
    encoder.cuda()
    on_gpu = {name: values.cuda() for name, values in batch.items()}
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        hidden = encoder(on_gpu).last_hidden_state
    hidden.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    error = (hidden.float().cpu() - expected).abs()
    assert error.max() < 1e-4 if dtype is None else error.mean() < 0.05


@pytest.mark.parametrize("block", ["lstm", "conv"])
def test_attention_weights_of_a_block_without_attention_are_refused(
    tiny: Tiny, batch: Batch, block: str
) -> None:
    with pytest.raises(ConfigError, match=f"expected block transformer, got {block}, which has no"):
        make(tiny(block=block))(batch, output_attentions=True)


def test_compiled_blocks_train_and_nothing_else(
    tiny: Tiny, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[nn.Module] = []
    monkeypatch.setattr(
        blocks,
        "_compiled",
        lambda: lambda block, *more, **words: calls.append(block) or block(*more, **words),
    )
    encoder = Encoder(tiny())
    names = list(encoder.state_dict())
    encoder.compile_blocks()
    encoder(batch)
    assert calls == list(encoder.blocks)
    encoder.blocks[0].eval()  # frozen
    encoder(batch)
    assert calls[2:] == [encoder.blocks[1]]
    encoder.eval()(batch)
    with torch.no_grad():
        encoder.train()(batch)
    assert len(calls) == 3
    assert list(encoder.state_dict()) == names


def test_other_blocks_are_not_compiled(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="compile: expected block transformer, got lstm"):
        Encoder(tiny(block="lstm")).compile_blocks()


@pytest.mark.slow  # half a minute for the compiler
@pytest.mark.filterwarnings("ignore")  # those of the compiler about itself
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_blocks_give_the_losses_of_plain_ones(tiny: Tiny, checkpointing: bool) -> None:
    config = tiny(
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        gradient_checkpointing=checkpointing,
    )
    losses: dict[bool, list[float]] = {}
    for compiles in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(config).train()
        if compiles:
            encoder.compile_blocks()
        optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
        losses[compiles] = []
        for length in (7, 9, 12, 7):
            ids = torch.arange(3 * length).view(3, length) % config.vocab_size
            loss = (encoder({"input_ids": ids}).last_hidden_state[..., 0] - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[compiles].append(loss.item())
    assert losses[True] == pytest.approx(losses[False], abs=1e-5)
    assert losses[True][-1] < losses[True][0]
