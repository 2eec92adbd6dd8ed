"""The desk runtime: ExecuTorch, our delegate and the machine, on .pte files made by ExecuTorch's own Arm backend."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ethorch import host, native, program
from ethorch.errors import EthorchError, HostError, MachineFault, PayloadError, ProgramError
from ethorch.payload import DelegatePayload
from tests.test_payload import BLOB

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def incumbent(tmp_path_factory) -> Path:
    """A folder of .pte files by executorch.backends.arm; see incumbent.py. Some 15 s, once for all xdist workers."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "incumbent"
    done = folder / "done"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker makes them
        for _ in range(3000):
            if done.exists():
                break
            time.sleep(0.1)
        assert done.read_text() == "", done.read_text()
        return folder
    command = [sys.executable, str(HERE / "incumbent.py"), str(folder)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    problem = child.stderr if child.returncode else ""
    done.write_text(problem)
    assert not problem, problem
    return folder


class Recorder:
    """The real machine, keeping what each run read and wrote."""

    def __init__(self, payload: DelegatePayload, runs: list):
        self.payload, self.runs = payload, runs
        self.machine = host.npu_machine(payload)

    def region(self, index: int) -> np.ndarray:
        return self.machine.region(index)

    def _values(self, tensors) -> list[np.ndarray]:
        scratch = self.region(1)
        dtypes = {1: np.int8, 2: np.int16, 4: np.int32}
        return [
            scratch[t.offset : t.offset + t.nbytes].view(dtypes[t.element_size]).reshape(t.shape).copy()
            for t in tensors
        ]

    def run(self) -> None:
        inputs = self._values(self.payload.inputs)
        self.machine.run()
        self.runs.append((self.payload, inputs, self._values(self.payload.outputs)))


class Stub:
    """A machine that does nothing, or what ``action`` does with its scratch region."""

    def __init__(self, payload: DelegatePayload, action: Callable[[np.ndarray], None] = lambda scratch: None):
        self.scratch, self.action = np.zeros(payload.scratch_bytes, np.uint8), action

    def region(self, index: int) -> np.ndarray:
        return self.scratch

    def run(self) -> None:
        self.action(self.scratch)


TARGETS = {"cnn": "ethos-u55-128", "staged": "ethos-u65-256", "u85": "ethos-u85-256", "interrupted": "ethos-u55-256"}
INPUTS = {
    "cnn": [(1, 3, 32, 32)],
    "staged": [(1, 3, 16, 16)],
    "u85": [(1, 3, 16, 16)],
    "interrupted": [(1, 3, 8, 8), (1, 8, 8, 8)],
}


def random_inputs(name: str, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in INPUTS[name]]


@pytest.mark.parametrize("name", INPUTS)
def test_programs_of_the_incumbent_equal_their_tosa(incumbent, name):
    """Every delegate call, bit for bit, against the reference model on the incumbent's own TOSA of that delegate."""
    import tosa_reference_model

    from ethorch import vela
    from ethorch.compile_spec import EthosUCompileSpec

    runs: list = []
    loaded = host.load(incumbent / f"{name}.pte", machine=lambda payload: Recorder(payload, runs))
    spec = EthosUCompileSpec(TARGETS[name])
    graphs = {}  # delegates and dumps are not in the same order: our Vela makes of each dump the payload it belongs to
    for path in (incumbent / name).glob("*_tag*.tosa"):
        graphs[DelegatePayload.from_compiled(vela.compile(path.read_bytes(), spec)).pack()] = path.read_bytes()
    assert {payload.pack() for payload in loaded.delegates} == set(graphs)
    assert len(graphs) == (2 if name == "interrupted" else 1)
    for seed in range(3):
        outputs = loaded(*random_inputs(name, seed))
        assert all(torch.isfinite(output).all() for output in outputs)
    assert len(runs) == 3 * len(graphs)
    for payload, inputs, outputs in runs:
        graph = graphs[payload.pack()]
        call = next(c for c in loaded.description.calls if c.delegate == loaded.delegates.index(payload))
        shapes = [loaded.description.values[arg].shape for arg in call.args]
        arrays = [array.reshape(shape) for array, shape in zip(inputs, shapes, strict=False)]
        wanted, _ = tosa_reference_model.run(graph, arrays)
        for mine, theirs in zip(outputs, wanted, strict=True):
            assert len(np.unique(theirs)) > 3, "the test's output hardly varies"
            np.testing.assert_array_equal(mine.ravel(), np.asarray(theirs).ravel())


def test_outputs_are_what_the_machine_wrote(incumbent):
    """The float outputs are the last delegate's bytes, dequantized by ExecuTorch's CPU kernel."""
    runs: list = []
    loaded = host.load(incumbent / "interrupted.pte", machine=lambda payload: Recorder(payload, runs))
    outputs = loaded(*random_inputs("interrupted"))
    values = loaded.description.values
    for call in loaded.description.calls:
        if "dequantize" in call.operator and call.args[-1] in loaded.description.outputs:
            position = loaded.description.outputs.index(call.args[-1])
            scale, zero_point = values[call.args[1]].number, values[call.args[2]].number
            codes = [array for array in runs[-1][2] if array.size == outputs[position].numel()]
            reals = [(torch.from_numpy(array.astype(np.float32)).ravel() - zero_point) * scale for array in codes]
            assert any(torch.equal(real, outputs[position].ravel()) for real in reals)


def test_our_payload_class_reproduces_the_incumbents_blobs(incumbent):
    for path in incumbent.glob("*.pte"):
        for delegate in program.read(path.read_bytes()).methods["forward"].delegates:
            assert DelegatePayload.unpack(delegate.blob).pack() == delegate.blob


def test_staging_memory_is_found_from_the_stream(incumbent):
    """No smaller than Vela allocated, as far as the stream uses it: the incumbent's file does not say."""
    from ethorch import vela
    from ethorch.compile_spec import EthosUCompileSpec

    loaded = host.load(incumbent / "staged.pte")
    compiled = vela.compile((incumbent / "staged/out.tosa").read_bytes(), EthosUCompileSpec("ethos-u65-256"))
    assert loaded.delegates == (DelegatePayload.from_compiled(compiled),)
    _, staging = host._npu_program(loaded.delegates[0])
    assert 0 < staging <= compiled.scratch_fast_bytes + 4096


def test_a_payload_that_lacks_an_output_is_refused(incumbent):
    """The incumbent does not notice that Vela dropped an output; its firmware would copy the other one in its place."""
    with pytest.raises(ProgramError, match=r"delegate 0 .* is called with 3 values; its payload has 2"):
        host.load(incumbent / "lost.pte")


def test_load_takes_a_path_a_string_or_bytes(incumbent):
    path = incumbent / "cnn.pte"
    inputs = random_inputs("cnn")
    results = [host.load(source)(*inputs)[0] for source in (path, str(path), path.read_bytes())]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], r"takes 1 inputs, found 0. It takes: float32\[1, 3, 32, 32\]"),
        ([torch.zeros(1, 3, 32, 32)] * 2, "takes 1 inputs, found 2"),
        (
            [torch.zeros(1, 3, 32, 31)],
            r"input 0 is float32\[1, 3, 32, 31\]; the program was exported for float32\[1, 3",
        ),
        ([torch.zeros(3, 32, 32)], "no other shape"),
        ([torch.zeros(1, 3, 32, 32, dtype=torch.int8)], r"input 0 is int8.*x.to\(torch.float32\)"),
        ([np.zeros((1, 3, 32, 32), np.float32)], "input 0 is ndarray .*takes a tensor"),
        ([None], "input 0 is NoneType"),
        ([torch.zeros(1, 3, 32, 32).to_sparse()], "dense CPU tensor"),
        ([torch.zeros(1, 3, 32, 32, device="meta")], "dense CPU tensor"),
    ],
)
def test_wrong_inputs(incumbent, inputs, words):
    with pytest.raises(HostError, match=words):
        host.load(incumbent / "cnn.pte", machine=Stub)(*inputs)


