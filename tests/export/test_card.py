"""The model card: what the run's files say, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune.checkpoints.folder import Checkpoint
from finetune.export.card import MOST_CLASSES, Terms, model_card, write_card
from finetune.export.source import Source
from tests.made.nets import tiny_config

VERSIONS = {"python": "3.12.1", "torch": "2.13.0"}


def one(seed: int, accuracy: float) -> dict[str, Any]:
    """What a run of one seed leaves."""
    return {
        "task": "family/task",
        "split": "validation",
        "metrics": {"accuracy": accuracy, "f1": accuracy / 2},
        "examples": 1043,
        "seed": seed,
        "encoder": "runs/tiny",
        "parameters": 1446146,
        "train_seconds": 63.4,
        "examples_per_second": 809.7,
        "peak_gib": 0.562,
        "versions": VERSIONS,
        "collapsed": False,
        "baselines": {"trivial": {"accuracy": 0.25}},
        "data": {
            "train": {"files": ["/home/ada/data/x/train.tsv"], "examples": 8551, "trimmed": 0.125},
            "validation": {"files": ["x/dev.tsv"], "examples": 1043, "classes": {"a": 3, "b": 4}},
            "padding": 0.02,
        },
    }


def seeds() -> dict[str, Any]:
    """What a run of two seeds leaves."""
    metrics = {"accuracy": {"mean": 0.6, "std": 0.1414, "values": [0.5, 0.7]}}
    first = {"task": "family/task", "split": "validation", "seeds": [1, 2], "metrics": metrics}
    return {**first, "collapsed": [], "runs": [one(1, 0.5), one(2, 0.7)]}


SETTINGS: dict[str, Any] = {
    "encoder_from": "/home/ada/runs/tiny",
    "task": "family/task",
    "data": "/home/ada/data",
    "train": "/home/ada/own.csv",
    "seeds": None,
    "seed": 3,
    "max_length": 64,
    "out": "/home/ada/runs/it",
    "encoder": {"hidden_size": 999},
    "optimizer": {"learning_rate": 3e-05, "rate_decay": None},
    "trainer": {"progress": True, "precision": "32-true"},
    "tracking": {"project": "secret"},
}


def source(
    kind: str = "classification",
    labels: tuple[str, ...] = ("no", "yes"),
    decision: dict[str, float] | None = None,
    **parts: Any,
) -> Source:
    head = {"kind": kind}
    config = tiny_config(hidden_size=24)
    checkpoint = Checkpoint(Path("it"), config, head, None, labels, decision or {})
    return Source(checkpoint, **parts)


def card(given: Source, **more: Any) -> str:
    return model_card(given, title="it", usage="```python\npass\n```", library="lib", **more)


def sections(text: str) -> list[str]:
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def test_head_matter_is_yaml_that_names_library_and_pipeline() -> None:
    _, matter, rest = card(source()).split("---\n", 2)
    assert yaml.safe_load(matter) == {
        "library_name": "lib",
        "pipeline_tag": "text-classification",
        "tags": ["finetune"],
    }
    assert rest.strip().startswith("# it\n")


def test_rows_that_were_left_out_are_counted_by_reason() -> None:
    results = one(3, 0.5)
    results["data"]["train"]["skipped"] = {"unlabeled_rows": 57, "unknown_labels": 2}
    text = card(source(results=results))
    assert "; unlabeled rows skipped 57; unknown labels skipped 2." in text


def test_figures_are_those_of_the_run() -> None:
    text = card(source(results=one(3, 0.5), settings=SETTINGS))
    assert sections(text) == ["Use", "Results", "Data", "Training", "Versions"]
    assert "On the `validation` split (1,043 examples)." in text
    assert "| metric | seed 3 | trivial baseline |" in text
    assert "| `accuracy` | 0.5000 | 0.2500 |" in text
    assert "| `f1` | 0.2500 |  |" in text
    assert "1,446,146 parameters" in text
    assert "trained on `family/task` from `runs/tiny`" in text
    assert "Seed 3; 63 s; 810 examples a second; 0.56 GiB peak memory." in text
    assert "python 3.12.1, torch 2.13.0" in text
    assert "`validation`: files `x/dev.tsv`; examples 1,043; 2 classes." in text


def test_seeds_stand_beside_their_mean_and_the_exported_one_is_named() -> None:
    text = card(source(results=seeds(), settings=SETTINGS, seed=2, chosen_by="accuracy"))
    assert "| metric | mean | std (n - 1) | seed 1 | seed 2 | trivial baseline |" in text
    assert "| `accuracy` | 0.6000 | 0.1414 | 0.5000 | 0.7000 | 0.2500 |" in text
    assert "The weights are those of seed 2, the best of 2 by `accuracy`" in text
    assert "Seeds 1, 2; these weights: seed 2; 63 s" in text


def test_no_folder_of_the_machine_is_told() -> None:
    text = card(source(results=one(3, 0.5), settings=SETTINGS))
    assert "ada" not in text
    assert "`x/train.tsv`" in text


def settings_beside(given: Source, folder: Path) -> Any:
    write_card(folder, given, title="it", usage="", library="lib")
    return yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))


def test_settings_are_those_that_change_a_number(tmp_path: Path) -> None:
    given = source(results=one(3, 0.5), settings=SETTINGS)
    assert settings_beside(given, tmp_path) == {
        "max_length": 64,
        "optimizer": {"learning_rate": 3e-05},
        "trainer": {"precision": "32-true"},
    }
    assert "ada" not in (tmp_path / "training.yaml").read_text()
    text = (tmp_path / "README.md").read_text()
    assert "Learning rate 3e-05; max length 64; all settings: [training.yaml](" in text
    assert "```yaml" not in text


def test_sections_of_corpus_settings_are_kept(tmp_path: Path) -> None:
    settings = {"corpus": ["a.txt"], "data": {"max_length": 64}, "masks": {"mask_rate": 0.3}}
    given = source("masked_lm", (), settings=settings)
    expected = {"data": {"max_length": 64}, "masks": {"mask_rate": 0.3}}
    assert settings_beside(given, tmp_path) == expected
    # no results say so
    assert "pretrained as a masked language model" not in (tmp_path / "README.md").read_text()


def test_checkpoint_without_a_run_has_no_settings_beside_it(tmp_path: Path) -> None:
    write_card(tmp_path, source(), title="it", usage="", library="lib")
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def matter(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = yaml.safe_load(text.split("---\n", 2)[1])
    return fields


def test_hubs_list_the_results_of_the_exported_seed() -> None:
    given = source(results=seeds(), settings=SETTINGS, seed=2, chosen_by="accuracy")
    assert matter(card(given))["model-index"] == [
        {
            "name": "it",
            "results": [
                {
                    "task": {"type": "text-classification"},
                    "dataset": {
                        "type": "family/task",
                        "name": "family/task",
                        "split": "validation",
                    },
                    "metrics": [
                        {"type": "accuracy", "value": 0.7},
                        {"type": "f1", "value": 0.35},
                    ],
                }
            ],
        }
    ]


def test_model_index_is_one_that_the_hub_reads() -> None:
    hub = pytest.importorskip("huggingface_hub")
    read = hub.ModelCard(card(source(results=one(3, 0.5), settings=SETTINGS)))
    (result, other) = read.data.eval_results
    assert (result.metric_type, result.metric_value, other.metric_type) == ("accuracy", 0.5, "f1")


def test_license_and_languages_are_those_that_are_given() -> None:
    fields = matter(card(source(), terms=Terms("apache-2.0", ("en", "de"))))
    assert (fields["license"], fields["language"]) == ("apache-2.0", ["en", "de"])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("someone/small-bert", "someone/small-bert"), ("/home/ada/models/small", None), ("", None)],
)
def test_base_model_is_a_name_on_the_hub(name: str, wanted: str | None) -> None:
    given = source()
    given.checkpoint.source.update(family="bert", name=name)
    assert matter(card(given)).get("base_model") == wanted
    tuned = source(results={**one(1, 0.5), "imported": {"family": "bert", "name": name}})
    assert matter(card(tuned)).get("base_model") == wanted


def test_pretraining_tells_its_corpus() -> None:
    results = {
        "task": "pretrain",
        "split": "validation",
        "metrics": {"loss": 3.25},
        "data": {"corpus": ["/home/ada/data/wiki.txt"], "documents": 70827, "mean_length": 152.5},
    }
    text = card(source("masked_lm", (), results=results, settings={"seed": 1}))
    assert "- corpus: `data/wiki.txt`\n- documents: 70,827\n- mean length: 152.5000" in text
    assert "| `loss` | 3.2500 |" in text
    assert "pretrained as a masked language model" in text


@pytest.mark.parametrize("missing", sorted(one(1, 0.5)))
def test_what_the_results_lack_is_left_out(missing: str) -> None:
    results = one(1, 0.5)
    del results[missing]
    text = card(source(results=results))
    assert "None" not in text
    assert "nan" not in text
    assert text.count("\n\n\n") == 0


def test_checkpoint_alone_makes_a_card_without_results() -> None:
    text = card(source())
    assert sections(text) == ["Use"]
    assert "An encoder of 2 blocks of width 24." in text


def test_imported_checkpoint_tells_where_it_is_from() -> None:
    given = source()
    given.checkpoint.source.update(family="bert", name="/home/ada/models/someone/small")
    assert "width 24, imported from `someone/small`." in card(given)


def test_run_that_has_not_ended_says_so() -> None:
    text = card(source(settings=SETTINGS))
    assert "The run of these weights was not finished." in text
    assert "| metric" not in text


@pytest.mark.parametrize(
    ("degenerate", "message"),
    [(True, "The run is degenerate: every"), ([2], "Seed 2 is degenerate: every"), ([], None)],
)
def test_a_degenerate_run_is_named(degenerate: Any, message: str | None) -> None:
    results = {**seeds(), "collapsed": degenerate}
    text = card(source(results=results, seed=1, chosen_by="accuracy"))
    assert (message in text) if message else ("degenerate" not in text)


def test_numbers_that_decide_are_told() -> None:
    text = card(source("span", (), {"null_threshold": -2.5}))
    assert "(`null_threshold` -2.5000). The exported model returns logits" in text
    assert "no answer where start and end of the first token together exceed those of" in text
    other = card(source(decision={"threshold": 0.5}))
    assert "apply the thresholds yourself" in other
    assert "no answer" not in other


def test_test_file_has_its_own_table() -> None:
    results = {**one(1, 0.5), "test": {"metrics": {"accuracy": 0.875}, "examples": 12}}
    text = card(source(results=results))
    assert "On the test file that was named (12 examples):" in text
    assert "| `accuracy` | 0.8750 |" in text


def test_notes_stand_behind_the_use() -> None:
    text = card(source(results=one(1, 0.5)), notes=["Weights of 8 bits."])
    assert text.index("## Use") < text.index("Weights of 8 bits.") < text.index("## Results")


def test_names_cannot_break_the_page() -> None:
    results = {**one(1, 0.5), "metrics": {"a|b\n`c`": 0.5}}
    text = card(source(labels=("x|`y`\nz", "b"), results=results))
    assert "`x/'y' z`, `b`" in text
    assert "| `a/b 'c'` | 0.5000 |" in text
    assert "\n# a b\n" in model_card(source(), title="a\nb", usage="", library="transformers")


def test_many_classes_are_counted() -> None:
    text = card(source(labels=tuple(f"c{n}" for n in range(MOST_CLASSES + 5))))
    assert f"`c{MOST_CLASSES - 1}` and 5 more" in text
    assert f"c{MOST_CLASSES}`" not in text
