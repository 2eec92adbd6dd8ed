"""What the command line says of a model beside its name: example inputs by shape, weights from a file, inputs from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ethorch.data.samples import samples
from ethorch.errors import EthorchError, SpecError
from ethorch.model_files import UserMethods, UserModel, load_model
from ethorch.model_zoos import made_up
from ethorch.program.program import Program
from ethorch.words import counted


def loaded(reference: str, shapes: Sequence[str] | None = None, weights: Path | None = None) -> UserModel | UserMethods:
    """The model of that name, or the models of several methods.

    Args:
        reference: see ``ethorch.model_files.load_model``.
        shapes: of example inputs of the same dtypes, instead of the model's own: ``1x3x96x96``.
        weights: a file with its state dict.

    Raises:
        SpecError: a shape is none, or there is another number of them than of inputs.
        EthorchError: the weights do not fit.
    """
    user = load_model(reference)
    if isinstance(user, UserMethods):
        if weights is not None or shapes:
            raise SpecError(f"{reference} is of several methods: --weights and --shape are of one model.")
        return user
    if weights is not None:
        _load_weights(user.module, weights)
    if not shapes:
        return user
    if len(shapes) != len(user.example_inputs):
        raise SpecError(
            f"--shape is given {counted(len(shapes), 'time')}; the model has {counted(len(user.example_inputs), 'input')}."
        )
    inputs = [_of_shape(x, text) for x, text in zip(user.example_inputs, shapes, strict=True)]
    return replace(user, example_inputs=tuple(inputs), calibration=())


def _of_shape(like: Any, text: str) -> torch.Tensor:
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise SpecError(f"--shape is {text!r}; it has to be extents with x between them, such as 1x3x96x96.")
    if not isinstance(like, torch.Tensor):
        raise SpecError("--shape: the model's example input is no tensor.")
    return made_up([int(part) for part in parts], like.dtype)


def _load_weights(module: torch.nn.Module, path: Path) -> None:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, weights_only=True, map_location="cpu")
    except ModuleNotFoundError:
        raise EthorchError(f"{path} cannot be read without the package safetensors: pip install safetensors.") from None
    except Exception as error:  # whatever torch raises for a file that is something else
        raise EthorchError(f"{path} holds no state dict of tensors: {str(error).splitlines()[0]}") from error
    if not isinstance(state, Mapping):
        raise EthorchError(f"{path} holds {type(state).__name__}; a state dict is wanted: names and tensors.")
    for key in ("state_dict", "model"):  # as training scripts wrap it
        if isinstance(state.get(key), Mapping):
            state = state[key]
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise EthorchError(f"the weights in {path} are not the model's: {' '.join(str(error).split())[:300]}") from error


def inputs_from(paths: Sequence[Path], example_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of one inference from files: one that holds all, or one for each.

    Raises:
        EthorchError: they do not fit the example inputs.
    """
    if len(paths) != 1 and len(paths) != len(example_inputs):
        raise EthorchError(f"{counted(len(paths), 'file')} of inputs given; the model has {counted(len(example_inputs), 'input')}.")
    if len(paths) == 1:
        return _first(paths[0], example_inputs)
    return tuple(_first(path, (example,))[0] for path, example in zip(paths, example_inputs, strict=True))


def _first(path: Path, example_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    found = list(samples(str(path), example_inputs, limit=2))
    if len(found) > 1:
        raise EthorchError(f"{path} holds several samples; give the inputs of one inference.")
    return found[0].inputs


def inputs_for(program: Program, paths: Sequence[Path]) -> tuple[Any, ...]:
    """The inputs of one inference of a program from files: of its own types, or floats where it takes codes of them.

    Raises:
        EthorchError: they do not fit.
    """
    exact = tuple(torch.empty(info.shape, dtype=getattr(torch, info.dtype)) for info in program.inputs)
    floats = tuple(x if info.codes is None else x.float() for x, info in zip(exact, program.inputs, strict=True))
    try:
        return inputs_from(paths, exact)
    except EthorchError:
        if all(info.codes is None for info in program.inputs):
            raise
        return program.as_taken(inputs_from(paths, floats))