def test_inputs_of_any_layout_and_nesting(incumbent):
    loaded = host.load(incumbent / "cnn.pte")
    (x,) = random_inputs("cnn")
    wanted = loaded(x)[0]
    assert torch.equal(loaded(x.contiguous(memory_format=torch.channels_last))[0], wanted)
    assert torch.equal(loaded(x.repeat(1, 1, 1, 2)[..., :32])[0], wanted)
    assert torch.equal(loaded(x.clone().requires_grad_())[0], wanted)
    assert torch.equal(loaded([x])[0], wanted)
    two = host.load(incumbent / "interrupted.pte")
    a, b = random_inputs("interrupted")
    assert all(torch.equal(p, q) for p, q in zip(two((a, [b])), two(a, b), strict=True))


def test_what_cannot_be_loaded(incumbent, tmp_path):
    with pytest.raises(HostError, match=r"cannot read .*none.pte: No such file"):
        host.load(tmp_path / "none.pte")
    with pytest.raises(HostError, match="Is a directory"):
        host.load(tmp_path)
    with pytest.raises(HostError, match="no method 'backward'; it has 'forward'"):
        host.load(incumbent / "cnn.pte", "backward")
    for data in (b"", b"PK\3\4" + bytes(100), b"\x10\0\0\0ET11" + bytes(100)):
        with pytest.raises(ProgramError, match=r"no \.pte of ExecuTorch"):
            host.load(data)


