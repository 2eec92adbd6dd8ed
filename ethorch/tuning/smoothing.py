"""Outliers of activations moved into weights: channels that a norm makes large are divided there, and multiplied by readers.

The function stays the same and nothing is computed more, since the factors are folded into parameters. The idea is SmoothQuant's
(Xiao et al. 2022). How strong it is, is searched for at each place, as AWQ does (Lin et al. 2023), by the error that the layers
have.
"""

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
from ethorch.quantization.shared_buffers import kept
from ethorch.support.errors import QuantizationError, SpecError
from ethorch.support.exclusive import exclusive
from ethorch.tuning.node_runner import NodeRunner
from ethorch.tuning.smoothing_sites import Key, Site, find_sites

logger = logging.getLogger(__name__)

#: Scheme -> bits of activations and of weights.
_BITS = {"int8": (8, 8), "a16w8": (16, 8), "a8w4": (8, 4)}
#: Exponents of the activations' ranges that are tried; 0 leaves a place as it is.
_STRENGTHS = (0.0, 0.25, 0.35, 0.5, 0.65, 0.75, 0.9)
_ROWS = 512  # of activations that are kept at each place
_LEAST, _MOST = 1e-3, 1e3  # of a channel's factor
_WORTH = 0.99  # of the error that a place has as it is: what is no better than that is left

#: Calls in order: inputs, or (name of the model, inputs) where there are several.
Samples = Sequence[Any]


@dataclass(frozen=True)
class Smoothed:
    """One place where factors were folded in.

    Attributes:
        source: the parameter that was divided.
        readers: the weights that were multiplied.
        strength: exponent of the activations' ranges.
        gain_db: of the layers' outputs, their inputs and weights quantized, on the samples.
    """

    source: str
    readers: tuple[str, ...]
    strength: float
    gain_db: float


@exclusive()
def smooth(model: nn.Module | Mapping[str, nn.Module], samples: Samples, *, scheme: str = "int8") -> tuple[Smoothed, ...]:
    """Let a model's activations have no outlying channels, as far as that can be folded into its parameters.

    Parameters are changed in place; outputs stay the same up to float rounding, and nothing is computed more. Places are
    normalizations with weights, and linear layers behind which nothing mixes channels (SwiGLU's ``up``), where all that reads them
    are linear layers. A place is changed only if its layers' outputs, quantized by the scheme, are nearer to the float ones then.
    Parameters that something else uses too, such as tied embeddings, stay as they are.

    ::

        ethorch.tuning.smooth(model, samples)
        program = ethorch.compile(model, samples[0], calibration=samples)

    Args:
        model: in eval mode; or several by name that share modules, as ``ethorch.compile`` takes them.
        samples: input tuples in order; of several models (name, inputs), or a list of lists of that.
        scheme: a name of ``int8``, ``a16w8``, ``a8w4``: what is searched for the best.

    Returns:
        what was changed, the largest gain first.

    Raises:
        QuantizationError: there are no samples.
        SpecError: the scheme is another one.
        UserCodeError: a model cannot be exported.
    """
    if scheme not in _BITS:
        raise SpecError(f"smooth: scheme is {scheme!r}; allowed are {', '.join(map(repr, _BITS))}.")
    models = {"": model} if isinstance(model, nn.Module) else dict(model)
    calls = _calls(samples, models)
    if not calls or not calls[0]:
        raise QuantizationError("quantize.no_samples", "no samples were given: ranges and losses are measured on them")
    places = _Places()
    for name, module in models.items():
        inputs = next((given for session in calls for called, given in session if called == name), None)
        if inputs is not None:
            with in_eval_mode(module):
                graph = export_module(module, inputs).module(check_guards=False)
            places.add(name, graph, module)
    places.settle()
    places.watch(calls)
    done = [found for site in places.sites.values() if (found := places.fold(site, *_BITS[scheme]))]
    done.sort(key=lambda one: -one.gain_db)
    logger.info("smooth: %d of %d places", len(done), len(places.sites))
    return tuple(done)


