from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ethorch.figures.typed import check_types
from ethorch.support import tables
from ethorch.support.errors import EthorchError, FormatError

if TYPE_CHECKING:
    from rich.table import Table

RAM, FLASH, SRAM, DRAM = "Ram", "Flash", "Sram", "Dram"


@dataclass(frozen=True)
class Component:
    """A component of the application's memory.

    Attributes:
        name: Stable key: ``scratch``, ``staging``, ``temporary``, ``arena_1``, ``unplanned_io``, ``method_pool``,
            ``delegate_handles``, ``weights``, ``command_streams``, ``constant_tensors``, ``mutable_tensors``, ``named_data``,
            ``program``, ``code``.
        memory: Vela's name for the memory, e.g. ``Sram``, if the memory mode determines the memory. Otherwise ``Ram`` or ``Flash``.
    """

    name: str
    ram_bytes: int
    flash_bytes: int
    memory: str
    note: str


@dataclass(frozen=True)
class TensorPlace:
    """The address and lifetime of a tensor in a region that several tensors share.

    Attributes:
        name: Name of a TOSA tensor on the NPU, or of a value in ExecuTorch's memory plan.
        region: ``scratch`` or ``staging`` on the NPU, or e.g. ``arena_1`` in ExecuTorch's memory plan.
        delegate: Delegate number, or None in ExecuTorch's memory plan.
        address, size_bytes: Location within the region.
        first, last: Indices of the first and last layer during which the tensor is alive.
        begins, ends: First and last time step of the lifetime. Each layer spans at least two time steps.
        dtype, shape, layout: Tensor properties, or empty if unknown.
        module, source: Module path and ``file.py:line``, or "" if unknown.
    """

    name: str
    region: str
    delegate: int | None
    address: int
    size_bytes: int
    first: int
    last: int
    begins: int
    ends: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    layout: str = ""
    module: str = ""
    source: str = ""

    @property
    def end(self) -> int:
        """The first address after the tensor."""
        return self.address + self.size_bytes


