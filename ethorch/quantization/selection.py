"""Which node gets which config: what the setters were told, narrowest first, and near misses for what matches nothing."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import MADE_FOR
from ethorch.lower.fx.node import first_value, is_integer
from ethorch.lower.ops.spec import find
from ethorch.quantization.config import QuantizationConfig
from ethorch.support.wording import near

logger = logging.getLogger(__name__)

Config = QuantizationConfig | None


class NodeFinder(Protocol):
    """Picks nodes of a graph; a plain function from GraphModule to nodes does as well."""

    def find_nodes(self, model: GraphModule) -> Iterable[Node]:
        """The nodes that the setting is for."""
        ...


@dataclass
class Settings:
    """What the quantizer's setters were told; see `of` for which wins."""

    everything: Config = None
    names: dict[str, Config] = field(default_factory=dict)
    targets: dict[Any, Config] = field(default_factory=dict)
    finders: list[tuple[NodeFinder | Callable[[GraphModule], Iterable[Node]], Config]] = field(default_factory=list)
    module_names: dict[str, Config] = field(default_factory=dict)
    module_types: dict[Any, Config] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Is a config among them that is made for training?"""
        tables = (self.names, self.targets, self.module_names, self.module_types)
        configs = [self.everything, *(c for _, c in self.finders), *(c for table in tables for c in table.values())]
        return any(config is not None and config.is_qat for config in configs)

    def of(self, model: GraphModule, warn: bool = True) -> Callable[[Node], Config]:
        """Node -> its config. The first of these that matches decides, also when it says None:

        node name; node finder (the last one set); node target; module name (the innermost module); module type (the
        innermost module); global.

        A node that a composite operator became is found under that operator's name and target. An operator that would have the
        global config, and computes with activations and numbers alone (relu, add, cat, a pool, a matmul, a view), takes the config
        that everything around it has: what gives to it and what takes from it, past others of its kind. Between two modules in 16
        bits nothing is rounded to 8. Only a config is followed: beside a module in float, the global config stays. Operators with
        weights do not follow; they have the global config, and so do their neighbors without weights. If there is no global config,
        nothing follows. Inputs and outputs of the program have no config and do not count.

        Args:
            warn: log settings that match nothing, with near misses.
        """
        if warn:
            self.warn(model)
        set_for = self.said(model, warn)
        narrower = self.names or self.targets or self.finders or self.module_names or self.module_types
        follows = bool(narrower) and self.everything is not None

        def config_of(node: Node) -> Config:
            own = set_for(node)
            if own is None and follows and _may_follow(node):
                own = _of_neighbours(node, set_for)
            return self.everything if own is None else own[0]

        return config_of

    def said(self, model: GraphModule, warn: bool = False) -> Callable[[Node], tuple[Config] | None]:
        """Node -> (the config that a setting other than the global one has for it,); None where none has.

        Args:
            warn: log finders that find nothing.
        """
        paths = {node: module_path(node) for node in model.graph.nodes}
        found: dict[str, Config] = {}
        for finder, config in self.finders:
            nodes = list(finder.find_nodes(model) if hasattr(finder, "find_nodes") else finder(model))
            found.update((node.name, config) for node in nodes)
            if warn and not nodes:
                logger.warning("set_node_finder: %s finds no node [selection.no_match]", finder)

        def set_for(node: Node) -> tuple[Config] | None:
            """The config that a setting other than the global one has for the node."""
            name, target = node.meta.get(MADE_FOR, (node.name, node.target))
            for key, table in ((node.name, self.names), (name, self.names), (node.name, found), (name, found)):
                if key in table:
                    return (table[key],)
            if target in self.targets:
                return (self.targets[target],)
            if node not in paths:  # made after the graph was looked at
                paths[node] = module_path(node)
            for module_name, _ in reversed(paths[node]):
                if module_name in self.module_names:
                    return (self.module_names[module_name],)
            for _, kind in reversed(paths[node]):
                for module_type, config in self.module_types.items():
                    if _is_type(kind, module_type):
                        return (config,)
            return None

        return set_for

    def warn(self, model: GraphModule) -> None:
        """Name each setting that matches nothing in the graph and those its control flow holds, and what comes near it."""
        everywhere = [node for graph in model.modules() if isinstance(graph, GraphModule) for node in graph.graph.nodes]
        paths = [place for node in everywhere for place in module_path(node)]
        modules, types = sorted({name for name, _ in paths if name}), sorted({kind for _, kind in paths})
        nodes = [node.meta.get(MADE_FOR, (node.name,))[0] for node in everywhere] + [node.name for node in everywhere]
        targets = {node.meta.get(MADE_FOR, ("", node.target))[1] for node in everywhere if node.op == "call_function"}
        for name in self.module_names:
            if name not in modules:
                _nothing("set_module_name", name, "module", modules)
        for module_type in self.module_types:
            if not any(_is_type(kind, module_type) for kind in types):
                _nothing("set_module_type", type_name(module_type), "module", types)
        for name in self.names:
            if name not in nodes:
                _nothing("set_node_name", name, "node", nodes)
        for target in self.targets:
            if target not in targets:
                _nothing("set_node_target", str(target), "node", sorted(map(str, targets)))


def _may_follow(node: Node) -> bool:
    """Has the operator no constants but single numbers, or does it only move data? Then it has no module to name it by."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    spec = find(node.target)
    if spec is None:
        return False
    rule = spec.rule(node)
    return rule.output == "same" or rule.joins or not any(_is_table(arg) for arg in node.all_input_nodes)


