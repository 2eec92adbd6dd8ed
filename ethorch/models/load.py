from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ethorch.models import zoos
from ethorch.models.exported_program import load_exported_program
from ethorch.models.open_sizes import dynamic_shapes_of
from ethorch.models.samples import Keywords, read_samples
from ethorch.models.user_code import ZOOS, Reference, convert_user_errors, find, first_sentence
from ethorch.models.zoos import torchvision_models
from ethorch.support.errors import EthorchError, FormatError, SpecError, UserCodeError
from ethorch.support.wording import did_you_mean
from ethorch.targets.selection import Padding

logger = logging.getLogger(__name__)

#: torch modules that behave differently in training.
_MODE_DEPENDENT = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class UserModel:
    """A model and its inputs.

    Inputs are a tuple, a dict of keyword arguments, or (tuple, dict). Keyword arguments that contain tensors become further inputs
    of the module, in the order of the example inputs. Other keyword arguments become constants. See :class:`KeywordInputs`.

    Attributes:
        example_inputs: Inputs that determine the shapes.
        calibration: Inputs that determine the quantization ranges. Default: the example inputs.
        quantized: Whether the graph has quantize and dequantize operators, e.g. from ``convert_pt2e``.
        dynamic_shapes: Dynamic dims of each example tensor, from ``open_sizes.dynamic_shapes_of``.
        is_exported: Whether torch.export created the module. All sizes except dynamic dims are then fixed.
        name: Reference to the model, class name of the module, or "" for a graph module.
    """

    module: nn.Module
    example_inputs: Inputs
    calibration: Sequence[Inputs] = ()
    quantized: bool = False
    dynamic_shapes: Sequence[dict[int, Any]] | None = None
    is_exported: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name and not isinstance(self.module, torch.fx.GraphModule):
            object.__setattr__(self, "name", type(self.module).__name__)
        _check_inputs(self.example_inputs)
        arguments, keywords = _split_arguments(self.module, self.example_inputs)
        wrapped = KeywordInputs(self.module, len(arguments), keywords) if keywords else None
        if wrapped is not None:
            object.__setattr__(self, "module", wrapped)
        inputs = arguments if wrapped is None else (*arguments, *wrapped.values(keywords))
        object.__setattr__(self, "example_inputs", pytree.tree_map(_as_contiguous, inputs))
        samples = []
        for number, sample in enumerate(self.calibration):
            arguments, sample_keywords = _split_arguments(self.module if wrapped is None else wrapped.module, sample)
            if sample_keywords.keys() != keywords.keys():
                raise EthorchError(
                    f"calibration sample {number}: expected the keyword arguments {', '.join(keywords) or 'none'}, as in the "
                    f"example inputs, got {', '.join(sample_keywords) or 'none'}."
                )
            values = arguments if wrapped is None else (*arguments, *wrapped.values(sample_keywords))
            samples.append(pytree.tree_map(_as_contiguous, values))
        object.__setattr__(self, "calibration", samples)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of ``forward``'s inputs, in order. Inputs in ``*args`` have none."""
        return (*self.keywords.positional, *self.keywords.names)

    @property
    def prefix(self) -> str:
        """The prefix of the names of the model's submodules in ``module``: ``module.`` for each wrapper."""
        return "module." * len(self._wrappers())

    def submodules(self) -> dict[str, nn.Module]:
        """Return the model's submodules, keyed by their names in the model without wrappers."""
        return dict(self._unwrapped().named_modules())

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of parameters of ``forward`` that the example inputs omit."""
        known = {*self.input_names, *self.keywords.constants}
        return {
            each.name: each.default
            for each in _parameters(self._unwrapped())
            if each.name not in known and each.default is not each.empty
        }

    @property
    def keywords(self) -> Keywords:
        """See ``Keywords``."""
        wrapper = next((wrapper for wrapper in self._wrappers() if isinstance(wrapper, KeywordInputs)), None)
        names, constants = ((), {}) if wrapper is None else (wrapper.names, wrapper.constants)
        positional = _parameter_names(self._unwrapped())[: len(self.example_inputs) - len(names)]
        return Keywords(names, constants, positional)

    def _wrappers(self) -> list[Wrapper]:
        wrappers: list[Wrapper] = []
        module = self.module
        while isinstance(module, Wrapper):
            wrappers.append(module)
            module = module.module
        return wrappers

    def _unwrapped(self) -> nn.Module:
        return self._wrappers()[-1].module if self._wrappers() else self.module


def _as_contiguous(x: Any) -> Any:
    # ExecuTorch's kernels do not support other strides. ``from_numpy(x[None])`` and ``expand`` return tensors with stride 0.
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or (x.is_contiguous() and 0 not in x.stride()):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _parameters(module: nn.Module) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return ()


def _parameter_names(module: nn.Module) -> tuple[str, ...]:
    return tuple(each.name for each in _parameters(module) if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))


@dataclass(frozen=True)
class UserMethods:
    """Models that share buffers or weights, and become the methods of one program.

    Attributes:
        models: Models by method name. Shared tensors are the same objects. The models' ``calibration`` is not used.
        sessions: Sequences of calibration calls (name, inputs). Each session starts with the initial values of the buffers.
        alternatives: Whether the models are one model with different input shapes and shared quantization parameters.
        paddings: Axes along which inputs may be padded, if ``alternatives`` is set.
    """

    models: Mapping[str, UserModel]
    sessions: Sequence[Sequence[tuple[str, Inputs]]] = ()
    alternatives: bool = False
    paddings: tuple[Padding, ...] = ()


def check_module(model: Any) -> None:
    """Raise EthorchError if the model is not an nn.Module instance, or is a TorchScript module."""
    if isinstance(model, torch.jit.ScriptModule):
        raise EthorchError(
            f"expected an nn.Module, got the TorchScript module {type(model).__name__}. Pass the nn.Module from which torch.jit "
            "created the TorchScript module."
        )
    if isinstance(model, Mapping) and model and all(isinstance(value, torch.Tensor) for value in model.values()):
        raise EthorchError(
            f"expected an nn.Module, got a state dict of {len(model)} tensors. Create the module and call load_state_dict, or pass "
            "the module and `--weights FILE` on the command line."
        )
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise EthorchError(f"expected an nn.Module, got the class {model.__name__}. Create an instance: {model.__name__}().")
    if not isinstance(model, nn.Module):
        raise EthorchError(f"expected an nn.Module, an ExportedProgram, or a model name, got {type(model).__name__}.")


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, (tuple, list)) and inputs and all(type(value) is int for value in inputs):
        shape = ", ".join(map(str, inputs))
        raise EthorchError(f"expected tensors as example inputs, got the shape ({shape}). Use torch.randn({shape}).")
    for number, value in enumerate(pytree.tree_leaves(inputs)):
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            raise EthorchError(f"input {number}: expected a dense tensor, got the layout {value.layout}. Use x.to_dense().")


class Wrapper(nn.Module):
    """A base class of wrappers that change a model's inputs or outputs."""

    module: nn.Module


