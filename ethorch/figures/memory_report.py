"""MemoryReport: what the whole application needs, as data; ``figures.memory`` makes it."""

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
    """A part of the application's memory.

    Attributes:
        name: stable key: ``scratch``, ``staging``, ``temporary``, ``arena_1``, ``unplanned_io``, ``method_pool``,
            ``delegate_handles``, ``weights``, ``command_streams``, ``constant_tensors``, ``mutable_tensors``, ``named_data``,
            ``program``.
        ram_bytes, flash_bytes: what it adds to either total.
        memory: Vela's name of the memory where the memory mode fixes it (``Sram``, ``Dram``), else ``Ram`` or ``Flash``.
        note: what it is and how it was counted.
    """

    name: str
    ram_bytes: int
    flash_bytes: int
    memory: str
    note: str


@dataclass(frozen=True)
class TensorPlace:
    """A tensor in memory that others use at other times.

    Attributes:
        name: of the NPU's the TOSA tensor, of ExecuTorch's the end of the program, the name in the module, or a number.
        region: ``scratch`` or ``staging`` of the NPU, ``arena_1`` and so on of ExecuTorch's plan.
        delegate: number of the delegate whose tensor it is; None of ExecuTorch's.
        address, size_bytes: within the region.
        first, last: indices of the layers between which its bytes are its own, both included.
        begins, ends: the same in half layers: a buffer for the next layer's weights is not there when a layer begins.
        dtype, shape, layout: as far as known.
        module, source: whose it is, ``file.py:line``; empty where unknown.
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
        """The first address behind it."""
        return self.address + self.size_bytes


@dataclass(frozen=True)
class MemoryReport:
    """What the whole application needs.

    Attributes:
        components: its parts; they add up to both totals.
        tensors: every tensor of the NPU's regions and of ExecuTorch's arenas, as far as known.
        regions: size in bytes of each region that tensors lie in.
        scratch_bytes: of each delegate by number, its regions by name.
        sram_bytes: what the NPU's feature maps and staging take of SRAM; without constants, which ``constants_in_sram`` tells of.
        constants_in_sram: does the memory mode have the NPU read weights from SRAM (Sram_Only)? Then they are in both totals,
            as they are where it reads them from DRAM (Dedicated_Sram).
        method_pool_bytes, method_pool_bytes_desk: of ExecuTorch's method allocator, on a Cortex-M and on a computer of 64 bits.
        temporary_bytes, temporary_bytes_desk: size of its temporary allocator, likewise: the largest of the scratch region,
            of what a kernel takes, and of what the runtime asks for to look kernels up.
        layer_count: how many layers ``first`` and ``last`` count.
    """

    components: tuple[Component, ...]
    tensors: tuple[TensorPlace, ...]
    regions: Mapping[str, int]
    scratch_bytes: Mapping[int, Mapping[str, int]]
    sram_bytes: int
    constants_in_sram: bool
    method_pool_bytes: int
    method_pool_bytes_desk: int
    temporary_bytes: int
    temporary_bytes_desk: int
    layer_count: int

    @property
    def ram_bytes(self) -> int:
        """All that is written at run time, and weights that the memory mode has in SRAM or DRAM; both memories together."""
        return sum(component.ram_bytes for component in self.components)

    @property
    def flash_bytes(self) -> int:
        """The .pte: all that is kept while the power is off, but code."""
        return sum(component.flash_bytes for component in self.components)

    @property
    def arena_bytes(self) -> int:
        """ExecuTorch's planned memory: inputs, outputs, and what the CPU computes."""
        return sum(size for name, size in self.regions.items() if name.startswith("arena"))

    @property
    def memories(self) -> dict[str, int]:
        """RAM by memory: ``Sram`` and ``Dram`` where the memory mode fixes it, ``Ram`` for what may lie in either."""
        totals: dict[str, int] = {}
        for component in self.components:
            if component.ram_bytes:
                totals[component.memory] = totals.get(component.memory, 0) + component.ram_bytes
        return totals

    def component(self, name: str) -> Component:
        """A part by name; EthorchError names those that are there."""
        for component in self.components:
            if component.name == name:
                return component
        raise EthorchError(f"there is no component {name!r}; there are {', '.join(part.name for part in self.components)}.")

    def alive(self, region: str, layer: int) -> tuple[TensorPlace, ...]:
        """The tensors of a region that are there at some time while a layer runs, the largest first."""
        return _sorted(tensor for tensor in self._of(region) if tensor.first <= layer <= tensor.last)

    def peak_owners(self, region: str) -> tuple[TensorPlace, ...]:
        """The tensors that are alive when a region is used furthest: what to make smaller. The largest first.

        Of several such times it is the one at which most bytes are alive.

        Raises:
            EthorchError: no such region, or nothing is known of its tensors.
        """
        coming = sorted(self._of(region), key=lambda tensor: tensor.begins)
        alive: list[TensorPlace] = []
        fullest, most = 0, (0, 0)
        for time, starting in groupby(coming, key=lambda tensor: tensor.begins):
            alive = [tensor for tensor in alive if tensor.ends >= time] + list(starting)
            used = max(t.end for t in alive), sum(t.size_bytes for t in alive)
            if used > most:
                fullest, most = time, used
        return _at(coming, fullest)

    def peak_layer(self, region: str) -> int:
        """The layer that makes the last of ``peak_owners``; EthorchError as there."""
        return max(tensor.first for tensor in self.peak_owners(region))

    def use_over_time(self, region: str) -> list[tuple[int, int]]:
        """(layer, most bytes alive while it runs) for every layer, of known tensors; EthorchError as of ``peak_owners``."""
        coming = sorted(self._of(region), key=lambda tensor: tensor.first, reverse=True)
        alive: list[TensorPlace] = []
        used = []
        for layer in range(self.layer_count):
            alive = [tensor for tensor in alive if tensor.last >= layer]
            while coming and coming[-1].first <= layer:
                alive.append(coming.pop())
            used.append((layer, _most(alive, layer)))
        return used

    def _of(self, region: str) -> list[TensorPlace]:
        owned = [tensor for tensor in self.tensors if tensor.region == region]
        if not owned:
            known = ", ".join(sorted({tensor.region for tensor in self.tensors})) or "none"
            raise EthorchError(f"no tensor of region {region!r} is known; tensors are known of: {known}.")
        return owned

    def rich(self) -> Table:
        """Return a table of the parts that take RAM and flash, in bytes."""
        table = tables.table()
        for name in ("part", "memory", "RAM", "flash"):
            table.add_column(name, justify="right" if name in ("RAM", "flash") else "left")
        for part in self.components:
            table.add_row(part.name, part.memory, f"{part.ram_bytes:,}", f"{part.flash_bytes:,}")
        table.add_row("all", "", f"{self.ram_bytes:,}", f"{self.flash_bytes:,}")
        return table

    def to_json(self) -> dict[str, Any]:
        """The report as plain data: the attributes by their names, and ram_bytes, flash_bytes, arena_bytes, memories, peaks.

        ``sram_memory_area_size`` and ``dram_memory_area_size``, as MLIA calls them, are what the NPU takes of either memory, its
        constants included where they lie there.
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
            "method_pool_bytes_desk": self.method_pool_bytes_desk,
            "temporary_bytes": self.temporary_bytes,
            "temporary_bytes_desk": self.temporary_bytes_desk,
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
        """What ``to_json`` made; FormatError for anything else."""
        plain = (
            "sram_bytes", "constants_in_sram", "method_pool_bytes", "method_pool_bytes_desk", "temporary_bytes",
            "temporary_bytes_desk", "layer_count",
        )  # fmt: skip
        try:
            report = cls(
                tuple(Component(**entry) for entry in data["components"]),
                tuple(TensorPlace(**{**entry, "shape": tuple(entry["shape"])}) for entry in data["tensors"]),
                dict(data["regions"]),
                {int(number): dict(sizes) for number, sizes in data["scratch_bytes"].items()},
                **{name: data[name] for name in plain},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"not a report of ethorch's on memory: {error}.") from None
        for component in report.components:
            check_types(component)
        for tensor in report.tensors:
            check_types(tensor)
            if not (0 <= tensor.first <= tensor.last and tensor.begins <= tensor.ends and tensor.size_bytes >= 0):
                raise FormatError(f"not a report of ethorch's on memory: tensor {tensor.name!r:.60} ends before it begins.")
        return report


def _sorted(tensors: Iterable[TensorPlace]) -> tuple[TensorPlace, ...]:
    return tuple(sorted(tensors, key=lambda tensor: (-tensor.size_bytes, tensor.address)))


def _at(tensors: Iterable[TensorPlace], time: int) -> tuple[TensorPlace, ...]:
    return _sorted(tensor for tensor in tensors if tensor.begins <= time <= tensor.ends)


def _most(alive: Sequence[TensorPlace], layer: int) -> int:
    """Bytes alive at the fullest time of a layer: when one of its tensors begins, or else when the last that it found began."""
    times = {tensor.begins for tensor in alive if tensor.first == layer} or {max((t.begins for t in alive), default=0)}
    return max(sum(tensor.size_bytes for tensor in _at(alive, time)) for time in times)
