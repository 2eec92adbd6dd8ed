"""Inputs that are dicts, repeated tensors, written in place, or passed by name: each reaches its parameter."""

from __future__ import annotations

import enum
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli
from ethorch.cli.model_options import inputs_from
from ethorch.formats import pte, pte_writer
from ethorch.models.samples import Keywords
from ethorch.support.errors import EthorchError, HostError


class OfDict(nn.Module):
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return 8 * x["a"] + x["b"]


class OfTwo(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 8 * a + b


class WritesInput(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y


def tensors(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.rand(1, 8), 30 * torch.rand(1, 8)) for _ in range(count)]


def close(output: Any, expected: Tensor) -> bool:
    return torch.allclose(output, expected, atol=0.02 * float(expected.abs().max()))


def test_keys_of_a_dict_may_have_another_order(tmp_path: Path) -> None:
    samples = [({"a": a, "b": b},) for a, b in tensors()]
    others = [({"b": sample["b"], "a": sample["a"]},) for (sample,) in samples]
    for calibration in (samples, others):
        program = ethorch.compile(OfDict(), samples[0], calibration=calibration)
        loaded = ethorch.load(program.save(tmp_path / "m.pte"))
        for (sample,), (other,) in zip(samples, others, strict=True):
            expected = OfDict()(sample)
            assert all(close(run(x), expected) for run in (program, loaded) for x in (sample, other))
            assert str(program.compare(other)) == str(program.compare(sample))
            program.profile(other)
            with pytest.raises(HostError, match=r"example inputs, .*'b': .*, got .*'x'"):
                program({"a": sample["a"], "x": sample["b"]})
    with pytest.raises(EthorchError, match="like the example inputs"):
        ethorch.compile(OfDict(), samples[0], calibration=[({"a": a, "x": b},) for a, b in tensors()])


def test_arrays_of_a_file_are_paired_by_name(tmp_path: Path) -> None:
    samples = [{"a": a, "b": b} for a, b in tensors()]
    file = tmp_path / "x.npz"
    np.savez(file, b=samples[1]["b"].numpy(), a=samples[1]["a"].numpy())
    for model, example, calibration in ((OfDict(), (samples[0],), [(x,) for x in samples]), (OfTwo(), samples[0], samples)):
        by_file = ethorch.compile(model, example, calibration=file, io="int8")
        program = ethorch.compile(model, example, calibration=[calibration[1]], io="int8")
        assert by_file.inputs == program.inputs, "the ranges of both inputs"
        expected = program.compare(samples[1]) if isinstance(model, OfDict) else program.compare(**samples[1])
        assert program.compare(samples=file) == expected
    found = inputs_from([file], (torch.ones(1, 8), torch.ones(1, 8)), keywords=Keywords(("a", "b")))
    assert torch.equal(found[0], samples[1]["a"]) and torch.equal(found[1], samples[1]["b"])


def test_one_tensor_for_two_inputs_is_two_inputs() -> None:
    x = tensors()[0][0]
    program = ethorch.compile(OfTwo(), (x, x), calibration=[(a, b / 30) for a, b in tensors()])
    a, b = tensors()[1]
    assert close(program(a, b / 30), OfTwo()(a, b / 30))


def test_inputs_are_not_written() -> None:
    samples = [(a.clone(), b) for a, b in tensors()]
    program = ethorch.compile(WritesInput(), (samples[0][0].clone(), samples[0][1]), calibration=samples)
    assert all(torch.equal(sample, a) for (sample, _), (a, _) in zip(samples, tensors(), strict=True))
    a, b = tensors()[1]
    assert close(program(a, b), (a + 1) * b) and torch.equal(a, tensors()[1][0])
    assert len(program.outputs) == 1 and program.accuracy is not None


def test_names_of_inputs_with_channels_last() -> None:
    samples = [(torch.rand(1, 3, 4, 5), torch.rand(1, 3, 4, 5)) for _ in range(4)]
    program = ethorch.compile(OfTwo(), samples[0], calibration=samples, settings=ethorch.Settings(io_layout="nhwc"))
    a, b = (x.permute(0, 2, 3, 1).contiguous() for x in samples[1])
    assert torch.equal(program(b=b, a=a), program(a, b))
    assert close(program(a, b).permute(0, 3, 1, 2), OfTwo()(*samples[1]))


class WithConstants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(
        self, x: Tensor, mode: str = "add", factor: float = 2.0, mask: Tensor | None = None, *, flag: bool = False
    ) -> Tensor:
        y = self.linear(x) + factor if mode == "add" else self.linear(x) * factor
        y = -y if flag else y
        return y if mask is None else y * mask


def test_calls_may_repeat_or_omit_constants() -> None:
    model, x = WithConstants().eval(), torch.linspace(-1, 1, 8)[None]
    for arguments, keywords, calls in (
        ((x, "mul", 3.0, None), {}, [(x, "mul", 3.0, None), (x, "mul", 3.0), (x, "mul"), (x,)]),
        ((x,), {"mode": "mul", "mask": x}, [((x,), {"mode": "mul", "mask": x}), ((x,), {"mask": x})]),
        ((x,), {"mode": "mul", "flag": True}, [((x,), {"mode": "mul", "flag": True}), ((x,), {"flag": True}), ((x,), {})]),
    ):
        program = ethorch.compile(model, (arguments, keywords), "ethos-u55-128", progress=False)
        expected = model(*arguments, **keywords)
        for call in calls:
            given = call if keywords else (call, {})
            assert close(program(*given[0], **given[1]), expected)
        assert program.compare().bit_exact and program.accuracy is not None
        for wrong in ({"mode": "add"}, {"factor": 4.0}, {"flag": not keywords.get("flag", False)}):
            with pytest.raises(HostError):
                program(x, **{**keywords, **wrong})


def test_constants_belong_to_each_inference_of_a_batch() -> None:
    xs = torch.rand(3, 8)
    program = ethorch.compile(WithConstants().eval(), (xs[:1], "mul", 3.0), progress=False)
    expected = torch.cat([program(x) for x in xs.split(1)])
    for call in ((xs, "mul", 3.0), (xs,)):
        assert torch.equal(program(*call), expected)


def test_calls_may_repeat_defaults_that_the_example_inputs_omit() -> None:
    model, x = WithConstants().eval(), torch.rand(1, 8)
    for example in ((x,), ((x,), {"flag": True})):
        program = ethorch.compile(model, example, progress=False)
        expected = program(x)
        for call in ((x, "add"), (x, "add", 2.0), (x, "add", 2.0, None)):
            assert torch.equal(program(*call), expected)
        assert torch.equal(program(x, factor=2.0, mask=None), expected)
        assert torch.equal(program(x=x, mode="add"), expected)
        for wrong in ({"factor": 3.0}, {"mode": "mul"}, {"mask": x}, {"factor": torch.tensor(2.0)}):
            with pytest.raises(HostError, match=r"input .*: expected .*, the default, .*, got .*Compile the model"):
                program(x, **wrong)
        with pytest.raises(HostError, match=r"input factor: expected 2\.0"):
            program(x, "add", 3.0)


def test_a_file_with_constants_runs_on_random_inputs_and_samples(tmp_path: Path) -> None:
    x = torch.rand(1, 8)
    path = ethorch.compile(WithConstants().eval(), (x, "mul", 3.0), progress=False).save(tmp_path / "m.pte")
    assert ethorch.evaluate(path, [(x, 1)]).samples == 1
    np.save(tmp_path / "x.npy", x.numpy())
    for options in ([], ["--inputs", str(tmp_path / "x.npy")]):
        assert cli.main(["run", str(path), *options]) == 0
    with pytest.raises(HostError, match=r"input 1: expected None, got float32\[1\]"):
        ethorch.load(path)(x, torch.ones(1), 3.0)


def test_other_constants_are_refused_with_a_remedy(tmp_path: Path) -> None:
    model, x = WithConstants().eval(), torch.rand(1, 8)
    program = ethorch.compile(model, (x, "mul", 3.0), "ethos-u55-128", progress=False)
    loaded = ethorch.load(program.save(tmp_path / "m.pte"))
    for run, wrong in ((program, (x, "add", 3.0)), (program, (x, "mul", 4.0)), (loaded, (x, None, 4.0)), (loaded, (x, "add", 3.0))):
        with pytest.raises(HostError, match=r"input [12]: expected .*, got .*\. Compile the model with the other value"):
            run(*wrong)
    named = {"x": x, "mode": "mul", "factor": 3.0}
    for example, other in (((x, "mul", 3.0), (x, "mul", 4.0)), (named, {**named, "mode": "add"})):
        with pytest.raises(EthorchError, match=r"calibration sample 1: expected .* like the example input, got"):
            ethorch.compile(model, example, "ethos-u55-128", calibration=[example, other], progress=False)
    by_name = ethorch.compile(model, ((x,), {"mode": "mul", "factor": 3.0, "flag": True}), progress=False)
    assert torch.equal(by_name(x, factor=3), by_name(x))
    for other in ({"factor": 4}, {"factor": torch.tensor(3.0)}, {"flag": 0}, {"flag": None}, {"mode": 1}):
        with pytest.raises(HostError, match=r"input (factor|flag|mode): expected .* like the example input, got"):
            by_name(x, **other)
    varying = ethorch.compile(model, (x, "mul", torch.tensor(3.0)), calibration=[(x, "mul", torch.tensor(n)) for n in (3.0, 4.0)])
    assert close(varying(x, "mul", torch.tensor(4.0)), model(x, "mul", 4.0))


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, "double"), (torch.int32, "int")])
def test_outputs_have_the_type_of_the_number_that_item_returns(dtype: torch.dtype, expected: str) -> None:
    class Returns(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            return x * 2, y.sum(dtype=dtype).item()

    program = ethorch.compile(Returns(), (torch.rand(1, 8), torch.ones(4, dtype=dtype)), progress=False)
    assert [info.dtype for info in program.outputs] == ["float32", expected]


@pytest.mark.parametrize("output", ["text", None, 3])
def test_outputs_without_tensors_are_refused(output: Any) -> None:
    class Returns(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x * 2, output) if output == "text" else output

    with pytest.raises(
        EthorchError, match=r"expected at least one tensor and no string as outputs, got .*Return only tensors"
    ) as error:
        ethorch.compile(Returns(), torch.rand(1, 8), progress=False)
    assert repr(output) in str(error.value)


def test_a_module_is_named_as_in_the_model_in_every_wrapper() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, image: Tensor, scale: Tensor) -> Tensor:
            return self.conv(image) * scale

    inputs = {"image": torch.rand(1, 3, 4, 4), "scale": torch.rand(1, 4, 1, 1)}
    for layout in ("nchw", "nhwc"):
        settings = ethorch.Settings(io_layout=layout, io="int8", modules={"conv": "a16w8"})
        program = ethorch.compile(Scaled().eval(), inputs, settings=settings)
        (row,) = program.explain(operator="conv2d").operators[-1:]
        assert row.module == "conv" and row.source.startswith("test_structured_inputs.py:")
        ((dtype, on_npu),) = {(x.dtype, x.on_npu) for x in program.compare().layers if x.operator.startswith("aten.conv2d")}
        assert (dtype, on_npu) == ("int16", True)
    with pytest.raises(EthorchError, match=r"unknown module 'a b'\. Known: conv\."):
        ethorch.compile(Scaled().eval(), inputs, modules={"a b": "int8"})
    sources = {
        row.source
        for row in ethorch.compile(nn.Sequential(nn.Conv2d(3, 4, 1)), torch.rand(1, 3, 4, 4), settings=settings.with_(modules={}))
        .explain()
        .operators
    }
    assert not any("layouts.py" in source for source in sources), sources


