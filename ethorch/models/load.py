"""A user's files: models to load, inputs to read or to make up, outputs to save."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ethorch.models import zoos
from ethorch.models.exported_program import load_exported_program
from ethorch.models.open_sizes import dynamic_shapes_of
from ethorch.models.samples import read_samples
from ethorch.models.user_code import ZOOS, Reference, explained, find, first_sentence
from ethorch.models.zoos import torchvision_models
from ethorch.support.errors import EthorchError, FormatError, SpecError, UserCodeError
from ethorch.support.wording import did_you_mean
from ethorch.targets.selection import Padding

logger = logging.getLogger(__name__)

#: Modules of torch that compute something else in training.
_TRAINED_OTHERWISE = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class UserModel:
    """A model and inputs for it.

    Inputs are a tuple, or a dict of keyword arguments, or (tuple, dict). Of keyword arguments those that hold tensors become
    further inputs of the module, in the order of the example's, and the others constants of it: see ``KeywordInputs``.

    Attributes:
        module: in eval mode; quantized already where ``quantized`` says so.
        example_inputs: fix the shapes.
        calibration: inputs whose ranges become the model's; empty means the example inputs.
        quantized: it holds quantize and dequantize operators, as from ``convert_pt2e``.
        dynamic_shapes: the open dims of each tensor among the example inputs, as ``open_sizes.dynamic_shapes_of`` returns them;
            None: all are fixed.
        is_exported: torch.export made it: sizes that are not open are part of it.
    """

    module: nn.Module
    example_inputs: Inputs
    calibration: Sequence[Inputs] = ()
    quantized: bool = False
    dynamic_shapes: Sequence[dict[int, Any]] | None = None
    is_exported: bool = False

    def __post_init__(self) -> None:
        _check_inputs(self.example_inputs)
        arguments, keywords = _arguments(self.module, self.example_inputs)
        wrapped = KeywordInputs(self.module, len(arguments), keywords) if keywords else None
        if wrapped is not None:
            object.__setattr__(self, "module", wrapped)
        inputs = arguments if wrapped is None else (*arguments, *wrapped.values(keywords))
        object.__setattr__(self, "example_inputs", inputs)
        samples = []
        for number, sample in enumerate(self.calibration):
            arguments, given = _arguments(self.module if wrapped is None else wrapped.module, sample)
            if given.keys() != keywords.keys():
                raise EthorchError(
                    f"calibration sample {number} has the keyword arguments {', '.join(given) or 'none'}; the example inputs have "
                    f"{', '.join(keywords) or 'none'}."
                )
            samples.append(arguments if wrapped is None else (*arguments, *wrapped.values(given)))
        object.__setattr__(self, "calibration", samples)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in the signature of ``forward``, in order; empty if it has ``*args``."""
        if isinstance(self.module, KeywordInputs):
            return (*_parameters(self.module.module)[: self.module.arguments], *self.module.names)
        return _parameters(self.module)[: len(self.example_inputs)]


