"""A finished build as plain data and as text: operators and where they run, estimates, memory."""

from __future__ import annotations

from typing import Any

from ethorch.backend.emit.build import Build
from ethorch.lower.partition_report import PartitionReport
from ethorch.vela.compiled_model import Performance


def to_json(build: Build) -> dict[str, Any]:
    """Everything the text says, and which operator is where."""
    return {
        **build.partition.to_json(),
        "pte_bytes": len(build.pte),
        "performance": [performance_json(delegate.performance) for delegate in build.delegates],
    }


def to_text(build: Build) -> str:
    """The partition, then a line of Vela's estimates for each delegate."""
    lines = [partition_text(build.partition)]
    for number, delegate in enumerate(build.delegates):
        lines.append(f"delegate {number}: {performance_text(delegate.performance)}")
    return "\n".join(lines)


def partition_text(report: PartitionReport) -> str:
    """The summary line, and a line for each reason that keeps operators on the CPU."""
    return "\n".join([report.summary() + ".", *(f"  {text}" for text in report.refusal_texts())])


def performance_json(estimate: Performance) -> dict[str, Any]:
    return {
        "npu_cycles": estimate.npu_cycles,
        "total_cycles": estimate.total_cycles,
        "seconds": estimate.inference_seconds,
        "core_clock_hz": estimate.core_clock_hz,
        "mac_count": estimate.mac_count,
        "sram_bytes": estimate.sram_bytes,
        "dram_bytes": estimate.dram_bytes,
        "flash_bytes": estimate.flash_bytes,
        "read_only_bytes": estimate.read_only_bytes,
    }


def performance_text(estimate: Performance) -> str:
    """Cycles, time and memory in one line; Vela's estimate."""
    memories = (("SRAM", estimate.sram_bytes), ("DRAM", estimate.dram_bytes), ("flash", estimate.flash_bytes))
    memory = ", ".join(f"{name} {size / 1024:,.1f} KiB" for name, size in memories if size)
    return (
        f"{estimate.total_cycles:,} cycles, {estimate.inference_seconds * 1e3:.3f} ms at "
        f"{estimate.core_clock_hz / 1e6:.0f} MHz, estimated by Vela; {memory}"
    )
