"""Build the firmware in this folder and run it on a virtual board or on Arm's FVP.

    python run.py                               build, run on the virtual board, compare every output with the reference
    python run.py --platform qemu               run on an emulated Cortex-M55; requires qemu-system-arm
    python run.py --compiler gcc --cpu cortex-m55 --polled

`ethorch firmware` copies this file to each project as run.py. A build requires only Python and a compiler; a run
also requires ethorch[firmware].
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

COMPILERS = ("zig", "gcc", "clang", "armclang")
_FLAGS = (
    "-std=c11", "-Os", "-g", "-ffreestanding", "-ffunction-sections", "-fdata-sections", "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Wextra",
)  # fmt: skip
#: Core -> its name for zig, its name for GCC, and the target triple for clang. Programs for the first core run on all cores.
_CORES = {
    "cortex-m33": ("cortex_m33+fp_armv8d16sp", "cortex-m33", "thumbv8m.main-none-eabihf"),
    "cortex-m55": ("cortex_m55+mve", "cortex-m55", "thumbv8.1m.main-none-eabihf"),
    "cortex-m85": ("cortex_m85+mve", "cortex-m55", "thumbv8.1m.main-none-eabihf"),  # GCC 12 has no cortex-m85
}


class Failed(Exception):
    """The error raised if a build or a run fails."""


def flags() -> tuple[str, ...]:
    return _FLAGS


@dataclass(frozen=True)
class Options:
    """Build options.

    Attributes:
        compiler: One of COMPILERS.
        cpu: Target core: ``cortex-m33`` (its code runs on all cores), ``cortex-m55`` or ``cortex-m85``.
        interrupt: Whether the firmware waits for the NPU's interrupt instead of polling.
        caches: Whether the firmware enables the core's caches.
        defines: Values of additional macros, by name.
    """

    compiler: str = "zig"
    cpu: str = "cortex-m33"
    interrupt: bool = True
    caches: bool = False
    defines: Mapping[str, str] | None = None


def command(options: Options) -> list[str]:
    """Return the compiler command with the flags that select the core.

    Raises:
        Failed: The compiler is not installed, or the core is unknown.
    """
    if options.cpu not in _CORES:
        raise Failed(f"expected one of the cores {', '.join(_CORES)}, got {options.cpu!r}.")
    zig, gcc, triple = _CORES[options.cpu]
    if options.compiler == "zig":
        probe = subprocess.run([sys.executable, "-c", "import ziglang"], capture_output=True)
        if probe.returncode:
            raise Failed('the Python package ziglang is not installed. Run pip install "ethorch[firmware]", or use --compiler gcc.')
        return [
            sys.executable, "-m", "ziglang", "cc", "-target", "thumb-freestanding-eabihf", f"-mcpu={zig}",
            "-Ifirmware/freestanding",
        ]  # fmt: skip
    name = {"gcc": "arm-none-eabi-gcc"}.get(options.compiler, options.compiler)
    path = shutil.which(name)
    if path is None:
        raise Failed(f"{name} is not on PATH. Install {name}, or omit --compiler to use the Python package ziglang.")
    if options.compiler == "gcc":
        fpu = ["-mfpu=fpv5-sp-d16"] if gcc == "cortex-m33" else []
        return [path, f"-mcpu={gcc}", "-mthumb", "-mfloat-abi=hard", *fpu, "-nostdlib"]
    return [path, f"--target={triple}", f"-mcpu={gcc}", "-mfloat-abi=hard", "-nostdlib", "-Ifirmware/freestanding"]


def build(
    project: Path, options: Options | None = None, output: str = "build/firmware.elf", sources: Sequence[str] | None = None
) -> Path:
    """Compile and link the project, and return the ELF's path. Compilers other than zig also write a link map.

    Args:
        output: The ELF's path, relative to the project.
        sources: Source files. Default: those listed in project.json.

    Raises:
        Failed: The compiler is not installed or reports an error.
    """
    options = options or Options()
    facts = read_description(project)
    elf = project / output
    elf.parent.mkdir(parents=True, exist_ok=True)
    macros = {
        "FIRMWARE_INTERRUPT": str(int(options.interrupt)),
        "FIRMWARE_CACHES": str(int(options.caches)),
        **(options.defines or {}),
    }
    includes = [f"-I{folder}" for folder in facts["include"]]
    link = [
        "-Wl,--gc-sections", "-Wl,-T,firmware/link.ld", "-Wl,-e,Reset_Handler",
        *([f"-Wl,-Map={output}.map"] if options.compiler != "zig" else []),  # zig's linker does not write a map
        *(["-lgcc"] if options.compiler == "gcc" else []),
    ]  # fmt: skip
    # unicorn loses the end of an IT block that contains loads or stores while its cache hooks are active.
    plain = ["-mllvm", "-ifcvt-limit=0"] if options.caches and options.compiler != "gcc" else []
    line = [
        *command(options), *_FLAGS, *plain, *(f"-D{name}={value}" for name, value in macros.items()), *includes,
        *(f"-Wa,{include}" for include in includes), *(sources or facts["sources"]), *link, "-o", output,
    ]  # fmt: skip
    process = subprocess.run(line, cwd=project, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if process.returncode:
        raise Failed(f"the compiler failed (status {process.returncode}):\n{' '.join(line)}\n{process.stderr.strip()}")
    return elf


def read_description(project: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((project / "project.json").read_text(encoding="utf-8"))
    return description


def code_bytes(elf: Path) -> int:
    """Return the size of an ELF's ``.text`` section in bytes."""
    data = elf.read_bytes()
    (table,) = struct.unpack_from("<I", data, 32)
    size, count, names = struct.unpack_from("<HHH", data, 46)
    rows = [struct.unpack_from("<IIIIII", data, table + number * size) for number in range(count)]
    texts = rows[names][4]
    return sum(row[5] for row in rows if data[texts + row[0] :].startswith(b".text\0"))


