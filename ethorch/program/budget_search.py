from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from typing import Any

from ethorch.models.load import UserModel
from ethorch.program.attempt import Attempt
from ethorch.program.measure.accuracy import accuracy
from ethorch.program.measure.budgets import budgets, fits, is_ram_possible, least_ram
from ethorch.program.record import Record
from ethorch.quantization.calibration_checks import mute_sample_warnings
from ethorch.quantization.schemes import quantizer_for
from ethorch.support import trees
from ethorch.support.errors import EthorchError
from ethorch.support.progress import stage
from ethorch.support.wording import count_noun
from ethorch.targets.compile_spec import FAST, FREE
from ethorch.targets.settings import AUTO, AUTO_LAYOUT, COST, CPU_MATMUL, FLASH, NCHW, NHWC, NPU, SRAM, Settings

logger = logging.getLogger(__name__)

#: Function that compiles a program. The second argument is True if the quantization settings have not changed.
Make = Callable[[Settings, bool], Record]

#: Minimum saving, as a share of the time, for which ``constants="auto"`` stores weights in SRAM.
_WORTH = 0.02
#: Minimum saving, as a share of the time, for which ``io_layout="auto"`` selects NHWC, which requires no additional memory.
_WORTH_OF_LAYOUT = 0.005
_STEPS = 3  # maximum number of arena limits to try


def search_budgets(settings: Settings, make: Make, user: UserModel, fixed: Collection[str] = ()) -> Record:
    """Compile a program, and search for settings that make it faster or meet the budgets.

    If no program meets all budgets, the closest one is returned. The search tries, in order:

    - NHWC inputs and outputs, if ``io_layout`` is ``auto``
    - matrix products on the CPU, if ``partition`` is ``cost``
    - weights in SRAM, if ``constants`` is ``auto``
    - no copies of weights in SRAM, and then smaller arenas, if the RAM budget is exceeded
    - the fastest arena, and then weights in SRAM, if the time budget is exceeded
    - 16-bit activations for the most sensitive modules, if the scheme is ``int8`` and the accuracy is too low

    Args:
        make: Function that compiles programs.
        fixed: Names of settings that the search changes only if they are ``auto`` or ``cost``. ``modules`` disables the search
            for 16-bit modules.
    """
    search = _Search(make, frozenset(fixed))
    _warn_of_inputs(settings, user)
    first = best = search.attempt("", settings)
    if settings.io_layout == AUTO_LAYOUT:
        best = search.with_layout(best)
    if settings.partition == COST:
        best = search.with_partition(best)
    if settings.constants == AUTO:
        best = search.with_constants(best)
    if _is_missed(best, "ram"):
        best = search.with_less_ram(best)
    if _is_missed(best, "latency_ms"):
        best = search.with_fewer_cycles(best)
    if not user.quantized and "modules" not in fixed and _is_missed(best, "min_sqnr_db"):
        best = search.with_more_bits(best, user, settings.min_sqnr_db)
    best.tried = tuple(search.tried)
    if best is not first and not fits(best):
        _warn_of_trades(first, best)
    return best


def _warn_of_inputs(settings: Settings, user: UserModel) -> None:
    least = least_ram(leaf.shape for leaf in trees.leaves(user.example_inputs) if trees.is_tensor(leaf))
    if settings.ram_limit is not None and settings.ram_limit < least:
        logger.warning(
            "no settings can meet the RAM limit of %s, because the inputs require at least %s. Raise the limit, or use smaller "
            "inputs. [budget.impossible]",
            count_noun(settings.ram_limit, "byte"),
            count_noun(least, "byte"),
        )


def _warn_of_trades(first: Record, best: Record) -> None:
    figures = [
        ("RAM", "bytes", first.memory.ram_bytes, best.memory.ram_bytes),
        ("flash", "bytes", first.memory.flash_bytes, best.memory.flash_bytes),
    ]
    worse = [f"{name} {before:,} to {after:,} {unit}" for name, unit, before, after in figures if after > before]
    if first.milliseconds is not None and best.milliseconds is not None and best.milliseconds > first.milliseconds:
        worse.append(f"time {first.milliseconds:.4g} to {best.milliseconds:.4g} ms")
    if worse:
        logger.warning(
            "no program within the budgets was found. The program closest to the budgets has worse figures than the program with "
            "the original settings: %s. Raise or remove the exceeded budgets to keep the original settings. [budget.traded]",
            ", ".join(worse),
        )


