"""The project's files: what they hold, how large they become, and that they suit other projects than the self-test's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from elftools.elf.elffile import ELFFile

import ethorch
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import firmware
from ethorch.deploy.firmware.project_run import Options
from ethorch.program.program import record_of
from ethorch.support.errors import EthorchError, SpecError
from tests.helpers.firmware import built_and_run, program, project

C = Path(project_run.__file__).parent / "c"
MOST_DRIVER_BYTES = 1228  # 1.2 KB
MOST_CODE_BYTES = 6 * 1024


def sections(elf: Path) -> dict[str, int]:
    with open(elf, "rb") as file:
        return {section.name: section["sh_size"] for section in ELFFile(file).iter_sections() if section["sh_flags"] & 2}


def symbols(elf: Path) -> set[str]:
    with open(elf, "rb") as file:
        return {symbol.name for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols()}


def compiled(source: Path, output: Path, *flags: str) -> None:
    line = [
        sys.executable, "-m", "ziglang", "cc", "-target", "thumb-freestanding-eabihf", *flags, "-Os", "-std=c11", "-ffreestanding",
        "-ffunction-sections", "-fno-unwind-tables", "-c", str(source), "-o", str(output),
    ]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_what_running_needs_is_said_before_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "elftools" else find(name, *more))
    monkeypatch.setattr(project_run, "__file__", str(tmp_path / "run.py"))
    assert project_run.main(["--compiler", "gcc"]) == 1
    assert (
        'running the firmware requires pyelftools. Run pip install "ethorch[firmware]", or use --build-only.'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("cpu", ["cortex_m33+fp_armv8d16sp", "cortex_m55"])
def test_the_driver_is_small(cpu: str, tmp_path: Path) -> None:
    compiled(C / "ethosu.c", tmp_path / "ethosu.o", f"-mcpu={cpu}", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror")
    sizes = {name: size for name, size in sections(tmp_path / "ethosu.o").items() if "exidx" not in name}
    assert 500 < sum(sizes.values()) <= MOST_DRIVER_BYTES, sizes


def test_the_firmware_is_small_and_has_neither_heap_nor_constructors(tmp_path: Path) -> None:
    project("small", "ethos-u55-128", tmp_path)
    elf = project_run.build(tmp_path)
    sizes, names = sections(elf), symbols(elf)
    assert 2000 < sizes[".text"] <= MOST_CODE_BYTES, sizes
    assert sizes[".rodata.npu_weights"] >= (tmp_path / "model" / "model_weights_0.bin").stat().st_size
    heap = {"malloc", "free", "calloc", "realloc", "_sbrk", "sbrk", "__libc_init_array"}
    assert not heap & names
    assert not [name for name in sizes if name.startswith((".init_array", ".ctors", ".preinit_array", ".fini_array"))]
    assert {"model_run", "ethosu_run"} <= names


def test_no_source_has_a_warning(tmp_path: Path) -> None:
    project("state", "ethos-u55-128", tmp_path)
    strict = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wcast-align", "-Werror", "-mcpu=cortex_m33+fp_armv8d16sp")
    include = [f"-I{tmp_path / folder}" for folder in ("model", "model/kernels", "firmware", "firmware/freestanding")]
    for path in project_run.read_description(tmp_path)["sources"]:
        compiled(tmp_path / path, tmp_path / "one.o", *strict, *include)


def test_two_generations_are_the_same_bytes_and_name_no_folder(tmp_path: Path) -> None:
    made = [project("two_delegates", "ethos-u55-128", tmp_path / name) for name in ("one", "other")]
    assert made[0].files == made[1].files
    for path in made[0].files:
        content = (tmp_path / "one" / path).read_bytes()
        assert content == (tmp_path / "other" / path).read_bytes(), path
        for local in (str(tmp_path), str(Path(ethorch.__file__).parent), str(Path.home())):
            assert local.encode() not in content, path


def test_arrays_are_another_way_to_hold_the_bytes(tmp_path: Path) -> None:
    made = project("small", "ethos-u55-128", tmp_path, embed="arrays")
    assert "model/model_data.c" in made.files and not [path for path in made.files if path.endswith((".bin", ".S"))]
    built_and_run(tmp_path)


@pytest.mark.long  # the first link for a core builds its runtime library: half a minute
@pytest.mark.parametrize("options", [Options(cpu="cortex-m55"), Options(cpu="cortex-m85")], ids=["m55", "m85"])
def test_other_cores_compile(options: Options, tmp_path: Path) -> None:
    project("small", "ethos-u85-256", tmp_path)
    assert sections(project_run.build(tmp_path, options))[".text"] > 2000


@pytest.mark.long  # the Arm backend takes a quarter of a minute to make its files
@pytest.mark.parametrize("name", ["cnn", "interrupted", "staged", "u85"])
def test_files_of_the_arm_backend(name: str, incumbent: Path, tmp_path: Path) -> None:
    firmware(incumbent / f"{name}.pte", tmp_path)
    assert not built_and_run(tmp_path).faults


TWO = """
#include <string.h>
#include "board.h"
#include "console.h"
#include "cortex_m.h"
#include "first.h"
#include "second.h"

static ethosu npu;
static first_t a;
static second_t b;
void NPU_Handler(void);
void NPU_Handler(void) { ethosu_irq(&npu); }

