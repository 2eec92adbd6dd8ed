"""A model, or several that share buffers and weights, through the compiler: one method each of the program."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch import nn
from torch.fx import GraphModule

from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.figures.selection import Padding
from ethorch.formats import pte
from ethorch.formats.payload import BACKEND_ID, WEIGHTS, external_key
from ethorch.formats.pte_merge import merged
from ethorch.formats.pte_types import Delegate
from ethorch.formats.pte_types import Program as File
from ethorch.formats.pte_writer import write
from ethorch.lower.fx.states import narrow_counters
from ethorch.models.layouts import nhwc_inputs, with_nhwc_io
from ethorch.models.load import UserMethods, UserModel, in_eval_mode, mention_training
from ethorch.program.record import Record
from ethorch.program.shapes import with_selection
from ethorch.quantization.calibrate import quantize_together
from ethorch.quantization.config import QuantizationConfig
from ethorch.quantization.integer_io import as_codes, boundary_codes, with_constants, with_integer_io
from ethorch.quantization.schemes import quantizer_for
from ethorch.quantization.shared_buffers import names_in_whole, state_buffers
from ethorch.support.errors import EthorchError, SpecError, unknown_name
from ethorch.targets.settings import AUTO_LAYOUT, COST, CPU_MATMUL, Settings
from ethorch.vela import artifacts
from ethorch.vela.shared_constants import sharing


def compile_methods(
    methods: UserMethods,
    settings: Settings,
    config: QuantizationConfig | None = None,
    dump: str | None = None,
    share_weights: bool = True,
    paddings: tuple[Padding, ...] = (),
) -> Record:
    """One program with a method for each model; the first one's record, which knows the others: ``program["decode"]``.

    Budgets are compared for each method, and not searched for.

    Args:
        share_weights: constants that delegates of several methods have in common are stored once, as named data of the program,
            where that saves bytes.
        paddings: of alternatives, the axes along which inputs may be filled up.

    Raises:
        EthorchError: some of the models are quantized already and some are not; or as of ``ethorch.compile``.
    """
    if settings.partition == COST:
        raise SpecError(f"partition={COST!r} is of one method: several need one of npu and cpu-matmul.")
    if settings.io_layout == AUTO_LAYOUT:
        raise SpecError(f"io_layout={AUTO_LAYOUT!r} is of one method: several need one of nchw and nhwc, which they share.")
    if not any(user.quantized for user in methods.models.values()):
        check_modules([user.module for user in methods.models.values()], settings)
    laid = _in_layout(methods, settings)
    with ExitStack() as modes:
        for user in methods.models.values():
            mention_training(user.module)
            modes.enter_context(in_eval_mode(user.module))
        quantized = _quantized(laid, settings, config)
        builds = {}
        names = names_in_whole(quantized)
        wide = _wide_counters(quantized, names)
        for name, user in laid.models.items():
            folder = None if dump is None else str(Path(dump) / name)
            builds[name] = built(user, quantized[name], settings, folder, shared=True, wide=wide[name])
    parts = {name: pte.read(build.pte) for name, build in builds.items()}
    if share_weights:
        own = builds
        parts, builds = _with_shared_constants(parts, own)
        if dump is not None:
            for name, build in builds.items():
                for before, after in zip(own[name].delegates, build.delegates, strict=True):
                    artifacts.replace_payload(Path(dump) / name, before.payload, after.payload, after.sources)
    whole = merged(parts, names)
    if methods.alternatives:
        whole = with_selection(whole, list(builds), paddings, settings.nhwc_io)
    data = write(whole)
    first: Record | None = None
    for name, build in builds.items():
        made = Record(
            data,
            name,
            settings=settings,
            build=replace(build, pte=data),
            model=laid.models[name],
            quantized=quantized[name],
            config=config,
            sessions=laid.sessions,
        )
        first = made if first is None else first.with_method(made)
    assert first is not None
    return first.selecting() if methods.alternatives else first


def _wide_counters(quantized: Mapping[str, GraphModule], names: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """For each method, its names of buffers that one of the methods needs in int64: what they share has one type."""
    changed = {method: {name for name, _ in state_buffers(module)} for method, module in quantized.items()}
    needed = {names[method][name] for method, module in quantized.items() for name in changed[method] - narrow_counters(module)}
    return {method: {name for name in changed[method] if names[method][name] in needed} for method in quantized}


def _with_shared_constants(parts: Mapping[str, File], builds: Mapping[str, Build]) -> tuple[dict[str, File], dict[str, Build]]:
    """The programs, whose Ethos-U delegates share what is equal of their constants; and what is known of them."""
    old = [d.payload for part in parts.values() for m in part.methods.values() for d in m.delegates if d.id == BACKEND_ID]
    new = sharing(list(dict.fromkeys(old)))
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
    """The models and their calls with channels last, where the settings ask for that."""
    if not settings.nhwc_io:
        return methods
    sessions = [[(name, nhwc_inputs(inputs)) for name, inputs in session] for session in methods.sessions]
    return replace(methods, models={name: in_layout(user, settings)[0] for name, user in methods.models.items()}, sessions=sessions)


def _quantized(methods: UserMethods, settings: Settings, config: QuantizationConfig | None) -> dict[str, GraphModule]:
    done = {name: user.module for name, user in methods.models.items() if user.quantized and isinstance(user.module, GraphModule)}
    if done and len(done) < len(methods.models):
        missing = ", ".join(repr(name) for name in methods.models if name not in done)
        raise EthorchError(f"some methods are quantized already, but not {missing}: quantize all, or leave it to ethorch.")
    if done:
        return done
    quantizers = {}
    for name, user in methods.models.items():
        known = {module for module, _ in user.module.named_modules()}
        places = {place: scheme for module, scheme in settings.modules.items() for place in (module, f"module.{module}")}
        own = {place: scheme for place, scheme in places.items() if place in known}
        quantizers[name] = quantizer_for(replace(settings, modules=own), config)
    return quantize_together(methods.models, methods.sessions, quantizers, alternatives=methods.alternatives)


def check_modules(models: Iterable[nn.Module], settings: Settings) -> None:
    """SpecError where the settings name a submodule that none of the models has."""
    known = {name for model in models for name, _ in model.named_modules()}
    for name in settings.modules:
        if name not in known and f"module.{name}" not in known:
            raise unknown_name("module", name, {name for name in known if name} or {"(none)"})


def in_layout(user: UserModel, settings: Settings) -> tuple[UserModel, Settings]:
    """Both for a model with its channels last, where the settings ask for that."""
    if not settings.nhwc_io:
        return user, settings
    modules = {f"module.{name}": scheme for name, scheme in settings.modules.items()}
    return with_nhwc_io(user), settings.with_(modules=modules)


def built(
    user: UserModel,
    quantized: GraphModule,
    settings: Settings,
    dump: str | None = None,
    *,
    etrecord: bool = False,
    shared: bool = False,
    wide: Collection[str] = (),
) -> Build:
    """The program of one quantized model, by ``build_pte``, its inputs and outputs of the settings' type.

    Args:
        user: in the settings' layout.
        dump: a folder for TOSA graphs and payloads.
        etrecord, shared, wide: as of ``build_pte``.
    """
    spec = copy.copy(settings.spec).dump_intermediate_artifacts_to(dump)
    codes = boundary_codes(quantized)
    taken, inputs = quantized, user.example_inputs
    if settings.io != "float32":
        taken = with_integer_io(quantized, settings.io)
        inputs = as_codes(inputs, codes)
    if settings.partition == CPU_MATMUL:
        from ethorch.backend.products_on_cpu import on_cpu  # 2 seconds of ExecuTorch, by its package

        taken = on_cpu(taken)
    made = build_pte(taken, inputs, spec, etrecord=etrecord, shared=shared, wide=wide, dynamic_shapes=user.dynamic_shapes)
    return made if settings.io == "float32" else replace(made, pte=with_constants(made.pte, codes))
