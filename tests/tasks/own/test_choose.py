from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from finetune.elementary.baselines import applicable, fit
from finetune.encoder import Encoder
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import ALL_POOLINGS, HeadConfig
from finetune.heads.protocol import mask_choices
from finetune.task.interface import Example
from finetune.text.features.files import load_features, save_features
from finetune.text.features.pairs import collate
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.finetuner import FineTuner
from finetune.training.regularization import (
    RegularizationConfig,
    check_regularization,
    symmetric_kl,
)
from tasks.own.choose import ChooseTask, choose_task, chosen
from tests.made.nets import tiny_config

ROW = {"context": "Tom is in.", "question": "Who is in?", "options": ["Ann", "Tom", "Bob"]}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def task_of(tmp_path: Path, *rows: dict[str, Any], split: str = "train") -> ChooseTask:
    return choose_task({split: write(tmp_path / f"{split}.jsonl", *rows)})


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, "answer": "B", **changes}


class TestAnswers:
    @pytest.mark.parametrize("answer", ["B", " B ", 1, "1", "Tom", " Tom "])
    def test_a_letter_a_number_from_0_and_a_text_mean_the_same(
        self, answer: Any, tmp_path: Path
    ) -> None:
        (example,) = task_of(tmp_path, row(answer=answer)).examples("train")
        assert example == Example(0, ("Tom is in.", "Who is in?", "Ann", "Tom", "Bob"), "B")

    @pytest.mark.parametrize(
        "answer", ["D", "b", "AB", "Z", "", "tom", "Eve", 3, -1, 1.0, True, None, ["B"], "3", "-1"]
    )
    def test_an_answer_that_is_no_option_names_the_line(self, answer: Any, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(), row(answer=answer))
        with pytest.raises(
            DataError,
            match="train.jsonl:2: expected an answer of A to C, 0 to 2 or an option's text, got ",
        ) as error:
            task.examples("train")
        assert str(error.value).endswith(json.dumps(answer))

    @pytest.mark.parametrize(
        ("options", "answer", "meant"),
        [
            (["x", "y", "x"], "x", "A, C"),  # a text that is there twice
            (["B", "A", "C"], "A", "A, B"),  # the letter of one, the text of another
            (["2", "1", "0"], "0", "A, C"),  # the number of one, the text of another
        ],
    )
    def test_an_answer_that_may_mean_several_options_is_an_error(
        self, options: list[str], answer: str, meant: str
    ) -> None:
        with pytest.raises(
            DataError,
            match=f'f:2: expected .*, got "{answer}", which may be any of {meant}; write its',
        ):
            chosen(answer, options, "f:2")

    def test_an_answer_that_means_one_option_in_two_ways_is_that_option(self) -> None:
        assert chosen("B", ["A", "B", "C"], "f:1") == 1
        assert chosen("1", ["0", "1"], "f:1") == 1
        assert chosen("A", ["x", "x"], "f:1") == 0
        assert chosen(0, ["1", "0"], "f:1") == 0

    @given(st.lists(st.text(max_size=8), min_size=2, max_size=26), st.data())
    def test_a_number_always_finds_its_option(
        self, options: list[str], data: st.DataObject
    ) -> None:
        number = data.draw(st.integers(0, len(options) - 1))
        assert chosen(number, options, "f:1") == number
        try:
            assert (
                options[chosen(options[number], options, "f:1")].strip() == options[number].strip()
            )
        except DataError as error:
            assert "which may be any of" in str(error)  # noqa: PT017

    def test_training_needs_an_answer_and_a_test_file_does_not(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError,
            match="train.jsonl:1: expected a field answer or label, got the fields cont",
        ):
            task_of(tmp_path, ROW).examples("train")
        rows = ROW, row(answer=None), row(answer=""), {**ROW, "label": -1}, row(answer="C")
        examples = task_of(tmp_path, *rows, split="test").examples("test")
        assert [example.label for example in examples] == [None] * 4 + ["C"]


