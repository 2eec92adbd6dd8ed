"""Quantize and lower a model stage by stage, with checks, like ArmTester in the Arm backend."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.backends.test.harness import Tester
from executorch.backends.test.harness.error_statistics import ErrorStatistics
from executorch.backends.test.harness.stages import Stage, StageType
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from typing_extensions import Self

from ethorch.backend.preprocess import lowered_graphs
from ethorch.formats.files import write_whole
from ethorch.lower.fx.export import export_module
from ethorch.lower.fx.node import op_name
from ethorch.lower.partition_report import PartitionReport
from ethorch.models.samples import read_samples
from ethorch.quantization.config import QuantizationConfig, get_symmetric_quantization_config
from ethorch.quantization.quantizer import EthosUQuantizer, TOSAQuantizer
from ethorch.support.errors import EthorchError
from ethorch.support.exclusive import exclusive
from ethorch.support.metrics import sqnr_db
from ethorch.support.wording import count_noun
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tosa_specification import TosaSpecification
from ethorch.testing import stages
from ethorch.testing.collation import collate
from ethorch.testing.comparison import Tolerance, differences, norms, outputs_of, tensors
from ethorch.testing.distribution import distribution, dtype_distribution, tosa_operators

Inputs = tuple[Any, ...]

_LOWERED = (StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.PARTITION)
_FIRST = (StageType.QUANTIZE, StageType.EXPORT)


class EthosUTester(Tester):  # type: ignore[misc]  # ExecuTorch has no types
    """A tester that runs the compilation stages of a model.

    Each stage and check returns the tester, so calls can be chained::

        EthosUTester(model, inputs, "ethos-u55-128").quantize().export().to_edge_transform_and_lower().check_count(
            {"torch.ops.higher_order.executorch_call_delegate": 1}
        ).to_executorch().serialize().run_method_and_compare_outputs(qtol=1)

    Programs run in ExecuTorch's runtime with the simulator, and TOSA graphs in the TOSA reference model. Failed checks
    raise AssertionError.

    Args:
        module: Model, switched to eval mode unless ``training`` is True.
        example_inputs: Tuple, or a single tensor.
        compile_spec: Name of an NPU (``"ethos-u55-128"``) or of a TOSA specification (``"TOSA-1.0+INT"``), or a compile spec.
        calibration: Samples for ``quantize``. See :func:`ethorch.compile`. Default: the example inputs.
        config: Configuration for ``quantize``. Default: int8 with per-channel weights.
        dynamic_shapes, constant_methods, transform_passes: Arguments of ``torch.export.export`` and
            ``to_edge_transform_and_lower``.

    Raises:
        SpecError: The NPU or the specification is unknown.
    """

    def __init__(
        self,
        module: nn.Module,
        example_inputs: Inputs | Tensor,
        compile_spec: str | stages.Spec | TosaSpecification = "ethos-u55-128",
        *,
        calibration: Any = None,
        config: QuantizationConfig | None = None,
        dynamic_shapes: Any = None,
        constant_methods: Mapping[str, Any] | None = None,
        transform_passes: Any = None,
        training: bool = False,
    ):
        self.compile_spec = spec_of(compile_spec)
        inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
        self.calibration, self.config = _read_calibration(calibration, inputs), config
        self.constant_methods, self.transform_passes = constant_methods, transform_passes
        super().__init__(module, inputs, dynamic_shapes=dynamic_shapes, training=training)

    # stages -----------------------------------------------------------------------------------------------------------

    def quantize(self, quantize_stage: Any = None, *, calibration: Any = None) -> Self:
        """Calibrate and quantize the model.

        Args:
            quantize_stage: Quantizer, QuantizationConfig, or stage of ExecuTorch's harness.
            calibration: Samples. Default: the samples of the tester.
        """
        if not isinstance(quantize_stage, Stage):
            samples = self.calibration if calibration is None else _read_calibration(calibration, self.example_inputs)
            quantize_stage = stages.Quantize(self.quantizer(quantize_stage), samples)
        return self._stage(super().quantize, quantize_stage)

    def quantizer(self, settings: QuantizationConfig | TOSAQuantizer | None = None) -> TOSAQuantizer:
        """Return a quantizer for the target, configured by ``settings``, or ``settings`` itself if it is a quantizer."""
        if isinstance(settings, TOSAQuantizer):
            return settings
        quantizer_class = EthosUQuantizer if isinstance(self.compile_spec, EthosUCompileSpec) else TOSAQuantizer
        return quantizer_class(self.compile_spec).set_global(settings or self.config or get_symmetric_quantization_config())

    def export(self, export_stage: Any = None) -> Self:
        """Run ``torch.export`` on the quantized module, or on the float module if ``quantize`` has not run."""
        return self._stage(super().export, export_stage or stages.Export(self.dynamic_shapes))

    def to_edge(self, to_edge_stage: Any = None, *, config: Any = None) -> Self:
        """Run ExecuTorch's ``to_edge``. Run ``partition`` afterwards.

        ``to_edge`` decomposes more operators than ``to_edge_transform_and_lower``.
        """
        return self._stage(super().to_edge, to_edge_stage or stages.ToEdge(config))

    def partition(self, partition_stage: Any = None) -> Self:
        """Delegate the operators that the NPU supports."""
        return self._stage(super().partition, partition_stage or stages.Partition(self.compile_spec))

    def to_edge_transform_and_lower(
        self,
        to_edge_and_lower_stage: Any = None,
        generate_etrecord: bool = False,
        *,
        partitioners: Sequence[Any] | None = None,
        edge_compile_config: Any = None,
        additional_checks: Sequence[Any] | None = None,
        transform_passes: Any = None,
    ) -> Self:
        """Lower to the edge dialect and partition, like ``ethorch.compile``.

        Args:
            additional_checks: ``OperatorSupportBase`` instances for the partitioner. Ignored if ``partitioners`` is not None.
        """
        if partitioners is None and additional_checks is not None:
            partitioners = [stages.partitioner_for(self.compile_spec, additional_checks)]
        stage = to_edge_and_lower_stage or stages.ToEdgeTransformAndLower(
            self.compile_spec, partitioners, edge_compile_config, self.constant_methods, transform_passes or self.transform_passes
        )
        return self._stage(super().to_edge_transform_and_lower, stage, generate_etrecord=generate_etrecord)

    def to_executorch(self, to_executorch_stage: Any = None) -> Self:
        """Create the ExecuTorch program."""
        return self._stage(super().to_executorch, to_executorch_stage or stages.ToExecutorch(self.compile_spec))

    def serialize(self, serialize_stage: Any = None) -> Self:
        """Serialize the ``.pte``."""
        program = self.stages[StageType.TO_EXECUTORCH]
        executorch_stage = program if isinstance(program, stages.ToExecutorch) else None
        return self._stage(super().serialize, serialize_stage or stages.Serialize(executorch_stage))

    def _stage(self, run: Callable[..., Any], stage: Any, **keywords: Any) -> Self:
        with exclusive():
            run(stage, **keywords)
        if stage.stage_type() in _LOWERED:
            collate(lowered_graphs(self.graph_module()), str(self.compile_spec.tosa_spec))
        return self

    def _pre(self, stage: Any) -> Any:
        kind = stage.stage_type()
        if self.stages[kind] is not None:
            raise EthorchError(f"{self.name}: the stage {_name(kind)} has already run. Create a new tester to run the stage again.")
        allowed = _FIRST if self.cur is None else self.pipeline[self.cur]
        if kind not in allowed:
            after = "as the first stage" if self.cur is None else f"after {_name(self.cur)}"
            expected = " or ".join(map(_name, allowed)) or "no stage"
            raise EthorchError(f"{self.name}: expected {expected} {after}, got {_name(kind)}.")
        return super()._pre(stage)

    # state -------------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The names of the tester class, the model class and the target, e.g. ``EthosUTester(Net, ethos-u55-128)``."""
        return f"{type(self).__name__}({type(self.original_module).__name__}, {self.compile_spec.target})"

    @property
    def report(self) -> PartitionReport | None:
        """The report of the partitioner, or None before partitioning."""
        lowered = [self.stages[kind] for kind in _LOWERED if self.stages[kind] is not None]
        return stages.report_of(lowered[0]) if lowered else None

    def is_quantized(self) -> bool:
        """Return True if ``quantize`` has run."""
        return self.stages[StageType.QUANTIZE] is not None

    def get_artifact(self, stage: StageType | None = None) -> Any:
        """Return the artifact of a stage (default: the last), e.g. an ExportedProgram, or bytes after ``serialize``."""
        return self._get_finished(stage).artifact

    def graph_module(self, stage: StageType | None = None) -> GraphModule:
        """Return the graph of a stage (default: the last). Raise EthorchError if the stage has no graph."""
        finished_stage = self._get_finished(stage)
        graph = finished_stage.graph_module
        if graph is None:
            raise EthorchError(f"{self.name}: the stage {_name(finished_stage.stage_type())} has no graph. Check an earlier stage.")
        assert isinstance(graph, GraphModule)
        return graph

    def _get_finished(self, stage: StageType | None) -> Any:
        kind = stage or self.cur
        if kind is None or self.stages[kind] is None:
            raise EthorchError(
                f"{self.name}: {'no stage has' if kind is None else f'the stage {_name(kind)} has not'} run yet. Run a stage first."
            )
        return self.stages[kind]

    def dump_artifact(self, path: str | os.PathLike[str] | None = None, stage: StageType | None = None) -> Self:
        """Append a stage's artifact to a file, by default standard output. After ``serialize``, write the ``.pte`` to ``path``."""
        self._get_finished(stage).dump_artifact(path)
        return self

    def dump_operator_distribution(
        self, path_to_dump: str | os.PathLike[str] | None = None, print_table: bool = True, include_dtypes: bool = True
    ) -> Self:
        """Write the operator counts, including TOSA operators after lowering, to a file or to standard output.

        Args:
            print_table: Whether to write a table instead of JSON.
            include_dtypes: Whether to count operators by result dtype.
        """
        return self._dump(
            distribution(self.graph_module(), _name(self.cur), self.report, print_table, include_dtypes), path_to_dump
        )

    def dump_dtype_distribution(self, path_to_dump: str | os.PathLike[str] | None = None, print_table: bool = True) -> Self:
        """Write the counts of placeholders and operator results for each dtype. See ``dump_operator_distribution``."""
        return self._dump(dtype_distribution(self.graph_module(), _name(self.cur), print_table), path_to_dump)

    def _dump(self, text: str, path: str | os.PathLike[str] | None) -> Self:
        if not path:
            print(text)
        else:
            write_whole(Path(path), f"{text}\n".encode())
        return self

    # checks -----------------------------------------------------------------------------------------------------------

    def check(self, input: Sequence[str]) -> Self:
        """Check that each string occurs in the code of the graph or, after ``quantize``, of the exported float model."""
        code = self.graph_module().code
        for text in input:
            if text not in code and not (self.is_quantized() and text in self._float_code()):
                self._fail(f"expected {text!r} in the graph, got no occurrence.")
        return self

    def check_not(self, input: Sequence[str]) -> Self:
        """Check that the graph's code does not contain any of the strings."""
        code = self.graph_module().code
        for text in input:
            if text in code:
                self._fail(f"expected no occurrence of {text!r} in the graph, got {code.count(text)}.")
        return self

    def check_count(self, input: Mapping[Any, int]) -> Self:
        """Check the number of occurrences of each string in the code of the graph."""
        code = self.graph_module().code
        for text, count in input.items():
            if (occurrences := code.count(str(text))) != count:
                self._fail(f"expected {count_noun(count, 'occurrence')} of {str(text)!r} in the graph, got {occurrences}.")
        return self

    def check_node_count(self, input: Mapping[Any, int]) -> Self:
        """Check the number of calls of each operator."""
        calls = Counter(node.target for node in self.graph_module().graph.nodes if node.op == "call_function")
        for target, count in input.items():
            if calls[target] != count:
                self._fail(f"expected {count_noun(count, 'call')} of {target}, got {calls[target]}.")
        return self

    def check_dtype_count(self, dtype_dict: Mapping[str, Mapping[str, int]]) -> Self:
        """Check the counts of the delegates' TOSA operators for each result dtype.

        Args:
            dtype_dict: Expected counts by TOSA operator and dtype, e.g. ``{"ADD": {"INT32": 1}}``. Other operators and dtypes are
                not checked.
        """
        counts = Counter(tosa_operators(self.graph_module()))
        for name, dtypes in dtype_dict.items():
            for dtype, count in dtypes.items():
                if counts[name, dtype] != count:
                    self._fail(f"expected {count_noun(count, f'{name} operator')} with {dtype} results, got {counts[name, dtype]}.")
        return self

    def _float_code(self) -> str:
        if not hasattr(self, "_original_code"):
            graph = export_module(copy.deepcopy(self.original_module), self.example_inputs)
            self._original_code = str(graph.graph_module.code)
        return self._original_code

    def _fail(self, problem: str) -> None:
        calls = Counter(_name_called_operator(node) for node in self.graph_module().graph.nodes if node.op == "call_function")
        lines = [f"{self.name}, after {_name(self.cur)}: {problem}"]
        lines.append("The graph calls " + (", ".join(f"{n} x {name}" for name, n in sorted(calls.items())) or "nothing") + ".")
        report = self.report
        if report is not None:
            lines.append(f"{report.summary()}.")
            lines += [f"  {text}" for text in report.refusal_texts()]
        raise AssertionError("\n".join(lines))

    # outputs ----------------------------------------------------------------------------------------------------------

    def generate_random_inputs(self) -> Iterator[Inputs]:
        """Yield the example inputs, with float tensors replaced by uniformly distributed random values of the same range."""
        if self.dynamic_shapes is not None:
            yield from super().generate_random_inputs()
            return
        yield pytree.tree_map(_like, self.example_inputs)

    def run_method_and_compare_outputs(
        self,
        stage: StageType | Inputs | None = None,
        inputs: Inputs | None = None,
        num_runs: int = 1,
        atol: float = 1e-03,
        rtol: float = 1e-03,
        qtol: float = 0,
        statistics_callback: Callable[[ErrorStatistics], None] | None = None,
        *,
        min_sqnr_db: float | None = None,
        frobenius_threshold: float | None = None,
        cosine_threshold: float | None = None,
        reference_stage_type: StageType | None = None,
        run_eager_mode: bool = False,
        compare_outputs: bool = True,
    ) -> Self:
        """Run the artifact of a stage and compare the outputs with a reference.

        Elements may differ by at most ``atol + rtol * |reference| + qtol * scale``, where ``scale`` is the output's quantization
        scale.

        Args:
            stage: Stage to run. Default: the last stage. ``StageType.INITIAL_MODEL`` is the float module.
            inputs: Inputs of one run. Default: random inputs for ``num_runs`` runs.
            statistics_callback: Function called with ExecuTorch's error statistics of each output.
            min_sqnr_db: Minimum SQNR against the float module.
            frobenius_threshold, cosine_threshold: Maximum relative Frobenius norm of the error, and minimum cosine similarity. They
                replace ``atol``, ``rtol`` and ``qtol``.
            reference_stage_type: Stage that computes the reference. Default: the quantized module, or the float module if
                ``quantize`` has not run.
            run_eager_mode: Whether to run the exported program in PyTorch instead of ``stage``.
        """
        if isinstance(stage, tuple):
            stage, inputs = None, stage
        kind = StageType.EXPORT if run_eager_mode else stage
        if kind != StageType.INITIAL_MODEL:
            kind = self._get_finished(kind).stage_type()
        for number in range(1 if inputs is not None else num_runs):
            run_inputs = inputs if inputs is not None else next(iter(self.generate_random_inputs()))
            outputs = self._compute_outputs(kind, run_inputs)
            if not compare_outputs:
                continue
            reference = self._run_reference(reference_stage_type, run_inputs)
            if statistics_callback is not None:
                for expected, got in zip(tensors(reference), tensors(outputs), strict=True):
                    statistics_callback(ErrorStatistics.from_tensors(got, expected))
            lines = self._compare(reference, outputs, Tolerance(atol, rtol, qtol), frobenius_threshold, cosine_threshold)
            if min_sqnr_db is not None:
                floats = self._run_reference(StageType.INITIAL_MODEL, run_inputs)
                if (decibels := sqnr_db(tensors(floats), tensors(outputs))) < min_sqnr_db:
                    lines.append(f"SQNR against the float module: expected at least {min_sqnr_db:g} dB, got {decibels:.1f} dB.")
            if lines:
                run_suffix = "" if inputs is not None or num_runs == 1 else f", run {number}"
                head = f"{self.name}, outputs of {_name(kind)}{run_suffix}:"
                raise AssertionError("\n  ".join([head, *lines]))
        return self

    def _compare(
        self, reference: Any, actual: Any, tolerance: Tolerance, frobenius: float | None, cosine: float | None
    ) -> list[str]:
        if frobenius is None and cosine is None:
            exported = self.stages[StageType.EXPORT]
            return differences(reference, actual, tolerance, [] if exported is None else outputs_of(exported.artifact))
        error, similarity = norms(reference, actual)
        lines = []
        if frobenius is not None and error > frobenius:
            lines.append(f"relative norm of the error: expected at most {frobenius:g}, got {error:.4g}.")
        if cosine is not None and similarity < cosine:
            lines.append(f"cosine similarity to the reference: expected at least {cosine:g}, got {similarity:.4g}.")
        return lines

    def _run_reference(self, kind: StageType | None, inputs: Inputs) -> Any:
        if kind is None:
            kind = StageType.QUANTIZE if self.is_quantized() else StageType.INITIAL_MODEL
        return self._compute_outputs(kind, inputs)

    def _compute_outputs(self, kind: StageType, inputs: Inputs) -> Any:
        inputs = copy.deepcopy(inputs)
        with torch.no_grad(), exclusive():
            if kind == StageType.INITIAL_MODEL:
                return copy.deepcopy(self.original_module)(*inputs)
            if kind == StageType.QUANTIZE:
                return copy.deepcopy(self.get_artifact(kind))(*inputs)
            return self._get_finished(kind).run_artifact(inputs)


def spec_of(name: str | stages.Spec | TosaSpecification) -> stages.Spec:
    """Return the compile spec for an NPU or TOSA specification, or ``name`` itself if it is a compile spec.

    Raises:
        SpecError: The name is unknown.
    """
    if isinstance(name, stages.Spec):
        return name
    if isinstance(name, TosaSpecification) or name.upper().startswith("TOSA"):
        return TosaCompileSpec(name)
    return EthosUCompileSpec(name)


def _read_calibration(calibration: Any, example: Inputs) -> list[Inputs]:
    return [] if calibration is None else [sample.inputs for sample in read_samples(calibration, example)]


def _name(kind: StageType | None) -> str:
    return "no stage" if kind is None else str(kind.name).lower()


def _name_called_operator(node: Node) -> str:
    name = op_name(node.target)
    return name if "." in name else str(getattr(node.target, "__name__", node.target))


def _like(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point or not leaf.numel():
        return leaf
    low, high = float(leaf.min()), float(leaf.max())
    return torch.empty_like(leaf).uniform_(low, high) if high > low else leaf.clone()
