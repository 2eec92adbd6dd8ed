"""Feature maps in fast memory."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import ethorch
from ethorch.npu.forms import Copy
from ethorch.npu.ir import Stream, decode
from ethorch.npu.passes import fast_maps
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.pipeline import optimize
from ethorch.npu.verify import decode_instructions, trace_reference
from ethorch.program.program import record_of
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.memory_rates import read_memory_rates
from tests.npu.passes.streams import list_instructions
from tests.npu.passes.test_early_transfers import is_accepted
from tests.npu.verify.simulation import extreme_orders, run
from tests.npu.verify.streams import Case, from_delegate

MEMORY = "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"
MOST = 384 << 10
DRAM, SRAM = 1, 2


class Picture(nn.Module):
    """A convolution that reads each input row several times."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Conv2d(32, 128, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.only(x)
        return result


class Residual(nn.Module):
    """Two residual blocks, whose maps do not all fit SRAM."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Conv2d(3, 48, 3, 2, 1), nn.Conv2d(48, 48, 3, 1, 1), nn.Conv2d(48, 96, 3, 2, 1)
        self.shortcut, self.third = nn.Conv2d(48, 96, 1, 2), nn.Conv2d(96, 96, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.first(x)) + x
        result: torch.Tensor = torch.relu(self.third(torch.relu(self.second(y)))) + self.shortcut(y)
        return result


@cache
def compile_network(build: type[nn.Module], *shape: int) -> Case:
    torch.manual_seed(0)
    settings = ethorch.Settings("ethos-u85-256", system_config=MEMORY[0], memory_mode=MEMORY[1], stream="vela", verify=False)
    program = ethorch.compile(build().eval(), (torch.randn(shape),), settings=settings)
    return from_delegate(build.__name__, record_of(program).payloads[0])


def create_context(limit: int = 0, most: int = MOST) -> Context:
    return Context(read_memory_rates(EthosUCompileSpec("ethos-u85-256", *MEMORY)), {SRAM: limit}, {SRAM: most})


def move_maps(case: Case, context: Context) -> tuple[Stream, Stream | None]:
    before = decode(case.payload, case.image)
    return before, fast_maps.run(before, context)


def count_copies(stream: Stream) -> int:
    """Count the transfers from DRAM to SRAM."""
    forms = [op.prepared.form for op in stream.ops if op.is_dma]
    return sum(isinstance(form, Copy) and (form.source.region, form.target.region) == (DRAM, SRAM) for form in forms)


def assert_equal(case: Case, after: Stream) -> None:
    """Check that the verifier accepts the stream, and that its outputs are equal, even if transfers run early or late."""
    assert is_accepted(after, trace_reference(decode_instructions(case.payload), case.image))
    listing = list_instructions(after)
    expected = run(decode_instructions(case.payload), case.image, 0)
    assert expected is not None
    assert all(run(listing, after.image, 0, order) == expected for order in (None, *extreme_orders(listing)))


def test_an_input_is_copied_before_it_is_read_repeatedly() -> None:
    case, context = compile_network(Picture, 1, 32, 48, 48), create_context()
    before, after = move_maps(case, context)
    assert after is not None and count_copies(after) == count_copies(before) + 1
    assert context.rate(after) < 0.8 * context.rate(before)
    assert_equal(case, after)


def test_maps_move_to_fast_memory_and_others_make_room() -> None:
    case, context = compile_network(Residual, 1, 3, 136, 136), create_context()
    before, after = move_maps(case, context)
    assert after is not None and after.image.sizes[SRAM] <= MOST
    assert after.image.sizes[DRAM] < before.image.sizes[DRAM]
    assert context.rate(after) < 0.5 * context.rate(before)
    assert_equal(case, after)


def test_a_region_grows_only_up_to_its_limits() -> None:
    case = compile_network(Picture, 1, 32, 48, 48)
    size = case.image.sizes[SRAM]
    _, after = move_maps(case, create_context(most=size))
    assert after is None
    for context in (create_context(limit=MOST, most=0), create_context(most=MOST)):
        _, after = move_maps(case, context)
        assert after is not None and size < after.image.sizes[SRAM] <= MOST


def test_maps_in_one_memory_remain() -> None:
    case = compile_network(Picture, 1, 32, 48, 48)
    context = create_context()
    same = Context({**context.regions, DRAM: context.regions[SRAM]}, grown_limits={SRAM: MOST})
    assert move_maps(case, same)[1] is None


@pytest.mark.parametrize("passes", [frozenset({"fast-maps"}), None])
def test_the_pipeline_moves_maps(passes: frozenset[str] | None) -> None:
    case, context = compile_network(Residual, 1, 3, 136, 136), create_context()
    chosen = Context(context.regions, context.limits, context.grown_limits, passes=passes)
    result = optimize(case.payload, case.image, chosen)
    assert result is not None and not result.rejections
    assert "fast-maps" in {effect.name for effect in result.effects}
    assert chosen.rate(result.stream) < 0.5 * chosen.rate(result.before)
