"""Arguments and options that several subcommands share, and what they stand for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ethorch.program.program import Program
    from ethorch.targets.settings import Settings

FILES, QUANTIZATION, COMPILER, BUDGET = "Inputs", "Quantization", "Compiler", "Budget"


def _option(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="FILE.py:NAME, package.module:NAME, FILE.pt2, torchvision:NAME, timm:NAME, hf:FOLDER or executorch:NAME. NAME() "
        "returns (module, inputs[, calibration]), or is a module whose file has example_inputs; FILE.py alone has ModelUnderTest "
        "and ModelInputs.",
    ),
]
Pte = Annotated[
    Path, typer.Argument(metavar="FILE.pte", help="A program of ethorch or of ExecuTorch's Arm backend, or a saved folder.")
]
Target = Annotated[
    str | None,
    _option("--target", "-t", help="NPU; see `ethorch targets`. Default: the board's first, or ethos-u55-128.", panel=COMPILER),
]
Board = Annotated[
    str | None,
    _option(
        "--board",
        "-b",
        help="A board of `ethorch boards`, or a TOML file of your own: target, clocks, memories, limits.",
        panel=COMPILER,
        metavar="NAME|FILE",
    ),
]
Scheme = Annotated[
    str | None, _option("--scheme", "-s", help="int8 (default), a16w8, a8w4 or int8-per-tensor.", panel=QUANTIZATION)
]
Calibrate = Annotated[
    list[Path] | None,
    _option(
        "--calibrate",
        help="Files or a folder of representative inputs: .npy, .npz, .pt, .csv, .wav, pictures. May be repeated.",
        panel=QUANTIZATION,
        metavar="DIR|FILE",
    ),
]
Limit = Annotated[int | None, _option("--limit", help="Take this many samples at most.", panel=QUANTIZATION, min=1)]
Mean = Annotated[
    str | None,
    _option("--mean", help="Taken off pictures of 0..1 by channel: 0.485,0.456,0.406.", panel=QUANTIZATION, metavar="NUMBERS"),
]
Std = Annotated[
    str | None,
    _option("--std", help="What they are divided by then: 0.229,0.224,0.225.", panel=QUANTIZATION, metavar="NUMBERS"),
]
Io = Annotated[
    str | None,
    _option("--io", help="Type of float inputs and outputs: float32 (default), int8, uint8, int16.", panel=QUANTIZATION),
]
ModuleScheme = Annotated[
    list[str] | None,
    _option(
        "--module",
        help="A submodule's own scheme, e.g. head=a16w8 or head=float. May be repeated.",
        panel=QUANTIZATION,
        metavar="NAME=SCHEME",
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    _option("--leave-out", help="A submodule that stays in float on the CPU. May be repeated.", panel=QUANTIZATION, metavar="NAME"),
]
NhwcIo = Annotated[bool, _option("--nhwc-io", help="Inputs and outputs of the program in NHWC.", panel=COMPILER)]
IoLayout = Annotated[
    str | None,
    _option(
        "--io-layout",
        help="nchw (default): inputs and outputs as the model has them; nhwc: as --nhwc-io; auto: whichever takes less time.",
        panel=COMPILER,
        metavar="nchw|nhwc|auto",
    ),
]
Partition = Annotated[
    str | None,
    _option(
        "--partition",
        help="npu (default): all that the NPU can run; cpu-matmul: products of two int8 activations on the CPU, by ExecuTorch's "
        "cortex_m kernels; cost: whichever the estimate says is faster.",
        panel=COMPILER,
        metavar="npu|cpu-matmul|cost",
    ),
]
SystemConfig = Annotated[str | None, _option("--system-config", help="A section of vela.ini.", panel=COMPILER)]
MemoryMode = Annotated[str | None, _option("--memory-mode", help="A section of vela.ini.", panel=COMPILER)]
ConfigIni = Annotated[str | None, _option("--config-ini", help="Your own vela.ini.", panel=COMPILER)]
VelaFlag = Annotated[
    list[str] | None,
    _option("--vela-flag", help="A flag of Vela's, e.g. --optimise=Size. May be repeated.", panel=COMPILER, metavar="FLAG"),
]
Arena = Annotated[
    str | None,
    _option(
        "--arena",
        help="The NPU's arena: free (default: the smallest that costs hardly more cycles), fast, or a limit: 256K.",
        panel=COMPILER,
        metavar="free|fast|SIZE",
    ),
]
Constants = Annotated[
    str | None,
    _option(
        "--constants",
        help="Where the NPU reads weights from: flash (default), sram, auto: in SRAM where --ram allows it, or 16K: those read "
        "several times, copied.",
        panel=COMPILER,
        metavar="flash|sram|auto|SIZE",
    ),
]
NoVerify = Annotated[
    bool, _option("--no-verify", help="Do not compare the finished program with the TOSA reference.", panel=COMPILER)
]
SettingsFile = Annotated[
    Path | None, _option("--settings", help="A file that --keep wrote; other options change it.", panel=FILES, metavar="FILE.toml")
]
Shape = Annotated[
    list[str] | None,
    _option("--shape", help="Input shapes of a method, instead of the example's: 1x64x32,1x64. Once for each method.", panel=FILES),
]
Weights = Annotated[
    Path | None,
    _option("--weights", help="A state dict for the model: .safetensors, or .pth of tensors.", panel=FILES, metavar="FILE"),
]
Ram = Annotated[str | None, _option("--ram", help="RAM for the whole application, e.g. 256K.", panel=BUDGET, metavar="SIZE")]
Flash = Annotated[str | None, _option("--flash", help="Flash for the whole application, e.g. 1M.", panel=BUDGET, metavar="SIZE")]
Latency = Annotated[float | None, _option("--latency-ms", help="Milliseconds that one inference may take.", panel=BUDGET)]
Fps = Annotated[float | None, _option("--fps", help="Inferences a second that are wanted.", panel=BUDGET)]
MinSqnr = Annotated[float | None, _option("--min-sqnr-db", help="Least SQNR against the float model, in dB.", panel=BUDGET)]
Method = Annotated[str | None, _option("--method", help="Entry point; default: forward, or the first.")]
Dump = Annotated[Path | None, _option("--dump", help="What `compile --dump` wrote: names each command's operator.", metavar="DIR")]
Inputs = Annotated[
    list[Path] | None,
    _option(
        "--inputs",
        "-i",
        help="Files of inputs, one for each: .npy, .npz, .pt, .wav, pictures.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True)
class Samples:
    """Where the model's inputs, weights and calibration samples come from."""

    shape: Shape = None
    weights: Weights = None
    calibrate: Calibrate = None
    limit: Limit = None
    mean: Mean = None
    std: Std = None

    def words(self) -> list[str]:
        """As on a command line; files without their folders, which are of one computer."""
        files = [("--calibrate", path) for path in self.calibrate or ()] + [("--weights", path) for path in [self.weights] if path]
        found = [word for flag, path in files for word in (flag, Path(path).name)]
        for flag, value in (("--shape", self.shape), ("--limit", self.limit), ("--mean", self.mean), ("--std", self.std)):
            for each in value if isinstance(value, list) else [value]:
                found += [] if each is None else [flag, str(each)]
        return found

    def transform(self) -> Callable[[Any], Any] | None:
        """What --mean and --std do to each sample; None without them.

        Raises:
            SpecError: one of them is missing, or is no list of numbers.
        """
        if self.mean is None and self.std is None:
            return None
        if self.mean is None or self.std is None:
            raise SpecError("--mean and --std belong together: give both, or neither.")
        from ethorch.models.transforms import Normalize

        try:
            numbers = [[float(word) for word in text.split(",")] for text in (self.mean, self.std)]
        except ValueError:
            raise SpecError(
                f"--mean is {self.mean!r} and --std {self.std!r}; they have to be numbers with commas between them."
            ) from None
        return Normalize(*numbers)


