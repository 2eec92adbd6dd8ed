"""Create random inputs for a program, and save its outputs as NumPy arrays."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ethorch.formats.files import write_whole
from ethorch.formats.pte_types import Method


def random_inputs(method: Method, seed: int = 0) -> tuple[Any, ...]:
    """Return random inputs for a method: Gaussian floats and uniform integers. Bools and integers above 16 bits are 0 or 1."""
    generator = np.random.default_rng(seed)
    inputs: list[Any] = []
    for index in method.inputs:
        value = method.values[index]
        if value.kind != "tensor":
            inputs.append(value.scalar)
        elif value.dtype.startswith(("float", "bfloat", "complex")):
            dtype = ml_dtypes.bfloat16 if value.dtype == "bfloat16" else value.dtype
            inputs.append(generator.standard_normal(value.shape).astype(dtype))
        elif (
            value.dtype == "bool" or np.dtype(value.dtype).itemsize > 2
        ):  # indices and flags, for which only 0 and 1 are always valid
            inputs.append(generator.integers(0, 2, value.shape).astype(value.dtype))
        else:
            limits = np.iinfo(value.dtype)
            inputs.append(generator.integers(limits.min, limits.max + 1, value.shape).astype(value.dtype))
    return tuple(inputs)


def save_outputs(path: str, outputs: Sequence[Any]) -> None:
    """Write arrays to an .npz file as output_0, output_1, ..., with bfloat16 converted to float32."""
    content = io.BytesIO()
    arrays = [x.astype(np.float32) if getattr(x, "dtype", None) == ml_dtypes.bfloat16 else x for x in outputs]
    np.savez(content, **{f"output_{number}": x for number, x in enumerate(arrays)})
    write_whole(path, content.getvalue())


def describe(output: Any) -> dict[str, Any]:
    """Describe an array as a JSON-compatible dict of dtype, shape, text (up to 8 values), minimum and maximum (for real values)."""
    if not isinstance(output, np.ndarray):
        return {"dtype": type(output).__name__, "shape": [], "text": str(output)}
    values = output.reshape(-1)
    is_complex = np.iscomplexobj(values)
    text = ", ".join(f"{complex(x) if is_complex else float(x):.4g}" for x in values[:8])
    description: dict[str, Any] = {"dtype": output.dtype.name, "shape": list(output.shape)}
    if values.size and not is_complex:
        description |= {"minimum": float(values.min()), "maximum": float(values.max())}
    return {**description, "text": f"{text}, ..." if values.size > 8 else text}
