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
from ethorch.quantization.config import QuantizationConfig
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.exclusive import exclusive
from ethorch.support.keywords import suggest_keywords
from ethorch.support.progress import stage
from ethorch.support.progress_display import display_progress
from ethorch.targets.settings import Settings, Shapes, shapes_from
from ethorch.vela.arena import arena_bytes

logger = logging.getLogger(__name__)

_SAMPLE = "calibration sample"
_OTHER_RANGE = 50  #: Minimum ratio of maxima for a warning about inputs with different scales, such as 0..255 and 0..1.

Model = nn.Module | ExportedProgram | UserModel | str
#: Models by method name. Models are allowed to share buffers and weights.
Methods = Mapping[str, nn.Module | UserModel] | UserMethods


@suggest_keywords
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
    """Quantize a model and compile it for an Ethos-U NPU.

    The model is not changed. Operators that the NPU does not support run on the CPU. ``Program.explain`` lists the reasons and
    remedies::

        program = ethorch.compile(model, torch.rand(1, 3, 32, 32), "ethos-u55-128", calibration=images)
        program.save("model.pte")
        print(program)

    Args:
        model: An ``nn.Module``, a module from ``convert_pt2e``, an ``ExportedProgram``, or a model name: ``FILE.py:NAME``,
            ``package.module:NAME``, ``FILE.pt2``, ``torchvision:NAME``, ``timm:NAME``, ``hf:FOLDER`` or ``executorch:NAME``. A dict
            of modules compiles to several methods, such as ``prefill`` and ``decode``. Methods share parameters and buffers that
            are the same objects.
        example_inputs: A tensor, a tuple of inputs, or a dict of keyword inputs. Their shapes become the input shapes. For
            several methods, pass a dict of inputs keyed by method name. A named model can define its own example inputs.
        target: Name of the NPU. See ``ethorch targets``. Default: the first NPU of the board, or ``ethos-u55-128``.
        calibration: A few dozen representative inputs, which determine the ranges of activations. Accepted types: an iterable
            of samples, a Dataset or DataLoader, a batch, a file or folder, or the result of ``ethorch.samples``. For several
            methods, pass sessions: ordered lists of calls such as ``("decode", inputs)``. Each session starts with the initial
            state. Default: the example inputs.
        shapes: Input shapes of each method, such as ``[((1, 64, 32), (1, 64)), ((1, 128, 32), (1, 128))]`` or
            ``["1x64x32,1x64", "1x128x32,1x128"]``. The methods share weights and quantization parameters. Each call uses the
            smallest method that accepts the inputs (``ethorch.targets.selection``). Default: one method with the
            example inputs' shapes.
        scheme: ``int8`` (default), ``a16w8``, ``a8w4``, ``int8-per-tensor``, or a QuantizationConfig.
        modules: Schemes of submodules, e.g. ``{"head": "a16w8"}``, or of operators by FX name, e.g. ``{"softmax": "a16w8"}``.
            ``"float"`` keeps the submodule or operator in float on the CPU.
        io: Type of the program's inputs and outputs that are float in the model: ``float32`` (default), ``int8``, ``uint8`` or
            ``int16``. ``Program.inputs`` and ``Program.outputs`` contain the scales.
        board: Name of a board listed by ``ethorch boards``, such as ``alif-e8-hp``, or a TOML file. The board defines clocks and
            bandwidths, and the defaults of ``target``, ``ram`` and ``flash``.
        ram, flash: Maximum memory of the whole application in bytes, or a string such as ``"256K"``.
        latency_ms: Maximum estimated time of one inference in milliseconds.
        min_sqnr_db: Minimum SQNR in dB relative to the float model, measured on the first calibration samples. If a program with
            one method misses a budget, ``compile`` tries other arenas, weights in SRAM and 16-bit modules
            (``ethorch.program.budget_search``).
        settings: A ``Settings`` object. The other parameters override its values.
        progress: Whether to display progress. Default: True on a terminal or in a notebook.

    Raises:
        SpecError: A target, scheme or type is unknown, or a size or flag is invalid.
        UserCodeError: The model does not run with its inputs, or cannot be exported.
        QuantizationError: The model cannot be quantized as requested.
        VerificationError: The outputs of a delegate differ from those of its TOSA graph, because of a bug in Vela or ethorch.
        EthorchError: Samples do not match the example inputs, a board file is invalid, or ExecuTorch cannot write the program.
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
    with exclusive(), display_progress(progress):
        methods = load_methods(model, example_inputs, calibration, chosen)
        with ExitStack() as modes:
            for user in methods.models.values():
                mention_training(user.module)
                modes.enter_context(in_eval_mode(user.module))
            record = _build_within_budgets(methods, chosen)
        if chosen.verify:
            from ethorch.program.verification import verify_program  # saves 0.05 s without verification

            record = verify_program(record)
        return Program(record)


def load_methods(model: Model | Methods, example_inputs: Any, calibration: Any, settings: Settings) -> UserMethods:
    """Check the inputs and samples of one or more models, and return the models as methods.

    If ``settings.shapes`` has several entries, each entry becomes a method.
    """
    if isinstance(model, str):
        model = load_model(model)
    if isinstance(model, Mapping) and model and all(isinstance(value, torch.Tensor) for value in model.values()):
        check_module(model)
    if isinstance(model, (Mapping, UserMethods)):
        if settings.shapes:
            raise SpecError(
                "shapes requires a single model, got several methods. Define the shapes with the example inputs of each method."
            )
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


@suggest_keywords
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
    """Quantize and calibrate a model, and return a graph with quantize and dequantize operators, as ``convert_pt2e`` does.

    The graph computes in float with the NPU's rounding, so that its accuracy can be measured in PyTorch::

        quantized = ethorch.quantize(model, images[0], calibration=images)
        print(ethorch.sqnr_db(model(images[0]), quantized(images[0])))

    See ``compile`` for the arguments and errors. ``compile`` accepts the returned graph. If ``settings.io`` is an integer type,
    quantize and dequantize operators of this type follow float inputs and precede float outputs.
    """
    chosen = (settings or Settings()).with_(target=target, scheme=scheme)
    with exclusive(), display_progress(progress):
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
    """Check the inputs and calibration samples of one model, and return them with the model.

    Raises:
        EthorchError: Example inputs are missing, or a sample does not match the example inputs.
    """
    if isinstance(model, str):
        model = load_model(model)
    if isinstance(model, UserMethods):
        raise EthorchError(f"expected one model, got the methods {', '.join(map(repr, model.models))}.")
    if isinstance(model, ExportedProgram):
        model, example_inputs = of_exported(model, example_inputs), None
    if not isinstance(model, UserModel):
        check_module(model)
    if isinstance(model, UserModel):
        user = model if example_inputs is None else replace(model, example_inputs=example_inputs, calibration=())
    elif example_inputs is None:
        raise EthorchError(
            "example_inputs: expected a tensor or a tuple of inputs, got None. Pass inputs with the shapes to compile."
        )
    else:
        user = UserModel(model, example_inputs, quantized=is_quantized(model))
    examples = samples_like(user, shapes) or [user.example_inputs]
    if len(shapes) == 1:
        user = of_shapes(user, shapes[0])
    if calibration is None:
        return user
    with stage("read samples") as step:
        checked = []
        for sample in read_samples(
            calibration,
            examples[0],
            others=examples[1:],
            keywords=user.keywords,
            open_dims=None if shapes else user.dynamic_shapes,
            kind=_SAMPLE,
        ):
            checked.append(sample.inputs)
            step()
    if not checked:
        raise EthorchError(
            "calibration: expected at least one sample, got an empty iterable. Pass a few dozen representative inputs, or omit the "
            "argument to use the example inputs."
        )
    _compare_ranges(user.example_inputs, checked)
    return replace(user, calibration=checked)


def _compare_ranges(example_inputs: Sequence[Any], samples: Sequence[Sequence[Any]]) -> None:
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
                    "input %d: the largest magnitude is %.4g in the calibration samples, but %.4g in the example input. Scale both "
                    "like the inputs of the deployed program, e.g. images to 0..1. [calibration.other_range]",
                    number, largest_sample, largest,
                )  # fmt: skip


def _build_within_budgets(methods: UserMethods, settings: Settings) -> Record:
    if not is_single(methods):
        return build_program(methods, settings)
    quantized: dict[bool, dict[str, GraphModule]] = {}  # last quantized models, for each layout (True: NHWC)

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
    assert record.build is not None and record.settings is not None
    arena_size = max((arena_bytes(delegate.compiled) for delegate in record.build.delegates), default=0)
    if isinstance(settings.arena, int) and settings.arena == record.settings.arena and arena_size > settings.arena:
        logger.warning(
            "the NPU's arena requires %s bytes, %s more than settings.arena permits. No smaller schedule was found. Reduce the "
            "size of the tensors listed by Program.memory.peak_owners. [arena.exceeded]",
            f"{arena_size:,}",
            f"{arena_size - settings.arena:,}",
        )
