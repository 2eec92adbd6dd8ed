"""The C++ library of ``ethorch.runtime``, built on first use, and the copies of ExecuTorch's core that it registers with."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import warnings
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ethorch.support import native
from ethorch.support.errors import HostError
from ethorch.support.garbage import delay_collection

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

    In 1.5 it is one library, with its kernels in two more: they are loaded here, and torch is not. In the wheels of 1.4 several
    shared objects carry a copy, which need torch. Which of them the Python bindings use depends on the order of imports;
    registering with each makes the order irrelevant.
    """
    core = _shared_core()
    paths: list[str | None] = [None, *_bindings()] if core is None else [str(core), *_kernels(core)]
    copies: dict[int, Core] = {}
    for path in paths:
        library = ctypes.CDLL(path)
        found = Core(*(_address(library, symbol) for symbol in _SYMBOLS))
        if found.register_backend and found.get_pal_impl and (found.register_kernels or found.register_backend not in copies):
            copies[found.register_backend] = found
    if not copies:
        raise HostError("this ExecuTorch exports no register_backend; 1.4 and 1.5 are the releases known to work.")
    return list(copies.values())


def _folder() -> Path:
    """The installed package ``executorch``; HostError if there is none."""
    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "include").is_dir():
            return Path(folder)
    raise HostError("ExecuTorch's C++ headers were not found: pip install 'executorch>=1.4.1,<1.6'.")


def _shared_core() -> Path | None:
    """The library that is ExecuTorch's core in 1.5; None in 1.4."""
    return next(iter(sorted((_folder() / "lib").glob("libexecutorch.*"))), None)


def _kernels(core: Path) -> list[str]:
    """The libraries of kernels beside the core: loading them registers the kernels."""
    return [str(path) for path in sorted(core.parent.glob("libexecutorch_kernels_*"))]


def load_backends() -> None:
    """Load the backends beside the core, which registers them."""
    core = _shared_core()
    for path in [] if core is None else sorted(core.parent.glob("libexecutorch_backend_*")):
        with contextlib.suppress(OSError):  # a backend whose device's libraries are not installed
            ctypes.CDLL(str(path))


def _bindings() -> list[str]:
    """The shared objects of ExecuTorch 1.4 with a copy of its core, imported."""
    try:
        with warnings.catch_warnings(), delay_collection():
            warnings.simplefilter("ignore")  # "this API is experimental"
            import_module("executorch.runtime")
            quantized = import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise HostError(f"ExecuTorch's runtime cannot be imported ({error}): pip install 'executorch>=1.4.1,<1.6'.") from None
    paths = [str(sys.modules[name].__file__) for name in _BINDINGS if name in sys.modules]
    return paths + [str(path) for path in Path(str(quantized.__file__)).parent.glob("*quantized_ops_aot_lib*")]


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


def build_executor() -> Path:
    """The library that runs programs and measures what they allocate, linked to a copy of ExecuTorch's core."""
    sources, include = Path(__file__).parent / "cpp", _executorch_include()
    core = _core_with(_LOAD_PROGRAM)
    return native.build(
        "executor",
        [sources / "executor.cpp", sources / "measure.cpp"],
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
        headers=[sources / "executor.h"],
        depends=version("executorch"),
        purpose="ethorch.runtime",
    )


@lru_cache(maxsize=1)
def load_executor() -> ctypes.CDLL:
    """The library of ``ethorch.runtime.executor`` and ``measure``; HostError when it cannot be built or loaded."""
    library = native.load(build_executor)
    library.ethorch_measure.restype = ctypes.c_int
    library.ethorch_executor_load.restype = ctypes.c_void_p
    library.ethorch_executor_load.argtypes = (
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_int),
    )
    library.ethorch_executor_load_method.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    library.ethorch_executor_run.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    )
    library.ethorch_executor_free.argtypes = (ctypes.c_void_p,)
    library.ethorch_executor_free.restype = None
    library.ethorch_executor_operators.restype = library.ethorch_executor_backends.restype = ctypes.c_char_p
    return library


def _core_with(symbol: str) -> Path:
    """The shared object that has a function of ExecuTorch's core: a library of its own in 1.5, the bindings in 1.4."""
    core = _shared_core()
    for path in _bindings() if core is None else [str(core)]:
        if _address(ctypes.CDLL(path), symbol):
            return Path(path)
    raise HostError("this ExecuTorch exports no Program::load; 1.4 and 1.5 are the releases known to work.")


def load_library() -> ctypes.CDLL:
    library = native.load(build_library)
    library.ethorch_allocate_scratch.argtypes = (ctypes.c_int,)
    library.ethorch_register.restype = ctypes.c_uint32
    library.ethorch_parse.restype = ctypes.c_char_p
    library.ethorch_parse.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def _executorch_include() -> Path:
    return _folder() / "include"
