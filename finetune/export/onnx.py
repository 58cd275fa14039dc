"""A run's checkpoint as an ONNX folder: a graph that onnxruntime and others run without torch.

OUT/model.onnx       the graph, for any batch size and length; of a run that reads the windows of a
                     text together, for any windows of one text
OUT/model.int8.onnx  the same with weights in 8 bits, if requested
OUT/config.json      task, labels, inputs, outputs, and what was measured
OUT/tokenizer.json   truncates at the run's maximal length and pads; its settings beside it. Where
                     long texts are not cut, example.py does what the run does in its place.
OUT/example.py       how to predict with it
OUT/README.md        the model card
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.checkpoints.folder import CONFIG
from finetune.checkpoints.hf import export_lacks
from finetune.console.output import counted
from finetune.errors import CheckpointError, ConfigError
from finetune.export.card import Terms, write_card
from finetune.export.model import WholeEnsemble, WholeModel, load_model
from finetune.export.onnx_example import example
from finetune.export.onnx_graph import (
    OPSET,
    Agreement,
    Session,
    check_graph,
    check_packages,
    check_runs,
    quantize,
    write_graph,
)
from finetune.export.onnx_long import long_example, templates
from finetune.export.onnx_score import GraphScores, score_graphs
from finetune.export.source import Source, find_ensemble, find_source
from finetune.files.writing import new_folder
from finetune.runs.folder import say
from finetune.text.tokenizer.tokenizer import Tokenizer

GRAPH = "model.onnx"
INT8_GRAPH = "model.int8.onnx"
EXAMPLE = "example.py"


@dataclass(frozen=True)
class Measured:
    """The measurements of an exported graph."""

    agreement: Agreement
    """Its largest difference from the model."""
    scores: GraphScores | None
    """Its score in 32 and in 8 bits; None if not requested or not measurable."""


def export_onnx(
    run: Path,
    out: Path,
    *,
    int8: bool = False,
    data: str | None = None,
    terms: Terms | None = None,
    ensemble: bool = False,
) -> Measured:
    """Write a run's best checkpoint as a graph, checked against the model itself.

    Args:
        run: A run's folder (of several seeds: the best one's weights), or a checkpoint's.
        out: The folder; it is written completely or not at all, and replaces an old one.
        int8: Whether to write the graph in 8 bits too, and to measure the loss in score on the
            run's validation split.
        data: Another data folder than the run's.
        terms: License and languages, for the model card.
        ensemble: Write all seeds of the run as one graph that gives their average; not with `int8`.

    Returns:
        The measurements; they are also in OUT/config.json.

    Raises:
        ConfigError: A package of the extra `onnx` is missing, or the run has no weights.
        CheckpointError: There is no checkpoint; its head writes texts; torch cannot trace it; or
            the graph's outputs differ from the model's.
        OSError: It cannot be written.
    """
    check_packages()
    source = find_ensemble(run) if ensemble else find_source(run)
    _check_head(run, source)
    load = partial(load_model, pools_windows=source.long.pools_windows)
    if ensemble:
        model: WholeModel = WholeEnsemble([load(one) for one in source.members])
    else:
        uncalibrated = replace(source.checkpoint, decision={})
        model = load(uncalibrated if source.averages_windows else source.checkpoint)
    tokenizer = source.checkpoint.tokenizer()
    score = partial(score_graphs, data=data) if int8 else None
    with new_folder(out) as folder:
        measured = _write_graphs(folder, model, source, score)
        _write_tokenizer(folder, tokenizer, source)
        _write_descriptions(folder, out.name, model, tokenizer, source, measured, terms)
    _report(measured)
    return measured


def _check_head(run: Path, source: Source) -> None:
    """Refuse what no graph computes, and a second level without the windows that it reads."""
    checkpoint = source.checkpoint
    if lacking := export_lacks(checkpoint.encoder_config, checkpoint.head, "onnx"):
        why = "; ".join(lacking)
        raise CheckpointError(
            f"{checkpoint.folder}: --format onnx {why}; predict with finetune predict"
        )
    if checkpoint.head.get("levels", 1) > 1 and not source.long.pools_windows:
        raise ConfigError(
            f"{run}: levels {checkpoint.head['levels']} reads the windows of a text together: "
            "expected a run, whose config.yaml says how texts are cut, got a checkpoint alone; "
            "export the run"
        )


def _write_graphs(
    folder: Path,
    model: WholeModel,
    source: Source,
    score: Callable[[Path, Path, Path], GraphScores | None] | None,
) -> Measured:
    """Write the graph and, if `score` is given, the one in 8 bits."""
    graph, small = folder / GRAPH, folder / INT8_GRAPH
    write_graph(model, graph)
    agreement = check_graph(model, Session(graph), source.max_length)
    if score is None:
        return Measured(agreement, None)
    quantize(graph, small)
    check_runs(Session(small), model.options)
    return Measured(agreement, score(source.checkpoint.folder, graph, small))


def _report(measured: Measured) -> None:
    agreement, scores = measured.agreement, measured.scores
    say(
        f"checked with onnxruntime on {agreement.batches} batches: largest difference from the "
        f"model {agreement.largest_difference:.1e}"
    )
    if scores is not None:
        for name, value in scores.fp32.items():
            say(
                f"{name} on {counted(scores.examples, 'example')} of {scores.split}: "
                f"fp32 {value:.4f}, int8 {scores.int8[name]:.4f}, lost {scores.lost[name]:+.4f}"
            )


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, source: Source) -> None:
    """Write the tokenizer as the run used it: it adds special tokens, truncates and pads itself."""
    import tokenizers

    tokenizer.save(folder)
    path = str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.enable_padding(
        pad_id=tokenizer.pad_token_id, pad_token=tokenizer.special_tokens["pad_token"]
    )
    if source.max_length is not None and source.long.long == "cut":  # else the example does it
        # As in training: a question and an option are never cut; of a pair the longer text is.
        strategy = {"span": "only_second", "choice": "only_first"}.get(
            source.kind or "", "longest_first"
        )
        windows = source.settings.get("windows") if source.kind == "span" else None
        stride = int(windows.get("stride", 0)) if isinstance(windows, Mapping) else 0
        backend.enable_truncation(source.max_length, stride=stride, strategy=strategy)
    backend.save(path)


def _write_descriptions(
    folder: Path,
    title: str,
    model: WholeModel,
    tokenizer: Tokenizer,
    source: Source,
    measured: Measured,
    terms: Terms | None,
) -> None:
    """Write config.json, the example and the model card."""
    config = _config(folder, model, source, measured)
    if source.long.long != "cut":
        config["long_texts"] = asdict(source.long)
        config |= {"template": templates(tokenizer), "padding": tokenizer.pad_token_id}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    mask = (tokenizer.special_tokens["mask_token"], tokenizer.mask_token_id)
    code = example(model.kind, model.inputs, mask=mask, options=model.options)
    if source.long.long != "cut":
        code = long_example(model.kind, model.options, together=model.pools_windows)
    (folder / EXAMPLE).write_text(code, encoding="utf-8")
    usage = f"`python {EXAMPLE}`:\n\n```python\n{code}```"
    notes = _notes(measured, source)
    card = {"title": title, "usage": usage, "notes": notes, "terms": terms}
    write_card(folder, source, library="onnx", **card)


def _config(folder: Path, model: WholeModel, source: Source, measured: Measured) -> dict[str, Any]:
    checkpoint, scores = source.checkpoint, measured.scores
    session = Session(folder / GRAPH)
    config: dict[str, Any] = {
        "format": "onnx",
        "files": sorted(path.name for path in folder.glob("*.onnx*")),
        "task": source.task,
        "head": dict(checkpoint.head) or {"kind": "none"},
        "labels": list(checkpoint.labels),
        "decision": dict(checkpoint.decision) if source.averages_windows else source.thresholds,
        "max_length": source.max_length,
        "inputs": session.input_axes,
        "outputs": session.output_axes,
        "opset": OPSET,
        "check": asdict(measured.agreement),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "onnxruntime")},
    }
    if scores is not None:
        config["scores"] = {**asdict(scores), "lost": scores.lost}
    return config


def _notes(measured: Measured, source: Source) -> list[str]:
    """The card's paragraphs about the graph."""
    agreement, scores = measured.agreement, measured.scores
    notes = [
        f"The outputs of `{GRAPH}` were compared with the model's on {agreement.batches} batches "
        f"of random tokens, sequences of 1 to {agreement.longest} of them, with and without "
        f"padding: the largest difference was {agreement.largest_difference:.1e}."
    ]
    if source.long.pools_windows:
        notes.append("The graph reads all windows of one text at a time, and gives one answer.")
    if scores is not None:
        figures = ", ".join(
            f"{name} {value:.4f} in float32 and {scores.int8[name]:.4f} in 8 bits"
            for name, value in scores.fp32.items()
        )
        notes.append(
            f"`{INT8_GRAPH}` has its weights in 8 bits (dynamic quantization). On "
            f"{counted(scores.examples, 'example')} of the {scores.split} split: {figures}."
        )
    return notes
