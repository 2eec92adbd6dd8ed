"""Check that a table is loaded once, and that all operations read the same values."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

import ethorch
from ethorch.npu.cycles import Effects
from ethorch.npu.ir import decode
from ethorch.npu.ir.encode import encode
from ethorch.npu.ir.image import Image
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import PIPELINE, optimize
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates

assert "loaded-tables" in [stage.name for stage in PIPELINE], "the pass is missing"
torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(288, 10), nn.Tanh()).eval()
samples = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
settings = ethorch.Settings(stream="vela")
program = ethorch.compile(network, samples[0], "ethos-u85-256", calibration=samples, settings=settings, progress=False)
payload = program.delegates[0].payload
places = [
    tuple((tensor.region, tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors)
    for tensors in (payload.inputs, payload.outputs)
]
image = Image(np.frombuffer(payload.weights, np.uint8), {1: payload.scratch_bytes}, *places)
stream = decode(payload.commands, image)
transfer = next(op for op in stream.ops if op.is_dma and op.writes[0].region not in image.sizes)
twice = encode(replace(stream, ops=[*stream.ops[:-1], replace(transfer, key=stream.new_key()), stream.ops[-1]]))
context = Context(read_memory_rates(EthosUCompileSpec("ethos-u85-256")), effects=Effects())
result = optimize(twice, image, context, [stage for stage in PIPELINE if stage.name == "loaded-tables"])
assert result is not None and not result.rejected, "the pass keeps the second transfer, or changes what operations read"
assert len(result.stream.ops) == len(stream.ops)
