"""PartitionReport: which operators are on the NPU, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ethorch.support.errors import FormatError, Reason
from ethorch.support.wording import counted, shown
from ethorch.tosa.ir import Origin


def placed(npu: int, cpu: int, target: str, delegates: int) -> str:
    """``5 of 6 PyTorch operators on ethos-u55-128 in 1 delegate``, the same words everywhere.

    Counted are the operators of the exported graph behind the quantizer, which takes some of the model's apart. Quantize and
    dequantize are not counted, nor are casts of int64 inputs: they are no operators of the model.
    """
    return f"{npu} of {counted(npu + cpu, 'PyTorch operator')} on {target} in {counted(delegates, 'delegate')}"


@dataclass(frozen=True)
class Refusal:
    """One operator that stays on the CPU: which, where in the user's code, and why."""

    node: str
    origin: Origin
    reason: Reason

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The refusal as plain data."""
        return {
            "node": self.node,
            "operator": self.origin.target,
            "module": self.origin.module,
            "source": self.origin.source,
            "id": self.reason.id,
            "reason": self.reason.text,
            "way_out": self.reason.way_out,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Refusal:
        """Return what ``to_json`` made plain data of.

        Raises:
            FormatError: The data is something else.
        """
        names = ("node", "operator", "module", "source", "id", "reason", "way_out")
        if not isinstance(data, Mapping) or not all(isinstance(data.get(name), str) for name in names):
            raise FormatError(f"a refusal is {shown(data)}; expected the texts {', '.join(names)}.")
        node, operator, module, source, id, reason, way_out = (data[name] for name in names)
        return cls(node, Origin(node, operator, module, source), Reason(id, reason, way_out))


def group_refusals(refusals: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first of the refusals that have the same operator and reason, and ``count``, the number of them.

    Args:
        refusals: Plain data, as of ``Refusal.to_json``.
    """
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for refusal in refusals:
        key = tuple(refusal[name] for name in ("operator", "id", "reason", "way_out"))
        groups.setdefault(key, {**refusal, "count": 0})["count"] += 1
    return list(groups.values())


def place_text(refusal: Mapping[str, Any]) -> str:
    """Return the operator and place of a group's first refusal, and the number of the others."""
    text = f"{refusal['operator']}"
    if refusal["module"]:
        text += f" at {refusal['module']}"
    if refusal["source"]:
        text += f" ({refusal['source']})"
    return text if refusal["count"] == 1 else f"{text} and {refusal['count'] - 1} more"


def refusal_texts(refusals: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each of ``group_refusals``: place, reason, id and way out."""
    return [
        f"{place_text(group)}: {group['reason']} [{group['id']}] {group['way_out']}".rstrip() for group in group_refusals(refusals)
    ]


@dataclass
class PartitionReport:
    """What a partitioner decided, over every graph it has seen.

    Attributes:
        target: name of the NPU.
        delegated: FX names of operators on the NPU, per delegate tag (quantize and dequantize not counted).
        refusals: what stays on the CPU, with reasons.
        without_kernel: of that, what ExecuTorch has no CPU kernel for, or none for firmware.
    """

    target: str
    delegated: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    without_kernel: list[Refusal] = field(default_factory=list)

    def restore(self, before: PartitionReport) -> None:
        """Forget what came since ``before`` was copied."""
        self.delegated, self.refusals, self.without_kernel = before.delegated, before.refusals, before.without_kernel

    @property
    def npu_operators(self) -> int:
        return sum(len(names) for names in self.delegated.values())

    def summary(self) -> str:
        """One line: how many operators run where, and which do not run on the NPU."""
        line = placed(self.npu_operators, len(self.refusals), self.target, len(self.delegated))
        if self.refusals:
            names = sorted({refusal.origin.target for refusal in self.refusals})
            line += f"; {len(self.refusals)} on the CPU: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        return line

    def refusal_texts(self) -> list[str]:
        """Return the reasons that keep operators on the CPU, and the missing kernels, as of ``refusal_texts``."""
        return refusal_texts(refusal.to_json() for refusal in (*self.refusals, *self.without_kernel))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartitionReport:
        """Return what ``to_json`` made plain data of.

        Raises:
            FormatError: The data is something else.
        """
        target, delegated = data.get("target"), data.get("delegates")
        lists = [data.get(name) for name in ("cpu", "without_kernel")]
        if not (isinstance(target, str) and isinstance(delegated, Mapping) and all(isinstance(found, list) for found in lists)):
            raise FormatError("the partition has no target, delegates, cpu and without_kernel.")
        if not all(isinstance(names, list) for names in delegated.values()):
            raise FormatError(f"delegates is {shown(delegated)}; expected lists of names.")
        cpu, without_kernel = ([Refusal.from_json(entry) for entry in found] for found in lists if isinstance(found, list))
        return cls(target, {tag: [str(name) for name in names] for tag, names in delegated.items()}, cpu, without_kernel)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "target": self.target,
            "delegates": self.delegated,
            "cpu": [refusal.to_json() for refusal in self.refusals],
            "without_kernel": [refusal.to_json() for refusal in self.without_kernel],
        }
