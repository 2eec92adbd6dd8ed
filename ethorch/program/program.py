"""``Program``: a compiled program that can be called, saved and queried."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ethorch import runtime
from ethorch.figures import Estimate, MemoryReport
from ethorch.formats import pte
from ethorch.formats.files import write_whole
from ethorch.program.comparison import Comparison
from ethorch.program.delegates import Delegate, delegates_of
from ethorch.program.explanation import Explanation, Operator, explanation
from ethorch.program.facts import Accuracy, TensorInfo
from ethorch.program.measure.accuracy import accuracy
from ethorch.program.measure.budgets import Budgets, budgets
from ethorch.program.measure.example_comparison import example_comparison, find_comparison
from ethorch.program.measure.inspection import Inspection, cpu_cycles_of, cycles_of
from ethorch.program.measure.profile import Profile, import_profile
from ethorch.program.plain_data import plain_data
from ethorch.program.record import Record
from ethorch.program.restoring import restore
from ethorch.program.saving import check_folder, check_writable, tosa_of, write_program
from ethorch.report.page import page
from ethorch.report.summary import largest_layers, summary
from ethorch.support import trees
from ethorch.support.errors import EthorchError, HostError, SpecError
from ethorch.support.exclusive import exclusive
from ethorch.support.rendering import as_html, as_text, bar_chart
from ethorch.support.wording import count_noun
from ethorch.targets.settings import Settings
from ethorch.vela import artifacts

if TYPE_CHECKING:
    from torch import nn

    # 2 seconds of torchao and ExecuTorch
    from ethorch.program.suggestions import Suggestions

_BUNDLED_SAMPLES = 8


class Program:
    """One method of a ``.pte``, returned by ``ethorch.compile`` and ``ethorch.load``.

    ``program["decode"]`` is another method of the same file, with the same shared buffers. A program can be pickled and
    deep-copied, with all methods of its file. The copy starts with the initial state.
    """

    def __init__(self, record: Record, loaded: dict[str, runtime.HostProgram] | None = None):
        """Create the program of a record.

        Args:
            loaded: Methods that are loaded in the runtime, shared by all programs of the file.
        """
        self._record = record
        self._loaded: dict[str, runtime.HostProgram] = {} if loaded is None else loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._record,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return type(self)(copy.deepcopy(self._record, memo))

    # facts -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, method: str) -> Program:
        """Return another method of the same file; raise HostError if it does not exist."""
        return type(self)(self._record[method], self._loaded)

    @property
    def pte(self) -> bytes:
        """Contents of the ``.pte``."""
        return self._record.pte

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the entry points of the file."""
        return self._record.methods

    @property
    def settings(self) -> Settings | None:
        """Settings of the compilation; None if the file does not contain them."""
        return self._record.settings

    @property
    def target(self) -> str:
        """Name of the NPU; empty if no delegate names one."""
        return self._record.target

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The flat inputs, in order."""
        return self._record.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The flat outputs, in order."""
        return self._record.outputs

    @property
    def operators(self) -> tuple[Operator, ...]:
        """One row per operator: NPU or CPU, module, source line, cycles, reason. ``explain`` prints them."""
        return self.explain().operators

    @property
    def delegates(self) -> tuple[Delegate, ...]:
        """The delegates with their layers, payloads and TOSA graphs."""
        return delegates_of(self._record)

    @property
    def memory(self) -> MemoryReport:
        """RAM and flash of the whole application, the address of each tensor, and the buffers that persist."""
        return self._record.memory

    @property
    def estimate(self) -> Estimate:
        """Cycles and time of one inference, by component; clocks; multiply-accumulates."""
        return replace(self._record.estimate, macs=self._record.mac_count)

    @property
    def accuracy(self) -> Accuracy | None:
        """SQNR against the float model on at most 8 of its samples; None without a float model.

        The first access runs the samples.
        """
        return accuracy(self._record)

    @property
    def budgets(self) -> Budgets:
        """Limits of the settings and of the board's memories, each with its figure; ``met`` and ``attempts``."""
        return budgets(self._record)

    # running ----------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Restore the initial values of the buffers that persist between calls, for all methods that share them."""
        host_of(self).reset()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Run in ExecuTorch's runtime with the simulated NPU.

        Inputs are those of the model, by position or by name. If the program has quantized inputs, float inputs are quantized. A
        batch of several inferences (the first dimension of each input is the same multiple of the program's) runs on all CPUs, and
        the outputs are concatenated.

        Returns:
            The outputs in the structure that the model returns, quantized if the program's outputs are.

        Raises:
            HostError: Number, dtype or shape of the inputs is wrong.
            MachineFault: The simulator stopped.
        """
        import torch

        flat = trees.leaves(self._positional(inputs, keywords))
        record, host = self._record, host_of(self)
        if record.selection is not None:
            part, filled = select(self, flat)
            return part._nest(record.crop(trees.leaves(part(*filled)), flat))
        flat = list(record.as_taken(tuple(flat)))
        count = record.batch(flat)
        if count == 1:
            return self._nest(host(*flat))
        batches = [info.shape[0] for info in self.inputs]
        samples = [[x[i * size : (i + 1) * size] for x, size in zip(flat, batches, strict=True)] for i in range(count)]
        runs = host.run_many(samples)
        return self._nest([torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*runs, strict=True)])

    def _positional(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        if not keywords:
            return inputs
        user = self._record.model
        if user is None:
            raise HostError("a loaded program does not record the names of its inputs. Pass them by position.")
        names = user.input_names[len(inputs) :]
        if set(keywords) != set(names):
            raise HostError(
                f"expected the inputs {', '.join(names) or '(unknown names)'}, got {', '.join(keywords)}. "
                f"The program has {count_noun(len(self.inputs), 'input')}."
            )
        return (*inputs, *(keywords[name] for name in names))

    def _nest(self, outputs: list[Any]) -> Any:
        structure = self._record.description.structure
        if structure is not None and structure[1]:
            from torch.utils import _pytree as pytree

            try:
                return pytree.tree_unflatten(outputs, pytree.treespec_loads(structure[1]))
            except Exception:  # a type that is not registered in this process, or another version of torch: outputs stay flat
                pass
        return outputs[0] if len(outputs) == 1 else outputs

    # saving -----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program to a file; the suffix selects the format.

        - ``.pte``: The program.
        - ``.bpte``: The program with the model's samples and expected outputs, for ExecuTorch's test runners.
        - ``.tosa``: The compiled TOSA flatbuffer of a program with one delegate.
        - No suffix: A folder with ``model.pte``, ``settings.toml``, ``program.json``, ``comparison.json``, and the TOSA graph and
          payload of each delegate. ``compare`` runs for each method, if the model has at most 5 billion multiply-accumulates and
          2,000 operators.

        Returns:
            The path.

        Raises:
            EthorchError: The suffix is unknown, the program lacks the data, or the file cannot be written.
        """
        target = Path(path)
        check_writable(target)
        try:
            if target.suffix == ".pte":
                write_whole(target, self.pte)
            elif target.suffix == ".bpte":
                write_whole(target, self._bundle())
            elif target.suffix == ".tosa":
                write_whole(target, tosa_of(self._record.build))
            else:
                write_program(target, self._record)
        except OSError as error:
            raise EthorchError(f"cannot write {target}: {error.strerror}. The file is unchanged.") from error
        return target

    def _bundle(self) -> bytes:
        """Return the program with at most 8 samples of the model and their expected outputs."""
        record = self._record
        if record.model is None:
            raise EthorchError("a .pte has no samples to bundle. Save a program that ethorch.compile returned.")
        from ethorch.backend.bundled import bundle_program  # 0.4 s of ExecuTorch's devtools

        cases, loaded = [], runtime.load(record.pte, record.method)
        for sample in (record.model.calibration or [record.model.example_inputs])[:_BUNDLED_SAMPLES]:
            inputs = trees.leaves(record.as_taken(sample))
            cases.append((inputs, [x.clone() if trees.is_tensor(x) else x for x in loaded(*inputs)]))
        return bundle_program(record.pte, record.method, cases)

    # checking ---------------------------------------------------------------------------------------------------------

    def compare(self, *inputs: Any, samples: Any = None, model: nn.Module | None = None, **keywords: Any) -> Comparison:
        """Compare float model, quantized model and NPU: outputs, and each operator that has a counterpart.

        ::

            comparison = program.compare(samples=images[:8])
            print(comparison)
            print(comparison.largest_loss, comparison.first_divergence)  # with lines of the model's source

        NPU operators run in the TOSA reference model, which equals the simulator bit for bit (``bit_exact`` for these samples), and
        CPU operators in PyTorch.

        Args:
            inputs: Inputs of one inference; the example inputs by default. A program loaded from a folder returns the comparison of
                the folder.
            samples: Several inputs, in any form that ``ethorch.compile`` accepts for calibration.
            model: Float model of a program that was loaded from a file, which compares its outputs only.
            keywords: Inputs by name.

        Raises:
            EthorchError: The float model is unknown, or a sample does not fit.
            HostError: The inputs do not fit the program.
        """
        if not inputs and not keywords and samples is None and model is None:
            comparison = find_comparison(self._record)
            if self._record.model is not None and self._record.model.example_inputs:
                comparison = example_comparison(self._record)
            if comparison is not None:
                if not comparison.samples:
                    raise EthorchError(comparison.missing)
                return comparison
        from ethorch.models.samples import read_samples  # 1 second of torch
        from ethorch.program.measure.compare import compare_samples  # 2 seconds of torchao and ExecuTorch

        example = inputs if self._record.model is None else self._record.model.example_inputs
        calls = [self._positional(inputs, keywords)] if inputs or keywords else [example]
        if samples is not None:
            names = getattr(getattr(self._record.model, "module", None), "names", ())
            checked = read_samples(
                samples, example, keywords=names, others=self._record.examples[1:], open_dims=self._record.open_dims
            )
            calls = list(samples) if self._record.model is None else [sample.inputs for sample in checked]
        calls = [sample if isinstance(sample, tuple) else (sample,) for sample in calls]
        if not calls or calls == [()]:
            raise EthorchError("compare: expected inputs or samples, got none. Pass the inputs of an inference, or samples.")
        if self._record.selection is not None:
            chosen = [select(self, trees.leaves(sample)) for sample in calls]
            if len({part._record.method for part, _ in chosen}) > 1:
                raise EthorchError(
                    "compare: expected samples of one shape, got several. Pass samples of one shape, or compare program['NAME']."
                )
            return chosen[0][0].compare(samples=[tuple(inputs) for _, inputs in chosen], model=model)
        with exclusive():
            return compare_samples(self._record, calls, model)

    # answers ----------------------------------------------------------------------------------------------------------

    def explain(self, operator: str | None = None, cpu_only: bool = False) -> Explanation:
        """Return each operator with its placement, cost, reason and remedy.

        Args:
            operator: Substring of the operator's name, e.g. ``softmax``.
            cpu_only: Whether to list CPU operators only.
        """
        record = self._record
        return explanation(record.target, record.layers, record.partition, operator, cpu_only, record.states)

    def suggest(self, limit: int | None = None) -> Suggestions:
        """Compile changes that make the program smaller or faster, and return those that help with their effects.

        The changes are quantized and channels-last inputs and outputs, other arenas, weights in SRAM, cheaper schemes, smaller
        images, and fewer channels in expensive layers.

        Args:
            limit: Number of changes to return; those that meet all budgets come first.

        Raises:
            EthorchError: The program was loaded from a file and has no model.
        """
        # 2 seconds of torchao
        from ethorch.program.build import compile_beside
        from ethorch.program.suggestions import suggestions  # 2 seconds of torchao

        changes = suggestions(self._record, compile_beside(self._record))
        return replace(changes, entries=changes.entries[:limit])

    def to_json(self) -> dict[str, Any]:
        """Return all facts as plain data; docs/json.md describes the keys."""
        return plain_data(self._record)

    def profile(
        self,
        *inputs: Any,
        files: Sequence[str | os.PathLike[str]] = (),
        runs: int = 1,
        etrecord: str | os.PathLike[str] | None = None,
    ) -> Inspection | Profile:
        """Return measured times with the estimated cycles.

        Without files, the program runs with ExecuTorch's event tracer. ``profile(x).to_dataframe()`` is the table of ExecuTorch's
        Inspector with the estimates as columns; its times are those of this computer.

        Args:
            inputs: Inputs of one inference; the model's example inputs by default.
            files: Logs with PMU counters, as printed by ExecuTorch's runner, Arm's evaluation kit, Zephyr and ethorch's firmware;
                CSV of QREAD samples, ``qread_bytes,samples``; CSV of ``milliseconds`` of calls.
            runs: Number of runs.
            etrecord: ``etrecord.bin`` of the program's folder, which maps events to operators.

        Raises:
            HostError: The inputs do not fit, or are missing.
            SpecError: Files and inputs were passed.
            FormatError: A file or a line is malformed.
        """
        if files:
            if inputs:
                raise SpecError("profile: expected inputs or files, got both. Pass one of them.")
            return import_profile(self._record, *files)
        record = self._record
        if not inputs and record.inputs:
            if record.model is None:
                raise HostError(f"a .pte has no example inputs. Pass {count_noun(len(record.inputs), 'input')}.")
            inputs = record.model.example_inputs
        sources = record.command_sources or {}
        by_payload = {d.payload: sources[number] for number, d in enumerate(record.description.delegates) if number in sources}
        traced = runtime.load(
            record.pte,
            record.method,
            etdump=True,
            machine=lambda payload: runtime.npu_machine(payload, None, by_payload.get(payload)),
        )
        flat = trees.leaves(record.as_taken(inputs))
        for _ in range(runs):
            traced(*flat)
        inspector = traced.inspector(etrecord)
        return Inspection(inspector, cycles_of(sources), cpu_cycles_of(record.layers), record.core_clock_hz)

    def report(self, path: str | os.PathLike[str], samples: Any = None, title: str = "") -> Path:
        """Write the report, one HTML page without network access.

        If the float model is known, ``accuracy`` is measured.

        Args:
            path: HTML file.
            samples: Inputs for ``compare``, in any form that ``ethorch.compile`` accepts for calibration. Default: no comparison.
            title: Name of the program.

        Raises:
            EthorchError: The plotting library is not installed, the file cannot be written, or ``compare`` failed.
        """
        target = Path(path)
        check_folder(target)
        _ = self.accuracy  # measured now, so that to_json has it
        comparison = None if samples is None else self.compare(samples=samples).to_json()
        write_whole(target, page(self.to_json(), comparison, title).encode())
        return target

    def __rich__(self) -> Any:
        """Return the summary as a Rich renderable."""
        return summary(self.to_json())

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__()) + bar_chart("Largest layers, cycles", largest_layers(self.to_json()))

    def __repr__(self) -> str:
        return f"<ethorch.Program {self._record.method} for {self.target or 'the CPU'}, {len(self.pte):,} bytes>"


