"""One call from a model to a program: quantize, compile for the NPU, and keep what became of it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ethorch.models.load import (
    KeywordInputs,
    UserMethods,
    UserModel,
    check_module,
    in_eval_mode,
    is_quantized,
    load_model,
    mention_training,
    of_exported,
    user_methods,
)
from ethorch.models.samples import read_samples
from ethorch.program.budget_search import search_budgets
from ethorch.program.build import FORWARD, build_program, is_single, single_method
from ethorch.program.build import quantize as quantize_methods
from ethorch.program.padding import paddings_of
from ethorch.program.program import Program
from ethorch.program.record import Record
from ethorch.program.shapes import elements, methods_of, of_shapes, samples_like
from ethorch.program.verification import verified
from ethorch.quantization.config import QuantizationConfig
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.exclusive import exclusive
from ethorch.support.progress import stage
from ethorch.support.progress_display import shown
from ethorch.targets.settings import Settings, Shapes, shapes_from
from ethorch.vela.arena import arena_bytes

logger = logging.getLogger(__name__)

_SAMPLE = "calibration sample"
_OTHER_RANGE = 50  #: ratio of the largest values from which inputs are assumed to be scaled differently, as 0..255 and 0..1

Model = nn.Module | ExportedProgram | UserModel | str
#: Models of several methods that share buffers and weights, by name.
Methods = Mapping[str, nn.Module | UserModel] | UserMethods


def compile(
    model: Model | Methods,
    example_inputs: Any = None,
    target: str | None = None,
    *,
    calibration: Any = None,
    shapes: Sequence[Any] | None = None,
    scheme: str | QuantizationConfig | None = None,
    modules: Mapping[str, str] | None = None,
    io: str | None = None,
    board: str | os.PathLike[str] | None = None,
    ram: int | str | None = None,
    flash: int | str | None = None,
    latency_ms: float | None = None,
    min_sqnr_db: float | None = None,
    settings: Settings | None = None,
    progress: bool | None = None,
) -> Program:
    """A model as a program for an Ethos-U NPU: quantized, compiled by Vela, in an ExecuTorch ``.pte``.

    The model itself is not changed. What the NPU cannot run stays on the CPU; ``Program.explain`` says why, and what to do::

        program = ethorch.compile(model, torch.rand(1, 3, 32, 32), "ethos-u55-128", calibration=images)
        program.save("model.pte")
        print(program)

    Args:
        model: an ``nn.Module``; one that ``convert_pt2e`` returned is taken as it is; an ``ExportedProgram``; or the name of
            one, as on the command line: ``FILE.py:NAME``, ``package.module:NAME``, ``FILE.pt2``, ``torchvision:NAME``,
            ``timm:NAME``, ``hf:FOLDER``, ``executorch:NAME``. Or several modules by the names that the program's methods get, such
            as ``prefill`` and ``decode``: what they share are the same parameters and buffers.
        example_inputs: a tensor, a tuple of inputs, or a dict of keyword inputs; they fix the shapes. A model by name brings its
            own. Of several methods: their inputs by name.
        target: name of the NPU, see ``ethorch targets``; the board's first by default, or ``ethos-u55-128``.
        calibration: representative inputs, some tens: any iterable of samples, a Dataset or DataLoader, a batch, a file or a
            folder, or ``ethorch.samples`` of these. The ranges of all activations come from them. None: the example inputs alone.
            Of several methods: sessions, each a list of calls in order, ``("decode", inputs)``; a session begins with the buffers'
            initial contents.
        shapes: A tuple of input shapes for each method, such as ``[((1, 64, 32), (1, 64)), ((1, 128, 32), (1, 128))]``, or
            ``["1x64x32,1x64", "1x128x32,1x128"]``. The methods share weights and quantization parameters; calling the program calls
            the smallest method that fits (``ethorch.targets.selection``). Default: one method of the example inputs' shapes.
        scheme: ``int8`` (default), ``a16w8``, ``a8w4`` or ``int8-per-tensor``; or a QuantizationConfig.
        modules: submodule name -> a scheme of its own, e.g. ``{"head": "a16w8"}``; ``"float"`` leaves it to the CPU.
        io: type of the program's inputs and outputs that are float in the model: ``float32`` (default), ``int8``, ``uint8`` or
            ``int16``. ``Program.inputs`` and ``outputs`` have their scales.
        board: a board of ``ethorch boards``, such as ``alif-e8-hp``, or a TOML file of yours: its clocks and bandwidths go to Vela,
            its NPU is the target unless you name one, and its RAM and flash are the limits unless you set some.
        ram, flash: bytes that the whole application may take, or texts such as ``"256K"``.
        latency_ms: milliseconds that one inference may take by the estimate.
        min_sqnr_db: least SQNR of the program against the float model, measured on the first calibration samples. Where one of
            these budgets does not hold, other arenas, weights in SRAM and 16 bits for single modules are tried
            (``ethorch.program.budget_search``).
        settings: Every choice as one value, these and those that have no parameter; the parameters change it.
        progress: draw progress on stderr; None: on a terminal.

    Raises:
        SpecError: a target, scheme, type, size or flag is unknown.
        UserCodeError: the model does not run with its inputs, or cannot be exported.
        QuantizationError: it cannot be quantized as asked.
        VerificationError: A delegate computes something else than its TOSA graph: a bug of Vela or of ethorch.
        EthorchError: samples do not fit, or ExecuTorch cannot make a program of it.
    """
    chosen = (settings or Settings()).with_(
        target=target,
        shapes=None if shapes is None else shapes_from(shapes),
        scheme=scheme,
        modules=modules,
        io=io,
        board=None if board is None else os.fspath(board),
        ram=ram,
        flash=flash,
        latency_ms=latency_ms,
        min_sqnr_db=min_sqnr_db,
    )
    with exclusive(), shown(progress):
        methods = load_methods(model, example_inputs, calibration, chosen)
        with ExitStack() as modes:
            for user in methods.models.values():
                mention_training(user.module)
                modes.enter_context(in_eval_mode(user.module))
            record = _build_within_budgets(methods, chosen)
        return Program(verified(record) if chosen.verify else record)


def load_methods(model: Model | Methods, example_inputs: Any, calibration: Any, settings: Settings) -> UserMethods:
    """Return whatever names a model, or several, as methods: modules with checked inputs and samples.

    Args:
        settings: Of several ``shapes``, each becomes a method.
    """
    if isinstance(model, str):
        model = load_model(model)
    if isinstance(model, Mapping) and model and all(isinstance(value, torch.Tensor) for value in model.values()):
        check_module(model)
    if isinstance(model, (Mapping, UserMethods)):
        if settings.shapes:
            raise SpecError("shapes is of one model; several methods have the shapes of their example inputs.")
        return _user_methods(model, example_inputs, calibration)
    user = user_model(model, example_inputs, calibration, shapes=settings.shapes)
    if len(settings.shapes) < 2:
        return single_method(user)
    paddings = paddings_of(user, sorted(settings.shapes, key=elements))
    return replace(methods_of(user, settings.shapes), paddings=paddings)


def _user_methods(model: Methods, example_inputs: Any, calibration: Any) -> UserMethods:
    if isinstance(model, UserMethods):
        if example_inputs is None and calibration is None:
            return model
        return user_methods(model.models, example_inputs, model.sessions if calibration is None else calibration)
    return user_methods(model, example_inputs, calibration)


def quantize(
    model: Model,
    example_inputs: Any = None,
    target: str | None = None,
    *,
    calibration: Any = None,
    scheme: str | QuantizationConfig | None = None,
    settings: Settings | None = None,
    progress: bool | None = None,
) -> GraphModule:
    """The model with calibrated quantize and dequantize operators: what ``convert_pt2e`` returns, ready for ``compile``.

    It computes in float what the NPU will compute in integers, so its accuracy can be measured with PyTorch alone::

        quantized = ethorch.quantize(model, images[0], calibration=images)
        print(ethorch.sqnr_db(model(images[0]), quantized(images[0])))

    Arguments are those of ``compile``, and so are the errors. With ``settings.io`` it still takes and gives floats, rounded to that
    type.
    """
    chosen = (settings or Settings()).with_(target=target, scheme=scheme)
    with exclusive(), shown(progress):
        user = user_model(model, example_inputs, calibration)
        mention_training(user.module)
        with in_eval_mode(user.module):
            return quantize_methods(single_method(user), chosen)[FORWARD]


def user_model(
    model: Model | UserMethods,
    example_inputs: Any = None,
    calibration: Any = None,
    *,
    shapes: Sequence[Shapes] = (),
) -> UserModel:
    """Whatever names a model, with its inputs and calibration samples checked.

    Raises:
        EthorchError: there are no example inputs, or a sample does not fit them.
    """
    if isinstance(model, str):
        model = load_model(model)
    if isinstance(model, UserMethods):
        raise EthorchError(f"the model has several methods, {', '.join(map(repr, model.models))}; here one model is wanted.")
    if isinstance(model, ExportedProgram):
        model, example_inputs = of_exported(model, example_inputs), None
    if not isinstance(model, UserModel):
        check_module(model)
    if isinstance(model, UserModel):
        user = model if example_inputs is None else replace(model, example_inputs=example_inputs, calibration=())
    elif example_inputs is None:
        raise EthorchError("example_inputs is missing: give a tensor, or a tuple of inputs; they fix the shapes.")
    else:
        user = UserModel(model, example_inputs, quantized=is_quantized(model))
    examples = samples_like(user, shapes) or [user.example_inputs]
    if len(shapes) == 1:
        user = of_shapes(user, shapes[0])
    if calibration is None:
        return user
    names = user.module.names if isinstance(user.module, KeywordInputs) else ()
    with stage("read samples") as step:
        taken = []
        for sample in read_samples(
            calibration,
            examples[0],
            others=examples[1:],
            keywords=names,
            open_dims=None if shapes else user.dynamic_shapes,
            what=_SAMPLE,
        ):
            taken.append(sample.inputs)
            step()
    if not taken:
        raise EthorchError("calibration holds no sample; give some tens of representative inputs, or None for the example inputs.")
    _compare_ranges(user.example_inputs, taken)
    return replace(user, calibration=taken)


def _compare_ranges(example_inputs: Sequence[Any], samples: Sequence[Sequence[Any]]) -> None:
    """Warn if the samples of a float input are ``_OTHER_RANGE`` times as large, or as small, as the example input."""
    for number, example in enumerate(example_inputs):
        if not isinstance(example, torch.Tensor) or not example.is_floating_point() or not example.numel():
            continue
        largest = float(example.abs().max())
        tensors = [sample[number] for sample in samples if isinstance(sample[number], torch.Tensor) and sample[number].numel()]
        largest_sample = max((float(tensor.abs().max()) for tensor in tensors), default=0.0)
        if 0 < largest < math.inf and 0 < largest_sample < math.inf:
            ratio = largest_sample / largest
            if not 1 / _OTHER_RANGE < ratio < _OTHER_RANGE:
                logger.warning(
                    "input %d: the largest calibration value is %.4g and that of the example input %.4g. Scale both as the "
                    "deployed inputs, for example images to 0..1. [calibration.other_range]",
                    number, largest_sample, largest,
                )  # fmt: skip


def _build_within_budgets(methods: UserMethods, settings: Settings) -> Record:
    """Build by the settings; of one method, search for others if a budget does not hold."""
    if not is_single(methods):
        return build_program(methods, settings)
    quantized: dict[bool, dict[str, GraphModule]] = {}  # what was quantized last, by layout

    def make(chosen: Settings, only_compiler: bool) -> Record:
        if not only_compiler:
            quantized.clear()
        if chosen.channels_last not in quantized:
            quantized[chosen.channels_last] = quantize_methods(methods, chosen)
        return build_program(methods, chosen, quantized[chosen.channels_last])

    (user,) = methods.models.values()
    record = search_budgets(settings, make, user)
    _check_arena(record, settings)
    return record


def _check_arena(record: Record, settings: Settings) -> None:
    """Warn where the limit for the arena that the user gave does not hold."""
    assert record.build is not None and record.settings is not None
    found = max((arena_bytes(delegate.compiled) for delegate in record.build.delegates), default=0)
    if isinstance(settings.arena, int) and settings.arena == record.settings.arena and found > settings.arena:
        logger.warning(
            "the NPU's arena takes %s bytes, %s more than arena allows: no smaller one was found, nor with parts in bands of rows. "
            "Program.memory.peak_owners names the tensors to make smaller. [arena.exceeded]",
            f"{found:,}",
            f"{found - settings.arena:,}",
        )
