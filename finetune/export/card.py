"""The model card of an exported folder, from the files of its run.

Every figure is read from RUN/results.json, RUN/config.yaml or the checkpoint; what is missing there
is left out. A path is shortened to its last two parts, so that a card reveals no folders of the
machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from finetune.console.output import counted
from finetune.elementary import TRIVIAL
from finetune.export.source import CARD, Source
from finetune.runs.inputs import READ, SESSION_KEYS
from finetune.runs.results import Results, baselines
from finetune.settings.values import write
from finetune.task.decision import TEMPERATURE

PIPELINES = {
    "classification": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
    "masked_lm": "fill-mask",
}
"""Kind of a head -> the tag of its task on model hubs."""
DOES = {
    "classification": "Gives one class to a text or a pair of texts",
    "multi_label": "Decides for each class whether it applies to a text or a pair of texts",
    "regression": "Gives a number to a text or a pair of texts",
    "span": "Finds the answer to a question in a text",
    "choice": "Chooses among the options of a question about a text",
    "masked_lm": "Predicts masked tokens",
}
DISTRIBUTIONS = ("words", "tokens", "numbers")
"""Facts of a split that a report shows, and no card."""
MOST_CLASSES = 20
"""Classes that the card names; the model's config.json has all of them."""
MAIN_SETTINGS = (
    ("optimizer", "learning_rate"),
    ("loader", "batch_size"),
    ("length", "max_epochs"),
    ("length", "max_steps"),
    ("length", "max_minutes"),
    ("", "max_length"),
    ("data", "max_length"),
    ("unfreezing", "unfreeze"),
)
"""Section and name of the settings that the card names."""
SHOWN_ELSEWHERE = ("task", "seed", "seeds", "encoder", "trainer.log_every_steps")
NOT_SHOWN = (*SESSION_KEYS, *READ, *SHOWN_ELSEWHERE)
"""Settings that change no number, that name files, or that are elsewhere in the card."""


TRAINING = "training.yaml"
"""The settings of the run, in the exported folder."""


@dataclass(frozen=True)
class Terms:
    """What only the owner of a model knows, for its card."""

    license: str | None = None
    """Identifier as model hubs know it, such as apache-2.0; None says nothing."""
    language: tuple[str, ...] = ()
    """Codes of the texts' languages, such as en."""


def write_card(folder: Path, source: Source, **content: Any) -> None:
    """Write README.md and the settings that it names; arguments as of `model_card`."""
    (folder / CARD).write_text(model_card(source, **content), encoding="utf-8")
    if settings := _shown(source.settings):
        text = f"# settings of the run that trained this model\n{write(settings)}"
        (folder / TRAINING).write_text(text, encoding="utf-8")


