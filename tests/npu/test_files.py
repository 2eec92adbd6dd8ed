"""Vela's own files: .npz against the TOSA reference model, .tflite against LiteRT, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import interpreter

from ethorch.npu import run_vela
from ethorch.npu.vela_files import read_vela
from ethorch.support.errors import FormatError, MachineFault
from tests.helpers.npu_graphs import TARGETS as EVERY_TARGET
from tests.helpers.npu_graphs import Graph, Refused, compile_graph, draw, reference, run_machine
from tests.helpers.tflite import O, T, write
from tests.npu.cases import CASES

pytestmark = pytest.mark.core

TARGETS = ("u55-128", "u65-512", "u85-256")


def numbers() -> np.random.Generator:
    """Where a model's weights come from: the same on every call, whatever else is tested."""
    return np.random.default_rng(0)


def weights(*shape: int, low: int = -127) -> np.ndarray:
    return numbers().integers(low, 128, shape)


def unary(name: str, dtype: str = "int8", scale: float = 0.05, out: T | None = None, options: str = "", **values) -> bytes:
    shape = (1, 9, 11, 16)
    zero_point = 3 if dtype == "int8" else 0
    result = out or T(shape, dtype, scale * 0.7, zero_point)
    return write([T(shape, dtype, scale, zero_point), result], [O(name, [0], [1], options, values)], [0], [1])


def binary(name: str, dtype: str = "int8", other=(1, 9, 11, 16), scales=(0.05, 0.021, 0.06), relu: int = 0) -> bytes:
    points = (3, -9, 5) if dtype == "int8" else (0, 0, 0)
    shapes = ((1, 9, 11, 16), other, (1, 9, 11, 16))
    tensors = [T(s, dtype, q, z) for s, q, z in zip(shapes, scales, points, strict=True)]
    values = {"FusedActivationFunction": relu} if name in ("ADD", "SUB", "MUL") else {}
    options = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}.get(name, "")
    return write(tensors, [O(name, [0, 1], [2], options, values)], [0, 1], [2])


def conv(dtype: str = "int8", stride: int = 1, relu: int = 0, depthwise: bool = False) -> bytes:
    out = 16 if depthwise else 24
    rng = numbers()
    scales = rng.uniform(0.002, 0.02, out)
    shape = (1, 3, 3, 16) if depthwise else (out, 3, 3, 16)
    bias = T((out,), "int32" if dtype == "int8" else "int64", 0.05 * scales, data=rng.integers(-3000, 3000, out))
    size = 12 // stride
    tensors = [
        T((1, 12, 12, 16), dtype, 0.05, 4 if dtype == "int8" else 0),
        T(shape, "int8", scales, data=weights(*shape), axis=3 if depthwise else 0),
        bias,
        T((1, size, size, out), dtype, 0.9 if dtype == "int8" else 20.0, -7 if dtype == "int8" else 0),
    ]
    values = {"Padding": 0, "StrideW": stride, "StrideH": stride, "FusedActivationFunction": relu}
    values |= {"DilationWFactor": 1, "DilationHFactor": 1} | ({"DepthMultiplier": 1} if depthwise else {})
    name, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if depthwise else ("CONV_2D", "Conv2DOptions")
    return write(tensors, [O(name, [0, 1, 2], [3], options, values)], [0], [3])


FC_BIAS = numbers().integers(-3000, 3000, 512)


def fully_connected() -> bytes:
    tensors = [
        T((1, 64), scale=0.05, zero_point=4),
        T((512, 64), scale=0.01, data=weights(512, 64)),
        T((512,), "int32", 0.0005, data=FC_BIAS),
        T((1, 512), scale=0.213, zero_point=-7),
    ]
    values = {"FusedActivationFunction": 0, "WeightsFormat": 0, "KeepNumDims": False}
    return write(tensors, [O("FULLY_CONNECTED", [0, 1, 2], [3], "FullyConnectedOptions", values)], [0], [3])