def _parameters(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the positional parameters of ``forward``."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))


@dataclass(frozen=True)
class UserMethods:
    """Models that share buffers or weights, to become the methods of one program.

    Attributes:
        models: by the method's name. What they share are the same tensors. Their ``calibration`` is not used.
        sessions: calls in order as (name, inputs), for calibration; each session begins with the buffers' initial contents.
        alternatives: they are one model at several shapes, with one set of quantization parameters.
        paddings: Of alternatives, the axes along which inputs may be filled up.
    """

    models: Mapping[str, UserModel]
    sessions: Sequence[Sequence[tuple[str, Inputs]]] = ()
    alternatives: bool = False
    paddings: tuple[Padding, ...] = ()


def check_module(model: Any) -> None:
    """Check that the model is a module that torch.export accepts.

    Raises:
        EthorchError: It is a TorchScript module, a state dict, or another object.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise EthorchError(
            f"the model is a {type(model).__name__} of TorchScript, which torch.export does not accept. Pass the nn.Module from "
            "which torch.jit created it."
        )
    if isinstance(model, Mapping) and model and all(isinstance(value, torch.Tensor) for value in model.values()):
        raise EthorchError(
            f"the model is a state dict of {len(model)} tensors; expected an nn.Module. Create the module and call "
            "load_state_dict, or pass the module and `--weights FILE` on the command line."
        )
    if not isinstance(model, nn.Module):
        raise EthorchError(f"the model is {type(model).__name__}; expected an nn.Module, an ExportedProgram, or a model name.")


def _check_inputs(inputs: Any) -> None:
    """Check that the example inputs are not the shape of an input.

    Raises:
        EthorchError: All of them are integers.
    """
    if isinstance(inputs, (tuple, list)) and inputs and all(type(value) is int for value in inputs):
        shape = ", ".join(map(str, inputs))
        raise EthorchError(f"the example inputs ({shape}) look like a shape; expected tensors. Use torch.randn({shape}).")


class KeywordInputs(nn.Module):
    """A model called by position: the first inputs are its arguments, the others its keyword arguments by name."""

    def __init__(self, module: nn.Module, arguments: int, keywords: Mapping[str, Any]):
        super().__init__()
        self.module = module
        self.arguments = arguments
        self.names = [name for name, value in keywords.items() if _holds_tensors(value)]
        self.constants = {name: value for name, value in keywords.items() if name not in self.names}
        self.training = module.training

    def values(self, keywords: Mapping[str, Any]) -> Inputs:
        """The inputs that stand for keyword arguments."""
        return tuple(keywords[name] for name in self.names)

    def forward(self, *inputs: Any) -> Any:
        """The module's results."""
        named = dict(zip(self.names, inputs[self.arguments :], strict=True))
        return self.module(*inputs[: self.arguments], **named, **self.constants)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _arguments(module: nn.Module, inputs: Any) -> tuple[Inputs, dict[str, Any]]:
    """Inputs as (arguments, keyword arguments)."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if not isinstance(inputs, (tuple, list)):
        return (inputs,), {}
    if len(inputs) == 2 and isinstance(inputs[0], (tuple, list)) and isinstance(inputs[1], Mapping):
        try:  # unless the model takes a tuple and a dict
            inspect.signature(module.forward).bind(*inputs[0], **inputs[1])
        except (TypeError, ValueError):
            return tuple(inputs), {}
        return tuple(inputs[0]), dict(inputs[1])
    return tuple(inputs), {}


def load_model(reference: str) -> UserModel | UserMethods:
    """The model that a name stands for, or the models.

    - ``FILE.py:NAME``, ``package.module:NAME``: NAME is a function that takes no arguments, or a variable. It returns, or is,
      ``(module, example_inputs)`` or ``(module, example_inputs, calibration)``, the last as ``ethorch.models.samples`` takes them;
      or a module, whose inputs are its attribute ``example_inputs`` or ``example_input_array``, or the file's variable of one of
      the names in ``INPUT_NAMES``. Inputs are a tuple, a tensor or a dict of keyword arguments. For a program of several methods
      the module and the inputs are dicts of the same keys, and the third, if there is one, sessions of (method, inputs).
    - ``FILE.py``: one for ExecuTorch's Arm scripts, with ``ModelUnderTest`` and ``ModelInputs``.
    - ``FILE.pt2``: a program that ``torch.export.save`` wrote with its example inputs.
    - ``torchvision:NAME``, ``timm:NAME``, ``hf:FOLDER``, ``executorch:NAME``: see ``ethorch.models.zoos``.

    Raises:
        SpecError: there is no such file, module, function or model.
        EthorchError: it is, or returned, something else.
        UserCodeError: the file or the factory raised an error.
    """
    found = find(reference)
    if found.kind in ZOOS:
        return UserModel(*zoos.load(found.kind, found.name))
    if found.kind == "exported":
        return _from_exported(Path(found.place))
    return _from_python(_imported(found), found)


#: Variables of a user's file that hold inputs for a module in it; ``ModelInputs`` is what ExecuTorch's Arm scripts look for.
INPUT_NAMES = ("example_inputs", "EXAMPLE_INPUTS", "ModelInputs")


def _imported(reference: Reference) -> ModuleType:
    """The user's Python file or module, run."""
    folder = os.getcwd() if reference.kind == "module" else str(Path(reference.place).parent)
    sys.path.insert(0, folder)
    try:
        with explained(f"{reference.place} cannot be imported"):
            if reference.kind == "module":
                return importlib.import_module(reference.place)
            path = Path(reference.place)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None:
                raise EthorchError(f"{path} cannot be imported as a Python file.")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module  # dataclasses look their module up there
            try:
                spec.loader.exec_module(module)
            except ImportError as error:
                if "attempted relative import" not in str(error):
                    raise
                package = path.resolve().parent
                raise UserCodeError(
                    f"{path} uses relative imports, so it must be imported as part of its package. Write "
                    f"{package.name}.{path.stem}:{reference.name} in the folder {package.parent}."
                ) from error
            except RuntimeError as error:
                if "torchvision::" not in str(error):
                    raise
                torchvision_models(needed=False)  # its compiled extension does not fit the installed torch
                spec.loader.exec_module(module)
            return module
    finally:
        sys.path.remove(folder)


def read_object(name: str) -> Any:
    """Return what ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Raises:
        SpecError: There is no such file, module or name.
        UserCodeError: The file cannot be imported.
    """
    reference = find(name)
    if reference.kind not in ("file", "module"):
        raise SpecError(f"{name} names no function; expected FILE.py:NAME or package.module:NAME.")
    module = _imported(reference)
    if not hasattr(module, reference.name):
        meant = did_you_mean(reference.name, [key for key in vars(module) if not key.startswith("_")])
        raise SpecError(f"{reference.place} has no {reference.name!r}.{meant}")
    return getattr(module, reference.name)


def _from_python(module: ModuleType, reference: Reference) -> UserModel | UserMethods:
    path, name = reference.place, reference.name
    made = getattr(module, name, None)
    if callable(made) and not isinstance(made, nn.Module):
        with explained(f"{path}:{name}() failed"):
            made = made()
    elif not isinstance(made, (nn.Module, tuple)):
        known = [key for key, value in vars(module).items() if _offers_model(value, module.__name__) and not key.startswith("_")]
        meant = did_you_mean(name, known)
        raise SpecError(f"{path} has no {name!r}.{meant} It has: {', '.join(known) or 'no function'}.")
    if isinstance(made, nn.Module):
        holders = [(made, "example_inputs"), (made, "example_input_array"), *((module, name) for name in INPUT_NAMES)]
        inputs = next((found for holder, key in holders if (found := getattr(holder, key, None)) is not None), None)
        if inputs is None:
            raise EthorchError(
                f"{path}:{name} is a module without example inputs: give the file a variable example_inputs, or name a function "
                "that has to return (module, example_inputs) or (module, example_inputs, calibration)."
            )
        made = made, inputs, getattr(module, "calibration", ())
    if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], Mapping):
        return user_methods(*made)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise EthorchError(
            f"{path}:{name}() returned {type(made).__name__}; it has to return (module, example_inputs) or "
            "(module, example_inputs, calibration)."
        )
    user = UserModel(_in_eval_mode(made[0]), made[1], quantized=is_quantized(made[0]))
    if len(made) == 2 or len(made[2]) == 0:
        return user
    names = user.module.names if isinstance(user.module, KeywordInputs) else ()
    found = read_samples(made[2], user.example_inputs, keywords=names, what="calibration sample")
    return replace(user, calibration=[sample.inputs for sample in found])