class TestFiles:
    @pytest.mark.parametrize("count", [2, 3, 5, 26])
    def test_the_number_of_options_is_that_of_the_data(self, count: int, tmp_path: Path) -> None:
        options = [f"option {number}" for number in range(count)]
        task = task_of(tmp_path, row(options=options), row(options=options, answer=count - 1))
        assert task.sequences_per_example == count
        assert task.labels == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count])
        assert task.examples("train")[1].label == task.labels[-1]

    @pytest.mark.parametrize("count", [0, 1, 27])
    def test_too_few_options_or_too_many_are_an_error_with_the_line(
        self, count: int, tmp_path: Path
    ) -> None:
        task = task_of(tmp_path, row(), row(options=["B"] * count))
        with pytest.raises(
            DataError, match=f"train.jsonl:2: expected 2 to 26 options, got {count}"
        ) as error:
            task.examples("train")
        assert "\n" not in str(error.value)

    def test_unequally_many_options_are_those_of_the_longest_question(self, tmp_path: Path) -> None:
        train = write(tmp_path / "t.jsonl", row(), row(options=["x", "Tom"]))
        other = write(tmp_path / "v.jsonl", row(options=["x", "Tom", "y", "z"]))
        task = choose_task({"train": train, "validation": other})
        assert task.labels == ("A", "B", "C", "D")
        assert [len(example.texts) - 2 for example in task.examples("train")] == [3, 2]
        (note,) = task.notes()
        assert note.startswith(
            "options of a question: 2 in 1, 3 in 1, 4 in 1; options that it lack"
        )
        assert task_of(tmp_path, row(), row()).notes() == []
        known = choose_task({"validation": other}, ["A", "B", "C"])
        with pytest.raises(
            DataError, match=r"v.jsonl:1: expected at most 3 options \(A, B, C\), go"
        ):
            known.examples("validation")

    def test_a_table_leaves_the_cells_of_options_empty_that_a_question_lacks(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "train.csv"
        path.write_text("sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,2\na,b,c,d,,1\n")
        task = choose_task({"train": path})
        assert [example.texts[2:] for example in task.examples("train")] == [
            ("c", "d", "e"),
            ("c", "d"),
        ]
        path.write_text("sent1,sent2,ending0,ending1,ending2,label\na,b,c,,e,2\n")
        with pytest.raises(DataError, match="train.csv:2: expected a text for every option, got"):
            task.examples("train")

    def test_files_of_swags_form_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "train.csv"
        path.write_text(
            "video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
            'v1,"A man, old, sits.",He,runs.,"says ""no"".",eats.,sleeps.,2\n'
        )
        task = choose_task({"train": path})
        texts = ("A man, old, sits.", "He", "runs.", 'says "no".', "eats.", "sleeps.")
        assert task.examples("train") == [Example(0, texts, "C")]
        assert task.labels == ("A", "B", "C", "D")

    def test_packed_lines_with_windows_ends_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "train.jsonl.gz"
        path.write_bytes(gzip.compress(f"{json.dumps(row())}\r\n".encode("utf-8-sig")))
        task = choose_task({"train": path})
        assert task.examples("train")[0].label == "B"
        assert task.data_files("train") == [path]

    def test_ids_are_the_files_own_or_the_rows_numbers(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(id="q7"), row(), row(id=12), row(id=""))
        assert [example.id for example in task.examples("train")] == ["q7", 1, 12, 3]

    def test_an_id_that_comes_twice_names_both_lines(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(id="q7"), row(), row(id="q7"))
        with pytest.raises(
            DataError,
            match="train.jsonl:3: expected an id of its own, got 'q7' a second .*jsonl:1",
        ):
            task.examples("train")

    def test_an_id_is_a_text_or_a_number(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"train.jsonl:1: expected a text or a number as id, got"
        ):
            task_of(tmp_path, row(id=[1])).examples("train")

    def test_cut_json_names_the_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "train.jsonl", row(), row())
        path.write_text(path.read_text()[:-20])
        with pytest.raises(DataError, match="train.jsonl:2: ") as error:
            choose_task({"train": path}).examples("train")
        assert "\n" not in str(error.value)

    def test_an_empty_file_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "train.jsonl"
        path.write_text("")
        with pytest.raises(DataError, match="train.jsonl: expected rows of questions, got none"):
            choose_task({"train": path}).examples("train")
        with pytest.raises(DataError, match="train.jsonl: expected rows of questions, got none"):
            _ = choose_task({"train": path}).labels

    def test_no_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match="expected the train file of choose/own at .*gone.jsonl, got none"
        ):
            choose_task({"train": tmp_path / "gone.jsonl"}).examples("train")

    @pytest.mark.parametrize("hole", ["", " ", "\u200b", None, float("nan")])
    def test_an_option_without_a_text_is_an_error_with_counts(
        self, hole: Any, tmp_path: Path
    ) -> None:
        holed = row(options=["Ann", "Tom", hole])
        message = (
            r"train.jsonl:2: expected a text for every option, got option C empty, and an empty "
            r"one in 2 of 3 questions: lines 2, 3; write"
        )
        with pytest.raises(DataError, match=message):
            task_of(tmp_path, row(), holed, holed).examples("train")

    def test_doubled_options_are_told(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(), row(options=["Ann", "Tom", "Ann "]))
        (message,) = task.warnings(task.examples("train"), [])
        assert message.startswith("1 of 2 questions has the same option twice")
        assert "'Ann' of question 1;" in message
        assert not task.warnings(task.examples("train")[:1], [])

    def test_empty_questions_and_contexts_are_counted(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(question=""), row(context="\u200b"), row(context=" "))
        facts = task.describe(task.examples("train"))
        assert (facts["empty_questions"], facts["empty_contexts"]) == (1, 2)

    @pytest.mark.parametrize("key", ["B", "2"])
    @pytest.mark.parametrize("form", ["nested", "listed", "hub"])
    def test_files_of_arcs_form_are_read(self, form: str, key: str, tmp_path: Path) -> None:
        names = ["1", "2", "3"] if key.isdigit() else ["A", "B", "C"]
        listed = [
            {"label": name, "text": text} for name, text in zip(names, ROW["options"], strict=True)
        ]
        one: dict[str, Any] = {"id": "q", "question": "Who is in?", "answerKey": key}
        one |= {
            "nested": {"question": {"stem": "Who is in?", "choices": listed}},
            "listed": {"choices": listed, "context": "Tom is in."},
            "hub": {"choices": {"label": names, "text": ROW["options"]}},
        }[form]
        passage = "Tom is in." if form == "listed" else ""
        task = task_of(tmp_path, one)
        (example,) = task.examples("train")
        assert example == Example("q", (passage, "Who is in?", "Ann", "Tom", "Bob"), "B")
        assert task.example(one, "f:1", 0).texts == example.texts

    def test_an_answer_key_that_names_no_choice_is_an_error(self, tmp_path: Path) -> None:
        one = {
            "question": "?",
            "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}],
        }
        with pytest.raises(DataError, match=r"train.jsonl:1: expected an answerKey of A, B, got"):
            task_of(tmp_path, {**one, "answerKey": "C"}).examples("train")


