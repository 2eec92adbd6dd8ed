"""Select the config of each node from a quantizer's settings."""

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
    """An object that selects nodes of a graph. A function from GraphModule to nodes is accepted as well."""

    def find_nodes(self, model: GraphModule) -> Iterable[Node]: ...


@dataclass
class Settings:
    """The configs from the quantizer's setters. See ``TOSAQuantizer`` for their precedence."""

    everything: Config = None
    names: dict[str, Config] = field(default_factory=dict)
    targets: dict[Any, Config] = field(default_factory=dict)
    finders: list[tuple[NodeFinder | Callable[[GraphModule], Iterable[Node]], Config]] = field(default_factory=list)
    module_names: dict[str, Config] = field(default_factory=dict)
    module_types: dict[Any, Config] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        tables = (self.names, self.targets, self.module_names, self.module_types)
        configs = [self.everything, *(c for _, c in self.finders), *(c for table in tables for c in table.values())]
        return any(config is not None and config.is_qat for config in configs)

    def of(self, model: GraphModule, warn: bool = True) -> Callable[[Node], Config]:
        """Return a function that maps a node to its config. The most specific setting applies, as in ``TOSAQuantizer``.

        A node from a decomposition also matches settings for the name or target of its composite operator. If there is a global
        config, an unmatched operator without weights (relu, add, cat, pool, matmul, view) adopts the config that all its
        neighbors share. If a neighbor may also adopt a config, its own neighbors are considered instead, so that values between
        16-bit modules remain 16-bit. Operators next to a float module use the global config.

        Args:
            warn: Whether to log settings that do not match any node.
        """
        if warn:
            self.warn(model)
        explicit_config = self.match_explicit(model, warn)
        narrower = self.names or self.targets or self.finders or self.module_names or self.module_types
        follows = bool(narrower) and self.everything is not None

        def config_of(node: Node) -> Config:
            match = explicit_config(node)
            if match is None and follows and _may_follow(node):
                match = _of_neighbors(node, explicit_config)
            return self.everything if match is None else match[0]

        return config_of

    def match_explicit(self, model: GraphModule, warn: bool = False) -> Callable[[Node], tuple[Config] | None]:
        """Return a function that maps a node to (config,) of the matching setting, or to None if only the global setting matches.

        Args:
            warn: Whether to log finders that do not return any node.
        """
        paths = {node: module_path(node) for node in model.graph.nodes}
        configs_by_name: dict[str, Config] = {}
        for finder, config in self.finders:
            nodes = list(finder.find_nodes(model) if hasattr(finder, "find_nodes") else finder(model))
            configs_by_name.update((node.name, config) for node in nodes)
            if warn and not nodes:
                logger.warning("set_node_finder: expected %s to return nodes, got none [selection.no_match]", finder)

        def explicit_config(node: Node) -> tuple[Config] | None:
            name, target = node.meta.get(MADE_FOR, (node.name, node.target))
            for table in (self.names, configs_by_name):
                for key in (node.name, name):
                    if key in table:
                        return (table[key],)
            if target in self.targets:
                return (self.targets[target],)
            if node not in paths:  # the node was created after the paths were computed
                paths[node] = module_path(node)
            for module_name, _ in reversed(paths[node]):
                if module_name in self.module_names:
                    return (self.module_names[module_name],)
            for _, kind in reversed(paths[node]):
                for module_type, config in self.module_types.items():
                    if _is_type(kind, module_type):
                        return (config,)
            return None

        return explicit_config

    def warn(self, model: GraphModule) -> None:
        """Log each setting without a match in the graph, and list similar names."""
        everywhere = [node for graph in model.modules() if isinstance(graph, GraphModule) for node in graph.graph.nodes]
        paths = [place for node in everywhere for place in module_path(node)]
        modules, types = sorted({name for name, _ in paths if name}), sorted({kind for _, kind in paths})
        nodes = [node.meta.get(MADE_FOR, (node.name,))[0] for node in everywhere] + [node.name for node in everywhere]
        targets = {node.meta.get(MADE_FOR, ("", node.target))[1] for node in everywhere if node.op == "call_function"}
        for name in self.module_names:
            if name not in modules:
                _warn_no_match("set_module_name", name, "module", modules)
        for module_type in self.module_types:
            if not any(_is_type(kind, module_type) for kind in types):
                _warn_no_match("set_module_type", type_name(module_type), "module", types)
        for name in self.names:
            if name not in nodes:
                _warn_no_match("set_node_name", name, "node", nodes)
        for target in self.targets:
            if target not in targets:
                _warn_no_match("set_node_target", str(target), "node", sorted(map(str, targets)))


def _may_follow(node: Node) -> bool:
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
    value = first_value(node)
    return node.op == "get_attr" and (value is None or value.numel() > 1)


def _of_neighbors(node: Node, explicit_config: Callable[[Node], tuple[Config] | None]) -> tuple[Config] | None:
    seen, waiting, common = {node}, [node], None
    while waiting:
        at = waiting.pop()
        for neighbor in (*at.all_input_nodes, *at.users):
            if neighbor in seen or neighbor.op in ("get_attr", "placeholder", "output") or is_integer(neighbor):
                continue
            seen.add(neighbor)
            match = explicit_config(neighbor)
            if match is None and _may_follow(neighbor):
                waiting.append(neighbor)
            elif match in (None, (None,)) or (common is not None and match != common):
                return None
            else:
                common = match
    return common


def _warn_no_match(setter: str, target: str, kind: str, names: Sequence[str]) -> None:
    similar = near(target, names)
    ending = target.rpartition(".")[2].lower()
    similar += [name for name in names if name.rpartition(".")[2].lower() == ending and name not in similar][: 3 - len(similar)]
    logger.warning(
        "%s(%r) matches no %s of the model. Similar names: %s [selection.no_match]",
        setter,
        target,
        kind,
        ", ".join(similar) or "none",
    )


def type_name(module_type: Any) -> str:
    """Return the qualified name of a class, e.g. ``torch.nn.modules.conv.Conv2d``, or a string unchanged."""
    return module_type if isinstance(module_type, str) else f"{module_type.__module__}.{module_type.__qualname__}"


def _is_type(kind: str, module_type: Any) -> bool:
    name = type_name(module_type)
    is_short = isinstance(module_type, str) and "." not in module_type
    return kind == name or (is_short and kind.rpartition(".")[2] == module_type)


def module_path(node: Node) -> list[tuple[str, str]]:
    """Return (module name, class name) of every module that contains the node, outermost first."""
    path = []
    for qualified_name, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = qualified_name.removeprefix("L['self']").lstrip(".")
        path.append((name, kind if isinstance(kind, str) else type_name(kind)))
    return path
