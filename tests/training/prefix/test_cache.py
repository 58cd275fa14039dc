from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.text.features.pairs import Features, collate, length_batches
from finetune.training.config import CacheConfig
from finetune.training.prefix.cache import (
    PrefixCache,
    RowSet,
    choose_depths,
    features_key,
    open_cache,
    uses_of,
)
from finetune.training.prefix.states import arithmetic_key, frozen_states
from finetune.training.prefix.store import GIB, list_entries

R = 2  # sequences of a unit: rows are not units


def make_encoder(seed: int = 0, **changes: Any) -> Encoder:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 48,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(EncoderConfig(**{**sizes, **changes}))


def make_features(count: int = 60, seed: int = 0) -> list[Features]:
    rng = np.random.default_rng(seed)
    return [
        Features(rng.integers(1, 50, n).tolist(), [0] * n, label=int(rng.integers(2)))
        for n in rng.integers(2, 40, count * R)
    ]


FEATURES = make_features()
LENGTHS = np.array([len(feature.input_ids) for feature in FEATURES])
ROWS = RowSet("made up", features_key(FEATURES), LENGTHS, {3: 2.0, 2: 1.0, 1: 1.0})


def rows_of(units: Any) -> Any:
    return (np.asarray(units)[:, None] * R + np.arange(R)).reshape(-1)


def batches(
    batch_size: int = 8, epoch: int = 0, features: Sequence[Features] = FEATURES
) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    longest = LENGTHS.reshape(-1, R).max(axis=1)
    for units in length_batches(longest, batch_size, seed=1, epoch=epoch):
        yield rows_of(units), collate(features, units, 0, rows=R)


def never() -> Iterator[Any]:
    pytest.fail("the encoder was run again")
    yield


def opened(
    folder: Path, encoder: Encoder, *, filled_from: Any = None, notes: Any = None, **changes: Any
) -> PrefixCache:
    settings: dict[str, Any] = {
        "folder": folder,
        "config": CacheConfig(),
        "arithmetic": arithmetic_key(torch.device("cpu"), "32-true"),
        "note": pytest.fail if notes is None else notes.append,
    }
    depths, rows = changes.pop("depths", [3, 2, 1]), changes.pop("rows", ROWS)
    source = batches() if filled_from is None else filled_from
    return open_cache(encoder, rows, depths, source, **{**settings, **changes})


def test_kept_states_are_bit_equal_to_computed_ones_in_any_batch(tmp_path: Path) -> None:
    encoder = make_encoder()
    cache = opened(tmp_path, encoder)
    assert cache.depths == (1, 2, 3)
    for rows, batch in itertools.chain(batches(5, epoch=1), batches(1), batches(60)):
        for depth in range(4):
            hidden = cache.hidden(encoder, batch, rows, depth)
            uncached = PrefixCache().hidden(encoder, batch, rows, depth)
            assert hidden.dtype == torch.float32
            assert torch.equal(hidden, uncached)
            assert hidden.is_contiguous()
            assert uncached.is_contiguous()  # a strided one is multiplied by another kernel


def test_boundary_that_is_not_kept_is_bit_equal_too(tmp_path: Path) -> None:
    encoder = make_encoder()
    cache = opened(tmp_path, encoder, depths=[1])
    rows, batch = next(batches(7, epoch=3))
    for depth in range(4):
        hidden = cache.hidden(encoder, batch, rows, depth)
        assert torch.equal(hidden, frozen_states(encoder, batch, [depth])[0])


@pytest.mark.parametrize("depths", [[3, 2, 1], [1, 3], [2], []])
def test_all_layers_are_bit_equal_to_computed_ones_where_some_are_cached(
    tmp_path: Path, depths: list[int]
) -> None:
    encoder = make_encoder()
    cache = opened(tmp_path, encoder, depths=depths) if depths else PrefixCache()
    for rows, batch in itertools.chain(batches(5, epoch=1), batches(1)):
        for depth in range(4):
            computed = frozen_states(encoder, batch, range(depth + 1))
            layers = cache.layers(encoder, batch, rows, depth)
            assert len(layers) == depth + 1
            assert all(map(torch.equal, layers, computed))
    ran: list[nn.Module] = []
    for block in encoder.blocks:
        block.register_forward_hook(lambda module, *_: ran.append(module))
    cache.layers(encoder, batch, rows, 3)
    cache.layers(encoder, batch, rows, 0)  # reads nothing
    assert ran == [block for at, block in enumerate(encoder.blocks, 1) if at not in depths]