def record_of(program: Program) -> Record:
    """Return the record of a program's method, for use inside ethorch."""
    return program._record


def host_of(program: Program) -> runtime.HostProgram:
    """Return a program's method in ExecuTorch's runtime with the simulated NPU, loaded on first use."""
    record, loaded = program._record, program._loaded
    if record.method not in loaded:
        folder = record.sources
        first = runtime.load(record.pte, record.method, sources=None if folder is None else artifacts.reader(folder))
        loaded.update({name: first[name] for name in first.methods})
    return loaded[record.method]


def select(program: Program, inputs: Sequence[Any]) -> tuple[Program, list[Any]]:
    """Return the method that fits flat inputs, and the padded inputs.

    Raises:
        HostError: No method fits.
    """
    record, filled = program._record.choose(inputs)
    return (program if record is program._record else type(program)(record, program._loaded)), filled


def load(
    path: str | os.PathLike[str] | bytes, method: str | None = None, *, sources: str | os.PathLike[str] | None = None
) -> Program:
    """Load a ``.pte`` compiled by ethorch or by ExecuTorch's Arm backend, or a folder written by ``Program.save``.

    Compile-time information (reasons, source lines, Vela's cycles) is available only if the file or ``sources`` records it.

    Args:
        path: File, folder, or contents of a file.
        method: Entry point; ``forward`` by default, or the first.
        sources: Folder of ``dump_intermediate_artifacts_to``, which names the operator of each command.

    Raises:
        EthorchError: The file or method does not exist, or the file is not a program.
    """
    settings = folder = None
    if isinstance(path, (bytes, bytearray, memoryview)):
        data = bytes(path)
    else:
        file = Path(path)
        if file.is_dir():
            folder = file
            if (settings_file := file / "settings.toml").is_file():
                settings = Settings.read(settings_file)
            sources = sources or (file / "delegates" if (file / "delegates").is_dir() else None)
            file = file / "model.pte"
        data = pte.contents(file)
    record = Record(data, pte.entry_point(pte.read(data), method), settings=settings, sources=sources)
    if folder is not None:
        restore(record, folder)
    return Program(record.selecting() if method is None else record)
