"""Quantize and partition a module without Vela, to determine which operators run on the NPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch.backend.emit.checks import set_values
from ethorch.backend.partitioner import EthosUPartitioner, TOSAPartitioner
from ethorch.backend.root_causes import root_causes
from ethorch.backend.tagging import is_plumbing
from ethorch.lower.fx.node import Converted, constants_of
from ethorch.lower.walk import Walk
from ethorch.quantization.config import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.quantization.quantizer import EthosUQuantizer
from ethorch.support.errors import Reason
from ethorch.support.exclusive import exclusive
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.vela.delegate import builder_for

_CONFIGS: dict[str, Any] = {"int8": get_symmetric_quantization_config, "int16": get_symmetric_a16w8_quantization_config}
_ONLY_CONSTANTS = {"CONST", "CONST_SHAPE", "IDENTITY", "RESHAPE"}


def dry_run(
    module: nn.Module, samples: Sequence[tuple[Any, ...]], target: str, activations: str
) -> tuple[Reason | None, list[str]]:
    """Return the reason for the first operator on the CPU, or None, and the TOSA operators that the module lowers to.

    Args:
        module: Module to partition.
        samples: Calibration inputs. The first one sets the shapes.
        target: Name of the NPU; an empty string selects float and the FP profile of TOSA.
        activations: ``int8`` or ``int16``.
    """
    with exclusive(), torch.no_grad():
        program: torch.export.ExportedProgram | Converted
        partitioner: EthosUPartitioner | TOSAPartitioner
        if target:
            spec = EthosUCompileSpec(target)
            quantizer = EthosUQuantizer(spec).set_global(_CONFIGS[activations](is_per_channel=True))
            prepared = prepare_pt2e(torch.export.export(module.eval(), samples[0]).module(check_guards=False), quantizer)
            for inputs in samples:
                prepared(*inputs)
            converted = convert_pt2e(prepared)
            set_values(converted)
            program = Converted(converted)
            partitioner = EthosUPartitioner(spec)
        else:
            program = torch.export.export(module.eval(), samples[0])
            partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
        _, refusals = partitioner.dry_run(program)
        refused = [reason for node, reason in root_causes(refusals).items() if node.op == "call_function" and not is_plumbing(node)]
        if refused:
            return refused[0], []
        walk = Walk(program.graph, constants_of(program), builder_for(partitioner.compile_spec.target), strict=False).run()
        return None, list(dict.fromkeys(op.name for op in walk.b.graph.ops if op.name not in _ONLY_CONSTANTS))
