"""``prepare_pt2e`` in linear time and ``convert_pt2e`` without leaks."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torchao.utils
from torch import nn
from torch.ao.quantization.fx.utils import assert_and_get_unique_device
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from ethorch.models.open_sizes import suppress_guards
from ethorch.quantization.passes.batch_norms import fold_batch_norms
from ethorch.quantization.passes.vmapped import inline_vmapped


def prepare(graph: GraphModule, quantizer: Quantizer) -> GraphModule:
    """Run ``inline_vmapped``, ``fold_batch_norms`` and ``prepare_pt2e``, and return the prepared graph."""
    inline_vmapped(graph)  # before dead code elimination, which would remove the nodes that delimit a torch.vmap
    with suppress_guards(graph.graph.nodes):
        fold_batch_norms(graph)
    with _continue_numbering():
        prepared: GraphModule = prepare_pt2e(graph, quantizer)
    return prepared


def convert(prepared: GraphModule) -> GraphModule:
    """Run ``convert_pt2e``, then release models cached by torchao."""
    converted: GraphModule = convert_pt2e(prepared)
    for determine_device in (torchao.utils._assert_and_get_unique_device, assert_and_get_unique_device):
        determine_device.cache_clear()
    return converted


@contextmanager
def _continue_numbering() -> Iterator[None]:
    """Assign consecutive numbers to new observers instead of searching from 0 for each free number."""
    numbers: Counter[tuple[int, str]] = Counter()

    def names(prefix: str) -> Callable[[nn.Module], str]:
        prefix = prefix.replace(".", "_")

        def name(module: nn.Module) -> str:
            while hasattr(module, f"{prefix}{numbers[id(module), prefix]}"):
                numbers[id(module), prefix] += 1
            return f"{prefix}{numbers[id(module), prefix]}"

        return name

    observers = importlib.import_module(
        "torch.ao.quantization.fx.prepare"
    )  # import_module, because a function with the same name hides the module
    with patch.object(observers, "get_new_attr_name_with_prefix", names):
        yield
