"""Programs without Ethos-U delegates: programs with TOSA delegates, and CPU-only programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch.backend.partitioner import TOSAPartitioner
from ethorch.backend.preprocess import TOSABackend, register_quantized_kernels
from ethorch.lower.fx.export import export_module
from ethorch.lower.partition_report import PartitionReport
from ethorch.support.errors import EthorchError
from ethorch.support.wording import count_noun
from ethorch.targets.tosa_spec import TosaCompileSpec

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class OtherProgram:
    """A lowered program without Ethos-U delegates.

    Attributes:
        edge: The program before serialization.
        module: The quantized or float module that was lowered.
        report: Report of the partitioner, or None if the program is for CPUs.
        inputs: Example inputs.
    """

    edge: EdgeProgramManager
    module: nn.Module
    report: PartitionReport | None
    inputs: Inputs

    def pte(self) -> bytes:
        register_quantized_kernels()
        return bytes(self.edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer)

    def with_record(self) -> tuple[bytes, Any]:
        """Return the ``.pte`` and its ETRecord. Requires lowering with ``record=True``."""
        register_quantized_kernels()
        program = self.edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
        return bytes(program.buffer), program.get_etrecord()

    def tosa(self) -> bytes:
        """Return the TOSA flatbuffer. Raise EthorchError unless there is exactly one delegate."""
        modules = (module for _, module in self.edge.exported_program().graph_module.named_children())
        graphs = [module.processed_bytes for module in modules if getattr(module, "backend_id", None) == TOSABackend.__name__]
        if len(graphs) != 1:
            raise EthorchError(f"expected one delegate for TOSA output, got {count_noun(len(graphs), 'delegate')}. Write a .pte.")
        return bytes(graphs[0])


def lower_to_tosa(module: nn.Module, inputs: Inputs, spec: TosaCompileSpec, *, record: bool = False) -> OtherProgram:
    """Lower a quantized or float model to a program with TOSA delegates."""
    partitioner = TOSAPartitioner(spec)
    return OtherProgram(_lower(module, inputs, [partitioner], record=record), module, partitioner.report, inputs)


def lower_for_cpu(module: nn.Module, inputs: Inputs, *, record: bool = False) -> OtherProgram:
    """Lower a quantized or float model to ExecuTorch's portable kernels."""
    return OtherProgram(_lower(module, inputs, [], record=record), module, None, inputs)


def _lower(module: nn.Module, inputs: Inputs, partitioners: list[TOSAPartitioner], *, record: bool) -> EdgeProgramManager:
    config = EdgeCompileConfig(_check_ir_validity=False)
    program = export_module(module, inputs)
    return to_edge_transform_and_lower(program, partitioner=partitioners, compile_config=config, generate_etrecord=record)


def lower_for_cortex_m(
    module: nn.Module,
    inputs: Inputs,
    cpu: str,
    samples: list[Inputs],
    *,
    quantize: bool,
    explicit_layout: bool = False,
    record: bool = False,
) -> OtherProgram:
    """Lower a model to CMSIS-NN kernels with ExecuTorch's Cortex-M backend.

    Args:
        cpu: CPU name, e.g. ``cortex-m55``.
        samples: Calibration inputs, used only if ``quantize`` is True.
        explicit_layout: Whether to permute tensors instead of changing their memory format.
    """
    from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
    from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
    from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer
    from executorch.backends.cortex_m.target_config import CortexMTargetConfig

    if quantize:
        if not explicit_layout:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs, samples = _channels_last(inputs), [_channels_last(sample) for sample in samples]
        graph = export_module(module, inputs).module(check_guards=False)
        prepared = prepare_pt2e(graph, CortexMQuantizer(use_explicit_layout=explicit_layout))
        with torch.no_grad():
            for sample in samples:
                prepared(*sample)
        module = convert_pt2e(prepared)
    edge = to_edge_transform_and_lower(
        export_module(module, inputs), compile_config=cortex_m_edge_compile_config(), generate_etrecord=record
    )
    target = CortexMTargetConfig.from_target_string(cpu)
    passes = CortexMPassManager(edge.exported_program(), target_config=target, use_explicit_layout=explicit_layout)
    edge._edge_programs["forward"] = passes.transform()
    return OtherProgram(edge, module, None, inputs)


def _channels_last(inputs: Inputs) -> Inputs:
    return tuple(x.to(memory_format=torch.channels_last) if isinstance(x, torch.Tensor) and x.dim() == 4 else x for x in inputs)
