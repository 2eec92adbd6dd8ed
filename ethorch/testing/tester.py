"""EthosUTester: a model stage by stage through quantization and lowering, with checks between, as the Arm backend's ArmTester."""

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
    """A model on its way to an NPU; each stage and each check returns the tester, so they chain::

        EthosUTester(model, inputs, "ethos-u55-128").quantize().export().to_edge_transform_and_lower().check_count(
            {"torch.ops.higher_order.executorch_call_delegate": 1}
        ).to_executorch().serialize().run_method_and_compare_outputs(qtol=1)

    Programs for Ethos-U run in ExecuTorch's runtime with the simulator, TOSA in the TOSA reference model. Checks raise
    AssertionError; what a stage cannot do raises the errors of ``ethorch``.

    Args:
        module: in eval mode from now on, unless ``training``.
        example_inputs: a tuple, or a tensor alone; they fix the shapes.
        compile_spec: name of an NPU (``"ethos-u55-128"``), of a TOSA specification (``"TOSA-1.0+INT"``), or a compile spec.
        calibration: samples for ``quantize``, as of ``ethorch.compile``; the example inputs alone where there are none.
        config: for ``quantize``; int8 with weights per channel by default.
        dynamic_shapes, constant_methods, transform_passes: of ``torch.export.export`` and ``to_edge_transform_and_lower``.
        training: the module stays in training mode.

    Raises:
        SpecError: the NPU or specification is unknown.
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
        self.calibration, self.config = _samples(calibration, inputs), config
        self.constant_methods, self.transform_passes = constant_methods, transform_passes
        super().__init__(module, inputs, dynamic_shapes=dynamic_shapes, training=training)

    # stages -----------------------------------------------------------------------------------------------------------

    def quantize(self, quantize_stage: Any = None, *, calibration: Any = None) -> Self:
        """Quantize with calibration.

        Args:
            quantize_stage: a quantizer with its settings, a QuantizationConfig, or a stage of ExecuTorch's harness.
            calibration: samples instead of the tester's.
        """
        if not isinstance(quantize_stage, Stage):
            given = self.calibration if calibration is None else _samples(calibration, self.example_inputs)
            quantize_stage = stages.Quantize(self.quantizer(quantize_stage), given)
        return self._stage(super().quantize, quantize_stage)

    def quantizer(self, settings: QuantizationConfig | TOSAQuantizer | None = None) -> TOSAQuantizer:
        """The quantizer for what is compiled for; ``settings`` is its config, or a quantizer that is taken as it is."""
        if isinstance(settings, TOSAQuantizer):
            return settings
        made = EthosUQuantizer if isinstance(self.compile_spec, EthosUCompileSpec) else TOSAQuantizer
        return made(self.compile_spec).set_global(settings or self.config or get_symmetric_quantization_config())

    def export(self, export_stage: Any = None) -> Self:
        """``torch.export`` of the quantized module, or of the module itself."""
        return self._stage(super().export, export_stage or stages.Export(self.dynamic_shapes))

    def to_edge(self, to_edge_stage: Any = None, *, config: Any = None) -> Self:
        """ExecuTorch's ``to_edge``, for ``partition``. It breaks operators up that ``to_edge_transform_and_lower`` leaves whole."""
        return self._stage(super().to_edge, to_edge_stage or stages.ToEdge(config))

    def partition(self, partition_stage: Any = None) -> Self:
        """What the NPU can run becomes delegates."""
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
        """Lower to the edge dialect and partition, as ``ethorch`` compiles.

        Args:
            additional_checks: ``OperatorSupportBase`` instances for the partitioner. Unused if ``partitioners`` are given.
        """
        if partitioners is None and additional_checks is not None:
            partitioners = [stages.partitioner_for(self.compile_spec, additional_checks)]
        stage = to_edge_and_lower_stage or stages.ToEdgeTransformAndLower(
            self.compile_spec, partitioners, edge_compile_config, self.constant_methods, transform_passes or self.transform_passes
        )
        return self._stage(super().to_edge_transform_and_lower, stage, generate_etrecord=generate_etrecord)

    def to_executorch(self, to_executorch_stage: Any = None) -> Self:
        """ExecuTorch's program."""
        return self._stage(super().to_executorch, to_executorch_stage or stages.ToExecutorch(self.compile_spec))

    def serialize(self, serialize_stage: Any = None) -> Self:
        """The bytes of the ``.pte``."""
        program = self.stages[StageType.TO_EXECUTORCH]
        ours = program if isinstance(program, stages.ToExecutorch) else None
        return self._stage(super().serialize, serialize_stage or stages.Serialize(ours))

    def _stage(self, run: Callable[..., Any], stage: Any, **keywords: Any) -> Self:
        with exclusive():
            run(stage, **keywords)
        if stage.stage_type() in _LOWERED:
            collate(lowered_graphs(self.graph_module()), str(self.compile_spec.tosa_spec))
        return self

    def _pre(self, stage: Any) -> Any:
        kind = stage.stage_type()
        if self.stages[kind] is not None:
            raise EthorchError(f"{self.name}: the stage {_name(kind)} ran already; make another tester to run it again.")
        allowed = _FIRST if self.cur is None else self.pipeline[self.cur]
        if kind not in allowed:
            after = "at the start" if self.cur is None else f"after {_name(self.cur)}"
            wanted = " or ".join(map(_name, allowed)) or "nothing"
            raise EthorchError(f"{self.name}: the stage {_name(kind)} cannot come {after}; {wanted} can.")
        return super()._pre(stage)

    # what there is ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``EthosUTester(Net, ethos-u55-128)``, for messages."""
        return f"{type(self).__name__}({type(self.original_module).__name__}, {self.compile_spec.target})"

    @property
    def report(self) -> PartitionReport | None:
        """Which operators are on the NPU, and why the others are not; None before they are chosen."""
        lowered = [self.stages[kind] for kind in _LOWERED if self.stages[kind] is not None]
        return stages.report_of(lowered[0]) if lowered else None

    def is_quantized(self) -> bool:
        """Has ``quantize`` run?"""
        return self.stages[StageType.QUANTIZE] is not None

    def get_artifact(self, stage: StageType | None = None) -> Any:
        """What a stage made: a GraphModule, an ExportedProgram, an EdgeProgramManager, an ExecutorchProgramManager, bytes."""
        return self._done(stage).artifact

    def graph_module(self, stage: StageType | None = None) -> GraphModule:
        """The graph that checks look at.

        Raises:
            EthorchError: the stage has none.
        """
        done = self._done(stage)
        graph = done.graph_module
        if graph is None:
            raise EthorchError(f"{self.name}: the stage {_name(done.stage_type())} has no graph; check an earlier one.")
        assert isinstance(graph, GraphModule)
        return graph

    def _done(self, stage: StageType | None) -> Any:
        kind = stage or self.cur
        if kind is None or self.stages[kind] is None:
            raise EthorchError(f"{self.name}: {'no stage' if kind is None else f'the stage {_name(kind)} has not'} run yet.")
        return self.stages[kind]

    def dump_artifact(self, path: str | os.PathLike[str] | None = None, stage: StageType | None = None) -> Self:
        """Append what a stage made as text to a file, or print it; of ``serialize``, the file is the ``.pte``."""
        self._done(stage).dump_artifact(path)
        return self

    def dump_operator_distribution(
        self, path_to_dump: str | os.PathLike[str] | None = None, print_table: bool = True, include_dtypes: bool = True
    ) -> Self:
        """How many of which operators the graph has; behind lowering also the TOSA operators of each delegate.

        Args:
            path_to_dump: a file that is written; None prints.
            print_table: a table; False: JSON.
            include_dtypes: count each dtype by itself.
        """
        return self._dump(
            distribution(self.graph_module(), _name(self.cur), self.report, print_table, include_dtypes), path_to_dump
        )

    def dump_dtype_distribution(self, path_to_dump: str | os.PathLike[str] | None = None, print_table: bool = True) -> Self:
        """Write how many inputs and results of the graph have each dtype. See ``dump_operator_distribution``."""
        return self._dump(dtype_distribution(self.graph_module(), _name(self.cur), print_table), path_to_dump)

    def _dump(self, text: str, path: str | os.PathLike[str] | None) -> Self:
        if not path:
            print(text)
        else:
            write_whole(Path(path), f"{text}\n".encode())
        return self

    # checks -----------------------------------------------------------------------------------------------------------

    def check(self, input: Sequence[str]) -> Self:
        """Each text is found in the code of the graph.

        Composite operators are taken apart before calibration, so behind ``quantize`` one that the float model calls counts too.
        """
        code = self.graph_module().code
        for text in input:
            if text not in code and not (self.is_quantized() and text in self._float_code()):
                self._fail(f"{text!r} is not in the graph.")
        return self

    def check_not(self, input: Sequence[str]) -> Self:
        """None of the texts is found in the code of the graph."""
        code = self.graph_module().code
        for text in input:
            if text in code:
                self._fail(f"{text!r} is {code.count(text)} times in the graph, and must not be.")
        return self

    def check_count(self, input: Mapping[Any, int]) -> Self:
        """Each text is found so many times in the code of the graph."""
        code = self.graph_module().code
        for text, count in input.items():
            if (found := code.count(str(text))) != count:
                self._fail(f"{str(text)!r} is {found} times in the graph, expected {count}.")
        return self

    def check_node_count(self, input: Mapping[Any, int]) -> Self:
        """Each operator is called so many times."""
        calls = Counter(node.target for node in self.graph_module().graph.nodes if node.op == "call_function")
        for target, count in input.items():
            if calls[target] != count:
                self._fail(f"{target} is called {calls[target]} times, expected {count}.")
        return self

    def check_dtype_count(self, dtype_dict: Mapping[str, Mapping[str, int]]) -> Self:
        """Check how many TOSA operators of the delegates have results of each dtype.

        Args:
            dtype_dict: Numbers by TOSA operator and dtype, e.g. ``{"ADD": {"INT32": 1}}``. Operators and dtypes that it leaves out
                are not checked.
        """
        counts = Counter(tosa_operators(self.graph_module()))
        for name, dtypes in dtype_dict.items():
            for dtype, count in dtypes.items():
                if counts[name, dtype] != count:
                    self._fail(f"{counts[name, dtype]} TOSA operators {name} have a result of {dtype}, expected {count}.")
        return self

    def _float_code(self) -> str:
        """The code of the module before it was quantized."""
        if not hasattr(self, "_original_code"):
            graph = export_module(copy.deepcopy(self.original_module), self.example_inputs)
            self._original_code = str(graph.graph_module.code)
        return self._original_code

    def _fail(self, found: str) -> None:
        calls = Counter(_called(node) for node in self.graph_module().graph.nodes if node.op == "call_function")
        lines = [f"{self.name}, after {_name(self.cur)}: {found}"]
        lines.append("The graph calls " + (", ".join(f"{n} x {name}" for name, n in sorted(calls.items())) or "nothing") + ".")
        report = self.report
        if report is not None:
            lines.append(f"{report.summary()}.")
            lines += [f"  {text}" for text in report.refusal_texts()]
        raise AssertionError("\n".join(lines))

    # outputs ----------------------------------------------------------------------------------------------------------

    def generate_random_inputs(self) -> Iterator[Inputs]:
        """Inputs like the example: floats uniform between its least and its largest, everything else as it is."""
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
        """Run what a stage made, and compare with the quantized module, or the module itself where nothing was quantized.

        Each element may be ``atol + rtol * |reference| + qtol * scale`` apart, ``scale`` the output's where it is quantized.

        Args:
            stage: the last one by default; ``StageType.INITIAL_MODEL`` is the float module.
            inputs: of one run; random ones, ``num_runs`` times, by default.
            statistics_callback: gets the figures of each output, as ExecuTorch's harness has them.
            min_sqnr_db: least SQNR of the outputs against the float module: what quantization costs counts too.
            frobenius_threshold, cosine_threshold: largest norm of the error by that of the reference, least cosine similarity;
                with either, ``atol``, ``rtol`` and ``qtol`` are not looked at.
            reference_stage_type: compare with another stage; ``StageType.INITIAL_MODEL`` is the float module.
            run_eager_mode: run the exported program in PyTorch instead of ``stage``.
            compare_outputs: False: only run.
        """
        if isinstance(stage, tuple):
            stage, inputs = None, stage
        kind = StageType.EXPORT if run_eager_mode else stage
        if kind != StageType.INITIAL_MODEL:
            kind = self._done(kind).stage_type()
        for number in range(1 if inputs is not None else num_runs):
            given = inputs if inputs is not None else next(iter(self.generate_random_inputs()))
            found = self._outputs(kind, given)
            if not compare_outputs:
                continue
            reference = self._reference(reference_stage_type, given)
            if statistics_callback is not None:
                for wanted, got in zip(tensors(reference), tensors(found), strict=True):
                    statistics_callback(ErrorStatistics.from_tensors(got, wanted))
            lines = self._apart(reference, found, Tolerance(atol, rtol, qtol), frobenius_threshold, cosine_threshold)
            if min_sqnr_db is not None:
                floats = self._reference(StageType.INITIAL_MODEL, given)
                if (decibels := sqnr_db(tensors(floats), tensors(found))) < min_sqnr_db:
                    lines.append(f"SQNR against the float module is {decibels:.1f} dB, at least {min_sqnr_db:g} dB are wanted.")
            if lines:
                which = "" if inputs is not None or num_runs == 1 else f", run {number}"
                head = f"{self.name}, outputs of {_name(kind)}{which}:"
                raise AssertionError("\n  ".join([head, *lines]))
        return self

    def _apart(self, reference: Any, found: Any, tolerance: Tolerance, frobenius: float | None, cosine: float | None) -> list[str]:
        if frobenius is None and cosine is None:
            exported = self.stages[StageType.EXPORT]
            return differences(reference, found, tolerance, [] if exported is None else outputs_of(exported.artifact))
        error, similarity = norms(reference, found)
        lines = []
        if frobenius is not None and error > frobenius:
            lines.append(f"the error's norm is {error:.4g} of the reference's, at most {frobenius:g} is allowed.")
        if cosine is not None and similarity < cosine:
            lines.append(f"the cosine similarity to the reference is {similarity:.4g}, at least {cosine:g} is wanted.")
        return lines

    def _reference(self, kind: StageType | None, inputs: Inputs) -> Any:
        if kind is None:
            kind = StageType.QUANTIZE if self.is_quantized() else StageType.INITIAL_MODEL
        return self._outputs(kind, inputs)

    def _outputs(self, kind: StageType, inputs: Inputs) -> Any:
        """Run the float module, the quantized one, or what another stage made."""
        inputs = copy.deepcopy(inputs)
        with torch.no_grad(), exclusive():
            if kind == StageType.INITIAL_MODEL:
                return copy.deepcopy(self.original_module)(*inputs)
            if kind == StageType.QUANTIZE:
                return copy.deepcopy(self.get_artifact(kind))(*inputs)
            return self._done(kind).run_artifact(inputs)


def spec_of(name: str | stages.Spec | TosaSpecification) -> stages.Spec:
    """A compile spec by the name of an NPU or of a TOSA specification; a compile spec is taken as it is.

    Raises:
        SpecError: the name is unknown.
    """
    if isinstance(name, stages.Spec):
        return name
    if isinstance(name, TosaSpecification) or name.upper().startswith("TOSA"):
        return TosaCompileSpec(name)
    return EthosUCompileSpec(name)


def _samples(calibration: Any, example: Inputs) -> list[Inputs]:
    return [] if calibration is None else [sample.inputs for sample in read_samples(calibration, example)]


def _name(kind: StageType | None) -> str:
    return "no stage" if kind is None else str(kind.name).lower()


def _called(node: Node) -> str:
    name = op_name(node.target)
    return name if "." in name else str(getattr(node.target, "__name__", node.target))


def _like(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point or not leaf.numel():
        return leaf
    low, high = float(leaf.min()), float(leaf.max())
    return torch.empty_like(leaf).uniform_(low, high) if high > low else leaf.clone()
