"""The layers of a program: every NPU operation and every operator on the CPU, with its cost and the user's line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ethorch.figures import RATES, Layer, layers
from ethorch.figures.cpu_rates import macs_of
from ethorch.formats import pte
from ethorch.formats.pte_types import Value
from ethorch.npu import Machine, Program
from ethorch.support.errors import FormatError
from ethorch.targets.npus import TARGETS
from tests.figures.programs import CASES, built

Shape = tuple[int, ...]
NPU_CASES = [name for name in CASES if name != "on_cpu"]


@pytest.mark.parametrize("name", CASES)
def test_every_operation_is_a_layer_in_the_order_of_execution(name: str) -> None:
    build = built(name)
    found = layers(build)
    assert [layer.index for layer in found] == list(range(len(found)))
    calls = pte.read(build.pte).methods["forward"].calls
    assert [layer.operator for layer in found if layer.where == "CPU"] == [c.operator for c in calls if c.delegate is None]
    called = [call.delegate for call in calls if call.delegate is not None]
    assert list(dict.fromkeys(layer.delegate for layer in found if layer.where == "NPU")) == list(dict.fromkeys(called))
    rows = [row for number in called for row in build.delegates[number].compiled.rows()]
    assert [layer.name for layer in found if layer.where == "NPU"] == [row.name for row in rows]


@pytest.mark.parametrize("name", NPU_CASES)
def test_layers_add_up_to_velas_totals(name: str) -> None:
    build = built(name)
    found = [layer for layer in layers(build) if layer.where == "NPU"]
    for number, delegate in enumerate(build.delegates):
        own, total = [layer for layer in found if layer.delegate == number], delegate.performance
        assert sum(layer.cycles or 0 for layer in own) == total.total_cycles
        assert sum(layer.npu_cycles or 0 for layer in own) == total.npu_cycles
        assert sum(layer.macs for layer in own) == total.mac_count
        header, rows = delegate.compiled.tables["perf_debug"]
        for memory in ("Sram", "Dram", "OffChipFlash"):
            for way, sizes in (("read", [x.read_bytes for x in own]), ("write", [x.written_bytes for x in own])):
                columns = [header.index(name) for name in header if re.fullmatch(rf"{memory}[A-Z]\w+_{way}", name)]
                expected = sum(int(row[column] or 0) for row in rows for column in columns)
                assert sum(size.get(memory, 0) for size in sizes) == expected


@pytest.mark.parametrize("name", CASES)
def test_shares_are_of_the_whole_and_utilization_of_the_npu(name: str) -> None:
    found = layers(built(name))
    assert abs(sum(layer.share or 0 for layer in found) - 1) < 1e-6
    macs = TARGETS[CASES[name].target].macs
    for layer in found:
        if layer.where == "NPU" and layer.cycles:
            assert layer.utilization == pytest.approx(layer.macs / layer.cycles / macs, abs=1e-8)
            assert 0 <= layer.utilization <= 1
            slowest = max(layer.access_cycles.values(), default=0)
            assert layer.bound
            if layer.bound in layer.access_cycles:
                assert slowest == layer.access_cycles[layer.bound] > (layer.npu_cycles or 0)
            elif layer.bound == "compute":
                assert slowest <= (layer.npu_cycles or 0)


def test_npu_layers_have_the_users_operator_module_and_line() -> None:
    found = {layer.module: layer for layer in layers(built("picture")) if layer.operator == "Conv2D"}
    assert set(found) == {"stem", "wide", "head"}
    assert found["stem"].operators == ("aten.conv2d.default",)
    assert found["wide"].operators == ("aten.conv2d.default", "aten.sigmoid.default")
    assert found["wide"].tosa_operators == ("CONV2D", "RESCALE", "TABLE")
    line = next(
        n for n, text in enumerate(Path(__file__).with_name("programs.py").read_text().splitlines(), 1) if "self.wide(" in text
    )
    assert found["wide"].source == f"programs.py:{line}"
    assert found["wide"].ifm_shapes == ((1, 16, 16, 16),) and found["wide"].ofm_shape == (1, 16, 16, 32)
    assert found["wide"].macs == 9 * 16 * 32 * 16 * 16
    (table,) = [layer for layer in layers(built("picture")) if layer.fused_into is not None]
    assert table.fused_into == found["wide"].index and table.cycles == 0 and table.operators == ("aten.sigmoid.default",)


def test_no_layer_is_the_quantizers() -> None:
    for name in NPU_CASES:
        for layer in layers(built(name)):
            if layer.where == "NPU":
                assert layer.operators and not any("quantized_decomposed" in op or op == "placeholder" for op in layer.operators), (
                    layer
                )


def test_cpu_layers_have_kernel_library_estimate_and_line() -> None:
    found = [layer for layer in layers(built("two_delegates")) if layer.where == "CPU"]
    first, topk = found[0], next(layer for layer in found if layer.operator == "aten::topk.values")
    assert first.name == "quantize_per_tensor input 0" and first.library == "quantized_ops_lib"
    assert first.cycles == RATES["quantize"].cycles * 3 * 8 * 8 and first.estimate == "quantize"
    assert topk.library == "portable_ops_lib" and topk.operators == ("aten.topk.default",)
    assert topk.source.startswith("programs.py:") and topk.cycles == RATES["sort"].cycles * 8 * 8 * 8
    assert found[-1].name == "dequantize_per_tensor output 0"
    assert found[-1].read_bytes == {"Ram": 4 * 64} and found[-1].written_bytes == {"Ram": 4 * 4 * 64}


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3, groups=4), (1, 4, 9, 7)),
        (nn.Conv1d(4, 6, 5), (1, 4, 12)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (1, 4, 5, 7)),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (1, 4, 5, 7)),
        (nn.Linear(6, 10), (3, 6)),
    ],
)
def test_macs_of_a_cpu_operator_are_those_that_torch_counts(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    with FlopCounterMode(display=False) as counter:
        module(x)
    program = to_edge(torch.export.export(module.eval(), (x,))).to_executorch().buffer
    assert 2 * sum(layer.macs for layer in layers(program)) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("kernel", "x", "weights", "output", "macs"),
    [
        ("quantized_conv2d", (1, 4, 9, 9), (6, 3, 5, 4), (1, 6, 7, 5), 6 * 7 * 5 * 3 * 5 * 4),
        ("quantized_depthwise_conv2d", (1, 4, 9, 9), (1, 3, 5, 8), (1, 8, 7, 5), 8 * 7 * 5 * 3 * 5),
        ("quantized_transpose_conv2d", (1, 4, 9, 9), (6, 3, 5, 4), (1, 6, 19, 21), 9 * 9 * 4 * 6 * 3 * 5),
        ("quantized_linear", (2, 7), (5, 7), (2, 5), 2 * 5 * 7),
        ("quantized_batch_matmul", (3, 2, 7), (3, 5, 7), (3, 2, 5), 3 * 2 * 5 * 7),
    ],
)
@pytest.mark.parametrize("suffix", ["", "_nhwc"])
def test_macs_of_cortex_m_kernels(kernel: str, x: Shape, weights: Shape, output: Shape, macs: int, suffix: str) -> None:
    first, second, result = (Value("tensor", "int8", shape) for shape in (x, weights, output))
    assert macs_of(f"cortex_m::{kernel}{suffix}.out", [first, second], [result]) == macs


@pytest.mark.parametrize("name", [name for name in NPU_CASES if name != "branches"])
def test_of_a_file_work_and_traffic_are_those_of_the_simulator(name: str) -> None:
    build = built(name)
    found = layers(build.pte)
    assert all(layer.cycles is None and layer.share is None for layer in found if layer.where == "NPU")
    for number, delegate in enumerate(build.delegates):
        own = [layer for layer in found if layer.delegate == number]
        machine = Machine(
            Program(delegate.payload.commands, delegate.payload.weights),
            delegate.payload.scratch_bytes,
            delegate.compiled.scratch_fast_bytes,
        )
        machine.run()
        assert sum(layer.macs for layer in own) == sum(counter.macs for counter in machine.counters.values())
        moved = sum(sum(counter.read_bytes.values()) - counter.read_bytes.get(-1, 0) for counter in machine.counters.values())
        assert sum(sum(layer.read_bytes.values()) for layer in own) == moved
        assert all(layer.name and layer.operator and (layer.ofm_shape or "DMA" in layer.operator) for layer in own)


def test_sources_beside_a_file_name_its_layers() -> None:
    build = built("picture")
    known = {layer.name: layer for layer in layers(build) if layer.fused_into is None}
    named = [x for x in layers(build.pte, sources={0: build.delegates[0].sources}) if x.where == "NPU"]
    assert named
    for layer in named:
        same = known[layer.name]
        assert (layer.cycles, layer.macs, layer.operator) == (same.cycles, same.macs, same.operator)
        assert (layer.source, layer.utilization) == (same.source, same.utilization)
    assert {"stem", "head"} <= {layer.module for layer in named}


def test_layers_survive_json_under_mlias_keys() -> None:
    for name in ("picture_u65_dedicated_sram", "two_delegates"):
        for layer in layers(built(name)):
            data = json.loads(json.dumps(layer.to_json()))
            assert Layer.from_json(data) == layer
    assert {
        "name", "op_cycles", "npu_cycles", "mac_count", "util_mac_percentage", "sram_usage", "sram_access_cycles",
        "dram_access_cycles", "on_chip_flash_access_cycles", "off_chip_flash_access_cycles",
    } <= data.keys()  # fmt: skip
    with pytest.raises(FormatError, match=r"expected the result of Layer\.to_json"):
        Layer.from_json({"name": "x"})


def test_a_file_is_read_without_torch() -> None:
    script = "import sys, ethorch.figures; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
