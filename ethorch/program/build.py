"""Quantize and lower a model with fixed settings, without a budget search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torch.fx import GraphModule

from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.formats import pte
from ethorch.formats.boundary import as_codes
from ethorch.formats.payload import BACKEND_ID, WEIGHTS, external_key
from ethorch.formats.pte_merge import merge
from ethorch.formats.pte_types import Delegate
from ethorch.formats.pte_types import Program as File
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.states import narrow_counters
from ethorch.models.layouts import nhwc_inputs, with_nhwc_io
from ethorch.models.load import UserMethods, UserModel, in_eval_mode
from ethorch.program.record import Record
from ethorch.program.shapes import with_selection
from ethorch.quantization.calibrate import list_modules, quantize_methods
from ethorch.quantization.integer_io import boundary_codes, with_constants, with_integer_io
from ethorch.quantization.passes.state_buffers import state_buffers
from ethorch.quantization.schemes import config_for, find_submodules, quantizer_for
from ethorch.quantization.shared_buffers import unify_buffer_names
from ethorch.support.errors import EthorchError, SpecError, unknown_name
from ethorch.support.exclusive import exclusive
from ethorch.targets.settings import AUTO_LAYOUT, COST, CPU_MATMUL, Settings
from ethorch.vela.shared_constants import share_constants

#: Name of the method if a program has only one.
FORWARD = "forward"


def single_method(user: UserModel) -> UserMethods:
    """Return a ``UserMethods`` that contains the model as its only method."""
    return UserMethods({FORWARD: user})


def is_single(methods: UserMethods) -> bool:
    """Return True if ``forward`` is the only method."""
    return set(methods.models) == {FORWARD}


def quantize(methods: UserMethods, settings: Settings) -> dict[str, GraphModule]:
    """Return each method's fake-quantized graph, with inputs and outputs in the layout of the settings.

    Raises:
        EthorchError: Some models are quantized, but not all. See also ``ethorch.compile``.
    """
    if not any(user.quantized for user in methods.models.values()):
        check_modules(methods, settings)
    methods = _in_layout(methods, settings)
    quantized_methods = {}
    for name, user in methods.models.items():
        if user.quantized:
            if not isinstance(user.module, GraphModule):
                kind = type(user.module).__name__
                raise EthorchError(f"quantized model: expected a GraphModule from convert_pt2e, got {kind}.")
            quantized_methods[name] = user.module
    if quantized_methods and len(quantized_methods) < len(methods.models):
        missing = ", ".join(repr(name) for name in methods.models if name not in quantized_methods)
        raise EthorchError(
            f"expected either quantized or float models for all methods, got float models only for {missing}. Quantize all models "
            "or none."
        )
    if quantized_methods:
        return quantized_methods
    quantizers = {}
    for name, user in methods.models.items():
        schemes = {key: scheme for key, scheme in settings.modules.items() if find_submodules(user.module, key)}
        quantizers[name] = quantizer_for(replace(settings, modules=schemes), user.module)
    operators = {name: config_for(settings.modules[name]) for name in _operator_names(methods, settings)}
    return quantize_methods(methods.models, methods.sessions, quantizers, alternatives=methods.alternatives, operators=operators)


def build_program(
    methods: UserMethods,
    settings: Settings,
    quantized: Mapping[str, GraphModule] | None = None,
) -> Record:
    """Compile the methods into one program, and return the record of its first method.

    Args:
        methods: Methods with models in evaluation mode, and with inputs in the original layout.
        quantized: Result of ``quantize`` for the same methods and settings. Default: ``quantize`` is called.

    Raises:
        EthorchError: See ``ethorch.compile``.
    """
    if quantized is None:
        quantized = quantize(methods, settings)
    methods = _in_layout(methods, settings)
    if is_single(methods):
        build = lower_method(methods.models[FORWARD], quantized[FORWARD], settings)
        data, builds = build.pte, {FORWARD: build}
    else:
        data, builds = _build_several(methods, quantized, settings)
    record = record_of(data, builds, methods, quantized, settings)
    return record.selecting() if methods.alternatives else record


def record_of(
    data: bytes, builds: Mapping[str, Build], methods: UserMethods, quantized: Mapping[str, GraphModule], settings: Settings
) -> Record:
    """Return the record of a program's first method."""
    first: Record | None = None
    for name, build in builds.items():
        record = Record(
            data,
            name,
            settings=settings,
            build=replace(build, pte=data),
            model=methods.models[name],
            quantized=quantized[name],
            sessions=methods.sessions,
        )
        first = record if first is None else first.with_method(record)
    assert first is not None
    return first


def _build_several(
    methods: UserMethods, quantized: Mapping[str, GraphModule], settings: Settings
) -> tuple[bytes, dict[str, Build]]:
    if settings.partition == COST:
        raise SpecError(f"partition={COST!r} does not support several methods. Use partition='npu' or partition='cpu-matmul'.")
    if settings.etrecord:
        raise SpecError("etrecord does not support several methods. Compile each method separately, or pass one tuple of shapes.")
    names = unify_buffer_names(quantized)
    wide = _wide_counters(quantized, names)
    builds = {}
    for name, user in methods.models.items():
        builds[name] = lower_method(user, quantized[name], settings, shared=True, wide=wide[name])
    parts = {name: pte.read(build.pte) for name, build in builds.items()}
    if settings.share_weights:
        parts, builds = _with_shared_constants(parts, builds)
    program = merge(parts, names)
    if methods.alternatives:
        program = with_selection(program, list(builds), methods.paddings, settings.channels_last)
    return write(program), builds


