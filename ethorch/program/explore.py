"""One model in many ways: NPUs, boards, schemes, memory modes, each as a program, side by side."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import torch
from joblib.parallel import get_active_backend
from torch.fx import GraphModule

from ethorch.formats.files import write_whole
from ethorch.models.load import UserModel, in_eval_mode
from ethorch.program.budget_search import search_budgets
from ethorch.program.build import FORWARD, build_program, quantize, single_method
from ethorch.program.compile import Model, user_model
from ethorch.program.measure.accuracy import accuracy as measure_accuracy
from ethorch.program.measure.budgets import budgets, fits
from ethorch.program.record import Record
from ethorch.quantization.calibration_checks import mute_sample_warnings
from ethorch.report.page.exploration import exploration_page
from ethorch.support import tables
from ethorch.support.errors import EthorchError, SpecError, unknown_name
from ethorch.support.exclusive import exclusive
from ethorch.support.progress import stage
from ethorch.support.progress_display import shown
from ethorch.support.quiet import quiet
from ethorch.support.rendering import as_html, as_text
from ethorch.support.versions import versions
from ethorch.support.worker import Task
from ethorch.targets.npus import TARGETS, lookup
from ethorch.targets.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Settings that may be varied, in the order of the table's columns.
AXES = ("target", "board", "scheme", "io", "memory_mode", "system_config", "constants", "arena")
#: Settings that are changed where a budget does not hold, or that ``auto`` leaves to the compiler.
_SEARCHED = ("arena", "constants", "io_layout", "partition")
_ALONE = 4  # programs up to which no processes are started: each takes seconds to import torch
_WORTH = 15.0  # seconds that the rest has to take here, by what the first ones took, for processes to be started


@dataclass(frozen=True)
class Variant:
    """One program of the product.

    Attributes:
        settings: what is varied: name -> value.
        milliseconds: of one inference by the estimate; None where it could not be made.
        total_cycles: of the NPU.
        core_clock_hz: which the milliseconds are at.
        ram_bytes, flash_bytes: of the whole application.
        sqnr_db: against the float model, on the samples; None where it was not measured, or the outputs are equal.
        cpu_operators: operators that stay on the CPU.
        fits: do all budgets hold, a board's own memories among them? None where there are none.
        searched: settings that were changed to keep the budgets, or that were left to the compiler (``auto``): name -> value.
        error: why there is no program; empty where there is one.
        front: no other variant is at least as good in everything and better in something.
    """

    settings: Mapping[str, Any]
    milliseconds: float | None = None
    total_cycles: int | None = None
    core_clock_hz: float | None = None
    ram_bytes: int | None = None
    flash_bytes: int | None = None
    sqnr_db: float | None = None
    cpu_operators: int | None = None
    fits: bool | None = None
    searched: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    front: bool = False

    @property
    def name(self) -> str:
        """What is varied, in a word or two."""
        return " ".join(str(value) for value in self.settings.values() if value is not None) or "as it is"

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names."""
        return asdict(self)


