from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
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
from ethorch.support.keywords import suggest_keywords
from ethorch.support.progress import stage
from ethorch.support.progress_display import display_progress
from ethorch.support.quiet import quiet
from ethorch.support.rendering import as_html, as_text
from ethorch.support.versions import versions
from ethorch.support.wording import kib
from ethorch.support.worker import Task
from ethorch.targets.npus import TARGETS, lookup
from ethorch.targets.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Settings that can be varied, in the order of the columns of the table.
AXES = ("target", "board", "scheme", "io", "memory_mode", "system_config", "constants", "arena")
#: Settings that the budget search changes, or that the compiler selects if they are ``auto``.
_SEARCHED = ("arena", "constants", "io_layout", "partition")
_ALONE = 4  # maximum number of programs compiled in this process, because a new process needs seconds to import torch
_WORTH = 15.0  # minimum estimated seconds of the remaining work for which new processes are started


@dataclass(frozen=True)
class Variant:
    """The result of compiling one combination of settings.

    Attributes:
        milliseconds: Estimated time of one inference, or None if compilation failed.
        total_cycles: Estimated NPU cycles of one inference.
        core_clock_hz: NPU clock in Hz that the estimates assume.
        ram_bytes, flash_bytes: Memory of the application.
        sqnr_db: SQNR relative to the float model, or None if not measured or infinite.
        fits: True unless a budget or the board's memory is known to be exceeded. None if neither a budget nor a board is set.
        searched: Settings that the budget search changed, or that the compiler selected for ``auto``.
        front: Whether the variant is on the Pareto front.
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
        """The values of the varied settings, separated by spaces."""
        return " ".join(str(value) for value in self.settings.values() if value is not None) or "unchanged"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)


@dataclass(frozen=True)
class Exploration:
    """The result of ``ethorch.explore``.

    Attributes:
        variants: One for each finished combination of settings. The last setting varies fastest.
        cheapest: Of the variants that meet all budgets, the fastest on the smallest NPU (in the order of ``ethorch targets``), or
            None.
    """

    variants: tuple[Variant, ...]
    cheapest: Variant | None
    budgets: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the attributes and package versions as JSON-compatible data."""
        return {
            "variants": [variant.to_json() for variant in self.variants],
            "cheapest": None if self.cheapest is None else self.cheapest.to_json(),
            "budgets": dict(self.budgets),
            "interrupted": self.interrupted,
            "versions": versions(),
        }

    def rich(self) -> RenderableType:
        """Return a Rich table with a row for each variant. ``*`` marks variants on the Pareto front."""
        from rich.console import Group

        table = tables.table()
        axes = list(dict.fromkeys(axis for variant in self.variants for axis in variant.settings))
        for name in ("", *axes):
            table.add_column(name)
        for name in ("ms", "NPU cycles", "MHz", "RAM KiB", "flash KiB", "SQNR dB", "on CPU"):
            table.add_column(name, justify="right")
        table.add_column("budgets")
        for variant in self.variants:
            chosen = ["" if variant.settings.get(axis) is None else str(variant.settings[axis]) for axis in axes]
            if variant.error:
                table.add_row("", *chosen, *[""] * 7, variant.error)
                continue
            verdict = "" if variant.fits is None else "met" if variant.fits else "exceeded"
            verdict += " with " * bool(variant.searched) + ", ".join(f"{name}={value}" for name, value in variant.searched.items())
            table.add_row("*" if variant.front else "", *chosen, *_figures(variant), verdict.strip())
        lines: list[Any] = [table]
        if any(variant.front for variant in self.variants):
            lines += [
                "",
                "* Pareto front: no other variant is better in time, RAM, flash or accuracy without being worse in another",
            ]
        if any(variant.fits is not None for variant in self.variants):
            named = (
                "No variant meets"
                if self.cheapest is None
                else f"{self.cheapest.name} is the fastest variant on the smallest NPU that meets"
            )
            sizes = {name: kib(int(limit)) for name, limit in self.budgets.items() if name in ("ram", "flash")}
            texts = (f"{name} {sizes.get(name) or f'{limit:,g}'}" for name, limit in self.budgets.items())
            limits = ", ".join(texts) or "the memories of each board"
            lines.append(f"Budgets: {limits}. {named} all budgets.")
        if self.interrupted:
            lines.append("The exploration was interrupted.")
        return Group(*lines)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page with the table and a plot of time against RAM (``.html``), or the result of ``to_json`` (``.json``).

        Raises:
            EthorchError: The suffix is unknown, or the file cannot be written.
        """
        target = Path(path)
        if target.suffix == ".json":
            text = json.dumps(self.to_json(), indent=2) + "\n"
        elif target.suffix in (".html", ".htm"):
            text = exploration_page(self.to_json())
        else:
            raise EthorchError(f"expected a file name that ends in .html or .json, got {target}.")
        try:
            write_whole(target, text.encode())
        except OSError as error:
            raise EthorchError(f"cannot write {target}: {error.strerror}.") from None
        return target

    def __str__(self) -> str:
        return as_text(self.rich())

    def _repr_html_(self) -> str:
        return as_html(self.rich())


@suggest_keywords
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
    """Compile a model with all combinations of settings and compare the programs.

    If a variant exceeds a RAM or time budget, ``explore`` tries other arenas and weights in SRAM, unless ``vary`` contains these
    settings. 16-bit modules are not tried. Vary the scheme instead::

        exploration = ethorch.explore(
            model, image, calibration=images, vary={"target": ["u55-64", "u55-128"], "scheme": ["int8", "a16w8"]}
        )
        print(exploration)
        exploration.save("front.html")

    Variants with the same scheme, ``io`` and NPU family share a quantized model. Memory figures cover the whole application, and
    times assume the NPU clock of each variant. SQNR is measured if there are calibration samples or ``min_sqnr_db`` is set.

    Args:
        model, example_inputs, calibration, progress: See ``ethorch.compile``.
        vary: Values of each setting to vary: ``target``, ``board``, ``scheme``, ``io``, ``memory_mode``, ``system_config``,
            ``constants`` or ``arena``.
        settings: All other settings, including budgets.
        jobs: Number of processes. Default: one per CPU if starting processes saves time, else one. An active cluster backend of
            ``joblib.parallel_config`` (Dask, Ray) is used.
        resume: File that records each compiled variant as a line of JSON. Variants in the file are reused if the model, samples,
            ``settings`` and package versions have not changed.

    Raises:
        SpecError: A setting is unknown or cannot be varied, or a value is invalid.
        EthorchError: The inputs or samples are invalid, or no variant can be compiled.
    """
    base = settings or Settings()
    axes = [axis for axis in AXES if axis in {entry.name for entry in fields(Settings)}]
    varied = {axis: list(values) for axis, values in vary.items() if values is not None and list(values)}
    for axis in varied:
        if axis not in axes:
            raise unknown_name("axis", axis, axes)
    if not varied:
        raise SpecError(f"vary: expected values for at least one of {', '.join(axes)}, got none.")
    names = [axis for axis in axes if axis in varied]
    _check_values(base, varied)
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(varied[axis] for axis in names))]
    with quiet(), display_progress(progress):
        user = user_model(model, example_inputs, calibration)
        accuracy = bool(user.calibration) or base.min_sqnr_db is not None
        log = _Log(resume, user, base, accuracy)
        open_points = [point for point in points if log.find(point) is None]
        groups = _groups(open_points, base)
        interrupted = False
        with stage("explore", len(open_points)) as step:
            try:
                for group in _compile_groups(user, base, groups, accuracy, jobs):
                    for variant in group:
                        log.add(variant)
                        step()
            except KeyboardInterrupt:
                interrupted = True
    finished = [logged for point in points if (logged := log.find(point)) is not None]
    if finished and not interrupted and all(variant.error for variant in finished):
        raise EthorchError(f"cannot compile any variant. First error: {finished[0].error}")
    marked = tuple(_with_front(finished))
    limits = {name: value for name in ("ram", "flash", "latency_ms", "min_sqnr_db") if (value := getattr(base, name)) is not None}
    return Exploration(marked, _cheapest(marked, base), limits, interrupted)


def _check_values(base: Settings, varied: Mapping[str, Sequence[Any]]) -> None:
    without_board = base if "board" not in varied else replace(base, board=None)
    for axis, values in varied.items():
        for value in values:
            if axis not in ("system_config", "memory_mode"):  # valid values depend on the target and on ini files
                without_board.with_(**{axis: value})


def _groups(points: Sequence[dict[str, Any]], base: Settings) -> list[list[dict[str, Any]]]:
    by_model: dict[Any, list[dict[str, Any]]] = {}
    for point in points:
        try:
            chosen = base.with_(**point)
            key: Any = (chosen.scheme, chosen.io, lookup(chosen.target).family)
        except EthorchError:
            key = json.dumps(point, sort_keys=True, default=str)  # compiling the variant reports the error later
        by_model.setdefault(key, []).append(point)
    return list(by_model.values())


def _cut(groups: Sequence[list[dict[str, Any]]], workers: int | None) -> list[list[dict[str, Any]]]:
    parts = -(-(workers or os.cpu_count() or 1) // len(groups))
    return [group[i::parts] for group in groups for i in range(min(parts, len(group)))]


def _compile_groups(
    user: UserModel, base: Settings, groups: Sequence[list[dict[str, Any]]], accuracy: bool, workers: int | None
) -> Iterable[list[Variant]]:
    compile_points = functools.partial(_variants, user, base, accuracy)
    left, first = [list(group) for group in groups], True
    started = time.monotonic()
    count = 0
    while left and not _spreads(sum(map(len, left)), count, time.monotonic() - started, workers):
        yield compile_points([left[0].pop(0)], first)  # one at a time, so that an interrupt does not lose finished variants
        first, count = False, count + 1
        left = [group for group in left if group]
    if left:
        task = Task.of(compile_points, *user.module.modules())
        yield from joblib.Parallel(n_jobs=workers or -1, return_as="generator_unordered")(
            joblib.delayed(task)(group, first and number == 0) for number, group in enumerate(_cut(left, workers))
        )


def _spreads(left: int, compiled: int, seconds: float, workers: int | None) -> bool:
    if left <= _ALONE or (workers or os.cpu_count()) == 1:
        return False
    backend, count = get_active_backend()
    if (
        workers is not None or count is not None or type(backend).__name__ != "LokyBackend"
    ):  # the user selected the number of processes or the backend
        return True
    return compiled > 0 and seconds / compiled * left > _WORTH


_last: list[Any] = []  # the last model quantized in this process: key, quantized model, user model


def _variants(
    user: UserModel, base: Settings, accuracy: bool, points: Sequence[Mapping[str, Any]], outspoken: bool
) -> list[Variant]:
    """Compile each combination. If ``outspoken`` is set, the first compilation warns about unsuitable samples."""
    variants = []
    with quiet():
        for number, point in enumerate(points):
            try:
                with nullcontext() if outspoken and number == 0 else mute_sample_warnings():
                    variants.append(_variant(user, base.with_(**point), point, accuracy))
            except EthorchError as error:
                variants.append(Variant(dict(point), error=str(error)))
    return variants


def _variant(user: UserModel, settings: Settings, point: Mapping[str, Any], accuracy: bool) -> Variant:
    def make(chosen: Settings, _: bool) -> Record:
        return build_program(single_method(user), chosen, {FORWARD: _quantize(user, chosen)})

    with exclusive(), in_eval_mode(user.module):
        record = search_budgets(settings, make, user, fixed=(*point, "modules"))
    used = record.settings or settings
    measured = measure_accuracy(record) if accuracy else None
    memory = record.memory
    return Variant(
        dict(point),
        record.milliseconds,
        record.total_cycles,
        record.core_clock_hz,
        memory.ram_bytes,
        memory.flash_bytes,
        None if measured is None or not math.isfinite(measured.sqnr_db) else measured.sqnr_db,
        0 if record.build is None else len(record.build.partition.refusals),
        fits(record) if budgets(record) else None,
        {name: getattr(used, name) for name in _SEARCHED if getattr(used, name) != getattr(settings, name)},
    )


def _quantize(user: UserModel, settings: Settings) -> GraphModule:
    layout = settings.io, settings.channels_last
    key = (id(user), settings.scheme, lookup(settings.target).family, *layout, json.dumps(dict(settings.modules)))
    if not _last or _last[0] != key or _last[2] is not user:
        _last[:] = [key, quantize(single_method(user), settings)[FORWARD], user]
    quantized: GraphModule = _last[1]
    return quantized


def _with_front(variants: Sequence[Variant]) -> Iterable[Variant]:

    def costs(candidate: Variant) -> tuple[float, ...]:
        sqnr = float("inf") if candidate.sqnr_db is None else candidate.sqnr_db
        return (candidate.milliseconds or float("inf"), candidate.ram_bytes or 0, candidate.flash_bytes or 0, -sqnr)

    rivals = [costs(variant) for variant in variants if not variant.error]
    for variant in variants:
        cost = costs(variant)
        is_beaten = any(all(a <= b for a, b in zip(rival, cost, strict=True)) and rival != cost for rival in rivals)
        yield replace(variant, front=not variant.error and not is_beaten)


def _cheapest(variants: Sequence[Variant], base: Settings) -> Variant | None:
    order = list(TARGETS)
    affordable = [variant for variant in variants if not variant.error and variant.fits]

    def size(variant: Variant) -> tuple[int, float]:
        return order.index(base.with_(**variant.settings).target), variant.milliseconds or float("inf")

    return min(affordable, key=size, default=None)


class _Log:
    """A file that records finished variants, to resume an interrupted exploration."""

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
                    break  # an interrupted process wrote an incomplete line
                raise EthorchError(
                    f"{self.path}, line {number}: expected a variant written by explore, got {line!r:.60}. Use another file."
                ) from None
            if of == self.of:
                self.found[_key(variant.settings)] = variant

    def find(self, point: Mapping[str, Any]) -> Variant | None:
        return self.found.get(_key(point))

    def add(self, variant: Variant) -> None:
        self.found[_key(variant.settings)] = variant
        if self.path is None or variant.error:
            return
        try:
            with self.path.open("a+b") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # remove an incomplete last line
                file.write((json.dumps({"of": self.of, **variant.to_json()}) + "\n").encode())
        except OSError as error:
            raise EthorchError(f"cannot write {self.path}: {error.strerror}.") from None


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps(dict(point), sort_keys=True, default=str)


def _digest(user: UserModel, base: Settings, accuracy: bool) -> str:
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


def _figures(variant: Variant) -> list[str]:
    return [
        "" if variant.milliseconds is None else f"{variant.milliseconds:,.3f}",
        "" if variant.total_cycles is None else f"{variant.total_cycles:,}",
        "" if not variant.core_clock_hz else f"{variant.core_clock_hz / 1e6:,.0f}",
        f"{(variant.ram_bytes or 0) / 1024:,.1f}",
        f"{(variant.flash_bytes or 0) / 1024:,.1f}",
        "" if variant.sqnr_db is None else f"{variant.sqnr_db:.1f}",
        str(variant.cpu_operators),
    ]
