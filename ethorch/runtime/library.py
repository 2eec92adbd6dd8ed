"""Build and load the C++ libraries of ``ethorch.runtime``, and find the copies of ExecuTorch's core in this process."""

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

#: Names of the C++ module of ``executorch.runtime`` in ExecuTorch 1.4 and 1.5.
_BINDINGS = ("executorch.extension.pybindings._portable_lib", "executorch.extension.pybindings._C")

_KERNELS = ("cortex_m.cpp", "cortex_m_images.cpp", "saturation.cpp")


class Core(NamedTuple):
    """The addresses of functions in one copy of ExecuTorch's core, or 0 for functions that are not exported."""

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
    """Return all copies of ExecuTorch's core in this process.

    ExecuTorch 1.5 has one core library, which does not require torch. In 1.4, several shared objects that require torch contain a
    copy, and the import order determines which copy the Python bindings use. The delegate is therefore registered with every copy.
    """
    core = _find_core()
    paths: list[str | None] = [None, *_import_bindings()] if core is None else [str(core), *_find_kernels(core)]
    copies: dict[int, Core] = {}
    for path in paths:
        library = ctypes.CDLL(path)
        addresses = Core(*(_find_address(library, symbol) for symbol in _SYMBOLS))
        if (
            addresses.register_backend
            and addresses.get_pal_impl
            and (addresses.register_kernels or addresses.register_backend not in copies)
        ):
            copies[addresses.register_backend] = addresses
    if not copies:
        raise HostError("the installed ExecuTorch does not export register_backend. Install ExecuTorch 1.4 or 1.5.")
    return list(copies.values())


def _find_package() -> Path:
    spec = find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "include").is_dir():
            return Path(folder)
    raise HostError("cannot find ExecuTorch's C++ headers. Run pip install 'executorch>=1.4.1,<1.6'.")


def _find_core() -> Path | None:
    return next(iter(sorted((_find_package() / "lib").glob("libexecutorch.*"))), None)


def _find_kernels(core: Path) -> list[str]:
    return [str(path) for path in sorted(core.parent.glob("libexecutorch_kernels_*"))]


def load_backends() -> None:
    """Load the backend libraries in the folder of the core library. Each library registers its backend."""
    core = _find_core()
    for path in [] if core is None else sorted(core.parent.glob("libexecutorch_backend_*")):
        with contextlib.suppress(OSError):  # the device libraries of the backend are missing
            ctypes.CDLL(str(path))


def _import_bindings() -> list[str]:
    try:
        with warnings.catch_warnings(), delay_collection():
            warnings.simplefilter("ignore")  # "this API is experimental"
            import_module("executorch.runtime")
            quantized = import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise HostError(f"cannot import ExecuTorch's runtime ({error}). Run pip install 'executorch>=1.4.1,<1.6'.") from None
    paths = [str(sys.modules[name].__file__) for name in _BINDINGS if name in sys.modules]
    return paths + [str(path) for path in Path(str(quantized.__file__)).parent.glob("*quantized_ops_aot_lib*")]


def _find_address(library: ctypes.CDLL, symbol: str) -> int:
    function = getattr(library, symbol, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def build_library() -> Path:
    """Build the delegate library for the installed ExecuTorch. See :func:`native.build`."""
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
            "-ffp-contract=off",  # float kernels round each product, like PyTorch's kernels
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
    """Build the library that runs and measures programs, and link it to one copy of ExecuTorch's core."""
    sources, include = Path(__file__).parent / "cpp", _executorch_include()
    core = _find_object_with(_LOAD_PROGRAM)
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
    """Load the C++ library that the modules ``executor`` and ``allocations`` use.

    Raises:
        HostError: The library cannot be built or loaded.
    """
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


def _find_object_with(symbol: str) -> Path:
    core = _find_core()
    for path in _import_bindings() if core is None else [str(core)]:
        if _find_address(ctypes.CDLL(path), symbol):
            return Path(path)
    raise HostError("the installed ExecuTorch does not export Program::load. Install ExecuTorch 1.4 or 1.5.")


def load_library() -> ctypes.CDLL:
    library = native.load(build_library)
    library.ethorch_allocate_scratch.argtypes = (ctypes.c_int,)
    library.ethorch_register.restype = ctypes.c_uint32
    library.ethorch_parse.restype = ctypes.c_char_p
    library.ethorch_parse.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def _executorch_include() -> Path:
    return _find_package() / "include"
