"""A run's checkpoint as an ONNX folder: a graph that onnxruntime and others run without torch.

OUT/model.onnx       the graph, for any batch size and length
OUT/model.int8.onnx  the same with weights in 8 bits, where that is asked for
OUT/config.json      task, labels, what goes in and comes out, and what was measured
OUT/tokenizer.json   cuts at the run's greatest length and pads; its settings beside it
OUT/example.py       how it is asked
OUT/README.md        the model card
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from finetune.checkpoints.folder import CONFIG
from finetune.console.output import counted
from finetune.export.card import model_card
from finetune.export.model import WholeModel, load_model
from finetune.export.onnx_check import Agreement, check_graph
from finetune.export.onnx_example import example
from finetune.export.onnx_graph import (
    OPSET,
    Session,
    check_packages,
    check_runs,
    quantise,
    write_graph,
)
from finetune.export.onnx_score import GraphScores, score_graphs
from finetune.export.place import CARD
from finetune.export.source import Source, find_source
from finetune.files.writing import new_folder
from finetune.runs.folder import say
from finetune.text.tokenizer.tokenizer import Tokenizer

GRAPH = "model.onnx"
INT8_GRAPH = "model.int8.onnx"
EXAMPLE = "example.py"


@dataclass(frozen=True)
class Measured:
    """What was measured while a graph was written."""

    agreement: Agreement
    """How near it came to the model."""
    scores: GraphScores | None
    """What 8 bits cost; None where that was not asked for or could not be measured."""


def export_onnx(
    run: Path,
    out: Path,
    *,
    int8: bool = False,
    data: str | None = None,
) -> Measured:
    """Write a run's best checkpoint as a graph, checked against the model itself.

    Args:
        run: A run's folder (of several seeds: the best one's weights), or a checkpoint's.
        out: The folder; it is written whole or not at all, and replaces what is there.
        int8: Write the graph in 8 bits as well, and measure what that costs on the run's
            validation split.
        data: Another data folder than the run's.

    Returns:
        What was measured; it also stands in OUT/config.json.

    Raises:
        ConfigError: A package of the extra `onnx` is missing, or the run has no weights of its own.
        CheckpointError: There is no checkpoint; torch cannot record it; or the graph's outputs
            differ from the model's.
        OSError: It cannot be written.
    """
    check_packages()
    source = find_source(run)
    model, tokenizer = load_model(source.checkpoint), source.checkpoint.tokenizer()
    score = partial(score_graphs, data=data) if int8 else None
    with new_folder(out) as folder:
        made = _write_graphs(folder, model, source, score)
        _write_tokenizer(folder, tokenizer, source)
        _write_words(folder, out.name, model, tokenizer, source, made)
    _tell(made)
    return made


def _write_graphs(
    folder: Path,
    model: WholeModel,
    source: Source,
    score: Callable[[Path, Path, Path], GraphScores | None] | None,
) -> Measured:
    """Write the graph and, where it is to be scored, that in 8 bits."""
    graph, small = folder / GRAPH, folder / INT8_GRAPH
    write_graph(model, graph)
    agreement = check_graph(model, Session(graph), source.max_length)
    if score is None:
        return Measured(agreement, None)
    quantise(graph, small)
    check_runs(Session(small), model.options)
    return Measured(agreement, score(source.checkpoint.folder, graph, small))


def _tell(made: Measured) -> None:
    say(
        f"checked with onnxruntime on {made.agreement.batches} batches: largest difference from "
        f"the model {made.agreement.largest_difference:.1e}"
    )
    if made.scores is not None:
        scores = made.scores
        for name, value in scores.fp32.items():
            say(
                f"{name} on {counted(scores.examples, 'example')} of {scores.split}: "
                f"fp32 {value:.4f}, int8 {scores.int8[name]:.4f}, lost {scores.lost[name]:+.4f}"
            )


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, source: Source) -> None:
    """Write the tokenizer as the run used it: it frames, cuts and pads by itself."""
    import tokenizers

    tokenizer.save(folder)
    path = str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.enable_padding(
        pad_id=tokenizer.pad_token_id, pad_token=tokenizer.special_tokens["pad_token"]
    )
    if source.max_length is not None:
        # As in training: a question keeps its words, an option too; of a pair the longer loses.
        strategy = {"span": "only_second", "choice": "only_first"}.get(
            source.kind or "", "longest_first"
        )
        windows = source.settings.get("windows") if source.kind == "span" else None
        stride = int(windows.get("stride", 0)) if isinstance(windows, Mapping) else 0
        backend.enable_truncation(source.max_length, stride=stride, strategy=strategy)
    backend.save(path)


def _write_words(
    folder: Path,
    title: str,
    model: WholeModel,
    tokenizer: Tokenizer,
    source: Source,
    made: Measured,
) -> None:
    config = _config(folder, model, source, made)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    mask = (tokenizer.special_tokens["mask_token"], tokenizer.mask_token_id)
    code = example(model.kind, model.inputs, mask=mask, options=model.options)
    (folder / EXAMPLE).write_text(code, encoding="utf-8")
    usage = f"`python {EXAMPLE}`:\n\n```python\n{code}```"
    card = model_card(source, title=title, usage=usage, library="onnx", notes=_notes(made))
    (folder / CARD).write_text(card, encoding="utf-8")


def _config(folder: Path, model: WholeModel, source: Source, made: Measured) -> dict[str, Any]:
    checkpoint, scores = source.checkpoint, made.scores
    session = Session(folder / GRAPH)
    config: dict[str, Any] = {
        "format": "onnx",
        "files": sorted(path.name for path in folder.glob("*.onnx*")),
        "task": source.task,
        "head": dict(checkpoint.head) or {"kind": "none"},
        "labels": list(checkpoint.labels),
        "decision": dict(checkpoint.decision),
        "max_length": source.max_length,
        "inputs": session.input_axes,
        "outputs": session.output_axes,
        "opset": OPSET,
        "check": asdict(made.agreement),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "onnxruntime")},
    }
    if scores is not None:
        config["scores"] = {**asdict(scores), "lost": scores.lost}
    return config


def _notes(made: Measured) -> list[str]:
    """What the card says about the graph."""
    notes = [
        f"The outputs of `{GRAPH}` were compared with the model's on {made.agreement.batches} "
        f"batches of random tokens, 1 to {made.agreement.longest} of them a sequence, padded and "
        f"not: the largest difference was {made.agreement.largest_difference:.1e}."
    ]
    if made.scores is not None:
        scores = made.scores
        figures = ", ".join(
            f"{name} {value:.4f} in float32 and {scores.int8[name]:.4f} in 8 bits"
            for name, value in scores.fp32.items()
        )
        notes.append(
            f"`{INT8_GRAPH}` has its weights in 8 bits (dynamic quantisation). On "
            f"{counted(scores.examples, 'example')} of the {scores.split} split: {figures}."
        )
    return notes
