from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ethorch.support.errors import FormatError, Reason
from ethorch.support.wording import count_noun, shorten
from ethorch.tosa.ir import Origin


def summarize_placement(npu: int, cpu: int, target: str, delegates: int) -> str:
    """Summarize a placement, e.g. ``5 of 6 PyTorch operators on ethos-u55-128 in 1 delegate``.

    ``npu`` and ``cpu`` count operators after decomposition, except quantize, dequantize and casts of int64 inputs.
    """
    return f"{npu} of {count_noun(npu + cpu, 'PyTorch operator')} on {target} in {count_noun(delegates, 'delegate')}"


@dataclass(frozen=True)
class Refusal:
    """An operator that runs on the CPU, its source location, and the reason."""

    node: str
    origin: Origin
    reason: Reason

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "operator": self.origin.target,
            "module": self.origin.module,
            "source": self.origin.source,
            "id": self.reason.id,
            "reason": self.reason.text,
            "remedy": self.reason.remedy,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Refusal:
        """Parse the output of ``to_json``. Raise FormatError if it is malformed."""
        names = ("node", "operator", "module", "source", "id", "reason", "remedy")
        if not isinstance(data, Mapping) or not all(isinstance(data.get(name), str) for name in names):
            raise FormatError(f"expected a refusal with the string fields {', '.join(names)}, got {shorten(data)}.")
        node, operator, module, source, id, reason, remedy = (data[name] for name in names)
        return cls(node, Origin(node, operator, module, source), Reason(id, reason, remedy))


def group_refusals(refusals: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Group refusals by operator and reason. Return the first of each group, with the size of the group as ``count``."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for refusal in refusals:
        key = tuple(refusal[name] for name in ("operator", "id", "reason", "remedy"))
        groups.setdefault(key, {**refusal, "count": 0})["count"] += 1
    return list(groups.values())


def place_text(refusal: Mapping[str, Any]) -> str:
    """Format the operator and location of a group's first refusal, and the number of further refusals."""
    text = f"{refusal['operator']}"
    if refusal["module"]:
        text += f" at {refusal['module']}"
    if refusal["source"]:
        text += f" ({refusal['source']})"
    return text if refusal["count"] == 1 else f"{text} and {refusal['count'] - 1} more"


def refusal_texts(refusals: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each group of refusals. A remedy that several groups share appears only once."""
    remedies: set[str] = set()
    texts = []
    for group in group_refusals(refusals):
        remedy = "" if group["remedy"] in remedies else group["remedy"]
        remedies.add(group["remedy"])
        texts.append(f"{place_text(group)}: {group['reason']} [{group['id']}] {remedy}".rstrip())
    return texts


@dataclass
class PartitionReport:
    """The placement of the operators of all graphs that a partitioner processed.

    Attributes:
        delegated: FX names of the NPU operators except quantize and dequantize operators, keyed by delegate tag.
        without_kernel: Refusals of operators without a suitable desktop or portable kernel in ExecuTorch.
        executorch_reason: Reason why ExecuTorch wrote the program, or None if ethorch wrote it.
    """

    target: str
    delegated: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    without_kernel: list[Refusal] = field(default_factory=list)
    executorch_reason: Reason | None = None

    @property
    def writer(self) -> dict[str, str]:
        """The program's writer: ``name``, ``id``, ``reason`` and ``remedy``. The last three are empty if ethorch wrote it."""
        reason = self.executorch_reason
        if reason is None:
            return {"name": "ethorch", "id": "", "reason": "", "remedy": ""}
        return {"name": "ExecuTorch", "id": reason.id, "reason": reason.text, "remedy": reason.remedy}

    def restore(self, before: PartitionReport) -> None:
        self.delegated, self.refusals, self.without_kernel = before.delegated, before.refusals, before.without_kernel

    @property
    def npu_operators(self) -> int:
        return sum(len(names) for names in self.delegated.values())

    def summary(self) -> str:
        line = summarize_placement(self.npu_operators, len(self.refusals), self.target, len(self.delegated))
        if self.refusals:
            names = sorted({refusal.origin.target for refusal in self.refusals})
            line += f"; {len(self.refusals)} on the CPU: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        return line

    def refusal_texts(self) -> list[str]:
        return refusal_texts(refusal.to_json() for refusal in (*self.refusals, *self.without_kernel))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartitionReport:
        """Parse the output of ``to_json``, in which ``writer`` is optional. Raise FormatError if it is malformed."""
        target, delegated = data.get("target"), data.get("delegates")
        lists = [data.get(name) for name in ("cpu", "without_kernel")]
        if not (isinstance(target, str) and isinstance(delegated, Mapping) and all(isinstance(names, list) for names in lists)):
            raise FormatError(
                f"expected a partition report with the fields target, delegates, cpu and without_kernel, got {shorten(data)}."
            )
        if not all(isinstance(names, list) for names in delegated.values()):
            raise FormatError(f"delegates: expected lists of names, got {shorten(delegated)}.")
        cpu, without_kernel = ([Refusal.from_json(entry) for entry in refusals] for refusals in lists if isinstance(refusals, list))
        names_of = {tag: [str(name) for name in names] for tag, names in delegated.items()}
        return cls(target, names_of, cpu, without_kernel, _executorch_reason(data.get("writer")))

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "delegates": self.delegated,
            "cpu": [refusal.to_json() for refusal in self.refusals],
            "without_kernel": [refusal.to_json() for refusal in self.without_kernel],
        }


def writer_text(writer: Mapping[str, Any]) -> str:
    """Return the reason why ExecuTorch wrote the program, with its id and remedy, or an empty string if ethorch wrote it.

    ``writer`` is the value of ``PartitionReport.writer``.
    """
    return f"{writer['reason']} [{writer['id']}] {writer['remedy']}" if writer["id"] else ""


def _executorch_reason(writer: Any) -> Reason | None:
    if writer is None:
        return None
    if not isinstance(writer, Mapping) or not all(isinstance(writer.get(key), str) for key in ("id", "reason", "remedy")):
        raise FormatError(f"writer: expected the string fields id, reason and remedy, got {shorten(writer)}.")
    return Reason(writer["id"], writer["reason"], writer["remedy"]) if writer["id"] else None