def test_another_backend_or_operator_is_named(incumbent):
    data = (incumbent / "cnn.pte").read_bytes()
    with pytest.raises(HostError, match=r"needs backend 'EthosVBackend'; this runtime has .*EthosUBackend"):
        host.load(data.replace(b"EthosUBackend\0", b"EthosVBackend\0"), machine=Stub)
    data = (incumbent / "interrupted.pte").read_bytes()
    with pytest.raises(HostError, match=r"no CPU kernel for: aten::topx.values"):
        host.load(data.replace(b"aten::topk\0", b"aten::topx\0"), machine=Stub)


def test_damaged_payloads_are_refused_with_the_payloads_words(incumbent):
    data = (incumbent / "cnn.pte").read_bytes()
    with pytest.raises(PayloadError, match="unknown block 'weight_dats'"):
        host.load(data.replace(b"weight_data\0", b"weight_dats\0"), machine=Stub)
    head, tail = data.split(b"scratch_size\0\0\0\0", 1)
    with pytest.raises(PayloadError, match="scratch region of 16 bytes"):
        host.load(head + b"scratch_size\0\0\0\0" + tail[:16] + struct.pack("<I", 16) + tail[20:], machine=Stub)


def test_a_stream_for_no_known_npu_is_a_machine_fault(incumbent):
    data = bytearray((incumbent / "cnn.pte").read_bytes())
    config = data.find(b"COP1") + 8
    data[config] ^= 0xFF
    with pytest.raises(MachineFault, match="CONFIG word"):
        host.load(bytes(data))


@pytest.mark.parametrize("error", [MachineFault("command 7: boom"), KeyError("x"), KeyboardInterrupt()])
def test_a_machines_exception_reaches_the_caller(incumbent, error):
    def action(scratch):
        raise error

    loaded = host.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, action))
    with pytest.raises(type(error)) as caught:
        loaded(*random_inputs("cnn"))
    assert caught.value is error

    def refuse(payload):
        raise error

    with pytest.raises(type(error)) as caught:
        host.load(incumbent / "cnn.pte", machine=refuse)
    assert caught.value is error


