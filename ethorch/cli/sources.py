"""Read MODEL and PROGRAM arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ethorch.cli import options
from ethorch.models.user_code import ZOOS, find, names_in
from ethorch.support.errors import SpecError

if TYPE_CHECKING:
    from ethorch.models.load import UserMethods, UserModel
    from ethorch.program.program import Program
    from ethorch.targets.settings import Settings


def is_program(source: str) -> bool:
    """Return True if ``source`` is a ``.pte`` or a saved folder, and False if it is a model."""
    return source.endswith((".pte", ".bpte")) or (Path(source).is_dir() and not source.startswith(tuple(f"{zoo}:" for zoo in ZOOS)))


def read_program(source: str | Path, method: str | None = None) -> Program:
    """Load a program from a file or a saved folder.

    Raises:
        SpecError: ``source`` is the name of a model.
    """
    _check_no_model(str(source))
    from ethorch.program.program import load

    return load(source, method)


def read_model(name: str, settings: Settings) -> UserModel | UserMethods:
    """Return the named model with the weights, shapes and calibration samples of the settings.

    Raises:
        SpecError: The settings have calibration samples, but the model has several methods.
        EthorchError: The weights or samples do not match the model.
    """
    find(name)  # report errors before the slow imports below
    from ethorch.cli.model_options import load_with_weights
    from ethorch.models.load import UserMethods
    from ethorch.program.compile import user_model

    weights = settings.samples.get("weights")
    user = load_with_weights(name, None if weights is None else Path(weights))
    calibration = read_samples(settings, settings.samples.get("calibrate"))
    if isinstance(user, UserMethods):
        if calibration is not None:
            raise SpecError(
                f"--calibrate requires a model with one method, but {name} has several. Define the calibration calls in {name}."
            )
        return user
    return user_model(user, calibration=calibration, shapes=settings.shapes)


def read_one_model(name: str, settings: Settings) -> UserModel:
    """Return the named model, for a command that accepts only one method.

    Raises:
        SpecError: The model has several methods, or the settings have several shapes.
    """
    if len(settings.shapes) > 1:
        raise SpecError(
            f"--shape: expected one value, got {len(settings.shapes)}. Use one --shape with commas between the input shapes."
        )
    from ethorch.models.load import UserMethods

    user = read_model(name, settings)
    if isinstance(user, UserMethods):
        raise SpecError(f"expected a model with one method; {name} has {', '.join(user.models)}.")
    return user


def read_samples(settings: Settings, paths: Any) -> Any:
    """Read samples from files, with the settings' normalization and maximum number, or return None if ``paths`` is empty.

    Raises:
        SpecError: Only one of ``mean`` and ``std`` is set.
    """
    mean, std = settings.samples.get("mean"), settings.samples.get("std")
    if (mean is None) != (std is None):
        raise SpecError("expected both --mean and --std, got only one. Pass both options or neither.")
    if not paths:
        return None
    from ethorch.models.samples import samples
    from ethorch.models.transforms import Normalize

    files = [str(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    transform = None if mean is None else Normalize(mean, std or ())
    return samples(files, transform=transform, limit=settings.samples.get("max_samples"))


def compile_model(name: str, settings: Settings) -> Program:
    user = read_model(name, settings)
    from ethorch.program.compile import compile

    return compile(user, settings=settings)


def program_of(source: str, choices: options.Choices, method: str | None = None) -> Program:
    """Load a program from a file, or compile a model with ``--settings`` and ``--set``.

    Raises:
        SpecError: The source is a program, and ``--settings`` or ``--set`` was passed.
    """
    if not is_program(source):
        program = compile_model(source, options.settings_of(choices))
        return program if method is None else program[method]
    if choices.set or choices.settings:
        flag = "--set" if choices.set else "--settings"
        raise SpecError(f"{flag} requires a model, but {source} is already compiled. Pass the model, or remove {flag}.")
    return read_program(source, method)


def _check_no_model(name: str) -> None:
    file = name.rpartition(":")[0] or name
    if not file.endswith((".py", ".pt2")) and name.partition(":")[0] not in ZOOS:
        return
    model, hint = name, ""
    if name.endswith(".py"):
        model = f"{name}:NAME"
        hint = f" NAME is one of {', '.join(names)}." if (names := names_in(Path(name))) else ""
    raise SpecError(
        f"expected a program (a .pte or a saved folder), got the model {name}. "
        f"Use `ethorch compile {model} -o model.pte` to compile the model.{hint}"
    )