@dataclass(frozen=True)
class Exploration:
    """What ``ethorch.explore`` found.

    Attributes:
        variants: in the order of the product.
        cheapest: name of the smallest NPU with a variant that keeps all budgets (in the order of ``ethorch targets``), and that
            variant; None where none does.
        budgets: the limits that were given.
        interrupted: somebody stopped it; the variants are those so far.
    """

    variants: tuple[Variant, ...]
    cheapest: Variant | None
    budgets: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names, and ``versions``."""
        return {
            "variants": [variant.to_json() for variant in self.variants],
            "cheapest": None if self.cheapest is None else self.cheapest.to_json(),
            "budgets": dict(self.budgets),
            "interrupted": self.interrupted,
            "versions": versions(),
        }

    def rich(self) -> RenderableType:
        """A table of Rich: a row for each variant; ``*`` marks the Pareto front."""
        from rich.console import Group

        table = tables.table()
        axes = list(dict.fromkeys(axis for variant in self.variants for axis in variant.settings))
        for name in ("", *axes):
            table.add_column(name)
        for name in ("ms", "NPU cycles", "MHz", "RAM KiB", "flash KiB", "SQNR dB", "on CPU"):
            table.add_column(name, justify="right")
        table.add_column("budgets")
        for one in self.variants:
            chosen = ["" if one.settings.get(axis) is None else str(one.settings[axis]) for axis in axes]
            if one.error:
                table.add_row("", *chosen, *[""] * 7, one.error)
                continue
            verdict = "" if one.fits is None else "hold" if one.fits else "do not hold"
            verdict += " with " * bool(one.searched) + ", ".join(f"{name}={value}" for name, value in one.searched.items())
            table.add_row("*" if one.front else "", *chosen, *_figures(one), verdict.strip())
        lines: list[Any] = [table]
        if any(one.front for one in self.variants):
            lines += ["", "* no other is as good in time, RAM, flash and accuracy together"]
        if any(one.fits is not None for one in self.variants):
            named = "None keeps all" if self.cheapest is None else f"{self.cheapest.name} is the smallest NPU that keeps them"
            limits = ", ".join(f"{name} {limit:,g}" for name, limit in self.budgets.items()) or "the boards' memories"
            lines.append(f"Budgets: {limits}. {named}.")
        if self.interrupted:
            lines.append("Interrupted.")
        return Group(*lines)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page with the table and a plot of time against RAM (``.html``), or the plain data (``.json``).

        Raises:
            EthorchError: the ending is another one, the plotting library is not installed, or the file cannot be written.
        """
        target = Path(path)
        if target.suffix == ".json":
            text = json.dumps(self.to_json(), indent=2) + "\n"
        elif target.suffix in (".html", ".htm"):
            text = exploration_page(self.to_json())
        else:
            raise EthorchError(f"cannot write {target}: an exploration is saved as .html or .json.")
        try:
            write_whole(target, text.encode())
        except OSError as error:
            raise EthorchError(f"cannot write {target}: {error.strerror}.") from None
        return target

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


def explore(
    model: Model,
    example_inputs: Any = None,
    *,
    vary: Mapping[str, Iterable[Any]],
    calibration: Any = None,
    settings: Settings | None = None,
    resume: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Exploration:
    """Compile a model in many ways and put them side by side.

    Where a variant does not keep a limit of RAM or time, other arenas and weights in SRAM are tried for it as ``ethorch.compile``
    does, but for what is varied; 16 bits for single modules are not: schemes can be varied. ::

        found = ethorch.explore(
            model, image, calibration=images, vary={"target": ["u55-64", "u55-128"], "scheme": ["int8", "a16w8"]}
        )
        print(found)
        found.save("front.html")

    The product of all values is compiled; the model is quantized once for each scheme and family of NPUs. All figures are of the
    whole application, milliseconds at the clock of each variant's own system. SQNR against the float model is measured if there
    are calibration samples.

    Args:
        model, example_inputs, calibration: as of ``ethorch.compile``.
        vary: Field of ``Settings`` -> its values: ``target``, ``board``, ``scheme``, ``io``, ``memory_mode``, ``system_config``,
            ``constants``, ``arena``.
        settings: of what is not varied, budgets among them.
        jobs: processes; None: one for each CPU, once what is left takes longer than starting them. Inside
            ``joblib.parallel_config`` with a cluster's backend (Dask, Ray), that cluster.
        resume: a file of finished variants, a line of JSON for each: those that are there are not made again, new ones are added.
        progress: draw progress on stderr; None: on a terminal.

    Raises:
        SpecError: an axis or one of its values is unknown, or no axis is given.
        EthorchError: as of ``ethorch.compile``; what only one variant cannot do is in its ``error``.
    """
    base = settings or Settings()
    known = [axis for axis in AXES if axis in {entry.name for entry in fields(Settings)}]
    varied = {axis: list(values) for axis, values in vary.items() if values is not None and list(values)}
    for axis in varied:
        if axis not in known:
            raise unknown_name("axis", axis, known)
    if not varied:
        raise SpecError(f"nothing is varied: give values of at least one of {', '.join(known)}.")
    names = [axis for axis in known if axis in varied]
    _check_values(base, varied)
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(varied[axis] for axis in names))]
    with quiet(), shown(progress):
        user = user_model(model, example_inputs, calibration)
        accuracy = bool(user.calibration) or base.min_sqnr_db is not None
        log = _Log(resume, user, base, accuracy)
        open_points = [point for point in points if log.find(point) is None]
        groups = _groups(open_points, base)
        interrupted = False
        with stage("explore", len(open_points)) as step:
            try:
                for group in _made(user, base, groups, accuracy, jobs):
                    for variant in group:
                        log.add(variant)
                        step()
            except KeyboardInterrupt:
                interrupted = True
    found = [one for point in points if (one := log.find(point)) is not None]
    if found and not interrupted and all(variant.error for variant in found):
        raise EthorchError(f"no variant could be made; the first says: {found[0].error}")
    marked = tuple(_with_front(found))
    limits = {name: value for name in ("ram", "flash", "latency_ms", "min_sqnr_db") if (value := getattr(base, name)) is not None}
    return Exploration(marked, _cheapest(marked, base), limits, interrupted)


