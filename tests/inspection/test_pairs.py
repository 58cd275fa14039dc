"""Minimal pairs: scores against loops by hand, BLiMP's form, ties, and bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.checkpoints.folder import save_checkpoint
from finetune.errors import CheckpointError, DataError
from finetune.inspection import pairs as pairs_module
from finetune.inspection.pairs import (
    Pair,
    SentenceScorer,
    judge_pairs,
    pairs_table,
    read_pairs,
    wilson,
)
from finetune.jobs.sources import load_language_model
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from tests.made.nets import tiny_encoder
from tests.made.texts import sentences

GOOD, BAD = sentences(2, 8)[:6], sentences(3, 8)[:6]


def module_for(tokenizer: Tokenizer, **changes: Any) -> Pretrainer:
    """With a vocabulary rounded up: rows that name nothing."""
    encoder = tiny_encoder(vocab_size=tokenizer.vocab_size + 4, **changes)
    return Pretrainer(encoder).eval()


def blimp(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(good: str, bad: str, **more: Any) -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad, **more}


@torch.no_grad()
def by_hand(module: Pretrainer, tokenizer: Tokenizer, text: str) -> float:
    """One token at a time, and one sequence at a time."""
    ids, total = tokenizer.encode_ids([text])[0], 0.0
    for place, token in enumerate(ids):
        if module.encoder.config.causal:
            inputs = [tokenizer.cls_token_id, *ids[:place]]
            asked = place
        else:
            inputs = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            asked = place + 1
            inputs[asked] = tokenizer.mask_token_id
        hidden = module.encoder({"input_ids": torch.tensor([inputs])}).last_hidden_state
        logits = module.head(hidden[0, asked : asked + 1])[0, : tokenizer.vocab_size].double()
        total += math.log(logits.exp()[token] / logits.exp().sum())
    return total


@pytest.mark.parametrize(
    "variant", [{}, {"causal": True}, {"causal": True, "position": "relative"}], ids=str
)
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_scores_are_those_of_a_loop_by_hand(
    variant: dict[str, Any], batch_size: int, tokenizer: Tokenizer
) -> None:
    module = module_for(tokenizer, **variant)
    scorer = SentenceScorer(module, tokenizer, batch_size=batch_size)
    texts = [*GOOD, *BAD, "cat"]
    found = scorer.score([tuple(ids) for ids in tokenizer.encode_ids(texts)])
    assert found == pytest.approx([by_hand(module, tokenizer, text) for text in texts], rel=1e-5)


def saved(folder: Path, tokenizer: Tokenizer, **changes: Any) -> Path:
    module = module_for(tokenizer, **changes)
    model = torch.nn.ModuleDict({"encoder": module.encoder, "head": module.get_submodule("head")})
    config, head = module.encoder.config, {"kind": "masked_lm"}
    save_checkpoint(folder, model, tokenizer, encoder_config=config, head=head)
    return folder


@pytest.mark.parametrize("causal", [True, False])
def test_accuracy_is_that_of_the_scores_by_phenomenon(
    causal: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run = saved(tmp_path / "run", tokenizer, causal=causal)
    (module, _), made = load_language_model(run), []
    for number, (good, bad) in enumerate(zip(GOOD, BAD, strict=True)):
        term = "agreement" if number < 4 else "islands"
        more = {"linguistics_term": term, "UID": f"{term}_{number % 2}", "field": "syntax"}
        made.append(row(good, bad, **more, one_prefix_method=True))
    judged = judge_pairs(run, [blimp(tmp_path / "it.jsonl", made)])
    hand = [
        by_hand(module, tokenizer, good) > by_hand(module, tokenizer, bad)
        for good, bad in zip(GOOD, BAD, strict=True)
    ]
    assert judged["score"] == ("log-likelihood" if causal else "pseudo-log-likelihood")
    assert judged["all"]["accuracy"] == sum(hand) / 6
    assert judged["phenomena"]["agreement"]["accuracy"] == sum(hand[:4]) / 4
    assert judged["phenomena"]["islands"]["accuracy"] == sum(hand[4:]) / 2
    assert {name: one["pairs"] for name, one in judged["paradigms"].items()} == {
        "agreement_0": 2,
        "agreement_1": 2,
        "islands_0": 1,
        "islands_1": 1,
    }
    lines = pairs_table(judged).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["agreement", "islands", "all"]


def test_a_tie_is_wrong(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = saved(tmp_path / "run", tokenizer)
    # Unknown characters: to the net both sentences are the same, and the scores to the last bit.
    file = blimp(tmp_path / "it.jsonl", [row("the cat \u4e2d", "the cat \u56fd")] * 2)
    judged = judge_pairs(run, [file], batch_size=1)
    assert (judged["all"]["accuracy"], judged["all"]["ties"]) == (0.0, 2)
    assert judged["unknown_tokens"] == 4


@pytest.mark.parametrize("causal", [True, False])
def test_a_sentence_without_a_token_is_not_the_more_probable_one(
    causal: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run = saved(tmp_path / "run", tokenizer, causal=causal)
    file = blimp(tmp_path / "it.jsonl", [row("the cat", "cat the"), row("\u200b", "the cat")])
    with pytest.raises(DataError, match="it.jsonl:2: expected two sentences .* no token is left"):
        judge_pairs(run, [file])


def test_groups_without_names_are_those_of_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    blimp(folder / "b.jsonl", [row("a b", "b a", UID="swap")])
    blimp(folder / "a.jsonl", [row("a", "b"), row("b", "c")])
    found = read_pairs([folder])
    assert [(one.phenomenon, one.paradigm) for one in found] == [("a", "a")] * 2 + [("swap",) * 2]
    assert found[1].where.endswith("a.jsonl:2")


PUBLISHED = """\
{"sentence_good": "Who did Ann see after leaving Bob?", "sentence_bad": "Who did Ann see Bob after \
leaving?", "field": "syntax", "linguistics_term": "island_effects", "UID": "adjunct_island", \
"simple_LM_method": true, "one_prefix_method": false, "two_prefix_method": false, \
"lexically_identical": true, "pairID": "0"}
{"sentence_good": "A girl hurt herself.", "sentence_bad": "A girl hurt himself.", "field": \
"morphology", "linguistics_term": "anaphor_agreement", "UID": "anaphor_gender_agreement", \
"simple_LM_method": true, "one_prefix_method": true, "two_prefix_method": false, \
"lexically_identical": false, "one_prefix_prefix": "A girl hurt", "one_prefix_word_good": \
"herself", "one_prefix_word_bad": "himself", "pairID": "17"}
"""  # the fields of github.com/alexwarstadt/blimp, data/*.jsonl, with sentences of our own


def test_the_published_form_is_read(tmp_path: Path) -> None:
    (tmp_path / "anaphor_gender_agreement.jsonl").write_text(PUBLISHED, encoding="utf-8")
    first, second = read_pairs([tmp_path])
    assert (first.good, first.bad) == (
        "Who did Ann see after leaving Bob?",
        "Who did Ann see Bob after leaving?",
    )
    assert (first.phenomenon, first.paradigm) == ("island_effects", "adjunct_island")
    assert (second.phenomenon, second.paradigm) == (
        "anaphor_agreement",
        "anaphor_gender_agreement",
    )


def test_a_limit_draws_from_each_paradigm(tmp_path: Path) -> None:
    pairs = [Pair(str(n), "a", "b", "all", "even" if n % 2 == 0 else "odd") for n in range(20)]
    some = pairs_module._limited(pairs, 3, seed=1)
    assert [one.paradigm for one in some] == ["even"] * 3 + ["odd"] * 3
    assert some == pairs_module._limited(pairs, 3, seed=1)


@pytest.mark.parametrize(("right", "count"), [(0, 10), (10, 10), (31, 60), (500, 1000)])
def test_the_interval_holds_what_a_score_test_does_not_refuse(right: int, count: int) -> None:
    for end in wilson(right, count):
        distance = abs(right / count - end) / math.sqrt(max(end * (1 - end), 1e-30) / count)
        assert distance == pytest.approx(1.959964, rel=1e-4) or end in (0.0, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"sentence_good": "a"}',
            "it.jsonl:2: expected a sentence in sentence_bad, got the fields",
        ),
        (
            '{"sentence_good": "a", "sentence_bad": " "}',
            "it.jsonl:2: expected .* sentence_bad, got ' '",
        ),
        ('{"sentence_good": "a", "sentence_bad": "a"}', "it.jsonl:2: expected two sentences that"),
        ('{"sentence_good": "a", ', "it.jsonl:2"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "it.jsonl"
    file.write_text(json.dumps(row("a b", "b a")) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_pairs([file])


def test_what_holds_no_pairs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match=r"empty.jsonl: expected minimal pairs, got none"):
        read_pairs([tmp_path / "empty.jsonl"])
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"expected a folder with .jsonl files, got none in it"):
        read_pairs([tmp_path / "folder"])


def test_a_long_sentence_and_another_head_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = saved(tmp_path / "run", tokenizer)
    file = blimp(tmp_path / "it.jsonl", [row("cat " * 200, "dog")])
    with pytest.raises(DataError, match=r"it.jsonl:1: expected sentences of at most \d+ tokens"):
        judge_pairs(run, [file])
    encoder = tiny_encoder(vocab_size=tokenizer.vocab_size)
    other = torch.nn.ModuleDict({"encoder": encoder})
    save_checkpoint(tmp_path / "other", other, tokenizer, encoder_config=encoder.config, head={})
    with pytest.raises(CheckpointError, match="expected a pretraining run, whose head names words"):
        judge_pairs(tmp_path / "other", [file])
