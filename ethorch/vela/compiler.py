from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ethorch.formats.payload import RANK, IoTensor
from ethorch.support.errors import VelaError
from ethorch.support.redirect import COUT_LOCK, without_lines
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela.child import compile_apart
from ethorch.vela.compiled_model import CompiledModel, Performance
from ethorch.vela.declared import Declared, Shape

_MAX_TOSA_BYTES = 2**31 - 1  # flatbuffers address 2 GiB
_NPU_NAME = "Ethos_U"  # prefix of system config names that contain the NPU family

# Flag -> scheduler feature that it disables (vela.py, get_compiler_config).
_FEATURES = {
    "--disable-chaining": "Grouping",
    "--disable-fwd": "FWD",
    "--disable-cascading": "Cascading",
    "--disable-buffering": "WeightBuffering",
    "--disable-ifm-reuse": "ReuseIFM",
}
# Lines that Vela 5.1 prints regardless of its flags, because it cannot estimate SCATTER.
_NOISE = (b"Missing element access estimation",)
#: Prefixes of lines that Vela prints instead of raising an exception. The returned command stream cannot run.
_ERRORS = (b"Error", b"Register command stream generator", b"!!!!", b"Failed", b"Invalid graph")
# Flag -> option section and key.
_VERBOSE = {
    "--verbose-high-level-command-stream": ("compiler", "verbose_high_level_command_stream"),
    "--verbose-register-command-stream": ("compiler", "verbose_register_command_stream"),
    "--verbose-schedule": ("scheduler", "verbose"),
    "--verbose-allocation": ("scheduler", "verbose_allocation"),
    "--verbose-graph": ("graph", "verbose"),
    "--verbose-quantization": ("graph", "verbose_quantization"),
}


def compile(tosa: bytes, spec: EthosUCompileSpec, *, timeout_seconds: float | None = None) -> CompiledModel:
    """Compile a TOSA 1.0 flatbuffer for the spec's NPU.

    Args:
        timeout_seconds: Time limit for untrusted graphs, whose compilation might never terminate. If set, Vela runs in a child
            process, which takes 0.5 s to start.

    Raises:
        VelaError: Vela rejected the graph, exceeded the time limit, or crashed.
    """
    if len(tosa) < 8 or bytes(tosa[4:8]) != b"TOSA":
        raise VelaError(f"not a TOSA flatbuffer: expected b'TOSA' in bytes 4 to 7, got {bytes(tosa[4:8])!r}.")
    if len(tosa) > _MAX_TOSA_BYTES:
        raise VelaError(f"the TOSA flatbuffer has {len(tosa)} bytes; Vela reads at most {_MAX_TOSA_BYTES}.")
    if timeout_seconds is not None:
        return compile_apart(tosa, spec, timeout_seconds)
    from ethorch.lower.rewrite.vela_bugs import BY_ID  # importing NumPy takes 0.1 s

    model = compile_unchecked(tosa, spec)
    declared = Declared.of(tosa)
    cascading = BY_ID["vela.int32-slice-in-cascade"]
    if model.performance.cascades and declared.cuts_int32 and cascading.concerns(spec.target.family):
        model = compile_unchecked(tosa, spec, cascading=False)
    return _restore_shapes(declared, model)


def compile_unchecked(tosa: bytes, spec: EthosUCompileSpec, *, cascading: bool = True) -> CompiledModel:
    """Compile a TOSA flatbuffer without workarounds for Vela bugs.

    Args:
        cascading: Whether Vela may create cascades.

    Raises:
        VelaError: Vela rejected the graph, or returned a command stream that cannot run.
    """
    try:
        from ethosu import regor
    except ImportError as error:
        raise VelaError(f"Vela cannot be imported ({error}). Run pip install 'ethos-u-vela>=5.1'.") from None
    options = options_text(spec, cascading=cascading)
    try:
        with COUT_LOCK, without_lines(*_NOISE, *_ERRORS) as omitted:  # concurrent compilations are not known to be safe
            raw = regor.compile(spec.target.vela_arch, tosa, "TOSA", system_text(spec), options=options, verbose=False)
    except Exception as error:  # RuntimeError and ValueError; UnicodeDecodeError if the message quotes a damaged name
        raise VelaError(f"Vela rejected the graph for {spec.target.name}: {_words(error)}") from error
    errors = dict.fromkeys(line.decode(errors="replace").strip() for line in omitted if line.startswith(_ERRORS))
    if errors:
        raise VelaError(f"the command stream from Vela cannot run on {spec.target.name}. Vela printed: {'; '.join(errors)}.")
    if not isinstance(raw, regor.CompiledRawModel):
        raise VelaError(
            f"Vela returned {type(raw).__name__} instead of a raw model. `ethorch doctor` lists the tested Vela versions."
        )
    return _read(raw, spec)