def test_what_a_head_of_all_layers_reads_is_cached_at_every_boundary() -> None:
    """Each saves its block, so that any part of them is as useful as its size."""
    train = RowSet("train", "a", np.array([4, 6]), {2: 3.0, 0: 4.0})
    validation = RowSet("validation", "b", np.array([5]), {2: 3.0})
    size = 10 * 16 * 4 / GIB  # of the training set at one depth

    def depths(gib: float) -> list[tuple[str, int]]:
        config = CacheConfig(cache_gib=gib)
        chosen = choose_depths([train, validation], 16, config, all_layers=True)
        return [(rows.about, depth) for rows, depth in chosen]

    everything = [("train", 1), ("train", 2), ("validation", 1), ("validation", 2)]
    assert depths(1.0) == everything
    assert depths(1.5 * size) == [("train", 1), ("validation", 1)]
    assert depths(0.5 * size) == [("validation", 1)]
    assert depths(0.4 * size) == []
    later = RowSet("later", "c", np.array([5]), {2: 1.0, 1: 3.0})  # 1 is read four times, 2 once
    both = choose_depths([validation, later], 16, CacheConfig(), all_layers=True)
    assert [(rows.about, depth) for rows, depth in both] == [
        ("later", 1), ("validation", 1), ("validation", 2), ("later", 2),
    ]  # fmt: skip