def user_methods(models: Mapping[str, Any], example_inputs: Any, sessions: Any = None) -> UserMethods:
    """Models of several methods with their inputs, checked.

    Args:
        models: name of the method -> ``nn.Module`` or UserModel.
        example_inputs: name of the method -> inputs; those of a UserModel may be missing.
        sessions: of (name, inputs); one session alone is taken too.

    Raises:
        EthorchError: names of models and inputs differ or are no strings, or a session is no list of calls, or inputs do not fit.
    """
    inputs = {} if example_inputs is None else example_inputs
    if not isinstance(inputs, Mapping) or not models:
        raise EthorchError("several methods need several inputs: give models and example inputs as dicts of the same names.")
    for name in (*models, *inputs):
        if not isinstance(name, str) or not name:
            raise EthorchError(f"a method is called {name!r}; its name has to be a string that is not empty, such as 'decode'.")
        if name not in models:
            raise EthorchError(f"there are example inputs for {name!r}, but no model; there are {', '.join(map(repr, models))}.")
    found = {}
    for name, model in models.items():
        if isinstance(model, UserModel) and name not in inputs:
            found[name] = model
        elif isinstance(model, (nn.Module, UserModel)) and name in inputs:
            module = model.module if isinstance(model, UserModel) else _in_eval_mode(model)
            found[name] = UserModel(module, inputs[name], quantized=is_quantized(module))
        else:
            what = "has no example inputs" if name not in inputs else f"is {type(model).__name__}; it has to be an nn.Module"
            raise EthorchError(f"method {name!r} {what}.")
    return UserMethods(found, _sessions(found, [] if sessions is None else sessions))