def system_text(spec: EthosUCompileSpec) -> str:
    """Return the hardware part of Vela's configuration: architecture, section names and ini files, as in ``main`` of vela.py.

    Vela assumes 8-byte NPU ports if the section name starts with ``Ethos_U55``, and 16-byte ports otherwise. Names without the
    prefix ``Ethos_U`` therefore get the NPU family as a prefix.
    """
    target, name, text = spec.target, spec.system_config, spec.vela_config.text
    if not name.startswith(_NPU_NAME):
        heading = re.compile(rf"^\[\s*System_Config\.{re.escape(name)}\s*\]", re.MULTILINE)
        name = f"{_NPU_NAME}{target.family.removeprefix('u')}_{name}"
        text = heading.sub(f"[System_Config.{name}]", text)
    return (
        f"[architecture]\nmacs={target.macs // target.cores}\ncores={target.cores}\n"
        f"[vela]\nsystem_config_name={name}\nmemory_mode_name={spec.memory_mode}\n"
        f"{text}"
    )


def options_text(spec: EthosUCompileSpec, *, cascading: bool = True) -> str:
    """Return the option sections of Vela's configuration for the spec's flags, like ``get_compiler_config`` in vela.py."""
    flags = spec.flags if cascading else {**spec.flags, "--disable-cascading": True}
    sections: dict[str, dict[str, Any]] = {
        "compiler": {"enable_db": "true", "output_format": "Raw", "cop_format": flags.get("--cop-format", "COP1")},
        "scheduler": {
            "optimize": flags.get("--optimise", "Performance"),
            "arena_size_limit": spec.arena_cache_bytes,
            "disable_feature": "|".join(feature for flag, feature in _FEATURES.items() if flag in flags),
            "cpu_tensor_alignment": flags.get("--cpu-tensor-alignment", 16),
            "tensor_allocator": flags.get("--tensor-allocator", "HillClimb"),
        },
        "graph": {"softmax_int16_neg_exp_range": flags.get("--experimental-softmax-int16-neg-exp-range", 10.0)},
    }
    for flag, (section, key) in _VERBOSE.items():
        if flag in flags or "--verbose-all" in flags:
            sections[section][key] = "true"
    return "".join(
        f"\n[{name}]\n" + "".join(f"{key}={value}\n" for key, value in values.items()) for name, values in sections.items()
    )


def _restore_shapes(declared: Declared, model: CompiledModel) -> CompiledModel:
    # This works around ``vela.unread-input``, ``vela.undone-transpose-output`` and ``vela.input-in-its-readers-shape``.
    return replace(
        model,
        inputs=_in_declared_shapes("input", declared.inputs, model.inputs),
        outputs=_in_declared_shapes("output", declared.outputs, model.outputs),
    )


def _in_declared_shapes(kind: str, declared: Sequence[tuple[str, Shape]], compiled: Sequence[IoTensor]) -> tuple[IoTensor, ...]:
    shapes = [(*[1] * (RANK - len(shape)), *shape) for _, shape in declared]
    if [math.prod(shape) for shape in shapes] != [math.prod(tensor.shape) for tensor in compiled]:
        names, actual = (f"{name} {list(shape)}" for name, shape in declared), (str(list(tensor.shape)) for tensor in compiled)
        raise VelaError(
            f"Vela dropped or reordered {kind}s of the graph: "
            f"expected {', '.join(names)}, got shapes {', '.join(actual) or '(none)'}. Vela drops "
            "unused inputs, and outputs of a TRANSPOSE that another TRANSPOSE inverts. Remove such "
            "inputs and outputs from the graph.",
            lost_output=kind == "output",
        )
    return tuple(replace(tensor, shape=shape) for tensor, shape in zip(compiled, shapes, strict=True))


def _read(raw: Any, spec: EthosUCompileSpec) -> CompiledModel:
    report = raw.perf_report
    performance = Performance(
        npu_cycles=report.npuCycles,
        total_cycles=report.totalCycles,
        mac_count=report.macCount,
        npu_ops=report.npuOps,
        cascades=report.cascades,
        cascaded_ops=report.cascadedOps,
        original_weight_bytes=report.originalWeights,
        encoded_weight_bytes=report.encodedWeights,
        read_only_bytes=report.readOnlyPeakUsage,
        staging_area=report.stagingMemoryArea,
        peak_bytes={name: memory.peakUsage for name, memory in report.memories.items()},
        core_clock_hz=spec.memory_system.core_clock_hz,
    )
    if report.cpuOps:
        raise VelaError(f"Vela assigned {report.cpuOps} operators to the CPU, which a delegate does not support.")
    if raw.variables:
        raise VelaError(f"the graph has {len(raw.variables)} persistent variables, which a delegate does not support.")

    def io(tensors: Any) -> tuple[IoTensor, ...]:
        return tuple(IoTensor(tuple(t.shape), t.element_size, t.address, t.region) for t in tensors)

    database = raw.opt_database
    return CompiledModel(
        command_stream=bytes(raw.command_stream),
        constants=bytes(raw.read_only.data),
        scratch_bytes=raw.scratch.size,
        scratch_fast_bytes=raw.scratch_fast.size if raw.scratch_fast.region == 2 else 0,
        inputs=io(raw.inputs),
        outputs=io(raw.outputs),
        performance=performance,
        load_tables=lambda: {
            name: (list(table.header), [list(row) for row in table.data]) for name, table in database.tables.items()
        },
    )


def _words(error: BaseException) -> str:
    text = str(error).removeprefix("Compilation failed: ")
    words = "; ".join(line.strip(" -") for line in text.splitlines() if line.strip(" -"))
    return words.replace(":; ", ": ") or type(error).__name__
