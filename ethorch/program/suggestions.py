from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ethorch.figures.layer import NPU, Layer
from ethorch.figures.memory_report import TensorPlace
from ethorch.figures.memory_use import MEMORY
from ethorch.models.layouts import NhwcIo, from_nhwc
from ethorch.models.load import UserModel
from ethorch.models.narrower import narrow_convolution
from ethorch.program.measure.budgets import budgets, fits
from ethorch.program.record import Record
from ethorch.quantization.calibration_checks import mute_sample_warnings
from ethorch.support import tables
from ethorch.support.errors import EthorchError
from ethorch.support.progress import stage
from ethorch.support.rendering import as_text
from ethorch.support.wording import kib
from ethorch.targets.compile_spec import FAST
from ethorch.targets.settings import FLASH, NHWC, SRAM, Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Function that compiles a model with the given settings.
Compile = Callable[[UserModel, Settings], Record]

_BLOCK = 16  # number of channels that the NPU computes in parallel
_ABOVE = 3  # maximum number of channels beyond a multiple of _BLOCK that a suggestion removes
_LAYERS = 4  # maximum number of convolutions for which fewer channels are tried
_LEAST_IMAGE = 48  # minimum image size in pixels for which a smaller image is tried
_SHRUNK = 0.75
_STEP = 8  # suggested numbers of channels are multiples of this
_WORTH = 0.005  # minimum relative improvement of a suggestion


@dataclass(frozen=True)
class Suggestion:
    """A change to the settings or the model, and its effect on the method.

    Attributes:
        change: Changed settings, e.g. ``io="int8"``, or a description of a change to the model.
        ram_bytes, flash_bytes: Change in the RAM and flash of the whole application.
        milliseconds: Change in the estimated time, or None if unknown.
        fits: Whether all budgets are met, or None if no budget is set, or a single layer or method was compiled.
        note: Consequence of the change for the user.
    """

    change: str
    ram_bytes: int
    flash_bytes: int
    milliseconds: float | None
    fits: bool | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)


@dataclass(frozen=True)
class Suggestions:
    """The changes that make a program smaller or faster.

    Attributes:
        entries: Changes, starting with those that meet all budgets.
        obstacles: A sentence for each exceeded budget.
    """

    entries: tuple[Suggestion, ...]
    obstacles: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return {
            "entries": [suggestion.to_json() for suggestion in self.entries],
            "obstacles": list(self.obstacles),
        }

    def rich(self) -> RenderableType:
        """Return a renderable for Rich, with the exceeded budgets and a table of the changes."""
        from rich.console import Group

        table = tables.table()
        for name in ("change", "RAM", "flash", "ms", "budgets", ""):
            table.add_column(name, justify="right" if name in ("RAM", "flash", "ms") else "left")
        for suggestion in self.entries:
            time = "" if suggestion.milliseconds is None else f"{suggestion.milliseconds:+.3f}"
            holds = "" if suggestion.fits is None else "met" if suggestion.fits else "exceeded"
            ram, flash = _format_signed(suggestion.ram_bytes), _format_signed(suggestion.flash_bytes)
            table.add_row(suggestion.change, ram, flash, time, holds, suggestion.note)
        return Group(*self.obstacles, table if self.entries else "No change makes the program smaller or faster.")

    def __str__(self) -> str:
        return as_text(self.rich())


def suggestions(record: Record, compile_by: Compile) -> Suggestions:
    """Compile the program with each change, and return the changes that make it smaller or faster.

    Args:
        compile_by: Function that compiles a model with the given settings, without a budget search.

    Raises:
        EthorchError: See ``Program.suggest``.
    """
    if record.model is None or record.settings is None or record.config is not None:
        raise EthorchError("suggestions require a program compiled from a model with a named scheme. Use ethorch.compile.")

    def attempt(change: str, user: UserModel, settings: Settings) -> Record | None:
        with stage(f"try {change}"), mute_sample_warnings():
            try:
                return compile_by(user, settings)
            except EthorchError:
                return None  # the change does not apply to this model

    given = _as_given(record.model, record.settings)
    is_alone = len(record.methods) == 1
    base = record if is_alone else attempt(f"method {record.method} alone", given, record.settings)
    entries = []
    for change, note, user, settings in _changes(given, record.settings, record):
        changed = attempt(change, user, settings)
        if base is None or changed is None:
            continue
        suggestion = _compare_builds(change, note, base, changed)
        if _worth(suggestion, base):
            entries.append(suggestion if is_alone else replace(suggestion, fits=None))
    entries += _widths(record, compile_by)
    entries.sort(key=lambda suggestion: (suggestion.fits is not True, suggestion.ram_bytes + suggestion.flash_bytes))
    return Suggestions(tuple(entries), tuple(_in_the_way(record)))


