"""Create .pte files with ExecuTorch's own Arm backend: ``python tests/helpers/arm_backend.py FOLDER [NAME ...]``.

Run in a separate process, because both backends are called EthosUBackend. Writes NAME.pte for each model, the TOSA graph of each
delegate to NAME/, and Vela's flags for each target to flags.json. Without a NAME, also writes cortex_m/; see cortex_m.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

MACS = {"u55": (32, 64, 128, 256), "u65": (256, 512), "u85": (128, 256, 512, 1024, 2048)}
EVERY_TARGET = [f"ethos-{family}-{macs}" for family, choices in MACS.items() for macs in choices]


class Cnn(nn.Module):
    """A network like MobileNet: strided convolution, depthwise, pointwise, residual, mean, linear."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = x + self.pointwise(torch.relu(self.depthwise(x)))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Lost(nn.Module):
    """A model whose first delegate also reads its own output, which ExecuTorch's Arm backend omits from the payload."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return x + nn.functional.relu6(self.second(x))  # relu6 as a function stays on the CPU there


class Deep(nn.Module):
    """Weights and feature maps that Vela stages in separate SRAM, in a Dedicated_Sram mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 96, 3, stride=2), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


class Interrupted(nn.Module):
    """Two delegates with a sort on the CPU between them; two inputs, two outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x, y):
        sorted_ = torch.topk(torch.relu(self.first(x)), 8, dim=3)[0]
        z = torch.relu(self.second(sorted_))
        return z, z + y


MODELS = {
    "cnn": ("ethos-u55-128", Cnn, [(1, 3, 32, 32)]),
    "staged": ("ethos-u65-256", Deep, [(1, 3, 16, 16)]),
    "u85": ("ethos-u85-256", Deep, [(1, 3, 16, 16)]),
    "lost": ("ethos-u55-128", Lost, [(1, 3, 8, 8)]),
    "interrupted": ("ethos-u55-256", Interrupted, [(1, 3, 8, 8), (1, 8, 8, 8)]),
}

MODELS |= {target: (target, Cnn, [(1, 3, 16, 16)]) for target in EVERY_TARGET}


def make(folder: Path, name: str) -> None:
    target, module, shapes = MODELS[name]
    torch.manual_seed(0)
    model, inputs = module().eval(), tuple(torch.randn(shape) for shape in shapes)
    (folder / name).mkdir(parents=True)
    spec = EthosUCompileSpec(target).dump_intermediate_artifacts_to(str(folder / name))
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(check_guards=False), quantizer)
    for _ in range(4):
        prepared(*(torch.randn(shape) for shape in shapes))
    program = to_edge_transform_and_lower(
        torch.export.export(convert_pt2e(prepared), inputs),
        partitioner=[EthosUPartitioner(spec)],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    segments = name == "staged"  # delegates as segments after the flatbuffer, or inside it
    program = program.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=segments))
    (folder / f"{name}.pte").write_bytes(program.buffer)


if __name__ == "__main__":
    flags = {target: EthosUCompileSpec(target).compiler_flags for target in EVERY_TARGET}
    (Path(sys.argv[1]) / "flags.json").write_text(json.dumps(flags))
    for model_name in sys.argv[2:] or [name for name in MODELS if name not in EVERY_TARGET]:
        make(Path(sys.argv[1]), model_name)
    if not sys.argv[2:]:
        import cortex_m  # after the others, because it registers more operators

        (Path(sys.argv[1]) / "cortex_m").mkdir()
        cortex_m.operators(Path(sys.argv[1]) / "cortex_m")
