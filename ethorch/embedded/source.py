"""The C text of a model: what the templates are filled with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from ethorch.embedded.data import Blob, blob
from ethorch.embedded.kernels import HEADERS, kernel_call
from ethorch.embedded.plan import CONSTANTS, Boundary, Copied, Kernel, Place, Plan, Run, Step
from ethorch.embedded.streams import driver_stream
from ethorch.errors import EthorchError, Reason
from ethorch.formats.pte_types import ITEM_BYTES, Call, Value

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
    """The files of ``templates/``."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def prefix(name: str) -> str:
    """The name as it stands before every symbol. EthorchError where C cannot have it."""
    if not _IDENTIFIER.fullmatch(name) or _KEYWORDS.fullmatch(name):
        raise EthorchError(
            f"the model's name is {name!r}; it stands before every symbol in C: small letters, digits and underscores are allowed, "
            "a letter first, and no word of C's own."
        )
    return name


@dataclass(frozen=True)
class End:
    """An input or output, in the words of C."""

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
        """In capitals."""
        return self.name.upper()

    @property
    def dimensions(self) -> str:
        """``[1][3][8][8]``."""
        return "".join(f"[{size}]" for size in self.shape) or "[1]"

    @property
    def description(self) -> str:
        """For people."""
        text = f"{self.dtype}{list(self.shape)}"
        if self.codes_dtype:
            return f"{text}; as codes {self.codes_dtype}, value = (code - {self.zero_point}) * {self.scale}"
        return f"{text}, value = (code - {self.zero_point}) * {self.scale}" if self.scale else text


@dataclass(frozen=True)
class Function:
    """A static function of model.c."""

    name: str
    comment: str
    lines: tuple[str, ...]
    guard: bool = False


@dataclass(frozen=True)
class Source:
    """A model's C text, but for what depends on the project.

    Attributes:
        inputs, outputs: in order.
        functions, constants: of model.c.
        kernels: files of the kernels' folder that it needs.
        blobs: bytes that it needs.
    """

    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    functions: tuple[Function, ...]
    constants: tuple[str, ...]
    kernels: tuple[str, ...]
    blobs: tuple[Blob, ...]


#: The scale and zero point of integer inputs and outputs, by ``input0``, ``output1``: what the file says of them.
Meanings = dict[str, tuple[float, int]]


def model_source(plan: Plan, name: str, meanings: Meanings, explain: Callable[[str], str]) -> Source:
    """The C text of a plan.

    Args:
        name: the prefix.
        meanings: of integer inputs and outputs.
        explain: what is known of an operator on the CPU by its name, a sentence with its place in the user's code, or nothing.

    Raises:
        EthorchError: an operator on the CPU has no kernel in C.
    """
    writer = _Writer(plan, name, explain)
    ends = [writer.end(boundary, meanings) for boundary in (*plan.inputs, *plan.outputs)]
    inputs, outputs = tuple(ends[: len(plan.inputs)]), tuple(ends[len(plan.inputs) :])
    blobs = []
    delegates = sorted({step.delegate for step in plan.body if isinstance(step, Run)})
    macros = {part: f"{name.upper()}_{part}_SECTION" for part in ("WEIGHTS", "COMMANDS", "CONSTANTS")}
    for number in delegates:
        payload = plan.payloads[number]
        blobs.append(blob(f"{name}_commands_{number}", macros["COMMANDS"], driver_stream(payload)))
        if payload.weights:
            blobs.append(blob(f"{name}_weights_{number}", macros["WEIGHTS"], payload.weights))
    if plan.constants:
        blobs.append(blob(f"{name}_constants", macros["CONSTANTS"], plan.constants))
    functions = []
    constants: list[str] = []
    for title, steps, comment in (
        ("convert_in", plan.convert_in, "Floats to codes."),
        ("compute", plan.body, ""),
        ("convert_out", plan.convert_out, "Codes to floats."),
    ):
        guard = title != "compute"
        if guard and not plan.has_codes:
            continue
        lines, declared = writer.body(steps)
        functions.append(Function(title, comment, tuple(lines), guard))
        constants += [f"#if {name.upper()}_FLOATS", *declared, "#endif"] if guard and declared else declared
    return Source(inputs, outputs, tuple(functions), tuple(constants), tuple(sorted(writer.sources)), tuple(blobs))


class _Writer:
    def __init__(self, plan: Plan, name: str, explain: Callable[[str], str]):
        self.plan, self.name, self.explain = plan, name, explain
        self.sources: set[str] = set()

    def address(self, place: Place) -> str:
        if place.buffer == CONSTANTS:
            return f"({self.name}_constants + {place.offset}u)"
        return f"(self->{place.buffer} + {place.offset}u)"

    def place(self, index: int) -> str:
        found = self.plan.places.get(index)
        if found is None:
            raise EthorchError(f"value {index} of method {self.plan.method.name!r} has no memory, but an operator uses it.")
        return self.address(found)

    def end(self, boundary: Boundary, meanings: Meanings) -> End:
        values = self.plan.method.values
        value, codes = values[boundary.index], boundary.codes
        scale, zero_point = (
            (codes.scale, codes.zero_point) if codes else meanings.get(f"{boundary.side}{boundary.number}", (0.0, 0))
        )
        held = values[codes.index] if codes else None
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
            held.dtype if held else "",
            _ctype(boundary.title, held) if held else "",
            self.place(codes.index) if codes else "",
            f"{scale!r}" if scale else "",
            zero_point,
        )

    def body(self, steps: Sequence[Step]) -> tuple[list[str], list[str]]:
        """Lines of a function that runs the steps, and what it wants declared before it."""
        lines: list[str] = []
        declared: list[str] = []
        if any(isinstance(step, Run) for step in steps):
            lines += ["ethosu_status status;", ""]
        for step in steps:
            if isinstance(step, Copied):
                lines.append(self._copy(step))
            elif isinstance(step, Run):
                lines += self._run(step)
            else:
                found, constants = self._kernel(step)
                lines += found
                declared += constants
        if not any("self" in line for line in lines):
            lines.append("(void)self;")
        return [*lines, "return ETHOSU_OK;"], declared

    def _copy(self, step: Copied) -> str:
        return f"(void)memcpy({self.address(step.target)}, {self.address(step.source)}, {step.nbytes}u);"

    def _run(self, step: Run) -> list[str]:
        payload = self.plan.payloads[step.delegate]
        weights = f"{self.name}_weights_{step.delegate}" if payload.weights else "NULL"
        commands = f"{self.name}_commands_{step.delegate}"
        size = len(driver_stream(payload))
        arguments = f"{commands}, {size}u, {weights}, {len(payload.weights)}u, {payload.scratch_bytes}u"
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
        found = kernel_call(self.plan.method, call, self.place, f"k{step.number}", "return ETHOSU_BAD_VALUE;")
        if isinstance(found, Reason):
            where = self.explain(step.operator)
            raise EthorchError(f"{found.text}{where} [{found.id}]. {found.way_out}")
        self.sources.update(found.sources)
        return [f"/* {step.operator} */", *found.lines], list(found.constants)


def _ctype(title: str, value: Value) -> str:
    found = _CTYPES.get(value.dtype)
    if found is None:
        raise EthorchError(f"{title} is {value}, which has no type in C.")
    return found


def kernel_headers(source: Source) -> tuple[str, ...]:
    """Headers that model.c includes."""
    return HEADERS if source.kernels or any("etk_" in line for line in source.constants) else ()
