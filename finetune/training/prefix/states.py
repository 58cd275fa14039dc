"""The frozen part of an encoder: what it computes, the same in every batch, and the key of that.

**When runs with and without the cache give the same numbers.** A token's hidden state depends, in
its last bits, on how the kernels cut their work, and so on the batch. Measured on a CPU (torch
2.13, MKL, torch's fused attention; every score and position; D = 16 to 768 on one thread, with
D = 64 and 384 also on four threads and with AVX2 alone, D = 16 and 20 on two threads), at real
tokens, for hidden states of the size of 1:

- the same batch again, with or without gradients: equal bit by bit;
- a mask that hides nothing against no mask, and any values at padded places: equal bit by bit;
- the same T, other sequences beside it: equal on one thread from four tokens a batch on; on two
  threads up to 3e-6 apart, because the rows of a product are cut elsewhere;
- another T, so more or less padding: up to 3e-6 apart, because the attention kernel computes the
  last T mod 16 columns by another formula than whole vectors of 16;
- **T rounded up to a multiple of 16, two sequences at least: equal bit by bit, whatever else is in
  the batch and however it is padded**: every kernel then sees whole vectors and tiles only.

So everything frozen is computed by `frozen_states`, which rounds T up and cuts the result back.
Only attention sees the padding: all else gets the real tokens alone (`Unpadded`), their number
rounded up to a multiple of 16 as well, which is the same condition. Filling, going on from a lower
boundary, and a run without a cache all go through it, and `Encoder.suffix` gets the same values in
the same batch: losses, and so whole runs, are equal bit by bit in fp32 on a CPU, though no two
epochs have the same batches. The tests check it.
LSTM blocks (measured at D = 20 to 384) keep to this as well; of a convolution torch chooses the
kernel by the number of sequences, and states of some batches are 2e-7 apart.
A plain `Encoder.forward`, which rounds nothing up, differs by the 3e-6 above. On a GPU the
libraries choose kernels by the size of the batch (not measured here): expect equality to rounding
only. With `cache_precision: bf16` a state is rounded to 8 bits: 2^-9 of its size, at most.
The price is attention over padding and a few rows too many; with the cache it is paid once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Encoder
from finetune.encoder.layout import PADDED, Padded, Unpadded

TILE = 16
"""Frozen blocks see lengths that are multiples of this: the numbers in a vector of AVX-512."""

# Settings of an encoder that do not change what its lower part computes in eval mode.
_WITHOUT_EFFECT = {
    "vocab_size",
    "num_hidden_layers",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "embedding_dropout_prob",
    "tie_word_embeddings",
    "gradient_checkpointing",
}


@torch.no_grad()
def frozen_states(
    encoder: Encoder,
    batch: Mapping[str, Tensor],
    depths: Sequence[int],
    start: tuple[Tensor, int] | None = None,
) -> list[Tensor]:
    """Hidden states at some boundaries, in eval mode, whatever the mode of the modules.

    Equal bit by bit for a sequence in whatever batch it stands (see above).

    Args:
        encoder: Its lower part is frozen.
        batch: As for `Encoder.forward`.
        depths: Boundaries, ascending, 0 … L.
        start: Hidden states (B, T, D) at a lower boundary, and its depth, to continue from.

    Returns:
        float32 (B, T, D) at each depth, contiguous; zeros where a mask (B, T) hides a token.
    """
    count, length = batch["input_ids"].shape
    rounded = _rounded_up(encoder, batch)
    if count == 1:
        # Two sequences at least, the second of which is cut off below.
        rounded = {name: _twice(tensor) for name, tensor in rounded.items()}
    layout = _layout(rounded)
    states = []
    with _in_eval_mode(encoder):
        if start is None:
            hidden, depth = encoder.prefix(rounded, 0), 0
        else:
            hidden, depth = F.pad(start[0], (0, 0, 0, -length % TILE)), start[1]
            hidden = _twice(hidden) if count == 1 else hidden
        for boundary in depths:
            hidden = _run_on(encoder, hidden, rounded, (depth, boundary), layout)
            depth = boundary
            states.append(_cut_back(hidden[:count, :length], batch.get("attention_mask")))
    return states


def _twice(inputs: Tensor) -> Tensor:
    # Of a batch of one torch folds the products (of the additive score) in another way.
    return torch.cat([inputs, inputs])


def _cut_back(hidden: Tensor, mask: Tensor | None) -> Tensor:
    # Contiguous, because torch multiplies a strided tensor by another kernel.
    cut = hidden.float().contiguous()
    if mask is None or mask.dim() != 2:
        return cut
    return cut.masked_fill(~mask[..., None], 0.0)


def _layout(batch: Mapping[str, Tensor]) -> Padded:
    """Without padding, if there is some and each token sees the same ones."""
    mask = batch.get("attention_mask")
    # To count the tokens the host would wait for a GPU, which has more time than like lengths pad.
    if mask is None or mask.dim() != 2 or mask.device.type != "cpu" or bool(mask.all()):
        return PADDED
    return Unpadded.from_mask(mask, TILE)


def _run_on(
    encoder: Encoder,
    hidden: Tensor,
    batch: Mapping[str, Tensor],
    depths: tuple[int, int],
    layout: Padded,
) -> Tensor:
    mask, (start, end) = batch.get("attention_mask"), depths
    return encoder.suffix(
        hidden,
        mask,
        start,
        until=end,
        position_ids=batch.get("position_ids"),
        token_type_ids=batch.get("token_type_ids"),
        layout=layout,
    )


def _rounded_up(encoder: Encoder, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch with T rounded up to a multiple of `TILE`."""
    ids, config = batch["input_ids"], encoder.config
    length = ids.shape[1]
    extra = -length % TILE  # whole vectors only: see the module's docstring
    rounded = {"input_ids": F.pad(ids, (0, extra), value=config.pad_token_id)}
    for name in ("token_type_ids", "position_ids"):
        if name in batch:
            rounded[name] = F.pad(batch[name], (0, extra))
    mask = batch.get("attention_mask")
    if mask is None and extra:
        mask = torch.ones_like(ids, dtype=torch.bool)  # what is added now must not be seen
    if mask is not None:
        rounded["attention_mask"] = F.pad(mask, (0, extra) * (mask.dim() - 1))
    longest = config.max_position_embeddings
    if "position_ids" not in batch and length <= longest < length + extra:
        # Learned positions end here: the padding takes the last one.
        positions = torch.arange(length + extra, device=ids.device)
        rounded["position_ids"] = positions.clamp_(max=longest - 1).unsqueeze(0)
    return rounded


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    # By attribute and part by part: `train()` would set frozen and trained parts alike.
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def frozen_hidden(
    encoder: Encoder, batch: Mapping[str, Tensor], depth: int, cached: tuple[Tensor, int] | None
) -> Tensor:
    """Hidden states at a boundary, from what `PrefixCache.read` found, or from the token ids.

    Args:
        encoder: Its blocks up to there are frozen.
        batch: On the encoder's device.
        depth: The boundary.
        cached: States (B, T, D) at a lower boundary or this one, and its depth.

    Returns:
        float32 (B, T, D).
    """
    start = None
    if cached is not None:
        start = (_moved(cached[0], batch), cached[1])
        if cached[1] == depth:
            return start[0]
    return frozen_states(encoder, batch, [depth], start)[0]