def test_after_an_exception_the_program_still_runs(incumbent):
    fail = [True]

    def action(scratch):
        if fail[0]:
            raise MachineFault("once")

    loaded = host.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, action))
    with pytest.raises(MachineFault):
        loaded(*random_inputs("cnn"))
    fail[0] = False
    assert loaded(*random_inputs("cnn"))[0].shape == (1, 10)


def test_a_machine_with_too_small_a_region_is_refused(incumbent):
    class Small(Stub):
        def __init__(self, payload):
            super().__init__(payload)
            self.scratch = self.scratch[:64]

    with pytest.raises(HostError, match="scratch region has 64 bytes"):
        host.load(incumbent / "cnn.pte", machine=Small)(*random_inputs("cnn"))


def test_a_kernels_failed_check_is_an_error_not_the_end(incumbent):
    """ExecuTorch aborts the process here; quant_max 127 becomes 1151, which does not fit int8."""
    loaded = program.read((incumbent / "staged.pte").read_bytes()).methods["forward"]
    call = next(c for c in loaded.calls if c.operator == "quantized_decomposed::quantize_per_tensor.out")
    assert loaded.values[call.args[4]].number == 127
    data = (incumbent / "staged.pte").read_bytes()
    positions = [i for i in range(0, 4000, 4) if data[i : i + 8] == struct.pack("<q", 127)]
    with pytest.raises(HostError, match=r"could not run method 'forward': .*quant_max"):
        for position in positions:
            damaged = data[:position] + struct.pack("<q", 1151) + data[position + 8 :]
            host.load(damaged, machine=Stub)(*random_inputs("staged"))


def test_argument_kinds_are_checked_before_a_kernel_sees_them(incumbent):
    """A kernel that gets an int for a tensor aborts the process."""
    data = (incumbent / "cnn.pte").read_bytes()
    method = program.read(data).methods["forward"]
    call = next(c for c in method.calls if c.operator == "quantized_decomposed::quantize_per_tensor.out")
    args = struct.pack(f"<{len(call.args)}i", *call.args)
    swapped = struct.pack(f"<{len(call.args)}i", call.args[2], *call.args[1:])
    assert data.count(args) == 1
    with pytest.raises(ProgramError, match=r"quantize_per_tensor.out .*argument 0 is int; it takes tensor"):
        host.load(data.replace(args, swapped), machine=Stub)


def test_threads_and_several_programs_at_once(incumbent):
    names = ["cnn", "interrupted", "cnn", "interrupted"]
    wanted = {name: host.load(incumbent / f"{name}.pte")(*random_inputs(name)) for name in set(names)}
    shared = host.load(incumbent / "cnn.pte")
    problems: list[BaseException] = []

    def work(name: str) -> None:
        try:
            own = host.load(incumbent / f"{name}.pte")
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

    one = host.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, first))
    two = host.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, lambda scratch: began.set()))
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
    program = host.load(
        incumbent / "cnn.pte", machine=lambda payload: Stub(payload, lambda scratch: programs[0](*random_inputs("cnn")))
    )
    programs.append(program)
    with pytest.raises(HostError, match="inside a run of itself"):
        program(*random_inputs("cnn"))


def test_a_program_may_run_another_inside_its_machine(incumbent):
    inner = host.load(incumbent / "staged.pte", machine=Stub)

    def action(scratch):
        inner(*random_inputs("staged"))
        raise MachineFault("outer")

    outer = host.load(incumbent / "cnn.pte", machine=lambda payload: Stub(payload, action))
    with pytest.raises(MachineFault, match="outer"):
        outer(*random_inputs("cnn"))


def test_machines_are_released_with_their_program(incumbent):
    import gc

    gc.collect()
    before = len(host._bridge().runners)
    loaded = host.load(incumbent / "cnn.pte", machine=Stub)
    assert len(host._bridge().runners) == before + 1
    del loaded
    gc.collect()
    assert len(host._bridge().runners) == before