def _wide_counters(quantized: Mapping[str, GraphModule], names: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """Return, for each method, the buffers that must be int64, because at least one method that shares them requires int64."""
    changed = {method: {name for name, _ in state_buffers(module)} for method, module in quantized.items()}
    needed = {names[method][name] for method, module in quantized.items() for name in changed[method] - narrow_counters(module)}
    return {method: {name for name in changed[method] if names[method][name] in needed} for method in quantized}


def _with_shared_constants(parts: Mapping[str, File], builds: Mapping[str, Build]) -> tuple[dict[str, File], dict[str, Build]]:
    old = [d.payload for part in parts.values() for m in part.methods.values() for d in m.delegates if d.id == BACKEND_ID]
    new = share_constants(list(dict.fromkeys(old)))
    if new is None:
        return dict(parts), dict(builds)
    changed = dict(zip(dict.fromkeys(old), new, strict=True))
    weights = new[0][0].weights
    named = {external_key(weights): weights}

    def of_delegate(delegate: Delegate) -> Delegate:
        if delegate.id != BACKEND_ID:
            return delegate
        return replace(delegate, blob=changed[delegate.payload][0].pack([WEIGHTS]), named=named)

    def of_part(part: File) -> File:
        methods = {
            name: replace(method, delegates=tuple(map(of_delegate, method.delegates))) for name, method in part.methods.items()
        }
        return replace(part, methods=methods, named={**part.named, **named})

    def of_build(build: Build) -> Build:
        return replace(build, delegates=tuple(delegate.with_payload(*changed[delegate.payload]) for delegate in build.delegates))

    return {name: of_part(part) for name, part in parts.items()}, {name: of_build(build) for name, build in builds.items()}


def _in_layout(methods: UserMethods, settings: Settings) -> UserMethods:
    if settings.io_layout == AUTO_LAYOUT and not is_single(methods):
        raise SpecError(f"io_layout={AUTO_LAYOUT!r} does not support several methods. Use io_layout='nchw' or io_layout='nhwc'.")
    if not settings.channels_last:
        return methods
    sessions = [[(name, nhwc_inputs(inputs)) for name, inputs in session] for session in methods.sessions]
    return replace(methods, models={name: with_nhwc_io(user) for name, user in methods.models.items()}, sessions=sessions)


def check_modules(methods: UserMethods, settings: Settings) -> None:
    """Raise SpecError if a name in ``settings.modules`` is neither a submodule nor a valid operator name."""
    for name in _operator_names(methods, settings):
        if not name.isidentifier():
            raise unknown_name("module", name, list_modules(methods.models))


def _operator_names(methods: UserMethods, settings: Settings) -> list[str]:
    models = [user.module for user in methods.models.values()]
    return [name for name in settings.modules if not any(find_submodules(model, name) for model in models)]


def lower_method(
    user: UserModel,
    quantized: GraphModule,
    settings: Settings,
    *,
    shared: bool = False,
    wide: Collection[str] = (),
) -> Build:
    """Lower one quantized method to a ``.pte``, and convert float inputs and outputs to the type ``settings.io``.

    Args:
        user: Model whose inputs and outputs have the layout of the settings.
        shared, wide: See ``build_pte``.
    """
    codes = boundary_codes(quantized)
    graph, inputs = quantized, user.example_inputs
    if settings.io != "float32":
        graph = with_integer_io(quantized, settings.io)
        inputs = as_codes(inputs, codes)
    if settings.partition == CPU_MATMUL:
        from ethorch.backend.products_on_cpu import move_products_to_cpu  # importing ExecuTorch takes 2 seconds

        graph = move_products_to_cpu(graph)
    build = build_pte(
        graph, inputs, settings.spec, etrecord=settings.etrecord, shared=shared, wide=wide, dynamic_shapes=user.dynamic_shapes
    )
    return build if settings.io == "float32" else replace(build, pte=with_constants(build.pte, codes))


def compile_beside(record: Record) -> Callable[[UserModel, Settings], Record]:
    """Return a function that compiles a model without a budget search.

    The function reuses the record's quantized model if only the settings ``arena`` and ``constants`` differ from the record's.
    """

    def once(user: UserModel, settings: Settings) -> Record:
        assert record.settings is not None
        with exclusive(), in_eval_mode(user.module):
            changed = replace(record.settings, arena=settings.arena, constants=settings.constants)
            same = record.model is user and changed == settings and isinstance(record.quantized, GraphModule)
            quantized = {FORWARD: record.quantized} if same and isinstance(record.quantized, GraphModule) else None
            return build_program(single_method(user), settings, quantized)

    return once
