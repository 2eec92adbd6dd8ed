"""Chain buffers and accumulators of U85 (npu-reference 8.1, 8.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ethorch.npu.feature_map import STORAGE_CHAINED
from ethorch.npu.output import ACC_KEEP
from ethorch.npu.verify.instruction import Facts, reject
from ethorch.npu.verify.rejection import Rejection

_SIZES = ("OFM_HEIGHT", "OFM_WIDTH", "OFM_DEPTH", "OFM_BLK_HEIGHT", "OFM_BLK_WIDTH", "OFM_BLK_DEPTH")


def is_chained(facts: Facts, operand: str) -> bool:
    return facts.values.get(f"{operand}_PRECISION.storage") == STORAGE_CHAINED


def check_chains(all_facts: Sequence[Facts]) -> Iterator[Rejection]:
    """Check the sources and sizes of chained operands. Check that KEEP follows a kernel that keeps accumulators."""
    chain: dict[int, Facts] = {}
    earlier: Facts | None = None
    for index, facts in enumerate(all_facts):
        if facts.is_dma:
            continue
        operands = [operand for operand in read_operands(facts) if is_chained(facts, operand)]
        if not operands:
            chain.clear()
        for operand in operands:
            buffer = facts.values[f"{operand}_REGION"]
            producer = chain.get(buffer)
            if producer is None:
                allowed = " or ".join(map(str, sorted(chain))) or "none; the previous kernel has no chained result"
                yield reject(facts, index, "chain", f"{operand}_REGION", f"chain buffer {buffer}", allowed)
                continue
            for name in _SIZES:
                if facts.values[name] != producer.values[name]:
                    yield reject(facts, index, "chain", name, facts.values[name], f"{producer.values[name]}, as in the chain")
        if facts.values.get("ACC_FORMAT.input") == ACC_KEEP and (earlier is None or not earlier.values["ACC_FORMAT.output"]):
            yield reject(facts, index, "chain", "ACC_FORMAT.input", "KEEP", "RESET; the previous kernel keeps no accumulators")
        if is_chained(facts, "OFM"):
            chain[facts.values["OFM_REGION"]] = facts
        earlier = facts


def read_operands(facts: Facts) -> list[str]:
    assert facts.prepared is not None
    names = {access.name for access in facts.prepared.reads}
    return [operand for operand in ("IFM", "IFM2") if operand in names]
