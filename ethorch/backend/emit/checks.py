"""Set ``meta["val"]`` of nodes in a converted graph, and check tensor layouts."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from ethorch.backend.emit import reasons
from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import ASSERTIONS, DEQUANTIZE, QUANTIZE, op_name, storage_order, tensor_of
from ethorch.support.errors import Reason


def set_values(module: GraphModule) -> Reason | None:
    """Set ``meta["val"]`` of the nodes that prepare_pt2e and convert_pt2e inserted.

    Return the reason if a value cannot be derived (e.g. because of control flow), or None otherwise.
    """
    for node in module.graph.nodes:
        if is_control_flow(node):
            return reasons.control_flow(node.name)
    for node in module.graph.nodes:
        name = op_name(node.target) if node.op == "call_function" else ""
        if node.op == "get_attr":
            tensor = tensor_of(module, node)
            if tensor is None:
                return reasons.not_tensor(node.name)
            node.meta["val"] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")  # written contiguously
        elif name in QUANTIZE | DEQUANTIZE:
            source = node.args[0].meta["val"]
            dtype = node.args[-1] if name in QUANTIZE else node.kwargs.get("out_dtype") or torch.float32
            node.meta["val"] = torch.empty(source.shape, dtype=dtype, device="meta")
        elif node.op in ("placeholder", "call_function") and "val" not in node.meta and name not in ASSERTIONS:
            return reasons.unknown_value(node.name)
    return None


def check_layouts(module: GraphModule) -> Reason | None:
    """Return the reason if an input is not a contiguous static tensor, or a node requests channels-last."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            if storage_order(value) != tuple(range(value.dim())) or any(not isinstance(extent, int) for extent in value.shape):
                return reasons.layout(node.name)
        elif node.op == "placeholder":
            return reasons.not_tensor(f"input {node.name}")
        if node.kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
            return reasons.layout(f"the result of {node.name}")
    return None


def structure_of(module: GraphModule) -> tuple[str, str]:
    """Return the serialized pytree specs of inputs and outputs, or empty strings if the graph has no specs."""
    specs = (getattr(module, "_in_spec", None), getattr(module, "_out_spec", None))
    inputs, outputs = ("" if spec is None else torch.utils._pytree.treespec_dumps(spec) for spec in specs)
    return inputs, outputs