@dataclass(frozen=True)
class Output:
    """One output of one run: the printed and the expected hash, and the index of the largest element, if printed."""

    run: int
    number: int
    found: str
    expected: str
    largest: int | None

    @property
    def equal(self) -> bool:
        return self.found == self.expected


def outputs(text: str, facts: Mapping[str, Any]) -> list[Output]:
    """Parse the outputs printed by the firmware. ``Output.found`` is empty for a missing output."""
    printed: dict[tuple[int, int], tuple[str, int | None]] = {}
    run = -1
    for line in text.splitlines():
        if match := re.match(r"run (\d+):", line):
            run = int(match[1])
        elif match := re.match(r"output (\d+): hash (0x[0-9a-f]{8})(?:, largest at (\d+))?", line):
            printed[run, int(match[1])] = match[2], int(match[3]) if match[3] else None
    expected = facts["expected"]
    return [
        Output(run, number, *(printed.get((run, number), ("", None))[:1]), value, printed.get((run, number), ("", None))[1])
        for run, values in enumerate(expected)
        for number, value in enumerate(values)
    ]


#: Required Python packages by platform: import name -> distribution name.
_NEEDED = {
    "unicorn": {"ethorch": "ethorch", "elftools": "pyelftools", "unicorn": "unicorn"},
    "qemu": {"ethorch": "ethorch", "elftools": "pyelftools"},
    "fvp": {"ethorch": "ethorch", "elftools": "pyelftools"},
}


def check_runnable(platform: str) -> None:
    """Raise Failed if a Python package required by the platform is not installed."""
    missing = [name for module, name in _NEEDED[platform].items() if importlib.util.find_spec(module) is None]
    if missing:
        names = " and ".join(missing)
        raise Failed(f'running the firmware requires {names}. Run pip install "ethorch[firmware]", or use --build-only.')


