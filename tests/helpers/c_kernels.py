"""Programs of CPU operators, run in ExecuTorch's runtime and as C with the kernels of ``ethorch.deploy.firmware``."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401  registers the out variants of quantize and dequantize
import numpy as np
import torch
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from executorch.exir import EdgeCompileConfig, to_edge
from torch import Tensor, nn

from ethorch import runtime
from ethorch.deploy.firmware.kernels import SOURCE_FOLDER, KernelCall, kernel_call
from ethorch.formats import pte
from ethorch.formats.pte_types import Call, Method
from ethorch.support.errors import Reason

EXTREMES = [math.nan, math.inf, -math.inf, 3e38, -3e38, 3e20, -3e20, 1e10, -1e10, 2.0**31, -(2.0**31), 0.0, -0.0, 1e-45, -1e-45,
            0.05, 0.15, 0.25, -0.05, -0.15, -0.25, 0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5, -8388609.0]  # fmt: skip
FLAGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off"]
ZIG = ["-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m33+fp_armv8d16sp", "-std=c11", "-Os", "-g", "-ffreestanding",
       "-fno-strict-aliasing", "-Wall", "-Wextra", "-Wconversion", "-Werror"]  # fmt: skip


@dataclass(frozen=True)
class CompiledFunction:
    """A function of an object file: its size in bytes and its callees."""

    source: str
    size_bytes: int
    callees: tuple[str, ...]


def compile_kernels() -> dict[str, CompiledFunction]:
    """Compile the C kernels and return their functions by name.

    Each function has its own section, whose relocations are the functions that it calls.
    """
    functions: dict[str, CompiledFunction] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(SOURCE_FOLDER.glob("*.c")):
            out = Path(folder) / f"{source.stem}.o"
            command = [sys.executable, "-m", "ziglang", "cc", *ZIG, "-ffunction-sections", "-c", str(source), "-o", str(out)]
            subprocess.run(command, check=True)
            functions.update(read_object(out, source.name))
    return functions


def read_object(path: Path, source: str) -> Iterator[tuple[str, CompiledFunction]]:
    """Yield the functions of an object file."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
        functions = {s.name: s for s in symbols if s["st_info"]["type"] == "STT_FUNC" and s["st_size"]}
        names_by_section = {s["st_shndx"]: name for name, s in functions.items()}
        callees: dict[int, set[str]] = {}
        for section in elf.iter_sections():
            if isinstance(section, RelocationSection):
                for relocation in section.iter_relocations():
                    symbol = symbols[relocation["r_info_sym"]]
                    name = symbol.name or names_by_section.get(symbol["st_shndx"], "")
                    callees.setdefault(section["sh_info"], set()).add(name)
        for name, symbol in functions.items():
            called = tuple(sorted(other for other in callees.get(symbol["st_shndx"], ()) if other in functions or "etk_" in other))
            yield name, CompiledFunction(source, symbol["st_size"], tuple(other for other in called if other != name))


class Several(nn.Module):
    """Several functions of the same inputs, with all their outputs."""

    def __init__(self, *functions: Callable[..., Tensor | tuple[Tensor, ...]]):
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        for function in self.functions:
            result = function(*inputs)
            outputs += [result] if isinstance(result, Tensor) else result
        return tuple(outputs)


def floats(*shape: int) -> Tensor:
    """Return random numbers of all magnitudes, starting with the extremes."""
    x = torch.randn(shape) * torch.exp(torch.randn(shape) * 3)
    flat = x.reshape(-1)
    flat[: len(EXTREMES)] = torch.tensor(EXTREMES)[: flat.numel()]
    return x


def exported(module: nn.Module, inputs: Sequence[Tensor]) -> bytes:
    """Return the .pte of a module without delegates."""
    program = torch.export.export(module.eval(), tuple(inputs), strict=False)
    edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    return bytes(edge.to_executorch().buffer)


