"""Use the names of ExecuTorch's Arm backend: test pipelines, uint8 inputs and outputs, and the backend's name.

``python examples/arm_backend.py`` tests a convolution with four pipelines, compiles it with uint8 inputs and outputs through
ExecuTorch's API, and prints the number of delegates that ethorch compiled.
"""

import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.lowered_backend_module import get_lowered_backend_modules
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch.arm import EthosUBackend
from ethorch.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from ethorch.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config, get_uint8_io_quantization_config
from ethorch.arm.test.tester.test_pipeline import (
    EthosU65PipelineINT,
    EthosU85PipelineINT,
    OpNotSupportedPipeline,
    TosaPipelineFP,
    TosaPipelineINT,
)


class Modes(torch.nn.Module):
    """A module with an operator that NPUs do not support."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mode(x)[0]


torch.manual_seed(0)
model, inputs = torch.nn.Conv2d(3, 4, 3).eval(), (torch.rand(1, 3, 8, 8),)
for pipeline in (TosaPipelineFP, TosaPipelineINT, EthosU65PipelineINT, EthosU85PipelineINT):
    pipeline(model, inputs, "torch.ops.aten.conv2d.default").run()
    print(f"{pipeline.__name__}: passed")
OpNotSupportedPipeline(Modes(), (torch.rand(2, 8),), {"executorch_exir_dialects_edge__ops_aten_mode_default": 1}).run()

spec = EthosUCompileSpec("ethos-u55-128")
quantizer = EthosUQuantizer(spec)
quantizer.set_global(get_symmetric_quantization_config()).set_io(get_uint8_io_quantization_config())
prepared = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
prepared(*inputs)
edge = to_edge_transform_and_lower(
    torch.export.export(convert_pt2e(prepared), inputs),
    partitioner=[EthosUPartitioner(spec)],
    compile_config=EdgeCompileConfig(_check_ir_validity=False),
)
delegates = get_lowered_backend_modules(edge.exported_program().graph_module)
print(f"{sum(delegate.backend_id == EthosUBackend.__name__ for delegate in delegates)} of {len(delegates)} delegates are ethorch's")
