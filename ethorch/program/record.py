"""``Record``: what is known of one method of a ``.pte``. ``Program`` holds one and has the verbs."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ethorch import figures
from ethorch.figures import Estimate, Layer, MemoryReport
from ethorch.figures.memory_use import MemoryUse, uses
from ethorch.formats import pte
from ethorch.formats.boundary import boundary_of
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.formats.pte_types import Method
from ethorch.lower.fx.macs import macs_of_graph
from ethorch.models.load import UserModel
from ethorch.npu import Sources
from ethorch.program.attempt import Attempt
from ethorch.program.explanation import State, states_of
from ethorch.program.facts import TensorInfo, Verification
from ethorch.program.transfer import DEFERRED, Methods, method_of
from ethorch.quantization.integer_io import as_codes
from ethorch.support.metrics import Metric
from ethorch.targets.boards import Board
from ethorch.targets.boards.memory_roles import roles
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.selection import Selection, shapes_of
from ethorch.targets.settings import Settings
from ethorch.vela import artifacts

if TYPE_CHECKING:
    from ethorch.backend.emit.build import Build  # 1 second of torch, for a type

    # 2 seconds of torchao and ExecuTorch, which a file needs not
    from ethorch.quantization.config import QuantizationConfig


class Record:
    """One method of a ``.pte``, and all that is known of it.

    It can be pickled and deep-copied, with all methods of its file.

    Attributes:
        pte: the file.
        method: name of the method.
        settings: what it was compiled with; None for a file of somebody else.
        build: what became of each operator; None for a file.
        model: the float model and its samples; None for a file.
        quantized: the quantized model; None for a file.
        config: the QuantizationConfig that it was quantized with instead of the scheme's, if it was.
        metric: the user's own, of which the settings have the least figure, if there is one.
        sessions: calls of the methods in order, of a program that was compiled with several.
        sources: A folder that says which operator each command works for; None if there is none.
        selection: Which method each shape of the inputs calls; None of a program of one shape.
        verification: how its delegates compare with the TOSA reference; None for a file, and if the setting ``verify`` is False.
        tried: the programs that were made to keep the budgets, this one among them; the first is what the settings say.
        measured: Results of runs on the model's samples, by name (``program.measure.accuracy``).
        methods_by_name: The methods of the file that are known so far, which all of them share.
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
        config: QuantizationConfig | None = None,
        metric: Metric | None = None,
        sources: str | os.PathLike[str] | None = None,
        sessions: Sequence[Sequence[tuple[str, tuple[Any, ...]]]] = (),
    ):
        self.pte, self.method = data, method
        self.settings, self.build, self.model, self.quantized = settings, build, model, quantized
        self.config, self.metric = config, metric
        self.sessions = sessions
        self.sources = sources
        self.methods_by_name = Methods({method: self})
        self.selection: Selection | None = None
        self.tried: tuple[Attempt, ...] = ()
        self.verification: Verification | None = None
        self.measured: dict[str, Any] = {}
        self._parsed = pte.read(data)
        pte.entry_point(self._parsed, method)

    if not TYPE_CHECKING:  # a name that is wrong stays an error for mypy

        def __getattr__(self, name: str) -> Any:
            """The models of a record that was unpickled, read on first use."""
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
        """The entry points of the file; figures that it carries are none."""
        return tuple(name for name, method in self._parsed.methods.items() if not pte.is_figure(method))

    def __getitem__(self, method: str) -> Record:
        """Another method of the file; HostError where there is none of this name."""
        if method not in self.methods_by_name:
            self.with_method(Record(self.pte, method, settings=self.settings, sources=self.sources))
        result: Record = self.methods_by_name[method]
        return result

    def selecting(self) -> Record:
        """A copy that calls the smallest method that its inputs fit, where the methods are one model at several shapes."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, selection=Selection.of(self._parsed))
        return found

    def chosen(self, inputs: Sequence[Any]) -> tuple[Record, list[Any]]:
        """The method for flat inputs, and these filled up to its shapes; itself of a program of one shape.

        Raises:
            HostError: they fit none.
        """
        if self.selection is None:
            return self, list(inputs)
        shapes = shapes_of(inputs)
        name = self.selection.find(shapes)
        if name is not None:
            return self[name], self.selection.filled(inputs, name)
        for part in (self[name] for name in reversed(self.selection.shapes)):
            if part.batch(inputs) > 1:
                return part, list(inputs)
        raise self.selection.refusal(shapes)

    @property
    def open_dims(self) -> list[Collection[int]] | None:
        """The axes of each input that may have another size than ``inputs`` says; None if there are none."""
        if self.selection is not None:
            return [range(len(info.shape)) for info in self.inputs]
        return None if self.model is None or self.model.dynamic_shapes is None else [list(d) for d in self.model.dynamic_shapes]

    @property
    def examples(self) -> list[tuple[Any, ...]]:
        """Inputs of each of the shapes: the model's, or of a file of its types, floats where it takes codes of them."""
        if self.selection is not None:
            return [example for name in self.selection.shapes for example in self[name].examples]
        if self.model is not None:
            return [self.model.example_inputs]
        dtypes = [torch.float32 if info.codes is not None else getattr(torch, info.dtype) for info in self.inputs]
        return [tuple(torch.zeros(info.shape, dtype=dtype) for info, dtype in zip(self.inputs, dtypes, strict=True))]

    def cropped(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Flat outputs without what the inputs were filled up to."""
        return list(outputs) if self.selection is None else self.selection.cropped(outputs, shapes_of(inputs))

    def with_method(self, other: Record) -> Record:
        """Itself, which knows another method of the same file now."""
        self.methods_by_name[other.method] = other
        other.methods_by_name = self.methods_by_name
        return self

    @property
    def description(self) -> Method:
        """The method as the file has it."""
        return self._parsed.methods[self.method]

    @property
    def target(self) -> str:
        """Name of the NPU; empty where no delegate says it."""
        return "" if self.spec is None else self.spec.target.name

    @cached_property
    def payloads(self) -> tuple[DelegatePayload, ...]:
        """What each NPU delegate hands to the driver."""
        return tuple(delegate.payload for delegate in self.description.delegates if delegate.id == BACKEND_ID)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs in order, flat."""
        return self._infos("input", self.description.inputs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs in order, flat."""
        return self._infos("output", self.description.outputs)

    def _infos(self, side: str, indices: Sequence[int]) -> tuple[TensorInfo, ...]:
        codes, values = boundary_of(self._parsed, self.method), self.description.values
        return tuple(
            TensorInfo(values[index].dtype or values[index].kind, values[index].shape, codes.get(f"{side}{number}"))
            for number, index in enumerate(indices)
        )

    def as_taken(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Inputs with floats as codes where the program takes codes."""
        return as_codes(inputs, {f"input{number}": info.codes for number, info in enumerate(self.inputs) if info.codes is not None})

    def batch(self, flat: Sequence[Any]) -> int:
        """How many inferences the inputs hold; 1 too where they do not fit, for the runtime to say so."""
        wanted = self.inputs
        if len(flat) != len(wanted):
            return 1
        counts = set()
        for x, info in zip(flat, wanted, strict=True):
            if not isinstance(x, Tensor) or not x.dim() or tuple(x.shape[1:]) != info.shape[1:] or not info.shape[0]:
                return 1
            counts.add(x.shape[0] // info.shape[0] if x.shape[0] % info.shape[0] == 0 else 1)
        return max(counts.pop(), 1) if len(counts) == 1 else 1

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Each operation of the NPU and each operator of the CPU in the order of execution, with its cost."""
        return figures.layers(self.build or self.pte, self.method, sources=self._known_sources)

    @cached_property
    def memory(self) -> MemoryReport:
        """What the whole application needs of RAM and flash, and where each tensor lies."""
        return figures.memory(self.build or self.pte, self.method)

    @property
    def command_sources(self) -> dict[int, Sources] | None:
        """Which operator each NPU command works for, by the delegate's number in the file; None where nothing says it."""
        if self.build is None:
            return self._known_sources
        known = {delegate.payload: delegate.sources for delegate in self.build.delegates}
        payloads = {n: d.payload for n, d in enumerate(self.description.delegates) if d.id == BACKEND_ID}
        return {number: known[payload] for number, payload in payloads.items() if payload in known}

    @cached_property
    def _known_sources(self) -> dict[int, Sources] | None:
        """Which operator each command works for, by the delegate's number in the file, where a folder says it."""
        if self.sources is None or self.build is not None:
            return None
        return {
            number: artifacts.sources(self.sources, delegate.payload, delegate.compile_specs)
            for number, delegate in enumerate(self.description.delegates)
            if delegate.id == BACKEND_ID
        }

    @cached_property
    def spec(self) -> EthosUCompileSpec | None:
        """What it was compiled for; None where no delegate says it."""
        if self.settings is not None:
            return self.settings.spec
        specs = [d.compile_specs for d in self.description.delegates if d.id == BACKEND_ID]
        return EthosUCompileSpec.from_pairs(specs[0]) if specs else None

    @property
    def core_clock_hz(self) -> float:
        """Clock of the NPU by the system configuration; 0 of a program without one."""
        return 0.0 if self.spec is None else self.spec.memory_system.core_clock_hz

    @cached_property
    def states(self) -> tuple[State, ...]:
        """What became of each buffer that the model changes."""
        return states_of(self.description, self.payloads, () if self.build is None else self.build.states)

    def floats(self, outputs: Sequence[Any]) -> list[Any]:
        """Flat outputs with codes as what they mean."""
        return [x if info.codes is None else info.codes.dequantize(x) for x, info in zip(outputs, self.outputs, strict=True)]

    @property
    def board(self) -> Board | None:
        """The board that it was compiled for; None where none was named."""
        return None if self.settings is None else self.settings.described

    @cached_property
    def memory_uses(self) -> tuple[MemoryUse, ...]:
        """What the NPU takes of each memory of the board; empty without one, and where an ini file describes other memories."""
        if self.settings is None or self.settings.described is None or self.settings.slot is None or self.spec is None:
            return ()
        if self.spec.config_text is None:
            return ()
        return uses(self.memory, roles(self.settings.described, self.settings.slot, self.spec.memory_mode))

    @property
    def cpu_clock_hz(self) -> float:
        """Clock of the CPU: the board's; without one, the NPU's."""
        return self.core_clock_hz if self.board is None else self.board.cpu.clock_hz

    @cached_property
    def estimate(self) -> Estimate:
        """What one inference takes, by part: operators and transposes of the NPU, operators of the CPU, copies, calls."""
        return figures.estimate(self.layers, self.payloads, self.core_clock_hz, self.cpu_clock_hz)

    @cached_property
    def mac_count(self) -> int:
        """Multiply-accumulates of one inference: counted on the model's graph, the same for every NPU; of a file, its layers'.

        What the NPU does may be more: channels that are padded, and other operators that it computes as products.
        """
        if isinstance(self.quantized, GraphModule):
            return macs_of_graph(self.quantized)
        return sum(layer.macs for layer in self.layers)

    @property
    def total_cycles(self) -> int | None:
        """Of the NPU alone for one inference, by Vela's estimate; None where cycles are unknown. ``estimate`` has all parts."""
        return self.estimate.npu_cycles

    @property
    def cpu_cycles(self) -> int | None:
        """Of the CPU's operators for one inference, by ``ethorch.figures.RATES``; None where cycles are unknown."""
        return self.estimate.cpu_cycles

    @property
    def milliseconds(self) -> float | None:
        """Of one inference by the estimate: all parts of it one after the other, each at its clock; None where one is unknown."""
        return self.estimate.milliseconds
