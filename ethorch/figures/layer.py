"""An operation of a program, on the NPU or on the CPU, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ethorch.figures.typed import check_types
from ethorch.support.errors import FormatError

NPU, CPU = "NPU", "CPU"
COMPUTE, TRANSPOSES = "compute", "transposes"  #: bounds of a layer other than a memory

#: Prefix of figures in Vela's report and in Arm's MLIA, by Vela's name of the memory.
MEMORY_KEYS: Mapping[str, str] = {
    "Sram": "sram",
    "Dram": "dram",
    "OnChipFlash": "on_chip_flash",
    "OffChipFlash": "off_chip_flash",
}
#: MLIA's keys of attributes of Layer.
_KEYS = {"cycles": "op_cycles", "macs": "mac_count"}
_TUPLES = ("operators", "tosa_operators", "ofm_shape")


@dataclass(frozen=True)
class Layer:
    """One operation. NPU cycles are Vela's estimates, CPU cycles those of ``figures.cpu_rates``.

    Attributes:
        index: Position in execution order.
        name: Tensor that an NPU operation writes; kernel and program input or output of a CPU operator.
        where: ``NPU`` or ``CPU``.
        delegate: Number of the delegate in the file; None on the CPU.
        operator: Vela's name of the operation, or the name of ExecuTorch's kernel.
        operators: PyTorch operators that it computes, as far as known.
        tosa_operators: TOSA operators that Vela merged into it.
        module, source: Module path and ``file.py:line`` of the user's code; empty if unknown.
        cycles: NPU or Cortex-M55 clock cycles; None if only the command stream is known.
        npu_cycles: Cycles of the computation alone; None on the CPU or if unknown.
        share: Fraction of the cycles of all layers, 0 to 1, assuming equal clocks; None if the cycles of a layer are unknown.
        macs: Multiply-accumulates.
        utilization: Ratio of ``macs`` to the NPU's capacity in ``cycles``, 0 to 1; None if unknown.
        bound: Limiting resource: ``compute``, the name of a memory, or ``transposes``; empty if unknown.
        access_cycles: Cycles of access to each memory.
        read_bytes, written_bytes: Traffic by Vela's name of the memory: ``Sram``, ``Dram``, ``OffChipFlash``, ``OnChipFlash``; all
            traffic of a CPU operator is in ``Ram``.
        ifm_shapes, ofm_shape: NHWC shapes of feature maps, PyTorch shapes of tensors on the CPU; empty if unknown.
        transfer_cycles: Cycles of the DMA that loads its weights while the previous operation runs.
        staging_bytes: Use of staging memory or SRAM while it runs, by Vela; None if unknown.
        fused_into: Index of the layer that includes it; its own cycles are then 0.
        library: ExecuTorch library of the kernel; empty on the NPU.
        estimate: Name of the rate that estimates a CPU operator's cycles; empty on the NPU.
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
        """Return the layer as plain data.

        Keys are the attributes' names, except those of Arm's MLIA: ``op_cycles`` (cycles), ``mac_count`` (macs), ``sram_usage``
        (staging_bytes), ``util_mac_percentage`` (100 * utilization), and for each memory ``sram_access_cycles``,
        ``dram_access_cycles``, ``on_chip_flash_access_cycles``, ``off_chip_flash_access_cycles``.
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
        """Read a layer from the plain data of :meth:`to_json`.

        Raises:
            FormatError: The data is not a layer.
        """
        try:
            rest = dict(data)
            percent = rest.pop("util_mac_percentage")
            attributes: dict[str, Any] = {
                "utilization": None if percent is None else round(percent / 100, 8),
                "staging_bytes": rest.pop("sram_usage"),
                "access_cycles": {m: n for m, key in MEMORY_KEYS.items() if (n := rest.pop(f"{key}_access_cycles"))},
                "ifm_shapes": tuple(tuple(shape) for shape in rest.pop("ifm_shapes")),
                **{name: tuple(rest.pop(name)) for name in _TUPLES},
                **{name: rest.pop(key) for name, key in _KEYS.items()},
            }
            layer = cls(**attributes, **rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"not a layer written by ethorch: {error}.") from None
        check_types(layer)
        return layer
