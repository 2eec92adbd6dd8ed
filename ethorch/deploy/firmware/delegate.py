"""Write the sources of the Ethos-U delegate for a Cortex-M application with ExecuTorch."""

from __future__ import annotations

import os
from pathlib import Path

from ethorch.deploy.firmware.source import templates
from ethorch.formats.files import write_folder
from ethorch.support.errors import EthorchError
from ethorch.support.versions import versions

_PACKAGE = Path(__file__).resolve().parent.parent.parent
#: Paths relative to the package. The files are C++17 and C11 without `new` or exceptions, and define one static constructor.
FILES = (
    "runtime/cpp/driver.h",
    "runtime/cpp/payload.h",
    "runtime/cpp/payload.cpp",
    "runtime/cpp/ethosu_backend.cpp",
    "deploy/firmware/cpp/driver_ethosu.cpp",
    "deploy/firmware/c/ethosu.h",
    "deploy/firmware/c/ethosu.c",
    "deploy/firmware/c/ethosu_text.c",
)


def write_delegate(folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the delegate's sources and a CMakeLists.txt, and return their paths.

    Raises:
        EthorchError: The folder cannot be written.
    """
    target = Path(folder)
    names = [Path(path).name for path in FILES]
    contents = {name: (_PACKAGE / path).read_bytes() for name, path in zip(names, FILES, strict=True)}
    sources = [name for name in names if not name.endswith(".h")]
    rendered = templates().get_template("delegate_cmake.jinja").render(sources=sources, made_by=f"ethorch {versions()['ethorch']}")
    contents["CMakeLists.txt"] = rendered.encode()
    try:
        write_folder(target, contents)
    except OSError as error:
        raise EthorchError(f"cannot write the delegate to {target}: {error.strerror}.") from None
    return tuple(target / name for name in contents)