def run(project: Path, elf: Path, platform: str = "unicorn", timeout: float = 600) -> Any:
    """Run an ELF on a virtual board and return an ``ethorch.deploy.virtual_board.Run``.

    Raises:
        Failed: A package is not installed.
    """
    check_runnable(platform)
    from ethorch.deploy import virtual_board  # the import takes 1 second, and a build does not require ethorch

    facts = read_description(project)
    place = project / facts["board"] if facts["board"].endswith(".toml") else facts["board"]
    outcome = virtual_board.run(elf, board=place, npu=facts["target"], backend=platform, timeout=timeout, cycles=facts["cycles"])
    counts = re.findall(r"^run (\d+): .*\d cycles of the NPU", outcome.text, re.MULTILINE)
    if outcome.measured_cycles is None or not counts:
        return outcome
    method = facts["calls"][int(counts[-1])]  # measured_cycles are those of the last call
    return replace(outcome, expected_cycles=facts["estimated_cycles"][method] or None)


def _mark_lower_bounds(text: str) -> str:
    return re.sub(r"\b(\d+)(?= cycles of the NPU)", lambda match: f"at least {int(match[1]):,}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and run the project. Return 0 if all outputs equal the reference, otherwise 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--compiler", choices=COMPILERS, default="zig", help="compiler; default: %(default)s, from the package ziglang"
    )
    parser.add_argument(
        "--cpu",
        choices=tuple(_CORES),
        default="cortex-m33",
        help="core to compile for; default: %(default)s, which runs on all cores",
    )
    parser.add_argument("--platform", choices=("unicorn", "qemu", "fvp"), default="unicorn", help="simulator; default: %(default)s")
    parser.add_argument("--polled", action="store_true", help="poll the NPU's STATUS instead of waiting for its interrupt")
    parser.add_argument("--caches", action="store_true", help="enable the core's caches")
    parser.add_argument("--build-only", action="store_true", help="build the firmware without running it")
    parser.add_argument("--timeout", type=float, default=600, help="timeout in seconds; default: %(default)s")
    parser.add_argument("--trace", type=Path, metavar="FILE.json", help="write a trace for Perfetto or chrome://tracing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    project = Path(__file__).resolve().parent
    try:
        if not options.build_only:
            check_runnable(options.platform)
        elf = build(project, Options(options.compiler, options.cpu, not options.polled, options.caches))
        if options.build_only:
            print(f"built {elf.relative_to(project)}")
            return 0
        outcome = run(project, elf, options.platform, options.timeout)
        if options.trace is not None:
            outcome.trace(options.trace)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # exceptions of the virtual board have messages for users
        print(f"error: {error}" if str(error) else f"error: {type(error).__name__}", file=sys.stderr)
        return 1
    facts = read_description(project)
    compared = outputs(outcome.text, facts)
    passed = outcome.ok and "PASS" in outcome.text.split() and all(output.equal for output in compared)
    size = code_bytes(elf)
    if options.json:
        rows = [
            {"run": o.run, "method": facts["calls"][o.run], "output": o.number, "equal": o.equal, "largest": o.largest}
            for o in compared
        ]
        data = {
            "passed": passed,
            "code_bytes": size,
            "exit_code": outcome.exit_code,
            "faults": [str(f) for f in outcome.faults],
            "outputs": rows,
            "text": outcome.text,
        }
        print(json.dumps(data, indent=2))
        return 0 if passed else 1
    print(f"code: {size} bytes in {elf.relative_to(project)}, including the self-test")
    text = outcome.text.replace("\x04", "").rstrip()
    print(_mark_lower_bounds(text) if outcome.is_lower_bound else text)
    for fault in outcome.faults:
        print(f"board: {fault}")
    if outcome.measured_ratio is not None:
        print(f"measured NPU cycles: {outcome.measured_cycles} ({outcome.measured_ratio:.2f} times the estimate)")
    for output in compared:
        failure = "DIFFERS from the reference" if output.found else "is MISSING"
        verdict = "equals the reference, bit for bit" if output.equal else failure
        method = facts["calls"][output.run]
        name = f"run {output.run}, {method}" if len(facts["outputs"]) > 1 else f"run {output.run}"
        print(f"{name}, output {output.number} ({facts['outputs'][method][output.number]}) {verdict}")
    print("PASS" if passed else "FAIL", f"({options.platform}, {options.compiler}, {'polled' if options.polled else 'interrupt'})")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