def frozen_layers(
    encoder: Encoder, batch: Mapping[str, Tensor], depth: int, cached: Mapping[int, Tensor]
) -> list[Tensor]:
    """Hidden states at all boundaries up to one, those that are cached and the others computed.

    Args:
        encoder: Its blocks up to there are frozen.
        batch: On the encoder's device.
        depth: The last boundary.
        cached: Boundary -> its states (B, T, D).

    Returns:
        float32 (B, T, D) at the boundaries 0 … `depth`.
    """
    states: list[Tensor] = []
    while (at := len(states)) <= depth:
        if at in cached:
            states.append(_moved(cached[at], batch))
            continue
        end = min((one for one in cached if at < one <= depth), default=depth + 1)
        start = (states[-1], at - 1) if states else None
        states += frozen_states(encoder, batch, range(at, end), start)
    return states


def _moved(states: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Cached states on the batch's device."""
    device = batch["input_ids"].device
    pinned = states.pin_memory() if device.type == "cuda" else states  # else it waits
    return pinned.to(device, non_blocking=True)


def arithmetic_key(device: torch.device, precision: str) -> str:
    """Name what else decides the last bits: device, version of torch, the trainer's precision."""
    kind = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        kind = f"{torch.cuda.get_device_name(device)} {torch.get_float32_matmul_precision()}"
    return f"{device.type} {kind} torch {torch.__version__} {precision}"


def weight_keys(encoder: Encoder, depths: Iterable[int]) -> dict[int, str]:
    """Hash what decides the hidden states at some depths: weights and settings below each.

    Weights above a boundary do not count, so encoders that share their lower part share its cache.

    Args:
        encoder: On any device.
        depths: From 0 to L.

    Returns:
        Depth -> 32 hexadecimal digits.
    """
    settings = encoder.config.to_dict()
    relevant = {name: value for name, value in settings.items() if name not in _WITHOUT_EFFECT}
    state = hashlib.blake2b(json.dumps(relevant, sort_keys=True).encode(), digest_size=16)
    _hash_weights(state, encoder.embeddings)
    keys, boundaries = {}, set(depths)
    for depth in range(max(boundaries, default=-1) + 1):
        if depth:
            _hash_weights(state, encoder.blocks[depth - 1])
        at_boundary = state.copy()  # the final norm belongs to the last boundary alone
        if depth == len(encoder.blocks):
            _hash_weights(at_boundary, encoder.final_norm)
        if depth in boundaries:
            keys[depth] = at_boundary.hexdigest()
    return keys


def _hash_weights(state: hashlib.blake2b, module: nn.Module) -> None:
    for name, tensor in sorted(module.state_dict().items()):
        content = tensor.detach().cpu().contiguous()
        state.update(f"{name} {content.dtype} {tuple(content.shape)}".encode())
        state.update(content.view(-1).view(torch.uint8).numpy())  # bytes: numpy lacks bfloat16
