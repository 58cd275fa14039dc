from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from finetune.errors import ConfigError
from finetune.text.corpus import masking
from finetune.text.corpus.masking import (
    MASKING,
    BlockRandom,
    MaskingConfig,
    choose_tokens,
    mask_blocks,
)
from finetune.text.features.pairs import IGNORED

SPECIAL = frozenset({0, 1, 2, 3, 7})  # not only the first ids
MASK, VOCAB = 3, 300
CLS, SEP, PAD = 1, 2, 0


def make_blocks(
    rows: int, length: int = 128, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Blocks of ordinary tokens between [CLS] and [SEP], a [SEP] somewhere inside, words."""
    generator = np.random.default_rng(seed)
    ids = generator.choice(np.setdiff1d(np.arange(VOCAB), list(SPECIAL)), (rows, length))
    starts = generator.random((rows, length)) < 0.6
    ids[:, 0], ids[:, -1] = CLS, SEP
    ids[np.arange(rows), generator.integers(1, length - 1, rows)] = SEP
    return ids, starts | np.isin(ids, list(SPECIAL))


def mask(
    ids: NDArray[np.int64],
    starts: NDArray[np.bool_],
    *,
    seed: int = 1,
    epoch: int = 0,
    indices: Any = None,
    **settings: Any,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return mask_blocks(
        ids,
        starts,
        MaskingConfig(**settings),
        seed=seed,
        epoch=epoch,
        block_indices=np.arange(len(ids)) if indices is None else indices,
        vocab_size=VOCAB,
        mask_token_id=MASK,
        special_ids=SPECIAL,
    )


every_masking = pytest.mark.parametrize("masking", MASKING)


@every_masking
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4])
def test_share_of_masked_tokens_is_the_rate(masking: str, rate: float) -> None:
    ids, starts = make_blocks(500)
    _, labels = mask(ids, starts, masking=masking, mask_rate=rate)
    maskable = ~np.isin(ids, list(SPECIAL))
    assert (labels != IGNORED).sum() / maskable.sum() == pytest.approx(rate, rel=0.02)


@every_masking
def test_every_place_is_masked_alike(masking: str) -> None:
    ids, starts = make_blocks(4000, length=40)
    ids[:, 1:-1][np.isin(ids[:, 1:-1], list(SPECIAL))] = 100
    _, labels = mask(ids, starts, masking=masking)
    share = (labels != IGNORED).mean(axis=0)[1:-1]
    inner = share[10:-10] if masking == "span" else share  # fewer spans reach the first words
    # Words are masked together, so the counts of a place vary like those of single blocks.
    assert np.abs(inner - inner.mean()).max() < 5 * np.sqrt(0.15 * 0.85 / 4000)


@every_masking
def test_masked_tokens_are_replaced_as_the_shares_say(masking: str) -> None:
    ids, starts = make_blocks(2000)
    masked_ids, labels = mask(ids, starts, masking=masking)
    chosen = labels != IGNORED
    replaced, original = masked_ids[chosen], ids[chosen]
    tolerance = 0.01 if masking == "span" else 0.005
    assert np.mean(replaced == MASK) == pytest.approx(0.8, abs=tolerance)
    # A random token is by chance the original once in 295 times.
    assert np.mean(replaced == original) == pytest.approx(0.1 + 0.1 / 295, abs=tolerance)


def test_shares_of_replacement_are_settings() -> None:
    ids, starts = make_blocks(50)
    chosen = mask(ids, starts)[1] != IGNORED
    masked_ids, labels = mask(ids, starts, replace_mask_share=1.0, replace_random_share=0.0)
    assert np.all(masked_ids[chosen] == MASK)
    kept, _ = mask(ids, starts, replace_mask_share=0.0, replace_random_share=0.0)
    assert np.array_equal(kept, ids)
    assert np.array_equal(labels[chosen], ids[chosen])


@every_masking
def test_random_tokens_are_ordinary_and_uniform(masking: str) -> None:
    ids, starts = make_blocks(2000)
    masked_ids, labels = mask(
        ids, starts, masking=masking, replace_mask_share=0.0, replace_random_share=1.0
    )
    counts = np.bincount(masked_ids[labels != IGNORED], minlength=VOCAB)
    assert counts[list(SPECIAL)].sum() == 0
    ordinary = np.setdiff1d(np.arange(VOCAB), list(SPECIAL))
    assert stats.chisquare(counts[ordinary]).pvalue > 1e-4


@settings(deadline=None)
@given(
    masking=st.sampled_from(MASKING),
    rate=st.floats(0.01, 1, allow_subnormal=False),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_masking_keeps_its_promises(
    masking: str, rate: float, seed: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, 30))
    ids = np.array([data.draw(st.lists(st.integers(0, 12), min_size=length, max_size=length))])
    bools = st.lists(st.booleans(), min_size=length, max_size=length)
    starts = np.array([data.draw(bools)])
    masked_ids, labels = mask(ids, starts, seed=seed, masking=masking, mask_rate=rate)
    chosen, special = labels != IGNORED, np.isin(ids, list(SPECIAL))
    assert np.array_equal(labels[chosen], ids[chosen])
    assert np.array_equal(masked_ids[~chosen], ids[~chosen])
    assert not (chosen & special).any()
    assert chosen.any() == (~special).any()
    assert not np.isin(masked_ids[chosen], list(SPECIAL - {MASK})).any()
    if masking != "token":
        assert_whole_words(chosen, starts, special)


def assert_whole_words(
    chosen: NDArray[np.bool_], starts: NDArray[np.bool_], special: NDArray[np.bool_]
) -> None:
    inside = ~starts & ~special  # continues the word of the token before it
    inside[:, 1:] &= ~special[:, :-1]
    inside[:, 0] = False
    assert np.array_equal(chosen[:, 1:][inside[:, 1:]], chosen[:, :-1][inside[:, 1:]])


@every_masking
def test_masks_do_not_hang_on_the_batch(masking: str) -> None:
    ids, starts = make_blocks(64)
    indices = np.arange(1000, 1064)
    whole = mask(ids, starts, masking=masking, indices=indices)
    order = np.random.default_rng(0).permutation(64)
    shuffled = mask(ids[order], starts[order], masking=masking, indices=indices[order])
    alone = mask(ids[5:6], starts[5:6], masking=masking, indices=[1005])
    for together, mixed, single in zip(whole, shuffled, alone, strict=True):
        assert np.array_equal(together[order], mixed)
        assert np.array_equal(together[5:6], single)


@every_masking
def test_masks_follow_seed_epoch_and_block(masking: str) -> None:
    ids, starts = make_blocks(8)
    ids, starts = np.repeat(ids[:1], 8, axis=0), np.repeat(starts[:1], 8, axis=0)
    _, first = mask(ids, starts, masking=masking)
    for other in ({"seed": 2}, {"epoch": 1}, {"indices": np.arange(8) + 8}):
        assert not np.array_equal(mask(ids, starts, masking=masking, **other)[1], first)
    assert len({row.tobytes() for row in first}) == 8


def test_static_masks_are_the_first_epochs_for_ever() -> None:
    ids, starts = make_blocks(8)
    first = mask(ids, starts, masks="dynamic")
    for epoch in (0, 1, 7):
        later = mask(ids, starts, epoch=epoch, masks="static")
        assert all(np.array_equal(a, b) for a, b in zip(first, later, strict=True))
    assert not np.array_equal(mask(ids, starts, epoch=1)[1], first[1])


def test_two_epochs_overlap_by_chance_only() -> None:
    ids, starts = make_blocks(500)
    first, second = (mask(ids, starts, epoch=epoch)[1] != IGNORED for epoch in (0, 1))
    assert (first & second).sum() / first.sum() == pytest.approx(0.15, abs=0.01)


def test_token_masking_takes_the_rate_rounded_up_or_down() -> None:
    ids, starts = make_blocks(100)
    _, labels = mask(ids, starts)
    exact = 0.15 * (~np.isin(ids, list(SPECIAL))).sum(axis=1)
    taken = (labels != IGNORED).sum(axis=1)
    assert np.all(np.abs(taken - exact) < 1)
    assert set(taken.tolist()) == {18, 19}


def mean_run(masking: str) -> float:
    """Mean length of the runs of masked words, where each word is one token."""
    ids = np.full((500, 400), 100)
    config = MaskingConfig(masking=masking, mask_rate=0.025)
    chosen, _ = choose_tokens(ids > 0, ids > 0, config, BlockRandom(1, 0, np.arange(500)))
    begins = np.diff(chosen.astype(int), axis=1, prepend=0) == 1
    return float(chosen.sum() / begins.sum())


def test_spans_are_runs_of_words() -> None:
    assert mean_run("token") == mean_run("word") < 1.1
    assert mean_run("span") > 2.5  # below the mean of 3.8, as the budget of 10 words cuts spans


def test_span_lengths_are_those_of_the_paper() -> None:
    from finetune.text.corpus.masking import _span_lengths

    lengths = _span_lengths(MaskingConfig(), BlockRandom(1, 0, np.arange(1000)), 100).ravel()
    weights = 0.2 * 0.8 ** np.arange(10)
    expected = len(lengths) * weights / weights.sum()
    assert stats.chisquare(np.bincount(lengths)[1:], expected).pvalue > 1e-4
    assert lengths.mean() == pytest.approx(3.8, abs=0.05)  # as SpanBERT states it


def test_span_of_one_word_is_whole_word_masking() -> None:
    ids, starts = make_blocks(20)
    word = mask(ids, starts, masking="word")[1]
    span = mask(ids, starts, masking="span", span_max=1)[1]
    assert np.array_equal(word, span)


def test_span_is_replaced_as_one() -> None:
    ids, starts = make_blocks(300)
    masked_ids, labels = mask(ids, starts, masking="span", mask_rate=0.03)
    chosen = labels != IGNORED
    neighbours = chosen[:, 1:] & chosen[:, :-1]
    kinds = np.where(masked_ids == MASK, 0, np.where(masked_ids == ids, 1, 2))
    same = (kinds[:, 1:] == kinds[:, :-1])[neighbours].mean()
    assert same > 0.97  # apart, two tokens agree in 0.8² + 0.1² + 0.1² = 66 % of cases


def test_no_span_goes_across_a_special_token() -> None:
    from finetune.text.corpus.masking import _NEVER, _priority_of_spans

    priority = np.array([[1, 50, 60, _NEVER, 70, 80]], dtype=np.uint64)
    lengths = np.array([[6, 1, 1, 1, 2, 1]])
    assert _priority_of_spans(priority, lengths).tolist() == [[1, 1, 1, int(_NEVER), 70, 70]]


def test_word_longer_than_the_budget_is_masked_only_for_want_of_others() -> None:
    ids, starts = np.full((200, 22), 100), np.ones((200, 22), dtype=bool)
    ids[:, 0], ids[:, -1] = CLS, SEP
    starts[:, 2:12] = False  # a word of 11 tokens; the budget is 3
    _, labels = mask(ids, starts, masking="word")
    assert not (labels[:, 1:12] != IGNORED).any()
    starts[:, 13:21] = False
    _, labels = mask(ids, starts, masking="word")
    assert np.all((labels != IGNORED).sum(axis=1) >= 9)


def test_block_without_ordinary_tokens_stays_as_it_is() -> None:
    ids = np.array([[CLS, SEP, PAD, PAD], [CLS, 100, SEP, PAD]])
    masked_ids, labels = mask(ids, np.ones_like(ids, dtype=bool), replace_mask_share=1.0,
                              replace_random_share=0.0)  # fmt: skip
    assert masked_ids.tolist() == [[CLS, SEP, PAD, PAD], [CLS, MASK, SEP, PAD]]
    assert labels.tolist() == [[IGNORED] * 4, [IGNORED, 100, IGNORED, IGNORED]]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("masking", "words", "masking must be one of .*, got 'words'; did you mean 'word'"),
        ("masks", "fixed", "masks must be one of dynamic, static, got 'fixed'"),
        ("mask_rate", 0.0, "mask_rate must be a number above 0 and at most 1, got 0.0"),
        (
            "span_geometric_p",
            1.5,
            "span_geometric_p must be a number above 0 and at most 1, got 1.5",
        ),
        ("replace_random_share", 0.3, "together be at most 1, got 0.8 and 0.3"),
        ("replace_mask_share", -0.1, "replace_mask_share must be .* from 0 .*, got -0.1"),
        ("span_max", 0, "span_max must be .* from 1 to .*, got 0"),
    ],
)
def test_setting_out_of_range_is_an_error(setting: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MaskingConfig(**{setting: value})


def test_the_example_of_eight_tokens_is_computed() -> None:
    result = doctest.testmod(masking)
    assert result.attempted > 0
    assert result.failed == 0
