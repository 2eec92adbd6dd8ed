"""The whole way in one call: what the command line and short scripts use instead of spelling the flow out.

``load_model`` finds a user's model, ``quantize`` calibrates it, ``build`` makes the program; each result holds what the
next needs and what a report wants to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch.backend import Lowered, lowered_delegates
from ethorch.backend.partitioner import EthosUPartitioner
from ethorch.backend.reduced import ReadyPartitioner, reduced
from ethorch.direct import NotWhole, lower_whole, program_of
from ethorch.errors import EthorchError, UserCodeError, VelaError
from ethorch.formats.pte_writer import write
from ethorch.lower.partition_report import PartitionReport
from ethorch.model_files import Inputs, UserModel
from ethorch.nhwc import NhwcIo, nhwc_inputs
from ethorch.progress import stage
from ethorch.quantizer.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantizer.quantizer import EthosUQuantizer
from ethorch.target.compile_spec import EthosUCompileSpec
from ethorch.user_code import at, explained, first_sentence, raised_in
from ethorch.vela import artifacts

logger = logging.getLogger(__name__)

__all__ = ["Build", "Inputs", "UserModel", "build", "quantize", "with_nhwc_io"]


@dataclass(frozen=True)
class Build:
    """A finished program and what became of each operator.

    Attributes:
        pte: the ExecuTorch program.
        partition: which operators are on the NPU, and why the others are not.
        delegates: the parts on the NPU, in the order of the file.
        spec: what it was made for, with paths of ini files, which a file does not keep.
        etrecord: ``executorch.devtools.etrecord.ETRecord`` of it; None where none was asked for.
    """

    pte: bytes = field(repr=False)
    partition: PartitionReport
    delegates: tuple[Lowered, ...]
    spec: EthosUCompileSpec | None = field(default=None, repr=False, compare=False)
    etrecord: Any = field(default=None, repr=False, compare=False)


def with_nhwc_io(model: UserModel) -> UserModel:
    """The model with inputs and outputs in NHWC (see ``ethorch.nhwc``).

    Raises:
        EthorchError: it is quantized already: wrap the float model.
    """
    if model.quantized:
        raise EthorchError("the model is quantized already; wrap the float model in ethorch.nhwc.NhwcIo before torch.export.")
    calibration = [nhwc_inputs(inputs) for inputs in model.calibration]
    wrapped = NhwcIo(model.module)
    wrapped.training = False  # not eval(): a module that torch.export made refuses it
    return UserModel(wrapped, nhwc_inputs(model.example_inputs), calibration)


def quantize(
    model: UserModel, spec: EthosUCompileSpec, config: QuantizationConfig | None = None, *, quantizer: EthosUQuantizer | None = None
) -> nn.Module:
    """The model with calibrated quantize and dequantize operators.

    Args:
        model: a model that is quantized already is given back as it is.
        spec: what is compiled for.
        config: of the model as a whole; int8, weights per channel, by default.
        quantizer: with settings of its own, instead of ``spec`` and ``config``.

    Raises:
        EthorchError: a calibration sample has another shape than the example inputs.
        UserCodeError: the model does not run with its inputs, or cannot be exported.
    """
    if model.quantized:
        return model.module
    if quantizer is None:
        quantizer = EthosUQuantizer(spec).set_global(config or get_symmetric_quantization_config(is_per_channel=True))
    for number, inputs in enumerate(model.calibration):
        if (given := described(inputs)) != (wanted := described(model.example_inputs)):
            raise EthorchError(f"calibration sample {number} is {given}; the example inputs, which fix the shapes, are {wanted}.")
    with stage("export"):
        graph = exported(model.module, model.example_inputs).module(check_guards=False)
    state = {name: buffer.clone() for name, buffer in graph.named_buffers()}
    with stage("prepare"):
        prepared = prepare_pt2e(graph, quantizer)
    samples = model.calibration or [model.example_inputs]
    with stage("calibrate", len(samples)) as step, torch.no_grad():
        for inputs in samples:
            prepared(*inputs)
            step()
        for name, buffer in prepared.named_buffers():  # what the model keeps from call to call is as before the first
            if name in state:
                buffer.copy_(state[name])
    with stage("convert"):
        converted: GraphModule = convert_pt2e(prepared)
    return converted


def described(inputs: Any) -> str:
    """``float32[1, 3, 8, 8], int64[1, 4]``: the tensors of an input tuple."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return ", ".join(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in leaves) or "no tensor"