class TestTask:
    def test_splits_are_those_with_files(self, tmp_path: Path) -> None:
        task = choose_task({"train": Path("a.jsonl"), "validation": Path("b.jsonl")})
        assert (task.name, task.train_split, task.monitor) == ("choose/own", "train", "accuracy")
        assert (task.validation_splits, task.test_splits) == (("validation",), ())
        task = choose_task({"test": Path("a.jsonl")})
        assert (task.train_split, task.validation_splits, task.test_splits) == (None, (), ("test",))

    def test_unknown_splits_are_errors(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="choose/own has no dev split, got the file x for it"):
            choose_task({"dev": Path("x")})
        with pytest.raises(DataError, match="choose/own has no split 'test'; choose one of train"):
            task_of(tmp_path, row()).examples("test")

    def test_without_files_a_trained_heads_options_are_its_own(self) -> None:
        task = choose_task({}, labels=["A", "B", "C"])
        assert task.sequences_per_example == 3
        assert task.example(ROW, "f:1", 4) == Example(
            4, ("Tom is in.", "Who is in?", *ROW["options"])
        )
        assert task.example({**ROW, "options": ["x", "y"]}, "f:1", 0).texts[2:] == ("x", "y")
        with pytest.raises(DataError, match=r"f:1: expected at most 3 options \(A, B, C\), got 4"):
            task.example({**ROW, "options": ["x", "y", "z", "w"]}, "f:1", 0)
        with pytest.raises(
            ConfigError, match="expected a file of questions or a trained run, got nei"
        ):
            _ = choose_task({}).labels

    @pytest.mark.parametrize("labels", [["no", "yes"], [], ["A", "C"]])
    def test_the_head_of_another_task_is_refused(self, labels: list[str]) -> None:
        with pytest.raises(
            CheckpointError, match="choose/own: expected a head for the options A, B, "
        ):
            choose_task({}, labels=labels)

    def test_a_heads_order_permutes_features_and_names_alike(
        self, tmp_path: Path, tokenizer: Tokenizer
    ) -> None:
        path = write(tmp_path / "train.jsonl", row())
        usual, moved = choose_task({"train": path}), choose_task({"train": path}, ["C", "A", "B"])
        examples = usual.examples("train")
        assert moved.examples("train") == examples
        features = usual.features(examples, tokenizer, 32, training=False)
        others = moved.features(examples, tokenizer, 32, training=False)
        assert [f.input_ids for f in others] == [features[i].input_ids for i in (2, 0, 1)]
        assert ({f.label for f in features}, {f.label for f in others}) == ({1}, {2})
        logits = np.array([[0.1, 0.9, 0.3]])
        assert usual.answers(logits, examples, []) == moved.answers(
            logits[:, [2, 0, 1]], examples, []
        )

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_from_file_to_accuracy(self, count: int, tmp_path: Path, tokenizer: Tokenizer) -> None:
        options = ["The cat", "sat", "\u0000?", "🙂", "שלום"][:count]
        task = task_of(tmp_path, *[row(options=options, answer=n % count) for n in range(5)])
        examples = task.examples("train")
        features = task.features(examples, tokenizer, 24, training=False)
        torch.manual_seed(0)
        config = tiny_config(vocab_size=100, hidden_size=8)
        head = task.head(config, HeadConfig()).eval()
        batch = collate(
            features, list(range(5)), tokenizer.pad_token_id, rows=task.sequences_per_example
        )
        assert batch["labels"].tolist() == [n % count for n in range(5)]
        hidden = torch.nn.Embedding(100, 8)(batch["input_ids"])
        with torch.no_grad():
            logits = head(hidden, batch.get("attention_mask"))
        assert logits.shape == (5, count)
        answers = task.answers(logits.numpy(), examples, features)
        right = sum(a["prediction"] == e.label for a, e in zip(answers, examples, strict=True))
        assert task.score(answers) == {"accuracy": right / 5}
        assert task.describe(examples) == {"questions_filled": 0.0, "questions_joined": 1.0}


