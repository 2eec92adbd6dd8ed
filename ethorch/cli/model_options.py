"""Weights and inputs that command-line options pass to models and programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ethorch.models.samples import Keywords, read_samples
from ethorch.program.program import Program
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.wording import count_noun

if TYPE_CHECKING:
    from torch import nn

    from ethorch.models.load import UserMethods, UserModel

_EXPECTED_WEIGHTS = "expected a state dict (tensors by name) written by torch.save or safetensors"


def load_with_weights(reference: str, weights: Path | None = None) -> UserModel | UserMethods:
    """Load the named model or methods. If ``weights`` is set, load this file's state dict.

    Raises:
        SpecError: ``weights`` is set, but ``reference`` names several methods.
        EthorchError: The weights do not match the model.
    """
    from ethorch.models.load import UserMethods, load_model

    user = load_model(reference)
    if weights is not None:
        if isinstance(user, UserMethods):
            raise SpecError(f"--weights requires a model with one method, but {reference} has several. Load the weights in Python.")
        _load_weights(user.module, weights)
    return user


def _load_weights(module: nn.Module, path: Path) -> None:
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, weights_only=True, map_location="cpu")
    except ModuleNotFoundError:
        raise EthorchError(f"reading {path} requires the package safetensors. Run pip install safetensors.") from None
    except OSError as error:
        raise EthorchError(f"cannot read {path}: {error.strerror or error}.") from None
    except Exception as error:  # torch.load raises many exception types for invalid files
        raise EthorchError(f"{path}: {_EXPECTED_WEIGHTS}, got a file that raises {type(error).__name__}.") from error
    if not isinstance(state, Mapping):
        raise EthorchError(f"{path}: {_EXPECTED_WEIGHTS}, got {type(state).__name__}.")
    for key in ("state_dict", "model"):  # wrappers used by training scripts
        if isinstance(state.get(key), Mapping):
            state = state[key]
    parameters = module.state_dict()
    differences = [
        _describe_names("missing from the file", [key for key in parameters if key not in state]),
        _describe_names("not in the model", [key for key in state if key not in parameters]),
        _describe_names(
            "with a different shape",
            [
                f"{key}: expected {_shape(parameters[key])}, got {_shape(state[key])}"
                for key in parameters
                if key in state and _shape(parameters[key]) != _shape(state[key])
            ],
        ),
    ]
    if any(differences):
        raise EthorchError(f"the weights in {path} do not match the model: {'; '.join(filter(None, differences))}.")
    module.load_state_dict(state)


def _shape(parameter: Any) -> str:
    return str(list(parameter.shape)) if hasattr(parameter, "shape") else type(parameter).__name__


def _describe_names(problem: str, names: Sequence[str], most: int = 3) -> str:
    if not names:
        return ""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return f"{count_noun(len(names), 'tensor')} {problem} ({', '.join(names[:most])}{more})"


def inputs_from(
    paths: Sequence[Path],
    example_inputs: tuple[Any, ...],
    open_dims: Sequence[Collection[int]] | None = None,
    keywords: Keywords | None = None,
) -> tuple[Any, ...]:
    """Read the inputs of one inference from one file, or from one per input.

    Args:
        open_dims: For each example input, the axes whose sizes may differ from the example's. Default: no axes.

    Raises:
        EthorchError: The inputs do not match the example inputs.
    """
    if len(paths) != 1 and len(paths) != len(example_inputs):
        several = f", or {len(example_inputs)} files (one for each input)" if len(example_inputs) > 1 else ""
        raise EthorchError(f"--inputs: expected one file{several}; got {len(paths)}.")
    if len(paths) == 1:
        return _first(paths[0], example_inputs, open_dims, keywords)
    dims = [None] * len(paths) if open_dims is None else [[axes] for axes in open_dims]
    return tuple(
        _first(path, (example,), open_axes)[0] for path, example, open_axes in zip(paths, example_inputs, dims, strict=True)
    )


def _first(
    path: Path,
    example_inputs: tuple[Any, ...],
    open_dims: Sequence[Collection[int]] | None,
    keywords: Keywords | None = None,
) -> tuple[Any, ...]:
    samples = list(read_samples(str(path), example_inputs, keywords=keywords or Keywords(), open_dims=open_dims, limit=2))
    if len(samples) > 1:
        raise EthorchError(f"{path}: expected the inputs of one inference, got several samples.")
    return samples[0].inputs


def inputs_for(program: Program, paths: Sequence[Path]) -> tuple[Any, ...]:
    """Read the inputs of one inference, in the program's input dtypes or as floats to quantize.

    If the program selects a method by input shapes, the shapes of any method are accepted.

    Raises:
        EthorchError: The inputs do not match the program.
    """
    from ethorch.program.program import record_of

    record = record_of(program)
    values = [record.description.values[index] for index in record.description.inputs]
    exact = tuple(
        np.empty(value.shape, ml_dtypes.bfloat16 if value.dtype == "bfloat16" else value.dtype)
        if value.kind == "tensor"
        else value.scalar
        for value in values
    )
    floats = tuple(
        x.astype(np.float32) if isinstance(x, np.ndarray) and info.codes is not None else x
        for x, info in zip(exact, program.inputs, strict=True)
    )
    try:
        return inputs_from(paths, exact, record.open_dims)
    except EthorchError:
        if all(info.codes is None for info in program.inputs):
            raise
        return record.as_taken(inputs_from(paths, floats, record.open_dims))