class _Search:
    def __init__(self, make: Make, fixed: frozenset[str]):
        self.make, self.fixed = make, fixed
        self.tried: list[Attempt] = []

    def attempt(self, change: str, settings: Settings, only_compiler: bool = True) -> Record:
        if change:
            with stage(f"try {change}"), mute_sample_warnings():
                record = self.make(settings, only_compiler)
        else:
            record = self.make(settings, False)
        measured = accuracy(record) if settings.min_sqnr_db is not None else None
        memory = record.memory
        figure = None if measured is None else measured.sqnr_db
        self.tried.append(Attempt(change, memory.ram_bytes, memory.flash_bytes, record.milliseconds, figure, fits(record)))
        return record

    def with_layout(self, before: Record) -> Record:
        first = _settings(before).with_(io_layout=NCHW)
        before.settings = first
        if not any(len(info.shape) in (4, 5) for info in (*before.inputs, *before.outputs)):
            return before
        candidate = self.attempt("channels last at inputs and outputs", first.with_(io_layout=NHWC))
        saved = (before.milliseconds or 0) - (candidate.milliseconds or 0)
        return candidate if saved > _WORTH_OF_LAYOUT * (before.milliseconds or 0) else before

    def with_partition(self, before: Record) -> Record:
        first = _settings(before).with_(partition=NPU)
        before.settings = first
        try:
            candidate = self.attempt("products of two activations on the CPU", first.with_(partition=CPU_MATMUL))
        except EthorchError:
            return before  # no product has a CPU kernel
        return candidate if self.pays(candidate, before) else before

    def with_constants(self, before: Record) -> Record:
        """Store all weights, or only those read repeatedly, in SRAM if they fit and the program becomes faster."""
        candidate = self.attempt("weights in SRAM", _settings(before).with_(constants=SRAM))
        if _is_missed(candidate, "ram"):
            candidate = self.with_less_ram(candidate)
        if self.pays(candidate, before):
            return candidate
        candidate = self.with_resident(before)
        if self.pays(candidate, before):
            return candidate
        before.settings = _settings(before).with_(constants=0)
        return before

    def pays(self, candidate: Record, before: Record) -> bool:
        saved = (before.milliseconds or 0) - (candidate.milliseconds or 0)
        return not _is_missed(candidate, "ram") and saved > _WORTH * (before.milliseconds or 0)

    def with_resident(self, before: Record) -> Record:
        settings = _settings(before)
        room = (settings.ram_limit or 0) - before.memory.ram_bytes
        if room <= 0:
            return before
        return self.attempt(f"{room:,} bytes for weights that are read several times", settings.with_(constants=room))

    def with_less_ram(self, before: Record) -> Record:
        best = before
        has_copies = any(row.name == "resident-weights" for row in before.stream_passes)
        if has_copies and _settings(before).constants == FLASH and "constants" not in self.fixed:
            best = self.attempt("no copies of weights", _settings(before).with_(constants=0))
        for _ in range(0 if "arena" in self.fixed or not is_ram_possible(before) else _STEPS):
            settings, arena = _settings(best), _arena(best)
            if settings.ram_limit is None or not arena or not _is_missed(best, "ram"):
                break
            limit = max(arena - (best.memory.ram_bytes - settings.ram_limit), _least_arena(best))
            candidate = self.attempt(f"an arena of {limit:,} bytes", settings.with_(arena=limit))
            if candidate.memory.ram_bytes < best.memory.ram_bytes:
                best = candidate
            if _arena(candidate) > limit:
                break  # no smaller arena exists
        return best

    def with_fewer_cycles(self, before: Record) -> Record:
        best = before
        changes: list[tuple[str, dict[str, Any]]] = []
        if _settings(before).arena == FREE and "arena" not in self.fixed:
            changes.append(("the fastest arena", {"arena": FAST}))
        if (
            _settings(before).constants == FLASH
            and _settings(before).ram_limit is not None
            and _settings(before).memory_mode is None
            and "constants" not in self.fixed
        ):
            changes.append(("weights in SRAM", {"constants": SRAM}))
        for change, values in changes:
            candidate = self.attempt(change, _settings(best).with_(**values))
            if _is_missed(candidate, "ram") and values.get("constants"):
                candidate = self.with_less_ram(candidate)
            if not _is_missed(candidate, "ram") and (candidate.milliseconds or 0) < (best.milliseconds or 0):
                best = candidate
            if not _is_missed(best, "latency_ms"):
                break
        return best

    def with_more_bits(self, before: Record, user: UserModel, least: float | None) -> Record:
        settings = _settings(before)
        if settings.scheme != "int8" or before.config is not None:
            return before
        with stage("raise modules to 16 bits") as step, mute_sample_warnings():
            from ethorch.tuning.precision_search import mixed_precision  # saves 0.02 s without an accuracy budget

            search = mixed_precision(
                user.module,
                quantizer_for(settings, user.module),
                list(user.calibration) or [user.example_inputs],
                target_sqnr_db=least,
                progress=lambda _: step(),
            )
        if not search.raised:
            return before
        raised = dict.fromkeys(search.raised, "a16w8")
        change = f"16 bits for {', '.join(raised)}"
        candidate = self.attempt(change, settings.with_(modules={**settings.modules, **raised}), only_compiler=False)
        return candidate if _sqnr_db(candidate) > _sqnr_db(before) else before


def _settings(record: Record) -> Settings:
    if record.settings is None:
        raise EthorchError("expected a program compiled by ethorch.compile, got a program without settings.")
    return record.settings


def _sqnr_db(record: Record) -> float:
    measured = accuracy(record)
    return -math.inf if measured is None else measured.sqnr_db


def _is_missed(record: Record, name: str) -> bool:
    return any(budget.name == name and budget.holds is False for budget in budgets(record))


def _least_arena(record: Record) -> int:
    """Return a lower bound on the arena size in bytes: the largest total input size or total output size of a delegate."""
    sides = [tensors for payload in record.payloads for tensors in (payload.inputs, payload.outputs)]
    return max((sum(math.prod(tensor.shape) * tensor.element_size for tensor in tensors) for tensors in sides), default=1)


def _arena(record: Record) -> int:
    return max((payload.scratch_bytes for payload in record.payloads), default=0)
