"""Generate the template variables of a model's C source."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import jinja2

from ethorch.deploy.firmware.data import Blob, blob
from ethorch.deploy.firmware.escapes import FILTERS, c_comment
from ethorch.deploy.firmware.kernels import HEADERS, kernel_call
from ethorch.deploy.firmware.methods import MethodsPlan, make_error
from ethorch.deploy.firmware.steps import CONSTANTS, TENSORS, Boundary, Copy, Kernel, Place, Plan, Run, Step
from ethorch.deploy.firmware.streams import driver_stream
from ethorch.formats.pte_types import ITEM_BYTES, Call, Value
from ethorch.support.errors import EthorchError, Reason, SpecError

SECTIONS = {
    "ARENA": ".bss.npu_arena",
    "FAST": ".bss.npu_fast",
    "TENSORS": ".bss.cpu_tensors",
    "WEIGHTS": ".rodata.npu_weights",
    "COMMANDS": ".rodata.npu_commands",
    "CONSTANTS": ".rodata.cpu_constants",
}
_CTYPES = {
    "float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
_KEYWORDS = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|restrict|"
    "return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|main|ethosu"
)


@cache
def templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(FILTERS)
    return environment


def prefix(name: str) -> str:
    """Return the name if it is a valid prefix of C symbols. Raise SpecError otherwise."""
    if not _IDENTIFIER.fullmatch(name) or _KEYWORDS.fullmatch(name):
        raise SpecError(
            f"invalid model name {name!r}: expected a prefix for C symbols (a lower-case letter, followed by lower-case letters, "
            "digits or underscores; not a C keyword)."
        )
    return name


@dataclass(frozen=True)
class End:
    """An input or output and its names in C."""

    title: str
    name: str
    number: int
    dtype: str
    ctype: str
    shape: tuple[int, ...]
    bytes: int
    elements: int
    place: str
    constant: bool
    codes_dtype: str
    codes_ctype: str
    codes_place: str
    scale: str
    zero_point: int

    @property
    def NAME(self) -> str:
        return self.name.upper()

    @property
    def dimensions(self) -> str:
        """Array dimensions in C, e.g. ``[1][3][8][8]``."""
        return "".join(f"[{size}]" for size in self.shape) or "[1]"

    @property
    def description(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        if self.codes_dtype:
            return f"{text}, or codes of {self.codes_dtype}: value = (code - {self.zero_point}) * {self.scale}"
        return f"{text}, value = (code - {self.zero_point}) * {self.scale}" if self.scale else text


@dataclass(frozen=True)
class Function:
    """A static function in model.c."""

    name: str
    comment: str
    lines: tuple[str, ...]
    guard: bool = False


@dataclass(frozen=True)
class MethodSource:
    """The C source of a method.

    Attributes:
        p: Prefix of functions and types, including the method's name if there are several methods.
        symbol_prefix: Prefix of static names in model.c. Empty for a single method.
        delegates: Number of command streams.
        has_codes: See :class:`Plan`.
        blobs: Symbols of the data that the method reads.
    """

    method: str
    p: str
    symbol_prefix: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    functions: tuple[Function, ...]
    constants: tuple[str, ...]
    delegates: int
    has_codes: bool
    blobs: tuple[str, ...]

    @property
    def P(self) -> str:
        return self.p.upper()

    @property
    def ends(self) -> tuple[End, ...]:
        return (*self.inputs, *self.outputs)


@dataclass(frozen=True)
class Initial:
    """An initial value of a buffer.

    Attributes:
        place: C expression for the address.
        bytes: Size in bytes.
        byte: Fill byte, or -1 to copy ``symbol``.
    """

    place: str
    bytes: int
    byte: int
    symbol: str


@dataclass(frozen=True)
class Source:
    """The C source of a model, independent of the project's settings.

    Attributes:
        initials: Values that the reset writes after it clears the CPU tensors.
        contents: Symbol -> array that the reset copies.
        kernels: Required files in ``kernels.SOURCE_FOLDER``.
    """

    methods: tuple[MethodSource, ...]
    initials: tuple[Initial, ...]
    contents: Mapping[str, bytes] = field(repr=False)
    kernels: tuple[str, ...]
    blobs: tuple[Blob, ...]


#: Quantization parameters (scale, zero point) of integer inputs and outputs, with keys such as ``input0`` and ``output1``.
Meanings = Mapping[str, tuple[float, int]]
#: Function that returns the location of a CPU operator in the user's code, or an empty string if the location is unknown.
Explain = Callable[[str], str]


def model_source(methods_plan: MethodsPlan, name: str, facts_by_method: Mapping[str, tuple[Meanings, Explain]]) -> Source:
    """Generate the C source of all planned methods.

    Args:
        name: Prefix of the model's symbols.
        facts_by_method: Method name -> quantization parameters of integer inputs and outputs, and source locations of CPU
            operators.

    Raises:
        EthorchError: A CPU operator has no C kernel, or an input or output has an unsupported dtype.
    """
    blobs = _Blobs(name)
    methods, kernels = [], set[str]()
    for method, plan in methods_plan.plans.items():
        meanings, explain = facts_by_method[method]
        method_source, used = _method_source(plan, name, f"{method}_" if methods_plan.several else "", meanings, explain, blobs)
        methods.append(method_source)
        kernels |= used
    if methods_plan.constants:
        blobs.symbol("CONSTANTS", f"{name}_constants", methods_plan.constants)
    initials, contents = [], dict[bytes, str]()
    for place, content in methods_plan.initial:
        same = len(set(content)) == 1
        if same and not content[0] and place.buffer == TENSORS:
            continue  # the reset clears all buffers first
        symbol = "" if same else contents.setdefault(content, f"initial_{len(contents)}")
        initials.append(Initial(f"self->{place.buffer} + {place.offset}u", len(content), content[0] if same else -1, symbol))
    by_symbol = {symbol: content for content, symbol in contents.items()}
    return Source(tuple(methods), tuple(initials), by_symbol, tuple(sorted(kernels)), tuple(blobs.blobs))


def _method_source(
    plan: Plan, name: str, symbol_prefix: str, meanings: Meanings, explain: Explain, blobs: _Blobs
) -> tuple[MethodSource, set[str]]:
    writer = _Writer(plan, name, symbol_prefix, explain, blobs)
    ends = [writer.end(boundary, meanings) for boundary in (*plan.inputs, *plan.outputs)]
    functions = []
    constants: list[str] = []
    for title, steps, comment in (
        ("convert_in", plan.convert_in, "Quantizes the float inputs."),
        ("compute", plan.body, ""),
        ("convert_out", plan.convert_out, "Dequantizes the float outputs."),
    ):
        guard = title != "compute"
        if guard and not plan.has_codes:
            continue
        lines, declared = writer.body(steps)
        functions.append(Function(title, comment, tuple(lines), guard))
        constants += [f"#if {name.upper()}_FLOATS", *declared, "#endif"] if guard and declared else declared
    method_source = MethodSource(
        plan.method.name,
        f"{name}_{plan.method.name}" if symbol_prefix else name,
        symbol_prefix,
        tuple(ends[: len(plan.inputs)]),
        tuple(ends[len(plan.inputs) :]),
        tuple(functions),
        tuple(constants),
        len(plan.payloads),
        plan.has_codes,
        tuple(writer.used),
    )
    return method_source, writer.sources


class _Blobs:
    """The data of a model. Equal contents in one section share a symbol."""

    def __init__(self, name: str):
        self.name = name
        self.blobs: list[Blob] = []
        self._known: dict[tuple[str, bytes], str] = {}

    def count(self, part: str) -> int:
        return sum(known_part == part for known_part, _ in self._known)

    def symbol(self, part: str, symbol: str, content: bytes) -> str:
        if (part, content) not in self._known:
            self._known[part, content] = symbol
            self.blobs.append(blob(symbol, f"{self.name.upper()}_{part}_SECTION", content))
        return self._known[part, content]


class _Writer:
    def __init__(self, plan: Plan, name: str, symbol_prefix: str, explain: Explain, blobs: _Blobs):
        self.plan, self.name, self.symbol_prefix, self.explain = plan, name, symbol_prefix, explain
        self.sources: set[str] = set()
        self.used: dict[str, None] = {}
        self.streams: dict[int, str] = {}
        self.weights: dict[int, str] = {}
        for number in sorted({step.delegate for step in plan.body if isinstance(step, Run)}):
            payload = plan.payloads[number]
            self.streams[number] = blobs.symbol("COMMANDS", f"{name}_{symbol_prefix}commands_{number}", driver_stream(payload))
            self.weights[number] = "NULL"
            if payload.weights:
                self.weights[number] = blobs.symbol("WEIGHTS", f"{name}_weights_{blobs.count('WEIGHTS')}", payload.weights)
            self.used |= dict.fromkeys(symbol for symbol in (self.streams[number], self.weights[number]) if symbol != "NULL")

    def address(self, place: Place) -> str:
        if place.buffer == CONSTANTS:
            return f"({self.name}_constants + {place.offset}u)"
        return f"(self->{place.buffer} + {place.offset}u)"

    def place(self, index: int) -> str:
        place = self.plan.places.get(index)
        if place is None:
            raise EthorchError(
                f"an operator of method {self.plan.method.name!r} uses value {index}, for which no memory is planned. The file is "
                "inconsistent; compile the model again with ethorch."
            )
        return self.address(place)

    def end(self, boundary: Boundary, meanings: Meanings) -> End:
        values = self.plan.method.values
        value, codes = values[boundary.index], boundary.codes
        scale, zero_point = (
            (codes.scale, codes.zero_point) if codes else meanings.get(f"{boundary.side}{boundary.number}", (0.0, 0))
        )
        codes_value = values[codes.index] if codes else None
        return End(
            boundary.title,
            f"{boundary.side}_{boundary.number}",
            boundary.number,
            value.dtype,
            _ctype(boundary.title, value),
            tuple(value.shape[axis] for axis in value.dim_order),
            value.nbytes,
            max(value.nbytes // ITEM_BYTES[value.dtype], 1),
            self.place(boundary.index),
            self.plan.places[boundary.index].buffer == CONSTANTS,
            codes_value.dtype if codes_value else "",
            _ctype(boundary.title, codes_value) if codes_value else "",
            self.place(codes.index) if codes else "",
            f"{scale!r}" if scale else "",
            zero_point,
        )

    def body(self, steps: Sequence[Step]) -> tuple[list[str], list[str]]:
        lines: list[str] = []
        declared: list[str] = []
        if any(isinstance(step, Run) for step in steps):
            lines += ["ethosu_status status;", ""]
        for step in steps:
            if isinstance(step, Copy):
                lines.append(self._copy(step))
            elif isinstance(step, Run):
                lines += self._run(step)
            else:
                kernel_lines, constants = self._kernel(step)
                lines += kernel_lines
                declared += constants
        if not any("self" in line for line in lines):
            lines.append("(void)self;")
        return [*lines, "return ETHOSU_OK;"], declared

    def _copy(self, step: Copy) -> str:
        return f"(void)memcpy({self.address(step.target)}, {self.address(step.source)}, {step.nbytes}u);"

    def _run(self, step: Run) -> list[str]:
        payload = self.plan.payloads[step.delegate]
        commands, weights = self.streams[step.delegate], self.weights[step.delegate]
        size = len(driver_stream(payload))
        arguments = f"{commands}, {size}u, {weights}, {len(payload.weights)}u, {self.plan.reaches[step.delegate]}u"
        return [
            f"/* delegate {step.delegate} */",
            *map(self._copy, step.before),
            f"status = run_npu(self, {arguments});",
            "if (status != ETHOSU_OK) {",
            "  return status;",
            "}",
            *map(self._copy, step.after),
        ]

    def _kernel(self, step: Kernel) -> tuple[list[str], list[str]]:
        call = Call(step.operator, None, step.args)
        kernel = kernel_call(self.plan.method, call, self.place, f"{self.symbol_prefix}k{step.number}", "return ETHOSU_BAD_VALUE;")
        if isinstance(kernel, Reason):
            where = self.explain(step.operator)
            raise make_error(replace(kernel, text=f"{kernel.text}{where}"))
        self.sources.update(kernel.sources)
        return [f"/* {c_comment(step.operator)} */", *kernel.lines], list(kernel.constants)


def _ctype(title: str, value: Value) -> str:
    c_type = _CTYPES.get(value.dtype)
    if c_type is None:
        raise EthorchError(
            f"{title}: expected one of the dtypes {', '.join(_CTYPES)}, got {value}. Convert the tensor in the model (x.to(...))."
        )
    return c_type


def kernel_headers(source: Source) -> tuple[str, ...]:
    """Return the kernel headers that model.c includes."""
    declared = (line for method in source.methods for line in method.constants)
    return HEADERS if source.kernels or any("etk_" in line for line in declared) else ()