def test_programs_without_delegate_dynamic_shapes_and_numbers():
    from executorch.exir import to_edge

    class Plain(torch.nn.Module):
        def forward(self, x, n: int):
            return x * 2 + n, x.sum(dim=0)

    x = torch.randn(5, 3)
    shapes = ({0: torch.export.Dim("rows", max=9)}, None)
    exported = torch.export.export(Plain(), (x, 3), dynamic_shapes=shapes)
    loaded = host.load(to_edge(exported).to_executorch().buffer)
    assert loaded.delegates == ()
    for rows in (5, 2, 9):
        y = torch.randn(rows, 3)
        first, second = loaded(y, 3)
        torch.testing.assert_close(first, y * 2 + 3)
        torch.testing.assert_close(second, y.sum(dim=0))
    with pytest.raises(HostError, match=r"input 0 is float32\[10, 3\]; .* at most float32\[9, 3\]"):
        loaded(torch.randn(10, 3), 3)
    with pytest.raises(HostError, match="input 1 is float"):
        loaded(x, 3.5)
    with pytest.raises(HostError, match="same value"):  # exported with 3
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
    torch.testing.assert_close(host.load(edge.to_executorch().buffer)(rows, y)[0], rows + y)


# ---------------------------------------------------------------------------------------------------------------------
# Files from outside


def test_every_truncation_is_refused(incumbent):
    for name in ("cnn", "staged"):
        data = (incumbent / f"{name}.pte").read_bytes()
        for length in [*range(200), *range(200, len(data) - 1, 331)]:
            with pytest.raises(EthorchError):
                host.load(data[:length], machine=Stub)


HOSTILE = """
import os, random, signal, sys
import numpy as np, torch
from ethorch import host
from ethorch.errors import EthorchError
from tests.test_host import Stub, random_inputs
path, name, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data, inputs = open(path, "rb").read(), random_inputs(name)
host.load(data, machine=Stub)(*inputs)
blob = max((d.blob for d in host.load(data, machine=Stub).description.delegates), key=len)
start = data.find(blob)
for seed in range(first, last):
    random.seed(seed)
    damaged = bytearray(data)
    for _ in range(random.choice([1, 1, 3])):
        at = random.randrange(len(data) - len(blob))
        at += len(blob) if at >= start else 0                # weights may hold anything: spend the flips elsewhere
        damaged[at] = random.choice([damaged[at] ^ 1 << random.randrange(8), 0, 1, 2, 127, 255])
    child = os.fork()
    if not child:
        signal.alarm(60)
        sys.stderr = sys.stdout = open(os.devnull, "w")
        try:
            host.load(bytes(damaged), machine=Stub)(*inputs)
            os._exit(0)
        except EthorchError:
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"seed {seed}: status {status}", flush=True)
print("done")
"""


def hostile(path: Path, name: str, first: int, last: int) -> str:
    command = [sys.executable, "-c", HOSTILE, str(path), name, str(first), str(last)]
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parent, env=env).stdout


@pytest.mark.parametrize("name", ["cnn", "staged"])
def test_flipped_bits_give_an_error_or_a_result(incumbent, name):
    """Never a crash, a hang or another exception: loaded and run, a child process for each damaged file."""
    assert hostile(incumbent / f"{name}.pte", name, 0, 80) == "done\n"


