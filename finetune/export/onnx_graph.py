"""A model as an ONNX graph, checked against it; the same in 8 bits; the session that runs one.

All calls to the packages of the extra `onnx` are here: torch's exporter, onnxruntime and its
quantization. They are imported where they are used.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import Dim

from finetune.errors import CheckpointError, ConfigError
from finetune.export.model import WholeModel, without_loops
from finetune.export.onnx_lstm import translations
from finetune.machine.packages import is_installed

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
OPSET = 18
"""Version of the operators: the graph needs no newer one, and runtimes since 2023 support it."""
TOLERANCE = 1e-4
"""Largest allowed difference of an output from the model's, relative to the largest output if that
exceeds 1."""
LONGEST = 512
"""Tokens of the longest batch that is compared."""
SHAPES = ((1, 1), (1, 6), (5, 1), (4, 17))
"""Sequences and tokens of the batches; one more has a single sequence of the maximal length."""
ONE_FILE_BYTES = 2**31 - 2**24
"""Largest size of weights inside the graph's file, as protobuf stops at 2 GiB; larger weights are
beside it in FILE.data."""
SAMPLE = (3, 7)
"""Sequences and tokens of the traced batch: not 0 or 1, which torch would take for fixed sizes."""

Arrays = Mapping[str, npt.NDArray[Any]]


def check_packages() -> None:
    """Refuse the export if a package is missing.

    Raises:
        ConfigError: A package of the extra `onnx` is not installed.
    """
    for name in PACKAGES:
        if not is_installed(name):
            raise ConfigError(
                f"the export to ONNX needs the package {name}, which is not installed; run "
                "pip install 'finetune[onnx]'"
            )


def write_graph(model: WholeModel, path: Path) -> None:
    """Trace a model for any batch size and length.

    Args:
        model: In eval mode, on the CPU.
        path: The file to write.

    Raises:
        CheckpointError: Torch cannot trace it.
    """
    sample, axes = _sample(model)
    try:
        with torch.no_grad(), _quiet():
            recorded = torch.export.export(
                without_loops(model), sample, dynamic_shapes=axes, strict=False
            )
            program = torch.onnx.export(
                recorded,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(model.inputs),
                output_names=list(model.outputs),
                verbose=False,
                custom_translation_table=translations(),
            )
    except Exception as error:  # torch raises many types where it cannot follow the code
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{path.name}: torch {torch.__version__} cannot trace this encoder ({reason}); "
            "try another version of torch, and report it"
        ) from error
    if program is None:  # only torch's own tests get none
        raise CheckpointError(f"{path.name}: torch {torch.__version__} returned no graph")
    size = sum(each.numel() * each.element_size() for each in model.state_dict().values())
    _name_axes(program.model, _symbols(recorded, model))
    program.save(str(path), external_data=size > ONE_FILE_BYTES)


def _sample(model: WholeModel) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """A batch to trace, and which axes of each input may have any size."""
    config = model.encoder.config
    batch, length = SAMPLE
    shape: tuple[int, ...] = (batch, length)
    longest = config.max_position_embeddings if config.position == "learned" else None
    if longest is not None:
        shape = (batch, min(length, longest))
    if model.options is not None:
        shape = (batch, model.options, shape[-1])
    axes = {0: Dim(model.first_axis, min=1), len(shape) - 1: Dim("length", min=1, max=longest)}
    ids, mask = torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)
    sample = (ids, mask, torch.zeros_like(ids))[: len(model.inputs)]
    return sample, (axes,) * len(sample)


def _symbols(recorded: Any, model: WholeModel) -> dict[str, str]:
    """Torch's names of the sizes of the first input -> their meaning."""
    shape = next(
        node.meta["val"].shape for node in recorded.graph.nodes if node.name == model.inputs[0]
    )
    return {str(shape[0]): model.first_axis, str(shape[-1]): "length"}


def _name_axes(graph_model: Any, names: Mapping[str, str]) -> None:
    """Give the sizes that may vary their names, also inside products such as `4*batch`."""
    import onnx_ir as ir

    def renamed(size: Any) -> Any:
        if not isinstance(size, ir.SymbolicDim) or size.value is None:
            return size
        known = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(size.value))
        return ir.SymbolicDim(known)

    graph = graph_model.graph
    made = (output for node in graph for output in node.outputs)
    for value in {id(v): v for v in (*graph.inputs, *graph.outputs, *made)}.values():
        if value.shape is not None:
            value.shape = ir.Shape([renamed(size) for size in value.shape])


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and logs of the packages: users cannot do anything about them."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for kind in (DeprecationWarning, FutureWarning, UserWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        logging.disable(before)


