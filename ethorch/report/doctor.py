"""Check the installation: packages, compilers, and firmware tools."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from ethorch.support.errors import HostError
from ethorch.support.native import cache_folder, compiler_command, distrust


@dataclass(frozen=True)
class Check:
    """The state of one requirement.

    Attributes:
        state: ``ok``, ``warning`` (ethorch is not installed), ``missing`` (optional), or ``wrong`` (required, but missing or
            unsuitable).
        found: Version or path, or "" if the requirement is missing.
    """

    name: str
    state: str
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)


def examine() -> tuple[Check, ...]:
    """Run all checks, and return the results, most important first."""
    return (_python(), *_requirements(), _compiler(), _cache(), *_optional(), *_tools())


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _requirements() -> Iterator[Check]:
    try:
        texts = importlib.metadata.requires("ethorch") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check(
            "ethorch", "warning", "source tree that is not installed", "To check the requirements, install ethorch: pip install ."
        )
        return
    yield Check("ethorch", "ok", importlib.metadata.version("ethorch"))
    for text in texts:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(requirement.name, "wrong", "not installed", f'pip install "{requirement.name}{requirement.specifier}"')
            continue
        if Version(version) in requirement.specifier or requirement.specifier.contains(Version(version).base_version):
            yield Check(requirement.name, "ok", version)
        else:
            advice = f'Tested versions: {requirement.specifier}. Run pip install "{requirement.name}{requirement.specifier}"'
            yield Check(requirement.name, "wrong", version, advice)


def _compiler() -> Check:
    try:
        command = compiler_command()
    except HostError as error:
        return Check("C++ compiler", "wrong", "", str(error))
    if command is None:
        advice = "ExecuTorch's runtime requires a C++ compiler. Run apt-get install g++, or set CXX."
        return Check("C++ compiler", "wrong", "", advice)
    try:
        process = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("C++ compiler", "wrong", command[0], f"cannot run the compiler: {error}")
    return Check("C++ compiler", "ok", process.partition("\n")[0] or command[0])


def _cache() -> Check:
    folder = cache_folder()
    if danger := distrust(folder):
        advice = f"No library is loaded from this folder ({danger}). Set ETHORCH_CACHE_DIR to a folder that only you can write to."
        return Check("cache of built libraries", "wrong", str(folder), advice)
    return Check("cache of built libraries", "ok", str(folder))


#: Optional packages and their purposes.
_OPTIONAL = {
    "pillow": "images as calibration samples",
    "torchvision": "models named torchvision:NAME",
    "timm": "models named timm:NAME",
    "transformers": "models named hf:FOLDER",
    "safetensors": "weights in .safetensors files",
    "ziglang": "a firmware compiler for Cortex-M from PyPI",
    "unicorn": "the CPU of virtual boards",
    "pyelftools": "reading ELF files of firmware",
}


def _optional() -> Iterator[Check]:
    for name, purpose in _OPTIONAL.items():
        try:
            yield Check(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "missing", "", f"Required for {purpose}. Run pip install {name}")


#: Optional commands, each with its purpose and source.
_TOOLS = {
    "arm-none-eabi-gcc": "Compiles firmware with GCC. Run apt-get install gcc-arm-none-eabi",
    "armclang": "Compiles firmware with Arm Compiler for Embedded. Available at developer.arm.com under Arm's license",
    "clang": "Compiles firmware with a clang that supports Arm. Run apt-get install clang lld",
    "qemu-system-arm": "Runs firmware on QEMU's mps3-an547. Run apt-get install qemu-system-arm",
    "FVP_Corstone_SSE-300_Ethos-U55": "Arm's Fixed Virtual Platform for Corstone-300 with an Ethos-U55. See developer.arm.com",
    "FVP_Corstone_SSE-300_Ethos-U65": "Arm's Fixed Virtual Platform for Corstone-300 with an Ethos-U65. See developer.arm.com",
    "FVP_Corstone_SSE-320": "Arm's Fixed Virtual Platform for Corstone-320 with an Ethos-U85. See developer.arm.com",
}


def _tools() -> Iterator[Check]:
    for name, advice in _TOOLS.items():
        place = shutil.which(name)
        yield Check(name, "missing", "", advice) if place is None else Check(name, "ok", _with_version(place))


def _with_version(place: str) -> str:
    if "FVP_" in place:  # FVPs are not started
        return place
    try:
        process = subprocess.run(
            [place, "--version"], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return place
    line = process.stdout.partition("\n")[0].strip()
    return f"{place}: {line}" if line else place
