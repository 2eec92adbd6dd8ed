"""Compute matrix products of two activations as convolutions on U55 and U65.

The second operand must have a zero point of -1 (see ``Tuning.written_weights``).
"""

from __future__ import annotations

from dataclasses import replace

from ethorch.npu.ir import Op, Stream
from ethorch.npu.passes.attention.choice import Chooser
from ethorch.npu.passes.attention.kernels import Constants, Emitter
from ethorch.npu.passes.attention.match import Product, find_products
from ethorch.npu.passes.attention.replacement import replace_product
from ethorch.npu.passes.attention.tables import Slots, find_free_slots
from ethorch.npu.passes.attention.weights import ZERO_POINT
from ethorch.npu.passes.context import Context
from ethorch.npu.registers import U85

__all__ = ["run"]


def run(stream: Stream, context: Context) -> Stream | None:
    """Replace the matrix products that are faster as convolutions. Return None if no product was replaced."""
    if stream.npu.family == U85:
        return None
    products = [product for product in find_products(stream.ops) if product.b.zero_point == ZERO_POINT]
    chooser = Chooser(stream, context)
    emitter = Emitter(stream.npu, stream.new_key())
    constants, slots = Constants(stream.image.constants), Slots(stream.npu)
    ops: list[Op] = []
    end = 0
    for product in products:
        form = chooser.choose(product)
        if form is None:
            continue
        before = stream.ops[end : product.first]
        slots.observe(before)
        free = find_free_slots(stream.ops, product.first, product.last)
        changed = replace_product(emitter, constants, slots, product, form, free)
        if changed is None:
            continue
        ops += [*before, *_list_transfers(stream, product), *changed]
        end = product.last + 1
    if not end:
        return None
    return replace(stream, ops=[*ops, *stream.ops[end:]], image=replace(stream.image, constants=constants.data))


def _list_transfers(stream: Stream, product: Product) -> list[Op]:
    return [op for op in stream.ops[product.first : product.last] if op.is_dma]