def _check_values(base: Settings, varied: Mapping[str, Sequence[Any]]) -> None:
    """SpecError for a value that is wrong by itself: it would be so in every variant."""
    without_board = base if "board" not in varied else replace(base, board=None)
    for axis, values in varied.items():
        for value in values:
            if axis not in ("system_config", "memory_mode"):  # what these may be depends on the target and on ini files
                without_board.with_(**{axis: value})


def _groups(points: Sequence[dict[str, Any]], base: Settings) -> list[list[dict[str, Any]]]:
    """Points that share a quantized model."""
    by_model: dict[Any, list[dict[str, Any]]] = {}
    for point in points:
        try:
            chosen = base.with_(**point)
            key: Any = (chosen.scheme, chosen.io, lookup(chosen.target).family)
        except EthorchError:
            key = json.dumps(point, sort_keys=True, default=str)  # its own words, later
        by_model.setdefault(key, []).append(point)
    return list(by_model.values())


def _cut(groups: Sequence[list[dict[str, Any]]], workers: int | None) -> list[list[dict[str, Any]]]:
    """The groups, cut where there are more workers than groups."""
    parts = -(-(workers or os.cpu_count() or 1) // len(groups))
    return [group[i::parts] for group in groups for i in range(min(parts, len(group)))]


def _made(
    user: UserModel, base: Settings, groups: Sequence[list[dict[str, Any]]], accuracy: bool, workers: int | None
) -> Iterable[list[Variant]]:
    """The variants of each group as they are finished: here, one by one, until processes are worth their start."""
    own = functools.partial(_variants, user, base, accuracy)
    left, first = [list(group) for group in groups], True
    started = time.monotonic()
    done = 0
    while left and not _spreads(sum(map(len, left)), done, time.monotonic() - started, workers):
        yield own([left[0].pop(0)], first)  # one by one, so that an interrupt keeps the figures so far
        first, done = False, done + 1
        left = [group for group in left if group]
    if left:
        task = Task.of(own, *user.module.modules())
        yield from joblib.Parallel(n_jobs=workers or -1, return_as="generator_unordered")(
            joblib.delayed(task)(group, first and number == 0) for number, group in enumerate(_cut(left, workers))
        )


def _spreads(left: int, done: int, seconds: float, workers: int | None) -> bool:
    """Are the programs that are left made in processes, after so many that took so long?"""
    if left <= _ALONE or (workers or os.cpu_count()) == 1:
        return False
    backend, count = get_active_backend()
    if workers is not None or count is not None or type(backend).__name__ != "LokyBackend":  # as the user says
        return True
    return done > 0 and seconds / done * left > _WORTH


_last: list[Any] = []  # the model that this process quantized last: key, quantized, user


def _variants(
    user: UserModel, base: Settings, accuracy: bool, points: Sequence[Mapping[str, Any]], outspoken: bool
) -> list[Variant]:
    """A program for each point; where ``outspoken``, what is wrong with the samples is said with the first."""
    found = []
    with quiet():
        for number, point in enumerate(points):
            try:
                with nullcontext() if outspoken and number == 0 else mute_sample_warnings():
                    found.append(_variant(user, base.with_(**point), point, accuracy))
            except EthorchError as error:
                found.append(Variant(dict(point), error=str(error)))
    return found


def _variant(user: UserModel, settings: Settings, point: Mapping[str, Any], accuracy: bool) -> Variant:
    def make(chosen: Settings, _: bool) -> Record:
        return build_program(single_method(user), chosen, {FORWARD: _quantized(user, chosen)})

    with exclusive(), in_eval_mode(user.module):
        record = search_budgets(settings, make, user, fixed=(*point, "modules"))
    made = record.settings or settings
    measured = measure_accuracy(record) if accuracy else None
    memory = record.memory
    return Variant(
        dict(point),
        record.milliseconds,
        record.total_cycles,
        record.core_clock_hz,
        memory.ram_bytes,
        memory.flash_bytes,
        None if measured is None or measured.sqnr_db == float("inf") else measured.sqnr_db,
        0 if record.build is None else len(record.build.partition.refusals),
        fits(record) if budgets(record) else None,
        {name: getattr(made, name) for name in _SEARCHED if getattr(made, name) != getattr(settings, name)},
    )


def _quantized(user: UserModel, settings: Settings) -> GraphModule:
    """The model quantized by the settings; that of the last variant where it is the same."""
    layout = settings.io, settings.channels_last
    key = (id(user), settings.scheme, lookup(settings.target).family, *layout, json.dumps(dict(settings.modules)))
    if not _last or _last[0] != key or _last[2] is not user:
        _last[:] = [key, quantize(single_method(user), settings)[FORWARD], user]
    quantized: GraphModule = _last[1]
    return quantized


def _with_front(variants: Sequence[Variant]) -> Iterable[Variant]:
    """The same, those of the Pareto front marked: least time, RAM and flash, most accuracy."""

    def costs(one: Variant) -> tuple[float, ...]:
        sqnr = float("inf") if one.sqnr_db is None else one.sqnr_db
        return (one.milliseconds or float("inf"), one.ram_bytes or 0, one.flash_bytes or 0, -sqnr)

    good = [one for one in variants if not one.error]
    for one in variants:
        mine = costs(one)
        beaten = any(all(a <= b for a, b in zip(costs(other), mine, strict=True)) and costs(other) != mine for other in good)
        yield replace(one, front=not one.error and not beaten)


def _cheapest(variants: Sequence[Variant], base: Settings) -> Variant | None:
    """Of those that keep the budgets, on the smallest NPU the quickest."""
    order = list(TARGETS)
    holding = [one for one in variants if not one.error and one.fits]

    def size(one: Variant) -> tuple[int, float]:
        return order.index(base.with_(**one.settings).target), one.milliseconds or float("inf")

    return min(holding, key=size, default=None)


class _Log:
    """Finished variants in a file, so that an exploration that was stopped goes on."""

    def __init__(self, path: str | os.PathLike[str] | None, user: UserModel, base: Settings, accuracy: bool):
        self.path = None if path is None else Path(path)
        self.of = "" if path is None else _digest(user, base, accuracy)
        self.found: dict[str, Variant] = {}
        if self.path is None or not self.path.exists():
            return
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EthorchError(f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}.") from None
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                of, variant = row.pop("of"), Variant(**row)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                if number == len(lines):
                    break  # cut off when it was stopped
                raise EthorchError(f"{self.path}, line {number}, is no variant of an exploration: give another file.") from None
            if of == self.of:
                self.found[_key(variant.settings)] = variant

    def find(self, point: Mapping[str, Any]) -> Variant | None:
        """The finished variant of these settings."""
        return self.found.get(_key(point))

    def add(self, variant: Variant) -> None:
        """Keep it; what has an error is tried again next time."""
        self.found[_key(variant.settings)] = variant
        if self.path is None or variant.error:
            return
        try:
            with self.path.open("a+b") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # a line that was cut off
                file.write((json.dumps({"of": self.of, **variant.to_json()}) + "\n").encode())
        except OSError as error:
            raise EthorchError(f"cannot write {self.path}: {error.strerror}.") from None


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps(dict(point), sort_keys=True, default=str)


def _digest(user: UserModel, base: Settings, accuracy: bool) -> str:
    """Of all that a variant depends on, besides its own settings."""
    digest = hashlib.sha256()

    def add(*parts: Any) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            digest.update(len(data).to_bytes(8, "little") + data)

    add(user.module, accuracy, _SEARCHED, json.dumps(base.to_json(), sort_keys=True), json.dumps(versions(), sort_keys=True))
    tensors = [*user.module.state_dict().items()]
    for sample in (user.example_inputs, *user.calibration):
        tensors += [("", leaf) for leaf in torch.utils._pytree.tree_leaves(sample)]
    for name, tensor in tensors:
        add(name)
        if isinstance(tensor, torch.Tensor):
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            add(plain.dtype, tuple(tensor.shape), plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        else:
            add(tensor)
    return digest.hexdigest()[:32]


def _figures(one: Variant) -> list[str]:
    return [
        "" if one.milliseconds is None else f"{one.milliseconds:,.3f}",
        "" if one.total_cycles is None else f"{one.total_cycles:,}",
        "" if not one.core_clock_hz else f"{one.core_clock_hz / 1e6:,.0f}",
        f"{(one.ram_bytes or 0) / 1024:,.1f}",
        f"{(one.flash_bytes or 0) / 1024:,.1f}",
        "" if one.sqnr_db is None else f"{one.sqnr_db:.1f}",
        str(one.cpu_operators),
    ]