@dataclass(frozen=True)
class MemoryReport:
    """The memory of the whole application.

    Attributes:
        components: Parts of the totals in RAM and flash.
        tensors: Tensors in NPU regions and ExecuTorch arenas.
        regions: Sizes of arenas and NPU regions (maximum over all delegates), by name.
        scratch_bytes: Sizes of NPU regions, by delegate number and region name.
        sram_bytes: SRAM for NPU feature maps and staging memory, excluding constants.
        constants_in_sram: Whether the NPU reads weights from SRAM (Sram_Only). The RAM and flash totals both include weights that
            are copied to SRAM or DRAM.
        method_pool_bytes, method_pool_bytes_host: Size of ExecuTorch's method allocator on a Cortex-M and on a 64-bit host.
        temporary_bytes, temporary_bytes_host: Size of ExecuTorch's temporary allocator on a Cortex-M and on a 64-bit host: the
            maximum for scratch, kernels and kernel lookup.
    """

    components: tuple[Component, ...]
    tensors: tuple[TensorPlace, ...]
    regions: Mapping[str, int]
    scratch_bytes: Mapping[int, Mapping[str, int]]
    sram_bytes: int
    constants_in_sram: bool
    method_pool_bytes: int
    method_pool_bytes_host: int
    temporary_bytes: int
    temporary_bytes_host: int
    layer_count: int

    @property
    def ram_bytes(self) -> int:
        """The bytes of RAM, including weights that firmware copies to SRAM or DRAM."""
        return sum(component.ram_bytes for component in self.components)

    @property
    def flash_bytes(self) -> int:
        """The bytes of flash: the .pte, and the code of generated firmware if known."""
        return sum(component.flash_bytes for component in self.components)

    @property
    def arena_bytes(self) -> int:
        """The bytes planned by ExecuTorch for inputs, outputs, mutable buffers and CPU tensors."""
        return sum(size for name, size in self.regions.items() if name.startswith("arena"))

    @property
    def memories(self) -> dict[str, int]:
        """The RAM bytes in each memory. See ``Component.memory``."""
        totals: dict[str, int] = {}
        for component in self.components:
            if component.ram_bytes:
                totals[component.memory] = totals.get(component.memory, 0) + component.ram_bytes
        return totals

    def component(self, name: str) -> Component:
        """Return the named component.

        Raises:
            EthorchError: The component does not exist.
        """
        for component in self.components:
            if component.name == name:
                return component
        raise EthorchError(f"expected one of the components {', '.join(part.name for part in self.components)}, got {name!r}.")

    def alive(self, region: str, layer: int) -> tuple[TensorPlace, ...]:
        """Return the tensors of a region that are alive during a layer, largest first."""
        return _sort_by_size(tensor for tensor in self._tensors_in(region) if tensor.first <= layer <= tensor.last)

    def peak_owners(self, region: str) -> tuple[TensorPlace, ...]:
        """Return the tensors that are alive when the use of a region peaks, largest first.

        Use is measured as the highest end address of live tensors. Among equal peaks, the one with the most live bytes is selected.

        Raises:
            EthorchError: The region does not exist, or its tensors are unknown.
        """
        pending = sorted(self._tensors_in(region), key=lambda tensor: tensor.begins)
        alive: list[TensorPlace] = []
        peak_time, peak_use = 0, (0, 0)
        for time, starting in groupby(pending, key=lambda tensor: tensor.begins):
            alive = [tensor for tensor in alive if tensor.ends >= time] + list(starting)
            used = max(t.end for t in alive), occupied_bytes(alive)
            if used > peak_use:
                peak_time, peak_use = time, used
        return _select_alive(pending, peak_time)

    def peak_layer(self, region: str) -> int:
        """Return the first layer during which all tensors in :meth:`peak_owners` are alive."""
        return max(tensor.first for tensor in self.peak_owners(region))

    def use_over_time(self, region: str) -> list[tuple[int, int]]:
        """Return (layer, maximum live bytes during the layer) for each layer.

        Raises:
            EthorchError: See :meth:`peak_owners`.
        """
        pending = sorted(self._tensors_in(region), key=lambda tensor: tensor.first, reverse=True)
        alive: list[TensorPlace] = []
        peaks = []
        for layer in range(self.layer_count):
            alive = [tensor for tensor in alive if tensor.last >= layer]
            while pending and pending[-1].first <= layer:
                alive.append(pending.pop())
            peaks.append((layer, _find_peak_bytes(alive, layer)))
        return peaks

    def _tensors_in(self, region: str) -> list[TensorPlace]:
        owned = [tensor for tensor in self.tensors if tensor.region == region]
        if not owned:
            regions = ", ".join(sorted({tensor.region for tensor in self.tensors})) or "none"
            raise EthorchError(f"expected a region with known tensors ({regions}), got {region!r}.")
        return owned

    def rich(self) -> Table:
        """Return a Rich table with the bytes of each component."""
        table = tables.table()
        for name in ("component", "memory", "RAM", "flash"):
            table.add_column(name, justify="right" if name in ("RAM", "flash") else "left")
        for part in self.components:
            table.add_row(part.name, part.memory, f"{part.ram_bytes:,}", f"{part.flash_bytes:,}")
        table.add_row("total", "", f"{self.ram_bytes:,}", f"{self.flash_bytes:,}")
        return table

    def to_json(self) -> dict[str, Any]:
        """Return the attributes, totals, ``memories`` and ``peaks`` as JSON-compatible data.

        As defined by MLIA, ``sram_memory_area_size`` and ``dram_memory_area_size`` are the bytes of SRAM and DRAM that the NPU
        uses, including constants.
        """
        npu: dict[str, int] = {SRAM: 0, DRAM: 0}
        for name in ("scratch", "staging", "weights"):
            for part in self.components:
                if part.name == name and part.memory in npu:
                    npu[part.memory] += part.ram_bytes
        regions = sorted({tensor.region for tensor in self.tensors})
        return {
            "ram_bytes": self.ram_bytes,
            "flash_bytes": self.flash_bytes,
            "sram_bytes": self.sram_bytes,
            "sram_memory_area_size": npu[SRAM],
            "dram_memory_area_size": npu[DRAM],
            "constants_in_sram": self.constants_in_sram,
            "arena_bytes": self.arena_bytes,
            "method_pool_bytes": self.method_pool_bytes,
            "method_pool_bytes_host": self.method_pool_bytes_host,
            "temporary_bytes": self.temporary_bytes,
            "temporary_bytes_host": self.temporary_bytes_host,
            "memories": self.memories,
            "regions": dict(self.regions),
            "scratch_bytes": {str(number): dict(sizes) for number, sizes in self.scratch_bytes.items()},
            "layer_count": self.layer_count,
            "components": [asdict(component) for component in self.components],
            "tensors": [{**asdict(tensor), "shape": list(tensor.shape)} for tensor in self.tensors],
            "peaks": {r: {"layer": self.peak_layer(r), "owners": [t.name for t in self.peak_owners(r)]} for r in regions},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryReport:
        """Create a report from the result of :meth:`to_json`.

        Raises:
            FormatError: The data has an unexpected format.
        """
        scalar_names = (
            "sram_bytes", "constants_in_sram", "method_pool_bytes", "method_pool_bytes_host", "temporary_bytes",
            "temporary_bytes_host", "layer_count",
        )  # fmt: skip
        try:
            report = cls(
                tuple(Component(**entry) for entry in data["components"]),
                tuple(TensorPlace(**{**entry, "shape": tuple(entry["shape"])}) for entry in data["tensors"]),
                dict(data["regions"]),
                {int(number): dict(sizes) for number, sizes in data["scratch_bytes"].items()},
                **{name: data[name] for name in scalar_names},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"expected the result of MemoryReport.to_json, got invalid data ({error}).") from None
        for component in report.components:
            check_types(component)
        for tensor in report.tensors:
            check_types(tensor)
            if not (0 <= tensor.first <= tensor.last and tensor.begins <= tensor.ends and tensor.size_bytes >= 0):
                raise FormatError(
                    f"tensor {tensor.name!r:.60}: expected 0 <= first <= last, begins <= ends and size_bytes >= 0, got "
                    f"first={tensor.first}, last={tensor.last}, begins={tensor.begins}, ends={tensor.ends}, "
                    f"size_bytes={tensor.size_bytes}."
                )
        return report


def occupied_bytes(tensors: Iterable[TensorPlace]) -> int:
    """Return the bytes that tensors occupy in a region. Bytes shared by several tensors are counted once."""
    total = end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.address):
        total += max(0, tensor.end - max(end, tensor.address))
        end = max(end, tensor.end)
    return total


def _sort_by_size(tensors: Iterable[TensorPlace]) -> tuple[TensorPlace, ...]:
    return tuple(sorted(tensors, key=lambda tensor: (-tensor.size_bytes, tensor.address)))


def _select_alive(tensors: Iterable[TensorPlace], time: int) -> tuple[TensorPlace, ...]:
    return _sort_by_size(tensor for tensor in tensors if tensor.begins <= time <= tensor.ends)


def _find_peak_bytes(alive: Sequence[TensorPlace], layer: int) -> int:
    times = {tensor.begins for tensor in alive if tensor.first == layer} or {max((t.begins for t in alive), default=0)}
    return max(occupied_bytes(_select_alive(alive, time)) for time in times)
