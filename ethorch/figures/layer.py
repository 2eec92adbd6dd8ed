"""Layer: one operation of a program, on the NPU or on the CPU, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ethorch.figures.typed import check_types
from ethorch.support.errors import FormatError

NPU, CPU = "NPU", "CPU"
COMPUTE, TRANSPOSES = "compute", "transposes"  #: what can bound a layer, beside a memory

#: Names of memories as Vela has them -> as its report, and Arm's MLIA, begin the names of their figures.
MEMORY_KEYS: Mapping[str, str] = {
    "Sram": "sram",
    "Dram": "dram",
    "OnChipFlash": "on_chip_flash",
    "OffChipFlash": "off_chip_flash",
}
#: Attributes of Layer whose key in JSON is MLIA's.
_KEYS = {"cycles": "op_cycles", "macs": "mac_count"}
_TUPLES = ("operators", "tosa_operators", "ofm_shape")


@dataclass(frozen=True)
class Layer:
    """One operation. Cycles on the NPU are Vela's estimates, those on the CPU the estimates of ``figures.cpu_rates``.

    Attributes:
        index: in the order of execution.
        name: of an NPU operation the tensor it writes; of a CPU operator what it does to which end of the program.
        where: ``NPU`` or ``CPU``.
        delegate: number of the delegate in the file; None on the CPU.
        operator: Vela's name of the operation, or the kernel that ExecuTorch calls.
        operators: PyTorch's operators that it computes, as far as known.
        tosa_operators: the TOSA operators that Vela made it from.
        module, source: path of the module, ``file.py:line`` of the user's code; empty where unknown.
        cycles: of the NPU's clock, or of a Cortex-M55; None where only the command stream is known.
        npu_cycles: computing alone; None on the CPU or where unknown.
        share: part of the cycles of all layers, 0 to 1, taking both clocks for equal; None where a layer's cycles are unknown.
        macs: multiply-accumulates.
        utilization: ``macs`` of those that the NPU could do in ``cycles``, 0 to 1; None where there is nothing to divide.
        bound: what its cycles are spent on: ``compute``, the name of a memory, ``transposes``; empty where that is unknown.
        access_cycles: cycles that each memory is busy with it.
        read_bytes, written_bytes: traffic of each memory, by Vela's name of it: ``Sram``, ``Dram``, ``OffChipFlash``,
            ``OnChipFlash``; of a CPU operator all in ``Ram``.
        ifm_shapes, ofm_shape: of feature maps N,H,W,C, of tensors on the CPU as PyTorch has them; empty where unknown.
        transfer_cycles: of the DMA that brings its weights while the operation before it computes.
        staging_bytes: what lies in staging memory or SRAM while it runs, by Vela; None where unknown.
        fused_into: index of the layer that computes it on the way; its own cycles are 0 then.
        library: ExecuTorch's library that has the kernel; empty on the NPU.
        estimate: name of the rate by which a CPU operator's cycles are estimated; empty on the NPU.
    """

    index: int
    name: str
    where: str
    delegate: int | None
    operator: str
    operators: tuple[str, ...] = ()
    tosa_operators: tuple[str, ...] = ()
    module: str = ""
    source: str = ""
    cycles: int | None = None
    npu_cycles: int | None = None
    share: float | None = None
    macs: int = 0
    utilization: float | None = None
    bound: str = ""
    access_cycles: Mapping[str, int] = field(default_factory=dict)
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    written_bytes: Mapping[str, int] = field(default_factory=dict)
    ifm_shapes: tuple[tuple[int, ...], ...] = ()
    ofm_shape: tuple[int, ...] = ()
    transfer_cycles: int = 0
    staging_bytes: int | None = None
    fused_into: int | None = None
    library: str = ""
    estimate: str = ""

    def to_json(self) -> dict[str, Any]:
        """The layer as plain data.

        Keys are the attributes' names, but where Arm's MLIA has a key for the same: ``op_cycles`` (cycles), ``npu_cycles``,
        ``mac_count`` (macs), ``sram_usage`` (staging_bytes), ``util_mac_percentage`` (100 times utilization), and for each memory
        ``sram_access_cycles``, ``dram_access_cycles``, ``on_chip_flash_access_cycles``, ``off_chip_flash_access_cycles``.
        """
        data: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "utilization":
                data["util_mac_percentage"] = None if value is None else round(100 * value, 6)
            elif entry.name == "staging_bytes":
                data["sram_usage"] = value
            elif entry.name == "access_cycles":
                for memory, key in MEMORY_KEYS.items():
                    data[f"{key}_access_cycles"] = value.get(memory, 0)
            elif isinstance(value, Mapping):
                data[entry.name] = dict(value)
            elif entry.name == "ifm_shapes":
                data[entry.name] = [list(shape) for shape in value]
            else:
                data[_KEYS.get(entry.name, entry.name)] = list(value) if isinstance(value, tuple) else value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layer:
        """What ``to_json`` made; FormatError for anything else."""
        try:
            rest = dict(data)
            percent = rest.pop("util_mac_percentage")
            found: dict[str, Any] = {
                "utilization": None if percent is None else round(percent / 100, 8),
                "staging_bytes": rest.pop("sram_usage"),
                "access_cycles": {m: n for m, key in MEMORY_KEYS.items() if (n := rest.pop(f"{key}_access_cycles"))},
                "ifm_shapes": tuple(tuple(shape) for shape in rest.pop("ifm_shapes")),
                **{name: tuple(rest.pop(name)) for name in _TUPLES},
                **{name: rest.pop(key) for name, key in _KEYS.items()},
            }
            layer = cls(**found, **rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"not a layer of ethorch's: {error}.") from None
        check_types(layer)
        return layer