def _sessions(models: Mapping[str, UserModel], given: Any) -> list[list[tuple[str, Inputs]]]:
    given = list(given)
    if given and all(_is_call(entry) for entry in given):
        given = [given]
    sessions = []
    for number, session in enumerate(given):
        calls = []
        for place, call in enumerate(session):
            what = f"call {place} of calibration session {number}"
            if not _is_call(call):
                raise EthorchError(f"{what} is {type(call).__name__}; it has to be (name of a method, its inputs).")
            name, inputs = call
            if name not in models:
                raise EthorchError(f"{what} is of {name!r}; there are {', '.join(map(repr, models))}.")
            user = models[name]
            names = user.module.names if isinstance(user.module, KeywordInputs) else ()
            taken = list(read_samples([inputs], user.example_inputs, keywords=names, what=f"{what}, of {name!r},"))
            calls += [(name, sample.inputs) for sample in taken]
        sessions.append(calls)
    return sessions


def _is_call(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str)


def _offers_model(value: Any, file: str) -> bool:
    """May a value of a user's file be the one that is asked for? What it imports from elsewhere is not."""
    return isinstance(value, (nn.Module, tuple)) or (callable(value) and getattr(value, "__module__", file) == file)


def _in_eval_mode(module: nn.Module) -> nn.Module:
    """The module in eval mode; one that torch.export made has no other."""
    try:
        return module.eval()
    except NotImplementedError:
        return module


def _from_exported(path: Path) -> UserModel:
    try:
        program = load_exported_program(path)
    except FormatError:
        raise
    except Exception as error:  # zip, pickle and schema errors of many types
        raise EthorchError(f"{path} is not a program that torch.export.save wrote: {first_sentence(error)}") from error
    if not program.example_inputs or not any(program.example_inputs):
        raise EthorchError(f"{path} holds no example inputs: export it with them.")
    return of_exported(program)


def of_exported(program: ExportedProgram, example_inputs: Any = None) -> UserModel:
    """The model that ``torch.export`` made, with the sizes open that the program leaves open.

    Args:
        example_inputs: instead of the program's own.
    """
    module = program.module(check_guards=False)
    if example_inputs is None:
        arguments, keywords = program.example_inputs
        example_inputs = tuple(arguments), keywords
    open_dims = dynamic_shapes_of(program)
    return UserModel(module, example_inputs, quantized=is_quantized(module), dynamic_shapes=open_dims, is_exported=True)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """The module and all in it in eval mode inside, as they were after it. A graph module that has no modes stays as it is."""
    modes = [(part, part.training) for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def mention_training(module: nn.Module) -> None:
    """Log a warning if parts of the module that compute something else in training are in training mode."""
    parts = sorted({type(part).__name__ for part in module.modules() if part.training and isinstance(part, _TRAINED_OTHERWISE)})
    if parts:
        logger.warning(
            "the model is in training mode (%s); it is compiled as in evaluation mode, and left as it was. Call model.eval().",
            ", ".join(parts),
        )


def is_quantized(module: nn.Module) -> bool:
    """Does the graph hold quantize operators already?"""
    graph = getattr(module, "graph", None)
    return graph is not None and any("quantized_decomposed" in str(node.target) for node in graph.nodes)


def load_inputs(paths: Iterable[str]) -> Inputs:
    """Tensors from .npy files, one per input, or from one .npz or .pt file that holds all of them in order."""
    tensors: list[torch.Tensor] = []
    for path in paths:
        try:
            if path.endswith(".pt"):
                tensors += pytree.tree_leaves(torch.load(path, weights_only=True))
            else:
                array = np.load(path, allow_pickle=False)
                tensors += [torch.from_numpy(a) for a in ([array] if isinstance(array, np.ndarray) else array.values())]
        except Exception as error:  # whatever numpy, zip and torch raise for a file that is something else
            wrong = "it is no .npy, .npz or .pt file of tensors." if "pickle" in str(error) else first_sentence(error)
            raise EthorchError(f"cannot read tensors from {path}: {wrong}") from error
    return tuple(tensors)
