"""A .pt2 file is loaded as torch.export.save wrote it, and nothing in it is executed."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ethorch.models.exported_program import load_exported_program
from ethorch.models.load import load_model
from ethorch.support.errors import FormatError

Edit = Callable[[dict[str, bytes], Path], None]


class Network(nn.Module):
    """Shared weights, a buffer that changes, constants, a branch, keywords, shapes that vary and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("scratch", torch.ones(8), persistent=False)
        self.table = torch.arange(8.0)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        self.count += 1
        y = self.second(self.first(x)) * scale + self.table + self.scratch + torch.tensor([3.0])
        z = torch.cond(y.sum() > 0, lambda v: v + 1, lambda v: v - 1, (y,))
        return {"sum": (z + self.count, y.reshape(-1)), "halves": y.split(4, -1)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=9)
    example = torch.randn(3, 8), {"scale": torch.randn(3, 1)}
    shapes = {"x": {0: batch}, "scale": {0: batch}}
    program = torch.export.export(Network().eval(), example[:1], example[1], dynamic_shapes=shapes)
    path = tmp_path_factory.mktemp("exported") / "network.pt2"
    torch.export.save(program, path)
    return path


def test_the_program_is_the_one_that_was_saved(saved: Path) -> None:
    wanted, found = torch.export.load(saved), load_exported_program(saved)
    (arguments, keywords) = wanted.example_inputs
    for one, other in zip(pytree.tree_leaves(wanted.example_inputs), pytree.tree_leaves(found.example_inputs), strict=True):
        assert torch.equal(one, other)
    assert found.graph_signature == wanted.graph_signature
    assert list(map(str, found.range_constraints.items())) == list(map(str, wanted.range_constraints.items()))
    assert [str(node.target) for node in found.graph.nodes] == [str(node.target) for node in wanted.graph.nodes]
    assert found.state_dict.keys() == wanted.state_dict.keys() and found.constants.keys() == wanted.constants.keys()
    weights = found.state_dict["first.weight"], found.state_dict["second.weight"]
    assert weights[0].data_ptr() == weights[1].data_ptr() and isinstance(weights[0], nn.Parameter)
    outputs = [program.module(check_guards=False)(*arguments, **keywords) for program in (wanted, found)]
    for one, other in zip(*map(pytree.tree_leaves, outputs), strict=True):
        assert torch.equal(one, other)


def marks(path: Path) -> str:
    """Return an expression that creates a file, as a hostile file would start a program."""
    return f"open({str(path)!r}, 'w')"


class Hostile:
    """Pickles to a call."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (marks(self.mark),)


def torch_pickle(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def part(records: dict[str, bytes], end: str) -> str:
    (name,) = [name for name in records if name.endswith(end)]
    return name


def edited(records: dict[str, bytes], end: str, edit: Callable[[Any], None]) -> None:
    name = part(records, end)
    data = json.loads(records[name])
    edit(data)
    records[name] = json.dumps(data).encode()


def example_inputs(records: dict[str, bytes], mark: Path) -> None:
    records[part(records, "sample_inputs/model.pt")] = torch_pickle(((Hostile(mark),), {}))


def pickled_weight(records: dict[str, bytes], mark: Path) -> None:
    edited(records, "model_weights_config.json", lambda data: data["config"]["count"].update(use_pickle=True, path_name="weight_x"))
    records[part(records, "weights/weight_0").replace("weight_0", "weight_x")] = torch_pickle(Hostile(mark))


def pickled_constant(records: dict[str, bytes], mark: Path) -> None:
    config = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    edited(records, "model_constants_config.json", lambda data: data["config"].update(more=config))
    records[part(records, "constants/tensor_0").replace("tensor_0", "opaque_obj_0")] = pickle.dumps(Hostile(mark))


def legacy_weights(records: dict[str, bytes], mark: Path) -> None:
    name = part(records, "model_weights_config.json")
    del records[name]
    records[name.replace("model_weights_config.json", "model.pt")] = torch_pickle({"count": Hostile(mark)})


def shape(records: dict[str, bytes], mark: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        values = data["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0]["as_expr"]["expr_str"] = f"Integer(({marks(mark)} and 3) or 3)"

    edited(records, "models/model.json", edit)


def callable_as_operator(records: dict[str, bytes], mark: Path) -> None:
    """As torch.fx.Interpreter runs it."""

    def edit(data: dict[str, Any]) -> None:
        node = next(node for node in data["graph_module"]["graph"]["nodes"] if node["target"] == "torch.ops.aten.mul.Tensor")
        node["target"] = "torch.serialization.os.mkdir"
        node["inputs"] = [{"name": "", "arg": {"as_string": str(mark)}, "kind": 1}]

    edited(records, "models/model.json", edit)


def file_operator(records: dict[str, bytes], mark: Path) -> None:
    """It makes the file that it maps."""

    def edit(data: dict[str, Any]) -> None:
        node = next(node for node in data["graph_module"]["graph"]["nodes"] if node["target"] == "torch.ops.aten.mul.Tensor")
        node["target"] = "torch.ops.aten.from_file.default"
        values = {"filename": {"as_string": str(mark)}, "shared": {"as_bool": True}, "size": {"as_int": 24}}
        node["inputs"] = [{"name": name, "arg": value, "kind": 1 if name == "filename" else 2} for name, value in values.items()]

    edited(records, "models/model.json", edit)


def name_of_a_value(records: dict[str, bytes], mark: Path) -> None:
    name = part(records, "models/model.json")
    hostile = f"mul = {marks(mark)}; mul"
    records[name] = records[name].replace(b'"name": "mul"', f'"name": {json.dumps(hostile)}'.encode())
    records[name] = records[name].replace(b'"mul": {"dtype"', f'{json.dumps(hostile)}: {{"dtype"'.encode())


def name_of_a_weight(records: dict[str, bytes], mark: Path) -> None:
    hostile = json.dumps(f'a b", {marks(mark)})#')[1:-1].encode()
    for end in ("models/model.json", "model_weights_config.json"):
        name = part(records, end)
        records[name] = records[name].replace(b"first.bias", hostile)


def structure(records: dict[str, bytes], mark: Path) -> None:
    """A module that is imported, since an input is a dictionary whose default comes from it."""
    (mark.parent / "hostile_module.py").write_text(f"def default(): pass\n{marks(mark)}\n")
    inner = {"default_factory_module": "hostile_module", "default_factory_name": "default", "dict_context": []}
    spec = {"type": "collections.defaultdict", "context": inner, "children_spec": []}

    def edit(data: dict[str, Any]) -> None:
        for entry in data["graph_module"]["module_call_graph"]:
            if entry["signature"]:
                protocol, tree = json.loads(entry["signature"]["in_spec"])
                tree["children_spec"].append(spec)
                entry["signature"]["in_spec"] = json.dumps([protocol, tree])

    edited(records, "models/model.json", edit)


def key_of_a_dict(records: dict[str, bytes], mark: Path) -> None:
    """A module that is imported, since it is said to define an enum. JSON may start with a space."""
    (mark.parent / "hostile_module.py").write_text(f"{marks(mark)}\n")
    spec = {"type": "builtins.dict", "context": ' [{"__enum__": true, "fqn": "hostile_module:Key", "name": "A"}]'}

    def edit(data: dict[str, Any]) -> None:
        for entry in data["graph_module"]["module_call_graph"]:
            if entry["signature"]:
                protocol, tree = json.loads(entry["signature"]["in_spec"])
                tree["children_spec"].append(spec | {"children_spec": []})
                entry["signature"]["in_spec"] = json.dumps([protocol, tree])

    edited(records, "models/model.json", edit)


def compiled_code(records: dict[str, bytes], mark: Path) -> None:
    """A shared library that AOTInductor's loader opens; here it is none, and the loader says so."""
    records[part(records, "models/model.json").replace("models/model.json", "data/aotinductor/model/x.so")] = b"\x7fELF"