@pytest.mark.long
@pytest.mark.parametrize("name", list(INPUTS))
def test_flipped_bits_by_the_thousand(incumbent, name):
    assert hostile(incumbent / f"{name}.pte", name, 1000, 4000) == "done\n"


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_the_cpp_parser_accepts_what_the_python_parser_accepts(data):
    blob = bytearray(BLOB)
    for _ in range(data.draw(st.integers(0, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(blob) + data.draw(st.binary(max_size=40))
    cut = whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else bytes(blob)
    wrong = host._bridge().library.ethorch_parse(cut, len(cut))
    try:
        DelegatePayload.unpack(cut)
    except PayloadError as error:
        assert wrong is not None, f"C++ accepts what Python refuses: {error}"
    else:
        assert wrong is None, wrong


# ---------------------------------------------------------------------------------------------------------------------
# Building and registering


RUN = "import sys; from tests.test_host import *; print(host.load(sys.argv[1])(*random_inputs('cnn'))[0].sum().item())"


def run_in_child(prelude: str, path: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", f"{prelude}\n{RUN}", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": str(HERE.parent), **env},
    )


@pytest.mark.parametrize("prelude", ["import torch, executorch.kernels.quantized", "import executorch.exir"])
def test_the_order_of_imports_does_not_matter(incumbent, prelude):
    wanted = host.load(incumbent / "cnn.pte")(*random_inputs("cnn"))[0].sum().item()
    child = run_in_child(prelude, incumbent / "cnn.pte")
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) == wanted
    assert "register_pal" not in child.stderr


def test_without_a_compiler(monkeypatch, tmp_path):
    host.build_library()  # the compiler is there, normally
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(HostError, match=r"no C\+\+ compiler was found.*apt install g\+\+.*CXX"):
        host.build_library()


def test_a_library_built_earlier_needs_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    built = host.build_library()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert host.build_library() == built


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'error: unknown C++ standard' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(HostError, match=r"C\+\+20 is needed.*unknown C\+\+ standard"):
        host.build_library()
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unwritable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path / "file/cache"))
    with pytest.raises(HostError, match=r"cannot write .*Set ETHORCH_CACHE_DIR"):
        host.build_library()


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("ETHORCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / "ethorch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.cache_folder() == tmp_path / ".cache/ethorch"


def test_a_damaged_library_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    built = host.build_library()
    built.unlink()
    built.write_bytes(b"not a library")
    assert host._load_library().ethorch_parse(BLOB, len(BLOB)) is None
    assert host._load_library().ethorch_parse(b"", 0) is not None


def test_several_processes_build_at_once(tmp_path):
    script = "from ethorch import host; print(host.build_library())"
    env = {**os.environ, "ETHORCH_CACHE_DIR": str(tmp_path / "cache")}
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=env) for _ in range(3)
    ]
    outputs = {child.communicate(timeout=300)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(outputs) == 1
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == [outputs.pop().strip()]


def test_a_program_loaded_behind_our_back_says_so(incumbent):
    """ExecuTorch's own Runtime finds our delegate, which then does not know what to run it on."""
    host.load(incumbent / "cnn.pte", machine=Stub)
    from executorch.runtime import Runtime

    loaded = Runtime.get().load_program((incumbent / "cnn.pte").read_bytes())
    with pytest.raises(RuntimeError):
        loaded.load_method("forward")


def test_small_models_run_in_little_time(incumbent):
    loaded = host.load(incumbent / "interrupted.pte", machine=Stub)
    inputs = random_inputs("interrupted")
    loaded(*inputs)
    start = time.perf_counter()
    for _ in range(20):
        loaded(*inputs)
    assert (time.perf_counter() - start) / 20 < 0.02  # what the runtime and the bridge add to the machine's own time


def test_the_npus_operators_reach_the_event_tracer(incumbent, tmp_path):
    from executorch.devtools import Inspector

    program = host.load(incumbent / "cnn.pte", etdump=True)
    with pytest.raises(HostError, match="nothing has run"):
        program.write_etdump(tmp_path / "early.etdp")
    for _ in range(2):
        program(*random_inputs("cnn"))
    program.write_etdump(tmp_path / "dump.etdp")
    blocks = Inspector(etdump_path=str(tmp_path / "dump.etdp")).event_blocks
    events = [event for block in blocks for event in block.events]
    assert any("NPU_OP_CONV" in event.name for event in events)
    assert all(event.is_delegated_op and min(event.perf_data.raw) > 0 for event in events)
    with pytest.raises(HostError, match="without etdump"):
        host.load(incumbent / "cnn.pte").write_etdump(tmp_path / "other.etdp")
