"""The C of CPU operators as an embedded compiler takes it, and calls that have none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ethorch.deploy.firmware.kernels import NEEDS, SOURCE_FOLDER, KernelCall, kernel_call, list_kernels
from ethorch.formats.pte_types import Call, Chain, Method, Value
from ethorch.support.errors import Reason

SOURCES = sorted(path.name for path in SOURCE_FOLDER.glob("*.c"))
#: What clang's own runtime library gives, and the two functions that every C program has.
ALLOWED = re.compile(r"memcpy|memset|etk_\w+|__aeabi_\w+|__(fix|float|u?div|u?mod|mul|add|sub|ash|lsh|cmp|ge|le|eq|ne|lt|gt|un)\w*")
CPUS = ("cortex_m33+fp_armv8d16sp", "cortex_m55", "cortex_m55+mve", "cortex_m0plus")


def _object(source: str, cpu: str, folder: Path) -> Path:
    target = "thumb-freestanding-eabi" + ("" if cpu == "cortex_m0plus" else "hf")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, f"-mcpu={cpu}", "-std=c11", "-Os", "-g", "-ffreestanding"]
    warnings = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wcast-qual", "-Wstrict-prototypes", "-Werror"]
    out = folder / f"{cpu}.{source}.o"
    subprocess.run([*command, *warnings, "-c", str(SOURCE_FOLDER / source), "-o", str(out)], check=True)
    return out


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("source", SOURCES)
def test_sources_compile_without_warnings_and_need_no_library(source: str, cpu: str, tmp_path: Path) -> None:
    with _object(source, cpu, tmp_path).open("rb") as file:
        image = ELFFile(file)
        symbols = list(image.get_section_by_name(".symtab").iter_symbols())
        undefined = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name}
        writable = [s.name for s in image.iter_sections() if s.name.startswith((".data", ".bss", ".init_array")) and s["sh_size"]]
    assert {name for name in undefined if not ALLOWED.fullmatch(name)} == set()
    assert writable == []


def test_each_source_names_the_sources_that_it_needs(tmp_path: Path) -> None:
    given: dict[str, str] = {}
    needed: dict[str, set[str]] = {}
    for source in SOURCES:
        with _object(source, CPUS[0], tmp_path).open("rb") as file:
            for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols():
                if symbol.name.startswith("etk_") and symbol["st_shndx"] == "SHN_UNDEF":
                    needed.setdefault(source, set()).add(symbol.name)
                elif symbol.name.startswith("etk_") and symbol["st_info"]["bind"] == "STB_GLOBAL":
                    assert symbol.name not in given, symbol.name
                    given[symbol.name] = source
    assert {source: tuple(sorted({given[name] for name in names})) for source, names in needed.items()} == NEEDS
    assert not {other for others in NEEDS.values() for other in others} & NEEDS.keys()  # no chains


def _method(*values: Value) -> Method:
    return Method("forward", values, (), (), (), (), (Chain(()),))


def _call(operator: str, *values: Value) -> KernelCall | Reason:
    return kernel_call(_method(*values), Call(operator, None, tuple(range(len(values)))), lambda n: f"(arena + {16 * n})", "k")


def _tensor(dtype: str, *shape: int, dynamism: int = 0) -> Value:
    return Value("tensor", dtype, shape, tuple(range(len(shape))), dynamism)


def test_a_copy_of_what_lies_together_is_one_memcpy() -> None:
    copied = _call("aten::alias_copy.out", _tensor("int8", 1, 3, 4), _tensor("int8", 1, 3, 4))
    assert isinstance(copied, KernelCall)
    assert copied.lines == ("memcpy((arena + 16), (arena + 0), 12U);",) and copied.sources == () and copied.constants == ()
    order = Value("int[]", items=(2, 3, 4))
    numbers = [Value("int", number=n) for n in (0, 2, 1)]
    x, out = _tensor("int8", 1, 3, 4), _tensor("int8", 1, 4, 3)
    turned = kernel_call(
        _method(x, order, *numbers, out), Call("aten::permute_copy.out", None, (0, 1, 5, 5)), lambda n: f"arena_{n}", "k"
    )
    assert isinstance(turned, KernelCall) and turned.sources == ("copy.c", "map.c")
    assert turned.constants == ("static const etk_axis k_0[2] = {{4, {3, 1, 0, 0}}, {3, {1, 4, 0, 0}}};",)


def test_calls_without_a_kernel_are_refused_with_their_name_and_a_remedy() -> None:
    x = _tensor("float32", 2)
    refusals = {
        "firmware.operator": _call("aten::nonzero.out", x, _tensor("int64", 2, 1)),
        "firmware.dtype": _call("aten::exp.out", _tensor("float64", 2), _tensor("float64", 2)),
        "firmware.dynamic_shape": _call("aten::exp.out", _tensor("float32", 2, dynamism=1), x),
        "firmware.arguments": _call("aten::exp.out", x),
        "firmware.shape": _call("aten::alias_copy.out", x, _tensor("float32", 3)),
        "firmware.roll": _call("aten::roll.out", x, Value("int[]", items=()), Value("int[]", items=()), x),
    }
    for id, reason in refusals.items():
        assert isinstance(reason, Reason) and reason.id == id
        assert "aten::" in reason.text and reason.remedy


def test_the_page_lists_every_operator() -> None:
    text = (Path(__file__).parent.parent.parent.parent / "docs" / "cpu-kernels.md").read_text()
    listed = text.partition("## Operators")[2].partition("## Instructions")[0]
    names = set(listed.replace(",", " ").split())
    assert [name for name in list_kernels() if name.partition("::")[2] not in names] == []
    assert f"{len(list_kernels())} operators" in listed, "python -m tests.helpers.kernel_page"
