"""Every program is compared with the TOSA reference before ``compile`` returns it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import runtime
from ethorch.cli.options import Choices, settings_of
from ethorch.npu import stream
from ethorch.program import verification
from ethorch.program.program import record_of
from ethorch.program.verification import Verification
from ethorch.report.page import page
from ethorch.support.errors import MachineFault, SpecError, VerificationError
from ethorch.targets.settings import Settings
from ethorch.tosa.ir import Graph
from ethorch.vela import arena, delegate
from ethorch.vela.compiled_model import CompiledModel
from ethorch.vela.lowered import Lowered
from tests.helpers.compiling import compile_with


class Small(nn.Module):
    """Three convolutions, so that one in the middle can be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.middle = nn.Conv2d(8, 16, 3, stride=2)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()).relu())


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval()


SAMPLES = [torch.linspace(-1, 1, 3 * 16 * 16).sin().reshape(1, 3, 16, 16) * (1 + k) for k in range(3)]


def compiled(model: nn.Module, **options: object) -> ethorch.Program:
    return compile_with(model, SAMPLES[0], "ethos-u55-128", calibration=SAMPLES, **options)


@pytest.mark.core
def test_a_program_says_that_it_was_verified(small: nn.Module) -> None:
    program = compiled(small)
    assert record_of(program).verification == Verification(1, 1)
    assert program.to_json()["verification"] == {"delegates": 1, "equal": 1, "unchecked": (), "repairs": ()}
    assert "1 of 1" in str(program) and "delegates are bit-exact with the TOSA reference" in str(program)


def test_verification_can_be_turned_off(small: nn.Module) -> None:
    program = compiled(small, verify=False)
    assert record_of(program).verification is None and program.to_json()["verification"] is None
    assert program.settings is not None and "verify = false" in program.settings.to_toml()


def test_the_command_line_and_files_can_turn_it_off() -> None:
    assert settings_of().verify
    chosen = settings_of(Choices(set=["verify=false"]))
    assert not chosen.verify and not Settings.from_toml(chosen.to_toml()).verify
    with pytest.raises(SpecError, match="verify is 'no'"):
        Settings(verify="no")  # type: ignore[arg-type]


MIDDLE = "CONV2D of aten.conv2d.default at middle"
TARGETS = ("ethos-u55-128", "ethos-u85-256")


def refused(model: nn.Module, target: str) -> VerificationError:
    with pytest.raises(VerificationError) as caught:
        ethorch.compile(model, SAMPLES[0], target, calibration=SAMPLES)
    return caught.value


def reading_elsewhere(compiled: CompiledModel) -> CompiledModel:
    """The last convolution but one reads its input 16 bytes too late: one register of one command."""
    header = stream.parse_header(compiled.command_stream)
    end = [row.command_offsets[-1] for row in compiled.rows() if "Conv" in row.operator][-2]
    bases = [command for command in stream.commands(compiled.command_stream, header) if command.row.name == "IFM_BASE0"]
    data = bytearray(compiled.command_stream)
    at = header.start + max(base.offset for base in bases if base.offset <= end) + 4
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], "little") + 16).to_bytes(4, "little")
    return replace(compiled, command_stream=bytes(data))


def with_weight(graph: Graph) -> Graph:
    """The largest weight of the middle convolution has the other sign."""
    changed = graph.copy()
    weights = [op for op in changed.ops if op.name == "CONV2D"][-2].operands[1]
    assert weights.data is not None
    weights.data = weights.data.copy()
    at = np.unravel_index(np.abs(weights.data.astype(int)).argmax(), weights.shape)
    weights.data[at] = -weights.data[at]
    return changed


