from __future__ import annotations

import copy
import os
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ethorch import figures
from ethorch.backend.emit.build import Build
from ethorch.deploy.firmware.code_size import estimate_code_size
from ethorch.figures import Estimate, Layer, MemoryReport
from ethorch.figures.memory_report import FLASH, Component
from ethorch.figures.memory_use import MemoryUse, uses
from ethorch.formats import pte
from ethorch.formats.boundary import as_codes, boundary_of
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.formats.pte_types import Method
from ethorch.lower.partition_report import PartitionReport
from ethorch.npu import Sources
from ethorch.program.attempt import Attempt
from ethorch.program.explanation import State, states_of
from ethorch.program.facts import StreamPass, TensorInfo, Verification, sum_passes
from ethorch.program.transfer import DEFERRED, Methods, method_of
from ethorch.support import trees
from ethorch.targets.boards import Board
from ethorch.targets.boards.memory_roles import roles
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.selection import Selection, shapes_of
from ethorch.targets.settings import Settings
from ethorch.vela import artifacts

if TYPE_CHECKING:
    from torch import nn

    from ethorch.models.load import UserModel  # importing torch takes 1 second

    # importing torchao and ExecuTorch takes 2 seconds
    from ethorch.quantization.config import QuantizationConfig


class Record:
    """The data about one method of a ``.pte``. A pickled or deep-copied record includes all methods of its file.

    For a loaded ``.pte``, ``build``, ``model`` and ``quantized`` are None. ``settings`` is also None unless a folder was loaded.

    Attributes:
        model: The user's model and its samples.
        quantized: Model returned by ``convert_pt2e``.
        config: The user's QuantizationConfig, or None if a named scheme was used.
        sessions: Calibration sessions of a program with several methods.
        sources: Folder of artifacts that record each command's operator, or None.
        selection: Methods to select from by input shape, or None if the method is fixed.
        partition: NPU operators and reasons for CPU operators, or None if unknown.
        stream_passes: Passes that changed command streams.
        verification: Comparison of the delegates with the TOSA reference, or None if not verified.
        tried: Attempts of the budget search, including this program.
        measured: Cached accuracy and comparison, by name.
        methods_by_name: Records of the methods in the file. All records of a file share this dict.
    """

    def __init__(
        self,
        data: bytes,
        method: str = "forward",
        *,
        settings: Settings | None = None,
        build: Build | None = None,
        model: UserModel | None = None,
        quantized: nn.Module | None = None,
        sources: str | os.PathLike[str] | None = None,
        sessions: Sequence[Sequence[tuple[str, tuple[Any, ...]]]] = (),
    ):
        self.pte, self.method = data, method
        self.settings, self.build, self.model, self.quantized = settings, build, model, quantized
        self.config: QuantizationConfig | None = None if settings is None else settings.config
        self.sessions = sessions
        self.sources = sources
        self.methods_by_name = Methods({method: self})
        self.selection: Selection | None = None
        self.tried: tuple[Attempt, ...] = ()
        self.verification: Verification | None = None
        self.stream_passes: tuple[StreamPass, ...] = ()
        self.partition: PartitionReport | None = None if build is None else build.partition
        if build is not None:
            self.stream_passes = sum_passes(effect for delegate in build.delegates for effect in delegate.compiled.passes)
        self.measured: dict[str, Any] = {}
        self._parsed = pte.read(data)
        pte.entry_point(self._parsed, method)

    if not TYPE_CHECKING:  # hidden from mypy, so that mypy reports unknown attributes

        def __getattr__(self, name: str) -> Any:
            """Unpickle the models of an unpickled record on first use."""
            if name not in DEFERRED or "_deferred" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            self.__dict__.update(self.__dict__["_deferred"].models[self.method])
            return self.__dict__[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return method_of, (self.methods_by_name, self.method, self.selection is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        result: Record = method_of(copy.deepcopy(self.methods_by_name, memo), self.method, self.selection is not None)
        return result

    @property
    def methods(self) -> tuple[str, ...]:
        """See :attr:`Program.methods`."""
        return tuple(name for name, method in self._parsed.methods.items() if not pte.is_figure(method))

    def __getitem__(self, method: str) -> Record:
        if method not in self.methods_by_name:
            self.with_method(Record(self.pte, method, settings=self.settings, sources=self.sources))
        result: Record = self.methods_by_name[method]
        return result

    def selecting(self) -> Record:
        """Return a copy that selects, for a model with several shapes, the smallest method that fits the inputs."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, selection=Selection.of(self._parsed))
        return copy

    def choose(self, inputs: Sequence[Any]) -> tuple[Record, list[Any]]:
        """Return (fitting method, flattened and possibly padded inputs).

        Raises:
            HostError: No method accepts the shapes.
        """
        if self.selection is None:
            return self, list(inputs)
        shapes = shapes_of(inputs)
        name = self.selection.find(shapes)
        if name is not None:
            return self[name], self.selection.fill(inputs, name)
        for part in (self[name] for name in reversed(self.selection.shapes)):
            if part.batch(inputs) > 1:
                return part, list(inputs)
        raise self.selection.refusal(shapes)

    @property
    def open_dims(self) -> list[Collection[int]] | None:
        """The variable-size axes of each input, or None if all sizes are fixed."""
        if self.selection is not None:
            return [range(len(info.shape)) for info in self.inputs]
        return None if self.model is None or self.model.dynamic_shapes is None else [list(d) for d in self.model.dynamic_shapes]

    @property
    def examples(self) -> list[tuple[Any, ...]]:
        """The example inputs for each shape: the model's example inputs, or zeros for a loaded program."""
        if self.selection is not None:
            return [example for name in self.selection.shapes for example in self[name].examples]
        if self.model is not None:
            return [self.model.example_inputs]
        import torch

        values = [self.description.values[index] for index in self.description.inputs]
        return [
            tuple(
                torch.zeros(info.shape, dtype=torch.float32 if info.codes is not None else getattr(torch, info.dtype))
                if value.kind == "tensor"
                else value.scalar
                for info, value in zip(self.inputs, values, strict=True)
            )
        ]

    def crop(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Return the flattened outputs without the padding that results from padded inputs."""
        return list(outputs) if self.selection is None else self.selection.crop(outputs, shapes_of(inputs))

    def with_method(self, method: Record) -> Record:
        """Add the record of another method of the same file, and return ``self``."""
        self.methods_by_name[method.method] = method
        method.methods_by_name = self.methods_by_name
        return self

    @property
    def description(self) -> Method:
        """The method as parsed from the ``.pte``."""
        return self._parsed.methods[self.method]

    @property
    def target(self) -> str:
        """See :attr:`Program.target`."""
        return "" if self.spec is None else self.spec.target.name

    @cached_property
    def payloads(self) -> tuple[DelegatePayload, ...]:
        """The payload of each NPU delegate."""
        return tuple(delegate.payload for delegate in self.description.delegates if delegate.id == BACKEND_ID)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """See :attr:`Program.inputs`."""
        return self._infos("input", self.description.inputs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """See :attr:`Program.outputs`."""
        return self._infos("output", self.description.outputs)

    def _infos(self, side: str, indices: Sequence[int]) -> tuple[TensorInfo, ...]:
        codes, values = boundary_of(self._parsed, self.method), self.description.values
        return tuple(
            TensorInfo(values[index].dtype or self._number_kind(index), values[index].shape, codes.get(f"{side}{number}"))
            for number, index in enumerate(indices)
        )

    def _number_kind(self, index: int) -> str:
        # ExecuTorch stores each number that item() will write as an int
        for call in self.description.calls:
            if call.operator == "aten::_local_scalar_dense" and call.args[1] == index:
                return "double" if "float" in self.description.values[call.args[0]].dtype else "int"
        return self.description.values[index].kind

    def as_taken(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs, quantized if the program's inputs are quantized."""
        taken = as_codes(
            inputs, {f"input{number}": info.codes for number, info in enumerate(self.inputs) if info.codes is not None}
        )
        leaves, nest = trees.flatten(taken)
        if not any(isinstance(leaf, str) for leaf in leaves) or self.model is None:
            return taken
        nested: tuple[Any, ...] = nest([None if isinstance(leaf, str) else leaf for leaf in leaves])  # as ExecuTorch does
        return nested

    def batch(self, flat: Sequence[Any]) -> int:
        """Return the number of inferences in the inputs, or 1 for wrong shapes, so that the runtime raises an error."""
        expected_inputs = self.inputs
        if len(flat) != len(expected_inputs):
            return 1
        counts = set()
        for x, info in zip(flat, expected_inputs, strict=True):
            if trees.is_constant(x):
                continue
            if not hasattr(x, "shape") or not x.ndim or tuple(x.shape[1:]) != info.shape[1:] or not any(info.shape[:1]):
                return 1
            counts.add(x.shape[0] // info.shape[0] if x.shape[0] % info.shape[0] == 0 else 1)
        return max(counts.pop(), 1) if len(counts) == 1 else 1

    @cached_property
    def model_name(self) -> str:
        """The name passed to ``compile`` or the class name of the model, or "" for a loaded ``.pte``."""
        return "" if self.model is None else self.model.name

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The NPU operations and CPU operators in execution order, with costs."""
        return figures.layers(self.build or self.pte, self.method, sources=self._known_sources)

    @cached_property
    def memory(self) -> MemoryReport:
        """See :attr:`Program.memory`."""
        return figures.memory(self.build or self.pte, self.method, code=self._estimate_code())

    def _estimate_code(self) -> Component:
        size = estimate_code_size(self._parsed)
        note = (
            "code generated by `ethorch firmware` (start-up, driver, kernels), excluding application code; the code size of "
            "ExecuTorch's runtime is unknown"
        )
        if size.missing:
            note += f"; excluding operators without a C kernel: {', '.join(size.missing)}"
        return Component("code", 0, size.size_bytes, FLASH, note)

    @property
    def command_sources(self) -> dict[int, Sources] | None:
        """The operator of each NPU command, by delegate number, or None if unknown."""
        if self.build is None:
            return self._known_sources
        sources_by_payload = {delegate.payload: delegate.sources for delegate in self.build.delegates}
        payloads = {n: d.payload for n, d in enumerate(self.description.delegates) if d.id == BACKEND_ID}
        return {number: sources_by_payload[payload] for number, payload in payloads.items() if payload in sources_by_payload}

    @cached_property
    def _known_sources(self) -> dict[int, Sources] | None:
        if self.sources is None or self.build is not None:
            return None
        return {
            number: artifacts.sources(self.sources, delegate.payload, delegate.compile_specs)
            for number, delegate in enumerate(self.description.delegates)
            if delegate.id == BACKEND_ID
        }

    @cached_property
    def spec(self) -> EthosUCompileSpec | None:
        """The compile spec, or None for a loaded ``.pte`` without an NPU delegate."""
        if self.settings is not None:
            return self.settings.spec
        specs = [d.compile_specs for d in self.description.delegates if d.id == BACKEND_ID]
        return EthosUCompileSpec.from_pairs(specs[0]) if specs else None

    @property
    def core_clock_hz(self) -> float:
        """The NPU clock in Hz, or 0 if unknown."""
        return 0.0 if self.spec is None else self.spec.memory_system.core_clock_hz

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The mutable buffers."""
        return states_of(self.description, self.payloads, () if self.build is None else self.build.states)

    def floats(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the flattened outputs, with quantized outputs dequantized."""
        return [x if info.codes is None else info.codes.dequantize(x) for x, info in zip(outputs, self.outputs, strict=True)]

    @property
    def board(self) -> Board | None:
        """The board for which the program was compiled, or None."""
        return None if self.settings is None else self.settings.described

    @cached_property
    def memory_uses(self) -> tuple[MemoryUse, ...]:
        """The bytes that the NPU uses in each memory of the board.

        The result is empty if no board is set, or if a custom ini file describes the memories.
        """
        if self.settings is None or self.settings.described is None or self.settings.slot is None or self.spec is None:
            return ()
        if self.spec.config_text is None:
            return ()
        return uses(self.memory, roles(self.settings.described, self.settings.slot, self.spec.memory_mode))

    @property
    def cpu_clock_hz(self) -> float:
        """The CPU clock of the board in Hz, or the NPU clock if no board is set."""
        return self.core_clock_hz if self.board is None else self.board.cpu.clock_hz

    @cached_property
    def estimate(self) -> Estimate:
        """The estimated time of one inference, split into NPU operators, transposes, CPU operators, copies and delegate calls."""
        return figures.estimate(self.layers, self.payloads, self.core_clock_hz, self.cpu_clock_hz)

    @cached_property
    def mac_count(self) -> int:
        """The multiply-accumulates of one inference, counted in the model's graph, or in the layers of a loaded ``.pte``.

        The NPU can compute more because of padded channels.
        """
        if self.quantized is not None:
            from torch.fx import GraphModule

            from ethorch.lower.fx.macs import macs_of_graph  # importing torch takes 1 second

            if isinstance(self.quantized, GraphModule):
                return macs_of_graph(self.quantized)
        return sum(layer.macs for layer in self.layers)

    @property
    def total_cycles(self) -> int | None:
        """The NPU cycles of one inference, estimated by Vela, or None if unknown."""
        return self.estimate.npu_cycles

    @property
    def cpu_cycles(self) -> int | None:
        """The cycles of CPU operators in one inference, estimated with ``ethorch.figures.RATES``, or None if unknown."""
        return self.estimate.cpu_cycles

    @property
    def milliseconds(self) -> float | None:
        """The estimated time of one inference in milliseconds, or None if the time of any part is unknown."""
        return self.estimate.milliseconds