def _changes(user: UserModel, settings: Settings, record: Record) -> Iterator[tuple[str, str, UserModel, Settings]]:
    if settings.io == "float32" and any(info.dtype == "float32" for info in (*record.inputs, *record.outputs)):
        io = "int16" if settings.scheme == "a16w8" else "int8"
        yield f'io="{io}"', "firmware passes quantized values", user, settings.with_(io=io)
        if not settings.channels_last and _has_images(user):
            yield (
                f'io="{io}", io_layout="nhwc"',
                "firmware passes quantized values in NHWC layout",
                user,
                settings.with_(io=io, io_layout=NHWC),
            )
    if not settings.channels_last and _has_images(user):
        yield 'io_layout="nhwc"', "inputs and outputs have NHWC layout", user, settings.with_(io_layout=NHWC)
    yield "arena=1", "smallest arena", user, settings.with_(arena=1)
    if settings.arena != FAST:
        yield 'arena="fast"', "fastest schedule, with an arena of any size", user, settings.with_(arena=FAST)
    if settings.constants == FLASH and settings.memory_mode is None:
        yield 'constants="sram"', "firmware copies the weights once at startup", user, settings.with_(constants=SRAM)
    if settings.scheme == "int8" and not user.quantized:
        yield 'scheme="a8w4"', "less accurate; measure the accuracy", user, settings.with_(scheme="a8w4")
        yield 'scheme="int8-per-tensor"', "less accurate; measure the accuracy", user, settings.with_(scheme="int8-per-tensor")
    if (smaller := _shrunk(user)) is not None:
        yield f"input shape {_image_text(smaller)}", "train the model for this size", smaller, settings
    if user.quantized:
        return
    modules = user.submodules()
    for name in _costly(record, modules):
        conv = modules[name]
        assert isinstance(conv, nn.Conv2d)
        wide = conv.out_channels
        fewer = int(wide * _SHRUNK) // _STEP * _STEP
        if (narrow := narrow_convolution(user, user.prefix + name, fewer)) is not None:
            yield f"{fewer} instead of {wide} channels in {name}", "train the modified model", narrow, settings


