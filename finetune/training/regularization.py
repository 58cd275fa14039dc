"""Regularization for small data: it keeps weights near the pretrained ones, or steadies the loss.

Each is a function of tensors, from its paper; the modules of this package call them. The pretrained
weights that mixout and L2-SP pull towards are those from before fine-tuning: they are taken from
the encoder as it was given, also when an interrupted run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Encoder, initialize_weights
from finetune.encoder.block import BLOCKS
from finetune.encoder.dropout import drop_on_cpu
from finetune.errors import ConfigError
from finetune.heads import IGNORED, Head, PooledHead
from finetune.training.config import RegularizationConfig
from finetune.training.randomness import keyed_seed

CLASS_HEADS = ("classification", "choice", "seq2seq")
"""Kinds of heads whose logits are distributions over classes or tokens, (B, C) or (B S, V)."""


def check_regularization(
    config: RegularizationConfig,
    head: Head,
    encoder: Encoder | None = None,
    lm_head: nn.Module | None = None,
) -> None:
    """Check that the settings that change the loss suit the head and the encoder.

    Raises:
        ConfigError: Label smoothing or R-Drop is asked of a head without classes; or the loss of a
            language model of an encoder that is none, or whose language-model head is not given.
    """
    if config.lm_weight and (encoder is None or not encoder.config.causal):
        raise ConfigError(
            "lm_weight is for a causal encoder, which predicts the next token, got one that reads "
            "in both directions; leave it out"
        )
    if config.lm_weight and lm_head is None:
        raise ConfigError(
            "lm_weight needs the language-model head of a pretraining run, got an encoder without "
            "one; name such a run by --encoder, or leave it out"
        )
    for name in ("label_smoothing", "r_drop"):
        if getattr(config, name) and head.kind not in CLASS_HEADS:
            raise ConfigError(
                f"{name} is for one class of several, got a head of the kind {head.kind}; "
                "leave it out"
            )
    if config.label_smoothing and getattr(head, "uneven", False):
        raise ConfigError(
            "label_smoothing spreads over as many options for every question, got questions with "
            "unequally many; leave it out"
        )


def language_model_loss(
    head: nn.Module | None, hidden: Tensor, batch: Mapping[str, Tensor]
) -> Tensor:
    """GPT's auxiliary loss L1 on the task's own texts (Radford et al., 2018, section 3.2).

    The mean over sequences of the mean over their tokens, as in its authors' code: so a sequence
    counts the same in whatever batch it is.

    Args:
        head: The language-model head.
        hidden: Last hidden states (B, T, D), or those of all layers (L + 1, B, T, D).
        batch: `input_ids` int64 (B, T), and `attention_mask` bool (B, T) where a row is padded.

    Returns:
        Nats a token, float32 scalar.
    """
    assert head is not None  # `check_regularization` has refused
    hidden = hidden[-1] if hidden.dim() == 4 else hidden
    labels = batch["input_ids"][:, 1:]
    mask = batch.get("attention_mask")
    is_token = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask[:, 1:]
    logits = head.to(hidden.device)(hidden[:, :-1][is_token]).float()  # (N, V)
    losses = F.cross_entropy(logits, labels[is_token], reduction="none")
    counts = is_token.sum(dim=1, keepdim=True).expand(-1, labels.shape[1])
    return (losses / counts[is_token]).sum() / len(labels)


def reinitialise(encoder: Encoder, count: int, seed: int, head: Head | None = None) -> None:
    """Give the top blocks and the pooler fresh weights, in place (Zhang et al., 2021, section 5).

    The tensors stay the same objects, and torch's generators are left as they were. A final norm
    gets fresh weights with the blocks.

    Args:
        encoder: Changed from its last block down.
        count: Number of blocks; 0 changes nothing.
        seed: Keys the new weights.
        head: Its pooler may be a pretrained one.

    Raises:
        ConfigError: The encoder has fewer blocks.
    """
    total = len(encoder.blocks)
    if count > total:
        raise ConfigError(
            f"reinit_blocks: expected at most {total}, the blocks of the encoder, got {count}"
        )
    if count == 0:
        return
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(keyed_seed(seed, "reinitialise"))  # whatever was drawn before
        for number in range(total - count, total):
            fresh = BLOCKS[encoder.config.block](encoder.config, number)
            initialize_weights(fresh, encoder.config.initializer_range)
            # Into the old tensors: an optimizer may have them in its groups already.
            encoder.blocks[number].load_state_dict(fresh.state_dict())
        if isinstance(encoder.final_norm, nn.LayerNorm | nn.RMSNorm):
            encoder.final_norm.reset_parameters()
        if isinstance(head, PooledHead):
            head.reset_pooler(encoder.config.initializer_range)


def pretrained_weights(encoder: Encoder, reinit_blocks: int = 0) -> dict[str, Tensor]:
    """Copies of the weights that fine-tuning starts from, without those that are fresh.

    Args:
        encoder: Before its first step.
        reinit_blocks: Top blocks with fresh weights; a final norm is fresh with them.

    Returns:
        Name in the encoder → a detached copy.
    """
    first_fresh = len(encoder.blocks) - reinit_blocks
    fresh = tuple(f"blocks.{block}." for block in range(first_fresh, len(encoder.blocks)))
    if reinit_blocks:
        fresh = (*fresh, "final_norm.")
    return {
        name: parameter.detach().clone()
        for name, parameter in encoder.named_parameters()
        if not name.startswith(fresh)
    }


def mixout(weight: Tensor, pretrained: Tensor, p: float) -> Tensor:
    """Replace each weight by the pretrained one with probability p (Lee et al., 2020, section 3).

    Where M is 1 with probability 1 - p, the paper's (M w + (1 - M) u - p u) / (1 - p) is
    u + M (w - u) / (1 - p): dropout of the way from u to w. Its expectation is w. The draws are
    those of the encoder's dropout, from torch's default generator, which is keyed by the place in
    the run.

    Args:
        weight: w, what is trained, any shape.
        pretrained: u, same shape; not trained.
        p: Probability, in [0, 1).

    Returns:
        The mixed weight, same shape.
    """
    drop = drop_on_cpu if weight.device.type == "cpu" else F.dropout
    return pretrained + drop(weight - pretrained, p)


class MixoutLinear(nn.Linear):
    """A linear layer that reads its weight through mixout while training.

    It takes over the tensors of the layer it stands for, so the names in a state dict and the
    optimizer's groups do not change; the pretrained weight is no part of the state.
    """

    pretrained: Tensor

    def __init__(self, linear: nn.Linear, pretrained: Tensor, p: float) -> None:
        """Stand for a layer.

        Args:
            linear: Gives its own weight and bias.
            pretrained: The weight from before fine-tuning, same shape.
            p: Probability of reading the pretrained weight, in [0, 1).
        """
        nn.Module.__init__(self)  # nn.Linear's would draw a weight, and so move the generator
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.p = p
        self.register_buffer("pretrained", pretrained, persistent=False)
        self.train(linear.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        # A frozen layer in training mode (frozen_dropout) reads its weight as it is.
        if not (self.training and self.weight.requires_grad):
            return F.linear(inputs, self.weight, self.bias)
        return F.linear(inputs, mixout(self.weight, self.pretrained, self.p), self.bias)


def put_mixout(encoder: Encoder, pretrained: Mapping[str, Tensor], p: float) -> None:
    """Let the encoder's pretrained linear layers read their weights through mixout, in place.

    As in the paper's own code, biases, norms and embeddings are left alone. The paper has it in
    place of dropout (section 5): set the encoder's dropout to 0 for that.

    Args:
        encoder: Its modules are exchanged; tensors, names and numbers in eval mode stay.
        pretrained: What `pretrained_weights` gave; a layer whose weight is not in it stays.
        p: Probability, in [0, 1); 0 changes nothing.
    """
    if p == 0:
        return
    for path, linear in list(_linear_layers(encoder)):  # a list: modules are replaced on the way
        if f"{path}.weight" not in pretrained:
            continue
        parent, _, name = path.rpartition(".")
        mixed = MixoutLinear(linear, pretrained[f"{path}.weight"], p)
        setattr(encoder.get_submodule(parent), name, mixed)


def _linear_layers(encoder: Encoder) -> Iterator[tuple[str, nn.Linear]]:
    for path, module in encoder.named_modules():
        if isinstance(module, nn.Linear):
            yield path, module


@torch.no_grad()
def pull_to_pretrained(encoder: Encoder, pretrained: Mapping[str, Tensor], strength: float) -> None:
    """Add the gradient of α/2 ‖w - w⁰‖² (Li et al., 2018, section 3, L2-SP).

    Once a step: after the backward pass, when gradients are summed and unscaled, before clipping.
    Through Adam the pull is scaled as the gradient is. Fresh weights (β in the paper) have
    AdamW's weight decay; the paper has no other decay on the pretrained ones.

    Args:
        encoder: Its gradients change; a tensor without one (frozen) stays as it is.
        pretrained: w⁰: what `pretrained_weights` gave.
        strength: α, 0 or more.
    """
    if strength == 0:
        return
    for name, parameter in encoder.named_parameters():
        if parameter.grad is not None and name in pretrained:
            # The paper has it in the loss: so it is in the gradient that is clipped and scaled.
            parameter.grad.add_(parameter - pretrained[name].to(parameter.device), alpha=strength)


def symmetric_kl(first: Tensor, second: Tensor, labels: Tensor | None = None) -> Tensor:
    """½ KL(P₁ ‖ P₂) + ½ KL(P₂ ‖ P₁), averaged (Liang et al., 2021, section 2.1, equation 2).

    Args:
        first: Logits of one pass, (B, C).
        second: Logits of the other, (B, C). Gradients flow into both.
        labels: int64 (B,), -100 where an example takes no part; None: all do. The head's loss is a
            mean over the same examples, so both can be averaged over the batches of a step alike.

    Returns:
        Nats an example, float32 scalar, 0 or more; 0 where no example takes part.
    """
    log_p, log_q = first.float().log_softmax(dim=-1), second.float().log_softmax(dim=-1)
    # KL(P‖Q) + KL(Q‖P) = Σ (P - Q) (log P - log Q)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)
    if labels is None:
        return divergence.mean() / 2
    takes_part = labels != IGNORED
    return (divergence * takes_part).sum() / takes_part.sum().clamp(min=1) / 2


def r_drop_loss(
    losses: tuple[Tensor, Tensor],
    logits: tuple[Tensor, Tensor],
    strength: float,
    labels: Tensor | None = None,
) -> Tensor:
    """Half of R-Drop's objective, so that it compares with the loss of a single pass.

    Liang et al., 2021, section 2.1, equation 4: L = L₁ + L₂ + α KL. Half of it has the same
    minimum, and the same α.

    Args:
        losses: The head's loss in each pass, scalars.
        logits: Logits of each pass, (B, C).
        strength: α, 0 or more.
        labels: As for `symmetric_kl`.

    Returns:
        ½ (L₁ + L₂ + α KL), scalar.
    """
    return (losses[0] + losses[1] + strength * symmetric_kl(*logits, labels)) / 2
