"""The host runtime in use: inputs, outputs, threads, several programs, exceptions, events."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from ethorch import runtime
from ethorch.runtime.delegate import host_backend
from ethorch.support.errors import EthorchError, HostError, MachineFault
from ethorch.vela import artifacts
from tests.helpers.host import Stub, random_inputs


def test_load_takes_a_path_a_string_or_bytes(incumbent):
    path = incumbent / "cnn.pte"
    inputs = random_inputs("cnn")
    results = [runtime.load(source)(*inputs)[0] for source in (path, str(path), path.read_bytes())]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], r"expected 1 input \(float32\[1, 3, 32, 32\]\), got 0"),
        ([torch.zeros(1, 3, 32, 32)] * 2, r"expected 1 input \(.*\), got 2"),
        (
            [torch.zeros(1, 3, 32, 31)],
            r"input 0: expected float32\[1, 3, 32, 32\], got float32\[1, 3, 32, 31\]",
        ),
        ([torch.zeros(3, 32, 32)], "for other shapes"),
        ([torch.zeros(1, 3, 32, 32, dtype=torch.int8)], r"input 0: expected .*, got int8.*x.to\(torch.float32\)"),
        (["x"], "input 0: expected a tensor .*, got str 'x'"),
        ([None], "input 0: expected a tensor .*, got NoneType"),
        ([torch.zeros(1, 3, 32, 32).to_sparse()], "dense CPU tensor"),
        ([torch.zeros(1, 3, 32, 32, device="meta")], "dense CPU tensor"),
    ],
)
def test_wrong_inputs(incumbent, inputs, words):
    with pytest.raises(HostError, match=words):
        runtime.load(incumbent / "cnn.pte", machine=Stub)(*inputs)


def test_inputs_of_any_layout_and_nesting(incumbent):
    loaded = runtime.load(incumbent / "cnn.pte")
    (x,) = random_inputs("cnn")
    wanted = loaded(x)[0]
    assert torch.equal(loaded(x.contiguous(memory_format=torch.channels_last))[0], wanted)
    assert torch.equal(loaded(x.repeat(1, 1, 1, 2)[..., :32])[0], wanted)
    assert torch.equal(loaded(x.clone().requires_grad_())[0], wanted)
    assert torch.equal(loaded([x])[0], wanted)
    two = runtime.load(incumbent / "interrupted.pte")
    a, b = random_inputs("interrupted")
    assert all(torch.equal(p, q) for p, q in zip(two((a, [b])), two(a, b), strict=True))


@pytest.mark.parametrize("error", [MachineFault("command 7: boom"), KeyError("x"), KeyboardInterrupt()])
def test_a_machines_exception_reaches_the_caller(incumbent, error):
    def action(scratch):
        raise error

    loaded = runtime.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, action))
    with pytest.raises(type(error)) as caught:
        loaded(*random_inputs("cnn"))
    assert caught.value is error

    def refuse(payload):
        raise error

    with pytest.raises(type(error)) as caught:
        runtime.load(incumbent / "cnn.pte", machine=refuse)
    assert caught.value is error


def test_after_an_exception_the_program_still_runs(incumbent):
    fail = [True]

    def action(scratch):
        if fail[0]:
            raise MachineFault("once")

    loaded = runtime.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, action))
    with pytest.raises(MachineFault):
        loaded(*random_inputs("cnn"))
    fail[0] = False
    assert loaded(*random_inputs("cnn"))[0].shape == (1, 10)


def test_a_machine_with_too_small_a_region_is_refused(incumbent):
    class Small(Stub):
        def __init__(self, payload):
            super().__init__(payload)
            self.scratch = self.scratch[:64]

    with pytest.raises(HostError, match=r"expected a scratch region of .*, got 64"):
        runtime.load(incumbent / "cnn.pte", machine=Small)(*random_inputs("cnn"))


def test_threads_and_several_programs_at_once(incumbent):
    names = ["cnn", "interrupted", "cnn", "interrupted"]
    wanted = {name: runtime.load(incumbent / f"{name}.pte")(*random_inputs(name)) for name in set(names)}
    shared = runtime.load(incumbent / "cnn.pte")
    problems: list[BaseException] = []

    def work(name: str) -> None:
        try:
            own = runtime.load(incumbent / f"{name}.pte")
            for _ in range(3):
                outputs = own(*random_inputs(name))
                assert all(torch.equal(a, b) for a, b in zip(outputs, wanted[name], strict=True))
                assert torch.equal(shared(*random_inputs("cnn"))[0], wanted["cnn"][0])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []


def test_runs_of_two_threads_do_not_overlap(incumbent):
    """They would leave std::cout with a buffer that is gone: Vela, the next to flush it, would take the process down."""
    began = threading.Event()
    overlapped: list[bool] = []

    def first(scratch):
        overlapped.append(began.wait(0.3))

    one = runtime.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, first))
    two = runtime.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, lambda scratch: began.set()))
    threads = [threading.Thread(target=program, args=random_inputs("cnn")) for program in (one, two)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(60)
    assert overlapped == [False]
    assert began.is_set()


def test_a_run_inside_a_run_of_the_same_method_is_refused(incumbent):
    programs = []
    program = runtime.load(
        incumbent / "cnn.pte", machine=lambda payload: Stub(payload, lambda scratch: programs[0](*random_inputs("cnn")))
    )
    programs.append(program)
    with pytest.raises(HostError, match="is running"):
        program(*random_inputs("cnn"))


def test_a_program_may_run_another_inside_its_machine(incumbent):
    inner = runtime.load(incumbent / "staged.pte", machine=Stub)

    def action(scratch):
        inner(*random_inputs("staged"))
        raise MachineFault("outer")

    outer = runtime.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, action))
    with pytest.raises(MachineFault, match="outer"):
        outer(*random_inputs("cnn"))


def test_machines_are_released_with_their_program(incumbent):
    import gc

    gc.collect()
    before = len(host_backend().delegates)
    loaded = runtime.load(incumbent / "cnn.pte", machine=Stub)
    assert len(host_backend().delegates) == before + 1
    del loaded
    gc.collect()
    assert len(host_backend().delegates) == before


def test_programs_without_delegate_dynamic_shapes_and_numbers():
    from executorch.exir import to_edge

    class Plain(torch.nn.Module):
        def forward(self, x, n: int):
            return x * 2 + n, x.sum(dim=0)

    x = torch.randn(5, 3)
    shapes = ({0: torch.export.Dim("rows", max=9)}, None)
    exported = torch.export.export(Plain(), (x, 3), dynamic_shapes=shapes)
    loaded = runtime.load(to_edge(exported).to_executorch().buffer)
    assert loaded.delegates == ()
    for rows in (5, 2, 9):
        y = torch.randn(rows, 3)
        first, second = loaded(y, 3)
        torch.testing.assert_close(first, y * 2 + 3)
        torch.testing.assert_close(second, y.sum(dim=0))
    with pytest.raises(HostError, match=r"input 0: expected at most float32\[9, 3\], got float32\[10, 3\]"):
        loaded(torch.randn(10, 3), 3)
    with pytest.raises(HostError, match=r"input 1: expected .*, got float"):
        loaded(x, 3.5)
    with pytest.raises(HostError, match="the compiled constant 3, got int 4"):  # exported with 3
        loaded(x, 4)


def test_loops_still_load():
    """map becomes a backward jump in the program; only one that counts is let through."""
    from executorch.exir import EdgeCompileConfig, to_edge
    from functorch.experimental import control_flow

    class Mapped(torch.nn.Module):
        def forward(self, rows, y):
            return control_flow.map(lambda row, y: row + y, rows, y)

    rows, y = torch.randn(3, 4), torch.randn(4)
    edge = to_edge(torch.export.export(Mapped(), (rows, y)), compile_config=EdgeCompileConfig(_check_ir_validity=False))
    torch.testing.assert_close(runtime.load(edge.to_executorch().buffer)(rows, y)[0], rows + y)


def test_a_program_loaded_behind_our_back_says_so(incumbent):
    """ExecuTorch's own Runtime finds our delegate, which then does not know what to run it on."""
    runtime.load(incumbent / "cnn.pte", machine=Stub)
    from executorch.runtime import Runtime

    loaded = Runtime.get().load_program((incumbent / "cnn.pte").read_bytes())
    with pytest.raises(RuntimeError):
        loaded.load_method("forward")


