"""Graph passes that run between ``torch.export`` and annotation.

Passes transform the exported graph in place. After annotation the graph is read-only, so every transformation that makes a model
easier to quantize or to lower belongs here. Passes do not depend on each other's code; ``after`` and ``before`` state the order
that they need, and a test compares them with ``PASSES``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ethorch.lower.fx.node import shape_of_values
from ethorch.models.open_sizes import unguarded
from ethorch.quantization.passes.attention_masks import unify_masks
from ethorch.quantization.passes.batch_norms import rename_shared_weights
from ethorch.quantization.passes.cleanup import (
    freeze_parameters,
    lift_scalars,
    remove_assertions,
    remove_guards,
    remove_no_ops,
    remove_softmax_shifts,
)
from ethorch.quantization.passes.complex_tensors import lower_complex
from ethorch.quantization.passes.constants import fold_constants, promote_constants, promote_integers
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.decompose import decompose_composites, fix_batch_norms, hoist_clamps
from ethorch.quantization.passes.doubles import narrow_doubles
from ethorch.quantization.passes.experts import lower_experts
from ethorch.quantization.passes.functionalize import functionalize
from ethorch.quantization.passes.hard_choices import lower_hard_choices
from ethorch.quantization.passes.index_inputs import cast_inputs_first, narrow_indices, tabulate_positions
from ethorch.quantization.passes.state_buffers import register_written_parameters
from ethorch.quantization.passes.top_k import lower_top_k
from ethorch.quantization.passes.wrapped_graphs import inline_wrapped_graphs
from ethorch.support.errors import QuantizationError


@dataclass(frozen=True)
class Pass:
    """One step of ``PASSES``.

    Attributes:
        name: The function's name, or another one if it runs twice.
        run: Transforms the graph in place.
        after, before: Names of passes that have to run earlier or later.
        only: The pass runs only if parameters train, or only if they do not; None: in both cases.
    """

    name: str
    run: Callable[[GraphModule, PassContext], None]
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    only: Literal["trainable", "fixed"] | None = None


PASSES = (
    # A guard is a call of a module, which breaks re-export.
    Pass("remove_guards", remove_guards, before=("inline_wrapped_graphs",)),
    # Bodies of torch.no_grad() and torch.autocast() are part of the network.
    Pass("inline_wrapped_graphs", inline_wrapped_graphs, before=("functionalize",)),
    # Later passes ask who reads a value, and assume that values do not change.
    Pass("functionalize", functionalize, before=("register_written_parameters",)),
    # A parameter that the model writes is no constant.
    Pass("register_written_parameters", register_written_parameters, before=("fold_constants",), only="fixed"),
    Pass("freeze_parameters", freeze_parameters, before=("fold_constants",), only="fixed"),
    # Composites that become batch norms emit the fixed form themselves.
    Pass("fix_batch_norms", fix_batch_norms, before=("decompose_composites",), only="fixed"),
    Pass("rename_shared_weights", rename_shared_weights, only="trainable"),
    # An assertion is a reader that would keep a constant alive.
    Pass("remove_assertions", remove_assertions, before=("fold_constants",)),
    # Decompositions look through their operands, where a dropout would be in the way.
    Pass("remove_no_ops", remove_no_ops, before=("decompose_composites",)),
    Pass("promote_integers", promote_integers, after=("remove_no_ops",), before=("narrow_indices", "tabulate_positions")),
    # The passes below count the dimensions of what an operator reads.
    Pass("lift_scalars", lift_scalars, before=("remove_softmax_shifts", "fold_constants", "decompose_composites")),
    Pass("remove_softmax_shifts", remove_softmax_shifts, after=("remove_no_ops",), before=("unify_masks",)),
    # It looks for ``full`` operators, which folding would replace.
    Pass("lower_top_k", lower_top_k, after=("functionalize",), before=("fold_constants",)),
    # It looks for the places of a maximum.
    Pass("lower_hard_choices", lower_hard_choices, after=("functionalize",), before=("decompose_composites",)),
    # It looks through casts, and emits constants.
    Pass("lower_experts", lower_experts, after=("remove_no_ops",), before=("fold_constants",)),
    # Decompositions ask whether an operand is constant, and which number it holds.
    Pass("fold_constants", fold_constants, before=("decompose_composites",)),
    # Constants are computed as precisely as the model does.
    Pass("narrow_doubles", narrow_doubles, after=("fold_constants",), before=("lower_complex",), only="fixed"),
    # A window or a rotation has to be one constant; it emits composites.
    Pass("lower_complex", lower_complex, after=("fold_constants",), before=("decompose_composites",)),
    Pass("decompose_composites", decompose_composites, after=("fold_constants",), before=("fold_constants_again",)),
    # Decompositions emit operators of constants, such as an attention's mask.
    Pass("fold_constants_again", fold_constants, after=("decompose_composites",)),
    # Attention is decomposed, and a mask that is added is one tensor.
    Pass("unify_masks", unify_masks, after=("decompose_composites", "fold_constants_again")),
    # Decompositions emit the operators that index.
    Pass("narrow_indices", narrow_indices, after=("decompose_composites",)),
    # The narrowed index picks the rows of a table; the numbers of a mask are no table.
    Pass("tabulate_positions", tabulate_positions, after=("narrow_indices", "unify_masks")),
    # Both look for views of an index in front of its cast.
    Pass("cast_inputs_first", cast_inputs_first, after=("narrow_indices", "tabulate_positions")),
    # Constants that are emitted later would not be promoted.
    Pass("promote_constants", promote_constants, after=("fold_constants_again", "unify_masks", "tabulate_positions")),
    # It moves clamps over the views that decompositions emit; no pass looks for clamps behind those views.
    Pass("hoist_clamps", hoist_clamps, after=("decompose_composites", "promote_constants")),
)


def run_passes(graph_module: GraphModule, context: PassContext) -> GraphModule:
    """Run all of ``PASSES`` in place, and drop what nothing reads after each of them.

    Sizes that the program leaves open stay open, unless parameters train: what is trained is exported anew.

    Raises:
        QuantizationError: an in-place operator has no functional form; a pass needs to know a shape that depends on values.
    """
    kind = "trainable" if context.trainable else "fixed"
    for each in PASSES:
        try:
            if each.only in (None, kind):
                with nullcontext() if context.trainable else unguarded(graph_module.graph.nodes):
                    each.run(graph_module, context)
        except GuardOnDataDependentSymNode as error:
            first = next(node for node in graph_module.graph.nodes if shape_of_values(node))
            line = (first.meta.get("stack_trace") or "").strip().splitlines()[-1:]
            raise QuantizationError(
                "quantize.shape_of_values",
                f"{first.name}{''.join(f' ({one.strip()})' for one in line)}: a shape depends on what tensors hold, and something "
                "is written in place into such a tensor. Keep all elements, and put 0 in place of the others with torch.where.",
            ) from error
        graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module