@dataclass(frozen=True)
class Quantization:
    """How the model is quantized, and for which NPU."""

    settings: SettingsFile = None
    scheme: Scheme = None
    module: ModuleScheme = None
    leave_out: LeaveOut = None
    io: Io = None
    target: Target = None
    board: Board = None


@dataclass(frozen=True)
class Compiler:
    """What Vela is told."""

    nhwc_io: NhwcIo = False
    io_layout: IoLayout = None
    partition: Partition = None
    system_config: SystemConfig = None
    memory_mode: MemoryMode = None
    config_ini: ConfigIni = None
    vela_flag: VelaFlag = None
    arena: Arena = None
    constants: Constants = None
    no_verify: NoVerify = False


@dataclass(frozen=True)
class Budget:
    """What the whole application may take."""

    ram: Ram = None
    flash: Flash = None
    latency_ms: Latency = None
    fps: Fps = None
    min_sqnr_db: MinSqnr = None

    def latency(self) -> float | None:
        """Milliseconds that one inference may take, by either option; SpecError where they are wrong."""
        from ethorch.targets.settings import latency_of

        return latency_of(self.latency_ms, self.fps)


_COMPILER, _BUDGET = Compiler(), Budget()


def settings_of(quantization: Quantization, compiler: Compiler = _COMPILER, budget: Budget = _BUDGET) -> Settings:
    """The options as Settings; what a flag does not do is said on stderr.

    Raises:
        SpecError: a name, size or file is wrong.
    """
    from ethorch.targets.settings import FLOAT, Settings

    kept = Settings()
    if quantization.settings is not None:
        kept = Settings.read(quantization.settings)
    modules = dict(kept.modules)
    for entry in quantization.module or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise SpecError(f"--module is {entry!r}; it has to be NAME=SCHEME, e.g. head=a16w8.")
        modules[name] = value
    modules |= dict.fromkeys(quantization.leave_out or (), FLOAT)
    chosen = kept.with_(
        target=quantization.target,
        scheme=quantization.scheme,
        io=quantization.io,
        modules=modules,
        nhwc_io=compiler.nhwc_io or None,
        io_layout=compiler.io_layout,
        partition=compiler.partition,
        system_config=compiler.system_config,
        memory_mode=compiler.memory_mode,
        config_ini=compiler.config_ini,
        vela_flags=compiler.vela_flag,
        arena=compiler.arena,
        constants=compiler.constants,
        ram=budget.ram,
        flash=budget.flash,
        latency_ms=budget.latency(),
        min_sqnr_db=budget.min_sqnr_db,
        board=quantization.board,
        verify=False if compiler.no_verify else None,
    )
    for flag, why in chosen.spec.flags_without_effect.items():
        print(f"the flag {flag} has no effect: {why}", file=sys.stderr)
    return chosen


def load_program(path: Path, method: str | None = None, dump: Path | None = None) -> Program:
    """A program from a file or a saved folder; its method ``forward``, or the first, where none is named.

    Raises:
        SpecError: it is the name of a model.
    """
    _check_no_model(str(path))
    from ethorch.program.program import load

    return load(path, method, sources=dump)


def _check_no_model(name: str) -> None:
    """SpecError for what `ethorch compile` takes, where a compiled program is wanted."""
    from ethorch.models.user_code import ZOOS, names_in

    file = name.rpartition(":")[0] or name
    if not file.endswith((".py", ".pt2")) and name.partition(":")[0] not in ZOOS:
        return
    model, hint = name, ""
    if name.endswith(".py"):
        model = f"{name}:NAME"
        hint = f" NAME is one of {', '.join(names)}." if (names := names_in(Path(name))) else ""
    raise SpecError(
        f"{name} is a model, and this takes a program: a .pte, or a saved folder. "
        f"`ethorch compile {model} -o model.pte` makes one.{hint}"
    )


def stacked(*parts: RenderableType) -> RenderableType:
    """One below the other."""
    from rich.console import Group

    return Group(*parts)
