from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ethorch.figures.typed import check_types
from ethorch.support.errors import FormatError

NPU, CPU = "NPU", "CPU"
COMPUTE, TRANSPOSES = "compute", "transposes"  #: Values of ``Layer.bound`` that are not the name of a memory.

#: Prefix of figures in Vela's report and in Arm's MLIA, for each memory name in Vela.
MEMORY_KEYS: Mapping[str, str] = {
    "Sram": "sram",
    "Dram": "dram",
    "OnChipFlash": "on_chip_flash",
    "OffChipFlash": "off_chip_flash",
}
#: Attributes of ``Layer`` with a different key in MLIA.
_KEYS = {"cycles": "op_cycles", "macs": "mac_count"}
_TUPLES = ("operators", "tosa_operators", "ofm_shape")


@dataclass(frozen=True)
class Layer:
    """One operation of a program. Vela estimates NPU cycles, and ``figures.cpu_rates`` estimates CPU cycles.

    Attributes:
        index: Position in execution order.
        name: Name of an NPU operation's output tensor or, if unknown, the operation's kind and index. For a CPU operator, the
            kernel's name and the name of an input or output.
        where: ``NPU`` or ``CPU``.
        delegate: Delegate number, or None on the CPU.
        operator: Name of Vela's operation or of ExecuTorch's kernel.
        operators: PyTorch operators that the layer computes, if known.
        tosa_operators: TOSA operators that Vela merged into the layer.
        module, source: Module path and ``file.py:line`` in the user's code, or "" if unknown.
        cycles: NPU or Cortex-M55 clock cycles, or None if unknown.
        npu_cycles: Cycles of the computation without memory stalls, or None on the CPU or if unknown.
        share: Fraction of the program's cycles, assuming equal NPU and CPU clocks. None if any layer's cycles are unknown.
        utilization: ``macs`` divided by the MACs that the NPU can compute in ``cycles``, or None if unknown.
        bound: Limiting resource: ``compute``, the name of a memory, or ``transposes``. "" if unknown.
        access_cycles: Access cycles for each memory.
        read_bytes, written_bytes: Bytes accessed in each memory: ``Sram``, ``Dram``, ``OffChipFlash`` or ``OnChipFlash`` on the
            NPU, and ``Ram`` on the CPU.
        ifm_shapes, ofm_shape: NHWC shapes on the NPU, or PyTorch shapes on the CPU. Empty if unknown.
        transfer_cycles: Cycles of the layer's weight transfer during the previous operation.
        staging_bytes: Bytes in use in staging memory or SRAM, or None if unknown.
        fused_into: Index of the layer into which this layer is fused, or None. Fused layers have 0 cycles.
        library: ExecuTorch library of the kernel, or "" on the NPU and for custom kernels.
        estimate: Name of the CPU operator's rate in ``RATES``, or "" on the NPU.
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
        """Return the layer as JSON-compatible data.

        Keys are attribute names, except for keys defined by MLIA: ``op_cycles`` (cycles), ``mac_count`` (macs), ``sram_usage``
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
        """Create a layer from the result of :meth:`to_json`.

        Raises:
            FormatError: The data has an unexpected format.
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
            raise FormatError(f"expected the result of Layer.to_json, got invalid data ({error}).") from None
        check_types(layer)
        return layer