def _is_table(node: Node) -> bool:
    """Is it a constant of more than one number?"""
    value = first_value(node)
    return node.op == "get_attr" and (value is None or value.numel() > 1)


def _of_neighbours(node: Node, set_for: Callable[[Node], tuple[Config] | None]) -> tuple[Config] | None:
    """Return the config of all neighbors of ``node``, past others that may follow; None if they differ or one is left in float."""
    seen, waiting, common = {node}, [node], None
    while waiting:
        at = waiting.pop()
        for neighbour in (*at.all_input_nodes, *at.users):
            if neighbour in seen or neighbour.op in ("get_attr", "placeholder", "output") or is_integer(neighbour):
                continue
            seen.add(neighbour)
            found = set_for(neighbour)
            if found is None and _may_follow(neighbour):
                waiting.append(neighbour)
            elif found in (None, (None,)) or (common is not None and found != common):
                return None
            else:
                common = found
    return common


def _nothing(setter: str, wanted: str, kind: str, known: Sequence[str]) -> None:
    found = near(wanted, known)
    ending = wanted.rpartition(".")[2].lower()
    found += [name for name in known if name.rpartition(".")[2].lower() == ending and name not in found][: 3 - len(found)]
    logger.warning(
        "%s(%r) matches no %s of the model; near: %s [selection.no_match]", setter, wanted, kind, ", ".join(found) or "none"
    )


def type_name(module_type: Any) -> str:
    """``torch.nn.modules.conv.Conv2d`` for the class; a string as it is."""
    return module_type if isinstance(module_type, str) else f"{module_type.__module__}.{module_type.__qualname__}"


def _is_type(kind: str, wanted: Any) -> bool:
    """Is the class named ``kind`` the wanted one? A string may leave out the modules it lies in."""
    name = type_name(wanted)
    return kind == name or (isinstance(wanted, str) and "." not in wanted and kind.rpartition(".")[2] == wanted)


def module_path(node: Node) -> list[tuple[str, str]]:
    """(module name, class name) of every module around the node, outermost first."""
    result = []
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = path.removeprefix("L['self']").lstrip(".")
        result.append((name, kind if isinstance(kind, str) else type_name(kind)))
    return result
