"""The C++ library of ``ethorch.host``, built on first use, and the copies of ExecuTorch's core that it registers with."""

from __future__ import annotations

import ctypes
import sys
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ethorch import native
from ethorch.errors import HostError

#: The C++ module behind ``executorch.runtime``, as 1.4 and as 1.5 calls it.
_BINDINGS = ("executorch.extension.pybindings._portable_lib", "executorch.extension.pybindings._C")


def executorch_copies() -> list[tuple[int, int]]:
    """Addresses of register_backend and get_pal_impl in every copy of ExecuTorch's core in this process.

    In the wheels of 1.4 several shared objects carry a copy, and which of them the Python bindings use depends on the order
    of imports; registering with each makes the order irrelevant. In 1.5 they share one, which is found through each.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "this API is experimental"
            import_module("executorch.runtime")
            bindings = [sys.modules[name] for name in _BINDINGS if name in sys.modules]
            quantized = import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise HostError(f"ExecuTorch's runtime cannot be imported ({error}): pip install 'executorch>=1.4.1,<1.6'.") from None
    paths: list[str | None] = [None, *(module.__file__ for module in bindings)]
    paths += [str(path) for path in Path(str(quantized.__file__)).parent.glob("*quantized_ops_aot_lib*")]
    names = (
        "_ZN10executorch7runtime16register_backendERKNS0_7BackendE",
        "_ZN10executorch7runtime12get_pal_implEv",
    )
    copies: dict[int, tuple[int, int]] = {}
    for path in paths:
        library = ctypes.CDLL(path)
        try:
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
        except AttributeError:
            continue
        copies[addresses[0]] = (addresses[0], addresses[1])
    if not copies:
        raise HostError("this ExecuTorch exports no register_backend; 1.4 and 1.5 are the releases known to work.")
    return list(copies.values())


def build_library() -> Path:
    """The delegate library for the installed ExecuTorch; see ``native.build``."""
    sources = Path(__file__).parent / "cpp"
    include = _executorch_include()
    try:
        executorch_version = version("executorch")
    except PackageNotFoundError:
        executorch_version = "unknown"
    return native.build(
        "host",
        [sources / name for name in ("payload.cpp", "ethosu_backend.cpp", "driver_host.cpp")],
        [
            "-O2",
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            "-DET_LOG_ENABLED=0",
            f"-I{include}",
            f"-I{include}/executorch/runtime/core/portable_type/c10",
        ],
        headers=[sources / name for name in ("payload.h", "driver.h")],
        depends=executorch_version,
        purpose="ethorch.host",
    )


def load_library() -> ctypes.CDLL:
    library = native.load(build_library)
    library.ethorch_register.restype = ctypes.c_uint32
    library.ethorch_parse.restype = ctypes.c_char_p
    library.ethorch_parse.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def _executorch_include() -> Path:
    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (include := Path(folder) / "include").is_dir():
            return include
    raise HostError("ExecuTorch's C++ headers were not found: pip install 'executorch>=1.4.1,<1.6'.")
