from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from ethorch.figures.layer import Layer
from ethorch.report import markdown
from ethorch.support import tables
from ethorch.support.errors import FormatError
from ethorch.support.rendering import as_text
from ethorch.support.wording import count_noun

if TYPE_CHECKING:
    from rich.console import RenderableType

Data = Mapping[str, Any]

#: For each figure, whether a smaller value is better.
TOTALS = {
    "total_cycles": True,
    "cpu_cycles": True,
    "overhead_cycles": True,
    "milliseconds": True,
    "mac_count": True,
    "ram_bytes": True,
    "sram_bytes": True,
    "flash_bytes": True,
    "operators.npu": False,
    "operators.cpu": True,
    "operators.delegates": True,
    "accuracy.sqnr_db": False,
}
SAME, CHANGED, MOVED, ADDED, REMOVED = "same", "changed", "moved", "added", "removed"
_SHOWN = 40  # maximum number of layers in the text; JSON contains all layers


@dataclass(frozen=True)
class Change:
    """The values of one figure in two builds of a program.

    Attributes:
        name: Key in ``Program.to_json``, e.g. ``operators.cpu``.
        before, after: Values, or None if unknown.
    """

    name: str
    before: float | None
    after: float | None
    less_is_better: bool

    @property
    def percent(self) -> float | None:
        """The growth in percent, or None if a value is unknown. Changes from zero or infinity are infinite."""
        return _percent(self.before, self.after)

    def is_worse(self, percent: float) -> bool:
        """Return True if ``after`` is worse than ``before`` by more than ``percent``."""
        grown = self.percent
        return grown is not None and (grown if self.less_is_better else -grown) > percent


@dataclass(frozen=True)
class LayerChange:
    """A layer of one or both builds.

    Attributes:
        module, operator: Key by which layers are matched. Layers with the same key are matched in order.
        state: ``same``, ``changed`` (cycles), ``moved`` (between NPU and CPU), ``added`` or ``removed``.
        where_before, where_after: ``NPU`` or ``CPU``, or "" if the build does not contain the layer.
    """

    module: str
    operator: str
    state: str
    where_before: str
    where_after: str
    cycles_before: int | None
    cycles_after: int | None

    @property
    def difference(self) -> int:
        """The increase in cycles."""
        return (self.cycles_after or 0) - (self.cycles_before or 0)


