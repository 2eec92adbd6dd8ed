"""Files from outside: refused, or run, and never the end of the process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ethorch import runtime
from ethorch.formats import pte as program
from ethorch.formats.payload import DelegatePayload
from ethorch.runtime.delegate import host_backend
from ethorch.support.errors import EthorchError, HostError, MachineFault, PayloadError, ProgramError, SpecError
from tests.formats.test_payload import BLOB
from tests.helpers.host import INPUTS, Stub, random_inputs

ROOT = Path(__file__).parent.parent.parent


def test_what_cannot_be_loaded(incumbent, tmp_path):
    with pytest.raises(ProgramError, match=r"cannot read .*none.pte: No such file"):
        runtime.load(tmp_path / "none.pte")
    with pytest.raises(ProgramError, match="Is a directory"):
        runtime.load(tmp_path)
    with pytest.raises(SpecError, match="no method 'backward'; it has 'forward'"):
        runtime.load(incumbent / "cnn.pte", "backward")
    for data in (b"", b"PK\3\4" + bytes(100), b"\x10\0\0\0ET11" + bytes(100)):
        with pytest.raises(ProgramError, match=r"expected b'ET12', the identifier of a \.pte"):
            runtime.load(data)


def test_another_backend_or_operator_is_named(incumbent):
    data = (incumbent / "cnn.pte").read_bytes()
    with pytest.raises(HostError, match=r"requires the backend 'EthosVBackend', but the runtime has only .*EthosUBackend"):
        runtime.load(data.replace(b"EthosUBackend\0", b"EthosVBackend\0"), machine=Stub)
    data = (incumbent / "interrupted.pte").read_bytes()
    with pytest.raises(HostError, match=r"ExecuTorch's runtime has no CPU kernel: aten::topx.values"):
        runtime.load(data.replace(b"aten::topk\0", b"aten::topx\0"), machine=Stub)


def test_damaged_payloads_are_refused_with_the_payloads_words(incumbent):
    data = (incumbent / "cnn.pte").read_bytes()
    with pytest.raises(PayloadError, match="unknown block 'weight_dats'"):
        runtime.load(data.replace(b"weight_data\0", b"weight_dats\0"), machine=Stub)
    head, tail = data.split(b"scratch_size\0\0\0\0", 1)
    with pytest.raises(PayloadError, match="scratch region of 16 bytes"):
        runtime.load(head + b"scratch_size\0\0\0\0" + tail[:16] + struct.pack("<I", 16) + tail[20:], machine=Stub)


def test_a_stream_for_no_known_npu_is_a_machine_fault(incumbent):
    data = bytearray((incumbent / "cnn.pte").read_bytes())
    config = data.find(b"COP1") + 8
    data[config] ^= 0xFF
    with pytest.raises(MachineFault, match="CONFIG word"):
        runtime.load(bytes(data))


def test_a_kernels_failed_check_is_an_error_not_the_end(incumbent):
    """ExecuTorch aborts the process here; quant_max 127 becomes 1151, which does not fit int8."""
    loaded = program.read((incumbent / "staged.pte").read_bytes()).methods["forward"]
    call = next(c for c in loaded.calls if c.operator == "quantized_decomposed::quantize_per_tensor.out")
    assert loaded.values[call.args[4]].number == 127
    data = (incumbent / "staged.pte").read_bytes()
    positions = [i for i in range(0, 4000, 4) if data[i : i + 8] == struct.pack("<q", 127)]
    with pytest.raises(HostError, match=r"failed to run method 'forward': .*quant_max"):
        for position in positions:
            damaged = data[:position] + struct.pack("<q", 1151) + data[position + 8 :]
            runtime.load(damaged, machine=Stub)(*random_inputs("staged"))


def test_argument_kinds_are_checked_before_a_kernel_sees_them(incumbent):
    """A kernel that gets an int for a tensor aborts the process."""
    data = (incumbent / "cnn.pte").read_bytes()
    method = program.read(data).methods["forward"]
    call = next(c for c in method.calls if c.operator == "quantized_decomposed::quantize_per_tensor.out")
    args = struct.pack(f"<{len(call.args)}i", *call.args)
    swapped = struct.pack(f"<{len(call.args)}i", call.args[2], *call.args[1:])
    assert data.count(args) == 1
    with pytest.raises(ProgramError, match=r"quantize_per_tensor.out .*expected tensor as argument 0, got int"):
        runtime.load(data.replace(args, swapped), machine=Stub)


def test_every_truncation_is_refused(incumbent):
    for name in ("cnn", "staged"):
        data = (incumbent / f"{name}.pte").read_bytes()
        for length in [*range(200), *range(200, len(data) - 1, 331)]:
            with pytest.raises(EthorchError):
                runtime.load(data[:length], machine=Stub)


HOSTILE = """
import mmap, os, random, signal, sys
from ethorch import runtime
from ethorch.support.errors import EthorchError
from tests.helpers.host import Stub, random_inputs
path, name, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
data, inputs = open(path, "rb").read(), random_inputs(name)
runtime.load(data, machine=Stub)(*inputs)
blob = max((d.blob for d in runtime.load(data, machine=Stub).description.delegates), key=len)
start = data.find(blob)

def damaged(seed):
    random.seed(seed)
    result = bytearray(data)
    for _ in range(random.choice([1, 1, 3])):
        at = random.randrange(len(data) - len(blob))
        at += len(blob) if at >= start else 0                # weights may hold anything: spend the flips elsewhere
        result[at] = random.choice([result[at] ^ 1 << random.randrange(8), 0, 1, 2, 127, 255])
    return bytes(result)

def work(first, shared):                                     # in a child, which may die of a file
    sys.stderr = sys.stdout = open(os.devnull, "w")
    for seed in range(first, last):
        shared[:8] = seed.to_bytes(8, "little")
        signal.alarm(60)
        try:
            runtime.load(damaged(seed), machine=Stub)(*inputs)
        except EthorchError:
            pass
        except BaseException:
            os._exit(1)
    os._exit(0)

while first < last:
    shared = mmap.mmap(-1, 8)
    child = os.fork() or work(first, shared)
    _, status = os.waitpid(child, 0)
    first = int.from_bytes(shared[:8], "little") + 1
    if status:
        print(f"seed {first - 1}: status {status}", flush=True)
print("done")
"""


def hostile(path: Path, name: str, first: int, last: int) -> str:
    command = [sys.executable, "-c", HOSTILE, str(path), name, str(first), str(last)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=env).stdout


@pytest.mark.parametrize("name", ["cnn", pytest.param("staged", marks=pytest.mark.long)])
def test_flipped_bits_give_an_error_or_a_result(incumbent, name):
    """Never a crash, a hang or another exception: loaded and run, in a child process."""
    assert hostile(incumbent / f"{name}.pte", name, 0, 300) == "done\n"


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
    wrong = host_backend().library.ethorch_parse(cut, len(cut))
    try:
        DelegatePayload.unpack(cut)
    except PayloadError as error:
        assert wrong is not None, f"C++ accepts what Python refuses: {error}"
    else:
        assert wrong is None, wrong
