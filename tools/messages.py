"""Collect the messages with an identifier, and their remedies, from the package's sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ethorch.targets.npus import TARGETS
from ethorch.tosa.limits import REMEDIES

_PACKAGE = Path(__file__).resolve().parent.parent / "ethorch"
_LOGGED = re.compile(r"^(?P<text>.*) \[(?P<id>[a-z_]+\.[a-z0-9_]+)\]$", re.DOTALL)


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        id: Stable identifier.
        kind: ``refusal`` (the operator is on the CPU), ``writer`` (ExecuTorch wrote the program), ``error`` or ``warning``.
        text: Words of the message, with ``...`` in place of variables.
        remedy: Remedy. Empty for errors and warnings, whose text contains the remedy.
    """

    id: str
    kind: str
    text: str
    remedy: str = ""


def messages() -> list[Message]:
    """Return all messages, sorted by id. Each limit of an NPU has one message per operator and feature."""
    message_by_id: dict[str, Message] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        for message in _of_source(path.read_text(encoding="utf-8")):
            message_by_id.setdefault(message.id, message)
    for target in TARGETS.values():
        for operator, limits in target.limits.items():
            if not limits.present:
                id = f"{operator}.absent"
                message_by_id.setdefault(
                    id, Message(id, "refusal", f"{operator} is not supported on the target", _other_target(operator))
                )
            for feature in limits.ranges:
                remedy = limits.remedies.get(feature) or REMEDIES[feature]
                id = f"{operator}.{feature}"
                message_by_id.setdefault(
                    id, Message(id, "refusal", f"{feature} of {operator} is outside the target's range", remedy)
                )
    return [message_by_id[id] for id in sorted(message_by_id, key=str.lower)]


def _other_target(operator: str) -> str:
    families = sorted({t.family.upper() for t in TARGETS.values() if operator not in t.limits or t.limits[operator].present})
    return f"Use a {' or '.join(families)} target." if families else "No target supports it. Use other operators in the model."


def _of_source(source: str) -> Iterator[Message]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        texts = [_text(arg) for arg in node.args] + [_text(keyword.value) for keyword in node.keywords]
        if name in ("Reason", "refuse") and len(texts) == 3 and isinstance(node.args[0], ast.Constant):
            kind = "writer" if texts[0].startswith("writer.") else "refusal"
            yield Message(texts[0], kind, texts[1], texts[2])
        elif name == "QuantizationError" and len(texts) == 2 and isinstance(node.args[0], ast.Constant):
            yield Message(texts[0], "error", texts[1])
        elif name == "warning" and (match := _LOGGED.match(texts[0].replace("%s", "..."))):
            yield Message(match["id"], "warning", match["text"])


def _text(node: ast.expr) -> str:
    """Return the text of a string expression, with ``...`` in place of computed values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "..."
