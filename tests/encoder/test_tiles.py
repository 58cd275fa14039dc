from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import Encoder, EncoderConfig, config, slabs
from finetune.encoder.contexts import contexts_of
from finetune.encoder.cost import describe
from finetune.encoder.layout import Unpadded
from finetune.encoder.masks import PATTERNS, global_tokens, visible_tokens
from finetune.encoder.tiles import Tiles
from finetune.errors import ConfigError

Tiny = Callable[..., EncoderConfig]
CPU = torch.device("cpu")
LENGTH = 19  # no multiple of a tile


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SMALLEST_TILE", 3)


@pytest.fixture
def hidden_pairs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on no block works in tiles: all pairs are computed and some hidden."""
    return lambda: monkeypatch.setattr(EncoderConfig, "untiled", lambda *_: "as a reference")


@pytest.fixture
def texts() -> dict[str, Tensor]:
    lengths = torch.tensor([LENGTH, 11, 2])
    places = torch.arange(LENGTH)
    mask = places < lengths[:, None]
    return {
        "input_ids": torch.randint(1, 50, (3, LENGTH)).masked_fill(~mask, 0),
        "attention_mask": mask,
        "token_type_ids": (places >= torch.tensor([4, 8, 1])[:, None]).long(),
    }


def documents(mask: Tensor) -> Tensor:
    number = torch.tensor([0] * 5 + [1] * 9 + [2] * 5).expand(3, -1)
    return (number[:, :, None] == number[:, None]) & mask[:, None] & mask[:, :, None]


def results(encoder: Encoder, batch: dict[str, Tensor], **options: Any) -> list[Tensor]:
    """States of real tokens, and the gradients of all parameters."""
    output = encoder(batch, **options).last_hidden_state
    mask = batch["attention_mask"]
    if mask.dim() == 3:
        mask = mask.diagonal(0, 1, 2)
    if output.dim() == 3:
        output = output[mask[:, : output.shape[1]]]
    learned = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(output.sin().sum(), learned, allow_unused=True)
    return [output, *(part for part in gradients if part is not None)]


def near(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, atol=1e-8, rtol=1e-6)  # of float64


CASES: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"position": "rotary", "local_rotary_theta": 50.0},
    "alibi": {"position": "alibi"},
    "causal": {"causal": True, "position": "none"},
    "causal alibi": {"causal": True, "position": "alibi"},
    "additive": {"attention_score": "additive"},
    "bilinear": {"attention_score": "bilinear", "norm_position": "pre"},
    "cls": {"global_tokens": "cls"},
    "question": {"global_tokens": "question", "position": "rotary"},
    "window of 1": {"local_attention": 1},
    "checkpointed": {"gradient_checkpointing": True},
}


def local(tiny: Tiny, **changes: Any) -> Encoder:
    settings = {"local_attention": 3, "global_every": 2, "num_hidden_layers": 2, **changes}
    return Encoder(tiny(**settings))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("masked", ["nothing", "padding", "documents"])
def test_states_and_gradients_are_those_of_the_dense_mask(
    tiny: Tiny, texts: dict[str, Tensor], case: str, masked: str, hidden_pairs: Callable[[], None]
) -> None:
    encoder = local(tiny, **CASES[case]).double()
    assert not encoder.config.untiled(LENGTH)
    if masked == "nothing":
        texts["attention_mask"] = torch.ones_like(texts["attention_mask"])
    if masked == "documents":
        texts["attention_mask"] = documents(texts["attention_mask"])
    tiled = results(encoder, texts)
    hidden_pairs()
    near(tiled, results(encoder, texts))


@pytest.mark.parametrize("kind", ["cls", "question"])
def test_a_first_token_that_is_padding_is_seen_by_no_token(
    tiny: Tiny, texts: dict[str, Tensor], kind: str
) -> None:
    encoder = local(tiny, global_tokens=kind).eval()
    mask = texts["attention_mask"]
    mask[:2, 0] = False
    tiled, dense = encoder(texts), encoder(texts, output_attentions=True)
    torch.testing.assert_close(
        tiled.last_hidden_state[mask], dense.last_hidden_state[mask], atol=2e-6, rtol=1e-5
    )


@pytest.mark.parametrize("case", ["rotary", "question", "cls"])
def test_first_tokens_chosen_tokens_and_those_without_padding_are_the_same(
    tiny: Tiny, texts: dict[str, Tensor], case: str
) -> None:
    encoder, mask = local(tiny, **CASES[case]).eval(), texts["attention_mask"]
    whole = encoder(texts).last_hidden_state
    first = encoder(texts, first_only=True).last_hidden_state
    torch.testing.assert_close(first, whole[:, :1], atol=2e-6, rtol=1e-5)
    places = torch.tensor([1, 5, LENGTH + 2])
    chosen = encoder(texts, positions=places).last_hidden_state
    torch.testing.assert_close(chosen, whole.flatten(0, 1)[places], atol=2e-6, rtol=1e-5)
    segments = texts["token_type_ids"]
    layout = Unpadded.from_mask(mask, 4)
    above = encoder.suffix(
        encoder.prefix(texts, 1), mask, 1, token_type_ids=segments, layout=layout
    )
    torch.testing.assert_close(above[mask], whole[mask], atol=2e-6, rtol=1e-5)


def test_weights_that_are_asked_for_are_those_of_all_pairs(
    tiny: Tiny, texts: dict[str, Tensor]
) -> None:
    encoder = local(tiny).eval()
    plain, asked = encoder(texts), encoder(texts, output_attentions=True)
    mask = texts["attention_mask"]
    torch.testing.assert_close(
        plain.last_hidden_state[mask], asked.last_hidden_state[mask], atol=2e-6, rtol=1e-5
    )
    assert asked.attentions is not None
    assert asked.attentions[1].shape == (3, 2, LENGTH, LENGTH)
    assert (asked.attentions[1][0].triu(4) == 0).all()


@pytest.mark.parametrize("in_slabs", [False, True])
def test_dropout_repeats_with_the_seed(
    tiny: Tiny, texts: dict[str, Tensor], in_slabs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slabs, "MANY", 1 if in_slabs else 1 << 30)
    encoder = local(tiny, attention_probs_dropout_prob=0.5, global_tokens="cls")
    torch.manual_seed(3)
    first = results(encoder, texts)
    torch.manual_seed(3)
    assert all(map(torch.equal, first, results(encoder, texts)))
    assert not torch.equal(first[0], results(encoder, texts)[0])


@pytest.mark.parametrize(
    ("changes", "length", "reason"),
    [
        ({}, 17, "tiles of 9 keys pay from T = 18 on"),
        ({"position": "relative"}, 99, "relative positions score each query"),
        ({"position": "alibi", "global_tokens": "cls"}, 99, "alibi counts the distance"),
        ({"local_pattern": "strided"}, 99, "strided is a mask for study"),
        ({"causal": True, "memory": 5, "position": "none"}, 99, "a memory lies before"),
    ],
)
def test_all_pairs_are_computed_for_a_reason(
    tiny: Tiny, changes: dict[str, Any], length: int, reason: str
) -> None:
    settings = tiny(local_attention=3, **changes)
    assert reason in settings.untiled(length)
    context = contexts_of(settings, torch.zeros(1, length, 16), None, None)[True][0]
    assert isinstance(context, Tensor)
    if length == 99:
        assert reason.split()[0] in describe(settings)


def test_tiles_hold_a_multiple_of_the_tokens_and_not_of_their_square(tiny: Tiny) -> None:
    settings, sizes = tiny(local_attention=8), []
    for length in (100, 200):
        tiles = contexts_of(settings, torch.zeros(1, length, 16), None, None)[True][0]
        assert isinstance(tiles, Tiles)
        sizes.append(tiles.bias.numel())
    assert sizes == [13 * 8 * 24, 25 * 8 * 24]


@pytest.mark.parametrize(
    ("pattern", "row"),
    [("window", "..#####..."), ("strided", "#.#####.#."), ("block", "....##....")],
)
def test_patterns_show_what_a_token_sees(pattern: str, row: str) -> None:
    visible = visible_tokens(None, causal=False, length=10, device=CPU, window=2, pattern=pattern)
    assert visible is not None
    assert "".join(".#"[int(seen)] for seen in visible[0, 0, 4]) == row
    assert set(PATTERNS) == set(config.PATTERN_NAMES)


def test_global_tokens_are_cls_and_the_shorter_text(texts: dict[str, Tensor]) -> None:
    mask, segments = texts["attention_mask"], texts["token_type_ids"]
    cls = global_tokens("cls", mask.shape, mask, segments, CPU)
    question = global_tokens("question", mask.shape, mask, segments, CPU)
    assert cls is not None
    assert question is not None
    assert [row.nonzero().flatten().tolist() for row in cls] == [[0]] * 3
    rows = [row.nonzero().flatten().tolist() for row in question]
    assert rows == [[0, 1, 2, 3], [0, 8, 9, 10], [0]]
    alone = global_tokens("question", mask.shape, mask, torch.zeros_like(segments), CPU)
    assert alone is not None
    assert alone.sum() == 3
    assert global_tokens("none", mask.shape, mask, segments, CPU) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_tokens": "cls", "causal": True}, "global_tokens cls: expected an encoder that"),
        ({"global_tokens": "question", "type_vocab_size": 0}, "expected segments"),
        ({"global_tokens": "qls"}, "global_tokens must be one of .*, got 'qls'"),
        ({"local_pattern": "windows"}, "local_pattern must be one of window, .*, got 'windows'"),
    ],
)
def test_what_does_not_fit_is_refused(tiny: Tiny, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


@pytest.fixture
def _transformers_quiet() -> Iterator[None]:
    transformers = pytest.importorskip("transformers")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.mark.usefixtures("_transformers_quiet")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_layer_gives_what_longformers_gives(tiny: Tiny, count: int) -> None:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    from finetune.encoder.attention import SelfAttention

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "attention_probs_dropout_prob": 0.0}
    theirs = LongformerSelfAttention(LongformerConfig(attention_window=[6], **sizes), 0).eval()
    for local_part, global_part in (("query", "query_global"), ("key", "key_global"),
                                    ("value", "value_global")):  # fmt: skip
        # Ours has one projection for both; theirs start from the same weights too.
        getattr(theirs, global_part).load_state_dict(getattr(theirs, local_part).state_dict())
    settings = tiny(local_attention=3)
    ours = SelfAttention(settings).eval()
    for part in ("query", "key", "value"):
        getattr(ours, part).load_state_dict(getattr(theirs, part).state_dict())
    ours.output = nn.Identity()  # type: ignore[assignment]
    lengths = torch.tensor([24, 17])
    mask = torch.arange(24) < lengths[:, None]
    is_global = torch.arange(24).expand(2, -1) < torch.tensor([count, min(count, 1)])[:, None]
    hidden = torch.randn(2, 24, 16, requires_grad=True)
    given = torch.zeros(2, 24).masked_fill(~mask, -1e4).masked_fill(is_global, 1e4)
    (expected, *_) = theirs(
        hidden,
        attention_mask=given,
        is_index_masked=~mask,
        is_index_global_attn=is_global,
        is_global_attn=bool(is_global.any()),
    )
    tiles = Tiles.of(settings, mask, is_global if count else None, hidden)
    got, _ = ours(hidden, tiles)
    torch.testing.assert_close(got[mask], expected[mask], atol=1e-6, rtol=1e-5)
    both = [torch.autograd.grad(out[mask].sin().sum(), hidden)[0] for out in (got, expected)]
    torch.testing.assert_close(*both, atol=1e-5, rtol=1e-4)