def model_card(
    source: Source,
    *,
    title: str,
    usage: str,
    library: str,
    notes: Sequence[str] = (),
    terms: Terms | None = None,
) -> str:
    """The README.md of an exported folder.

    Args:
        source: The exported checkpoint and its run.
        title: Name of the folder.
        usage: Markdown: how to load the model and predict.
        library: The library that reads the folder, as model hubs name it.
        notes: Further paragraphs on differences from the run.
        terms: License and languages, where they are known.
    """
    results = source.results
    parts = [
        _head_matter(source, library, title, terms or Terms()),
        f"# {_plain(title)}",
        _about(source),
        f"## Use\n\n{usage}",
        *_notes(source, notes),
        *_section("Results", _results(source)),
        *_section("Data", _data(results)),
        *_section("Training", _training(source)),
        *_section("Versions", _versions(results)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head_matter(source: Source, library: str, title: str, terms: Terms) -> str:
    """The fields by which model hubs list a model; what is not known is left out."""
    fields = {
        "language": list(terms.language),
        "license": terms.license,
        "library_name": library,
        "pipeline_tag": PIPELINES.get(source.kind or ""),
        "base_model": source.base_model,
        "tags": ["finetune"],
        "model-index": _model_index(source, _plain(title)),
    }
    return f"---\n{write({name: value for name, value in fields.items() if value})}---"


def _model_index(source: Source, title: str) -> list[dict[str, Any]]:
    """Results as model hubs compare them: those of the exported weights."""
    one = _one(source)
    metrics, task = one.get("metrics", {}), source.task
    # Of an ensemble, results are those of each member alone.
    if source.members or not (metrics and task) or source.kind in (None, "masked_lm"):
        return []
    result = {
        "task": {"type": PIPELINES[source.kind]},
        "dataset": {"type": task, "name": task, "split": one.get("split", "validation")},
        "metrics": [{"type": name, "value": round(value, 4)} for name, value in metrics.items()],
    }
    return [{"name": title, "results": [result]}]


def _section(name: str, paragraphs: Iterable[str]) -> list[str]:
    filled = [paragraph for paragraph in paragraphs if paragraph]
    return [f"## {name}", *filled] if filled else []


def _notes(source: Source, notes: Sequence[str]) -> list[str]:
    return [*_averaged(source), *_decided(source), *notes]


def _averaged(source: Source) -> list[str]:
    if not source.members:
        return []
    what = {"regression": "numbers", "span": "scores of first and last tokens"}
    average = what.get(str(source.kind), "calibrated probabilities")
    return [
        f"An ensemble: its outputs are the average of the {average} of the models of the seeds "
        f"{', '.join(map(str, source.results['seeds']))}; below are the results of each alone."
    ]


def _decided(source: Source) -> list[str]:
    """Temperature, which the weights have, and thresholds, which they have not."""
    texts, temperature = [], source.checkpoint.decision.get(TEMPERATURE)
    if temperature is not None:
        texts.append(
            "Probabilities are calibrated: the output layer is divided by the temperature "
            f"{_figure(temperature)}, fitted on validation data (Guo et al., 2017)."
        )
    if not source.thresholds:
        return texts
    numbers = ", ".join(f"{_code(name)} {_figure(n)}" for name, n in source.thresholds.items())
    if source.kind == "span":
        more = (
            "A question has no answer where start and end of the first token together exceed those "
            "of the best span by more than that; the code above always returns a span."
        )
    else:
        more = "A class applies where the sigmoid of its logit is above its threshold."
    return [
        *texts,
        "The run decides its answers by thresholds that were tuned on validation data "
        f"({numbers}). The exported model returns logits: apply the thresholds yourself. {more}",
    ]


def _about(source: Source) -> str:
    config, results = source.checkpoint.encoder_config, _one(source)
    blocks = counted(config.num_hidden_layers, "block")
    size = f"An encoder of {blocks} of width {config.hidden_size}"
    if "parameters" in results:
        size += f", {results['parameters']:,} parameters with its head"
    does = DOES.get(source.kind or "", "Gives the hidden states of a text")
    return f"{does}{_classes(source.checkpoint.labels)}. {size}{_trained(source)}."


def _classes(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    named = ", ".join(_code(label) for label in labels[:MOST_CLASSES])
    rest = f" and {len(labels) - MOST_CLASSES:,} more" if len(labels) > MOST_CLASSES else ""
    return f": {named}{rest}"


def _trained(source: Source) -> str:
    task, start = source.task, source.settings.get("encoder_from")
    if task is None:
        origin = source.checkpoint.source.get("name")
        return f", imported from {_code(_short(origin))}" if origin else ""
    if source.kind == "masked_lm" and not start:
        return ", pretrained as a masked language model"
    how = "trained further as a language model on" if source.kind == "masked_lm" else "trained on"
    if not start:
        return f", {how} {_code(task)}"
    origin = "random weights" if start == "none" else _code(_short(start))
    return f", {how} {_code(task)} from {origin}"


def _one(source: Source) -> Results:
    """The results of the seed whose weights these are, or of the only one."""
    runs = source.results.get("runs", [])
    same = [run for run in runs if run.get("seed") == source.seed]
    return same[0] if same else source.results


def _results(source: Source) -> list[str]:
    results = source.results
    if not results:
        return ["The run of these weights was not finished."] if source.settings else []
    if not results.get("metrics"):
        return []
    examples = _one(source).get("examples")
    count = f" ({counted(examples, 'example')})" if examples else ""
    split = f"On the {_code(results['split'])} split{count}. " if "split" in results else ""
    header, rows = _metrics(results, baselines(_one(source)).get(TRIVIAL, {}))
    figures = _table(header, rows)
    note = "Metrics such as accuracy are fractions of one."
    return [split + note, figures, *_remarks(source), *_tested(results)]


def _metrics(results: Results, baseline: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: each metric of one run or of several seeds, beside the baseline's."""
    seeds = [f"seed {seed}" for seed in results.get("seeds", [])]
    single = f"seed {results['seed']}" if "seed" in results else "value"
    header = ["metric", *(["mean", "std (n - 1)", *seeds] if seeds else [single])]
    rows = []
    for name, entry in results["metrics"].items():
        values = [entry["mean"], entry["std"], *entry["values"]] if seeds else [entry]
        rows.append([_code(name), *map(_figure, values)])
    if baseline:
        header.append("trivial baseline")
        for row, name in zip(rows, results["metrics"], strict=True):
            row.append(_figure(baseline[name]) if name in baseline else "")
    return header, rows


def _remarks(source: Source) -> list[str]:
    """Warnings about the figures: a chosen seed, a degenerate run."""
    remarks = []
    if source.seed is not None:
        remarks.append(
            f"The weights are those of seed {source.seed}, the best of "
            f"{len(source.results['seeds'])} by {_code(str(source.chosen_by))} on this very split: "
            "expect the mean on new data, not that seed's figure."
        )
    if source.results.get("collapsed"):
        seeds = source.results["collapsed"]
        which = "The run is"
        if isinstance(seeds, list):
            several = len(seeds) > 1
            which = f"Seed{'s' * several} {', '.join(map(str, seeds))} {'are' if several else 'is'}"
        remarks.append(f"{which} degenerate: every example got the same answer.")
    return remarks


def _tested(results: Results) -> list[str]:
    test = results.get("test", {})
    rows = [[_code(name), _figure(value)] for name, value in test.get("metrics", {}).items()]
    if not rows:
        return []
    count = f" ({counted(test['examples'], 'example')})" if "examples" in test else ""
    return [f"On the test file that was named{count}:", _table(["metric", "value"], rows)]


def _data(results: Results) -> list[str]:
    about: Mapping[str, Any] = results.get("runs", [results])[0].get("data", {})
    splits = {name: facts for name, facts in about.items() if _is_split(facts)}
    if not splits:
        return [_facts(about)]
    return [
        f"{_code(name)}: " + "; ".join(_fact_lines(facts, " ")) + "."
        for name, facts in splits.items()
    ]


def _is_split(facts: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(facts, Mapping) and "examples" in facts


def _facts(about: Mapping[str, Any]) -> str:
    return "\n".join(f"- {line}" for line in _fact_lines(about, ": "))


def _fact_lines(about: Mapping[str, Any], between: str) -> list[str]:
    """Each fact as `name value`; files by name, classes by how many there are."""
    lines = []
    for name, value in about.items():
        label = name.replace("_", " ")
        if name in ("files", "corpus"):
            lines.append(f"{label}{between}" + ", ".join(_code(_short(file)) for file in value))
        elif isinstance(value, Mapping) and name in DISTRIBUTIONS:
            continue
        elif name == "skipped":  # by reason
            lines += [
                f"{reason.replace('_', ' ')} skipped{between}{_figure(value[reason])}"
                for reason in value
            ]
        elif isinstance(value, Mapping):
            lines.append(f"{len(value):,} {label}")
        else:
            lines.append(f"{label}{between}{_figure(value)}")
    return lines


def _training(source: Source) -> list[str]:
    one, given = _one(source), source.settings
    facts = []
    if seeds := source.results.get("seeds"):
        facts.append(f"Seeds {', '.join(map(str, seeds))}; these weights: seed {source.seed}")
    elif (seed := one.get("seed", given.get("seed"))) is not None:
        facts.append(f"Seed {seed}")
    if one.get("train_seconds"):
        facts.append(f"{one['train_seconds']:,.0f} s")
    if one.get("examples_per_second"):
        facts.append(f"{one['examples_per_second']:,.0f} examples a second")
    if one.get("peak_gib"):
        facts.append(f"{one['peak_gib']:.2f} GiB peak memory")
    lines = ["; ".join(facts), _main_settings(_shown(given))]
    return [f"{line}." for line in lines if line]


def _main_settings(settings: Mapping[str, Any]) -> str:
    """The settings that a reader asks for first, and where the rest is."""
    named = []
    for section, name in MAIN_SETTINGS:
        inner = settings.get(section) if section else settings
        if isinstance(inner, Mapping) and name in inner:
            named.append(f"{name.replace('_', ' ')} {inner[name]}")
    if not settings:
        return ""
    text = "; ".join([*named, f"all settings: [{TRAINING}]({TRAINING})"])
    return text[0].upper() + text[1:]


def _shown(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of its training, without those that are not set."""
    shown: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        if value is None or (prefix + name in NOT_SHOWN and not (inner and name == "data")):
            continue
        content = _shown(value, f"{prefix}{name}.") if inner else value
        if content != {}:
            shown[name] = content
    return shown


def _versions(results: Results) -> list[str]:
    versions = results.get("runs", [results])[0].get("versions", {})
    return [", ".join(f"{name} {number}" for name, number in versions.items())]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ruler, *rows])


def _figure(value: Any) -> str:
    """A float with four decimals, an integer with commas, anything else as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _code(text: str) -> str:
    """Text as a code span of Markdown."""
    return f"`{_plain(text)}`"


def _plain(text: object) -> str:
    """Text in one line that cannot end a table's cell or a code span."""
    return " ".join(str(text).split()).replace("|", "/").replace("`", "'")


def _short(path: object) -> str:
    """The last two parts of a path; the name of a model on a hub unchanged."""
    return "/".join([part for part in Path(str(path)).parts if part != "/"][-2:])
