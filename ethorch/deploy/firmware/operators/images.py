"""Image resizing, and float32 matrix products.

Sums are computed in index order. ExecuTorch's optimized host kernels add in other orders, so the last digits can differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import Writer, braces, float_text, refuse_dtype


def _resize(w: Writer, function: str, x: View, factors: Sequence[float] | None, align_corners: bool, out: View) -> None:
    sizes = [(x.shape[axis], out.shape[axis]) for axis in (2, 3)]
    scales = []
    for number, (size, out_size) in enumerate(sizes):
        if align_corners:
            scales.append((size - 1) / (out_size - 1) if out_size > 1 else 0.0)
        else:
            scales.append(1.0 / factors[number] if factors else size / out_size)
    fields = [
        braces([str(size) for size, _ in sizes]),
        braces([str(out_size) for _, out_size in sizes]),
        *(braces([str(view.strides[axis] * view.item_bytes) for axis in (2, 3)]) for view in (x, out)),
        braces([float_text(scale) for scale in scales]),
        str(int(align_corners)),
    ]
    parameters = w.constant("etk_resize {}", braces(fields))
    planes = [view.select(3, 0).select(2, 0) for view in (out, x)]
    if out.numel:
        w.map(function, "resize.c", planes, f"&{parameters}")


@kernel("aten::upsample_nearest2d.vec_out")
def upsample_nearest2d(w: Writer, x: View, size: Sequence[int] | None, factors: Sequence[float] | None, out: View) -> None:
    _resize(w, f"etk_nearest_{x.item_bytes}", x, factors, False, out)


@kernel("aten::upsample_bilinear2d.vec_out")
def upsample_bilinear2d(
    w: Writer, x: View, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None, out: View
) -> None:
    if x.dtype != "float32":
        raise refuse_dtype(x.dtype, "float32")
    _resize(w, "etk_bilinear_f32", x, factors, align_corners, out)


def _product(w: Writer, x: View, y: View, out: View) -> None:
    for view in (x, y, out):
        if view.dtype != "float32":
            raise refuse_dtype(view.dtype, "float32")
    if not out.numel:
        return
    if not x.shape[-1]:
        w.fill(out, 0)
        return
    parameters = w.integers([x.shape[-1], x.strides[-1] * 4, y.strides[-2] * 4])
    rows = x.select(-1, 0).insert_axis(x.rank - 1)
    columns = y.select(-2, 0).insert_axis(y.rank - 2)
    w.map("etk_dot_f32", "product.c", [out, rows, columns], parameters)


@kernel("aten::mm.out", "aten::bmm.out")
def mm(w: Writer, x: View, y: View, out: View) -> None:
    _product(w, x, y, out)


@kernel("aten::linear.out")
def linear(w: Writer, x: View, weight: View, bias: View | None, out: View) -> None:
    wide = weight.swap(0, 1)
    while wide.rank < x.rank:
        wide = wide.insert_axis(0)
    _product(w, x, wide, out)
    if bias is not None:
        w.map("etk_add_f32", "elementwise.c", [out, out, bias])


@kernel("aten::addmm.out")
def addmm(w: Writer, bias: View, x: View, y: View, beta: float, alpha: float, out: View) -> None:
    _product(w, x, y, out)
    if alpha != 1:
        w.map("etk_mul_f32", "elementwise.c", [out, out, View(w.numbers([alpha], "float32"), "float32", (), ())])
    if beta == 1:
        w.map("etk_add_f32", "elementwise.c", [out, out, bias])
    elif beta:
        w.map("etk_add_scaled_f32", "elementwise.c", [out, out, bias], w.numbers([beta], "float32"))
