"""Search for recipes that meet a budget without training, based on costs from Vela's encoder."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import nn
from torch.fx import GraphModule

from ethorch.models.load import UserModel, is_quantized
from ethorch.quantization.calibrate import quantize
from ethorch.quantization.quantizer import EthosUQuantizer
from ethorch.support.errors import QuantizationError, unknown_name
from ethorch.support.exclusive import exclusive
from ethorch.support.progress import stage
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tuning.compress.candidates import Candidates, candidates, noise, write
from ethorch.tuning.compress.choice import Option, Price, front, texts
from ethorch.tuning.compress.costs import Costs, costs
from ethorch.tuning.compress.planned import Layer, Plan, Tried
from ethorch.tuning.compress.recipe import AS_IS, Recipe, parse, usual
from ethorch.tuning.compress.weights import Weight, find_weights, state_beside
from ethorch.tuning.sample_runs import Inputs, compute_outputs, copy_state, export_copy

logger = logging.getLogger(__name__)

#: Values of ``objective``.
CYCLES: Final = "cycles"
BYTES: Final = "bytes"
OBJECTIVES = (CYCLES, BYTES)
_LEAST = 0.02  # relative price of the resource that only breaks ties
_NO_FAST_DECODER = "--disable-fwd"


@exclusive()
def plan(
    model: nn.Module,
    spec: EthosUCompileSpec,
    samples: Sequence[Inputs],
    *,
    max_flash: int | None = None,
    max_cycles: int | None = None,
    min_sqnr_db: float | None = None,
    objective: str = CYCLES,
    recipes: Sequence[str] | None = None,
    leave_out: Sequence[str] = (),
    quantizer: EthosUQuantizer | None = None,
) -> Plan:
    """Choose a recipe for each weight to meet the budgets with the least loss of accuracy.

    For each recipe, the program is compiled once with all weights compressed, to obtain each weight's cycles and bytes. The effect
    of the recipe on accuracy is predicted from the layers' inputs. Combinations of recipes are then compiled and measured to find
    one that meets the budgets.

    Args:
        model: Model in eval mode, or the output of ``ethorch.quantize``. SQNR is measured relative to this model.
        samples: A few dozen input tuples for calibration and measurement.
        max_flash: Maximum size of the .pte in bytes. The plan compresses no more than necessary.
        max_cycles: Maximum total NPU cycles, estimated by Vela.
        min_sqnr_db: Minimum SQNR on the samples. If this is the only budget, the plan compresses as much as possible.
        objective: Resource to save (``cycles`` or ``bytes``) if ``min_sqnr_db`` is the only budget.
        recipes: Allowed recipes, e.g. ``["32-values", "2:4"]``. Default: ``recipe.usual``.
        leave_out: Names of weights or modules to leave unchanged.
        quantizer: Quantizer. Default: int8 with per-channel weights.

    Raises:
        QuantizationError: No budget is set, a recipe is invalid, ``samples`` is empty, or the model has no quantized weights.
        EthorchError: A weight in ``leave_out`` does not exist, or ``objective`` is unknown.
    """
    if max_flash is None and max_cycles is None and min_sqnr_db is None:
        raise QuantizationError(
            "compress.no_limit", "expected at least one budget, got none. Set max_flash, max_cycles or min_sqnr_db."
        )
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    if not samples:
        raise QuantizationError("quantize.no_samples", "expected samples, got none. Pass a few dozen representative inputs.")
    tried = usual(spec.target.family) if recipes is None else tuple(parse(text) for text in recipes)
    quantized, reference = _quantize(model, spec, samples, quantizer)
    work = copy.deepcopy(quantized)
    weights = find_weights(work)
    _check_names(leave_out, weights)
    free = {number for number, weight in enumerate(weights) if not _is_left_out(weight, leave_out)}
    candidates_by_weight = candidates(work, weights, tried, samples)
    limits = _Limits(max_flash, max_cycles, min_sqnr_db)
    plain: _Found | None = None
    best: _Found | None = None
    for flags in _flags(spec):
        other_spec = copy.copy(spec)
        other_spec.flags = {**spec.flags, **dict.fromkeys(flags, True)}
        before, options = _options(work, weights, candidates_by_weight, free, tried, samples[0], other_spec)
        price = limits.price(before if plain is None else plain.before, objective)
        search = _Search(work, weights, candidates_by_weight, samples, other_spec, reference)
        chosen, result = _first_holding(front(options, price), search, limits)
        outcome = _Found(flags, before, options, chosen, result, search.measure(()).sqnr_db)
        plain = plain or outcome
        best = outcome if best is None or limits.better(outcome.result, best.result, price) else best
    assert plain is not None and best is not None
    new_plan = _make_plan(spec, weights, plain, best, limits, quantized)
    if not new_plan.reached:
        logger.warning("compress: %s [compress.not_reached]", limits.shortfall(new_plan))
    return new_plan


def _flags(spec: EthosUCompileSpec) -> tuple[tuple[str, ...], ...]:
    # The U85's fast decoder reads each weight in SRAM as one byte, or as four bits if there are at most 15 values. With the fast
    # decoder, Vela rarely uses 2:4.
    if spec.target.family == "u85" and spec.memory_mode == "Sram_Only" and _NO_FAST_DECODER not in spec.flags:
        return (), (_NO_FAST_DECODER,)
    return ((),)


@dataclass(frozen=True)
class _Found:
    flags: tuple[str, ...]
    before: Costs
    options: list[list[Option]]
    chosen: dict[int, Recipe]
    result: _Measured
    sqnr_db_before: float


def _make_plan(
    spec: EthosUCompileSpec, weights: Sequence[Weight], plain: _Found, best: _Found, limits: _Limits, quantized: GraphModule
) -> Plan:
    names = [weight.name for weight in weights]
    layers = []
    for number, weight in enumerate(weights):
        recipe = best.chosen.get(number, AS_IS)
        chosen_option = next(option for option in best.options[number] if option.recipe == recipe)
        layers.append(
            Layer(
                weight.name,
                weight.shape,
                texts({number: recipe}, names).get(weight.name, str(AS_IS)),
                best.result.costs.weights[number].cycles,
                plain.before.weights[number].cycles,
                best.result.costs.weights[number].bytes,
                plain.before.weights[number].bytes,
                _decibels(chosen_option.noise),
                tuple(Tried(str(each.recipe), each.cycles, each.bytes, _decibels(each.noise)) for each in best.options[number]),
            )
        )
    return Plan(
        spec.target.name,
        tuple(layers),
        best.result.costs.cycles,
        plain.before.cycles,
        best.result.costs.flash_bytes,
        plain.before.flash_bytes,
        best.result.sqnr_db,
        plain.sqnr_db_before,
        limits.hold(best.result),
        best.flags,
        quantized,
    )


def _quantize(
    model: nn.Module, spec: EthosUCompileSpec, samples: Sequence[Inputs], quantizer: EthosUQuantizer | None
) -> tuple[GraphModule, list[Any]]:
    if is_quantized(model):
        if not isinstance(model, GraphModule):
            raise QuantizationError(
                "compress.no_graph",
                f"expected the graph module returned by convert_pt2e, got a quantized {type(model).__name__}",
            )
        return model, compute_outputs(copy.deepcopy(model), samples, copy_state(model))
    graph = export_copy(model, samples[0])
    reference = compute_outputs(graph, samples, copy_state(graph))
    quantized = quantize(UserModel(model, samples[0], list(samples)), spec, quantizer=quantizer)
    assert isinstance(quantized, GraphModule)
    return quantized, reference


def _is_left_out(weight: Weight, names: Sequence[str]) -> bool:
    return any(weight.name == name or weight.name.split("#")[0] == name or weight.name.startswith(f"{name}.") for name in names)


def _check_names(names: Sequence[str], weights: Sequence[Weight]) -> None:
    for name in names:
        if not any(_is_left_out(weight, [name]) for weight in weights):
            raise unknown_name("weight", name, [weight.name for weight in weights])


def _options(
    graph: GraphModule,
    weights: Sequence[Weight],
    candidates_by_weight: Candidates,
    free: set[int],
    recipes: Sequence[Recipe],
    inputs: Inputs,
    spec: EthosUCompileSpec,
) -> tuple[Costs, list[list[Option]]]:
    with stage("compile recipes", len(recipes) + 1) as step:
        before = costs(graph, weights, inputs, spec)
        step()
        options = [[Option(AS_IS, cost.cycles, cost.bytes, 0.0)] for cost in before.weights]
        for recipe in recipes:
            mine = {number: recipe for number in sorted(free) if recipe in candidates_by_weight[number]}
            with _written(weights, candidates_by_weight, mine):
                cost = costs(graph, weights, inputs, spec)
            for number in mine:
                each = cost.weights[number]
                options[number].append(Option(recipe, each.cycles, each.bytes, candidates_by_weight[number][recipe].noise))
            step()
    return before, options


class _written:
    def __init__(self, weights: Sequence[Weight], candidates_by_weight: Candidates, chosen: dict[int, Recipe]):
        self.weights, self.found, self.chosen = weights, candidates_by_weight, chosen

    def __enter__(self) -> None:
        self.before = {number: (self.weights[number].rows(), self.weights[number].scale()) for number in self.chosen}
        write(self.weights, self.found, self.chosen)

    def __exit__(self, *_: object) -> None:
        for number, (rows, scale) in self.before.items():
            self.weights[number].write(rows, scale)


@dataclass(frozen=True)
class _Measured:
    costs: Costs
    sqnr_db: float


class _Search:
    def __init__(
        self,
        graph: GraphModule,
        weights: Sequence[Weight],
        candidates_by_weight: Candidates,
        samples: Sequence[Inputs],
        spec: EthosUCompileSpec,
        reference: list[Any],
    ):
        self.graph, self.weights, self.found, self.samples, self.spec = graph, weights, candidates_by_weight, samples, spec
        self.reference, self.state = reference, state_beside(graph, weights)
        self.known: dict[tuple[tuple[int, Recipe], ...], _Measured] = {}

    def measure(self, chosen: tuple[tuple[int, Recipe], ...]) -> _Measured:
        if chosen not in self.known:
            with _written(self.weights, self.found, dict(chosen)):
                cost = costs(self.graph, self.weights, self.samples[0], self.spec)
                figure = _decibels(noise(self.reference, compute_outputs(self.graph, self.samples, self.state)))
            self.known[chosen] = _Measured(cost, figure)
        return self.known[chosen]


@dataclass(frozen=True)
class _Limits:
    flash: int | None
    cycles: int | None
    sqnr_db: float | None

    @property
    def costs_are_limited(self) -> bool:
        return self.flash is not None or self.cycles is not None

    def price(self, before: Costs, objective: str) -> Price:
        flash, cycles = max(before.weight_bytes, 1), max(before.cycles, 1)
        if self.costs_are_limited:
            short_of_flash = max(0.0, 1 - (self.flash or before.flash_bytes) / before.flash_bytes)
            short_of_cycles = max(0.0, 1 - (self.cycles or before.cycles) / cycles)
        else:
            short_of_flash, short_of_cycles = (1.0, 0.0) if objective == BYTES else (0.0, 1.0)
        least = _LEAST * max(short_of_flash, short_of_cycles, 1e-6)
        resource: Literal["cycles", "bytes"] | None = CYCLES if short_of_cycles else BYTES
        if short_of_cycles and short_of_flash:
            resource = None
        return Price(max(short_of_cycles, least) / cycles, max(short_of_flash, least) / flash, resource)

    def cheap(self, measured: _Measured) -> bool:
        return (self.flash is None or measured.costs.flash_bytes <= self.flash) and (
            self.cycles is None or measured.costs.cycles <= self.cycles
        )

    def accurate(self, measured: _Measured) -> bool:
        return self.sqnr_db is None or measured.sqnr_db >= self.sqnr_db

    def hold(self, measured: _Measured) -> bool:
        return self.cheap(measured) and self.accurate(measured)

    def better(self, measured: _Measured, reference: _Measured, price: Price) -> bool:
        if self.hold(measured) != self.hold(reference):
            return self.hold(measured)
        if self.costs_are_limited and self.cheap(measured) and self.cheap(reference):
            return measured.sqnr_db > reference.sqnr_db
        return _sum_costs(measured, price) < _sum_costs(reference, price)

    def shortfall(self, new_plan: Plan) -> str:
        words = []
        if self.flash is not None and new_plan.flash_bytes > self.flash:
            words.append(f"expected a .pte of at most {self.flash:,} bytes, got {new_plan.flash_bytes:,}")
        if self.cycles is not None and new_plan.cycles > self.cycles:
            words.append(f"expected at most {self.cycles:,} NPU cycles, got {new_plan.cycles:,}")
        if self.sqnr_db is not None and new_plan.sqnr_db < self.sqnr_db:
            words.append(f"expected an SQNR of at least {self.sqnr_db:.1f} dB, got {new_plan.sqnr_db:.1f} dB")
        remedy = "Use weaker recipes or a looser budget, or train with ethorch.tuning.compress.constrain."
        if self.sqnr_db is not None and new_plan.sqnr_db_before < self.sqnr_db:
            remedy = (
                f"Without compression, the SQNR is {new_plan.sqnr_db_before:.1f} dB. Improve the accuracy first, e.g. with "
                "scheme a16w8."
            )
        elif new_plan.flash_bytes > (self.flash or math.inf) or new_plan.cycles > (self.cycles or math.inf):
            remedy = "Use stronger recipes or a looser budget, or train with ethorch.tuning.compress.constrain."
        return f"{'; '.join(words)}. {remedy}"


def _first_holding(choices: Sequence[dict[int, Recipe]], search: _Search, limits: _Limits) -> tuple[dict[int, Recipe], _Measured]:

    def at(position: int) -> _Measured:
        return search.measure(tuple(sorted(choices[position].items(), key=lambda entry: entry[0])))

    def enough(position: int) -> bool:
        measured = at(position)
        return limits.cheap(measured) if limits.costs_are_limited else not limits.accurate(measured)

    low, high = 0, len(choices)  # bounds of the first sufficient position, or len(choices) if no position is sufficient
    with stage("compile choices") as step:
        while low < high:
            middle = (low + high) // 2
            if enough(middle):
                high = middle
            else:
                low = middle + 1
            step()
    position = min(low, len(choices) - 1) if limits.costs_are_limited else max(low - 1, 0)
    return choices[position], at(position)


def _sum_costs(measured: _Measured, price: Price) -> float:
    return price.per_cycle * measured.costs.cycles + price.per_byte * measured.costs.flash_bytes


def _decibels(share: float) -> float:
    return -10 * math.log10(share) if share > 0 else math.inf