@dataclass(frozen=True)
class BuildComparison:
    """A comparison of two builds of one method.

    Attributes:
        layers: Layers, largest change in cycles first.
        settings: For each setting that differs, the values before and after.
        versions: For each package whose version differs, the versions before and after.
        budgets_lost: Names of budgets that the first build meets and the second exceeds.
    """

    totals: tuple[Change, ...]
    layers: tuple[LayerChange, ...]
    settings: Mapping[str, tuple[Any, Any]]
    versions: Mapping[str, tuple[Any, Any]]
    budgets_lost: tuple[str, ...]

    def regressions(self, percent: float = 0.0) -> list[str]:
        """Return one line for each newly exceeded budget and for each figure worse by more than ``percent``."""
        worse = [_change_text(change) for change in self.totals if change.is_worse(percent)]
        return worse + [f"budget {name} is now exceeded" for name in self.budgets_lost]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data. See docs/json.md for the keys."""
        return {
            "totals": {
                change.name: {
                    "before": change.before,
                    "after": change.after,
                    "percent": change.percent if change.percent is not None and isfinite(change.percent) else None,
                }
                for change in self.totals
            },
            "layers": [asdict(layer) for layer in self.layers],
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "versions": {name: list(pair) for name, pair in self.versions.items()},
            "budgets_lost": list(self.budgets_lost),
        }

    def rich(self) -> RenderableType:
        """Return a renderable for Rich, with a table for each group of differences."""
        from rich.console import Group

        parts: list[Any] = []
        for heads, body, right in self._tables():
            grid = tables.table()
            for number, name in enumerate(heads):
                grid.add_column(name, justify="right" if number in right else "left")
            for row in body:
                grid.add_row(*row)
            parts += [grid, ""]
        return Group(*parts, self._last())

    def to_markdown(self, title: str = "What changed") -> str:
        """Return the comparison as GitHub-flavored Markdown."""
        lines = [f"## {title}", ""]
        for heads, body, right in self._tables():
            lines += [*markdown.table(heads, body, right), ""]
        return "\n".join([*lines, markdown.text(self._last())])

    def _tables(self) -> Iterator[tuple[Sequence[str], list[list[str]], Sequence[int]]]:
        yield (
            ("total", "before", "after", "change"),
            [[c.name, _figure(c.before), _figure(c.after), _format_growth(c.before, c.after)] for c in self.totals],
            (1, 2, 3),
        )
        for name, pairs in (("setting", self.settings), ("version", self.versions)):
            if pairs:
                yield (name, "before", "after"), [[key, str(a), str(b)] for key, (a, b) in pairs.items()], ()
        changed = [layer for layer in self.layers if layer.state != SAME]
        if changed:
            body = [
                [
                    layer.module,
                    layer.operator,
                    layer.state if layer.state != MOVED else f"{layer.where_before} to {layer.where_after}",
                    _figure(layer.cycles_before),
                    _figure(layer.cycles_after),
                    f"{layer.difference:+,}",
                ]
                for layer in changed[:_SHOWN]
            ]
            yield ("module", "operator", "", "cycles before", "after", "difference"), body, (3, 4, 5)

    def _last(self) -> str:
        changed = sum(layer.state != SAME for layer in self.layers)
        more = f" The table lists the {_SHOWN} layers with the largest difference." if changed > _SHOWN else ""
        return f"{changed} of {count_noun(len(self.layers), 'layer')} differ.{more}"

    def __str__(self) -> str:
        return as_text(self.rich())


@dataclass(frozen=True)
class ProgramComparison:
    """A comparison of two builds of a program.

    Attributes:
        added, removed: Methods only in the second build, and methods only in the first.
    """

    methods: Mapping[str, BuildComparison]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def regressions(self, percent: float = 0.0) -> list[str]:
        """Return the regressions of all methods. If there are several methods, each line starts with the method's name."""
        prefixes = {name: f"{name}: " if self._is_named else "" for name in self.methods}
        return [prefixes[name] + line for name, build in self.methods.items() for line in build.regressions(percent)]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data for the first method, with all other methods as ``other_methods``."""
        (name, first), *others = self.methods.items()
        return {
            **first.to_json(),
            "method": name,
            "other_methods": {name: build.to_json() for name, build in others},
            "methods_added": list(self.added),
            "methods_removed": list(self.removed),
        }

    def rich(self) -> RenderableType:
        """Return a renderable for Rich, with the tables for each method."""
        from rich.console import Group

        parts: list[Any] = []
        for name, build in self.methods.items():
            parts += [*([f"Method {name}:"] if self._is_named else []), build.rich(), ""]
        return Group(*parts[:-1], *self._list_unmatched())

    def to_markdown(self, worse: Sequence[str] = ()) -> str:
        """Return the comparison as GitHub-flavored Markdown.

        Args:
            worse: Regressions to list. See :meth:`regressions`.
        """
        parts = [
            build.to_markdown(title=f"What changed in {markdown.text(name)}" if self._is_named else "What changed")
            for name, build in self.methods.items()
        ]
        lines = [*map(markdown.text, self._list_unmatched()), *(f"- ❌ {markdown.text(line)}" for line in worse)]
        return "\n\n".join(parts) + "".join(f"\n{line}" for line in lines)

    @property
    def _is_named(self) -> bool:
        return bool(len(self.methods) > 1 or self.added or self.removed)

    def _list_unmatched(self) -> list[str]:
        pairs = (("Added", self.added), ("Removed", self.removed))
        return [f"{word} methods: {', '.join(names)}." for word, names in pairs if names]

    def __str__(self) -> str:
        return as_text(self.rich())


def compare_programs(before: Mapping[str, Data], after: Mapping[str, Data]) -> ProgramComparison:
    """Compare the methods with the same name in two builds. If each build has one method, the names are ignored.

    Args:
        before, after: Results of ``Program.to_json``, keyed by method.

    Raises:
        FormatError: A build has an unexpected format, or the builds have no method in common.
    """
    if len(before) == len(after) == 1:
        (name,) = after
        return ProgramComparison({name: compare_builds(next(iter(before.values())), after[name])})
    common = [name for name in after if name in before]
    if not common:
        raise FormatError(f"the builds have no common method: expected one of {', '.join(before)}, got {', '.join(after)}.")
    return ProgramComparison(
        {name: compare_builds(before[name], after[name]) for name in common},
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
    )


def compare_builds(before: Data, after: Data) -> BuildComparison:
    """Compare the results of ``Program.to_json`` for two builds of one method.

    Raises:
        FormatError: A build has an unexpected format.
    """
    try:
        names = dict(TOTALS)
        if (before["operators"]["npu"] is None) != (after["operators"]["npu"] is None):
            del names["mac_count"]  # counted in the layers of a .pte, which include padding, but otherwise in the model's graph
        totals = tuple(Change(name, _at(before, name), _at(after, name), less) for name, less in names.items())
        met_before = {row["name"] for row in before["budgets"] if row["holds"]}
        lost = tuple(row["name"] for row in after["budgets"] if row["holds"] is False and row["name"] in met_before)
        return BuildComparison(
            tuple(change for change in totals if (change.before, change.after) != (None, None)),
            tuple(sorted(_layers(before, after), key=lambda layer: (-abs(layer.difference), layer.state == SAME))),
            _differences(
                {"target": before["target"], **(before["settings"] or {})}, {"target": after["target"], **(after["settings"] or {})}
            ),
            _differences(before["versions"], after["versions"]),
            lost,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"expected two results of Program.to_json, got invalid data ({type(error).__name__}: {error})."
        ) from error


def _layers(before: Data, after: Data) -> Iterator[LayerChange]:
    first, second = _by_name(before), _by_name(after)
    for module, operator in dict.fromkeys((*first, *second)):
        before_layers, after_layers = first.get((module, operator), []), second.get((module, operator), [])
        for number in range(max(len(before_layers), len(after_layers))):
            a = before_layers[number] if number < len(before_layers) else None
            b = after_layers[number] if number < len(after_layers) else None
            state = SAME
            if a is None or b is None:
                state = ADDED if a is None else REMOVED
            elif a.where != b.where:
                state = MOVED
            elif a.cycles != b.cycles:
                state = CHANGED
            yield LayerChange(
                module,
                operator,
                state,
                "" if a is None else a.where,
                "" if b is None else b.where,
                None if a is None else a.cycles,
                None if b is None else b.cycles,
            )


def _by_name(data: Data) -> dict[tuple[str, str], list[Layer]]:
    groups: dict[tuple[str, str], list[Layer]] = {}
    for entry in data["layers"]:
        layer = Layer.from_json(entry)
        groups.setdefault((layer.module, ", ".join(layer.operators) or layer.operator), []).append(layer)
    return groups


def _differences(before: Data, after: Data) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys((*before, *after))
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _at(data: Data, path: str) -> float | None:
    if path == "operators.cpu" and data["operators"]["npu"] is None:
        return None  # a .pte records kernels, including conversions, but not the refused operators
    value: Any = data
    for key in path.split("."):
        value = None if value is None else value[key]
    return None if value is None else float(value) if isinstance(value, float) else int(value)


def _percent(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    if before == after:
        return 0.0
    return 100 * (after - before) / abs(before) if before and isfinite(before) else inf if after > before else -inf


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _format_growth(before: float | None, after: float | None) -> str:
    grown = _percent(before, after)
    if grown is None:
        return ""
    return "=" if not grown else f"{grown:+.1f}%" if isfinite(grown) else "from 0"


def _change_text(change: Change) -> str:
    return f"{change.name} {_figure(change.before)} -> {_figure(change.after)} ({_format_growth(change.before, change.after)})"
