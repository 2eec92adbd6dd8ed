from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import storage_order
from ethorch.lower.ops.slicing import as_strided
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.decompose import replace
from ethorch.support.errors import QuantizationError

aten = torch.ops.aten


def resolve_strides(graph_module: GraphModule, context: PassContext) -> None:
    """Apply each ``as_strided`` to a contiguous tensor, because results of permute and slice are contiguous in a program.

    Raises:
        QuantizationError: The tensor has gaps, or lacks selected elements.
    """
    found = [(node, *_trace(node)) for node in graph_module.graph.nodes if find(node.target) is as_strided]
    for node, base, first in found:
        size, stride = node.args[1], node.args[2]
        owner = base.meta["val"]
        if not all(isinstance(extent, int) for extent in (*owner.shape, *size, *stride, first)) or 0 in size:
            continue
        order = storage_order(owner)
        last = first + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
        if not owner.permute(order).is_contiguous() or first < 0 or last >= owner.numel():
            raise QuantizationError(
                "quantize.strides",
                f"{node.format_node()} reads the elements {first} to {last} of the memory of {base.name}, which has shape "
                f"{list(owner.shape)} and strides {list(owner.stride())}; expected elements of a tensor without gaps. "
                "Use slices, select, unfold or index_select.",
            )
        s = AtenBuilder(graph_module, node)
        if owner.storage_offset() or not owner.is_contiguous():
            base = s(aten.clone.default, s(aten.permute.default, base, list(order)), memory_format=torch.contiguous_format)
        replace(node, s(aten.as_strided.default, base, list(size), list(stride), first))
        graph_module.graph.erase_node(node)


def _trace(node: Node) -> tuple[Node, int]:
    # Returns the tensor of which the operand is a view, and the index of the first selected element
    base, given = node.args[0], node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
    assert isinstance(base, Node)
    first = base.meta["val"].storage_offset() if given is None else given
    while base.op == "call_function" and len(base.all_input_nodes) == 1 and _is_view(base, base.all_input_nodes[0]):
        base = base.all_input_nodes[0]
    return base, first - base.meta["val"].storage_offset()


def _is_view(node: Node, source: Node) -> bool:
    if find(node.target) is as_strided:  # in a program from a file, each tensor has its own memory
        return True
    pair = [each.meta.get("val") for each in (node, source)]
    if not all(isinstance(tensor, torch.Tensor) for tensor in pair):
        return False
    first, second = (tensor.untyped_storage()._cdata for tensor in pair)  # type: ignore[union-attr]
    return bool(first == second)