class Classifier(nn.Module):
    """Encoder and head over the options, with dropout in what is trained."""

    def __init__(self, **variant: Any) -> None:
        super().__init__()
        dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        self.encoder = make_encoder(**dropout, **variant)
        self.head = nn.Linear(16, 1)
        nn.init.ones_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def train(
    folder: Path | None, config: CacheConfig | None = None, **variant: Any
) -> tuple[list[float], nn.Module]:
    """Gradual unfreezing, an epoch a group, in other batches each epoch."""
    model = Classifier(**variant).train()
    cache = PrefixCache()
    if folder is not None:
        depths = [depth for _, depth in choose_depths([ROWS], 16, CacheConfig())]
        cache = opened(folder, model.encoder, depths=depths, config=config or CacheConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for epoch, depth in enumerate((3, 2, 1, 0)):
        for group, modules in enumerate(model.encoder.layer_groups().values()):
            for module in modules:
                module.requires_grad_(group > depth)
        for number, (rows, batch) in enumerate(batches(8, epoch)):
            torch.manual_seed(1000 * epoch + number)  # as a run keys each step's dropout
            hidden = cache.hidden(model.encoder, batch, rows, depth)
            hidden = model.encoder.suffix(hidden, batch.get("attention_mask"), depth)
            logits = model.head(hidden[:, 0]).view(-1, R)
            loss = nn.functional.cross_entropy(logits, batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("block", ["transformer", "lstm", "conv"])
def test_whole_runs_with_and_without_the_cache_are_bit_equal(tmp_path: Path, block: str) -> None:
    with torch.random.fork_rng():
        uncached, plain = train(None, block=block)
        filling_too, _ = train(tmp_path, block=block)
        cached, model = train(tmp_path, block=block)
    assert uncached == filling_too == cached
    weights = plain.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_bf16_run_differs_by_rounding_only(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        uncached, _ = train(None)
        cached, _ = train(tmp_path, CacheConfig(cache_precision="bf16"))
    assert uncached != cached
    np.testing.assert_allclose(uncached[:8], cached[:8], rtol=1e-2)


def test_second_run_reads_without_computing(tmp_path: Path) -> None:
    encoder = make_encoder()
    opened(tmp_path, encoder)
    cache = opened(tmp_path, encoder, filled_from=never())
    assert cache.depths == (1, 2, 3)


def test_a_further_depth_is_filled_alone(tmp_path: Path) -> None:
    encoder = make_encoder()
    opened(tmp_path, encoder, depths=[3])
    before = {path: path.read_bytes() for path in tmp_path.glob("*.states")}
    assert opened(tmp_path, encoder, depths=[3, 1]).depths == (1, 3)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_encoders_that_share_their_lower_part_share_its_cache(tmp_path: Path) -> None:
    encoder = make_encoder()
    opened(tmp_path, encoder)
    with torch.no_grad():
        encoder.blocks[2].feedforward_norm.weight += 1
    assert opened(tmp_path, encoder, filled_from=never(), depths=[1, 2]).depths == (1, 2)
    opened(tmp_path, encoder, depths=[3])
    assert len(list_entries(tmp_path)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"rows": RowSet("other", features_key(make_features(seed=1)), LENGTHS)},
        {"arithmetic": "another machine"},
        {"config": CacheConfig(cache_precision="bf16")},
    ],
    ids=["texts", "arithmetic", "precision"],
)
def test_what_changes_the_states_changes_the_key(tmp_path: Path, change: dict[str, Any]) -> None:
    encoder = make_encoder()
    opened(tmp_path, encoder, depths=[2])
    opened(tmp_path, encoder, depths=[2], **change)
    assert len(list_entries(tmp_path)) == 2


def test_encoder_of_another_shape_has_its_own_entries(tmp_path: Path) -> None:
    opened(tmp_path, make_encoder(), depths=[2])
    wider = make_encoder(hidden_size=20)
    cache = opened(tmp_path, wider, depths=[2])
    rows, batch = next(batches())
    assert cache.hidden(wider, batch, rows, 2).shape[2] == 20
    assert sorted(entry.width for entry in list_entries(tmp_path)) == [16, 20]


def test_damaged_entry_is_rebuilt_with_a_note(tmp_path: Path) -> None:
    encoder = make_encoder()
    opened(tmp_path, encoder, depths=[2, 3])
    path = next(tmp_path.glob("*-02-*.states"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    notes: list[str] = []
    assert opened(tmp_path, encoder, depths=[2, 3], notes=notes).depths == (2, 3)
    assert len(notes) == 1
    assert "computed again" in notes[0]
    assert path.read_bytes() == whole


def test_budget_keeps_the_most_useful_boundaries(tmp_path: Path) -> None:
    encoder, notes = make_encoder(), []  # type: ignore[var-annotated]
    two = 2.5 * ROWS.tokens * 16 * 4 / GIB
    cache = opened(tmp_path, encoder, config=CacheConfig(cache_gib=two), notes=notes)
    assert cache.depths == (2, 3)  # the first two that were named
    assert "1 of 3 boundaries are recomputed each epoch" in notes[0]
    assert (
        opened(tmp_path, encoder, config=CacheConfig(cache_gib=0), depths=[1], notes=notes).depths
        == ()
    )


def test_older_entries_give_way_within_the_budget(tmp_path: Path) -> None:
    config = CacheConfig(cache_gib=3.5 * ROWS.tokens * 16 * 4 / GIB)
    opened(tmp_path, make_encoder(), config=config).close()
    for path in tmp_path.glob("*.json"):
        os.utime(path, (1e9, 1e9))
    assert opened(tmp_path, make_encoder(1), config=config).depths == (1, 2, 3)
    assert len(list_entries(tmp_path)) == 3


def test_folder_without_rights_is_gone_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    notes: list[str] = []
    cache = opened(blocked, make_encoder(), notes=notes)
    assert cache.depths == ()
    assert len(notes) == 1
    assert "hidden states cannot be cached" in notes[0]


def test_full_disk_is_gone_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("finetune.training.prefix.store.os.pwrite", full)
    with pytest.warns(UserWarning, match=r"cannot be cached \(No space left on device\)"):
        cache = open_cache(
            make_encoder(),
            ROWS,
            [1],
            batches(),
            folder=tmp_path,
            config=CacheConfig(),
            arithmetic="",
        )
    assert cache.depths == ()
    assert list_entries(tmp_path) == []
    assert not list(tmp_path.glob("*.partial"))


def test_cache_that_is_switched_off_touches_nothing(tmp_path: Path) -> None:
    config = CacheConfig(cache=False)
    assert opened(tmp_path, make_encoder(), filled_from=never(), config=config).depths == ()
    assert list(tmp_path.iterdir()) == []


def test_filling_leaves_modes_and_gradients_alone(tmp_path: Path) -> None:
    encoder = make_encoder().train()
    opened(tmp_path, encoder)
    assert all(part.training for part in encoder.modules())
    assert all(parameter.requires_grad for parameter in encoder.parameters())


TWO = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_cache as shared
notes, filled = [], []
def source():
    filled.append(1)
    yield from shared.batches()
cache = shared.opened(Path({folder!r}), shared.make_encoder(), filled_from=source(), notes=notes)
rows, batch = next(shared.batches())
print(len(filled), cache.depths, float(cache.hidden(shared.make_encoder(), batch, rows, 3).sum()))
"""


def test_two_processes_at_once_fill_once_and_read_the_same(tmp_path: Path) -> None:
    script = TWO.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0] for process in both)
    assert [line[:2] for line in said] == ["0 ", "1 "]
    assert said[0][1:] == said[1][1:]
    assert "(1, 2, 3)" in said[0]


def test_features_key_depends_on_ids_and_bounds_and_segments_only() -> None:
    features = [Features([1, 2, 3], [0, 0, 1], label=1), Features([4], [0])]
    same = [Features(np.array([1, 2, 3], np.int32), [0, 0, 1], label=0), Features([4], [0])]
    assert features_key(features) == features_key(same)
    for other in (
        [Features([1, 2], [0, 0]), Features([3, 4], [1, 0])],
        [Features([1, 2, 3], [0, 1, 1]), Features([4], [0])],
        [Features([1, 2, 5], [0, 0, 1]), Features([4], [0])],
    ):
        assert features_key(other) != features_key(features)


@pytest.mark.parametrize(
    ("phases", "uses"),
    [
        ([(range(4, 5), 10.0)], {3: 10.0}),  # head
        ([(range(0, 5), 3.0)], {}),  # all
        ([(range(n, 5), 1.0) for n in (4, 3, 2, 1, 0)], {3: 1.0, 2: 1.0, 1: 1.0, 0: 1.0}),
        ([(range(4, 5), 5.0), (range(0, 5), 3.0)], {3: 5.0}),  # lp-ft
        # Chain-thaw: after the embeddings were trained nothing above them is what it was.
        ([(range(n, n + 1), 1.0) for n in (4, 0, 1, 2, 3)] + [(range(0, 5), 1.0)], {3: 1.0}),
        ([(range(3, 4), 1.0), (range(4, 5), 1.0), (range(2, 5), 0.5)], {2: 1.0, 1: 0.5}),
    ],
    ids=["head", "all", "gradual", "lp-ft", "chain", "own"],
)
def test_uses_are_the_epochs_in_which_nothing_below_was_trained(
    phases: list[tuple[range, float]], uses: dict[int, float]
) -> None:
    assert uses_of(phases) == uses


def one_set(uses: dict[int, float], tokens: int = 100, about: str = "set") -> RowSet:
    return RowSet(about, "key", np.array([tokens]), uses)


def gib(boundaries: float) -> CacheConfig:
    return CacheConfig(cache_gib=boundaries * 100 * 16 * 4 / GIB)


def test_all_boundaries_are_chosen_where_there_is_room_but_never_the_embeddings() -> None:
    chosen = choose_depths([one_set({0: 1, 1: 1, 2: 1, 3: 1})], 16, CacheConfig())
    assert sorted(depth for _, depth in chosen) == [1, 2, 3]


@pytest.mark.parametrize(
    "uses", [{1: 1, 3: 2, 4: 1, 6: 3}, {d: 1 for d in range(1, 7)}, {2: 9, 6: 1}]
)
def test_chosen_boundary_saves_most_of_all(uses: dict[int, float]) -> None:
    ((_, depth),) = choose_depths([one_set(uses)], 16, gib(1))

    def work(kept: int) -> float:
        return sum(times * (d - (kept if kept <= d else 0)) for d, times in uses.items())

    assert work(depth) == min(map(work, uses))


def test_half_the_size_keeps_twice_as_many() -> None:
    config = gib(2)
    config.cache_precision = "bf16"
    assert len(choose_depths([one_set({d: 1 for d in range(1, 7)})], 16, config)) == 4


def test_small_set_takes_the_room_that_a_large_one_leaves() -> None:
    sets = [one_set({3: 1.0}, 100, "train"), one_set({3: 1.0}, 10, "validation")]
    chosen = choose_depths(sets, 16, gib(0.5))
    assert [(rows.about, depth) for rows, depth in chosen] == [("validation", 3)]


def test_budget_and_precision_are_checked() -> None:
    with pytest.raises(ConfigError, match="cache_gib must be .* from 0 to .*, got -1"):
        CacheConfig(cache_gib=-1)
    with pytest.raises(ConfigError, match="cache_precision must be one of fp32, bf16, got 'fp16'"):
        CacheConfig(cache_precision="fp16")