def test_the_npus_operators_reach_the_event_tracer(incumbent, tmp_path):
    from executorch.devtools import Inspector

    program = runtime.load(incumbent / "cnn.pte", etdump=True)
    with pytest.raises(HostError, match=r"cannot write there|failed to write"):
        program.write_etdump(tmp_path / "missing/early.etdp")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        program(*random_inputs("cnn"))
    program.write_etdump(tmp_path / "dump.etdp")
    blocks = Inspector(etdump_path=str(tmp_path / "dump.etdp")).event_blocks
    (events,) = [block.events for block in blocks if block.name == "Execute"]
    delegated = [event for event in events if event.is_delegated_op]
    assert any("NPU_OP_CONV" in event.name for event in delegated)
    assert all(len(event.perf_data.raw) == 2 and min(event.perf_data.raw) > 0 for event in delegated)
    own = {event.name for event in events} - {event.name for event in delegated}
    assert not own or "DELEGATE_CALL" in own  # ExecuTorch 1.5 records itself, around what the delegate tells
    with pytest.raises(HostError, match="loaded with etdump=True"):
        runtime.load(incumbent / "cnn.pte").write_etdump(tmp_path / "other.etdp")


@pytest.mark.parametrize("name", ["cnn", "interrupted"])
def test_artifacts_name_the_operators(incumbent, tmp_path, name):
    """Of a program by the incumbent, from the TOSA it left: in faults, traces and profiling events."""
    from executorch.devtools import Inspector

    traced: list = []
    program = runtime.load(incumbent / f"{name}.pte", trace=traced.append, etdump=True, sources=artifacts.reader(incumbent / name))
    program(*random_inputs(name))
    assert {trace.source.operator for trace in traced if trace.op.name == "NPU_OP_CONV"} == {"Conv2D"}
    program.write_etdump(tmp_path / "dump.etdp")
    blocks = Inspector(etdump_path=str(tmp_path / "dump.etdp")).event_blocks
    assert any(event.name.startswith("Conv2D ") for block in blocks for event in block.events)
    stopped = runtime.load(incumbent / f"{name}.pte", sources=artifacts.reader(incumbent / name), budget=0)
    with pytest.raises(MachineFault, match=r"^command \d+ at byte 0x[0-9a-f]+, NPU_OP_.*budget.* The command belongs to \w+ .+\.$"):
        stopped(*random_inputs(name))


def test_artifacts_of_another_program(incumbent):
    with pytest.raises(EthorchError, match="no graphs of this program"):
        runtime.load(incumbent / "cnn.pte", sources=artifacts.reader(incumbent / "interrupted"))
