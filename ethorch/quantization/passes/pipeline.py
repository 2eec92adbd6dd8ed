"""Graph passes that run between ``torch.export`` and annotation.

Passes transform the exported graph in place. After the last pass, the graph is read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ethorch.lower.fx.node import shape_of_values
from ethorch.models.open_sizes import suppress_guards
from ethorch.quantization.passes.attention_masks import unify_masks
from ethorch.quantization.passes.batch_norms import rename_shared_weights
from ethorch.quantization.passes.cleanup import (
    bypass_joins,
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
from ethorch.quantization.passes.decompose import correct_remainders, decompose_composites, fix_batch_norms, hoist_clamps
from ethorch.quantization.passes.experts import lower_experts
from ethorch.quantization.passes.float_types import convert_float_types
from ethorch.quantization.passes.functionalize import functionalize
from ethorch.quantization.passes.hard_choices import lower_hard_choices
from ethorch.quantization.passes.index_inputs import (
    cast_inputs_first,
    copy_returned_casts,
    index_by_tensors,
    narrow_indices,
    tabulate_positions,
)
from ethorch.quantization.passes.negated_masks import negate_masks
from ethorch.quantization.passes.state_buffers import register_written_parameters
from ethorch.quantization.passes.strides import resolve_strides
from ethorch.quantization.passes.top_k import lower_top_k
from ethorch.quantization.passes.wrapped_graphs import inline_wrapped_graphs
from ethorch.support.errors import QuantizationError


@dataclass(frozen=True)
class Pass:
    """A pass in ``PASSES``.

    Attributes:
        name: Name of the function, or another name if the function runs twice.
        run: Function that transforms the graph in place.
        after, before: Names of the passes that must run earlier or later, respectively.
        only: ``trainable`` if the pass runs only in training, ``fixed`` if it never runs in training.
    """

    name: str
    run: Callable[[GraphModule, PassContext], None]
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    only: Literal["trainable", "fixed"] | None = None


PASSES = (
    # Guards break re-export.
    Pass("remove_guards", remove_guards, before=("inline_wrapped_graphs",)),
    Pass("inline_wrapped_graphs", inline_wrapped_graphs, before=("functionalize",)),
    # Later passes assume that values do not change.
    Pass("functionalize", functionalize, before=("register_written_parameters",)),
    # Requires the strides of PyTorch's results.
    Pass("resolve_strides", resolve_strides, after=("functionalize",), before=("remove_no_ops", "lift_scalars", "fold_constants")),
    # Written parameters are not constant.
    Pass("register_written_parameters", register_written_parameters, before=("fold_constants",), only="fixed"),
    Pass("freeze_parameters", freeze_parameters, before=("fold_constants",), only="fixed"),
    # Decompositions emit the fixed form.
    Pass("fix_batch_norms", fix_batch_norms, before=("decompose_composites",), only="fixed"),
    Pass("rename_shared_weights", rename_shared_weights, only="trainable"),
    # Assertions would prevent the removal of constants.
    Pass("remove_assertions", remove_assertions, before=("fold_constants",)),
    # Decompositions match patterns that a dropout would hide.
    Pass("remove_no_ops", remove_no_ops, before=("decompose_composites",)),
    Pass("promote_integers", promote_integers, after=("remove_no_ops",), before=("narrow_indices", "tabulate_positions")),
    # The passes after this one use the rank of operands.
    Pass("lift_scalars", lift_scalars, before=("remove_softmax_shifts", "fold_constants", "decompose_composites")),
    Pass("remove_softmax_shifts", remove_softmax_shifts, after=("remove_no_ops",), before=("unify_masks",)),
    # Matches ``full`` operators, which folding would replace.
    Pass("lower_top_k", lower_top_k, after=("functionalize",), before=("fold_constants",)),
    # Matches argmax and argmin.
    Pass("lower_hard_choices", lower_hard_choices, after=("functionalize",), before=("decompose_composites",)),
    # Does not match casts, and emits constants.
    Pass("lower_experts", lower_experts, after=("remove_no_ops",), before=("fold_constants",)),
    # Decompositions depend on constant operands and their values.
    Pass("fold_constants", fold_constants, before=("decompose_composites",)),
    # Does not match constant indices.
    Pass("index_by_tensors", index_by_tensors, after=("fold_constants",), before=("decompose_composites", "narrow_indices")),
    # Constants are folded before they are narrowed.
    Pass("convert_float_types", convert_float_types, after=("fold_constants",), before=("lower_complex",), only="fixed"),
    # Requires constant windows and rotations, and emits composites.
    Pass("lower_complex", lower_complex, after=("fold_constants",), before=("decompose_composites",)),
    Pass("decompose_composites", decompose_composites, after=("fold_constants",), before=("fold_constants_again",)),
    # PyTorch's decompositions add floats to integers (pairwise_distance).
    Pass(
        "promote_integers_again", promote_integers, after=("decompose_composites",), before=("narrow_indices", "tabulate_positions")
    ),
    # Decompositions of recurrent layers emit joins.
    Pass("bypass_joins", bypass_joins, after=("decompose_composites",), before=("fold_constants_again",)),
    # Decompositions emit operators of constants (attention masks).
    Pass("fold_constants_again", fold_constants, after=("decompose_composites",)),
    # Matches decomposed minima and folded masks.
    Pass("negate_masks", negate_masks, after=("decompose_composites", "fold_constants_again"), before=("unify_masks",)),
    # Requires decomposed attention and folded masks.
    Pass("unify_masks", unify_masks, after=("decompose_composites", "fold_constants_again")),
    # Decompositions emit index operators.
    Pass("narrow_indices", narrow_indices, after=("decompose_composites",)),
    # The narrowed index selects rows, and masks must not become tables.
    Pass("tabulate_positions", tabulate_positions, after=("narrow_indices", "unify_masks")),
    # The passes before this one match views of an index before its cast.
    Pass("cast_inputs_first", cast_inputs_first, after=("narrow_indices", "tabulate_positions")),
    # The passes before this one match remainders of indices.
    Pass("correct_remainders", correct_remainders, after=("decompose_composites", "narrow_indices", "tabulate_positions")),
    # Narrowing replaces casts.
    Pass("copy_returned_casts", copy_returned_casts, after=("narrow_indices",)),
    # Later constants would not be promoted.
    Pass("promote_constants", promote_constants, after=("fold_constants_again", "unify_masks", "tabulate_positions")),
    # Other passes do not match a clamp before a view.
    Pass("hoist_clamps", hoist_clamps, after=("decompose_composites", "promote_constants")),
)


def run_passes(graph_module: GraphModule, context: PassContext) -> GraphModule:
    """Run ``PASSES`` in place, and eliminate dead code after each pass. Dynamic dims remain dynamic, except in training.

    Raises:
        QuantizationError: An in-place operator has no functional form, or writes to a tensor with a data-dependent shape.
    """
    kind = "trainable" if context.trainable else "fixed"
    for each in PASSES:
        try:
            if each.only in (None, kind):
                with nullcontext() if context.trainable else suppress_guards(graph_module.graph.nodes):
                    each.run(graph_module, context)
        except GuardOnDataDependentSymNode as error:
            first = next(node for node in graph_module.graph.nodes if shape_of_values(node))
            line = (first.meta.get("stack_trace") or "").strip().splitlines()[-1:]
            raise QuantizationError(
                "quantize.shape_of_values",
                f"{first.name}{''.join(f' ({source.strip()})' for source in line)}: in-place writes to tensors with data-dependent "
                "shapes are not supported. Use torch.where to set elements to 0 instead of removing them.",
            ) from error
        graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module
