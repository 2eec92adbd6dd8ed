"""The delegate for full ExecuTorch: it compiles for Cortex-M against the wheel's headers, and needs neither heap nor exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import executorch
import pytest
from elftools.elf.elffile import ELFFile

from ethorch.deploy.firmware.delegate import write_delegate
from ethorch.figures.pools import pools
from ethorch.program.program import record_of
from tests.helpers.firmware import program

INCLUDE = Path(next(iter(executorch.__path__))) / "include"
FLAGS = [
    "-Os", "-fno-unwind-tables", "-ffunction-sections", "-Wall", "-Wextra", "-Werror", "-DC10_USING_CUSTOM_GENERATED_MACROS",
    "-DET_LOG_ENABLED=0", "-UNDEBUG", "-isystem", str(INCLUDE),
    "-isystem", str(INCLUDE / "executorch/runtime/core/portable_type/c10"),
]  # fmt: skip
CPP = ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]
#: Of the C++ runtime: operator new, exceptions, guards of static variables, destructors at exit.
UNWANTED = ("_Znw", "_Zna", "__cxa_", "__aeabi_atexit", "_Unwind", "malloc", "free", "snprintf")


@pytest.mark.parametrize("cpu", [pytest.param("cortex_m33", marks=pytest.mark.long), "cortex_m55"])
def test_it_compiles_for_cortex_m(cpu: str, tmp_path: Path) -> None:
    constructors, code = {}, 0
    for path in write_delegate(tmp_path / "delegate"):
        if path.suffix not in (".c", ".cpp"):
            continue
        # The headers of a C library are those of musl, which ziglang brings; objects are the same as for bare metal.
        front, language = ("c++", CPP) if path.suffix == ".cpp" else ("cc", ["-std=c11"])
        target = ["-target", "thumb-linux-musleabihf", f"-mcpu={cpu}"]
        line = [sys.executable, "-m", "ziglang", front, *target, *language, *FLAGS, "-c", str(path), "-o", str(tmp_path / "one.o")]
        done = subprocess.run(line, capture_output=True, text=True, cwd=path.parent)
        assert done.returncode == 0 and not done.stderr, done.stderr
        with open(tmp_path / "one.o", "rb") as file:
            elf = ELFFile(file)
            names = [symbol.name for symbol in elf.get_section_by_name(".symtab").iter_symbols()]
            sizes = {section.name: section["sh_size"] for section in elf.iter_sections()}
        assert not [name for name in names if name.startswith(UNWANTED)], path.name
        constructors[path.name] = sizes.get(".init_array", 0)
        code += sum(size for name, size in sizes.items() if name.startswith(".text"))
    assert {name for name, size in constructors.items() if size} == {"driver_ethosu.cpp"}
    assert constructors["driver_ethosu.cpp"] == 4  # one: the registration
    assert 2000 < code < 6000


def test_pools_of_each_method() -> None:
    made = program("two_delegates", "ethos-u55-128")
    (found,) = pools(made.pte)
    assert found.method == "forward"
    assert found.method_pool_bytes == made.memory.method_pool_bytes
    assert found.temporary_pool_bytes >= max(payload.scratch_bytes for payload in record_of(made).payloads)
    assert sum(found.planned_bytes) == sum(record_of(made).description.memories)
    tensors = sum(len(payload.inputs) + len(payload.outputs) for payload in record_of(made).payloads)
    assert found.delegate_bytes == 48 * len(record_of(made).payloads) + 4 * tensors
    numbers = [value for key, value in found.to_json().items() if key.endswith("_bytes") and isinstance(value, int)]
    assert found.total_bytes == sum(numbers) - found.total_bytes + sum(found.planned_bytes)
    assert f"{found.temporary_pool_bytes:,}" in str(found)
