"""PASSES: what becomes of a graph between torch.export and annotation, in this order.

After quantization a graph is read and never rewritten, so all that would make it easier to quantize or to run happens here.
Each pass changes a graph in place and is a function of its own, without knowledge of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ethorch.lower.fx.node import shape_of_values
from ethorch.models.open_sizes import unguarded
from ethorch.quantization.passes.attention_masks import gather_masks
from ethorch.quantization.passes.batch_norms import name_weights_apart
from ethorch.quantization.passes.cleanup import (
    freeze_parameters,
    lift_scalars,
    remove_assertions,
    remove_guards,
    remove_idle,
    remove_shifts,
)
from ethorch.quantization.passes.complex_tensors import pair_complex
from ethorch.quantization.passes.constants import fold_constants, promote_constants, promote_integers
from ethorch.quantization.passes.decompose import decompose, hoist_clamps, settle_batch_norms
from ethorch.quantization.passes.doubles import narrow_doubles
from ethorch.quantization.passes.experts import draw_experts
from ethorch.quantization.passes.functionalize import functionalize
from ethorch.quantization.passes.hard_choices import draw_hard_choices
from ethorch.quantization.passes.index_inputs import cast_inputs_first, narrow_indices, tabulate_positions
from ethorch.quantization.passes.top_k import draw_top_ks
from ethorch.quantization.passes.wrapped_graphs import inline_wrapped
from ethorch.quantization.shared_buffers import written_as_buffers
from ethorch.support.errors import QuantizationError
from ethorch.tosa.limits import Limits


@dataclass(frozen=True)
class Scope:
    """What passes are told besides the graph.

    Attributes:
        keep: does a node stay as it is? Those do that nobody asked to quantize.
        limits: what the target can run, by TOSA operator; None where that is not known.
        trains: parameters will change, so that nothing computed from them is constant.
    """

    keep: Callable[[Node], bool] = lambda node: False
    limits: Mapping[str, Limits] | None = None
    trains: bool = True


@dataclass(frozen=True)
class Pass:
    """One step of ``PASSES``.

    Attributes:
        name: verb and object.
        run: changes the graph in place.
        why: the reason for its place in the order.
    """

    name: str
    run: Callable[[GraphModule, Scope], object]
    why: str


PASSES = (
    Pass(
        "remove guards",
        lambda model, scope: remove_guards(model),
        "First: a guard is a call of a module, which no other pass knows, and which breaks re-export.",
    ),
    Pass(
        "inline wrapped graphs",
        lambda model, scope: inline_wrapped(model, trains=scope.trains),
        "Before all that looks at operators: what stands under torch.no_grad() or torch.autocast() is part of the network.",
    ),
    Pass(
        "make in-place operators values",
        lambda model, scope: functionalize(model, recompile=False),
        "Before any pass that asks who reads a value: until here a value may change after it was computed.",
    ),
    Pass(
        "let written parameters be buffers",
        lambda model, scope: None if scope.trains else written_as_buffers(model),
        "Before constants are folded: a parameter that the model changes is none.",
    ),
    Pass(
        "freeze parameters",
        lambda model, scope: None if scope.trains else freeze_parameters(model),
        "Before constants are folded: what is folded is made of parameters that calibration does not train.",
    ),
    Pass(
        "settle batch norms",
        lambda model, scope: None if scope.trains else settle_batch_norms(model),
        "Before composites are decomposed: those that become batch norms draw the settled form themselves.",
    ),
    Pass(
        "name weights apart",
        lambda model, scope: name_weights_apart(model) if scope.trains else None,
        "Anywhere before annotation: weights that convolutions share are told apart by their names.",
    ),
    Pass(
        "remove assertions",
        lambda model, scope: remove_assertions(model),
        "Before constants are folded: an assertion is a reader, for whose sake a constant would be kept.",
    ),
    Pass(
        "remove idle operators",
        lambda model, scope: remove_idle(model),
        "Before composites are decomposed: some look through their operands, where an idle dropout would be in the way. And a cast"
        " that does nothing would be one reader more of what it takes its dtype from.",
    ),
    Pass(
        "promote integers",
        lambda model, scope: promote_integers(model),
        "Behind the casts that say nothing, and before indices are narrowed and tabulated, which look for casts of them.",
    ),
    Pass(
        "lift scalars",
        lambda model, scope: lift_scalars(model, scope.keep),
        "Before all that counts dims of what an operator reads: shifts, constants and composites.",
    ),
    Pass(
        "remove shifts",
        lambda model, scope: remove_shifts(model),
        "Behind the casts and dropouts that say nothing, of what it looks through, before masks are gathered.",
    ),
    Pass(
        "draw the greatest few",
        lambda model, scope: draw_top_ks(model, scope.keep),
        "Behind in-place scatters, and before constants are folded: a tensor full of one number still says which.",
    ),
    Pass(
        "draw hard choices",
        lambda model, scope: draw_hard_choices(model, scope.keep),
        "Behind in-place scatters, and before composites go: it looks for the places of a maximum.",
    ),
    Pass(
        "draw experts",
        lambda model, scope: draw_experts(model, scope.keep),
        "Behind the casts that say nothing, which it looks through, and before constants are folded: it draws some.",
    ),
    Pass(
        "fold constants",
        lambda model, scope: fold_constants(model, trains=scope.trains),
        "Before composites are decomposed: they ask whether an operand is constant, and which number it holds.",
    ),
    Pass(
        "narrow doubles",
        lambda model, scope: None if scope.trains else narrow_doubles(model, scope.keep),
        "Behind the first folding, which computes constants as precisely as the model does. Before complex tensors become pairs.",
    ),
    Pass(
        "make complex tensors pairs",
        lambda model, scope: pair_complex(model, scope.keep),
        "Behind the first folding, which leaves a window or a rotation as one constant. Before composites go: it draws some.",
    ),
    Pass(
        "decompose composites",
        lambda model, scope: decompose(model, scope.keep, scope.limits),
        "Between two foldings: it reads constants and draws new ones.",
    ),
    Pass(
        "fold constants again",
        lambda model, scope: fold_constants(model, trains=scope.trains),
        "Behind the decompositions: what they drew of constants alone is a constant too, an attention's mask for one.",
    ),
    Pass(
        "gather masks",
        lambda model, scope: gather_masks(model, scope.keep),
        "Behind both: attention is taken apart, and a mask that is added is one tensor.",
    ),
    Pass(
        "narrow indices",
        lambda model, scope: narrow_indices(model, scope.keep, scope.limits),
        "Behind the decompositions, which draw what indexes: it is told by that which inputs are indices.",
    ),
    Pass(
        "tabulate positions",
        lambda model, scope: tabulate_positions(model, scope.keep, trains=scope.trains),
        "Behind the indices' cast, which a table's rows are picked by, and behind masks, which are no table's numbers.",
    ),
    Pass(
        "cast inputs first",
        lambda model, scope: cast_inputs_first(model),
        "Behind the narrowing and the tables, which look for views of an index in front of its cast.",
    ),
    Pass(
        "promote constants",
        lambda model, scope: promote_constants(model),
        "Behind all that folds and draws: later constants would not be promoted.",
    ),
    Pass(
        "hoist clamps",
        lambda model, scope: hoist_clamps(model),
        "Last: it moves clamps over the views that decompositions drew, and no pass looks for them behind those views.",
    ),
)


def run_passes(model: GraphModule, scope: Scope) -> GraphModule:
    """Run all of ``PASSES`` over ``model``, in place, and drop what nothing reads after each of them.

    Sizes that the program leaves open stay open, unless parameters train: what is trained is exported anew.

    Raises:
        QuantizationError: an in-place operator has no functional form; a pass needs to know a shape that depends on values.
    """
    for each in PASSES:
        try:
            with nullcontext() if scope.trains else unguarded(model.graph.nodes):
                each.run(model, scope)
        except GuardOnDataDependentSymNode as error:
            first = next(node for node in model.graph.nodes if shape_of_values(node))
            line = (first.meta.get("stack_trace") or "").strip().splitlines()[-1:]
            raise QuantizationError(
                "quantize.shape_of_values",
                f"{first.name}{''.join(f' ({one.strip()})' for one in line)}: a shape depends on what tensors hold, and something "
                "is written in place into such a tensor. Keep all elements, and put 0 in place of the others with torch.where.",
            ) from error
        model.graph.eliminate_dead_code()
    model.recompile()
    return model
