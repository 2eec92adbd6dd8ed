"""``Program``: a compiled program that can be called, saved and queried."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ethorch import figures, runtime
from ethorch.backend.emit.build import Build
from ethorch.figures import Estimate, Layer, MemoryReport
from ethorch.figures.memory_use import MemoryUse
from ethorch.formats import pte
from ethorch.formats.files import write_whole
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import Method
from ethorch.npu import Sources
from ethorch.program.attempt import Attempt
from ethorch.program.explanation import Explanation, State, explanation
from ethorch.program.facts import Accuracy, Budget, TensorInfo, Verification
from ethorch.program.measure.accuracy import accuracy
from ethorch.program.measure.budgets import budgets, fits
from ethorch.program.measure.inspection import Inspection, cpu_cycles_of, cycles_of
from ethorch.program.measure.profile import Profile, import_profile
from ethorch.program.plain_data import plain_data
from ethorch.program.record import Record
from ethorch.program.saving import check_folder, check_writable, tosa_of, write_program
from ethorch.report.page import page
from ethorch.report.summary import summary
from ethorch.support import trees
from ethorch.support.errors import EthorchError, HostError
from ethorch.support.exclusive import exclusive
from ethorch.support.rendering import as_html, as_text
from ethorch.support.wording import counted
from ethorch.targets.boards import Board
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.selection import Selection
from ethorch.targets.settings import Settings
from ethorch.vela import artifacts

if TYPE_CHECKING:
    from torch import nn

    from ethorch.models.load import UserModel  # 1 second of torch

    # 2 seconds of torchao and ExecuTorch
    from ethorch.program.measure.ladder import Comparison

    # the same 2 seconds
    from ethorch.program.suggestions import Suggestions

    # 2 seconds of torchao and ExecuTorch, which a file needs not
    from ethorch.quantization.config import QuantizationConfig

_BUNDLED_SAMPLES = 8


class Program:
    """One method of a ``.pte``, and all that is known of it. ``ethorch.compile`` and ``ethorch.load`` make them.

    ``program["decode"]`` is another method of the same file, which sees the buffers that this one wrote, if they share some.

    A program can be pickled and deep-copied, with all methods of its file. The copy begins with the buffers' initial contents.

    Attributes:
        record: What is known of the method.
    """

    def __init__(self, record: Record, loaded: dict[str, runtime.HostProgram] | None = None):
        """Create the program that a record describes.

        Args:
            record: What is known of the method.
            loaded: The methods of the file that are in the runtime, which programs of one file share.
        """
        self.record = record
        self._loaded: dict[str, runtime.HostProgram] = {} if loaded is None else loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.record,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return type(self)(copy.deepcopy(self.record, memo))

    # what it is -------------------------------------------------------------------------------------------------------

    def __getitem__(self, method: str) -> Program:
        """Return another method of the file; raise HostError if it has no method of this name."""
        return type(self)(self.record[method], self._loaded)

    def selecting(self) -> Program:
        """Return a copy that calls the smallest method that fits the inputs, if the methods are one model at several shapes."""
        return type(self)(self.record.selecting(), self._loaded)

    def chosen(self, inputs: Sequence[Any]) -> tuple[Program, list[Any]]:
        """Return the method that fits flat inputs, and the inputs padded to its shapes. A program of one shape returns itself.

        Raises:
            HostError: they fit none.
        """
        record, filled = self.record.chosen(inputs)
        return (self if record is self.record else type(self)(record, self._loaded)), filled

    def cropped(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Return flat outputs without the padding of the inputs."""
        return self.record.cropped(outputs, inputs)

    def as_taken(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs, with floats quantized if the program takes codes."""
        return self.record.as_taken(inputs)

    def floats(self, outputs: Sequence[Any]) -> list[Any]:
        """Return flat outputs with codes dequantized."""
        return self.record.floats(outputs)

    @property
    def pte(self) -> bytes:
        """Contents of the ``.pte``."""
        return self.record.pte

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.record.method

    @property
    def settings(self) -> Settings | None:
        """Settings of the compilation; None if the file does not contain them."""
        return self.record.settings

    @property
    def build(self) -> Build | None:
        """Result of the compilation: delegates and refusals; None if the program was loaded from a file."""
        return self.record.build

    @property
    def model(self) -> UserModel | None:
        """The float model and its samples; None if the program was loaded from a file."""
        return self.record.model

    @property
    def quantized(self) -> nn.Module | None:
        """The quantized model; None if the program was loaded from a file."""
        return self.record.quantized

    @property
    def config(self) -> QuantizationConfig | None:
        """The user's QuantizationConfig, if one replaced the scheme's."""
        return self.record.config

    @property
    def selection(self) -> Selection | None:
        """Method for each shape of the inputs; None if the program has one shape."""
        return self.record.selection

    @property
    def verification(self) -> Verification | None:
        """Comparison of the delegates with the TOSA reference; None if loaded, or compiled with ``verify=False``."""
        return self.record.verification

    @property
    def tried(self) -> tuple[Attempt, ...]:
        """Programs that the search for budgets compiled, including this one; the first follows the settings."""
        return self.record.tried

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the entry points of the file."""
        return self.record.methods

    @property
    def open_dims(self) -> list[Collection[int]] | None:
        """Axes of each input whose size may differ from ``inputs``; None if all sizes are fixed."""
        return self.record.open_dims

    @property
    def examples(self) -> list[tuple[Any, ...]]:
        """Example inputs of each shape: the model's, or zeros of the types that a loaded program accepts."""
        return self.record.examples

    @property
    def description(self) -> Method:
        """The method as parsed from the file."""
        return self.record.description

    @property
    def target(self) -> str:
        """Name of the NPU; empty if no delegate names one."""
        return self.record.target

    @property
    def payloads(self) -> tuple[DelegatePayload, ...]:
        """Payload of each NPU delegate."""
        return self.record.payloads

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The flat inputs, in order."""
        return self.record.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The flat outputs, in order."""
        return self.record.outputs

    @property
    def layers(self) -> tuple[Layer, ...]:
        """NPU operations and CPU operators in the order of execution, with their costs."""
        return self.record.layers

    @property
    def memory(self) -> MemoryReport:
        """RAM and flash that the whole application needs, and the address of each tensor."""
        return self.record.memory

    @property
    def command_sources(self) -> dict[int, Sources] | None:
        """Operator of each NPU command, by the delegate's number in the file; None if it is unknown."""
        return self.record.command_sources

    @property
    def spec(self) -> EthosUCompileSpec | None:
        """Compile spec; None if no delegate contains one."""
        return self.record.spec

    @property
    def core_clock_hz(self) -> float:
        """NPU clock of the system configuration in Hz; 0 if there is none."""
        return self.record.core_clock_hz

    @property
    def cpu_clock_hz(self) -> float:
        """CPU clock of the board in Hz, or the NPU clock if no board is named."""
        return self.record.cpu_clock_hz

    @property
    def states(self) -> tuple[State, ...]:
        """Storage of each buffer that the model modifies."""
        return self.record.states

    @property
    def board(self) -> Board | None:
        """The board that it was compiled for, if any."""
        return self.record.board

    @property
    def memory_uses(self) -> tuple[MemoryUse, ...]:
        """Bytes that the NPU uses in each memory of the board; empty without one, or if an ini file describes other memories."""
        return self.record.memory_uses

    @property
    def estimate(self) -> Estimate:
        """Estimated time of one inference by part: NPU operators and transposes, CPU operators, copies, calls."""
        return self.record.estimate

    @property
    def mac_count(self) -> int:
        """Multiply-accumulates of one inference: those of the model's graph or, for a loaded program, of its layers."""
        return self.record.mac_count

    @property
    def total_cycles(self) -> int | None:
        """Vela's estimate of the NPU cycles of one inference; None if unknown. ``estimate`` has all parts."""
        return self.record.total_cycles

    @property
    def cpu_cycles(self) -> int | None:
        """Estimated cycles of the CPU operators of one inference (``ethorch.figures.RATES``); None if unknown."""
        return self.record.cpu_cycles

    @property
    def milliseconds(self) -> float | None:
        """Estimated milliseconds of one inference, all parts in sequence; None if a part is unknown."""
        return self.record.milliseconds

    # running ----------------------------------------------------------------------------------------------------------

    @property
    def host(self) -> runtime.HostProgram:
        """The program loaded into ExecuTorch's runtime, with the simulated NPU."""
        if self.method not in self._loaded:
            folder = self.record.sources
            first = runtime.load(self.pte, self.method, sources=None if folder is None else artifacts.reader(folder))
            self._loaded.update({name: first[name] for name in first.methods})
        return self._loaded[self.method]

    def reset(self) -> None:
        """Reset the buffers that persist between calls, for all methods that share them."""
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
        import torch

        flat = trees.leaves(self._positional(inputs, keywords))
        if self.selection is not None:
            part, filled = self.chosen(flat)
            return part._nested(self.cropped(trees.leaves(part(*filled)), flat))
        flat = list(self.as_taken(tuple(flat)))
        count = self.record.batch(flat)
        if count == 1:
            return self._nested(self.host(*flat))
        batches = [info.shape[0] for info in self.inputs]
        samples = [[x[i * size : (i + 1) * size] for x, size in zip(flat, batches, strict=True)] for i in range(count)]
        runs = self.host.run_many(samples)
        return self._nested([torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*runs, strict=True)])

    def _positional(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Return the inputs with keyword arguments in their positions."""
        if not keywords:
            return inputs
        names = getattr(getattr(self.model, "module", None), "names", ())
        if set(keywords) != set(names):
            known, found = ", ".join(names) or "none", ", ".join(keywords)
            raise HostError(f"the program takes {counted(len(self.inputs), 'input')}, by name {known}; found the names {found}.")
        return (*inputs, *(keywords[name] for name in names))

    def _nested(self, outputs: list[Any]) -> Any:
        """Return the flat outputs in the structure that the model returns."""
        structure = self.description.structure
        if structure is not None and structure[1]:
            from torch.utils import _pytree as pytree

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
                builds = [known.build for known in self.record.methods_by_name.values() if known.build is not None]
                write_program(target, self.pte, self.to_json(), self.settings, builds)
        except OSError as error:
            raise EthorchError(f"cannot write {target}: {error.strerror}. It is unchanged.") from error
        return target

    def _bundled(self) -> bytes:
        """With at most 8 of the model's samples and what it makes of them in this order: a board has to compute the same."""
        if self.model is None:
            raise EthorchError("a .pte holds no samples to bundle: save a program that ethorch.compile returned.")
        from ethorch.backend.bundled import bundled_program  # 0.4 s of ExecuTorch's devtools

        cases, loaded = [], runtime.load(self.pte, self.method)
        for sample in (self.model.calibration or [self.model.example_inputs])[:_BUNDLED_SAMPLES]:
            inputs = trees.leaves(self.as_taken(sample))
            cases.append((inputs, [x.clone() if trees.is_tensor(x) else x for x in loaded(*inputs)]))
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
        from ethorch.models.samples import read_samples  # 1 second of torch
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
            chosen = [self.chosen(trees.leaves(sample)) for sample in given]
            if len({part.method for part, _ in chosen}) > 1:
                raise EthorchError("the samples are for several methods; give those of one shape, or compare program['NAME'].")
            return chosen[0][0].compare(samples=[tuple(inputs) for _, inputs in chosen], model=model)
        with exclusive():
            return compared(self.record, given, model)

    # answers ----------------------------------------------------------------------------------------------------------

    def explain(self, operator: str | None = None, cpu_only: bool = False) -> Explanation:
        """Where each operator runs, what it costs, and why it is not on the NPU; ``print`` it.

        Args:
            operator: only those with this in their name, e.g. ``softmax``.
            cpu_only: only those on the CPU.
        """
        partition = None if self.build is None else self.build.partition
        return explanation(self.target, self.layers, partition, operator, cpu_only, self.states)

    @property
    def accuracy(self) -> Accuracy | None:
        """SQNR of the program against the float model on at most 8 of its samples; None without a float model.

        The first access runs the samples.
        """
        return accuracy(self.record)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Budgets of the settings and memories of the board, each with its value."""
        return budgets(self.record)

    @property
    def fits(self) -> bool:
        """True if no budget is known to be exceeded."""
        return fits(self.record)

    def suggestions(self, limit: int | None = None) -> Suggestions:
        """What would make it smaller or faster, each change tried: codes and channels last at the ends, arenas, weights in SRAM,
        cheaper schemes, smaller images, fewer channels in what costs most, and in layers just above a multiple of 16. It takes a
        compilation for each.

        Args:
            limit: Keep the first so many, those that meet all budgets first.

        Raises:
            EthorchError: the program is of a file: its model is not known.
        """
        # 2 seconds of torchao, which a file needs not
        from ethorch.program.build import compile_beside
        from ethorch.program.suggestions import suggestions  # the same 2 seconds

        found = suggestions(self.record, compile_beside(self.record))
        return replace(found, entries=found.entries[:limit])

    def to_json(self) -> dict[str, Any]:
        """Return all facts as plain data; docs/json.md describes the keys."""
        return plain_data(self.record)

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
        flat = trees.leaves(self.as_taken(inputs))
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
        return import_profile(self.record, *files)

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
        """Return the summary as a Rich renderable."""
        return summary(self.to_json())

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())

    def __repr__(self) -> str:
        return f"<ethorch.Program {self.method} for {self.target or 'the CPU'}, {len(self.pte):,} bytes>"


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
    found = Program(Record(data, pte.entry_point(pte.read(data), method), settings=settings, sources=sources))
    return found.selecting() if method is None else found
