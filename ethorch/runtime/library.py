"""The C++ library of ``ethorch.runtime``, built on first use, and the copies of ExecuTorch's core that it registers with."""

from __future__ import annotations

import ctypes
import sys
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ethorch.support import native
from ethorch.support.errors import HostError
from ethorch.support.garbage import collected_later

#: The C++ module behind ``executorch.runtime``, as 1.4 and as 1.5 calls it.
_BINDINGS = ("executorch.extension.pybindings._portable_lib", "executorch.extension.pybindings._C")

_KERNELS = ("cortex_m.cpp", "cortex_m_images.cpp", "saturation.cpp")


class Core(NamedTuple):
    """Addresses of functions in one copy of ExecuTorch's core; 0 for what it does not export."""

    register_backend: int
    get_pal_impl: int
    get_registered_kernels: int
    register_kernels: int


_SYMBOLS = (
    "_ZN10executorch7runtime16register_backendERKNS0_7BackendE",
    "_ZN10executorch7runtime12get_pal_implEv",
    "_ZN10executorch7runtime22get_registered_kernelsEv",
    "_ZN10executorch7runtime16register_kernelsENS0_4SpanIKNS0_6KernelEEE",
)

#: Program::load(DataLoader*, Verification)
_LOAD_PROGRAM = "_ZN10executorch7runtime7Program4loadEPNS0_10DataLoaderENS1_12VerificationE"


def executorch_copies() -> list[Core]:
    """Every copy of ExecuTorch's core in this process.

    In the wheels of 1.4 several shared objects carry a copy, and which of them the Python bindings use depends on the order
    of imports; registering with each makes the order irrelevant. In 1.5 they share one, which is found through each.
    """
    try:
        with warnings.catch_warnings(), collected_later():
            warnings.simplefilter("ignore")  # "this API is experimental"
            import_module("executorch.runtime")
            bindings = [sys.modules[name] for name in _BINDINGS if name in sys.modules]
            quantized = import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise HostError(f"ExecuTorch's runtime cannot be imported ({error}): pip install 'executorch>=1.4.1,<1.6'.") from None
    paths: list[str | None] = [None, *(module.__file__ for module in bindings)]
    paths += [str(path) for path in Path(str(quantized.__file__)).parent.glob("*quantized_ops_aot_lib*")]
    copies: dict[int, Core] = {}
    for path in paths:
        library = ctypes.CDLL(path)
        core = Core(*(_address(library, symbol) for symbol in _SYMBOLS))
        if core.register_backend and core.get_pal_impl and (core.register_kernels or core.register_backend not in copies):
            copies[core.register_backend] = core
    if not copies:
        raise HostError("this ExecuTorch exports no register_backend; 1.4 and 1.5 are the releases known to work.")
    return list(copies.values())


def _address(library: ctypes.CDLL, symbol: str) -> int:
    """Where a function is; 0 when the library does not export it."""
    function = getattr(library, symbol, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


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
        [sources / name for name in ("payload.cpp", "ethosu_backend.cpp", "driver_host.cpp", *_KERNELS)],
        [
            "-O2",
            "-ffp-contract=off",  # kernels of floats round each product, as PyTorch's do
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            "-DET_LOG_ENABLED=0",
            f"-I{include}",
            f"-I{include}/executorch/runtime/core/portable_type/c10",
        ],
        headers=[sources / name for name in ("payload.h", "driver.h", "kernel.h")],
        depends=executorch_version,
        purpose="ethorch.runtime",
    )


def build_measure() -> Path:
    """The library that measures what a method allocates, linked to the copy of ExecuTorch's core that the bindings use."""
    sources, include = Path(__file__).parent / "cpp", _executorch_include()
    core = _core_with(_LOAD_PROGRAM)
    return native.build(
        "measure",
        [sources / "measure.cpp"],
        [
            "-O2",
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            "-DET_LOG_ENABLED=0",
            "-Wno-deprecated-declarations",
            f"-I{include}",
            f"-I{include}/executorch/runtime/core/portable_type/c10",
            "-Wl,--no-as-needed",
            str(core),
        ],
        depends=version("executorch"),
        purpose="ethorch.runtime.measure",
    )


def load_measure() -> ctypes.CDLL:
    """The library of ``ethorch.runtime.measure``; HostError when it cannot be built or loaded."""
    library = native.load(build_measure)
    library.ethorch_measure.restype = ctypes.c_int
    return library


def _core_with(symbol: str) -> Path:
    """The shared object that has a function of ExecuTorch's core: a library of its own in 1.5, the bindings in 1.4."""
    executorch_copies()
    bindings = [sys.modules[name] for name in _BINDINGS if name in sys.modules]
    candidates = [Path(str(module.__file__)) for module in bindings]
    candidates[:0] = sorted(candidates[0].parents[2].glob("lib/libexecutorch.so")) if candidates else []
    for path in candidates:
        if _address(ctypes.CDLL(str(path)), symbol):
            return path
    raise HostError("this ExecuTorch exports no Program::load; 1.4 and 1.5 are the releases known to work.")


def load_library() -> ctypes.CDLL:
    library = native.load(build_library)
    library.ethorch_allocate_scratch.argtypes = (ctypes.c_int,)
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