def test_a_model_may_have_attributes_with_the_names_in_wrappers() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unwrapped = nn.Linear(4, 4)
            self.module = nn.Linear(4, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.unwrapped(a) * self.module(b)

    x = torch.rand(1, 4)
    program = ethorch.compile(Named().eval(), (x, 2 * x), progress=False)
    assert torch.equal(program(b=2 * x, a=x), program(x, 2 * x))
    with pytest.raises(EthorchError, match=r"unknown module 'a b'\. Known: module, unwrapped\."):
        ethorch.compile(Named().eval(), (x, x), modules={"a b": "int8"})


def test_a_pickled_program_checks_constants(tmp_path: Path) -> None:
    model, x = WithConstants().eval(), torch.rand(1, 8)
    program = pickle.loads(pickle.dumps(ethorch.compile(model, (x, "mul", 3.0), "ethos-u55-128", progress=False)))
    for call in ((x, "mul", 3.0), (x, "mul"), (x,)):
        assert close(program(*call), model(x, "mul", 3.0))
    for wrong in ((x, "add", 3.0), (x, "mul", 4.0)):
        with pytest.raises(HostError, match=r"input [12]: expected .*, got .*\. Compile the model with the other value"):
            program(*wrong)
    with pytest.raises(EthorchError, match=r"an input is None\. Remove it, or save a \.pte"):
        program.save(tmp_path / "m.bpte")


class Key(enum.Enum):
    FIRST = 1


class ByEnum(nn.Module):
    def forward(self, x: Tensor) -> dict[Key, Tensor]:
        return {Key.FIRST: x + 1}


def test_an_enum_is_a_key_if_its_module_is_imported(tmp_path: Path) -> None:
    program = ethorch.compile(ByEnum(), (torch.ones(1, 4),))
    for run in (program, ethorch.load(program.save(tmp_path / "m.pte"))):
        assert list(run(torch.ones(1, 4))) == [Key.FIRST]


@pytest.mark.parametrize("start", ["", " "])
def test_a_file_imports_no_module(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile_keys.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    path = ethorch.compile(ByEnum(), (torch.ones(1, 4),)).save(tmp_path / "m.pte")
    content = pte.read(path.read_bytes())
    method = content.methods["forward"]
    assert method.structure is not None
    inputs, outputs = (text.replace(f"{__name__}:", "hostile_keys:").replace('"[{', f'"{start}[{{') for text in method.structure)
    assert "hostile_keys:" in outputs
    path.write_bytes(pte_writer.write(replace(content, methods={"forward": replace(method, structure=(inputs, outputs))})))
    assert torch.is_tensor(ethorch.load(path)(torch.ones(1, 4)))
    assert not (tmp_path / "mark").exists()
