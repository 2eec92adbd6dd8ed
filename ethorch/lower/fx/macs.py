"""The number of multiply-accumulates of a model, independent of the NPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import op_name, tensor_of

Shape = Sequence[int]


def macs_of_graph(module: GraphModule) -> int:
    """Count the multiply-accumulates of convolutions, linear layers and matrix products in one call of an exported graph.

    Both branches of a condition and one iteration of a loop are counted. A node without ``meta["val"]`` is assumed to have the
    shape of its first input (get_attr: of its attribute).
    """
    graphs = [part for part in module.modules() if isinstance(part, GraphModule)]
    return sum(_macs(part, node) for part in graphs for node in part.graph.nodes if node.op == "call_function")


def _macs(graph: GraphModule, node: Node) -> int:
    name = op_name(node.target).split(".")[1] if op_name(node.target).startswith("aten.") else ""
    count = _COUNTED.get(name)
    if count is None:
        return 0
    shapes = [_shape(graph, arg) for arg in node.args if isinstance(arg, Node)]
    transposed = name.startswith("conv_transpose") or (name == "convolution" and node.args[6] is True)
    return count(_shape(graph, node), shapes, transposed)


def _shape(graph: GraphModule, node: Node) -> Shape:
    value = node.meta.get("val")
    if value is None and node.all_input_nodes:
        return _shape(graph, node.all_input_nodes[0])
    if value is None and node.op == "get_attr":
        value = tensor_of(graph, node)
    return [int(extent) for extent in getattr(value, "shape", ())]


def _convolution(result: Shape, inputs: Sequence[Shape], transposed: bool) -> int:
    return math.prod(inputs[0] if transposed else result) * math.prod(inputs[1][1:])


def _linear(result: Shape, inputs: Sequence[Shape], _: bool) -> int:
    return math.prod(result) * inputs[1][-1]


def _product(result: Shape, inputs: Sequence[Shape], _: bool) -> int:
    return math.prod(result) * inputs[0][-1]


def _addmm(result: Shape, inputs: Sequence[Shape], _: bool) -> int:
    return math.prod(result) * inputs[1][-1]


_CONVOLUTIONS = ("convolution", *(f"conv{dims}d" for dims in (1, 2, 3)), *(f"conv_transpose{dims}d" for dims in (1, 2, 3)))
_COUNTED: dict[str, Callable[[Shape, Sequence[Shape], bool], int]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
}