def _costly(record: Record, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """Iterate over the convolutions with the most bytes at the RAM peak, the most time, or the most weights."""
    # If budgets are exceeded, only the exceeded budgets are considered.
    missed = {budget.name for budget in budgets(record) if budget.holds is False} or {"ram", "latency_ms", "flash"}
    ranked: list[list[str]] = []
    if "ram" in missed:
        ranked.append([tensor.module for tensor in _at_the_peak(record)])
    if "latency_ms" in missed:
        ranked.append([place for place, _, _ in _by_place(record.layers)])
    if "flash" in missed:
        ranked.append(sorted(modules, key=lambda name: -_weights(modules[name])))
    seen = set()
    for names in ranked:
        conv_name = next((name for name in names if isinstance(modules.get(name), nn.Conv2d)), None)
        if conv_name is not None and conv_name not in seen:
            seen.add(conv_name)
            yield conv_name


def _weights(module: nn.Module) -> int:
    return module.weight.numel() if isinstance(module, nn.Conv2d) else 0


def _as_given(user: UserModel, settings: Settings) -> UserModel:
    if not settings.channels_last:
        return user
    assert isinstance(user.module, NhwcIo)
    inputs, samples = (
        pytree.tree_map(from_nhwc, user.example_inputs),
        [pytree.tree_map(from_nhwc, sample) for sample in user.calibration],
    )
    return replace(user, module=user.module.module, example_inputs=inputs, calibration=samples)


def _has_images(user: UserModel) -> bool:
    return any(isinstance(x, Tensor) and x.dim() in (4, 5) for x in pytree.tree_leaves(user.example_inputs))


def _shrunk(user: UserModel) -> UserModel | None:
    """Return the model with images of 75% of the size, or None if the model is quantized or has no large image."""

    def image(x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() == 4 and x.dtype == torch.float32 and min(x.shape[2:]) >= _LEAST_IMAGE

    def smaller(x: Any) -> Any:
        if not image(x):
            return x
        size = [max(8, int(extent * _SHRUNK) // 8 * 8) for extent in x.shape[2:]]
        return nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)

    if user.quantized or not any(image(x) for x in pytree.tree_leaves(user.example_inputs)):
        return None
    inputs, samples = (
        pytree.tree_map(smaller, user.example_inputs),
        [pytree.tree_map(smaller, sample) for sample in user.calibration],
    )
    return replace(user, example_inputs=inputs, calibration=samples)


def _image_text(user: UserModel) -> str:
    return ", ".join("x".join(map(str, x.shape)) for x in pytree.tree_leaves(user.example_inputs) if isinstance(x, Tensor))


def _compare_builds(change: str, note: str, before: Record, after: Record) -> Suggestion:
    times = before.milliseconds, after.milliseconds
    return Suggestion(
        change,
        after.memory.ram_bytes - before.memory.ram_bytes,
        after.memory.flash_bytes - before.memory.flash_bytes,
        None if None in times else (times[1] or 0) - (times[0] or 0),
        fits(after) if budgets(before) else None,
        note,
    )


def _worth(suggestion: Suggestion, record: Record) -> bool:
    least = (
        (suggestion.ram_bytes, record.memory.ram_bytes),
        (suggestion.flash_bytes, record.memory.flash_bytes),
        (suggestion.milliseconds or 0, record.milliseconds or 0),
    )
    return any(change < -_WORTH * total for change, total in least)


def _widths(record: Record, compile_by: Compile) -> Iterator[Suggestion]:
    # Suggest rounding the output channels of convolutions down to a multiple of ``_BLOCK``.
    # Each of these convolutions is compiled separately.
    assert record.settings is not None
    wide = [x for x in record.layers if x.where == NPU and _is_wide(x)]
    modules = record.model.submodules() if record.model is not None else {}
    for layer in sorted(wide, key=lambda x: -(x.cycles or 0))[:_LAYERS]:
        conv = modules.get(layer.module)
        if not isinstance(conv, nn.Conv2d) or conv.groups != 1 or not layer.ifm_shapes or len(layer.ifm_shapes[0]) != 4:
            continue
        narrow = conv.out_channels // _BLOCK * _BLOCK
        n, h, w, c = layer.ifm_shapes[0]
        if c != conv.in_channels:
            continue  # the NPU layer does not have the shape of the convolution
        seen = []
        with stage(f"try {narrow} channels in {layer.module}"), mute_sample_warnings():
            for channels in (conv.out_channels, narrow):
                narrower = copy.deepcopy(conv)
                narrower.out_channels = channels
                narrower.weight = nn.Parameter(conv.weight[:channels].detach().clone())
                narrower.bias = None if conv.bias is None else nn.Parameter(conv.bias[:channels].detach().clone())
                user = UserModel(nn.Sequential(narrower).eval(), (torch.randn(n, c, h, w),))
                alone = replace(record.settings, modules={}, io="int8", io_layout=NHWC, ram=None, flash=None, latency_ms=None)
                seen.append(compile_by(user, replace(alone, min_sqnr_db=None)))
        suggestion = _compare_builds(
            f"{narrow} instead of {conv.out_channels} channels in {layer.module}",
            "shows the effect on this layer only; train the modified model",
            seen[0],
            seen[1],
        )
        suggestion = replace(suggestion, fits=None)
        if (suggestion.milliseconds or 0) < -_WORTH * (seen[0].milliseconds or 0):
            yield suggestion


def _is_wide(layer: Layer) -> bool:
    channels = layer.ofm_shape[-1] if layer.ofm_shape else 0
    return channels > _BLOCK and 0 < channels % _BLOCK <= _ABOVE


def _in_the_way(record: Record) -> Iterator[str]:
    for budget in budgets(record):
        if budget.holds is not False or budget.found is None:
            continue
        over = f"{kib(int(budget.found))}, {kib(int(budget.found - budget.limit))} more than the limit."
        if budget.name == "ram":
            owners = _at_the_peak(record)
            largest = ", ".join(f"{t.name}{f' in {t.module}' if t.module else ''} ({kib(t.size_bytes)})" for t in owners[:3])
            peak = f" Largest tensors at the peak of region {owners[0].region}: {largest}." if largest else ""
            yield f"RAM: {over} Largest components: {_largest(record, 'ram_bytes')}.{peak}"
        elif budget.name == "flash":
            yield f"Flash: {over} Largest components: {_largest(record, 'flash_bytes')}."
        elif budget.name.startswith(MEMORY):
            yield f"Board {budget.name}: {over}"
        elif budget.name == "latency_ms":
            yield f"Time: {budget.found:.3f} ms, limit {budget.limit:g} ms. Slowest modules: {_slowest(record.layers)}."
        else:
            yield f"Accuracy: {budget.found:.4g} dB, minimum {budget.limit:g} dB. `ethorch tune` lists the most sensitive modules."


def _largest(record: Record, size: str) -> str:
    parts = sorted(record.memory.components, key=lambda part: -getattr(part, size))[:2]
    return ", ".join(f"{part.name} ({kib(getattr(part, size))})" for part in parts)


def _at_the_peak(record: Record) -> Sequence[TensorPlace]:
    memory = record.memory
    region = max(memory.regions, key=lambda name: memory.regions[name], default=None)
    regions = {tensor.region for tensor in memory.tensors}
    return memory.peak_owners(region) if region in regions and region is not None else ()


def _slowest(layers: Sequence[Layer]) -> str:
    return ", ".join(f"{place} ({share:.0%}, bound by {bound})" for place, share, bound in _by_place(layers)[:3])


def _by_place(layers: Sequence[Layer]) -> list[tuple[str, float, str]]:
    by_place: dict[str, list[Layer]] = {}
    for layer in layers:
        by_place.setdefault(layer.module or layer.name, []).append(layer)
    rows = []
    for place, mine in by_place.items():
        most = max(mine, key=lambda layer: layer.cycles or 0)
        rows.append((place, sum(layer.share or 0 for layer in mine), most.bound or most.where))
    return sorted(rows, key=lambda row: -row[1])


def _format_signed(size: int) -> str:
    return "" if not size else f"{'+' if size > 0 else '-'}{kib(abs(size))}"
