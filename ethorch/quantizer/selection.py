"""Which node gets which config: what the setters were told, narrowest first, and near misses for what matches nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.fx import GraphModule, Node

from ethorch.fx.aten_builder import MADE_FOR
from ethorch.ops.spec import find
from ethorch.quantizer.config import QuantizationConfig
from ethorch.words import near

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

        A node that a composite operator became is found under that operator's name and target. What only moves data (cat, a
        view, a permute) and has the global config by that takes the one that all around it have: between two modules in 16
        bits nothing is to be rounded to 8.

        Args:
            warn: log settings that match nothing, with near misses.
        """
        paths = {node: module_path(node) for node in model.graph.nodes}
        found: dict[str, Config] = {}
        for finder, config in self.finders:
            nodes = list(finder.find_nodes(model) if hasattr(finder, "find_nodes") else finder(model))
            found.update((node.name, config) for node in nodes)
            if warn and not nodes:
                logger.warning("set_node_finder: %s finds no node [selection.no_match]", finder)
        if warn:
            self.warn(model)

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

        def config_of(node: Node) -> Config:
            own = set_for(node)
            if own is None and _moves_data(node):
                own = _of_neighbours(node, set_for)
            return self.everything if own is None else own[0]

        return config_of

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


def _moves_data(node: Node) -> bool:
    spec = find(node.target) if node.op == "call_function" else None
    return spec is not None and (spec.rule(node).output == "same" or spec.rule(node).joins)


def _of_neighbours(node: Node, set_for: Callable[[Node], tuple[Config] | None]) -> tuple[Config] | None:
    """The config of all that gives to ``node`` and takes from it, past others that only move data; None if they differ.

    What the program returns has none.
    """
    seen, waiting, around = {node}, [node], list[tuple[Config] | None]()
    while waiting:
        at = waiting.pop()
        for neighbour in (*at.all_input_nodes, *at.users):
            if neighbour in seen or neighbour.op in ("get_attr", "output"):
                continue
            seen.add(neighbour)
            if (found := set_for(neighbour)) is None and _moves_data(neighbour):
                waiting.append(neighbour)
            else:
                around.append(found)
    return around[0] if around and all(other == around[0] for other in around) else None


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
