"""One call from a model to a program: quantize, compile for the NPU, and keep what became of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ethorch.models.load import (
    KeywordInputs,
    UserMethods,
    UserModel,
    in_eval_mode,
    is_quantized,
    load_model,
    mention_training,
    of_exported,
    user_methods,
)
from ethorch.models.samples import samples
from ethorch.program.budget_search import search_budgets
from ethorch.program.build import FORWARD, build_program, is_single, single_method
from ethorch.program.build import quantize as quantize_methods
from ethorch.program.padding import paddings_of
from ethorch.program.program import Program
from ethorch.program.record import Record
from ethorch.program.saving import check_file
from ethorch.program.shapes import elements, methods_of, of_shapes, samples_like
from ethorch.program.verification import verified
from ethorch.quantization.config import QuantizationConfig
from ethorch.support.errors import EthorchError, SpecError
from ethorch.support.exclusive import exclusive
from ethorch.support.metrics import Metric
from ethorch.support.progress import stage
from ethorch.support.progress_display import shown
from ethorch.targets.settings import FLOAT, Settings, Shapes, latency_of, shapes_from
from ethorch.vela.arena import arena_bytes

logger = logging.getLogger(__name__)

_SAMPLE = "calibration sample"

Model = nn.Module | ExportedProgram | UserModel | str
#: Models of several methods that share buffers and weights, by name.
Methods = Mapping[str, nn.Module | UserModel] | UserMethods


def compile(
    model: Model | Methods,
    example_inputs: Any = None,
    target: str | None = None,
    *,
    calibration: Any = None,
    scheme: str | None = None,
    io: str | None = None,
    nhwc_io: bool | None = None,
    io_layout: str | None = None,
    partition: str | None = None,
    modules: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
    system_config: str | None = None,
    memory_mode: str | None = None,
    config_ini: str | None = None,
    vela_flags: Sequence[str] | None = None,
    arena: str | int | None = None,
    constants: str | int | None = None,
    ram: int | str | None = None,
    flash: int | str | None = None,
    latency_ms: float | None = None,
    fps: float | None = None,
    min_sqnr_db: float | None = None,
    min_metric: float | None = None,
    metric: Metric | None = None,
    board: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    config: QuantizationConfig | None = None,
    transform: Callable[[Any], Any] | None = None,
    calibration_limit: int | None = None,
    dump: str | None = None,
    etrecord: str | os.PathLike[str] | None = None,
    share_weights: bool = True,
    verify: bool | None = None,
    shapes: Sequence[Any] | None = None,
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
            folder (see ``ethorch.models.samples``). The ranges of all activations come from them. None: the example inputs alone.
            Of several methods: sessions, each a list of calls in order, ``("decode", inputs)``; a session begins with the buffers'
            initial contents.
        scheme: ``int8`` (default), ``a16w8``, ``a8w4`` or ``int8-per-tensor``.
        io: type of the program's inputs and outputs that are float in the model: ``float32`` (default), ``int8``, ``uint8`` or
            ``int16``. ``Program.inputs`` and ``outputs`` have their scales.
        nhwc_io: inputs and outputs of rank 4 and 5 have their channels last, as cameras deliver them. Example inputs and
            calibration stay as the model has them.
        io_layout: ``nhwc`` is ``nhwc_io``; ``nchw`` (default) leaves axes as the model has them; ``auto`` compiles both and takes
            channels last where they save time, which costs a second compilation. ``Program.inputs`` and ``outputs`` have the
            shapes, and ``Program.settings.io_layout`` the answer; ``ethorch.models.layouts.nhwc_inputs`` turns inputs for such a
            program.
        partition: ``cost`` leaves products of two int8 activations (attention) to the CPU where ExecuTorch's int8 kernels are
            estimated to be faster, as on U55; ``cpu-matmul`` does so in any case; ``npu`` (default) does not.
            ``Program.explain`` says it.
        modules: submodule name -> a scheme of its own, e.g. ``{"head": "a16w8"}``; ``"float"`` leaves it to the CPU.
        leave_out: names of submodules that stay in float on the CPU: the short form of ``modules``.
        system_config, memory_mode, config_ini, vela_flags: as of ``EthosUCompileSpec``.
        arena, constants: as of ``Settings``: how much memory the NPU works in, and where its weights lie.
        ram, flash: bytes that the whole application may take, or texts such as ``"256K"``.
        latency_ms: milliseconds that one inference may take by the estimate.
        fps: the same as inferences a second.
        min_sqnr_db: least SQNR of the program against the float model, measured on the first calibration samples.
        min_metric, metric: least figure of a metric of yours: a function of two lists, the model's outputs and those of the
            simulated NPU for each calibration sample in order, which returns a number; larger is better. Where one of
            these limits does not hold, other arenas, weights in SRAM and 16 bits for single modules are tried
            (``ethorch.program.budget_search``); ``Program.fits`` says whether all of them hold, ``Program.suggestions`` what would
            help.
        board: a board of ``ethorch boards``, such as ``alif-e8-hp``, or a TOML file of yours: its clocks and bandwidths go to Vela,
            its NPU is the target unless you name one, and its RAM and flash are the limits unless you set some.
        settings: all of these as one value; the arguments above change it.
        config: a QuantizationConfig instead of the scheme's.
        transform: called on each calibration item first.
        calibration_limit: take this many samples at most.
        dump: a folder for TOSA graphs and payloads.
        etrecord: a file for ExecuTorch's ETRecord, by which its Inspector maps events to operators. It holds graphs that only
            ExecuTorch's own lowering makes, so the compilation takes that way, which is some times slower.
        share_weights: of several methods, constants that their delegates have in common are stored once, as named data of the
            program. Firmware needs a delegate that reads these: ethorch's, or that of ExecuTorch from 1.5 on. False stores them for
            each method.
        shapes: A tuple of input shapes for each method, such as ``[((1, 64, 32), (1, 64)), ((1, 128, 32), (1, 128))]``, or
            ``["1x64x32,1x64", "1x128x32,1x128"]``. The methods share weights and quantization parameters; calling the program calls
            the smallest method that fits (``ethorch.targets.selection``). Default: one method of the example inputs' shapes.
        verify: Run the finished program in the simulator on a calibration sample, and compare what each delegate returns with the
            TOSA reference, byte by byte (default). ``Program.verification`` holds the result.
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
        scheme=scheme,
        io=io,
        nhwc_io=nhwc_io,
        io_layout=io_layout,
        partition=partition,
        modules={**(modules or {}), **dict.fromkeys(leave_out, FLOAT)} or None,
        system_config=system_config,
        memory_mode=memory_mode,
        config_ini=config_ini,
        vela_flags=vela_flags,
        arena=arena,
        constants=constants,
        ram=ram,
        flash=flash,
        latency_ms=latency_of(latency_ms, fps),
        min_sqnr_db=min_sqnr_db,
        min_metric=min_metric,
        board=None if board is None else os.fspath(board),
        verify=verify,
        shapes=None if shapes is None else shapes_from(shapes),
    )
    if (metric is None) != (chosen.min_metric is None):
        raise SpecError("metric is a function and min_metric the least that it may return: give both or neither.")
    with exclusive(), shown(progress):
        methods = load_methods(model, example_inputs, calibration, chosen, transform=transform, limit=calibration_limit)
        if not is_single(methods) and (metric is not None or etrecord is not None):
            raise SpecError("metric and etrecord are of one method: compile each alone for that, or give one tuple of shapes.")
        with ExitStack() as modes:
            for user in methods.models.values():
                mention_training(user.module)
                modes.enter_context(in_eval_mode(user.module))
            record = _build_within_budgets(methods, chosen, config, metric, dump, etrecord, share_weights)
        return Program(verified(record) if chosen.verify else record)


def load_methods(
    model: Model | Methods,
    example_inputs: Any,
    calibration: Any,
    settings: Settings,
    *,
    transform: Callable[[Any], Any] | None = None,
    limit: int | None = None,
) -> UserMethods:
    """Return whatever names a model, or several, as methods: modules with checked inputs and samples.

    Args:
        settings: Of several ``shapes``, each becomes a method.
        transform, limit: As ``transform`` and ``calibration_limit`` of ``compile``.
    """
    if isinstance(model, str):
        model = load_model(model)
    if isinstance(model, (Mapping, UserMethods)):
        if settings.shapes:
            raise SpecError("shapes is of one model; several methods have the shapes of their example inputs.")
        return _user_methods(model, example_inputs, calibration)
    user = user_model(model, example_inputs, calibration, transform=transform, limit=limit, shapes=settings.shapes)
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
    *,
    calibration: Any = None,
    scheme: str | None = None,
    target: str | None = None,
    io: str | None = None,
    modules: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
    settings: Settings | None = None,
    config: QuantizationConfig | None = None,
    transform: Callable[[Any], Any] | None = None,
    calibration_limit: int | None = None,
    progress: bool | None = None,
) -> GraphModule:
    """The model with calibrated quantize and dequantize operators: what ``convert_pt2e`` returns, ready for ``compile``.

    It computes in float what the NPU will compute in integers, so its accuracy can be measured with PyTorch alone::

        quantized = ethorch.quantize(model, images[0], calibration=images)
        print(ethorch.sqnr_db(model(images[0]), quantized(images[0])))

    Arguments are those of ``compile``, and so are the errors. With ``io`` it still takes and gives floats, rounded to that type.
    """
    chosen = (settings or Settings()).with_(
        target=target, scheme=scheme, io=io, modules={**(modules or {}), **dict.fromkeys(leave_out, FLOAT)} or None
    )
    with exclusive(), shown(progress):
        user = user_model(model, example_inputs, calibration, transform=transform, limit=calibration_limit)
        mention_training(user.module)
        with in_eval_mode(user.module):
            return quantize_methods(single_method(user), chosen, config)[FORWARD]


def user_model(
    model: Model | UserMethods,
    example_inputs: Any = None,
    calibration: Any = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    limit: int | None = None,
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
    if isinstance(model, UserModel):
        user = model if example_inputs is None else replace(model, example_inputs=example_inputs, calibration=())
    elif not isinstance(model, nn.Module):
        raise EthorchError(
            f"the model is {type(model).__name__}; it has to be an nn.Module, an ExportedProgram or the name of one."
        )
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
        for sample in samples(
            calibration,
            examples[0],
            others=examples[1:],
            keywords=names,
            open_dims=None if shapes else user.dynamic_shapes,
            transform=transform,
            limit=limit,
            what=_SAMPLE,
        ):
            taken.append(sample.inputs)
            step()
    if not taken:
        raise EthorchError("calibration holds no sample; give some tens of representative inputs, or None for the example inputs.")
    return replace(user, calibration=taken)


def _build_within_budgets(
    methods: UserMethods,
    settings: Settings,
    config: QuantizationConfig | None,
    metric: Metric | None,
    dump: str | None,
    etrecord: str | os.PathLike[str] | None,
    share_weights: bool,
) -> Record:
    """Build by the settings; of one method, search for others if a budget does not hold."""
    if not is_single(methods):
        return build_program(methods, settings, None, config, None, dump, None, share_weights)
    if etrecord is not None:
        check_file(Path(etrecord))
    quantized: dict[bool, dict[str, GraphModule]] = {}  # what was quantized last, by layout

    def make(chosen: Settings, only_compiler: bool) -> Record:
        if not only_compiler:
            quantized.clear()
        if chosen.nhwc_io not in quantized:
            quantized[chosen.nhwc_io] = quantize_methods(methods, chosen, config)
        return build_program(methods, chosen, quantized[chosen.nhwc_io], config, metric)

    (user,) = methods.models.values()
    record = search_budgets(settings, make, user)
    _check_arena(record, settings)
    if dump is not None or etrecord is not None:
        assert record.settings is not None and isinstance(record.quantized, GraphModule)
        tried = record.tried
        record = build_program(methods, record.settings, {FORWARD: record.quantized}, config, metric, dump, etrecord)
        record.tried = tried
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
