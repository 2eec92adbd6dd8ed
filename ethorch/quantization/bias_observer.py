from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantizer import QuantizationSpec

from ethorch.lower.fx.node import attribute, tensor_of
from ethorch.quantization.activation_observer import ActivationObserver, Follower
from ethorch.quantization.weight_observer import PerChannelWeightObserver


class BiasObserver(ObserverBase):  # type: ignore[misc]  # torchao has no annotations
    """An observer that rounds a bias to multiples of input scale x weight scale during conversion.

    The bias remains a float constant that the NPU's int32 bias represents exactly. Without rounding, the outputs of the
    fake-quantized model would differ from the NPU's.
    """

    def __init__(self, dtype: torch.dtype = torch.int32, **_: Any):
        super().__init__(dtype=dtype, is_dynamic=False)
        self.qscheme, self.ch_axis = torch.per_channel_symmetric, 0
        self.quant_min, self.quant_max = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        self._scales: list[Any] = []  # observers of the weight and the input

    def link(self, weight: PerChannelWeightObserver, source: ActivationObserver | Follower) -> None:
        """Set the observers whose scales determine the accumulator's scale."""
        self._scales = [weight, source]

    def forward(self, x: Tensor) -> Tensor:
        return x

    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """Return (scales, zero points). Each scale is input scale x weight scale, and each zero point is 0."""
        weight, source = self._scales
        scale = weight.calculate_qparams()[0].double() * float(source.calculate_qparams()[0])
        return scale, torch.zeros_like(scale, dtype=torch.int64)

    def convert(self, model: GraphModule, node: Node) -> None:
        """Replace ``node``, which calls this observer, with the bias. A constant bias is rounded.

        ``convert_pt2e`` calls this method.
        """
        (source,) = node.all_input_nodes
        bias = tensor_of(model, source)
        if bias is None or not self._scales:
            node.replace_all_uses_with(source)
        else:
            scale = self.calculate_qparams()[0].to(bias.device)
            codes = torch.clamp(torch.round(bias.detach().double() / scale), self.quant_min, self.quant_max)
            with model.graph.inserting_before(node):
                rounded = model.graph.get_attr(_register(model, f"{source.name}_rounded", (codes * scale).to(bias.dtype)))
            rounded.meta = dict(source.meta)
            node.replace_all_uses_with(rounded)
        model.graph.erase_node(node)
        if not source.users:
            model.graph.erase_node(source)


#: Spec of a bias whose input and weight are quantized to int8.
BIAS = QuantizationSpec(dtype=torch.int32, qscheme=torch.per_channel_symmetric, ch_axis=0, observer_or_fake_quant_ctr=BiasObserver)


def _register(model: GraphModule, prefix: str, value: Tensor) -> str:
    name, number = prefix, 0
    while (existing := attribute(model, name)) is not None:
        if isinstance(existing, Tensor) and torch.equal(existing, value):
            return name
        number += 1
        name = f"{prefix}_{number}"
    model.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    return name
