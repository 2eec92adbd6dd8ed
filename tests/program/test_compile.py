"""One call from a model to a program."""

from __future__ import annotations

import json
import logging
import re
import resource
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch
from ethorch.program.program import record_of
from ethorch.report.markdown import markdown, text
from ethorch.report.summary import budget_rows
from ethorch.support.errors import EthorchError, HostError, QuantizationError, SpecError, UserCodeError

pytestmark = pytest.mark.core


def test_program_computes_what_the_model_computes(program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    for image in images:
        assert ethorch.sqnr_db(model(image), program(image)) > 25


def test_a_batch_is_its_samples_one_behind_the_other(program: ethorch.Program, images: list[Tensor]) -> None:
    assert torch.equal(program(torch.cat(images)), torch.cat([program(image) for image in images]))


def test_a_batch_that_does_not_fit_is_refused(program: ethorch.Program) -> None:
    with pytest.raises(HostError, match=r"float32\[1, 3, 16, 16\]"):
        program(torch.rand(2, 3, 16, 15))


def test_outputs_nest_as_the_models_do(images: list[Tensor]) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, *, y: Tensor) -> dict[str, Any]:
            return {"sum": x + y, "both": (torch.relu(x), x.mean((2, 3)))}

    program = ethorch.compile(Two(), ((images[0],), {"y": images[1]}), calibration=[((a,), {"y": a}) for a in images])
    found = program(images[0], y=images[1])
    assert found["both"][1].shape == (1, 3)
    assert ethorch.sqnr_db(images[0] + images[1], found["sum"]) > 25
    with pytest.raises(HostError, match="got z"):
        program(images[0], z=images[1])


def test_a_model_that_only_returns_constants_is_refused() -> None:
    class Returns(nn.Module):
        def forward(self) -> Tensor:
            return torch.ones(3)

    with pytest.raises(SpecError, match=r"only return constants\. Use the constants .* a model whose outputs depend on an input"):
        ethorch.compile(Returns(), (), progress=False)


def test_training_mode_is_left_as_it_was(images: list[Tensor]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5).eval(), nn.BatchNorm2d(4), nn.Dropout(0.9)).train()
    model[1].eval()
    program = ethorch.compile(model, images[0], calibration=images)
    assert [module.training for module in model] == [True, False, True, True]
    assert torch.equal(program(images[1]), program(images[1]))
    assert model[2].num_batches_tracked == 0