def quantize(source: Path, target: Path) -> None:
    """Write the same graph with weights in 8 bits, by dynamic quantization.

    Each row of a weight has its scale, fixed now; each activation tensor gets its scale when it is
    computed (Jacob et al., 2018, section 2.1).

    Args:
        source: A graph in float32.
        target: The file to write.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            source,
            target,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Seven bits: on processors without VNNI, sums of 8-bit products overflow 16 bits.
            reduce_range=True,
            nodes_to_exclude=_products_of_heads(source),
            use_external_data_format=source.stat().st_size > ONE_FILE_BYTES,
        )


def _products_of_heads(path: Path) -> list[str]:
    """Products with a matrix for each attention head, which 8-bit kernels cannot scale by row."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    many = {each.name for each in graph.initializer if len(each.dims) > 2}
    return [node.name for node in graph.node if node.op_type == "MatMul" and many & set(node.input)]


class Session:
    """A loaded graph."""

    def __init__(self, path: Path) -> None:
        """Load a graph into onnxruntime, on the CPU, with as many threads as torch has."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.input_axes = {each.name: each.shape for each in self._session.get_inputs()}
        """Name of each input -> its axes; an axis of any size is a name."""
        self.output_axes = {each.name: each.shape for each in self._session.get_outputs()}
        """The same for each output."""

    def __call__(self, arrays: Arrays) -> list[npt.NDArray[np.float32]]:
        """Outputs for inputs by name; those it does not take are left out."""
        feed = {name: np.asarray(arrays[name], dtype=np.int64) for name in self.input_axes}
        outputs: list[npt.NDArray[np.float32]] = self._session.run(None, feed)
        return outputs


def check_runs(session: Session, options: int | None) -> None:
    """Run a graph once.

    Args:
        session: The graph.
        options: C of multiple choice; None for single sequences.

    Raises:
        CheckpointError: An output is not finite.
    """
    shape = (2, 5) if options is None else (2, options, 5)
    outputs = session({name: np.ones(shape) for name in session.input_axes})
    if not all(np.isfinite(output).all() for output in outputs):
        raise CheckpointError("the graph in 8 bits returns no finite numbers; leave --int8 out")


@dataclass(frozen=True)
class Agreement:
    """The agreement of a graph's outputs with the model's."""

    batches: int
    """Batches that were compared."""
    longest: int
    """Tokens of the longest sequence."""
    largest_difference: float
    """Over all outputs, relative as `TOLERANCE` is."""


def check_graph(model: WholeModel, session: Session, max_length: int | None) -> Agreement:
    """Compare a graph with the model on random tokens: one or many sequences, padded or not.

    Without padding the model gets no mask and the graph a full one, as each is used in practice.

    Args:
        model: The model, in eval mode on the CPU.
        session: Its graph.
        max_length: Tokens of the longest sequence in its run; None if that is not known.

    Raises:
        CheckpointError: An output differs by more than 1e-4, or has another shape.
    """
    differences, lengths = [], set()
    for batch, padded in _batches(model, max_length):
        given = dict(zip(model.inputs, batch, strict=True))
        with torch.no_grad():
            mask = batch[1] if padded else None
            expected = model(batch[0], mask, *batch[2:])
        outputs = session({name: tensor.numpy() for name, tensor in given.items()})
        for name, right, actual in zip(model.outputs, expected, outputs, strict=True):
            difference = _difference(right.numpy(), actual)
            if not difference <= TOLERANCE:  # written so that NaN fails too
                raise CheckpointError(
                    f"the graph's {name} differ by {difference:.2g} from the model's on a batch of "
                    f"shape {tuple(batch[0].shape)}, expected at most {TOLERANCE:g}; nothing was "
                    "written; try another version of torch or onnxruntime"
                )
            differences.append(difference)
        lengths.add(batch[0].shape[-1])
    return Agreement(len(differences) // len(model.outputs), max(lengths), max(differences))


def _batches(
    model: WholeModel, max_length: int | None
) -> Iterator[tuple[tuple[Tensor, ...], bool]]:
    """Inputs in the order of `model.inputs`, without and with padding."""
    config, generator = model.encoder.config, torch.Generator().manual_seed(0)
    allowed = config.max_position_embeddings if config.position == "learned" else LONGEST
    longest = min(allowed, max_length or LONGEST, LONGEST)
    for count, length in (*SHAPES, (1, longest)):
        shape = (count, *([] if model.options is None else [model.options]), min(length, longest))
        ids = torch.randint(config.vocab_size, shape, generator=generator)
        segments = torch.randint(max(config.type_vocab_size, 1), shape, generator=generator)
        lengths = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator).unsqueeze(-1)
        for padded in (False, True):
            ends = lengths if padded else shape[-1]
            mask = (torch.arange(shape[-1]) < ends).long().expand(shape)
            yield (ids, mask, segments)[: len(model.inputs)], padded


def _difference(expected: np.ndarray, actual: np.ndarray) -> float:
    if expected.shape != actual.shape:
        return float("nan")
    finite = np.abs(expected[expected > np.finfo(expected.dtype).min])  # the rest is padding
    scale = max(1.0, float(finite.max(initial=0.0)))
    return float(np.abs(expected.astype(np.float64) - actual).max()) / scale