static void bytes(const void *data, uint32_t count) {
  for (uint32_t i = 0u; i < count; i++) {
    console_number(((const uint8_t *)data)[i]);
    console_text(" ");
  }
  console_text("\\n");
}

int main(void) {
  static const uint8_t input[sizeof(first_input_0_t)] = {%s};
  console_init();
  cortex_m_init(BOARD_NPU_INTERRUPT);
  if ((ethosu_init(&npu, BOARD_NPU_BASE, ETHOSU_PRIVILEGED | ETHOSU_INTERRUPT) != ETHOSU_OK) ||
      (first_init(&a, &npu, &first_memory) != ETHOSU_OK) || (second_init(&b, &npu, &second_memory) != ETHOSU_OK)) {
    return 1;
  }
  (void)memcpy(first_input_0(&a), input, sizeof input);
  (void)memcpy(second_input_0_codes(&b)->value, %s, sizeof(second_input_0_codes_t));
  if ((first_run(&a) != ETHOSU_OK) || (second_run_codes(&b) != ETHOSU_OK)) {
    return 1;
  }
  bytes(first_output_0(&a), sizeof(first_output_0_t));
  bytes(second_output_0_codes(&b), sizeof(second_output_0_codes_t));
  return 0;
}
"""


def test_two_models_in_one_firmware_one_with_floats_and_one_with_codes(tmp_path: Path) -> None:
    floats, other = program("small", "ethos-u55-128"), program("codes", "ethos-u55-128")
    x = torch.randn(1, 1, 8, 8)
    codes = other.inputs[0].codes
    assert codes is not None
    wanted_floats, wanted_codes = floats(x), other(codes.quantize(x))
    firmware(floats, tmp_path, name="first")
    firmware(floats, tmp_path / "more", name="second")
    for path in (tmp_path / "more" / "model").glob("second*"):
        path.rename(tmp_path / "model" / path.name)
    found = plan_codes(floats, x)
    listed = ", ".join(map(str, x.numpy().tobytes()))
    (tmp_path / "firmware" / "main.c").write_text(TWO % (listed, f"(const int8_t[]){{{', '.join(map(str, found))}}}"))
    more = [f"model/{path.name}" for path in (tmp_path / "model").glob("second*") if path.suffix in (".c", ".S")]
    sources = [*project_run.read_description(tmp_path)["sources"], *sorted(more)]
    elf = project_run.build(tmp_path, Options(defines={"SECOND_FLOATS": "0"}), sources=sources)
    lines = project_run.run(tmp_path, elf).check().text.splitlines()
    assert bytes(map(int, lines[0].split())) == wanted_floats.numpy().tobytes()
    scale, zero_point = record_of(floats).description.values[output_codes(floats)[0]].number, output_codes(floats)[1]
    dequantized = (torch.tensor([int(v) - 256 * (int(v) > 127) for v in lines[1].split()]) - zero_point) * scale
    assert torch.allclose(dequantized.float(), wanted_floats.flatten(), atol=1e-6)
    assert wanted_codes.shape == wanted_floats.shape


def plan_codes(made: Any, x: torch.Tensor) -> list[int]:
    """The codes of a program's float input."""
    call = next(call for call in record_of(made).description.calls if "quantize" in call.operator)
    scale, zero_point, low, high = (record_of(made).description.values[arg].number for arg in call.args[1:5])
    return (torch.round(x * (1.0 / scale)) + zero_point).clamp(low, high).to(torch.int8).flatten().tolist()


def output_codes(made: Any) -> tuple[int, int]:
    """Index of the value with the scale of a program's output codes, and their zero point."""
    call = next(call for call in record_of(made).description.calls if "dequantize" in call.operator)
    return call.args[1], int(record_of(made).description.values[call.args[2]].number)


class Refused(torch.nn.Module):
    """Its middle stays on the CPU, and firmware has no C for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = torch.nn.Conv2d(3, 8, 3), Erfinv()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(self.first(x))


class Erfinv(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x[0], x[0])


def test_an_operator_without_c_is_refused_with_name_place_and_way_out(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 8, 8)
    made = ethorch.compile(Refused().eval(), x, "ethos-u55-128", calibration=[x], progress=False, modules={"middle": "float"})
    with pytest.raises(EthorchError, match=r"aten::_cdist_forward.*\[firmware.operator\].*ExecuTorch") as caught:
        firmware(made, tmp_path)
    assert "middle" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "Model"}, "lower-case letters"),
        ({"name": "switch"}, "not a C keyword"),
        ({"embed": "hex"}, "incbin or arrays"),
        ({"board": "corstone-3000"}, "corstone-300"),
        ({"board": "corstone-320"}, "ethos-u85-256"),
        ({"methods": "backward"}, "no method 'backward'"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((EthorchError, SpecError), match=words):
        firmware(program("small", "ethos-u55-128").pte, tmp_path, **options)


def test_the_header_says_shapes_scales_and_sizes(tmp_path: Path) -> None:
    project("small", "ethos-u55-128", tmp_path)
    header = (tmp_path / "model" / "model.h").read_text()
    assert re.search(r"#define MODEL_INPUT_0_SCALE 0\.\d+f", header)
    assert "float value[1][1][8][8];" in header and "int8_t value[1][1][8][8];" in header
    assert "#define MODEL_ARENA_BYTES" in header
    report = (tmp_path / "REPORT.md").read_text()
    assert re.search(r"\d NPU cycles, .* ms at .* \(Vela\)", report)
