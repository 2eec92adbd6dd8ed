"""The class ``Program``: a compiled program that can be run, saved and analyzed."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
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
from ethorch.program.plain_data import plain_data
from ethorch.program.record import Record
from ethorch.program.restoring import restore
from ethorch.program.saving import check_file, check_writable, tosa_of, write_program
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

    from ethorch.program.measure.profile import Profile  # takes 10 ms
    from ethorch.program.suggestions import Suggestions  # importing torchao and ExecuTorch takes 2 seconds

_BUNDLED_SAMPLES = 8


class Program:
    """One method of a ``.pte``, returned by ``ethorch.compile`` and ``ethorch.load``.

    ``program["decode"]`` is the method ``decode`` of the same file. The methods share mutable buffers. A pickled or
    deep-copied program includes all methods of its file, and its mutable buffers have their initial values.
    """

    def __init__(self, record: Record, loaded: dict[str, runtime.HostProgram] | None = None):
        # loaded: Methods that are already loaded in the runtime. All programs of a file share this dict.
        self._record = record
        self._loaded: dict[str, runtime.HostProgram] = {} if loaded is None else loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._record,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return type(self)(copy.deepcopy(self._record, memo))

    # facts -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, method: str) -> Program:
        """Return another method of the same file.

        Raises:
            SpecError: The method does not exist.
        """
        return type(self)(self._record[method], self._loaded)

    @property
    def pte(self) -> bytes:
        """The contents of the ``.pte``."""
        return self._record.pte

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of all methods in the file."""
        return self._record.methods

    @property
    def settings(self) -> Settings | None:
        """The settings of the compilation, or None if unknown."""
        return self._record.settings

    @property
    def target(self) -> str:
        """The name of the NPU, or "" for a loaded ``.pte`` without an NPU delegate."""
        return self._record.target

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The flattened inputs, in order."""
        return self._record.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The flattened outputs, in order."""
        return self._record.outputs

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The rows of :meth:`explain`: the placement, module, source line, cycles and reason of each operator."""
        return self.explain().operators

    @property
    def delegates(self) -> tuple[Delegate, ...]:
        """The NPU delegates, with layers, payloads and TOSA graphs."""
        return delegates_of(self._record)

    @property
    def memory(self) -> MemoryReport:
        """The RAM and flash of the whole application, and the address of each tensor."""
        return self._record.memory

    @property
    def estimate(self) -> Estimate:
        """The estimated cycles and time of one inference, the clocks, and the number of multiply-accumulates."""
        return replace(self._record.estimate, macs=self._record.mac_count)

    @property
    def accuracy(self) -> Accuracy | None:
        """The lowest SQNR among the outputs, relative to the float model, or None if unknown.

        The first access runs up to 8 calibration samples. If there are several methods, calibration sessions run until they have
        called this method at least 8 times.
        """
        return accuracy(self._record)

    @property
    def budgets(self) -> Budgets:
        """The budgets in the settings and the sizes of the board's memories, each with the program's figure."""
        return budgets(self._record)

    # running ----------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Restore the initial values of mutable buffers, for all methods that share the buffers."""
        host_of(self).reset()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Run the program in ExecuTorch's runtime with the simulated NPU.

        Pass the inputs by position or by name. If a program input is quantized, a float input is quantized
        automatically. If the first dimension of each input is the same multiple of its compiled size, the inputs are split into
        several inferences, whose outputs are concatenated along the first dimension.

        Returns:
            The outputs, in the model's output structure if it is known and its types are imported. Named tuples become tuples.
            Quantized outputs are not dequantized.

        Raises:
            HostError: The number, dtype or shape of the inputs is wrong, or the outputs of several inferences cannot be
                concatenated.
            MachineFault: The command stream is invalid.
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
        batches = [None if trees.is_constant(x) else info.shape[0] for x, info in zip(flat, self.inputs, strict=True)]
        self._check_output_batches([size for size in batches if size is not None], count)
        samples = [
            [x if size is None else x[i * size : (i + 1) * size] for x, size in zip(flat, batches, strict=True)]
            for i in range(count)
        ]
        runs = host.run_many(samples)
        return self._nest([torch.cat(parts) for parts in zip(*runs, strict=True)])

    def _check_output_batches(self, batches: Sequence[int], count: int) -> None:
        for number, info in enumerate(self.outputs):
            if not info.shape or info.shape[0] not in batches:
                raise HostError(
                    f"cannot join the outputs of {count} inferences: output {number} has the shape {list(info.shape)}, but the "
                    f"first dimension of a batch is {' or '.join(str(size) for size in sorted(set(batches)))}. "
                    "Call the program once for each sample."
                )

    def _without_defaults(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        user = self._record.model
        if user is None or not (keywords or len(inputs) > len(user.example_inputs)):
            return inputs, keywords
        defaults, count = user.defaults, len(user.example_inputs)
        if len(inputs) - count > len(defaults):
            return inputs, keywords
        given = dict(zip(defaults, inputs[count:], strict=False)) | {name: keywords[name] for name in defaults if name in keywords}
        for name, argument in given.items():
            default = defaults[name]
            if argument is not default and not (trees.is_constant(argument) and argument == default):
                raise HostError(
                    f"input {name}: expected {default!r}, the default, because the example inputs omit this input, got "
                    f"{argument!r:.80}. {trees.TO_VARY}"
                )
        return inputs[:count], {name: argument for name, argument in keywords.items() if name not in given}

    def _positional(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        inputs, keywords = self._without_defaults(inputs, keywords)
        if keywords:
            user = self._record.model
            if user is None:
                raise HostError("input names are unknown, because a .pte does not record them. Pass inputs by position.")
            names = user.input_names[len(inputs) :]
            for name, argument in user.keywords.constants.items():
                trees.check_constant(f"input {name}", keywords.get(name, argument), argument, HostError)
            keywords = {name: argument for name, argument in keywords.items() if name not in user.keywords.constants}
            examples = dict(zip(names, user.example_inputs[len(inputs) :], strict=False))
            keywords = {name: argument for name, argument in examples.items() if trees.is_constant(argument)} | keywords
            if set(keywords) != set(names):
                raise HostError(
                    f"expected the keyword inputs {', '.join(names) or '(unknown names)'}, got {', '.join(keywords)}. "
                    f"The program has {count_noun(len(self.inputs), 'input')}."
                )
            inputs = (*inputs, *(keywords[name] for name in names))
        leaves = trees.leaves(inputs)
        needs_model = len(leaves) < len(self.inputs) or any(isinstance(leaf, str) for leaf in leaves)
        if needs_model and (compiled := self._record.model) is not None:
            if all(map(trees.is_constant, compiled.example_inputs[len(inputs) :])):
                inputs = (*inputs, *compiled.example_inputs[len(inputs) :])
            leaves, expected = trees.leaves(inputs), trees.leaves(compiled.example_inputs)
            for number, (argument, constant) in enumerate(zip(leaves, expected, strict=False)):
                trees.check_constant(f"input {number}", argument, constant, HostError)
        if not any(isinstance(value, (Mapping, list, tuple)) for value in inputs) or (spec := self._structure(0)) is None:
            return inputs
        arguments, by_name = spec.unflatten([f"input {number}" for number in range(spec.num_leaves)])
        example = (*arguments, *by_name.values())
        if not trees.has_keys_of(inputs, example):
            leaves, build = trees.flatten(inputs)
            actual = build([f"input {number}" for number in range(len(leaves))])
            raise HostError(f"expected inputs with the keys of the example inputs, {example}, got {actual}.")
        ordered: tuple[Any, ...] = trees.order_like(inputs, example)
        return ordered

    def _nest(self, outputs: list[Any]) -> Any:
        spec = self._structure(1)
        if spec is not None and spec.num_leaves == len(outputs):
            return spec.unflatten(outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _structure(self, number: int) -> Any:
        structure = self._record.description.structure
        if structure is None or not structure[number] or trees.find_import(structure[number]):
            return None
        from torch.utils import _pytree as pytree

        try:
            return pytree.treespec_loads(structure[number])
        except Exception:  # an unregistered type, or an incompatible version of torch
            return None

    # saving -----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the program to a file. The suffix selects the format.

        - ``.pte``: The program.
        - ``.bpte``: The program with calibration samples and expected outputs, for ExecuTorch's test runners.
        - ``.tosa``: The TOSA flatbuffer of the only delegate of this method.
        - No suffix: A folder with ``model.pte``, ``settings.toml``, ``program.json``, ``comparison.json``, and the TOSA graph and
          payload of each delegate. Methods are compared on the example inputs, up to a total of 5 billion
          multiply-accumulates or 2,000 operators.

        Returns:
            The path.

        Raises:
            EthorchError: The suffix is unknown, the program does not contain the required data, or the file cannot be written.
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
        record = self._record
        if record.model is None:
            raise EthorchError(
                "a .bpte requires samples, but a loaded .pte has no samples. Save a program returned by ethorch.compile."
            )
        from ethorch.backend.bundled import bundle_program  # importing ExecuTorch's devtools takes 0.4 s

        cases, loaded = [], runtime.load(record.pte, record.method)
        for sample in (record.model.calibration or [record.model.example_inputs])[:_BUNDLED_SAMPLES]:
            inputs = trees.leaves(record.as_taken(sample))
            outputs = [x.clone() if trees.is_tensor(x) else x for x in loaded(*inputs)]
            for name, leaves in (("input", inputs), ("output", outputs)):
                if any(leaf is None for leaf in leaves):
                    raise EthorchError(f"a .bpte requires tensors or numbers, but an {name} is None. Remove it, or save a .pte.")
            cases.append((inputs, outputs))
        return bundle_program(record.pte, record.method, cases)

    # checking ---------------------------------------------------------------------------------------------------------

    def compare(self, *inputs: Any, samples: Any = None, model: nn.Module | None = None, **keywords: Any) -> Comparison:
        """Compare the outputs and operators of the float model, the quantized model and the NPU.

        ::

            comparison = program.compare(samples=images[:8])
            print(comparison)
            print(comparison.largest_loss, comparison.first_divergence)  # with lines of the model's source

        To compare operators, ``compare`` runs NPU operators in the TOSA reference model and CPU operators in PyTorch.
        ``comparison.bit_exact`` is True if the simulator and the TOSA reference model return the same delegate outputs for all
        samples.

        Args:
            inputs: Inputs of one inference. Default: the example inputs. If the program was loaded from a folder, their comparison
                is read from the folder.
            samples: Inputs of several inferences, in any form that ``ethorch.compile`` accepts for calibration.
            model: Float model, required if the program was loaded or was compiled from a quantized model. For a loaded program,
                only outputs are compared.
            keywords: Inputs by name.

        Raises:
            EthorchError: The float model is unknown, or a sample does not match the example inputs.
            HostError: The inputs do not match the program's inputs.
        """
        if not inputs and not keywords and samples is None and model is None:
            comparison = find_comparison(self._record)
            if self._record.model is not None and self._record.model.example_inputs:
                comparison = example_comparison(self._record)
            if comparison is not None:
                if not comparison.samples:
                    raise EthorchError(comparison.missing)
                return comparison
        from ethorch.models.samples import Keywords, read_samples  # importing torch takes 1 second
        from ethorch.program.measure.compare import compare_samples  # importing torchao and ExecuTorch takes 2 seconds

        example = inputs if self._record.model is None else self._record.model.example_inputs
        calls = [self._positional(inputs, keywords)] if inputs or keywords else [example]
        if samples is not None:
            named = Keywords() if self._record.model is None else self._record.model.keywords
            example, *others = self._record.examples
            checked = read_samples(samples, example, keywords=named, others=others, open_dims=self._record.open_dims)
            calls = [sample.inputs for sample in checked]
        calls = [sample if isinstance(sample, tuple) else (sample,) for sample in calls]
        has_model = model is not None or self._record.model is not None
        if has_model and (not calls or calls == [()]):
            raise EthorchError(
                "expected inputs or samples, got none. Pass the inputs of one inference (--inputs), or several samples."
            )
        if has_model and self._record.selection is not None:
            chosen = [select(self, trees.leaves(sample)) for sample in calls]
            if len({part._record.method for part, _ in chosen}) > 1:
                raise EthorchError(
                    "compare: expected samples of one shape, got several shapes. Pass samples of one shape, or use "
                    "program['NAME'].compare()."
                )
            return chosen[0][0].compare(samples=[tuple(inputs) for _, inputs in chosen], model=model)
        with exclusive():
            return compare_samples(self._record, calls, model)

    # analysis ---------------------------------------------------------------------------------------------------------

    def explain(self, operator: str | None = None, cpu_only: bool = False) -> Explanation:
        """Return the placement and cost of each operator, with reasons and remedies for CPU operators.

        Args:
            operator: Substring of the selected operators' names, e.g. ``softmax``.
            cpu_only: Whether to select only CPU operators.

        Raises:
            SpecError: No operator matches.
        """
        record = self._record
        return explanation(record.target, record.layers, record.partition, operator, cpu_only, record.states)

    def suggest(self, limit: int | None = None) -> Suggestions:
        """Compile modified versions of the model, and return the changes that make the program smaller or faster.

        The changes are integer or NHWC inputs and outputs, other arena sizes, weights in SRAM, cheaper schemes, smaller images, and
        fewer channels in expensive layers.

        Args:
            limit: Maximum number of changes to return. Changes that meet all budgets are returned first.

        Raises:
            EthorchError: The program was loaded from a file, or compiled with a QuantizationConfig.
        """
        # importing torchao takes 2 seconds
        from ethorch.program.build import compile_beside
        from ethorch.program.suggestions import suggestions  # importing torchao takes 2 seconds

        changes = suggestions(self._record, compile_beside(self._record))
        return replace(changes, entries=changes.entries[:limit])

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON-compatible data. See docs/json.md for the keys."""
        return plain_data(self._record)

    def profile(
        self,
        *inputs: Any,
        files: Sequence[str | os.PathLike[str]] = (),
        runs: int = 1,
        etrecord: str | os.PathLike[str] | None = None,
    ) -> Inspection | Profile:
        """Return measured times and estimated cycles.

        Without files, the program runs ``runs`` times with ExecuTorch's event tracer. ``profile(x).to_dataframe()`` returns
        the table of ExecuTorch's Inspector with columns for the estimates. Measured times are simulation times on the host.

        Args:
            inputs: Inputs of one inference. Default: the example inputs.
            files: CSV files of QREAD samples (``qread_bytes,samples``) or call times (``milliseconds``), or logs with PMU counters
                from ExecuTorch's runner, Arm's evaluation kit, Zephyr or ethorch's firmware.
            etrecord: ``etrecord.bin`` in a saved folder, which maps events to operators.

        Raises:
            HostError: Inputs are missing or do not match the program's.
            SpecError: Files and other arguments were passed, or ``runs`` is not positive.
            FormatError: A file is malformed or does not match the program.
        """
        if files:
            others = {"inputs": bool(inputs), "runs": runs != 1, "etrecord": etrecord is not None}
            if passed := [name for name, is_passed in others.items() if is_passed]:
                names = " and ".join(passed)
                raise SpecError(
                    f"profile: expected files without {names}, got both. Omit files to run the program, or omit {names}."
                )
            from ethorch.program.measure.profile import import_profile  # saves 10 ms of every compilation

            return import_profile(self._record, *files)
        if runs < 1:
            raise SpecError(f"profile: expected runs to be a positive number, got {runs}.")
        record = self._record
        if not inputs and record.inputs:
            if record.model is None:
                raise HostError(
                    f"profile requires inputs, but a .pte has no example inputs. Pass {count_noun(len(record.inputs), 'input')}."
                )
            inputs = record.model.example_inputs
        sources = record.command_sources or {}
        by_payload = {d.payload: sources[number] for number, d in enumerate(record.description.delegates) if number in sources}
        traced = runtime.load(
            record.pte,
            record.method,
            etdump=True,
            machine=lambda payload: runtime.npu_machine(payload, None, by_payload.get(payload)),
        )
        flat = trees.leaves(record.as_taken(self._positional(inputs, {})))
        for _ in range(runs):
            traced(*flat)
        inspector = traced.inspector(etrecord)
        clocks = record.core_clock_hz, record.cpu_clock_hz
        return Inspection(inspector, cycles_of(sources), cpu_cycles_of(record.layers), *clocks)

    def report(self, path: str | os.PathLike[str], samples: Any = None, title: str = "") -> Path:
        """Write a report as one self-contained HTML page.

        The report includes :attr:`accuracy` if the float model is known.

        Args:
            path: HTML file.
            samples: Inputs for :meth:`compare`, in any form that ``ethorch.compile`` accepts for calibration. By default,
                operators are not compared.
            title: Name of the program. Default: the model's name.

        Raises:
            EthorchError: The file cannot be written, or the comparison failed.
        """
        from ethorch.report.page import page  # saves 15 ms of every command that loads a program

        target = Path(path)
        check_file(target)
        _ = self.accuracy  # measure accuracy now, so that to_json contains it
        comparison = None if samples is None else self.compare(samples=samples).to_json()
        write_whole(target, page(self.to_json(), comparison, title).encode())
        return target

    def __rich__(self) -> Any:
        """Return the summary as a renderable for Rich."""
        return summary(self.to_json())

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__()) + bar_chart("Cycles of the largest layers", largest_layers(self.to_json()))

    def __repr__(self) -> str:
        return f"<ethorch.Program {self._record.method} for {self.target or 'the CPU'}, {len(self.pte):,} bytes>"


def record_of(program: Program) -> Record:
    """Return the internal record of a program."""
    return program._record


def host_of(program: Program) -> runtime.HostProgram:
    """Return the program's method in ExecuTorch's runtime with the simulated NPU. The first call loads the method."""
    record, loaded = program._record, program._loaded
    if record.method not in loaded:
        folder = record.sources
        first = runtime.load(record.pte, record.method, sources=None if folder is None else artifacts.reader(folder))
        loaded.update({name: first[name] for name in first.methods})
    return loaded[record.method]


def select(program: Program, inputs: Sequence[Any]) -> tuple[Program, list[Any]]:
    """See ``Record.choose``."""
    record, filled = program._record.choose(inputs)
    return (program if record is program._record else type(program)(record, program._loaded)), filled


def load(
    path: str | os.PathLike[str] | bytes, method: str | None = None, *, sources: str | os.PathLike[str] | None = None
) -> Program:
    """Load a ``.pte`` compiled by ethorch or by ExecuTorch's Arm backend, or a folder written by ``Program.save``.

    Source lines and Vela's cycles require a folder or ``sources``. Accuracy and the reasons for CPU operators require a folder.

    Args:
        path: Path of a ``.pte`` or folder, or contents of a ``.pte``.
        method: Method name. Default: ``forward``, or the first method of a file without ``forward``.
        sources: Folder of artifacts (``EthosUCompileSpec.dump_intermediate_artifacts_to``) that record each command's operator.

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