def pool(name: str, dtype: str = "int8") -> bytes:
    """Padding SAME, so that windows at the border are smaller."""
    values = {"Padding": 0, "StrideW": 2, "StrideH": 2, "FilterWidth": 3, "FilterHeight": 3, "FusedActivationFunction": 0}
    zero_point = 3 if dtype == "int8" else 0
    out = T((1, 5, 6, 16), dtype, 0.05, zero_point)
    return write([T((1, 9, 11, 16), dtype, 0.05, zero_point), out], [O(name, [0], [1], "Pool2DOptions", values)], [0], [1])


def resize(name: str, options: str, **values) -> bytes:
    size = T((2,), "int32", data=np.array([18, 22]))
    out = T((1, 18, 22, 16), scale=0.05, zero_point=3)
    tensors = [T((1, 9, 11, 16), scale=0.05, zero_point=3), size, out]
    return write(tensors, [O(name, [0, 1], [2], options, values)], [0], [2])


def mean() -> bytes:
    tensors = [T((1, 9, 11, 16), scale=0.05, zero_point=3), T((2,), "int32", data=np.array([1, 2])), T((1, 1, 1, 16), scale=0.01)]
    return write(tensors, [O("MEAN", [0, 1], [2], "ReducerOptions", {"KeepDims": True})], [0], [2])