class KeywordInputs(Wrapper):
    """A wrapper with only positional inputs: the model's positional arguments, then its keyword arguments."""

    def __init__(self, module: nn.Module, arguments: int, keywords: Mapping[str, Any]):
        super().__init__()
        self.module = module
        self.arguments = arguments
        self.names = [name for name, value in keywords.items() if _holds_tensors(value)]
        self.constants = {name: value for name, value in keywords.items() if name not in self.names}
        self.training = module.training

    def values(self, keywords: Mapping[str, Any]) -> Inputs:
        return tuple(keywords[name] for name in self.names)

    def forward(self, *inputs: Any) -> Any:
        named = dict(zip(self.names, inputs[self.arguments :], strict=True))
        return self.module(*inputs[: self.arguments], **named, **self.constants)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _split_arguments(module: nn.Module, inputs: Any) -> tuple[Inputs, dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if not isinstance(inputs, (tuple, list)):
        return (inputs,), {}
    if len(inputs) == 2 and isinstance(inputs[0], (tuple, list)) and isinstance(inputs[1], Mapping):
        try:  # the positional arguments of a model can also be a tuple and a dict
            inspect.signature(module.forward).bind(*inputs[0], **inputs[1])
        except (TypeError, ValueError):
            return tuple(inputs), {}
        return tuple(inputs[0]), dict(inputs[1])
    return tuple(inputs), {}


def load_model(reference: str) -> UserModel | UserMethods:
    """Load a model, or several methods, by name.

    - ``FILE.py:NAME``, ``package.module:NAME``: NAME is a function without arguments, or a variable. Its value is
      ``(module, example_inputs)`` or ``(module, example_inputs, calibration)`` (see ``ethorch.models.samples``), or a module. A
      module's example inputs are its attribute ``example_inputs`` or ``example_input_array``, or a variable named in
      ``INPUT_NAMES``. For several methods, modules and inputs are dicts with the same keys, and calibration consists of sessions
      of (method, inputs).
    - ``FILE.py``: File for ExecuTorch's Arm scripts, with ``ModelUnderTest`` and ``ModelInputs``.
    - ``FILE.pt2``: Program written by ``torch.export.save`` with example inputs.
    - ``torchvision:NAME``, ``timm:NAME``, ``hf:FOLDER``, ``executorch:NAME``: See ``ethorch.models.zoos``.

    Raises:
        SpecError: The file, module, function or model does not exist.
        EthorchError: The value has an unsupported type.
        UserCodeError: The file or the function raised an error.
    """
    location = find(reference)
    if location.kind in ZOOS:
        return replace(UserModel(*zoos.load(location.kind, location.name)), name=reference)
    if location.kind == "exported":
        model: UserModel | UserMethods = _load_exported(Path(location.place))
    else:
        model = _create_from_python(_import_reference(location), location)
    return replace(model, name=Path(reference).name) if isinstance(model, UserModel) else model


#: Names of variables that contain the inputs of a module. ExecuTorch's Arm scripts use ``ModelInputs``.
INPUT_NAMES = ("example_inputs", "EXAMPLE_INPUTS", "ModelInputs")


def _import_reference(reference: Reference) -> ModuleType:
    folder = os.getcwd() if reference.kind == "module" else str(Path(reference.place).parent)
    sys.path.insert(0, folder)
    try:
        with convert_user_errors(f"{reference.place} cannot be imported"):
            if reference.kind == "module":
                return importlib.import_module(reference.place)
            path = Path(reference.place)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None:
                raise EthorchError(f"expected a Python file, got {path}.")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module  # dataclasses look up their module in sys.modules
            try:
                spec.loader.exec_module(module)
            except ImportError as error:
                if "attempted relative import" not in str(error):
                    raise
                package = path.resolve().parent
                raise UserCodeError(
                    f"{path} uses relative imports, so it must be imported as part of its package. Change to "
                    f"the folder {package.parent}, and use {package.name}.{path.stem}:{reference.name}."
                ) from error
            except RuntimeError as error:
                if "torchvision::" not in str(error):
                    raise
                torchvision_models(needed=False)  # the extension of torchvision does not match the installed torch
                spec.loader.exec_module(module)
            return module
    finally:
        sys.path.remove(folder)


def read_object(name: str) -> Any:
    """Import and return the object ``FILE.py:NAME`` or ``package.module:NAME``.

    Raises:
        SpecError: The file, module or name does not exist.
        UserCodeError: The file cannot be imported.
    """
    reference = find(name)
    if reference.kind not in ("file", "module"):
        raise SpecError(f"expected FILE.py:NAME or package.module:NAME, got {name}.")
    module = _import_reference(reference)
    if not hasattr(module, reference.name):
        suggestion = did_you_mean(reference.name, [key for key in vars(module) if not key.startswith("_")])
        raise SpecError(f"{reference.place} has no {reference.name!r}.{suggestion}")
    return getattr(module, reference.name)


def _create_from_python(module: ModuleType, reference: Reference) -> UserModel | UserMethods:
    path, name = reference.place, reference.name
    model = getattr(module, name, None)
    if callable(model) and not isinstance(model, nn.Module):
        with convert_user_errors(f"{path}:{name}() failed"):
            model = model()
    elif not isinstance(model, (nn.Module, tuple)):
        names = [key for key, value in vars(module).items() if _can_be_model(value, module.__name__) and not key.startswith("_")]
        suggestion = did_you_mean(name, names)
        raise SpecError(f"{path} has no {name!r}.{suggestion} Available names: {', '.join(names) or 'none'}.")
    if isinstance(model, nn.Module):
        holders = [(model, "example_inputs"), (model, "example_input_array"), *((module, name) for name in INPUT_NAMES)]
        inputs = next((candidate for holder, key in holders if (candidate := getattr(holder, key, None)) is not None), None)
        if inputs is None:
            raise EthorchError(
                f"{path}:{name}: expected example inputs, got only a module. Define a variable example_inputs in the file, or use "
                "a function that returns (module, example_inputs) or (module, example_inputs, calibration)."
            )
        model = model, inputs, getattr(module, "calibration", ())
    if isinstance(model, tuple) and len(model) in (2, 3) and isinstance(model[0], Mapping):
        return user_methods(*model)
    if not isinstance(model, tuple) or len(model) not in (2, 3) or not isinstance(model[0], nn.Module):
        raise EthorchError(
            f"{path}:{name}(): expected (module, example_inputs) or (module, example_inputs, calibration), got "
            f"{type(model).__name__}."
        )
    user = UserModel(_set_eval_mode(model[0]), model[1], quantized=is_quantized(model[0]))
    if len(model) == 2:
        return user
    samples = read_samples(model[2], user.example_inputs, keywords=user.keywords, kind="calibration sample")
    return replace(user, calibration=[sample.inputs for sample in samples])


def user_methods(models: Mapping[str, Any], example_inputs: Any, sessions: Any = None) -> UserMethods:
    """Combine the models and inputs of several methods, and check that they match.

    Args:
        models: ``nn.Module`` or UserModel by method name.
        example_inputs: Inputs by method name. Optional for a UserModel.
        sessions: Sessions of calls (name, inputs), or a single session.

    Raises:
        EthorchError: Method names differ or are not strings, or a session is malformed or does not match the example inputs.
    """
    inputs = {} if example_inputs is None else example_inputs
    if not isinstance(inputs, Mapping) or not models:
        raise EthorchError("expected a dict of models and a dict of example inputs, both keyed by method name.")
    for name in (*models, *inputs):
        if not isinstance(name, str) or not name:
            raise EthorchError(f"expected a non-empty string as the name of a method, e.g. 'decode', got {name!r}.")
        if name not in models:
            raise EthorchError(
                f"expected example inputs for the methods {', '.join(map(repr, models))}, got example inputs for "
                f"{name!r}, which has no model."
            )
    user_models = {}
    for name, model in models.items():
        if isinstance(model, UserModel) and name not in inputs:
            user_models[name] = model
        elif isinstance(model, (nn.Module, UserModel)) and name in inputs:
            module = model.module if isinstance(model, UserModel) else _set_eval_mode(model)
            user_models[name] = UserModel(module, inputs[name], quantized=is_quantized(module))
        else:
            problem = " has no example inputs" if name not in inputs else f": expected an nn.Module, got {type(model).__name__}"
            raise EthorchError(f"method {name!r}{problem}.")
    return UserMethods(user_models, _read_sessions(user_models, [] if sessions is None else sessions))


def _read_sessions(models: Mapping[str, UserModel], calls_by_session: Any) -> list[list[tuple[str, Inputs]]]:
    calls_by_session = list(calls_by_session)
    if calls_by_session and all(_is_call(entry) for entry in calls_by_session):
        calls_by_session = [calls_by_session]
    sessions = []
    for number, session in enumerate(calls_by_session):
        calls = []
        for call_number, call in enumerate(session):
            place = f"call {call_number} of calibration session {number}"
            if not _is_call(call):
                raise EthorchError(f"{place}: expected (method name, inputs), got {type(call).__name__}.")
            name, inputs = call
            if name not in models:
                raise EthorchError(f"{place}: expected one of the methods {', '.join(map(repr, models))}, got {name!r}.")
            user = models[name]
            kind = f"{place} ({name!r}), sample"
            samples = list(read_samples([inputs], user.example_inputs, keywords=user.keywords, kind=kind))
            calls += [(name, sample.inputs) for sample in samples]
        sessions.append(calls)
    return sessions


def _is_call(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str)


def _can_be_model(value: Any, file: str) -> bool:
    return isinstance(value, (nn.Module, tuple)) or (callable(value) and getattr(value, "__module__", file) == file)


def _set_eval_mode(module: nn.Module) -> nn.Module:
    try:
        return module.eval()
    except NotImplementedError:
        return module


def _load_exported(path: Path) -> UserModel:
    try:
        program = load_exported_program(path)
    except FormatError:
        raise
    except Exception as error:  # zip, pickle and schema errors have many types
        raise EthorchError(f"{path}: expected a program written by torch.export.save. {first_sentence(error)}") from error
    if not program.example_inputs or not any(program.example_inputs):
        raise EthorchError(f"{path}: expected example inputs, got none. Export the model with example inputs.")
    return of_exported(program)


def of_exported(program: ExportedProgram, example_inputs: Any = None) -> UserModel:
    """Return the model of an exported program, with the program's dynamic dims.

    Args:
        example_inputs: Inputs. Default: the example inputs of the program.
    """
    module = program.module(check_guards=False)
    if example_inputs is None:
        arguments, keywords = program.example_inputs
        example_inputs = tuple(arguments), keywords
    open_dims = dynamic_shapes_of(program)
    return UserModel(module, example_inputs, quantized=is_quantized(module), dynamic_shapes=open_dims, is_exported=True)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Set the module to eval mode inside the context, then restore the mode of each submodule."""
    modes = [(part, part.training) for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def mention_training(module: nn.Module) -> None:
    """Warn if mode-dependent submodules, e.g. dropout, are in training mode."""
    parts = sorted({type(part).__name__ for part in module.modules() if part.training and isinstance(part, _MODE_DEPENDENT)})
    if parts:
        logger.warning(
            "the model is in training mode (%s). ethorch compiles the model in evaluation mode. Call model.eval().",
            ", ".join(parts),
        )


def is_quantized(module: nn.Module) -> bool:
    """Return True if the module is a graph with quantize operators."""
    graph = getattr(module, "graph", None)
    return graph is not None and any("quantized_decomposed" in str(node.target) for node in graph.nodes)
