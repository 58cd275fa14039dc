"""The last block for the first token alone: what a head that reads no other token needs."""

import pytest
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.heads import Classification, HeadConfig, Span, SpanConfig

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}
VARIANTS = [
    {},
    {"norm_position": "pre", "position": "rotary", "hidden_act": "geglu"},
    {"attention_score": "additive", "position": "sinusoidal"},
    {"attention_score": "bilinear", "causal": True},
    {"position": "rotary", "local_attention": 4, "global_every": 2, "norm_position": "pre"},
    {"gradient_checkpointing": True},
]


def batch(padded: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(1, 50, (3, 7))
    if not padded:
        return {"input_ids": ids}
    return {"input_ids": ids, "attention_mask": torch.arange(7) < torch.tensor([[7], [4], [1]])}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_the_first_token_has_the_state_and_gradients_that_it_has_among_all(
    variant: dict[str, object], padded: bool, depth: int | None
) -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig.from_dict(SIZES | variant)).train()
    given = batch(padded)

    def states(first_only: bool) -> torch.Tensor:
        if depth is None:
            return encoder(given, first_only=first_only).last_hidden_state
        prefix, mask = encoder.prefix(given, depth), given.get("attention_mask")
        return encoder.suffix(prefix, mask, depth, first_only=first_only)

    def gradients() -> dict[str, torch.Tensor]:
        found = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
        encoder.zero_grad()
        return found

    whole = states(first_only=False)
    whole[:, 0].square().sum().backward()
    expected = gradients()
    alone = states(first_only=True)
    alone.square().sum().backward()

    assert alone.shape == (3, 1, 16)
    torch.testing.assert_close(alone[:, 0], whole[:, 0], atol=1e-5, rtol=1e-5)
    found = gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-4, rtol=1e-4)


def test_heads_say_whether_they_read_the_first_token_alone() -> None:
    config = EncoderConfig.from_dict(SIZES)
    reads = {"cls": True, "last": False, "mean": False, "max": False, "concat": False}
    for pooling, expected in reads.items():
        assert Classification(config, HeadConfig(pooling), 2).first_only is expected
    span = Span(config, HeadConfig(), SpanConfig())
    assert not getattr(span, "first_only", False)
