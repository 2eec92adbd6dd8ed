"""prepare is prepare_pt2e without its search, and convert is convert_pt2e without its leaks."""

from __future__ import annotations

import gc
import importlib
import weakref

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

import ethorch
from ethorch import EthosUCompileSpec, EthosUQuantizer
from ethorch.arm.quantizer import get_symmetric_quantization_config
from ethorch.quantization.prepare import prepare


def test_prepare_names_observers_as_torch_does() -> None:
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Conv2d(3, 3, 3), nn.Sigmoid()))).eval()
    model.register_buffer("activation_post_process_2", torch.zeros(1))  # a name that is taken
    inputs = (torch.randn(1, 3, 20, 20),)
    observers = importlib.import_module("torch.ao.quantization.fx.prepare")
    before = observers.get_new_attr_name_with_prefix
    prepared = []
    for way in (prepare, prepare_pt2e):
        quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())
        graph = torch.export.export(model, inputs).module(check_guards=False)
        graph.activation_post_process_2 = model.activation_post_process_2
        prepared.append(way(graph, quantizer))
    ours, theirs = ([(node.op, str(node.target), str(node.args)) for node in one.graph.nodes] for one in prepared)
    assert ours == theirs
    assert any("activation_post_process_3" in target for _, target, _ in ours)
    assert not any(target == "activation_post_process_2" for _, target, _ in ours)
    assert observers.get_new_attr_name_with_prefix is before


def test_quantized_models_are_released() -> None:
    quantized = ethorch.quantize(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4), "ethos-u55-128")
    tensors = [weakref.ref(tensor) for tensor in quantized.state_dict(keep_vars=True).values()]
    assert tensors
    del quantized
    gc.collect()
    assert not any(tensor() is not None for tensor in tensors)