ATTACKS: dict[Edit, str] = {
    example_inputs: r"only tensors and plain data in the example inputs, got objects \(.*eval\)",
    pickled_weight: "only tensors and plain data in the bytes of count",
    pickled_constant: "expected a tensor for constant more, got a pickled object",
    legacy_weights: "data/weights/model_weights_config.json is missing",
    shape: "expected a shape expression",
    callable_as_operator: "expected an operator that a program may call, got 'torch.serialization.os.mkdir'",
    file_operator: "expected an operator that a program may call, got 'torch.ops.aten.from_file.default'",
    name_of_a_value: "expected a (name|Python identifier)",
    name_of_a_weight: "expected a (name|Python identifier)",
    structure: "of built-in types, got 'hostile_module.default'",
    key_of_a_dict: "of built-in types, got 'hostile_module:Key'",
    compiled_code: "code compiled by AOTInductor",
}


def attacked(saved: Path, attack: Edit, folder: Path) -> tuple[Path, Path]:
    """Return a hostile copy of a file, and the file that appears if it is executed."""
    with zipfile.ZipFile(saved) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    attack(records, folder / "mark")
    with zipfile.ZipFile(folder / "hostile.pt2", "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return folder / "hostile.pt2", folder / "mark"


def run_as_torch_does(path: Path) -> None:
    program = torch.export.load(path)
    arguments, keywords = program.example_inputs or ((), {})
    torch.fx.Interpreter(program.module(check_guards=False)).run(*arguments, *keywords.values())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_in_a_file_is_executed(saved: Path, attack: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path, mark = attacked(saved, attack, tmp_path)
    with pytest.raises(FormatError, match=ATTACKS[attack]) as refused:
        load_model(str(path))
    assert not mark.exists()
    assert attack is legacy_weights or "load it with torch.export.load and pass the program to ethorch.compile" in str(
        refused.value
    )


#: Attacks that torch 2.13 refuses itself, in its verifier of programs or when it loads a library.
REFUSED_BY_TORCH = (callable_as_operator, name_of_a_value, name_of_a_weight, compiled_code)


@pytest.mark.long
@pytest.mark.parametrize(
    "attack", [attack for attack in ATTACKS if attack not in REFUSED_BY_TORCH], ids=lambda attack: attack.__name__
)
def test_these_attacks_succeed_with_torch(saved: Path, attack: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would show nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    path, mark = attacked(saved, attack, tmp_path)
    try:
        run_as_torch_does(path)
    except Exception as error:  # after the attack
        print(error)
    assert mark.exists()


def test_guards_of_a_file_are_not_run(saved: Path, tmp_path: Path) -> None:
    def guards(records: dict[str, bytes], mark: Path) -> None:
        edited(records, "models/model.json", lambda data: data.update(guards_code=[marks(mark)]))

    path, mark = attacked(saved, guards, tmp_path)
    program = load_exported_program(path)
    arguments, keywords = program.example_inputs or ((), {})
    program.module()(*arguments, **keywords)
    assert not mark.exists()
