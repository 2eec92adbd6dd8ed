"""A user's files: models to load, inputs to read or to make up, outputs to save."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ethorch.errors import EthorchError
from ethorch.formats.files import write_whole
from ethorch.formats.pte import Method

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class UserModel:
    """A model and inputs for it.

    Attributes:
        module: in eval mode; quantized already where ``quantized`` says so.
        example_inputs: fix the shapes.
        calibration: inputs whose ranges become the model's; empty means the example inputs.
        quantized: it holds quantize and dequantize operators, as from ``convert_pt2e``.
    """

    module: nn.Module
    example_inputs: Inputs
    calibration: Sequence[Inputs] = ()
    quantized: bool = False


def load_model(reference: str) -> UserModel:
    """The model that ``FILE.py:factory`` or ``FILE.pt2`` names.

    A factory takes no arguments and returns ``(module, example_inputs)`` or ``(module, example_inputs, calibration)``,
    the last a list of input tuples. A .pt2 file is one that ``torch.export.save`` wrote with its example inputs.

    Raises:
        EthorchError: there is no such file or factory, or it returned something else.
    """
    path, colon, factory = reference.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_factory(Path(path), factory)
    if reference.endswith(".pt2"):
        return _from_exported(Path(reference))
    raise EthorchError(f"{reference!r} is neither FILE.py:factory nor FILE.pt2.")


def _from_factory(path: Path, name: str) -> UserModel:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise EthorchError(f"there is no Python file {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickles look their module up there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    factory = getattr(module, name, None)
    if not callable(factory):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise EthorchError(f"{path} has no function {name!r}; it has: {', '.join(known) or 'none'}.")
    made = factory()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise EthorchError(
            f"{path}:{name}() returned {type(made).__name__}; it has to return (module, example_inputs) or "
            "(module, example_inputs, calibration)."
        )
    inputs = made[1] if isinstance(made[1], tuple) else (made[1],)
    calibration = [x if isinstance(x, tuple) else (x,) for x in (made[2] if len(made) == 3 else ())]
    return UserModel(made[0].eval(), inputs, calibration, is_quantized(made[0]))


def _from_exported(path: Path) -> UserModel:
    if not path.is_file():
        raise EthorchError(f"there is no file {path}.")
    try:
        program = torch.export.load(path)
    except Exception as error:  # zip, pickle and schema errors of many types
        raise EthorchError(f"{path} is not a program that torch.export.save wrote: {error}") from error
    if not program.example_inputs:
        raise EthorchError(f"{path} holds no example inputs: export it with them.")
    module = program.module(check_guards=False)
    return UserModel(module, tuple(program.example_inputs[0]), quantized=is_quantized(module))


def is_quantized(module: nn.Module) -> bool:
    """Does the graph hold quantize operators already?"""
    graph = getattr(module, "graph", None)
    return graph is not None and any("quantized_decomposed" in str(node.target) for node in graph.nodes)


def load_inputs(paths: Iterable[str]) -> Inputs:
    """Tensors from .npy files, one per input, or from one .npz or .pt file that holds all of them in order."""
    tensors: list[torch.Tensor] = []
    for path in paths:
        try:
            if path.endswith(".pt"):
                loaded = torch.load(path, weights_only=True)
                tensors += [loaded] if isinstance(loaded, torch.Tensor) else list(loaded)
            else:
                array = np.load(path, allow_pickle=False)
                tensors += [torch.from_numpy(a) for a in ([array] if isinstance(array, np.ndarray) else array.values())]
        except Exception as error:  # whatever numpy, zip and torch raise for a file that is something else
            raise EthorchError(f"cannot read tensors from {path}: {error}") from error
    return tuple(tensors)


def random_inputs(method: Method, seed: int = 0) -> Inputs:
    """Inputs of the types and shapes that a method takes: floats from a normal distribution, integers over their range."""
    generator = torch.Generator().manual_seed(seed)
    inputs: list[Any] = []
    for index in method.inputs:
        value = method.values[index]
        if value.kind != "tensor":
            inputs.append(0)
            continue
        dtype = getattr(torch, value.dtype)
        if dtype.is_floating_point:
            inputs.append(torch.randn(value.shape, generator=generator).to(dtype))
        elif dtype == torch.bool or dtype.itemsize > 2:  # indices and flags: only small values are safe to guess
            inputs.append(torch.randint(0, 2, value.shape, generator=generator).to(dtype))
        else:
            info = torch.iinfo(dtype)
            inputs.append(torch.randint(info.min, info.max + 1, value.shape, generator=generator).to(dtype))
    return tuple(inputs)


def save_outputs(path: str, outputs: Sequence[Any]) -> None:
    """Write the tensors to an .npz file as output_0, output_1, ..."""
    content = io.BytesIO()
    np.savez(content, **{f"output_{number}": x.numpy() for number, x in enumerate(outputs)})
    write_whole(path, content.getvalue())


def describe(output: Any) -> dict[str, Any]:
    """An output as plain data: dtype, shape, range, and its first values as text."""
    if not isinstance(output, torch.Tensor):
        return {"dtype": type(output).__name__, "shape": [], "text": str(output)}
    values = output.flatten()
    shown = ", ".join(f"{float(x):.4g}" for x in values[:8])
    found: dict[str, Any] = {"dtype": str(output.dtype).removeprefix("torch."), "shape": list(output.shape)}
    if values.numel():
        found |= {"minimum": float(values.min()), "maximum": float(values.max())}
    return {**found, "text": f"{shown}, ..." if values.numel() > 8 else shown}