@dataclass
class Program:
    """A .pte and the C function of its method."""

    name: str
    data: bytes
    method: Method
    contents: tuple[bytes | memoryview, ...]
    mutable: tuple[bytes | memoryview, ...]

    @classmethod
    def of(cls, name: str, data: bytes) -> Program:
        """Read a .pte with one method."""
        program = pte.read(data)
        (method,) = program.methods.values()
        return cls(name, data, method, program.constants, program.mutable[0] if program.mutable else ())

    @property
    def arena_bytes(self) -> int:
        """Size of the planned memory, at least 16."""
        return max(sum(self.method.memories), 16)

    def place(self, index: int) -> str:
        """Return the C expression of a value's address, in the arena or in a constant."""
        value = self.method.values[index]
        if value.place is not None:
            return f"(arena_{self.name} + {value.place[1]})"
        return f"constant_{self.name}_{value.data}"

    def calls(self) -> list[KernelCall]:
        """Return each instruction in C. Raise AssertionError with the reason if it is not supported."""
        result = []
        for number, step in enumerate(step for chain in self.method.chains for step in chain.instructions):
            assert isinstance(step, Call), step
            call = kernel_call(self.method, step, self.place, f"{self.name}_{number}")
            assert not isinstance(call, Reason), f"{self.name}: {call}"
            result.append(call)
        return result

    def text(self, calls: Sequence[KernelCall]) -> str:
        """Return the C code of arena, constants and function."""
        lines = [f"_Alignas(16) uint8_t arena_{self.name}[{self.arena_bytes}];"]
        body = "\n".join(f"  {line}" for call in calls for line in call.lines)
        for index, content in enumerate(self.contents):
            if index and re.search(rf"\bconstant_{self.name}_{index}\b", body):
                array = ", ".join(map(str, content)) or "0"
                lines.append(f"_Alignas(16) static const uint8_t constant_{self.name}_{index}[] = {{{array}}};")
        lines += [line for call in calls for line in call.constants]
        return "\n".join([*lines, f"int run_{self.name}(void);", f"int run_{self.name}(void) {{", body, "  return 0;", "}", ""])

    def run_in_runtime(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of ExecuTorch's runtime."""
        return [torch.as_tensor(x).clone() for x in runtime.load(self.data)(*inputs)]


class _Compiled:
    """Compiled and loaded C code of several programs."""

    def __init__(self, programs: Sequence[Program], folder: Path):
        calls = {program.name: program.calls() for program in programs}
        text = '#include "kernels.h"\n' + "\n".join(program.text(calls[program.name]) for program in programs)
        (folder / "programs.c").write_text(text)
        files = sorted({file for some in calls.values() for call in some for file in call.sources})
        self._load([folder / "programs.c", *(SOURCE_FOLDER / file for file in files)], folder)
        for program in programs:  # initial values of mutable buffers
            for value in program.method.values:
                if value.place is not None and value.data:
                    self._write(program, value.place[1], bytes(program.mutable[value.data]))

    def _load(self, sources: Sequence[Path], folder: Path) -> None:
        raise NotImplementedError

    def arena(self, program: Program) -> np.ndarray:
        """Return the bytes of a program's arena, writable."""
        raise NotImplementedError

    def _write(self, program: Program, start: int, content: bytes) -> None:
        raise NotImplementedError

    def _call(self, program: Program) -> int:
        raise NotImplementedError

    def run(self, program: Program, inputs: Sequence[Tensor]) -> tuple[int, list[Tensor]]:
        """Return the status of the C function, and the outputs."""
        method = program.method
        for index, x in zip(method.inputs, inputs, strict=True):
            value = method.values[index]
            assert value.place is not None
            data = x.detach().permute(value.dim_order).contiguous().reshape(-1).view(torch.uint8).numpy()
            self._write(program, value.place[1], data.tobytes())
        status = self._call(program)
        return status, [self._tensor(program, index) for index in method.outputs]

    def _tensor(self, program: Program, index: int) -> Tensor:
        value = program.method.values[index]
        if value.place is None:
            data = np.frombuffer(bytes(program.contents[value.data])[: value.nbytes], np.uint8)
        else:
            data = self.arena(program)[value.place[1] : value.place[1] + value.nbytes]
        dtype = getattr(torch, value.dtype)
        stored = torch.from_numpy(data.copy()).view(dtype) if value.nbytes else torch.empty(0, dtype=dtype)
        order = value.dim_order
        return stored.reshape([value.shape[axis] for axis in order]).permute(sorted(range(len(order)), key=order.__getitem__))


class Library(_Compiled):
    """A shared library built with this computer's compiler."""

    def _load(self, sources: Sequence[Path], folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        assert compiler, "no C compiler"
        command = [compiler, *FLAGS, "-fPIC", "-shared", "-I", str(SOURCE_FOLDER), "-o", str(folder / "programs.so")]
        subprocess.run([*command, *map(str, sources)], check=True)
        self.library = ctypes.CDLL(str(folder / "programs.so"))

    def arena(self, program: Program) -> np.ndarray:
        memory = (ctypes.c_uint8 * program.arena_bytes).in_dll(self.library, f"arena_{program.name}")
        return np.frombuffer(memory, np.uint8)

    def _write(self, program: Program, start: int, content: bytes) -> None:
        self.arena(program)[start : start + len(content)] = np.frombuffer(content, np.uint8)

    def _call(self, program: Program) -> int:
        return int(self.library[f"run_{program.name}"]())


class CortexM33(_Compiled):
    """An image for a Cortex-M33 with single precision, run by unicorn. Fused operations of its FPU must not change a bit."""

    CODE, DATA, STACK, STOP = 0x10000000, 0x20000000, 0x30000000, 0x0FFF0000
    BYTES = 16 << 20

    def _load(self, sources: Sequence[Path], folder: Path) -> None:
        import unicorn
        from unicorn import arm_const

        elf, script = folder / "programs.elf", folder / "programs.ld"
        script.write_text(
            f"SECTIONS\n{{\n  .text {self.CODE:#x} : {{ *(.text*) *(.rodata*) }}\n"
            f"  .ARM.exidx : {{ *(.ARM.exidx*) }}\n  .data {self.DATA:#x} : {{ *(.data*) *(.bss*) *(COMMON) }}\n}}\n"
        )
        extra = SOURCE_FOLDER.parent / "support.c"
        command = [sys.executable, "-m", "ziglang", "cc", *ZIG, "-T", str(script), "-Wl,--no-gc-sections", "-I", str(SOURCE_FOLDER)]
        command += ["-I", str(SOURCE_FOLDER.parent / "freestanding"), "-o", str(elf), "-Wl,-e,memcpy"]
        subprocess.run([*command, *map(str, sources), str(extra)], check=True)
        self._constants, self._unicorn = arm_const, unicorn
        self.uc = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        self.uc.ctl_set_cpu_model(arm_const.UC_CPU_ARM_CORTEX_M33)
        for base in (self.CODE, self.DATA, self.STACK):
            self.uc.mem_map(base, self.BYTES)
        self.uc.mem_map(self.STOP, 4096)
        with elf.open("rb") as file:
            image = ELFFile(file)
            for segment in image.iter_segments("PT_LOAD"):
                self.uc.mem_write(segment["p_vaddr"], segment.data())
            table = image.get_section_by_name(".symtab")
            self.symbols = {symbol.name: symbol["st_value"] for symbol in table.iter_symbols()}

    def arena(self, program: Program) -> np.ndarray:
        address = self.symbols[f"arena_{program.name}"]
        return np.frombuffer(bytes(self.uc.mem_read(address, program.arena_bytes)), np.uint8)

    def _write(self, program: Program, start: int, content: bytes) -> None:
        self.uc.mem_write(self.symbols[f"arena_{program.name}"] + start, content)

    def _call(self, program: Program) -> int:
        self.uc.reg_write(self._constants.UC_ARM_REG_SP, self.STACK + self.BYTES - 64)
        self.uc.reg_write(self._constants.UC_ARM_REG_LR, self.STOP | 1)
        self.uc.emu_start(self.symbols[f"run_{program.name}"] | 1, self.STOP)
        return ctypes.c_int32(self.uc.reg_read(self._constants.UC_ARM_REG_R0)).value

    def count(self, program: Program) -> int:
        """Count the instructions of a call with the previous inputs."""
        total = 0

        def block(_uc: object, address: int, size: int, _data: object) -> None:
            nonlocal total
            if address not in lengths:
                lengths[address] = _instructions(bytes(self.uc.mem_read(address, size)))
            total += lengths[address]

        lengths: dict[int, int] = {}
        handle = self.uc.hook_add(self._unicorn.UC_HOOK_BLOCK, block)
        self.uc.ctl_flush_tb()  # blocks that were already translated do not call hooks
        self._call(program)
        self.uc.hook_del(handle)
        return total


Loaded = tuple[Library | CortexM33, dict[str, Program]]
PLATFORMS = ("computer", "cortex-m33")


#: Name -> functions, and a factory of their inputs: one tensor or several.
Cases = Mapping[str, tuple[Callable[..., Any], Callable[[], Tensor | list[Tensor]]]]


def only(cases: Cases, names: Collection[str]) -> Cases:
    """Return the cases with these names."""
    return {name: case for name, case in cases.items() if name in names}


def inputs_of(cases: Cases, name: str) -> list[Tensor]:
    """Create inputs of a case."""
    made = cases[name][1]()
    return [made] if isinstance(made, Tensor) else made


def programs_of(cases: Cases, **modules: tuple[nn.Module, Sequence[Tensor]]) -> dict[str, Program]:
    """Return a program for each case, and for each further module with its example inputs."""
    torch.manual_seed(0)
    made = {name: (Several(function), inputs_of(cases, name)) for name, (function, _) in cases.items()} | modules
    return {name: Program.of(name, exported(module, inputs)) for name, (module, inputs) in made.items()}


def both(library: Loaded, name: str, inputs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return each output of a program, in C and in ExecuTorch's runtime."""
    c, programs = library
    status, outputs = c.run(programs[name], inputs)
    assert status == 0
    return list(zip(outputs, programs[name].run_in_runtime(inputs), strict=True))


def compiled(platform: str, programs: Sequence[Program], folder: Path) -> Library | CortexM33:
    """Compile programs for one of PLATFORMS."""
    if platform == "computer":
        return Library(programs, folder)
    return CortexM33(programs, folder)


def _instructions(code: bytes) -> int:
    """Count the Thumb instructions in a block. One that begins with 0b11101 or more has two halfwords."""
    count = at = 0
    while at < len(code):
        at += 4 if int.from_bytes(code[at : at + 2], "little") >> 11 >= 0b11101 else 2
        count += 1
    return count


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if dtype, shape and bits are equal, ignoring the bits of NaNs."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(((a.contiguous().view(whole) == b.contiguous().view(whole)) | (a.isnan() & b.isnan())).all())


def steps_apart(a: Tensor, b: Tensor) -> int:
    """Return the largest distance between elements, in floats of their dtype; above 2^31 if only one is NaN."""
    whole = {4: torch.int32, 8: torch.int64}[a.element_size()]
    x, y = (t.contiguous().view(whole).to(torch.int64) for t in (a, b))
    low = -(2**31) if whole is torch.int32 else -(2**63)
    x, y = (torch.where(t < 0, low - t, t) for t in (x, y))
    apart = (x - y).abs()
    apart[a.isnan() & b.isnan()] = 0
    apart[a.isnan() != b.isnan()] = 2**32
    return int(apart.max()) if apart.numel() else 0
