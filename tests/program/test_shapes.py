"""One model at several input shapes: a method for each, shared weights, and the smallest that fits is called."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export

import ethorch
from ethorch import cli
from ethorch.formats import pte
from ethorch.models.layouts import from_nhwc, to_nhwc
from ethorch.models.load import UserModel
from ethorch.program.padding import paddings_of
from ethorch.program.program import Program, record_of, select
from ethorch.program.shapes import samples_like
from ethorch.support.errors import EthorchError, HostError, SpecError
from ethorch.targets.selection import Padding, Selection
from ethorch.targets.settings import Settings, shapes_from


class Encoder(nn.Module):
    """Two inputs with a common length; no step of it reads another."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head(torch.relu(self.norm(self.embed(x))) * mask[..., None]), x.flip(-1)


class Maps(nn.Module):
    """Pictures of any batch and height; the height is averaged over."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.conv(x))
        return self.head(y.mean((2, 3))), y


def encoder_program(**more) -> tuple[nn.Module, Program]:
    torch.manual_seed(0)
    model = Encoder().eval()
    samples = [(torch.randn(1, length, 16), torch.rand(1, length)) for length in (8, 16, 16)]
    return model, ethorch.compile(model, samples[0], calibration=samples, shapes=["1x16x16,1x16", "1x8x16,1x8"], **more)


@pytest.fixture(scope="module")
def encoder() -> tuple[nn.Module, Program]:
    return encoder_program()


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
def test_the_smallest_method_that_fits_is_called(encoder, length):
    model, program = encoder
    torch.manual_seed(length)
    inputs = torch.randn(1, length, 16), torch.rand(1, length)
    part, filled = select(program, inputs)
    assert record_of(part).method == ("forward_8" if length <= 8 else "forward_16") and filled[0].shape[1] == int(
        record_of(part).method[8:]
    )
    for found, wanted in zip(program(*inputs), model(*inputs), strict=True):
        assert found.shape == wanted.shape and ethorch.sqnr_db(wanted, found) > 25


def test_outputs_are_those_of_a_program_of_one_shape(encoder):
    _, program = encoder
    for length in (8, 16):
        part = program[f"forward_{length}"]
        alone = ethorch.compile(record_of(part).quantized, record_of(part).model.example_inputs)
        inputs = torch.randn(1, length, 16), torch.rand(1, length)
        for one, other, filled in zip(
            program(*inputs),
            alone(*inputs),
            program["forward_16"](*record_of(program).selection.fill(inputs, "forward_16")),
            strict=True,
        ):
            assert torch.equal(one, other) and torch.equal(one, filled[:, :length])


def test_weights_are_stored_once_and_quantization_is_one(encoder):
    _, program = encoder
    parsed = pte.read(program.pte)
    assert len(parsed.named) == 1 and program.methods == ("forward_8", "forward_16")
    scales = [
        [node.args[1:3] for node in record_of(program[name]).quantized.graph.nodes if "quantize_per_tensor" in str(node.target)]
        for name in program.methods
    ]
    assert scales[0] == scales[1] and len(scales[0]) > 6


def test_the_summary_states_the_verification_of_all_methods(encoder):
    _, program = encoder
    found = program.to_json()["verification"]
    assert found == program["forward_8"].to_json()["verification"] and found["equal"] == 2
    assert "Verified" in str(program)


def test_a_method_without_samples_of_its_shapes_is_calibrated_with_the_others():
    torch.manual_seed(0)
    model = Encoder().eval()
    samples = [(torch.randn(1, 16, 16), torch.rand(1, 16)) for _ in range(4)]
    program = ethorch.compile(model, samples[0], calibration=samples, shapes=["1x8x16,1x8", "1x16x16,1x16"])
    for length in (8, 16):
        inputs = (torch.randn(1, length, 16), torch.rand(1, length))
        assert ethorch.sqnr_db(model(*inputs), program(*inputs)) > 25


def test_what_no_method_fits_is_refused_with_the_shapes(encoder):
    _, program = encoder
    for inputs in (
        (torch.randn(1, 17, 16), torch.rand(1, 17)),
        (torch.randn(1, 8, 16), torch.rand(1, 7)),
        (torch.randn(1, 8, 16),),
    ):
        with pytest.raises(HostError, match=r"1x8x16, 1x8; 1x16x16, 1x16.*axis 1 of input 0.*shapes="):
            program(*inputs)


def test_the_file_and_the_folder_say_the_shapes(encoder, tmp_path):
    _, program = encoder
    inputs = torch.randn(1, 11, 16), torch.rand(1, 11)
    wanted = program(*inputs)
    for name in ("model.pte", "folder"):
        program.save(tmp_path / name)
        loaded = ethorch.load(tmp_path / name)
        assert record_of(loaded).selection == record_of(program).selection
        assert all(map(torch.equal, loaded(*inputs), wanted))
        assert record_of(ethorch.load(tmp_path / name, "forward_8")).selection is None
    for other in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert record_of(other).selection == record_of(program).selection and record_of(other["forward_8"]).selection is None
        assert all(map(torch.equal, other(*inputs), wanted))
    assert Settings.from_toml((tmp_path / "folder" / "settings.toml").read_text()).shapes == program.settings.shapes


def test_evaluate_and_compare_take_samples_of_every_shape(encoder):
    _, program = encoder
    samples = [(torch.randn(1, length, 16), torch.rand(1, length)) for length in (3, 16, 8, 12)]
    found = ethorch.evaluate(program, samples)
    assert found.samples == 4 and found.results["npu"]["sqnr_db"] > 25 and found.results["quantized"]["sqnr_db"] > 25
    assert (
        ethorch.evaluate(program, [(torch.randn(3, 16, 16), torch.rand(3, 16)), (torch.randn(8, 16), torch.rand(8))]).samples == 4
    )
    assert program.compare(*samples[0]).bit_exact
    with pytest.raises(EthorchError, match="expected samples of one shape"):
        program.compare(samples=samples)
    assert program.accuracy.sqnr_db > 25


def test_firmware_selects_the_method_by_the_sizes(encoder, tmp_path):
    _, program = encoder
    ethorch.firmware(program, tmp_path, embed="arrays")
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\nint main(void) {\n'
        "  static const uint32_t sizes[][MODEL_SIZES] = {{1, 8, 16, 1, 8}, {1, 3, 16, 1, 3}, {1, 9, 16, 1, 9},\n"
        "    {1, 16, 16, 1, 16}, {1, 17, 16, 1, 17}, {1, 8, 16, 1, 7}, {1, 8, 15, 1, 8}, {1, 0, 16, 1, 0}, {2, 8, 16, 2, 8}};\n"
        '  for (unsigned k = 0; k < 9; ++k) printf("%d ", (int)model_select(sizes[k]));\n  return 0;\n}\n'
    )
    sources = [tmp_path / "main.c", tmp_path / "model" / "model.c"]
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        f"-I{tmp_path / 'model'}",
        f"-I{tmp_path / 'model' / 'kernels'}",
    ]
    command = ["gcc", *flags, *map(str, sources), "-Wl,--unresolved-symbols=ignore-all", "-no-pie", "-o", str(tmp_path / "main")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    printed = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["0", "0", "1", "1", "2", "2", "2", "2", "2"]


@pytest.fixture(scope="module")
def maps() -> tuple[nn.Module, Program]:
    torch.manual_seed(0)
    model = Maps().eval()
    samples = [torch.randn(1, 3, 8, 8), torch.randn(4, 3, 8, 8), torch.randn(1, 3, 12, 8)]
    shapes = [(1, 3, 8, 8), (4, 3, 8, 8), (1, 3, 12, 8)]
    return model, ethorch.compile(
        model, samples[0], calibration=samples, shapes=shapes, io="int8", settings=ethorch.Settings(io_layout="nhwc")
    )


def test_a_batch_is_filled_up_and_a_height_is_not(maps):
    model, program = maps
    assert program.methods == ("forward_1_8", "forward_1_12", "forward_4_8")
    assert record_of(program).selection.paddings == (Padding(((0, 0, 1),), ((0, 0, 1), (1, 0, 1))),)
    for shape in ((1, 3, 8, 8), (3, 3, 8, 8), (1, 3, 12, 8), (8, 3, 8, 8)):
        x = torch.randn(shape)
        found, wanted = record_of(program).floats(list(program(to_nhwc(x)))), model(x)
        assert found[0].shape == wanted[0].shape and ethorch.sqnr_db(wanted[0], found[0]) > 15
        assert ethorch.sqnr_db(wanted[1], from_nhwc(found[1])) > 15
    with pytest.raises(HostError, match="1x10x8x3"):
        program(torch.randn(1, 10, 8, 3))


def test_the_command_line_makes_and_runs_it(tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.randn(1, 4, 8),)\n"
    )
    net, out = f"{tmp_path}/net.py:make", str(tmp_path / "out.pte")
    assert cli.main(["compile", net, "--shape", "1x4x8", "--shape", "1x6x8", "-o", out]) == 0
    np.save(tmp_path / "x.npy", np.ones((1, 5, 8), np.float32))
    capsys.readouterr()
    assert cli.main(["run", out, "--inputs", str(tmp_path / "x.npy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [1, 5, 4]
    assert cli.main(["evaluate", out, "--data", str(tmp_path / "x.npy")]) == 0
    assert cli.main(["compare", net, "--set", 'shapes=["1x4x8", "1x6x8"]', "--inputs", str(tmp_path / "x.npy")]) == 0
    for wrong in (["--shape", "1x4x8,1x4"], ["--shape", "1x4"], ["--shape", "1x4x8", "--shape", "1x4x8"], ["--shape", "1xax8"]):
        assert cli.main(["compile", net, *wrong, "-o", out]) == 2
    assert cli.main(["tune", net, "--shape", "1x4x8", "--shape", "1x6x8"]) == 2


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class ByLength(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[1]


class Lookup(nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[:, index]


FILLED = {
    "attention over the length": (Attention(), [(1, 8, 4), (1, 12, 4)], []),
    "attention of a batch": (Attention(), [(1, 8, 4), (3, 8, 4)], [0]),
    "a convolution along the length": (nn.Conv1d(4, 4, 3, padding=1), [(1, 4, 8), (1, 4, 12)], []),
    "a causal convolution": (nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(4, 4, 3)), [(1, 4, 8), (1, 4, 12)], [2]),
    "a division by the length": (ByLength(), [(1, 8, 4), (1, 12, 4)], []),
    "a maximum along the length": (nn.AdaptiveMaxPool1d(1), [(1, 4, 8), (1, 4, 12)], []),
    "a group norm": (nn.GroupNorm(1, 4), [(1, 4, 8), (1, 4, 12)], []),
    "an lstm's batch": (nn.LSTM(4, 5, batch_first=True), [(1, 6, 4), (3, 6, 4)], [0]),
    "a flattened batch": (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 2)), [(2, 3, 4), (4, 3, 4)], [0]),
}


@pytest.mark.parametrize("name", FILLED)
def test_axes_are_filled_up_only_where_that_changes_nothing(name):
    module, shapes, axes = FILLED[name]
    user = UserModel(module.eval(), (torch.randn(shapes[0]),))
    found = paddings_of(user, [(shape,) for shape in shapes])
    assert [axis for padding in found for _, axis, _ in padding.inputs] == axes
    if axes:  # and the module says so
        x, whole = torch.randn(shapes[0]), torch.full(shapes[1], 7.0)
        whole[tuple(map(slice, x.shape))] = x
        selection = Selection({"one": (shapes[1],)}, found)
        outputs = torch.utils._pytree.tree_leaves(module(whole))
        for one, other in zip(torch.utils._pytree.tree_leaves(module(x)), selection.crop(outputs, [x.shape]), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("reduce", [torch.amin, torch.amax, torch.all, torch.any])
def test_an_axis_over_which_integers_are_reduced_is_not_filled_up(reduce):
    class Reduce(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return reduce(x, 1)

    dtype = torch.int32 if reduce in (torch.amin, torch.amax) else torch.bool
    user = UserModel(Reduce(), (torch.tensor([[0, 1, 0, 1]]).to(dtype),))
    assert paddings_of(user, [((1, 4),), ((1, 8),)]) == ()


@pytest.mark.parametrize("io", ["int8", "uint8", "int16"])
def test_methods_share_the_scales_of_integer_inputs_and_outputs(io):
    samples = [torch.rand(1, length, 8) * length for length in (8, 16, 8, 16)]
    settings = ethorch.Settings(io=io, shapes=[(1, 8, 8), (1, 16, 8)])
    program = ethorch.compile(nn.Linear(8, 4).eval(), samples[1], calibration=samples, settings=settings)
    short, long = (program[name] for name in program.methods)
    assert short.inputs[0].codes == long.inputs[0].codes and short.outputs[0].codes == long.outputs[0].codes


def test_an_axis_that_is_indexed_is_not_filled_up():
    user = UserModel(Lookup(), (torch.randn(1, 8, 4), torch.tensor([0, -1, 2])))
    assert paddings_of(user, [((1, 8, 4), (3,)), ((1, 12, 4), (3,))]) == ()


def test_an_exported_program_allows_the_sizes_of_its_dims():
    length = Dim("L", min=4, max=16)
    model = Encoder().eval()
    exported = export(model, (torch.randn(1, 8, 16), torch.rand(1, 8)), dynamic_shapes=({1: length}, {1: length}))
    program = ethorch.compile(exported, shapes=[((1, 4, 16), (1, 4)), ((1, 16, 16), (1, 16))])
    assert len(record_of(program).build.delegates) == 1 and not record_of(program).build.partition.refusals
    assert program(torch.randn(1, 9, 16), torch.rand(1, 9))[0].shape == (1, 9, 8)
    for wrong in ("1x17x16,1x17", "1x8x16,1x9", "1x3x16,1x3", "2x8x16,2x8"):
        with pytest.raises(SpecError, match=r"expected (a size in|size 1 for axis 0)"):
            ethorch.compile(exported, shapes=[wrong])


def test_shapes_that_say_nothing_are_refused(encoder):
    model, _ = encoder
    inputs = torch.randn(1, 8, 16), torch.rand(1, 8)
    for wrong in (
        [(1, 8, 16)],
        ["1x8x16,1x8,1"],
        [((1, 8), (1, 8, 16))],
        ["1x8"],
        ["1x8x16,1xa"],
        [((1, 8, 0), (1, 8))],
        [[]],
        [3.5],
    ):
        with pytest.raises(SpecError, match=r"shapes contains|^shapes: expected"):
            ethorch.compile(model, inputs, shapes=wrong)
    quantized = ethorch.quantize(model, inputs)
    with pytest.raises(SpecError, match="for which the model was quantized"):
        ethorch.compile(quantized, inputs, shapes=["1x9x16,1x9"])
    with pytest.raises(SpecError, match="twice"):
        shapes_from(["1x8", (1, 8)])
    with pytest.raises(SpecError, match="requires a single model"):
        ethorch.compile({"a": model}, {"a": inputs}, shapes=["1x8x16,1x8"])
    assert samples_like(UserModel(model, inputs), [((1, 3, 16), (1, 3))])[0][0].shape == (1, 3, 16)


class Counter(nn.Module):
    """A sum that is kept from call to call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(1, 4))

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(self.total * 0.5 + self.linear(x).mean(1))
        return self.total.clone()


def test_state_is_shared_and_nothing_is_filled_up_then():
    torch.manual_seed(0)
    model = Counter().eval()
    samples = [{"x": torch.randn(1, length, 4)} for length in (4, 8)]
    program = ethorch.compile(model, samples[0], calibration=samples, shapes=[(1, 4, 4), (1, 8, 4)], scheme="a16w8")
    assert record_of(program).selection.paddings == ()
    program.reset()
    for length in (4, 8, 4):
        x = torch.randn(1, length, 4)
        assert torch.allclose(program(x=x), model(x=x), atol=2e-3)