def network() -> bytes:
    """Convolution, depthwise convolution, addition, average: several operators in one file."""
    rng = numbers()
    scales = rng.uniform(0.002, 0.02, 16)
    tensors = [
        T((1, 12, 12, 16), scale=0.05, zero_point=4),
        T((16, 1, 1, 16), scale=scales, data=weights(16, 1, 1, 16)),
        T((16,), "int32", 0.05 * scales, data=rng.integers(-3000, 3000, 16)),
        T((1, 12, 12, 16), scale=0.3, zero_point=-7),
        T((1, 12, 12, 16), scale=0.35, zero_point=2),
        T((1, 6, 6, 16), scale=0.35, zero_point=2),
    ]
    ones = {"Padding": 0, "StrideW": 1, "StrideH": 1, "FusedActivationFunction": 0, "DilationWFactor": 1, "DilationHFactor": 1}
    two = {"Padding": 1, "StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2, "FusedActivationFunction": 0}
    operators = [
        O("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", ones),
        O("ADD", [3, 0], [4], "AddOptions", {"FusedActivationFunction": 1}),
        O("MAX_POOL_2D", [4], [5], "Pool2DOptions", two),
    ]
    return write(tensors, operators, [0], [5])


SHAPE = (1, 9, 11, 16)
MODELS: dict[str, Callable[[], bytes]] = {
    "add_int8": lambda: binary("ADD"),
    "add_int8_relu": lambda: binary("ADD", relu=1),
    "add_int8_broadcast": lambda: binary("ADD", other=(1, 1, 1, 16)),
    "add_int8_far_scales": lambda: binary("ADD", scales=(0.002, 0.4, 0.5)),
    "add_int16": lambda: binary("ADD", "int16", scales=(0.0005, 0.0002, 0.0006)),
    "sub_int8": lambda: binary("SUB"),
    "sub_int16": lambda: binary("SUB", "int16", scales=(0.0005, 0.0002, 0.0006)),
    "mul_int8": lambda: binary("MUL", scales=(0.05, 0.02, 0.06)),
    "mul_int16": lambda: binary("MUL", "int16", scales=(0.0005, 0.0002, 0.003)),
    "minimum_int8": lambda: binary_same("MINIMUM"),
    "maximum_int8": lambda: binary_same("MAXIMUM"),
    "leaky_relu_int8": lambda: unary("LEAKY_RELU", options="LeakyReluOptions", Alpha=0.3),
    "leaky_relu_int16": lambda: unary("LEAKY_RELU", "int16", 0.0005, options="LeakyReluOptions", Alpha=0.3),
    "abs_int8": lambda: unary("ABS"),
    "tanh_int8": lambda: unary("TANH", out=T(SHAPE, "int8", 1 / 128)),
    "tanh_int16": lambda: unary("TANH", "int16", 1 / 4096, out=T(SHAPE, "int16", 1 / 32768)),
    "logistic_int8": lambda: unary("LOGISTIC", out=T(SHAPE, "int8", 1 / 256, -128)),
    "logistic_int16": lambda: unary("LOGISTIC", "int16", 1 / 4096, out=T(SHAPE, "int16", 1 / 32768)),
    "hard_swish": lambda: unary("HARD_SWISH"),
    "quantize": lambda: unary("QUANTIZE"),
    "quantize_int16_to_int8": lambda: unary("QUANTIZE", "int16", 0.0005, out=T(SHAPE, "int8", 0.11, -4)),
    "softmax_int8": lambda: unary("SOFTMAX", out=T(SHAPE, "int8", 1 / 256, -128), options="SoftmaxOptions", Beta=1.0),
    "softmax_int16": lambda: unary(
        "SOFTMAX", "int16", 0.0005, out=T(SHAPE, "int16", 1 / 32768), options="SoftmaxOptions", Beta=1.0
    ),
    "conv_int8": conv,
    "conv_int8_stride2_relu6": lambda: conv(stride=2, relu=3),
    "conv_int16": lambda: conv("int16"),
    "depthwise_int8": lambda: conv(depthwise=True),
    "depthwise_int16": lambda: conv("int16", depthwise=True),
    "fully_connected": fully_connected,
    "average_pool_int8": lambda: pool("AVERAGE_POOL_2D"),
    "average_pool_int16": lambda: pool("AVERAGE_POOL_2D", "int16"),
    "max_pool_int8": lambda: pool("MAX_POOL_2D"),
    "mean": mean,
    "resize_bilinear": lambda: resize("RESIZE_BILINEAR", "ResizeBilinearOptions", AlignCorners=False, HalfPixelCenters=False),
    "resize_bilinear_half_pixel": lambda: resize(
        "RESIZE_BILINEAR", "ResizeBilinearOptions", AlignCorners=False, HalfPixelCenters=True
    ),
    "resize_nearest": lambda: resize(
        "RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions", AlignCorners=False, HalfPixelCenters=False
    ),
    "network": network,
}


EXACT = [name for name in MODELS if name != "fully_connected"]  # see test_fully_connected_is_rounded_twice


def binary_same(name: str) -> bytes:
    """MINIMUM and MAXIMUM want one quantization everywhere."""
    tensors = [T(SHAPE, "int8", 0.05, 3) for _ in range(3)]
    return write(tensors, [O(name, [0, 1], [2], "MaximumMinimumOptions")], [0, 1], [2])


def litert(model: bytes, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(random inputs, what LiteRT's reference kernels make of them)"""
    resolver = interpreter.OpResolverType.BUILTIN_REF
    runner = interpreter.Interpreter(model_content=model, experimental_op_resolver_type=resolver)
    runner.allocate_tensors()
    generator = np.random.default_rng(seed)
    inputs = []
    for entry in runner.get_input_details():
        info = np.iinfo(entry["dtype"])
        inputs.append(generator.integers(info.min, info.max + 1, entry["shape"]).astype(entry["dtype"]))
        runner.set_tensor(entry["index"], inputs[-1])
    runner.invoke()
    return inputs, [runner.get_tensor(entry["index"]) for entry in runner.get_output_details()]


@pytest.mark.parametrize("target", TARGETS)
def test_fully_connected_is_rounded_twice(target):
    """Vela programs TFLite's two roundings, and the product of the scales in float32; LiteRT 2.3 rounds once, by doubles."""
    tflite = fully_connected()
    vela_scale, litert_scale, shift, zero_point = 1290506670, 1290506599, 39, -7
    model = compile_graph(tflite, target, fmt="TFLITE")
    different = 0
    for seed in range(20):
        inputs, (wanted,) = litert(tflite, seed)
        got = run_machine(model, inputs)[0].ravel()
        acc = weights(512, 64) @ (inputs[0].ravel().astype(np.int64) - 4) + FC_BIAS
        half = 1 << (shift - 1)
        once = (acc * litert_scale + half) >> shift
        twice = (acc * vela_scale + half + np.where(acc >= 0, 1 << 30, -1 << 30)) >> shift
        assert np.array_equal(wanted.ravel(), np.clip(once + zero_point, -128, 127))
        assert np.array_equal(got, np.clip(twice + zero_point, -128, 127))
        assert np.abs(got.astype(int) - wanted.ravel()).max() <= 1
        different += np.count_nonzero(got != wanted.ravel())
    assert 0 < different < 20 * 512 / 100


TFLITE = "[compiler]\noutput_format=TFLite\n[scheduler]\noptimize=Performance"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXACT)
def test_a_tflite_file_computes_what_litert_does(name, target, tmp_path):
    check_tflite(MODELS[name](), target, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", [target for target in EVERY_TARGET if target not in TARGETS])
@pytest.mark.parametrize("name", EXACT)
def test_a_tflite_file_everywhere(name, target, tmp_path):
    check_tflite(MODELS[name](), target, tmp_path)


def check_tflite(model: bytes, target: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    try:
        path.write_bytes(bytes(compile_graph(model, target, TFLITE, fmt="TFLITE").model))
        read_vela(path)
    except (Refused, FormatError) as refusal:
        assert isinstance(refusal, Refused) or "not on the NPU" in str(refusal)
        pytest.skip(f"Vela: {refusal}"[:200])
    for seed in range(2):
        inputs, wanted = litert(model, seed)
        for w, got in zip(wanted, run_vela(path, inputs), strict=True):
            assert len(np.unique(w)) > 4
            assert w.shape == got.shape and w.dtype == got.dtype
            assert np.array_equal(w, got), f"{np.count_nonzero(w != got)} of {w.size} differ, by {np.abs(w - 1.0 * got).max()}"


@pytest.mark.parametrize("target", ["u55-128", "u85-256"])
def test_a_raw_file_computes_what_the_tosa_reference_does(target, tmp_path):
    check_raw(target, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", [target for target in EVERY_TARGET if target not in ("u55-128", "u85-256")])
def test_a_raw_file_everywhere(target, tmp_path):
    check_raw(target, tmp_path)


def check_raw(target: str, tmp_path: Path) -> None:
    graph = Graph(1)
    CASES["residual_block"](graph)
    tosa = graph.serialize()
    (tmp_path / "net.tosa").write_bytes(tosa)
    command = [sys.executable, "-m", "ethosu.vela", "net.tosa", "--accelerator-config", f"ethos-{target}", "--output-format", "raw"]
    made = subprocess.run([*command, "--output-dir", "."], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    inputs = draw(graph, 1)
    (path,) = Path(tmp_path).glob("*.npz")
    for w, got in zip(reference(tosa, inputs), run_vela(path, inputs), strict=True):
        assert np.array_equal(np.ravel(w), got.ravel())


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(FormatError, match="cannot read"):
        run_vela(path, [])
    path.write_bytes(conv())
    with pytest.raises(FormatError, match="builtin 3 is not on the NPU"):
        run_vela(path, [])
    path.write_bytes(b"hello")
    with pytest.raises(FormatError, match=r"neither a \.npz nor a \.tflite"):
        run_vela(path, [])


def test_damaged_tflite_files_fault_or_run(tmp_path):
    good = bytes(compile_graph(network(), "u55-128", TFLITE, fmt="TFLITE").model)
    path = tmp_path / "model.tflite"
    path.write_bytes(good)
    with pytest.raises(FormatError, match="expected 1 input, got 0"):
        run_vela(path, [])
    with pytest.raises(FormatError, match="input t0: expected"):
        run_vela(path, [np.zeros((1, 12, 12, 16), np.int16)])
    with pytest.raises(FormatError, match="input t0: expected"):
        run_vela(path, [np.zeros((1, 16, 12, 12), np.int8)])
    generator = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for at in generator.integers(0, len(data), 4):
            data[at] ^= 1 << generator.integers(8)
        path.write_bytes(data[: generator.integers(8, len(data) + 1)])
        try:
            found = read_vela(path)
            found.run([np.zeros(t.shape, t.dtype) for t in found.inputs], budget=1 << 28)
        except (FormatError, MachineFault):
            refused += 1
    assert refused > 100