def exported(module: nn.Module, inputs: Inputs, any_batch: bool = False) -> ExportedProgram:
    """``torch.export.export(module, inputs)``.

    Args:
        any_batch: the first dimension of each input may be another one later, where the model allows it.

    Raises:
        UserCodeError: the module does not run with these inputs, or cannot be exported; the message names the user's line.
    """
    try:
        return torch.export.export(module, inputs, dynamic_shapes=_any_batch(inputs) if any_batch else None)
    except Exception as error:
        with explained(f"the model does not run with its example inputs, {described(inputs)}"), torch.no_grad():
            module(*inputs)
        if any(name in f"{type(error).__name__} {error}" for name in _DATA_DEPENDENT):
            raise UserCodeError(
                f"the model's way depends on the values of a tensor{at(error)}, and an exported model has one way only. Compute "
                "both and choose with torch.where, or use torch.cond; a number taken out of a tensor (item, int, a mask as an "
                "index) has to be a constant."
            ) from error
        raise UserCodeError(f"torch.export cannot export the model{at(error)}: {first_sentence(error)}") from error


def _built_directly(quantized: nn.Module, example_inputs: Inputs, spec: EthosUCompileSpec) -> Build:
    """As ``build``.

    Raises:
        NotWhole, VelaError: as of ``lower_whole``.
    """
    assert isinstance(quantized, GraphModule)
    whole = lower_whole(quantized, spec)
    logger.info("%s", whole.partition.summary())
    if spec.path_for_intermediates:
        lowered = whole.lowered
        artifacts.write(Path(spec.path_for_intermediates), lowered.graph, lowered.tosa, lowered.payload, lowered.sources)
    return Build(write(program_of(whole, spec)), whole.partition, (whole.lowered,), spec)


def _built_reduced(quantized: nn.Module, example_inputs: Inputs, spec: EthosUCompileSpec) -> Build:
    """As ``build``.

    Raises:
        NotWhole, VelaError: as of ``reduced``.
    """
    assert isinstance(quantized, GraphModule)
    with reduced(quantized, spec) as made:
        delegates, program, _ = _through_executorch(exported(made.module, example_inputs), made.partitioner)
        made.partitioner.log()
    return Build(program, made.partitioner.report, delegates, spec)


def _any_batch(inputs: Inputs) -> Any:
    """What torch.export wants to hear of inputs whose first dimension is not fixed."""
    first = {0: torch.export.Dim.AUTO}
    return pytree.tree_map(lambda leaf: first if isinstance(leaf, torch.Tensor) and leaf.dim() else None, inputs)


#: Of the errors that torch.export raises where Python looks at a tensor's values: their class or their words.
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "Dynamic control flow", "dynamic control flow")


def build(quantized: nn.Module, example_inputs: Inputs, spec: EthosUCompileSpec, *, etrecord: bool = False) -> Build:
    """Lower and serialize a quantized model for the spec's target. Vela compiles each delegate once.

    A model that is one delegate as a whole takes ``ethorch.direct``'s way, in about the time that Vela takes. Of one with
    operators on the CPU, ExecuTorch is shown the CPU's part (``ethorch.backend.reduced``). What neither can take (control flow,
    channels last, what only Vela declines) ExecuTorch exports anew and partitions. The payloads are the same.

    Args:
        etrecord: make ExecuTorch's ETRecord too, which holds the graphs that only ExecuTorch's own way makes.
    """
    for way in (_built_directly, _built_reduced) if isinstance(quantized, GraphModule) and not etrecord else ():
        try:
            with stage("compile"):
                return way(quantized, example_inputs, spec)
        except (NotWhole, VelaError) as error:  # what Vela declines, the partitioner leaves to the CPU
            logger.debug("%s: %s", way.__name__, error)
    partitioner = EthosUPartitioner(spec)
    with stage("compile"):
        graph = exported(quantized, example_inputs)
        delegates, program, record = _through_executorch(graph, partitioner, etrecord=etrecord)
    return Build(program, partitioner.report, delegates, spec, record)


def _through_executorch(
    exported: ExportedProgram, partitioner: EthosUPartitioner | ReadyPartitioner, *, etrecord: bool = False
) -> tuple[tuple[Lowered, ...], bytes, Any]:
    """The delegates, the .pte, and the ETRecord if one is asked for."""
    with _executorch(partitioner.report), stage("lower the CPU's part"):
        edge = to_edge_transform_and_lower(
            exported,
            partitioner=[partitioner],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
            generate_etrecord=etrecord,
        )
        delegates = tuple(lowered_delegates(edge.exported_program()))
        program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
        return delegates, program.buffer, program.get_etrecord() if etrecord else None


@contextmanager
def _executorch(report: PartitionReport) -> Iterator[None]:
    """What ExecuTorch raises inside becomes an EthorchError that names the operators without kernels; a bug of ethorch does not."""
    try:
        yield
    except EthorchError:
        raise
    except Exception as error:
        if raised_in(error, Path(__file__).parent):
            raise
        missing = " ".join(f"{refusal}" for refusal in report.without_kernel)
        raise EthorchError(
            f"ExecuTorch cannot make a program of the model{at(error)}: {first_sentence(error)} {missing}".rstrip()
        ) from error
