"""Arguments and options that several subcommands share."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ethorch.cli.command import option
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from ethorch.targets.settings import Settings

#: Headings of option groups in the help.
MODEL, SETTINGS = "Model and samples", "Settings"


def _option(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    return option(*names, help=help, rich_help_panel=panel, **more)


def _print_fields(words: list[str] | None) -> list[str] | None:
    if words and "help" in words:
        from ethorch.cli.answers import Answer, give
        from ethorch.support import tables
        from ethorch.targets.assignments import describe_fields

        table = tables.table()
        for name in ("field", "default", "meaning"):
            table.add_column(name)
        for row in describe_fields():
            table.add_row(*row)
        give(Answer(None, lambda: table), False)
        raise typer.Exit
    return words


def _complete_field(incomplete: str) -> list[str]:
    from dataclasses import fields

    from ethorch.targets.settings import Settings

    return [f"{entry.name}=" for entry in fields(Settings) if entry.name.startswith(incomplete)]


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="FILE.py:NAME, FILE.pt2, torchvision:NAME, timm:NAME or hf:FOLDER.",
    ),
]
Source = Annotated[str, typer.Argument(metavar="PROGRAM|MODEL", help="A .pte, a saved folder, or a model to compile.")]
Pte = Annotated[
    Path, typer.Argument(metavar="PROGRAM", help="A .pte compiled by ethorch or by ExecuTorch's Arm backend, or a saved folder.")
]
Target = Annotated[
    str | None,
    _option("--target", "-t", help="NPU [the board's, or ethos-u55-128]; see `ethorch targets`.", panel=SETTINGS),
]
Board = Annotated[
    str | None,
    _option(
        "--board",
        "-b",
        help="Board name listed by `ethorch boards`, or a TOML file.",
        panel=SETTINGS,
        metavar="NAME|FILE",
    ),
]
Scheme = Annotated[
    str | None, _option("--scheme", "-s", help="Scheme: int8, a16w8, a8w4 or int8-per-tensor [int8].", panel=SETTINGS)
]
ModuleScheme = Annotated[
    list[str] | None,
    _option(
        "--module",
        help="Scheme of a submodule, e.g. head=a16w8; repeatable.",
        panel=SETTINGS,
        metavar="NAME=SCHEME",
    ),
]
Io = Annotated[str | None, _option("--io", help="Inputs and outputs: float32, int8, uint8 or int16 [float32].", panel=SETTINGS)]
SettingsFile = Annotated[
    Path | None,
    _option("--settings", help="Settings file: a settings.toml or *.cbuild-mlops.yml.", panel=SETTINGS, metavar="FILE"),
]
Assignments = Annotated[
    list[str] | None,
    _option(
        "--set",
        help="Any setting, e.g. arena=64K. `--set help` lists them.",
        panel=SETTINGS,
        metavar="FIELD=VALUE",
        callback=_print_fields,
        autocompletion=_complete_field,
    ),
]
Calibrate = Annotated[
    list[Path] | None,
    _option(
        "--calibrate",
        help="Calibration inputs: files or a folder; repeatable.",
        panel=MODEL,
        metavar="DIR|FILE",
    ),
]
MaxSamples = Annotated[
    int | None, _option("--max-samples", help="Maximum number of samples [all].", panel=MODEL, min=1, metavar="N")
]
Mean = Annotated[
    str | None,
    _option("--mean", help="Mean of each image channel, e.g. 0.485,0.456,0.406.", panel=MODEL, metavar="NUMBERS"),
]
Std = Annotated[
    str | None,
    _option("--std", help="Standard deviation of each image channel, e.g. 0.229,0.224,0.225.", panel=MODEL, metavar="NUMBERS"),
]
Shape = Annotated[
    list[str] | None,
    _option("--shape", help="Input shapes of one method, e.g. 1x64x32,1x64; repeatable.", panel=MODEL, metavar="SHAPES"),
]
Weights = Annotated[
    Path | None,
    _option("--weights", help="State dict with the model's weights: .safetensors or .pth.", panel=MODEL, metavar="FILE"),
]
Ram = Annotated[
    str | None, _option("--ram", help="Maximum RAM of the whole application, e.g. 256K.", panel=SETTINGS, metavar="SIZE")
]
Flash = Annotated[
    str | None, _option("--flash", help="Maximum flash of the whole application, e.g. 1M.", panel=SETTINGS, metavar="SIZE")
]
Latency = Annotated[
    str | None, _option("--latency", help="Maximum time of one inference, e.g. 5ms or 30fps.", panel=SETTINGS, metavar="TIME")
]
MinSqnr = Annotated[float | None, _option("--min-sqnr-db", help="Minimum SQNR relative to the float model, in dB.", panel=SETTINGS)]
Method = Annotated[str | None, _option("--method", help="Entry point [forward, or the first].", metavar="NAME")]
Inputs = Annotated[
    list[Path] | None,
    _option(
        "--inputs", "-i", help="Input file: .npy, .npz, .pt, .wav or an image; repeatable, once for each input.", metavar="FILE"
    ),
]


@dataclass(frozen=True)
class Samples:
    shape: Shape = None
    weights: Weights = None
    calibrate: Calibrate = None
    max_samples: MaxSamples = None
    mean: Mean = None
    std: Std = None


@dataclass(frozen=True)
class Quantization:
    target: Target = None
    board: Board = None
    scheme: Scheme = None
    module: ModuleScheme = None
    io: Io = None


@dataclass(frozen=True)
class Budget:
    ram: Ram = None
    flash: Flash = None
    latency: Latency = None
    min_sqnr_db: MinSqnr = None


@dataclass(frozen=True)
class Choices:
    """The settings file, and assignments to single settings."""

    settings: SettingsFile = None
    set: Assignments = None


_SAMPLES, _QUANTIZATION, _BUDGET, _CHOICES = Samples(), Quantization(), Budget(), Choices()


def settings_of(
    choices: Choices = _CHOICES,
    *,
    samples: Samples = _SAMPLES,
    quantization: Quantization = _QUANTIZATION,
    budget: Budget = _BUDGET,
) -> Settings:
    """Return the Settings that the options select.

    Flags override ``--set``, which overrides ``--settings``, which overrides the defaults. Vela flags without effect are listed
    on stderr.

    Raises:
        SpecError: A name, size or file is invalid.
    """
    from ethorch.targets.assignments import parse_latency, with_assignments

    chosen = _read_settings(choices.settings).with_(target=quantization.target, board=quantization.board)
    chosen = with_assignments(chosen, choices.set or ())
    modules = dict(chosen.modules)
    for entry in quantization.module or ():
        name, equals, value = entry.partition("=")
        if not equals:
            raise SpecError(f"--module: expected NAME=SCHEME, e.g. head=a16w8; got {entry!r}.")
        modules[name] = value
    chosen = chosen.with_(
        target=quantization.target,
        board=quantization.board,
        scheme=quantization.scheme,
        modules=modules,
        io=quantization.io,
        shapes=samples.shape,
        samples={**chosen.samples, **_samples_table(samples)},
        ram=budget.ram,
        flash=budget.flash,
        latency_ms=None if budget.latency is None else parse_latency(budget.latency),
        min_sqnr_db=budget.min_sqnr_db,
    )
    for flag, why in chosen.spec.flags_without_effect.items():
        print(f"the Vela flag {flag} has no effect: {why}", file=sys.stderr)
    return chosen


def _read_settings(file: Path | None) -> Settings:
    from ethorch.targets.settings import Settings

    if file is None:
        return Settings()
    if file.suffix in (".yml", ".yaml"):
        from ethorch.deploy.firmware.mlops import convert_to_settings, read_mlops

        return Settings().with_(**convert_to_settings(read_mlops(file)))
    return Settings.read(file)


def _samples_table(samples: Samples) -> dict[str, Any]:
    table: dict[str, Any] = {
        "calibrate": [str(path) for path in samples.calibrate or ()] or None,
        "max_samples": samples.max_samples,
        "mean": numbers_of("--mean", samples.mean),
        "std": numbers_of("--std", samples.std),
        "weights": None if samples.weights is None else str(samples.weights),
    }
    return {name: value for name, value in table.items() if value is not None}


def numbers_of(flag: str, text: str | None) -> list[float] | None:
    """Parse comma-separated numbers. Return None if ``text`` is None."""
    try:
        return None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise SpecError(f"{flag}: expected comma-separated numbers, e.g. 0.485,0.456,0.406; got {text!r}.") from None
