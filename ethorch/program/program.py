"""A compiled program: to save, to call, to print, to ask."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ethorch import figures, runtime
from ethorch.figures import Estimate, Layer, MemoryReport
from ethorch.figures.memory_use import MEMORY, MemoryUse, uses
from ethorch.figures.selection import Selection, shapes_of
from ethorch.formats import pte
from ethorch.formats.boundary import boundary_of
from ethorch.formats.files import write_whole
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.formats.pte_types import Method
from ethorch.lower.fx.macs import macs_of_graph
from ethorch.models.load import UserModel
from ethorch.models.samples import samples as read_samples
from ethorch.npu import Sources
from ethorch.program.attempt import Attempt
from ethorch.program.explanation import Explanation, State, explanation, states_of
from ethorch.program.facts import Accuracy, Budget, TensorInfo
from ethorch.program.measure.accuracy import accuracy_in_sessions, accuracy_of_samples, figure_of_samples, fresh_host
from ethorch.program.measure.inspection import Inspection, cpu_cycles_of, cycles_of
from ethorch.program.measure.profile import Profile, import_profile
from ethorch.program.plain_data import plain_data
from ethorch.program.saving import check_folder, check_writable, tosa_of, write_program
from ethorch.program.transfer import DEFERRED, Methods, method_of
from ethorch.quantization.integer_io import as_codes
from ethorch.report.page import page
from ethorch.report.summary import summary
from ethorch.support.errors import EthorchError, HostError
from ethorch.support.exclusive import exclusive
from ethorch.support.metrics import Metric
from ethorch.support.rendering import as_html, as_text
from ethorch.support.wording import counted
from ethorch.targets.boards import Board
from ethorch.targets.boards.memory_roles import roles
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.settings import Settings
from ethorch.vela import artifacts

if TYPE_CHECKING:
    from ethorch.backend.emit.build import Build  # 1 second of torch, for a type

    # the same 2 seconds
    from ethorch.program.measure.ladder import Comparison

    # the same 2 seconds
    from ethorch.program.suggestions import Suggestions

    # the same 2 seconds
    from ethorch.program.verification import Verification

    # 2 seconds of torchao and ExecuTorch, which a file needs not
    from ethorch.quantization.config import QuantizationConfig

_BUNDLED_SAMPLES = 8


class Program:
    """One method of a ``.pte``, and all that is known of it. ``ethorch.compile`` and ``ethorch.load`` make them.

    ``program["decode"]`` is another method of the same file, which sees the buffers that this one wrote, if they share some.

    A program can be pickled and deep-copied, with all methods of its file. The copy begins with the buffers' initial contents.

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
        verification: how its delegates compare with the TOSA reference; None for a file, and if the setting ``verify`` is False.
        tried: the programs that were made to keep the budgets, this one among them; the first is what the settings say.
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
        self._sources = sources
        self._others = Methods({method: self})
        self.selection: Selection | None = None
        self.tried: tuple[Attempt, ...] = ()
        self.verification: Verification | None = None
        self._parsed = pte.read(data)
        pte.entry_point(self._parsed, method)

    if not TYPE_CHECKING:  # a name that is wrong stays an error for mypy

        def __getattr__(self, name: str) -> Any:
            """The models of a program that was unpickled, read on first use."""
            if name not in DEFERRED or "_deferred" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            self.__dict__.update(self.__dict__["_deferred"].models[self.method])
            return self.__dict__[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return method_of, (self._others, self.method, self.selection is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return method_of(copy.deepcopy(self._others, memo), self.method, self.selection is not None)

    # what it is -------------------------------------------------------------------------------------------------------

    @property
    def methods(self) -> tuple[str, ...]:
        """The entry points of the file; figures that it carries are none."""
        return tuple(name for name, method in self._parsed.methods.items() if not pte.is_figure(method))

    def __getitem__(self, method: str) -> Program:
        """Another method of the file; HostError where there is none of this name."""
        if method not in self._others:
            self.with_method(Program(self.pte, method, settings=self.settings, sources=self._sources))
        return self._others[method]

    def selecting(self) -> Program:
        """A copy that calls the smallest method that its inputs fit, where the methods are one model at several shapes."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, selection=Selection.of(self._parsed))
        return found

    def chosen(self, inputs: Sequence[Any]) -> tuple[Program, list[Any]]:
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
            if part._batch(inputs) > 1:
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

    def with_method(self, other: Program) -> Program:
        """Itself, which knows another method of the same file now."""
        self._others[other.method] = other
        other._others = self._others
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

    # running ----------------------------------------------------------------------------------------------------------

    @cached_property
    def host(self) -> runtime.HostProgram:
        """The program in ExecuTorch's runtime on this computer, its NPU simulated."""
        for other in self._others.values():
            loaded: runtime.HostProgram | None = other.__dict__.get("host")
            if loaded is not None and self.method in loaded.methods:
                return loaded[self.method]
        return runtime.load(self.pte, self.method, sources=None if self._sources is None else artifacts.reader(self._sources))

    def reset(self) -> None:
        """Put what the program keeps from call to call back to its initial contents, for all methods that share it."""
        self.host.reset()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Run in ExecuTorch's runtime, the NPU simulated bit for bit.

        Inputs are as the model's. Where the program takes codes, float inputs are quantized to them first. A batch of several
        inferences (each input's first dimension the same multiple of the program's) runs one per CPU (``HostProgram.run_many``),
        and each output has its results one behind the other.

        Returns:
            what the model returns: a tensor, or a nest of them. Where the program gives codes, so does this.

        Raises:
            HostError: number, dtype or shape of the inputs is not the program's.
            MachineFault: the simulator stopped.
        """
        flat = list(pytree.tree_leaves(self._positional(inputs, keywords)))
        if self.selection is not None:
            part, filled = self.chosen(flat)
            return part._nested(self.cropped(pytree.tree_leaves(part(*filled)), flat))
        flat = list(pytree.tree_leaves(self.as_taken(tuple(flat))))
        count = self._batch(flat)
        if count == 1:
            return self._nested(self.host(*flat))
        batches = [info.shape[0] for info in self.inputs]
        samples = [[x[i * size : (i + 1) * size] for x, size in zip(flat, batches, strict=True)] for i in range(count)]
        runs = self.host.run_many(samples)
        return self._nested([torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*runs, strict=True)])

    def as_taken(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Inputs with floats as codes where the program takes codes."""
        return as_codes(inputs, {f"input{number}": info.codes for number, info in enumerate(self.inputs) if info.codes is not None})

    def _positional(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Inputs with those by name at their places."""
        if not keywords:
            return inputs
        names = getattr(getattr(self.model, "module", None), "names", ())
        if set(keywords) != set(names):
            known, found = ", ".join(names) or "none", ", ".join(keywords)
            raise HostError(f"the program takes {counted(len(self.inputs), 'input')}, by name {known}; found the names {found}.")
        return (*inputs, *(keywords[name] for name in names))

    def _batch(self, flat: Sequence[Any]) -> int:
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

    def _nested(self, outputs: list[Any]) -> Any:
        """The flat outputs as the model returns them."""
        structure = self.description.structure
        if structure is not None and structure[1]:
            try:
                return pytree.tree_unflatten(outputs, pytree.treespec_loads(structure[1]))
            except Exception:  # a type that this process does not know, or words of another torch: the outputs stay flat
                pass
        return outputs[0] if len(outputs) == 1 else outputs

    # saving -----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program: what the end of the name says.

        - ``.pte``: the program.
        - ``.bpte``: with inputs and expected outputs, for ExecuTorch's test runners; the samples are the model's.
        - ``.tosa``: the TOSA flatbuffer that was compiled; only of a program with one delegate.
        - no ending: a folder, with ``model.pte``, ``settings.toml``, ``program.json`` and each delegate's TOSA and payload.

        Returns:
            the path.

        Raises:
            EthorchError: the ending is another one, what it asks for is not known, or the file cannot be written.
        """
        target = Path(path)
        check_writable(target)
        try:
            if target.suffix == ".pte":
                write_whole(target, self.pte)
            elif target.suffix == ".bpte":
                write_whole(target, self._bundled())
            elif target.suffix == ".tosa":
                write_whole(target, tosa_of(self.build))
            else:
                builds = [known.build for known in self._others.values() if known.build is not None]
                write_program(target, self.pte, self.to_json(), self.settings, builds)
        except OSError as error:
            raise EthorchError(f"cannot write {target}: {error.strerror}. It is unchanged.") from error
        return target

    def _bundled(self) -> bytes:
        """With at most 8 of the model's samples and what it makes of them in this order: a board has to compute the same."""
        if self.model is None:
            raise EthorchError("a .pte holds no samples to bundle: save a program that ethorch.compile returned.")
        from ethorch.backend.bundled import bundled_program  # 0.4 s of ExecuTorch's devtools

        cases, loaded = [], fresh_host(self)
        for sample in (self.model.calibration or [self.model.example_inputs])[:_BUNDLED_SAMPLES]:
            inputs = pytree.tree_leaves(self.as_taken(sample))
            cases.append((inputs, [x.clone() if isinstance(x, Tensor) else x for x in loaded(*inputs)]))
        return bundled_program(self.pte, self.method, cases)

    # checking ---------------------------------------------------------------------------------------------------------

    def compare(self, *inputs: Any, samples: Any = None, model: nn.Module | None = None, **keywords: Any) -> Comparison:
        """Float model, quantized model and NPU side by side: for the outputs, and for each operator that has a counterpart.

        ::

            found = program.compare(samples=images[:8])
            print(found)                                      # a table
            print(found.largest_loss, found.first_divergence)  # where to look, in the model's source

        The operators of the NPU run in the TOSA reference model, which the simulator equals bit for bit (``bit_exact`` says so of
        these samples); those of the CPU in PyTorch. Several samples are added up: dB are of the sums of squares.

        Args:
            inputs: of one inference, as the program is called. Without any, and without samples: the example inputs.
            samples: several instead, in any form that ``ethorch.compile`` takes for calibration.
            model: the float model, of a program that does not know it: one loaded from a file has its outputs compared.
            keywords: inputs by name.

        Raises:
            EthorchError: the float model is not known, or a sample does not fit.
            HostError: the inputs are not the program's.
        """
        from ethorch.program.measure.compare import compared  # 2 seconds of torchao and ExecuTorch

        example = inputs if self.model is None else self.model.example_inputs
        given = [self._positional(inputs, keywords)] if inputs or keywords else [example]
        if samples is not None:
            names = getattr(getattr(self.model, "module", None), "names", ())
            found = read_samples(samples, example, keywords=names, others=self.examples[1:], open_dims=self.open_dims)
            given = list(samples) if self.model is None else [one.inputs for one in found]
        given = [sample if isinstance(sample, tuple) else (sample,) for sample in given]
        if not given or given == [()]:
            raise EthorchError("there is no sample to compare with: give the inputs of an inference, or samples.")
        if self.selection is not None:
            chosen = [self.chosen(pytree.tree_leaves(sample)) for sample in given]
            if len({part.method for part, _ in chosen}) > 1:
                raise EthorchError("the samples are for several methods; give those of one shape, or compare program['NAME'].")
            return chosen[0][0].compare(samples=[tuple(inputs) for _, inputs in chosen], model=model)
        with exclusive():
            return compared(self, given, model)

    # answers ----------------------------------------------------------------------------------------------------------

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
        if self._sources is None or self.build is not None:
            return None
        return {
            number: artifacts.sources(self._sources, delegate.payload, delegate.compile_specs)
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

    def explain(self, operator: str | None = None, cpu_only: bool = False) -> Explanation:
        """Where each operator runs, what it costs, and why it is not on the NPU; ``print`` it.

        Args:
            operator: only those with this in their name, e.g. ``softmax``.
            cpu_only: only those on the CPU.
        """
        partition = None if self.build is None else self.build.partition
        return explanation(self.target, self.layers, partition, operator, cpu_only, self.states)

    @cached_property
    def states(self) -> tuple[State, ...]:
        """What became of each buffer that the model changes."""
        return states_of(self.description, self.payloads, () if self.build is None else self.build.states)

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """SQNR of the program against the float model on at most 8 of its samples; None where there is no float model.

        The first access runs the samples.
        """
        if self.model is None or self.model.quantized:
            return None
        return accuracy_in_sessions(self) if len(self.methods) > 1 else accuracy_of_samples(self)

    @cached_property
    def metric_figure(self) -> float | None:
        """The user's metric of the program on the samples, beside the model that was given; None where there is none.

        The first access runs the samples.
        """
        if self.metric is None or self.model is None:
            return None
        return figure_of_samples(self, self.metric)

    def floats(self, outputs: Sequence[Any]) -> list[Any]:
        """Flat outputs with codes as what they mean."""
        return [x if info.codes is None else info.codes.dequantize(x) for x, info in zip(outputs, self.outputs, strict=True)]

    @cached_property
    def budgets(self) -> tuple[Budget, ...]:
        """The limits that the settings have, the memories of the board, and what was found."""
        if self.settings is None:
            return ()
        chosen, found = self.settings, []
        needs = {"ram": self.memory.ram_bytes, "flash": self.memory.flash_bytes}
        for name, limit in (("ram", chosen.ram_limit), ("flash", chosen.flash_limit)):
            if limit is not None:
                found.append(Budget(name, limit, needs[name], needs[name] <= limit))
        for use in self.memory_uses:
            found.append(Budget(MEMORY + use.memory, use.size_bytes, use.needs_bytes, use.needs_bytes <= use.size_bytes))
        if chosen.latency_ms is not None:
            taken = self.milliseconds
            found.append(Budget("latency_ms", chosen.latency_ms, taken, None if taken is None else taken <= chosen.latency_ms))
        if chosen.min_sqnr_db is not None:
            found.append(_at_least("min_sqnr_db", chosen.min_sqnr_db, None if self.accuracy is None else self.accuracy.sqnr_db))
        if chosen.min_metric is not None:
            found.append(_at_least("min_metric", chosen.min_metric, self.metric_figure))
        return tuple(found)

    @property
    def fits(self) -> bool:
        """Does every budget hold, as far as that can be known?"""
        return all(budget.holds is not False for budget in self.budgets)

    def suggestions(self) -> Suggestions:
        """What would make it smaller or faster, each change tried: codes and channels last at the ends, arenas, weights in SRAM,
        cheaper schemes, smaller images, fewer channels in what costs most, and in layers just above a multiple of 16. It takes a
        compilation for each.

        Raises:
            EthorchError: the program is of a file: its model is not known.
        """
        # 2 seconds of torchao, which a file needs not
        from ethorch.program.compile import compile_beside
        from ethorch.program.suggestions import suggestions  # the same 2 seconds

        return suggestions(self, compile_beside(self))

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

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data; docs/json.md says what each key means."""
        return plain_data(self)

    def inspect(self, *inputs: Any, runs: int = 1, etrecord: str | os.PathLike[str] | None = None) -> Inspection:
        """Run with ExecuTorch's event tracer; its Inspector, and a table with the estimated cycles beside this computer's times.

        ``print`` it, or take ``inspect(x).to_dataframe()``. Operators are named where ``command_sources`` knows them.

        Args:
            inputs: of one inference, as the program is called; the model's example inputs by default.
            runs: how often; times are over all runs.
            etrecord: the file that ``ethorch.compile(..., etrecord=...)`` wrote with this program.

        Raises:
            HostError: the inputs are not the program's, or there are none to take.
        """
        if not inputs and self.inputs:
            if self.model is None:
                raise HostError(f"a .pte holds no inputs: give the {len(self.inputs)} that the program takes.")
            inputs = self.model.example_inputs
        sources = self.command_sources or {}
        by_payload = {d.payload: sources[number] for number, d in enumerate(self.description.delegates) if number in sources}
        traced = runtime.load(
            self.pte, self.method, etdump=True, machine=lambda payload: runtime.npu_machine(payload, None, by_payload.get(payload))
        )
        flat = pytree.tree_leaves(self.as_taken(inputs))
        for _ in range(runs):
            traced(*flat)
        return Inspection(traced.inspector(etrecord), cycles_of(sources), cpu_cycles_of(self.layers), self.core_clock_hz)

    def import_profile(self, *files: str | os.PathLike[str]) -> Profile:
        """What a board or an FVP measured beside the estimate, of the whole program and by operator; ``print`` it.

        Args:
            files: logs with the NPU's counters, as ExecuTorch's runner, Arm's evaluation kit, Zephyr and ethorch's firmware print
                them; CSV of QREAD's positions, ``qread_bytes,samples``; CSV of ``milliseconds`` of calls.

        Raises:
            SpecError: no file is given.
            FormatError: a file has none of the forms, or a line is wrong: with its number.
        """
        return import_profile(self, *files)

    def trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the estimated time line of NPU, DMA and CPU as a Chrome trace, which Perfetto opens too.

        Raises:
            EthorchError: cycles are unknown, as of a file; or the file cannot be written.
        """
        target = Path(path)
        check_folder(target)
        write_whole(target, json.dumps(figures.trace_events(self.layers, self.core_clock_hz)).encode())
        return target

    def report(self, path: str | os.PathLike[str], samples: Any = None, title: str = "") -> Path:
        """Write the report: one HTML page that needs no network, of all that is known.

        Where the float model is known, the accuracy is measured, as ``accuracy`` does.

        Args:
            path: of the page.
            samples: inputs to ``compare`` each operator on, as ``ethorch.compile`` takes calibration; None leaves that out.
            title: a name for the program.

        Raises:
            EthorchError: the plotting library is not installed, the file cannot be written, or as of ``compare``.
        """
        target = Path(path)
        check_folder(target)
        _ = self.accuracy  # measured now, so that to_json has it
        comparison = None if samples is None else self.compare(samples=samples).to_json()
        write_whole(target, page(self.to_json(), comparison, title).encode())
        return target

    def rich(self) -> Any:
        """The summary, as Rich draws it."""
        return summary(self.to_json())

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())

    def __repr__(self) -> str:
        return f"<ethorch.Program {self.method} for {self.target or 'the CPU'}, {len(self.pte):,} bytes>"


def _at_least(name: str, least: float, figure: float | None) -> Budget:
    return Budget(name, least, figure, None if figure is None else figure >= least)


def load(
    path: str | os.PathLike[str] | bytes, method: str | None = None, *, sources: str | os.PathLike[str] | None = None
) -> Program:
    """A ``.pte`` as a Program: of ethorch, of ExecuTorch's Arm backend, or a folder that ``Program.save`` wrote.

    What only compiling knows (reasons, source lines, Vela's cycles) is there as far as the file tells; ``sources`` tells more.

    Args:
        path: the file or folder, or a file's contents.
        method: which entry point; None is ``forward``, or the first of a file without it.
        sources: the folder that ``dump`` of ``ethorch.compile`` named.

    Raises:
        EthorchError: there is no such file or method, or it is no program.
    """
    settings = None
    if isinstance(path, (bytes, bytearray, memoryview)):
        data = bytes(path)
    else:
        file = Path(path)
        if file.is_dir():
            if (kept := file / "settings.toml").is_file():
                settings = Settings.read(kept)
            sources = sources or (file / "delegates" if (file / "delegates").is_dir() else None)
            file = file / "model.pte"
        data = pte.contents(file)
    found = Program(data, pte.entry_point(pte.read(data), method), settings=settings, sources=sources)
    return found.selecting() if method is None else found
