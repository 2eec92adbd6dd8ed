"""The Arm backend's test pipelines, which run programs in ethorch's simulator instead of Arm's FVP.

``VgfPipeline`` and the pipelines that test passes or the quantizer in isolation are not available.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from executorch.backends.test.harness.stages import StageType
from torch import nn
from torch.utils import _pytree as pytree
from typing_extensions import Self

from ethorch.backend.preprocess import lowered_graphs
from ethorch.quantization.config import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.quantization.quantizer import TOSAQuantizer
from ethorch.support.errors import EthorchError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.testing.stages import Quantize, Spec
from ethorch.testing.tester import EthosUTester

__all__ = [
    "BasePipeline",
    "EthosU55PipelineINT",
    "EthosU65PipelineINT",
    "EthosU85PipelineINT",
    "OpNotSupportedPipeline",
    "TosaPipelineFP",
    "TosaPipelineINT",
]

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=tuple[Any, ...])
Names = str | Sequence[str] | None

DELEGATE = "torch.ops.higher_order.executorch_call_delegate"
_QUANTIZE = "torch.ops.quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "torch.ops.quantized_decomposed.dequantize_per_tensor.default"
#: Stages of a tester that can run only once. Identifiers of other stages may end with a number or a suffix.
_ONCE = frozenset({"quantize", "export", "to_edge", "partition", "to_edge_transform_and_lower", "to_executorch", "serialize"})


@dataclass
class PipelineStage:
    """A function call in a pipeline, with an identifier and arguments."""

    id: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        self.function(*self.args, **self.kwargs)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Replace the positional arguments if any are passed, and add or replace keyword arguments."""
        self.args = args or self.args
        self.kwargs |= kwargs


