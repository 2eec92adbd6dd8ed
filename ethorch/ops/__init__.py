"""Importing this registers every operator family, so that OPS is complete."""

from ethorch.ops import (
    accumulate,
    activations,
    arithmetic,
    attention,
    bitwise,
    cast,
    clamp,
    compare,
    conv,
    cumulative,
    division,
    extremes,
    gather,
    grid_sample,
    joining,
    linear,
    logical,
    matmul,
    normalize,
    pad,
    patches,
    pool2d,
    pool_composites,
    recurrent,
    resample,
    resize,
    rounding,
    scatter,
    selection,
    shape,
    slicing,
    softmax,
    sorting,
    statistics,
    sums,
    unary,
)
from ethorch.ops.samples import Sample
from ethorch.ops.spec import OPS, OpSpec, op

__all__ = ["OPS", "OpSpec", "Sample", "op"]
