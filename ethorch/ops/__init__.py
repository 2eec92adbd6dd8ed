"""Importing this registers every operator family, so that OPS is complete."""

from ethorch.ops import (  # noqa: F401
    accumulate,
    activation,
    attention,
    cast,
    compare,
    conv,
    copies,
    elementwise,
    index,
    integer,
    linear,
    matmul,
    normalize,
    pointwise,
    pool,
    pool_more,
    recurrent,
    resize,
    rounding,
    shape,
    softmax,
    statistics,
)
from ethorch.ops.spec import OPS, OpSpec, Sample, op

__all__ = ["OPS", "OpSpec", "Sample", "op"]
