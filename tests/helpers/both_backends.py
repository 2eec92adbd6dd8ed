"""Lower with ethorch and with ExecuTorch's Arm backend in one process: ``python -m tests.helpers.both_backends MODULE ...``.

The modules are imported first, in this order. ``product_on_cpu`` compiles a program that calls a Cortex-M kernel. Prints a digest
of each program as JSON.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from hashlib import sha256
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch.program.program import record_of

CONFIG = EdgeCompileConfig(_check_ir_validity=False)
ARM = "executorch.backends.arm"


def prepared_for(names: Any) -> tuple[Any, Any]:
    """Return a quantized program and the partitioner that ``names`` provides."""
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval(), (torch.randn(1, 3, 8, 8),)
    spec = names.EthosUCompileSpec("ethos-u55-128")
    quantizer = names.EthosUQuantizer(spec)
    quantizer.set_global(names.get_symmetric_quantization_config())
    graph = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    for _ in range(2):
        graph(torch.randn(1, 3, 8, 8))
    return torch.export.export(convert_pt2e(graph), inputs), names.EthosUPartitioner(spec)


def pte(edge: Any) -> bytes:
    """Return the program's bytes."""
    return bytes(edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False)).buffer)


def programs(*backends: Any) -> dict[str, bytes]:
    """Lower with each backend alone, and with all in one program, for which ExecuTorch finds backends differently."""
    found = {}
    for names in backends:
        program, partitioner = prepared_for(names)
        found[_top(names.__name__)] = pte(to_edge(program, compile_config=CONFIG).to_backend(partitioner))
    each = {_top(names.__name__): prepared_for(names) for names in backends}
    edge = to_edge_transform_and_lower(
        {name: program for name, (program, _) in each.items()},
        partitioner={name: [partitioner] for name, (_, partitioner) in each.items()},
        compile_config=CONFIG,
    )
    return {**found, "one program": pte(edge)}


def facts(made: dict[str, bytes]) -> dict[str, Any]:
    """Return digests of the programs and of each method's delegate, and the outputs of each method."""
    from ethorch import runtime

    loaded = {name: runtime.load(made["one program"], name) for name in ("ethorch", "executorch") if name in map(_top, made)}
    digests = {name: sha256(data).hexdigest() for name, data in made.items()}
    payloads = {f"{name} delegate": sha256(program.delegates[0].pack()).hexdigest() for name, program in loaded.items()}
    torch.manual_seed(1)
    inputs = torch.randn(1, 3, 8, 8)
    return {**digests, **payloads, "outputs": [program(inputs)[0].tolist() for program in loaded.values()]}


@functools.cache
def product_on_cpu() -> bytes:
    """Compile a product of two activations that ExecuTorch's Cortex-M kernel computes, and check the kernel's name."""
    import ethorch

    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) @ x.transpose(1, 2)

    torch.manual_seed(0)
    program = ethorch.compile(
        Product(), torch.randn(1, 6, 8), "ethos-u55-128", settings=ethorch.Settings(partition="cpu-matmul", verify=False)
    )
    assert [layer.operator for layer in record_of(program).layers if "matmul" in layer.operator] == [
        "cortex_m::quantized_batch_matmul.out"
    ]
    return program.pte


def _top(name: str) -> str:
    return name.partition(".")[0]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        product_on_cpu() if name == product_on_cpu.__name__ else importlib.import_module(name)
    made = programs(*map(importlib.import_module, ("ethorch.arm", ARM)))
    print(json.dumps(facts({**made, product_on_cpu.__name__: product_on_cpu()})))
