"""Collect the messages with an identifier, and their remedies, from the package's sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ethorch.targets.npus import TARGETS
from ethorch.tosa.limits import REMEDIES

_PACKAGE = Path(__file__).resolve().parent.parent / "ethorch"
_COMPUTED = "..."  # in place of a computed value
_PLACEHOLDER = re.compile(r"%(\.\d)?[sdrg]")
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
    found: dict[tuple[str, str], Message] = {}  # by id and text
    for path in sorted(_PACKAGE.rglob("*.py")):
        for message in find_messages(path.read_text(encoding="utf-8")):
            found.setdefault((message.id, message.text), message)
    for target in TARGETS.values():
        for operator, limits in target.limits.items():
            if not limits.present:
                id, text = f"{operator}.absent", f"{operator} is not supported on the target"
                found.setdefault((id, text), Message(id, "refusal", text, _other_target(operator)))
            for feature in limits.ranges:
                remedy = limits.remedies.get(feature) or REMEDIES[feature]
                id, text = f"{operator}.{feature}", f"{feature} of {operator} is outside the target's range"
                found.setdefault((id, text), Message(id, "refusal", text, remedy))
    return sorted(found.values(), key=lambda message: message.id.lower())


def _other_target(operator: str) -> str:
    families = sorted({t.family.upper() for t in TARGETS.values() if operator not in t.limits or t.limits[operator].present})
    return f"Use a {' or '.join(families)} target." if families else "No target supports it. Use other operators in the model."


def find_messages(source: str) -> Iterator[Message]:
    """Yield the messages in a file's source, in order."""
    yield from _of_node(ast.parse(source), {})


def _of_node(node: ast.AST, texts: dict[str, str]) -> Iterator[Message]:
    """Yield messages in source order. ``texts`` maps the variables assigned so far to their texts."""
    if isinstance(node, ast.arg):
        texts[node.arg] = _COMPUTED
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_text = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.BinOp)
        text = _text(node.value, texts) if isinstance(node, ast.Assign) and is_text else _COMPUTED
        texts |= {child.id: text for target in targets for child in ast.walk(target) if isinstance(child, ast.Name)}
    elif isinstance(node, ast.Call) and node.args:
        yield from _of_call(node, texts)
    inner = dict(texts) if isinstance(node, ast.stmt) and hasattr(node, "body") else texts
    for child in ast.iter_child_nodes(node):
        yield from _of_node(child, inner)
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):  # a branch that may not run assigns these variables
        texts |= {name: _COMPUTED for name in inner if inner[name] != texts.get(name)}


def _of_call(node: ast.Call, texts: Mapping[str, str]) -> Iterator[Message]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    parts = [_text(arg, texts) for arg in (*node.args, *(keyword.value for keyword in node.keywords))]
    is_identified = isinstance(node.args[0], ast.Constant)
    if name in ("Reason", "refuse") and len(parts) == 3 and is_identified:
        kind = "writer" if parts[0].startswith("writer.") else "refusal"
        yield Message(parts[0], kind, parts[1], parts[2])
    elif name == "QuantizationError" and len(parts) == 2 and is_identified:
        yield Message(parts[0], "error", parts[1])
    elif name == "warning" and (match := _LOGGED.match(_PLACEHOLDER.sub(_COMPUTED, parts[0]))):
        yield Message(match["id"], "warning", match["text"])


def _text(node: ast.expr, texts: Mapping[str, str]) -> str:
    """Return the text of a string expression, with ``...`` in place of computed values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, texts) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, texts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, texts) + _text(node.right, texts)
    if isinstance(node, ast.Name):
        return texts.get(node.id, _COMPUTED)
    return _COMPUTED