def _calls(samples: Samples, models: Mapping[str, nn.Module]) -> list[list[tuple[str, tuple[Any, ...]]]]:
    """Sessions of (name, inputs)."""
    given = list(samples)
    if given and all(_is_call(one, models) for one in given):
        return [given]
    if given and all(isinstance(one, list) and all(_is_call(call, models) for call in one) for one in given):
        return given
    return [[("", one if isinstance(one, tuple) else (one,)) for one in given]]


def _is_call(one: Any, models: Mapping[str, nn.Module]) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and one[0] in models


class _Places:
    """The places of all models together, and what is seen there."""

    def __init__(self) -> None:
        self.sites: dict[Key, Site] = {}
        self._graphs: dict[str, GraphModule] = {}
        self._watched: dict[str, dict[Node, Key]] = {}
        self._rows: dict[Key, list[Tensor]] = {}
        self._ranges: dict[Key, Tensor] = {}
        self._roles: list[tuple[dict[tuple[int, int], Key], set[int]]] = []

    def add(self, name: str, graph: GraphModule, module: nn.Module) -> None:
        """The places of one model."""
        found, read = find_sites(graph, module)
        self._graphs[name] = graph
        self._watched[name] = {node: site.key for node, site in found}
        self._roles.append(({used: site.key for _, site in found for used in site.touched()}, read))
        for _, site in found:
            self.sites[site.key] = self.sites[site.key].joined(site) if site.key in self.sites else site

    def settle(self) -> None:
        """Leave what is no place to every model that reads one of its parameters."""

        def everywhere(site: Site) -> bool:
            """Return True if each model that has these parameters has them at this place."""
            return all(
                place not in read or roles.get((place, axis)) == site.key
                for roles, read in self._roles
                for place, axis in site.touched()
            )

        self.sites = {key: site for key, site in self.sites.items() if everywhere(site)}

    def watch(self, calls: Sequence[Sequence[tuple[str, tuple[Any, ...]]]]) -> None:
        """Run the calls; what the models keep is as before each session."""
        with torch.no_grad():
            for session in calls:
                with kept(buffer for graph in self._graphs.values() for buffer in graph.buffers()):
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
        held = self._rows.setdefault(key, [])
        if sum(map(len, held)) < _ROWS:
            held.append(rows[:_ROWS].clone())

    def fold(self, site: Site, activation_bits: int, weight_bits: int) -> Smoothed | None:
        """Fold in the factors with the least error; None where none is better than what is there."""
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
    """What each channel is divided by: 1 where nothing is known of it."""
    if not strength:
        return torch.ones_like(columns)
    usable = (ranges > 0) & (columns > 0)
    factors = torch.where(usable, ranges.clamp(min=1e-12) ** strength / columns.clamp(min=1e-12) ** (1 - strength), 1.0)
    factors = factors / factors[usable].log().mean().exp() if usable.any() else factors
    return torch.where(usable, factors, 1.0).clamp(_LEAST, _MOST)


def _error(x: Tensor, ranges: Tensor, weights: Sequence[Tensor], factors: Tensor, activation_bits: int, weight_bits: int) -> float:
    """Sum of squares by which the layers' outputs are off, inputs in one scale and weights in one for each output."""
    scaled, error = x / factors, 0.0
    rounded = _round_to_bits(scaled, (ranges / factors).amax(), activation_bits)
    for weight in weights:
        multiplied = weight * factors
        found = rounded @ _round_to_bits(multiplied, multiplied.abs().amax(1, keepdim=True), weight_bits).t()
        error += float(((found - x @ weight.t()) ** 2).sum())
    return error


def _round_to_bits(x: Tensor, largest: Tensor, bits: int) -> Tensor:
    top = 2 ** (bits - 1) - 1
    scale = (largest / top).clamp(min=1e-30)
    result: Tensor = torch.clamp(torch.round(x / scale), -top, top) * scale
    return result
