from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer
from typing_extensions import Self

from ethorch.lower.fx.export import check_float32
from ethorch.lower.fx.node import flat, is_float, is_left_out, leave_out
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.spec import find
from ethorch.models.open_sizes import is_dynamic
from ethorch.quantization.annotate import Scan
from ethorch.quantization.calibration_checks import check_shapes
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.control_flow import quantize_with_submodules
from ethorch.quantization.link_observers import INNER, link_observers
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.pipeline import run_passes
from ethorch.quantization.selection import NodeFinder, Settings
from ethorch.quantization.specs import ANNOTATION
from ethorch.support.errors import QuantizationError
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tosa_specification import TosaSpecification
from ethorch.targets.tuning import UNTUNED

logger = logging.getLogger(__name__)

Finder = NodeFinder | Callable[[GraphModule], Iterable[Node]]


_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}


class TOSAQuantizer(Quantizer):  # type: ignore[misc]  # torchao has no annotations
    """A quantizer that annotates a graph from ``torch.export`` for ``prepare_pt2e`` and ``prepare_qat_pt2e``.

    Setters return the quantizer. If several settings match a node, the most specific setting applies, even if its config is
    ``None``. From specific to general, the order is: node name, node finder (the last one), node target, module name (the
    innermost), module type (the innermost), global. A setting that matches no node causes a warning.

    Args:
        compile_spec: A compile spec, its list form, or a TOSA specification such as ``"TOSA-1.0+INT"``.
        use_composable_quantizer: Unused, for compatibility with ExecuTorch's Arm backend.

    Raises:
        SpecError: ``compile_spec`` is invalid.
    """

    def __init__(
        self, compile_spec: ArmCompileSpec | Sequence[Any] | TosaSpecification | str, use_composable_quantizer: bool = True
    ):
        super().__init__()
        if isinstance(compile_spec, (str, TosaSpecification)):
            compile_spec = TosaCompileSpec(compile_spec)
        self.compile_spec: ArmCompileSpec = ArmCompileSpec.of(compile_spec)
        self.settings = Settings()
        self._io: QuantizationConfig | None = None

    @property
    def tosa_spec(self) -> TosaSpecification:
        """The TOSA specification of the target."""
        spec: TosaSpecification = self.compile_spec.tosa_spec
        return spec

    @property
    def global_config(self) -> QuantizationConfig | None:
        """The config of operators without a more specific setting."""
        return self.settings.everything

    def set_global(self, quantization_config: QuantizationConfig | None) -> Self:
        """Quantize operators without a more specific setting.

        In all setters except ``set_io``, the config None leaves operators in float.
        """
        self.settings.everything = quantization_config
        return self

    def set_io(self, quantization_config: QuantizationConfig | None) -> Self:
        """Set the config of float program inputs and outputs. The config None selects the configs of adjacent operators.

        The converted program still has float inputs and outputs. To change their dtype, use ``ethorch.compile(..., io="uint8")``,
        or ExecuTorch's ``QuantizeInputs`` and ``QuantizeOutputs``.
        """
        self._io = quantization_config
        return self

    def set_module_name(self, module_name: str | Sequence[str], quantization_config: QuantizationConfig | None) -> Self:
        """Quantize one or more submodules by name, e.g. ``"blocks.sub"``."""
        self.settings.module_names.update(dict.fromkeys(_as_list(module_name), quantization_config))
        return self

    def set_module_type(
        self, module_type: type | str | Sequence[type | str], quantization_config: QuantizationConfig | None
    ) -> Self:
        """Quantize all instances of one or more module classes, passed as types or names."""
        self.settings.module_types.update(dict.fromkeys(_as_list(module_type), quantization_config))
        return self

    def set_node_target(self, node_target: Any, quantization_config: QuantizationConfig | None) -> Self:
        """Quantize the nodes that call one or more targets, e.g. ``torch.ops.aten.add.Tensor``."""
        self.settings.targets.update(dict.fromkeys(_as_list(node_target), quantization_config))
        return self

    def set_node_name(self, node_name: str | Sequence[str], quantization_config: QuantizationConfig | None) -> Self:
        """Quantize one or more FX nodes by name."""
        self.settings.names.update(dict.fromkeys(_as_list(node_name), quantization_config))
        return self

    def set_node_finder(self, quantization_config: QuantizationConfig | None, node_finder: Finder) -> Self:
        """Quantize the nodes that ``node_finder`` returns.

        Args:
            node_finder: Object with ``find_nodes(graph_module)``, or a function of the graph module. It is called before the graph
                is decomposed, and again when the graph is annotated.
        """
        self.settings.finders.append((node_finder, quantization_config))
        return self

    def quantize_with_submodules(
        self, model: GraphModule, calibration_samples: Sequence[tuple[Any, ...]], is_qat: bool = False, fold_quantize: bool = True
    ) -> GraphModule:
        """Prepare, calibrate and convert ``model``, including the branches of ``torch.cond`` and ``while_loop``.

        Args:
            model: Module from ``torch.export.export(...).module()``.
            calibration_samples: Argument tuples. A branch that no sample executes causes a warning.
            is_qat: Whether to prepare with ``prepare_qat_pt2e``.
            fold_quantize: See ``convert_pt2e``.

        Raises:
            QuantizationError: ``calibration_samples`` is empty, or a control-flow operator was never executed.
        """
        return quantize_with_submodules(self, model, calibration_samples, is_qat, fold_quantize)

    # --- torchao's interface ------------------------------------------------------------------------------------------

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run the passes of ``ethorch.quantization.passes.pipeline``.

        Raises:
            QuantizationError: An in-place operator has no functional form, or a float parameter or input is not float32.
        """
        inputs = ((node.name, node.meta.get("val")) for node in model.graph.find_nodes(op="placeholder"))
        check_float32((f"parameter {name}", parameter.dtype) for name, parameter in model.named_parameters())
        check_float32((f"input {name}", value.dtype) for name, value in inputs if isinstance(value, torch.Tensor))
        config_of = functools.cache(
            lambda: self.settings.of(model, warn=False)
        )  # lazy, because passes replace in-place operators first
        limits = self.compile_spec.target.limits if isinstance(self.compile_spec, EthosUCompileSpec) else None
        run_passes(model, PassContext(lambda node: config_of()(node) is None, limits, self.settings.trains))
        for child in model.children():
            if isinstance(child, GraphModule):
                child.meta[INNER] = True
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate every supported operator with a config.

        Raises:
            QuantizationError: An annotated operator reads or computes float64.
        """
        inner = bool(model.meta.get(INNER))
        Scan(model, self.settings.of(model, warn=not inner), None if inner else self._io).run()
        explicit_config = self.settings.match_explicit(model)
        for node in model.graph.nodes:
            annotation = node.meta.get(ANNOTATION)
            if annotation is not None and not is_left_out(node):  # quantize does not support float64, but promotes half precision
                values = ((arg.name, arg.meta["val"]) for arg in (*annotation.input_qspec_map, node) if "val" in arg.meta)
                check_float32((name, x.dtype) for name, x in values if isinstance(x, torch.Tensor) and x.dtype == torch.float64)
            is_excluded = node.op == "call_function" and explicit_config(node) == (None,)
            if is_excluded and any(map(is_float, (node, *node.all_input_nodes))):
                leave_out(node)
        return model

    def validate(self, model: GraphModule) -> None:
        """Check a graph after annotation, and warn if no operator is annotated.

        Raises:
            QuantizationError: An operator has inputs on different devices, or converts a wide unsigned integer.
        """
        for node in model.graph.nodes:
            inputs = flat([arg.meta.get("val") for arg in node.all_input_nodes])
            dtypes = {tensor.dtype for tensor in (*inputs, node.meta.get("val")) if isinstance(tensor, Tensor)}
            if node.op == "call_function" and find(node.target) is to and not dtypes.isdisjoint(_UNSIGNED):
                raise QuantizationError(
                    "quantize.unsigned",
                    f"{node.name}: expected uint8, signed integers or floats, got "
                    f"{' and '.join(sorted(str(dtype).removeprefix('torch.') for dtype in dtypes & _UNSIGNED))}, for which "
                    "ExecuTorch has no kernels. Use int32 or int64 in the model and for its inputs",
                )
            devices = sorted({str(value.device) for value in inputs if isinstance(value, Tensor)})
            if node.op == "call_function" and len(devices) > 1:
                raise QuantizationError(
                    "quantize.devices",
                    f"Quantizer detected operator {node.name} with inputs on different devices: {', '.join(devices)}. "
                    "Move the model and its inputs to one device before torch.export",
                )
        nodes = model.graph.nodes
        if not model.meta.get(INNER) and not any(ANNOTATION in node.meta or is_dynamic(node) for node in nodes):
            logger.warning(
                "no operator was quantized, because no supported operator of the model has a quantization config. Use operators "
                "listed in docs/ops.md, or set a scheme (ethorch.compile) or config (EthosUQuantizer) for more operators. "
                "[quantize.nothing]"
            )

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Configure the observers created by ``prepare_pt2e``, and insert a check of sample shapes."""
        target = getattr(self.compile_spec, "target", None)
        link_observers(model, edge_or_node_to_obs_or_fq, UNTUNED if target is None else target.tuning)
        if not model.meta.get(INNER) and not self.settings.trains:
            check_shapes(model)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class EthosUQuantizer(TOSAQuantizer):
    """A quantizer for an Ethos-U, e.g. ``EthosUQuantizer(EthosUCompileSpec("ethos-u55-128"))``.

    See :class:`TOSAQuantizer` for the arguments.
    """