@pytest.mark.core
@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_command_is_found_and_its_operator_named(small: nn.Module, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with_arena = arena.compile_with_arena
    monkeypatch.setattr(arena, "compile_with_arena", lambda tosa, spec: reading_elsewhere(compile_with_arena(tosa, spec)))
    error = refused(small, target)
    assert error.operator.startswith(MIDDLE) and f"{__file__.rpartition('/')[2]}:" in error.operator
    assert "in the command stream" in str(error) and "verify=False" in str(error)
    assert (
        record_of(
            ethorch.compile(small, SAMPLES[0], target, calibration=SAMPLES, settings=ethorch.Settings(verify=False))
        ).verification
        is None
    )


@pytest.mark.core
@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_weight_is_found_and_its_operator_named(small: nn.Module, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serialize = delegate.serialize
    monkeypatch.setattr(delegate, "serialize", lambda graph: serialize(with_weight(graph)))
    assert refused(small, target).operator.startswith(MIDDLE)


def test_a_wrong_rewrite_is_found_and_its_operator_named(small: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = delegate.rewritten
    monkeypatch.setattr(delegate, "rewritten", lambda graph, tuning, spec: with_weight(rewritten(graph, tuning, spec)))
    error = refused(small, TARGETS[0])
    assert error.operator.startswith(MIDDLE) and "in the rewritten graph" in str(error)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))
        return torch.cond(means.sum() > 0, lambda m: m * 2, lambda m: m.abs() - 0.5, (means,))


class Counted(nn.Module):
    """State: a running sum, and a position that selects a row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        self.rows.add_(x)
        self.at.add_(1)
        return self.rows * 0.5


class OnCpuBetween(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x).relu()
        return self.head(torch.cumsum(y.mean((2, 3)), 1)), y > 0.1


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 6)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask[..., None], self.head(self.table(tokens)), 0.25)


class Constant(nn.Module):
    """An output that no input changes, and one that does."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clamp(-9, -8), x.sigmoid()


PICTURE = SAMPLES[1]
TOKENS = (torch.arange(12).reshape(1, 12) % 7, torch.arange(12).reshape(1, 12) % 3 == 0)
KINDS = {
    "int8 at the ends": (Small, (PICTURE,), {"io": "int8"}),
    "uint8 at the ends": (Small, (PICTURE,), {"io": "uint8"}),
    "int16 at the ends": (Small, (PICTURE,), {"io": "int16", "scheme": "a16w8"}),
    "channels last": (Small, (PICTURE,), {"settings": ethorch.Settings(io_layout="nhwc")}),
    "a budget": (Small, (PICTURE,), {"arena": 4000}),
    "weights that are copied": (Small, (PICTURE,), {"constants": "2K"}),
    "branches": (Branches, (PICTURE,), {}),
    "branches on U55": (Branches, (PICTURE,), {"target": "ethos-u55-256"}),
    "state": (Counted, (torch.linspace(-1, 1, 32).reshape(4, 8),), {}),
    "an operator on the CPU": (OnCpuBetween, (PICTURE,), {"target": "ethos-u55-64"}),
    "indices and truth values": (Tokens, TOKENS, {}),
    "a constant output": (Constant, (PICTURE,), {}),
    "a recurrent layer": (lambda: nn.LSTM(6, 5, batch_first=True), (torch.linspace(-1, 1, 24).reshape(1, 4, 6),), {}),
}


FEW = (
    "uint8 at the ends", "int16 at the ends", "channels last", "weights that are copied", "branches on U55", "state",
    "an operator on the CPU", "indices and truth values",
)  # fmt: skip


@pytest.mark.parametrize("kind", [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS])
def test_every_delegate_of_every_kind_of_program_is_verified(kind: str) -> None:
    create, inputs, options = KINDS[kind]
    torch.manual_seed(0)
    program = compile_with(create().eval(), inputs, calibration=[inputs], **{"target": "ethos-u85-256", **options})
    found = record_of(program).verification
    assert found is not None and found.unchecked == ()
    assert found.equal == found.delegates == len(record_of(program).payloads) > 0


def test_every_method_is_verified() -> None:
    torch.manual_seed(0)
    module = Small().eval()
    program = ethorch.compile({"a": module, "b": Counted()}, {"a": PICTURE, "b": torch.rand(4, 8)}, "ethos-u55-128")
    assert record_of(program).verification == record_of(program["b"]).verification == Verification(2, 2)


def test_a_delegate_that_cannot_be_compared_is_named(small: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the summary, in the plain data and in the report."""

    def too_large(*_: object) -> None:
        raise MachineFault("region 1 of 500000000 bytes")

    monkeypatch.setattr(runtime, "npu_machine", too_large)
    program = compiled(small)
    assert record_of(program).verification is not None and record_of(program).verification.equal == 0
    (row,) = program.to_json()["verification"]["unchecked"]
    assert (row["method"], row["delegate"]) == ("forward", 0) and "region 1" in row["reason"]
    assert "NOT VERIFIED" in str(program) and "region 1" in page(program.to_json(), None, "")


def test_samples_are_tried_until_outputs_vary(small: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample of a calibration set may be a dark picture."""
    seen: list[bool] = []
    check = verification.check_outputs

    def watched(delegate: Lowered, name: str, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        seen.append(len(np.unique(outputs[0])) > 1)
        check(delegate, name, inputs, outputs)

    monkeypatch.setattr(verification, "check_outputs", watched)
    dark = torch.zeros_like(PICTURE)
    ethorch.compile(nn.Sequential(nn.AvgPool2d(16), nn.Flatten()), dark, "ethos-u55-128", calibration=[dark, dark, PICTURE])
    assert seen == [False, False, True], "two dark ones and the picture"