class BasePipeline(Generic[T]):
    """A modifiable list of test stages.

    The default stages are export, check, lower, check and ``to_executorch``.

    Args:
        test_data: Inputs for exporting and running the module.
        aten_ops: Strings that the exported graph must contain, e.g. ``torch.ops.aten.add.Tensor``.
        exir_ops: Names of edge operators that must be delegated.
        use_to_edge_transform_and_lower: Whether one stage replaces the stages ``to_edge`` and ``partition``.
        dynamic_shapes, transform_passes: See ``EthosUTester``.
    """

    def __init__(
        self,
        module: nn.Module,
        test_data: T,
        aten_ops: Names,
        compile_spec: Spec,
        exir_ops: Names = None,
        use_to_edge_transform_and_lower: bool = True,
        dynamic_shapes: Any = None,
        transform_passes: Any = None,
    ):
        self.tester = EthosUTester(
            module, test_data, compile_spec, dynamic_shapes=dynamic_shapes, transform_passes=transform_passes
        )
        self.test_data = test_data
        self._stages: list[PipelineStage] = []
        edge = _name_list(exir_ops)
        self.add_stage(self.tester.export)
        self.add_stage(self.tester.check, _name_list(aten_ops), suffix="aten")
        if use_to_edge_transform_and_lower:
            self.add_stage(self.tester.to_edge_transform_and_lower)
        else:
            self.add_stage(self.tester.to_edge)
            self.add_stage(self.tester.check, edge, suffix="exir")
            self.add_stage(self.tester.partition)
        self.lowering = self._stages[-1].id
        self.add_stage(self.tester.check_not, edge, suffix="exir")
        self.add_stage(self.tester.check_count, {DELEGATE: 1}, suffix="exir")
        self.add_stage(self.tester.to_executorch)

    @property
    def stages(self) -> tuple[str, ...]:
        """The identifiers of the stages, in order."""
        return tuple(stage.id for stage in self._stages)

    def add_stage(self, func: Callable[..., Any], *args: Any, pos: int = -1, suffix: str | None = None, **kwargs: Any) -> Self:
        """Insert a stage that calls ``func``.

        The stage's identifier is the function's name. If the stage can be repeated, a dot and ``suffix`` are appended. The
        default suffix is the number of existing stages for this function. If it is 0, nothing is appended.

        Args:
            pos: Position. -1 appends the stage, -2 inserts it before the last stage.

        Raises:
            EthorchError: The identifier already exists, or the position is out of range.
        """
        count = len(self._stages)
        place = pos if pos >= 0 else count + pos + 1
        if not 0 <= place <= count:
            raise EthorchError(f"expected pos from {-count - 1} to {count} (the pipeline has {count} stages), got {pos}.")
        name = getattr(func, "__name__", type(func).__name__)
        if name == "dump_artifact" and suffix is not None:
            args = (*args, suffix)
        if name not in _ONCE:
            number = sum(stage.id.partition(".")[0] == name for stage in self._stages)
            suffix = suffix or (str(number) if number else "")
            name = f"{name}.{suffix}" if suffix else name
        if name in self.stages:
            raise EthorchError(
                f"expected a new stage identifier, got {name!r}. Pass another suffix, or call pop_stage({name!r}) first."
            )
        self._stages.insert(place, PipelineStage(name, func, args, kwargs))
        return self

    def add_stage_after(self, stage_id: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Self:
        """Insert a stage after ``stage_id`` that calls ``func``."""
        return self.add_stage(func, *args, **{**kwargs, "pos": self.find_pos(stage_id) + 1})

    def pop_stage(self, identifier: int | str) -> PipelineStage:
        """Remove and return the stage with the given position or identifier."""
        if isinstance(identifier, str):
            return self._stages.pop(self.find_pos(identifier))
        count = len(self._stages)
        if not -count <= identifier < count:
            raise EthorchError(f"expected a position from {-count} to {count - 1}, or a stage identifier, got {identifier}.")
        return self._stages.pop(identifier)

    def find_pos(self, stage_id: str) -> int:
        """Return the position of a stage.

        Raises:
            EthorchError: The stage does not exist.
        """
        if stage_id not in self.stages:
            raise EthorchError(f"expected a stage identifier in {', '.join(self.stages)}, got {stage_id!r}.")
        return self.stages.index(stage_id)

    def has_stage(self, stage_id: str) -> bool:
        """Return True if the pipeline has the stage."""
        return stage_id in self.stages

    def change_args(self, stage_id: str, *args: Any, **kwargs: Any) -> Self:
        """Update the arguments of a stage. See :meth:`PipelineStage.update`."""
        self._stages[self.find_pos(stage_id)].update(*args, **kwargs)
        return self

    def dump_artifact(self, stage_id: str, suffix: str | None = None) -> Self:
        """Add a stage that appends the artifact of stage ``stage_id`` to the file named ``suffix`` (default: standard output)."""
        return self.add_stage_after(stage_id, self.tester.dump_artifact, suffix=suffix)

    def dump_operator_distribution(self, stage_id: str, suffix: str | None = None, include_dtypes: bool = False) -> Self:
        """Add a stage after ``stage_id`` that prints the operator counts."""
        return self.add_stage_after(stage_id, self.tester.dump_operator_distribution, suffix=suffix, include_dtypes=include_dtypes)

    def count_tosa_ops(self, expected_ops: Mapping[str, int]) -> Self:
        """Add a stage after lowering that checks the TOSA operator counts of all delegates, e.g. ``{"CONV2D": 2}``."""

        def count_tosa_ops() -> None:
            graphs = lowered_graphs(self.tester.graph_module())
            operators = [op.name for graph in graphs for region in graph.regions() for op in region.ops]
            counts = [(name, n, operators.count(name)) for name, n in expected_ops.items()]
            wrong = [f"expected {n} TOSA {name} operators, got {count}" for name, n, count in counts if count != n]
            if wrong:
                listing = ", ".join(f"{operators.count(name)} {name}" for name in sorted(set(operators))) or "none"
                raise AssertionError(f"{self.tester.name}: {'; '.join(wrong)}. All TOSA operators: {listing}.")

        return self.add_stage_after(self.lowering, count_tosa_ops, suffix="tosa_ops")

    def run_and_compare_to_initial_model(
        self,
        frobenius_threshold: float | None = 0.01,
        cosine_threshold: float | None = 0.99,
        clean_reference: bool = True,
        compared_stage: str = "export",
    ) -> Self:
        """Add a stage that compares the outputs after ``compared_stage`` with the float module's outputs.

        Args:
            frobenius_threshold, cosine_threshold: See ``EthosUTester.run_method_and_compare_outputs``.
            clean_reference: Has no effect, because the float module is always the reference.
        """
        del clean_reference
        return self.add_stage_after(
            compared_stage,
            self.tester.run_method_and_compare_outputs,
            inputs=self.test_data,
            run_eager_mode=compared_stage == "export",
            frobenius_threshold=frobenius_threshold,
            cosine_threshold=cosine_threshold,
            reference_stage_type=StageType.INITIAL_MODEL,
            suffix="original_model",
        )

    def run(self) -> None:
        """Run all stages in order. If a stage fails, log the stage and re-raise the error.

        Raises:
            AssertionError: A check failed.
        """
        for stage in self._stages:
            try:
                stage()
            except Exception:
                logger.error("%s: the stage %s failed. Stages: %s", self.tester.name, stage.id, ", ".join(self.stages))
                raise

    @property
    def quantizer(self) -> TOSAQuantizer:
        """The quantizer of the ``quantize`` stage, which can be configured further."""
        (stage,) = self._stages[self.find_pos("quantize")].args
        assert isinstance(stage.quantizer, TOSAQuantizer)
        return stage.quantizer

    def _add_quantize(
        self,
        int16: bool,
        per_channel: bool,
        quantize_io: bool,
        epsilon: float,
        fold_quantize: bool,
        floats_on_npu: bool = False,
    ) -> None:
        config = get_symmetric_quantization_config(is_per_channel=per_channel)
        if int16:
            config = get_symmetric_a16w8_quantization_config(is_per_channel=per_channel, epsilon=epsilon)
        quantizer = self.tester.quantizer(config)
        if quantize_io:
            quantizer.set_io(config)
        self.add_stage(self.tester.quantize, Quantize(quantizer, fold_quantize=fold_quantize), pos=0)
        leaves = pytree.tree_leaves(self.test_data)
        if any(isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point for leaf in leaves):
            both = [_DEQUANTIZE, _QUANTIZE]
            self.add_stage_after("quantize", self.tester.check, both, suffix="quant_nodes")
            self.add_stage_after(self.lowering, self.tester.check_not, both, suffix="quant_nodes")
        if floats_on_npu:
            kinds = [f"{way}_per_{what}" for way in ("quantize", "dequantize") for what in ("tensor", "channel")]
            edge = [f"executorch_exir_dialects_edge__ops_quantized_decomposed_{kind}_default" for kind in kinds]
            self.add_stage_after(self.lowering, self.tester.check_not, edge, suffix="exir_quant_nodes")


def _name_list(names: Names) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def _tosa_spec(
    profile: str, version: str | None, extensions: Iterable[str] | None, path: str | None, debug: Any
) -> TosaCompileSpec:
    spec = TosaCompileSpec("+".join([f"TOSA-{version or '1.0'}", profile, *(extensions or ())]))
    return spec.dump_intermediate_artifacts_to(path).dump_debug_info(debug)


class TosaPipelineINT(BasePipeline[T]):
    """A pipeline that compares the quantized module with its TOSA INT graph, which runs in the TOSA reference model.

    Args:
        module, test_data, aten_op, exir_op, use_to_edge_transform_and_lower, dynamic_shapes: See ``BasePipeline``.
        symmetric_io_quantization: Whether to apply the operators' quantization config to program inputs and outputs.
        per_channel_quantization: Whether each output channel has its own weight scale.
        custom_path, tosa_debug_mode: Folder for TOSA graphs, and kind of debug information to write to it.
        atol, rtol, qtol: See ``EthosUTester.run_method_and_compare_outputs``.
        frobenius_threshold, cosine_threshold: Limits for the comparison of the quantized module with the float module.
        tosa_extensions: TOSA extensions. ``int16`` quantizes activations to int16.
        epsilon: Minimum scale of int16 activations.
        fold_quantize: Whether to store weights as integers.
    """

    def __init__(
        self,
        module: nn.Module,
        test_data: T,
        aten_op: Names,
        exir_op: Names = None,
        run_on_tosa_ref_model: bool = True,
        symmetric_io_quantization: bool = False,
        per_channel_quantization: bool = True,
        use_to_edge_transform_and_lower: bool = True,
        custom_path: str | None = None,
        tosa_debug_mode: Any = None,
        atol: float = 1e-03,
        rtol: float = 1e-03,
        qtol: float = 1,
        compare_tosa_ref_model_outputs: bool = True,
        frobenius_threshold: float | None = 0.15,
        cosine_threshold: float | None = 0.9,
        dynamic_shapes: Any = None,
        tosa_version: str | None = "1.0",
        tosa_extensions: Sequence[str] | None = None,
        epsilon: float = 2**-16,
        fold_quantize: bool = True,
    ):
        spec = _tosa_spec("INT", tosa_version, tosa_extensions, custom_path, tosa_debug_mode)
        super().__init__(module, test_data, aten_op, spec, exir_op, use_to_edge_transform_and_lower, dynamic_shapes)
        int16, floats = "int16" in (tosa_extensions or ()), spec.tosa_spec.support_float()
        self._add_quantize(int16, per_channel_quantization, symmetric_io_quantization, epsilon, fold_quantize, floats)
        if run_on_tosa_ref_model:
            self.add_stage(
                self.tester.run_method_and_compare_outputs,
                inputs=test_data,
                atol=atol,
                rtol=rtol,
                qtol=qtol,
                compare_outputs=compare_tosa_ref_model_outputs,
            )
        self.run_and_compare_to_initial_model(frobenius_threshold, cosine_threshold)


class TosaPipelineFP(BasePipeline[T]):
    """A pipeline that compares the float module with its TOSA FP graph, which runs in the TOSA reference model.

    See ``BasePipeline`` and ``TosaPipelineINT`` for the arguments.
    """

    def __init__(
        self,
        module: nn.Module,
        test_data: T,
        aten_op: Names,
        exir_op: Names = None,
        run_on_tosa_ref_model: bool = True,
        use_to_edge_transform_and_lower: bool = True,
        custom_path: str | None = None,
        tosa_debug_mode: Any = None,
        atol: float = 1e-03,
        rtol: float = 1e-03,
        qtol: float = 0,
        compare_tosa_ref_model_outputs: bool = True,
        dynamic_shapes: Any = None,
        transform_passes: Any = None,
        tosa_version: str | None = "1.0",
        tosa_extensions: Sequence[str] | None = None,
    ):
        spec = _tosa_spec("FP", tosa_version, tosa_extensions, custom_path, tosa_debug_mode)
        super().__init__(
            module, test_data, aten_op, spec, exir_op, use_to_edge_transform_and_lower, dynamic_shapes, transform_passes
        )
        if run_on_tosa_ref_model:
            self.add_stage(
                self.tester.run_method_and_compare_outputs,
                inputs=test_data,
                atol=atol,
                rtol=rtol,
                qtol=qtol,
                compare_outputs=compare_tosa_ref_model_outputs,
            )


class _EthosUPipelineINT(BasePipeline[T]):
    """A pipeline that compares the quantized module with its ``.pte``. See also ``TosaPipelineINT``.

    Args:
        run_on_fvp: Whether to run the ``.pte`` in ethorch's simulator.
        a16w8_quantization: Whether activations are int16.
        target: Name of the NPU, or a compile spec. Default: the class's ``TARGET``.
    """

    TARGET = ""

    def __init__(
        self,
        module: nn.Module,
        test_data: T,
        aten_ops: Names,
        exir_ops: Names = None,
        run_on_fvp: bool = True,
        symmetric_io_quantization: bool = False,
        per_channel_quantization: bool = True,
        a16w8_quantization: bool = False,
        use_to_edge_transform_and_lower: bool = True,
        custom_path: str | None = None,
        tosa_debug_mode: Any = None,
        atol: float = 1e-03,
        rtol: float = 1e-03,
        qtol: float = 1,
        epsilon: float = 2**-12,
        fold_quantize: bool = True,
        *,
        target: str | EthosUCompileSpec | None = None,
    ):
        spec = target if isinstance(target, EthosUCompileSpec) else EthosUCompileSpec(target or self.TARGET)
        spec.dump_intermediate_artifacts_to(custom_path).dump_debug_info(tosa_debug_mode)
        super().__init__(module, test_data, aten_ops, spec, exir_ops, use_to_edge_transform_and_lower)
        self._add_quantize(a16w8_quantization, per_channel_quantization, symmetric_io_quantization, epsilon, fold_quantize)
        if run_on_fvp:
            self.add_stage(self.tester.serialize)
            self.add_stage(self.tester.run_method_and_compare_outputs, inputs=test_data, atol=atol, rtol=rtol, qtol=qtol)


class EthosU55PipelineINT(_EthosUPipelineINT[T]):
    __doc__ = _EthosUPipelineINT.__doc__
    TARGET = "ethos-u55-128"


class EthosU65PipelineINT(_EthosUPipelineINT[T]):
    __doc__ = _EthosUPipelineINT.__doc__
    TARGET = "ethos-u65-256"


class EthosU85PipelineINT(_EthosUPipelineINT[T]):
    __doc__ = _EthosUPipelineINT.__doc__
    TARGET = "ethos-u85-256"


class OpNotSupportedPipeline(BasePipeline[T]):
    """A pipeline that lowers the module and checks that given operators are not delegated.

    Args:
        module, test_data: See ``BasePipeline``.
        non_delegated_ops: Edge operator -> expected number of calls on the CPU.
        n_expected_delegates: Expected number of delegates.
        custom_path: Folder for TOSA graphs.
        quantize: Whether to quantize the module and to use the INT profile instead of FP.
        u55_subset: Whether to restrict the profile to operators that the Ethos-U55 supports.
    """

    def __init__(
        self,
        module: nn.Module,
        test_data: T,
        non_delegated_ops: Mapping[str, int],
        n_expected_delegates: int = 0,
        custom_path: str | None = None,
        quantize: bool | None = False,
        u55_subset: bool | None = False,
        tosa_version: str = "1.0",
        tosa_extensions: Sequence[str] | None = None,
    ):
        extensions = [*(["u55"] if u55_subset else []), *(tosa_extensions or ())]
        spec = _tosa_spec("INT" if quantize else "FP", tosa_version, extensions, custom_path, None)
        super().__init__(module, test_data, None, spec)
        if quantize:
            self.add_stage(self.tester.quantize, Quantize(self.tester.quantizer()), pos=0)
        self.change_args("check_count.exir", {DELEGATE: n_expected_delegates, **non_delegated_ops})
        self.pop_stage("to_executorch")
