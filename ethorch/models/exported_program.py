"""Load `.pt2` files without executing code that they contain.

`torch.export.load` can execute such code. This module accepts only pickles of tensors and plain data, and only text that
`torch.export.save` writes.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ethorch.support import trees
from ethorch.support.errors import FormatError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.pt2_archive._package import PT2ArchiveReader

#: Remedy for every rejected file.
_REMEDY = "If you trust the file, load it with torch.export.load and pass the program to ethorch.compile."
#: Higher-order operators that only execute graphs of the same program.
_HIGHER_ORDER = {"cond", "while_loop", "map_impl", "scan", "associative_scan", "wrap_with_set_grad_enabled", "wrap_with_autocast"}
#: Shape functions of sympy and torch.utils._sympy.functions. Other calls could execute code.
_FUNCTIONS = {
    "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "Equality", "Float", "FloatPow", "FloatTrueDiv", "FloorDiv",
    "FloorToInt", "Ge", "GreaterThan", "Gt", "Identity", "IntTrueDiv", "Integer", "IsNonOverlappingAndDenseIndicator", "LShift",
    "Le", "LessThan", "Lt", "Max", "Min", "Mod", "ModularIndexing", "Mul", "Ne", "Not", "Or", "Pow", "PowByNatural", "PythonMod",
    "RShift", "Rational", "RoundDecimal", "RoundToInt", "StrictGreaterThan", "StrictLessThan", "Symbol", "ToFloat", "TruncToFloat",
    "TruncToInt", "Unequality", "Where", "ceiling", "floor",
}  # fmt: skip
#: Names of arguments that are file names, in aten.from_file and in operators of other libraries.
_FILE_ARGUMENTS = {"filename", "file_name", "path", "file", "filepath"}
_PATH = re.compile(r"[\w.\-+:/@ ]*")
#: Fields that torch neither evaluates nor writes into code, and fields with separate checks.
_TEXT = {"metadata", "as_string", "as_strings", "torch_version", "guards_code", "expr_str", "in_spec", "out_spec"}
_OPERATORS = {"target", "as_operator"}
#: Fields that become names of values in Python code.
_NAMES = {"name", "as_name", "forward_arg_names", "user_input_name"}


def load_exported_program(path: Path) -> ExportedProgram:
    """Load the program of a `.pt2` file.

    Raises:
        FormatError: The file was not written by `torch.export.save`, or loading the file could execute code.
    """
    from torch._export.serde import schema
    from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass
    from torch.export.pt2_archive import constants as names
    from torch.export.pt2_archive._package import PT2ArchiveReader

    reader = PT2ArchiveReader(os.fspath(path))
    records = set(reader.get_file_names())
    if any(record.startswith(names.AOTINDUCTOR_DIR) for record in records):
        raise FormatError(f"{path} contains code compiled by AOTInductor, which runs when the file is loaded. {_REMEDY}")
    models = sorted(record for record in records if record.startswith(names.MODELS_DIR))
    if models != [names.MODELS_FILENAME_FORMAT.format("model")]:
        raise FormatError(f"{path}: expected one program named model, got {', '.join(models) or 'none'}.")
    program = json.loads(reader.read_string(models[0]))
    program["guards_code"] = []  # Python code, unused here
    for problem in _find_problems(program):
        raise FormatError(f"{path}: {problem}, so loading the file could execute code. {_REMEDY}")
    inputs = _unpickle(reader.read_bytes(names.SAMPLE_INPUTS_FILENAME_FORMAT.format("model")), path, "the example inputs")
    return ExportedProgramDeserializer().deserialize(
        _dict_to_dataclass(schema.ExportedProgram, program),
        _read_tensors(reader, path, names.WEIGHTS_CONFIG_FILENAME_FORMAT, names.WEIGHTS_DIR, records),
        _read_tensors(reader, path, names.CONSTANTS_CONFIG_FILENAME_FORMAT, names.CONSTANTS_DIR, records),
        inputs,
    )


def _unpickle(content: bytes, path: Path, subject: str) -> Any:
    try:
        return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu") if content else ()
    except Exception as error:  # torch.load raises many types
        match = re.search(r"GLOBAL (\S+)", str(error))
        detail = f" ({match[1]})" if match else ""
        raise FormatError(
            f"{path}: expected only tensors and plain data in {subject}, got objects{detail}. Loading them could execute code. "
            f"{_REMEDY}"
        ) from error


def _read_tensors(
    reader: PT2ArchiveReader, path: Path, config_name: str, folder: str, records: set[str]
) -> dict[str, torch.Tensor]:
    from torch._export.serde import serialize
    from torch.export.pt2_archive import _package as package
    from torch.export.pt2_archive import constants as names

    config_path = config_name.format("model")
    if config_path not in records:
        raise FormatError(
            f"{path}: {config_path} is missing; the file was probably written by an older PyTorch. Export the model with torch "
            f"{torch.__version__}."
        )
    config = package._load_payload_config(reader, config_path)
    stored = package._build_file_map(reader, config, folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, payload in config.config.items():
        if payload.path_name.startswith((names.CUSTOM_OBJ_FILENAME_PREFIX, names.OPAQUE_OBJ_FILENAME_PREFIX)):
            raise FormatError(
                f"{path}: expected a tensor for constant {name}, got a pickled object. Loading it could execute code. {_REMEDY}"
            )
        if payload.use_pickle or payload.tensor_meta is None:
            value = _unpickle(reader.read_bytes(f"{folder}{payload.path_name}"), path, f"the bytes of {name}")
            if not isinstance(value, torch.Tensor):
                raise FormatError(f"{path}: expected a tensor for {name}, got {type(value).__name__}.")
        else:
            meta = payload.tensor_meta
            value = (
                stored[payload.path_name]
                .detach()
                .as_strided(
                    serialize.deserialize_size(meta.sizes),
                    serialize.deserialize_stride(meta.strides),
                    serialize.deserialize_storage_offset(meta.storage_offset),
                )
            )
            if payload.is_param:
                value = torch.nn.Parameter(value, requires_grad=meta.requires_grad)
        tensors[name] = value
    return tensors


def _find_problems(program: Mapping[str, Any]) -> Iterator[str]:
    for field, text in _iterate_texts(program, ""):
        if field == "expr_str" and not _is_expression(text):
            yield f"expected a shape expression, got {text[:80]!r}"
        elif field in _OPERATORS and not _is_operator(text):
            yield f"expected an operator that a program may call, got {text[:80]!r}"
        elif field in ("in_spec", "out_spec") and (unknown := trees.find_import(text)):
            yield f"expected inputs and outputs of built-in types, got {unknown[:80]!r}"
        elif field in _NAMES:
            if text and not text.isidentifier():
                yield f"expected a Python identifier, got {text[:80]!r}"
        elif field not in _TEXT | _OPERATORS and not _PATH.fullmatch(text):
            yield f"expected a name, got {text[:80]!r}"


def _iterate_texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, list):
        for child in value:
            yield from _iterate_texts(child, field)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield "key", key
            if key != "metadata":
                yield from _iterate_texts(child, key)


def _is_expression(text: str) -> bool:
    if re.search(r"[\n\r#\\]", text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    plain = (ast.Expression, ast.Load, ast.keyword, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
                return False
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and not re.fullmatch(r"[\w.+-]+", node.value, re.ASCII):
                return False
        elif isinstance(node, ast.Name):
            if node.id.startswith("_"):
                return False
        elif not isinstance(node, plain):
            return False
    return True


def _is_operator(target: str) -> bool:
    from torch._export.serde.serialize import _SYM_OPS

    if target.startswith("torch.ops."):
        parts = target.split(".")[2:]
        if parts[:1] == ["higher_order"]:
            return len(parts) == 2 and parts[1] in _HIGHER_ORDER
        if len(parts) != 3 or any(part.startswith("__") for part in parts):
            return False
        operator = getattr(getattr(getattr(torch.ops, parts[0], None), parts[1], None), parts[2], None)
        if not isinstance(operator, torch._ops.OpOverload):
            return operator is None  # torch reports operators of libraries that are not imported
        return not any(argument.name in _FILE_ARGUMENTS for argument in operator._schema.arguments)
    return target in {f"{symbolic.__module__}.{symbolic.__name__}" for symbolic in _SYM_OPS}
