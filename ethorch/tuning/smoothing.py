"""Move outliers of activations into weights, which changes neither outputs nor cost (SmoothQuant, Xiao et al. 2022)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx.export import export_module
from ethorch.models.load import in_eval_mode
from ethorch.quantization.shared_buffers import preserve_buffers
from ethorch.support.errors import QuantizationError, SpecError
from ethorch.support.exclusive import exclusive
from ethorch.tuning.node_runner import NodeRunner
from ethorch.tuning.smoothing_sites import Key, Site, find_sites

logger = logging.getLogger(__name__)

#: Bits of activations and of weights for each scheme.
_BITS = {"int8": (8, 8), "a16w8": (16, 8), "a8w4": (8, 4)}
#: Candidate exponents of the activation ranges. 0 leaves the model unchanged.
_STRENGTHS = (0.0, 0.25, 0.35, 0.5, 0.65, 0.75, 0.9)
_ROWS = 512  # maximum number of stored rows for each activation
_LEAST, _MOST = 1e-3, 1e3  # limits of a channel's factor
_WORTH = 0.99  # maximum error, relative to the error of the unchanged layers

#: Calls in order: inputs, or (model name, inputs) pairs if there are several models.
Samples = Sequence[Any]


@dataclass(frozen=True)
class Smoothed:
    """An activation whose smoothing factors were folded into parameters.

    Attributes:
        source: Name of the first parameter divided by the factors.
        readers: Names of weights multiplied by the factors.
        strength: Exponent applied to the activation ranges to compute the factors.
        gain_db: SQNR improvement, in dB on the samples, of the quantized layers that read the activation.
    """

    source: str
    readers: tuple[str, ...]
    strength: float
    gain_db: float


@exclusive()
def smooth(model: nn.Module | Mapping[str, nn.Module], samples: Samples, *, scheme: str = "int8") -> tuple[Smoothed, ...]:
    """Reduce outlier channels of activations by folding factors into parameters.

    Each channel is divided by a factor in the layer that computes the activation, and multiplied by the same factor in the layers
    that read it. Factors are computed from activation and weight ranges, with the exponent that minimizes the reading layers'
    output error (AWQ, Lin et al. 2023).

    Parameters are changed in place, and outputs are preserved up to float rounding. Candidates are activations that only linear
    layers read: outputs of normalizations with weights, and of linear layers such as SwiGLU's ``up``. No operator between
    the computing and reading layers may mix channels. A candidate is smoothed only if the reading layers' quantized outputs
    improve. Parameters that other operators read, such as tied embeddings, are not changed.

    ::

        ethorch.tuning.smooth(model, samples)
        program = ethorch.compile(model, samples[0], calibration=samples)

    Args:
        model: Module in evaluation mode, or a mapping from names to models that share modules.
        samples: Input tuples in call order. For several models, (name, inputs) pairs, or sessions, which are lists of such pairs.
        scheme: Scheme to optimize: ``int8``, ``a16w8`` or ``a8w4``.

    Returns:
        The smoothed activations, sorted by gain.

    Raises:
        QuantizationError: ``samples`` is empty.
        SpecError: The scheme is unknown.
        UserCodeError: A model cannot be exported.
    """
    if scheme not in _BITS:
        raise SpecError(f"smooth: expected scheme to be one of {', '.join(map(repr, _BITS))}, got {scheme!r}.")
    models = {"": model} if isinstance(model, nn.Module) else dict(model)
    calls = _calls(samples, models)
    if not calls or not calls[0]:
        raise QuantizationError("quantize.no_samples", "expected samples, got none. Pass a few dozen representative inputs.")
    places = _Places()
    for name, module in models.items():
        inputs = next((arguments for session in calls for called, arguments in session if called == name), None)
        if inputs is not None:
            with in_eval_mode(module):
                graph = export_module(module, inputs).module(check_guards=False)
            places.add(name, graph, module)
    places.settle()
    places.watch(calls)
    changes = [change for site in places.sites.values() if (change := places.fold(site, *_BITS[scheme]))]
    changes.sort(key=lambda change: -change.gain_db)
    logger.info("smooth: smoothed %d of %d activations", len(changes), len(places.sites))
    return tuple(changes)


def _calls(samples: Samples, models: Mapping[str, nn.Module]) -> list[list[tuple[str, tuple[Any, ...]]]]:
    calls = list(samples)
    if calls and all(_is_call(sample, models) for sample in calls):
        return [calls]
    if calls and all(isinstance(sample, list) and all(_is_call(call, models) for call in sample) for sample in calls):
        return calls
    return [[("", sample if isinstance(sample, tuple) else (sample,)) for sample in calls]]


def _is_call(call: Any, models: Mapping[str, nn.Module]) -> bool:
    return isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str) and call[0] in models


class _Places:
    def __init__(self) -> None:
        self.sites: dict[Key, Site] = {}
        self._graphs: dict[str, GraphModule] = {}
        self._watched: dict[str, dict[Node, Key]] = {}
        self._rows: dict[Key, list[Tensor]] = {}
        self._ranges: dict[Key, Tensor] = {}
        self._roles: list[tuple[dict[tuple[int, int], Key], set[int]]] = []

    def add(self, name: str, graph: GraphModule, module: nn.Module) -> None:
        sites, read = find_sites(graph, module)
        self._graphs[name] = graph
        self._watched[name] = {node: site.key for node, site in sites}
        self._roles.append(({used: site.key for _, site in sites for used in site.parameter_axes()}, read))
        for _, site in sites:
            self.sites[site.key] = self.sites[site.key].merge_readers(site) if site.key in self.sites else site

    def settle(self) -> None:

        def everywhere(site: Site) -> bool:
            return all(
                place not in read or roles.get((place, axis)) == site.key
                for roles, read in self._roles
                for place, axis in site.parameter_axes()
            )

        self.sites = {key: site for key, site in self.sites.items() if everywhere(site)}

    def watch(self, calls: Sequence[Sequence[tuple[str, tuple[Any, ...]]]]) -> None:
        with torch.no_grad():
            for session in calls:
                with preserve_buffers(buffer for graph in self._graphs.values() for buffer in graph.buffers()):
                    for name, inputs in session:
                        self._observe(NodeRunner(self._graphs[name], [inputs], write_back=True), self._watched[name])

    def _observe(self, runner: NodeRunner, watched: Mapping[Node, Key]) -> None:
        for node in runner:
            if node in watched:
                self._see(watched[node], *runner.run_node(node))

    def _see(self, key: Key, value: Tensor) -> None:
        if key not in self.sites:
            return
        rows = value.detach().float().reshape(-1, value.shape[-1])
        largest = rows.abs().amax(0)
        self._ranges[key] = torch.maximum(self._ranges[key], largest) if key in self._ranges else largest
        samples = self._rows.setdefault(key, [])
        if sum(map(len, samples)) < _ROWS:
            samples.append(rows[:_ROWS].clone())

    def fold(self, site: Site, activation_bits: int, weight_bits: int) -> Smoothed | None:
        key = site.key
        if key not in self._rows:
            return None
        x, weights = torch.cat(self._rows[key])[:_ROWS], [reader.by_output() for reader in site.readers]
        columns = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
        best, errors = torch.ones_like(columns), {}
        for strength in _STRENGTHS:
            factors = _factors(self._ranges[key], columns, strength)
            errors[strength] = _error(x, self._ranges[key], weights, factors, activation_bits, weight_bits)
            if errors[strength] <= min(errors.values()):
                best, chosen = factors, strength
        if not errors[0.0] > 0.0 or errors[chosen] > _WORTH * errors[0.0]:
            return None
        with torch.no_grad():
            site.fold(best)
        gain = 10 * torch.log10(torch.tensor(errors[0.0] / max(errors[chosen], 1e-30))).item()
        return Smoothed(site.sources[0].name, tuple(reader.name for reader in site.readers), chosen, gain)


def _factors(ranges: Tensor, columns: Tensor, strength: float) -> Tensor:
    if not strength:
        return torch.ones_like(columns)
    usable = (ranges > 0) & (columns > 0)
    factors = torch.where(usable, ranges.clamp(min=1e-12) ** strength / columns.clamp(min=1e-12) ** (1 - strength), 1.0)
    factors = factors / factors[usable].log().mean().exp() if usable.any() else factors
    return torch.where(usable, factors, 1.0).clamp(_LEAST, _MOST)


def _error(x: Tensor, ranges: Tensor, weights: Sequence[Tensor], factors: Tensor, activation_bits: int, weight_bits: int) -> float:
    scaled, error = x / factors, 0.0
    rounded = _round_to_bits(scaled, (ranges / factors).amax(), activation_bits)
    for weight in weights:
        multiplied = weight * factors
        quantized_output = rounded @ _round_to_bits(multiplied, multiplied.abs().amax(1, keepdim=True), weight_bits).t()
        error += float(((quantized_output - x @ weight.t()) ** 2).sum())
    return error


def _round_to_bits(x: Tensor, largest: Tensor, bits: int) -> Tensor:
    top = 2 ** (bits - 1) - 1
    scale = (largest / top).clamp(min=1e-30)
    result: Tensor = torch.clamp(torch.round(x / scale), -top, top) * scale
    return result
