"""Checks of the installation: packages, compilers, and tools for firmware."""

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
        name: Name of the requirement.
        state: ``ok``, ``warning`` (untested), ``missing`` (optional), or ``wrong`` (ethorch does not work).
        found: Version or location, or "".
        advice: Remedy.
    """

    name: str
    state: str
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def examine() -> tuple[Check, ...]:
    """Return every check, the most important first."""
    return (_python(), *_requirements(), _compiler(), _cache(), *_optional(), *_tools())


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _requirements() -> Iterator[Check]:
    """Yield for each dependency whether ethorch was tested with the installed version."""
    try:
        texts = importlib.metadata.requires("ethorch") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check("ethorch", "warning", "a copy of the sources", "Install it, so that its requirements are known: pip install .")
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
            advice = f'Tested are {requirement.specifier}: pip install "{requirement.name}{requirement.specifier}"'
            yield Check(requirement.name, "wrong", version, advice)


def _compiler() -> Check:
    try:
        command = compiler_command()
    except HostError as error:
        return Check("C++ compiler", "wrong", "", str(error))
    if command is None:
        advice = "Programs cannot run in ExecuTorch's runtime without one: apt-get install g++, or set CXX."
        return Check("C++ compiler", "wrong", "", advice)
    try:
        process = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("C++ compiler", "wrong", command[0], f"It does not run: {error}")
    return Check("C++ compiler", "ok", process.partition("\n")[0] or command[0])


def _cache() -> Check:
    folder = cache_folder()
    if danger := distrust(folder):
        advice = f"No library is loaded from it: {danger}. Set ETHORCH_CACHE_DIR to a folder to which only this user can write."
        return Check("cache of built libraries", "wrong", str(folder), advice)
    return Check("cache of built libraries", "ok", str(folder))


#: Optional packages and their purposes.
_OPTIONAL = {
    "pillow": "pictures as calibration samples",
    "torchvision": "models by the name torchvision:NAME",
    "timm": "models by the name timm:NAME",
    "transformers": "models by the name hf:FOLDER",
    "safetensors": "weights from .safetensors files",
    "ziglang": "firmware: a compiler for Cortex-M from PyPI",
    "unicorn": "the virtual board's CPU",
    "pyelftools": "reading firmware",
}


def _optional() -> Iterator[Check]:
    for name, purpose in _OPTIONAL.items():
        try:
            yield Check(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "missing", "", f"For {purpose}: pip install {name}")


#: Optional commands with their purposes and sources.
_TOOLS = {
    "arm-none-eabi-gcc": "Firmware by GNU's compiler: apt-get install gcc-arm-none-eabi",
    "armclang": "Firmware by Arm Compiler for Embedded: developer.arm.com, under Arm's license",
    "clang": "Firmware by a clang with an Arm back end: apt-get install clang lld",
    "qemu-system-arm": "Firmware on QEMU's mps3-an547: apt-get install qemu-system-arm",
    "FVP_Corstone_SSE-300_Ethos-U55": "Arm's fixed virtual platform of Corstone-300: developer.arm.com, under Arm's license",
    "FVP_Corstone_SSE-300_Ethos-U65": "Arm's fixed virtual platform of Corstone-300, with a U65: developer.arm.com, Arm's license",
    "FVP_Corstone_SSE-320": "Arm's fixed virtual platform of Corstone-320, with a U85: developer.arm.com, under Arm's license",
}


def _tools() -> Iterator[Check]:
    for name, advice in _TOOLS.items():
        place = shutil.which(name)
        yield Check(name, "missing", "", advice) if place is None else Check(name, "ok", _with_version(place))


def _with_version(place: str) -> str:
    """Return the path of a command and the first line of its version. FVPs are not started."""
    if "FVP_" in place:
        return place
    try:
        process = subprocess.run(
            [place, "--version"], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return place
    line = process.stdout.partition("\n")[0].strip()
    return f"{place}: {line}" if line else place