@pytest.mark.parametrize("io", ["int8", "uint8", "int16"])
def test_inputs_and_outputs_can_be_codes(io: str, program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    coded = ethorch.compile(model, images[0], calibration=images, io=io)
    info, out = coded.inputs[0], coded.outputs[0]
    assert info.dtype == io and out.dtype == io and info.codes and out.codes
    found = coded(images[1])
    assert found.dtype == getattr(torch, io)
    assert torch.equal(found, coded(info.codes.quantize(images[1]))), "float inputs are quantized first"
    assert ethorch.sqnr_db(model(images[1]), out.codes.dequantize(found)) > 25
    kernels = [call.operator for call in record_of(coded).description.calls]
    assert kernels == [""], f"nothing but the delegate: {kernels}"
    again = ethorch.load(coded.pte)
    assert again.methods == ("forward",) and again.inputs == coded.inputs
    assert torch.equal(again(images[1]), found)


def test_int8_codes_are_what_the_float_program_computes_with(
    program: ethorch.Program, model: nn.Module, images: list[Tensor]
) -> None:
    coded = ethorch.compile(model, images[0], calibration=images, io="int8")
    codes = coded.outputs[0].codes
    assert codes is not None
    assert torch.equal(codes.dequantize(coded(images[2])), program(images[2]))


def test_codes_are_refused_where_the_model_has_others(model: nn.Module, images: list[Tensor]) -> None:
    with pytest.raises(QuantizationError, match=r"input 0: expected quantization to torch.int16, got torch.int8.*io\.type"):
        ethorch.compile(ethorch.quantize(model, images[0], calibration=images), images[0], io="int16")


def test_a_layer_on_the_cpu_takes_codes_too(model: nn.Module, images: list[Tensor]) -> None:
    coded = ethorch.compile(model, images[0], calibration=images, io="int8", modules={"0": "float"})
    assert coded.inputs[0].dtype == "int8" and coded.outputs[0].codes is not None
    assert ethorch.sqnr_db(model(images[1]), coded.outputs[0].codes.dequantize(coded(images[1]))) > 25


def test_channels_last(program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    nhwc = ethorch.compile(model, images[0], calibration=images, settings=ethorch.Settings(io_layout="nhwc"))
    assert nhwc.inputs[0].shape == (1, 16, 16, 3)
    assert torch.equal(nhwc(images[0].permute(0, 2, 3, 1).contiguous()), program(images[0]))


def test_modules_have_schemes_of_their_own(model: nn.Module, images: list[Tensor]) -> None:
    program = ethorch.compile(model, images[0], calibration=images, modules={"0": "a16w8", "5": "float"})
    assert record_of(program).build is not None
    assert [refusal.origin.module for refusal in record_of(program).build.partition.refusals] == ["5"]
    assert {op.result.dtype for op in record_of(program).build.delegates[0].graph.ops} >= {"INT8", "INT16"}


def test_unknown_names_are_refused_with_the_known_ones(model: nn.Module, images: list[Tensor]) -> None:
    for arguments, said in (
        ({"target": "ethos-u56"}, "ethos-u55-128"),
        ({"scheme": "int4"}, "a8w4"),
        ({"io": "int4"}, "uint8"),
        ({"modules": {"6": "float"}}, "'6'.*Known: 0, 1, 2"),
        ({"ram": "lots"}, "256K"),
        ({"latency_ms": "fast"}, "expected a number"),
    ):
        with pytest.raises(SpecError, match=said):
            ethorch.compile(model, images[0], **arguments)  # type: ignore[arg-type]


def test_a_converted_model_is_taken_as_it_is(model: nn.Module, images: list[Tensor]) -> None:
    spec = ethorch.EthosUCompileSpec("ethos-u55-128")
    quantizer = ethorch.EthosUQuantizer(spec).set_global(ethorch.arm.quantizer.get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, (images[0],)).module(), quantizer)
    for image in images:
        prepared(image)
    converted = convert_pt2e(prepared)
    direct = ethorch.compile(model, images[0], calibration=images)
    assert torch.equal(ethorch.compile(converted, images[0])(images[1]), direct(images[1]))


def test_an_exported_program_brings_its_inputs(program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    exported = torch.export.export(model, (images[0],))
    assert ethorch.compile(exported, calibration=images).pte == program.pte


def test_quantize_alone(program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    quantized = ethorch.quantize(model, images[0], calibration=images)
    assert ethorch.sqnr_db(model(images[0]), quantized(images[0])) > 25
    assert ethorch.compile(quantized, images[0]).pte == program.pte


def test_calibration_from_anything(tmp_path: Path, program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    for number, image in enumerate(images):
        np.save(tmp_path / f"{number}.npy", image[0].numpy())
    labels = torch.arange(8)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.cat(images), labels), batch_size=3)
    for calibration in (tmp_path, torch.cat(images), loader, ((image[0], 7) for image in images)):
        assert ethorch.compile(model, images[0], calibration=calibration).pte == program.pte


def test_what_the_users_code_raises_names_its_line(images: list[Tensor]) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(5, 5)

    with pytest.raises(UserCodeError, match=r"test_compile\.py:\d+ \(`return x @"):
        ethorch.compile(Broken(), images[0])
    with pytest.raises(EthorchError, match="expected a tensor or a tuple of inputs, got None"):
        ethorch.compile(Broken())
    with pytest.raises(EthorchError, match=r"expected an nn\.Module"):
        ethorch.compile(3)  # type: ignore[arg-type]


def test_nothing_is_said_of_a_model_without_fault(model: nn.Module, images: list[Tensor], caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        ethorch.compile(model, images[0], calibration=images, io="int8")
    assert not caplog.records
    assert not warned, [str(one.message) for one in warned]


def test_a_noisy_calibration_is_said_once(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    ethorch.compile(model, torch.rand(1, 3, 16, 16), calibration=torch.rand(4, 3, 16, 16), io="int8")
    assert [record.getMessage().count("[calibration.noise]") for record in caplog.records] == [1]


def test_save_and_load(tmp_path: Path, program: ethorch.Program, images: list[Tensor]) -> None:
    folder = program.save(tmp_path / "kept")
    again = ethorch.load(folder)
    assert again.pte == program.pte and again.settings == program.settings
    assert torch.equal(again(images[0]), program(images[0]))
    program.save(tmp_path / "model.pte")
    assert (tmp_path / "model.pte").read_bytes() == program.pte
    program.save(tmp_path / "model.tosa")
    assert record_of(program).build is not None
    assert (tmp_path / "model.tosa").read_bytes() == record_of(program).build.delegates[0].tosa
    for path, said in ((tmp_path / "model.onnx", r"\.bpte"), (tmp_path / "no" / "model.pte", "not a writable folder")):
        with pytest.raises(EthorchError, match=said):
            program.save(path)
    with pytest.raises(EthorchError, match="requires the TOSA graph"):
        again.save(tmp_path / "again.tosa")
    with pytest.raises(EthorchError, match="cannot read"):
        ethorch.load(tmp_path / "nothing.pte")


def test_a_full_disk_leaves_what_was_saved_before(tmp_path: Path, program: ethorch.Program) -> None:
    """A limit on the size of files stands for the full disk."""
    folder, file = program.save(tmp_path / "kept"), program.save(tmp_path / "model.pte")
    (folder / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for nbytes in (100, len(program.pte)):  # no file fits; the .pte fits, a file that is written later does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
        try:
            for path in (folder, *([file] if nbytes == 100 else [])):
                with pytest.raises(EthorchError, match=rf"cannot write {path}: File too large. The file is unchanged"):
                    program.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_bundled_program_holds_inputs_and_what_the_program_answers(
    tmp_path: Path, program: ethorch.Program, images: list[Tensor]
) -> None:
    from executorch.runtime import Runtime

    path = program.save(tmp_path / "model.bpte")
    data = path.read_bytes()
    assert data[4:8] == b"BP08" and program(images[7]).numpy().tobytes() in data
    assert Runtime is not None


def test_a_program_answers(tmp_path: Path, program: ethorch.Program, model: nn.Module, images: list[Tensor]) -> None:
    text = str(program)
    assert (
        text.startswith("5 of 5 PyTorch operators on ethos-u55-128 in 1 delegate.")
        and "Inference time" in text
        and "Largest saving" in text
    )
    assert "<table" in program._repr_html_()
    found = program.to_json()
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(program.to_json()))
    assert found["ram_bytes"] == program.memory.ram_bytes and found["fits"] is True
    assert len(found["layers"]) == len(record_of(program).layers) == len(program.explain().operators)
    assert "aten.conv2d.default" in str(program.explain())
    assert program.accuracy is not None and program.accuracy.sqnr_db > 25
    assert f"{program.accuracy.sqnr_db:.1f} dB" in str(program)
    again = ethorch.load(program.pte)
    assert again.to_json()["total_cycles"] is None and again.accuracy is None
    assert again.memory.ram_bytes == program.memory.ram_bytes


def test_budgets_are_compared(tmp_path: Path, model: nn.Module, images: list[Tensor]) -> None:
    program = ethorch.compile(model, images[0], calibration=images, ram="1M", flash=100, latency_ms=1e-6, min_sqnr_db=20)
    assert {budget.name: budget.holds for budget in program.budgets} == {
        "ram": True, "flash": False, "latency_ms": False, "min_sqnr_db": True,
    }  # fmt: skip
    assert not program.budgets.met and re.search(r"flash +100 bytes +[\d.]+ KiB +no\n", str(program))
    page, table = program.report(tmp_path / "report.html").read_text(), markdown(program.to_json())
    for name, limit, figure, state in budget_rows(program.to_json()):
        assert f'<td>{name}</td><td class="n">{limit}</td><td class="n">{figure}</td><td class="{state}">{state}</td>' in page
        assert f"| {text(name)} | {limit} | {figure} | {state} |" in table


def test_a_saved_folder_knows_its_sources(tmp_path: Path, program: ethorch.Program) -> None:
    again = ethorch.load(program.save(tmp_path / "kept"))
    named = {layer.source.partition(":")[0] for layer in record_of(again).layers if layer.where == "NPU"}
    assert named and named == {layer.source.partition(":")[0] for layer in record_of(program).layers if layer.where == "NPU"}


def test_an_arena_that_is_too_small_is_said(model: nn.Module, images: list[Tensor], caplog: pytest.LogCaptureFixture) -> None:
    program = ethorch.compile(
        model, images[0], calibration=images, settings=ethorch.Settings(vela_flags=["--arena-cache-size=1024"])
    )
    scratch = record_of(program).payloads[0].scratch_bytes
    assert scratch > 1024
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"needs {scratch:,} bytes, {scratch - 1024:,} more than" in said and "[vela.arena_exceeded]" in said
    caplog.clear()
    ethorch.compile(model, images[0], calibration=images, settings=ethorch.Settings(vela_flags=["--arena-cache-size=65536"]))
    assert not caplog.records


class _Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("classes", torch.arange(3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.classes * 2


def test_outputs_without_a_batch_are_not_joined() -> None:
    x = torch.randn(2, 4)
    program = ethorch.compile(_Constants(), x[:1], target="ethos-u55-128", calibration=[x[:1], x[1:]])
    assert [info.shape for info in program.outputs] == [(1, 4), (3,)]
    with pytest.raises(
        HostError, match=r"outputs of 2 inferences: output 1 has the shape \[3\], but the first dimension of a batch is 1"
    ):
        program(x)
    assert program.accuracy is not None
    assert program.accuracy.sqnr_db < 60  # the constant output is exact
