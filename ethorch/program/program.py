"""A compiled program: to save, to call, to print, to ask."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ethorch import host
from ethorch.errors import EthorchError, HostError
from ethorch.flow import Build
from ethorch.formats import pte
from ethorch.formats.files import write_whole
from ethorch.formats.payload import BACKEND_ID, DelegatePayload
from ethorch.formats.pte_types import Method
from ethorch.model_files import UserModel
from ethorch.program.integer_io import Codes, as_codes, boundary_of, is_constant
from ethorch.program.saving import check_writable, tosa_of, write_folder
from ethorch.program.settings import Settings
from ethorch.target.compile_spec import EthosUCompileSpec

_PACKAGES = ("ethorch", "torch", "torchao", "executorch", "ethos-u-vela", "tosa-tools", "numpy")
_BUNDLED_SAMPLES = 8


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a program.

    Attributes:
        dtype: torch's name of the type that firmware hands over.
        codes: what the numbers mean where they are codes of floats; None where they are what they are.
    """

    dtype: str
    shape: tuple[int, ...]
    codes: Codes | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        return text if self.codes is None else f"{text}, scale {self.codes.scale:.6g}, zero point {self.codes.zero_point}"


class Program:
    """One method of a ``.pte``, and all that is known of it. ``ethorch.compile`` and ``ethorch.load`` make them.

    Attributes:
        pte: the file.
        method: name of the method.
        settings: what it was compiled with; None for a file of somebody else.
        build: what became of each operator; None for a file.
        model: the float model and its samples; None for a file.
        quantized: the quantized model; None for a file.
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
    ):
        self.pte, self.method = data, method
        self.settings, self.build, self.model, self.quantized = settings, build, model, quantized
        self._sources = sources
        self._parsed = pte.read(data)
        if method not in self.methods:
            raise HostError(f"the program has no method {method!r}; it has {', '.join(map(repr, self.methods))}.")

    # what it is -------------------------------------------------------------------------------------------------------

    @property
    def methods(self) -> tuple[str, ...]:
        """The entry points of the file; figures that it carries are none."""
        return tuple(name for name, method in self._parsed.methods.items() if not is_constant(method))

    @property
    def description(self) -> Method:
        """The method as the file has it."""
        return self._parsed.methods[self.method]

    @cached_property
    def target(self) -> str:
        """Name of the NPU; empty where no delegate says it."""
        if self.settings is not None:
            return self.settings.target
        specs = [EthosUCompileSpec.from_pairs(d.compile_specs) for d in self.description.delegates if d.id == BACKEND_ID]
        return specs[0].target.name if specs else ""

    @cached_property
    def payloads(self) -> tuple[DelegatePayload, ...]:
        """What each NPU delegate hands to the driver."""
        return tuple(DelegatePayload.unpack(delegate.blob) for delegate in self.description.delegates if delegate.id == BACKEND_ID)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs in order, flat."""
        return self._infos("input", self.description.inputs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs in order, flat."""
        return self._infos("output", self.description.outputs)

    def _infos(self, side: str, indices: Sequence[int]) -> tuple[TensorInfo, ...]:
        codes, values = boundary_of(self._parsed), self.description.values
        return tuple(
            TensorInfo(values[index].dtype or values[index].kind, values[index].shape, codes.get(f"{side}{number}"))
            for number, index in enumerate(indices)
        )

    # running ----------------------------------------------------------------------------------------------------------

    @cached_property
    def host(self) -> host.HostProgram:
        """The program in ExecuTorch's runtime on this computer, its NPU simulated."""
        return host.load(self.pte, self.method, sources=self._sources)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Run in ExecuTorch's runtime, the NPU simulated bit for bit.

        Inputs are as the model's. Where the program takes codes, float inputs are quantized to them first. A batch of several
        inferences (each input's first dimension the same multiple of the program's) runs one after the other, and each output
        has its results one behind the other.

        Returns:
            what the model returns: a tensor, or a nest of them. Where the program gives codes, so does this.

        Raises:
            HostError: number, dtype or shape of the inputs is not the program's.
            MachineFault: the simulator stopped.
        """
        if keywords:
            names = getattr(getattr(self.model, "module", None), "names", ())
            if set(keywords) != set(names):
                known, found = ", ".join(names) or "none", ", ".join(keywords)
                raise HostError(f"the program takes {len(self.inputs)} inputs, by name {known}; found the names {found}.")
            inputs = (*inputs, *(keywords[name] for name in names))
        flat = list(pytree.tree_leaves(self.as_taken(inputs)))
        count = self._batch(flat)
        if count == 1:
            return self._nested(self.host(*flat))
        batches = [info.shape[0] for info in self.inputs]
        runs = [self.host(*(x[i * size : (i + 1) * size] for x, size in zip(flat, batches, strict=True))) for i in range(count)]
        return self._nested([torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*runs, strict=True)])

    def as_taken(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Inputs with floats as codes where the program takes codes."""
        return as_codes(inputs, {f"input{number}": info.codes for number, info in enumerate(self.inputs) if info.codes is not None})

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
        - ``.tosa``: the TOSA flatbuffer that Vela compiled; only of a program with one delegate.
        - no ending: a folder, with ``model.pte``, ``settings.toml``, ``program.json`` and each delegate's TOSA and payload.

        Returns:
            the path.

        Raises:
            EthorchError: the ending is another one, what it asks for is not known, or the file cannot be written.
        """
        target = Path(path)
        check_writable(target)
        if target.suffix == ".pte":
            write_whole(target, self.pte)
        elif target.suffix == ".bpte":
            write_whole(target, self._bundled())
        elif target.suffix == ".tosa":
            write_whole(target, tosa_of(self.build))
        else:
            write_folder(target, self.pte, self.to_json(), self.settings, self.build)
        return target

    def _bundled(self) -> bytes:
        """With at most 8 of the model's samples and what the program makes of them: a board has to compute the same."""
        if self.model is None:
            raise EthorchError("a .pte holds no samples to bundle: save a program that ethorch.compile returned.")
        from ethorch.backend.bundled import bundled_program  # 0.4 s of ExecuTorch's devtools

        cases = []
        for sample in (self.model.calibration or [self.model.example_inputs])[:_BUNDLED_SAMPLES]:
            inputs = pytree.tree_leaves(self.as_taken(sample))
            cases.append((inputs, [x.clone() if isinstance(x, Tensor) else x for x in self.host(*inputs)]))
        return bundled_program(self.pte, self.method, cases)

    # answers ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As plain data; docs/json.md says what each key means."""
        found: dict[str, Any] = {
            "method": self.method,
            "target": self.target,
            "pte_bytes": len(self.pte),
            "inputs": [asdict(info) for info in self.inputs],
            "outputs": [asdict(info) for info in self.outputs],
            "settings": None if self.settings is None else self.settings.to_json(),
            "versions": versions(),
        }
        return found

    def __repr__(self) -> str:
        return f"<ethorch.Program {self.method} for {self.target or 'the CPU'}, {len(self.pte):,} bytes>"


def versions() -> dict[str, str]:
    """Of ethorch and the packages it stands on: name -> version."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def load(
    path: str | os.PathLike[str] | bytes, method: str = "forward", *, sources: str | os.PathLike[str] | None = None
) -> Program:
    """A ``.pte`` as a Program: of ethorch, of ExecuTorch's Arm backend, or a folder that ``Program.save`` wrote.

    What only compiling knows (reasons, source lines, Vela's cycles) is there as far as the file tells; ``sources`` tells more.

    Args:
        path: the file or folder, or a file's contents.
        method: which entry point.
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
                settings = Settings.from_toml(kept.read_text(encoding="utf-8"), str(kept))
            sources = sources or (file / "delegates" if (file / "delegates").is_dir() else None)
            file = file / "model.pte"
        try:
            data = file.read_bytes()
        except OSError as error:
            raise EthorchError(f"cannot read {file}: {error.strerror}.") from None
    return Program(data, method, settings=settings, sources=sources)
