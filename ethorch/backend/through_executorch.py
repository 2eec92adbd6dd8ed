"""Compile a quantized model to a ``.pte`` with ExecuTorch's own lowering."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from ethorch.backend.emit.build import Build
from ethorch.backend.partitioner import EthosUPartitioner
from ethorch.backend.preprocess import lowered_delegates
from ethorch.backend.products_on_cpu import rename_kernels
from ethorch.lower.fx.export import export_module, remedy_of
from ethorch.lower.fx.node import record_operators, storage_order
from ethorch.lower.fx.states import with_reads_first
from ethorch.lower.partition_report import PartitionReport, refusal_texts
from ethorch.models.user_code import at, first_sentence, is_raised_in
from ethorch.support.errors import EthorchError
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.lowered import Lowered

#: Rank -> storage order of a tensor -> memory format.
_FORMATS: dict[int, dict[tuple[int, ...], torch.memory_format]] = {
    4: {(0, 1, 2, 3): torch.contiguous_format, (0, 2, 3, 1): torch.channels_last},
    5: {(0, 1, 2, 3, 4): torch.contiguous_format, (0, 2, 3, 4, 1): torch.channels_last_3d},
}


def lower_by_executorch(
    quantized: nn.Module,
    example_inputs: tuple[Any, ...],
    spec: EthosUCompileSpec,
    *,
    etrecord: bool = False,
    shared: bool = False,
    dynamic_shapes: Sequence[dict[int, Any]] | None = None,
) -> Build:
    """Export a quantized model, partition it and write the program with ExecuTorch. See ``build_pte``."""
    partitioner = EthosUPartitioner(spec)
    if isinstance(quantized, GraphModule):
        quantized = with_reads_first(quantized)
        record_operators(quantized.graph)
        if not all(isinstance(x, torch.Tensor) for x in tree_leaves(example_inputs)):
            quantized = _with_constant_numbers(quantized)
    graph = export_module(quantized, example_inputs, dynamic_shapes)
    delegates, program, record = _lower(graph, partitioner, etrecord=etrecord, shared=shared)
    return Build(program, partitioner.report, delegates, spec, record)


def _with_constant_numbers(model: GraphModule) -> GraphModule:
    model = copy.deepcopy(model)
    for node in list(model.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        for index, (argument, value) in enumerate(zip(schema.arguments if schema else (), node.args, strict=False)):
            if not isinstance(argument.type, torch.TensorType) or type(value) not in (int, float):
                continue
            name = f"{node.name}_number_{index}"
            model.register_buffer(name, torch.tensor(value, dtype=node.meta["val"].dtype))
            with model.graph.inserting_before(node):
                node.update_arg(index, model.graph.get_attr(name))
    model.recompile()
    return model


def _lower(
    graph: ExportedProgram, partitioner: EthosUPartitioner, *, etrecord: bool = False, shared: bool = False
) -> tuple[tuple[Lowered, ...], bytes, Any]:
    with _convert_errors(partitioner.report), stage("lower CPU operators"):
        edge = to_edge_transform_and_lower(
            graph,
            partitioner=[partitioner],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
            generate_etrecord=etrecord,
        )
        _keep_initial_contents(edge.exported_program())
        _unify_layouts(edge.exported_program().graph_module)
        delegates = tuple(lowered_delegates(edge.exported_program()))
        config = ExecutorchBackendConfig(
            extract_delegate_segments=False,
            memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=shared),
            emit_mutable_buffer_names=True,
        )
        program = edge.to_executorch(config=config)
        return delegates, rename_kernels(program.buffer), program.get_etrecord() if etrecord else None


def _keep_initial_contents(program: ExportedProgram) -> None:
    changed = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        if program.graph_signature.inputs_to_buffers.get(node.name) in changed:
            node.meta["et_init_buffer"] = True


def _unify_layouts(module: GraphModule) -> None:
    # ExecuTorch's kernels require operands in the layout of the result, but torch.export accepts e.g. a contiguous image and a
    # channels-last weight.
    clone = exir_ops.edge.dim_order_ops._clone_dim_order.default
    for node in list(module.graph.nodes):
        result = node.meta.get("val")
        if not isinstance(node.target, EdgeOpOverload) or not isinstance(result, torch.Tensor) or result.dim() not in _FORMATS:
            continue
        operands = [arg for arg in node.all_input_nodes if getattr(arg.meta.get("val"), "ndim", None) == result.dim()]
        orders = [storage_order(operand.meta["val"]) for operand in operands]
        order = storage_order(result)
        if len(set(orders)) < 2 or order not in _FORMATS[result.dim()]:
            continue
        for operand, current in zip(operands, orders, strict=True):
            if current != order:
                with module.graph.inserting_before(node):
                    copied = module.graph.call_function(clone, (operand,), {"dim_order": list(order)})
                memory_format = _FORMATS[result.dim()][order]
                copied.meta = {**operand.meta, "val": operand.meta["val"].clone(memory_format=memory_format)}
                node.replace_input_with(operand, copied)
    module.recompile()


@contextmanager
def _convert_errors(report: PartitionReport) -> Iterator[None]:
    try:
        yield
    except EthorchError:
        raise
    except Exception as error:
        if is_raised_in(error, Path(__file__).parent.parent):
            raise
        missing = " ".join(refusal_texts(refusal.to_json() for refusal in report.without_kernel))
        text = f"ExecuTorch cannot lower the model{at(error)}: {first_sentence(error)}{remedy_of(error)} {missing}"
        raise EthorchError(text.rstrip()) from error