class TestUnequalOptions:
    """A question with fewer options than others is what it is in data where all have so many."""

    @pytest.mark.parametrize("pooling", ALL_POOLINGS)
    def test_loss_gradients_and_answers_are_those_of_equally_many(
        self, pooling: str, tmp_path: Path, tokenizer: Tokenizer
    ) -> None:
        rows = [row(options=["Tom is", "a cat"]), row(options=["sat", "on", "mats", "x"], answer=3)]
        files = [tmp_path / f"{name}.jsonl" for name in ("both", "first", "second")]
        tasks = [
            choose_task({"train": write(path, *some)})
            for path, some in zip(files, (rows, rows[:1], rows[1:]), strict=True)
        ]
        losses, gradients, answers = [], [], []
        for task in tasks:
            examples = task.examples("train")
            features = task.features(examples, tokenizer, 24, training=True)
            torch.manual_seed(0)
            config = tiny_config(vocab_size=100, hidden_size=8)
            encoder, head = Encoder(config).eval(), task.head(config, HeadConfig(pooling)).eval()
            tuner = FineTuner(encoder, head, task)
            count = task.sequences_per_example
            batch = collate(features, range(len(examples)), tokenizer.pad_token_id, rows=count)
            logits = tuner.eval()(batch)
            loss = head.loss(logits, batch["labels"])
            loss.backward()
            losses.append(loss.item())
            gradients.append([one.grad for one in tuner.parameters()])
            answers.append(task.answers(logits.detach().numpy(), examples, features))
        assert losses[0] == pytest.approx((losses[1] + losses[2]) / 2, rel=1e-5)
        for whole, *parts in zip(*gradients, strict=True):
            assert (whole is None) == (parts[0] is None)
            if whole is not None:
                torch.testing.assert_close(whole, sum(parts) / 2, rtol=1e-4, atol=1e-6)
        for answer, (alone,) in zip(answers[0], answers[1:], strict=True):
            assert answer["prediction"] == alone["prediction"]
            assert answer["probabilities"] == pytest.approx(alone["probabilities"], rel=1e-4)
        assert list(answers[0][0]["probabilities"]) == ["A", "B"]

    def test_no_output_can_choose_an_option_that_is_not_there(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(options=["x", "Tom"]), row())
        answers = task.answers(np.array([[0.0, 1.0, 9.0]] * 2), task.examples("train"), [])
        assert [answer["prediction"] for answer in answers] == ["B", "C"]
        moved = choose_task(task.files, ["C", "A", "B"])
        answers = moved.answers(np.array([[9.0, 0.0, 1.0]] * 2), task.examples("train"), [])
        assert [answer["prediction"] for answer in answers] == ["B", "C"]

    def test_what_the_softmax_sees_is_masked_in_r_drop_and_label_smoothing_refused(
        self, tmp_path: Path
    ) -> None:
        logits = mask_choices(torch.tensor([[1.0, 2.0, 50.0]]), torch.tensor([[True, True, False]]))
        other = mask_choices(torch.tensor([[0.5, 2.0, -3.0]]), torch.tensor([[True, True, False]]))
        torch.testing.assert_close(
            symmetric_kl(logits, other), symmetric_kl(logits[:, :2], other[:, :2])
        )
        config = tiny_config(vocab_size=100, hidden_size=8)
        head = task_of(tmp_path, row(), row(options=["x", "Tom"])).head(config, HeadConfig())
        with pytest.raises(ConfigError, match="got questions with unequally many; leave it out"):
            check_regularization(RegularizationConfig(label_smoothing=0.1), head)
        check_regularization(RegularizationConfig(r_drop=1.0), head)

    def test_tokenized_questions_come_back_from_the_cache(
        self, tmp_path: Path, tokenizer: Tokenizer
    ) -> None:
        task = task_of(tmp_path, row(options=["x", "Tom"]), row())
        features = task.features(task.examples("train"), tokenizer, 24, training=True)
        assert [len(one.input_ids) > 0 for one in features] == [True, True, False, *[True] * 3]
        save_features(features, tmp_path / "f.npz")
        assert load_features(tmp_path / "f.npz") == features

    def test_the_sliding_window_has_no_score_for_it(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, row(options=["x", "Tom is"]), row())
        examples = task.examples("train")
        assert applicable(task, examples) == ["sliding_window"]
        assert [one["prediction"] for one in fit("sliding_window", task, [])(examples)] == [
            "B",
            "B",
        ]
