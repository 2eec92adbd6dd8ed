"""Hostile inputs by number: ``python -m tests.npu.fuzzing --first 0 --count 1000000``.

Input n is made from the seed n alone: a compiled program whose stream or constants are damaged, a stream put together
from known commands, a damaged weight stream, a damaged delegate payload, a damaged file of Vela's. It has to end in a
result or in one of our errors, within SECONDS of CPU and MOST_BYTES of memory more than before; anything else is printed
with its number and makes the exit code 1. Where the process itself dies, the file given by ``--progress`` holds the
number it died of.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from ethorch.formats.payload import DelegatePayload, IoTensor
from ethorch.npu import Machine, Program, Sources, disassembly
from ethorch.npu.registers import NPUS, Field, table
from ethorch.npu.vela_files import read_vela
from ethorch.npu.weights.decode import decode_fast, decode_standard, decode_standard_numpy
from ethorch.support.errors import EthorchError, MachineFault
from tests.helpers.both_ways import run_both_ways

SECONDS = 10.0  # of CPU, for any one input; a run's budget is BUDGET
HANG_SECONDS = 600  # for 64 inputs, by the clock: something does not listen to signals, and the process is ended
BUDGET = 1 << 28
MOST_BYTES = 800 << 20  # of memory, above what the process had; a file may ask for regions of 256 MiB
WARM_UP = 100  # inputs before memory is measured
STOP = [0xFFFF0000]

COMMON = ("conv_3x3_same", "depthwise_3x3", "add_broadcast_both", "average_pool_3x3_padded", "table_fused", "residual_block")
U85 = ("matmul", "gather_batch", "scatter", "resize_bilinear_x2", "argmax_c", "select_int8", "reverse_c", "conv_2_4_sparse")
CORPUS = {"u55-32": COMMON, "u55-128": COMMON, "u65-512": COMMON, "u85-256": COMMON + U85, "u85-1024": COMMON + U85}


def payload(*commands: list[int], target: str = "u55-128") -> bytes:
    """A COP1 payload around hand-written commands."""
    config = next(npu.config for npu in NPUS.values() if npu.name == f"ethos-{target}")
    words = [w for c in commands for w in c]
    header = [0x31504F43, 0x00100001, config, 0x10066001, 5, 5, 5, 2 | (len(words) & 0xFFFF) << 16]
    return struct.pack(f"<{8 + len(words)}I", *header, *words)


@cache
def corpus() -> list[DelegatePayload]:
    """Payloads that run."""
    from tests.helpers.npu_graphs import Graph, compile_graph
    from tests.npu.cases import CASES

    payloads = []
    for target, names in CORPUS.items():
        for name in names:
            graph = Graph(1)
            CASES[name](graph)
            model = compile_graph(graph.serialize(), target)
            inputs, outputs = (
                tuple(IoTensor(tuple(t.shape), t.element_size, t.address) for t in ts) for ts in (model.inputs, model.outputs)
            )
            constants = bytes(np.frombuffer(model.read_only.data, np.uint8))
            payloads.append(DelegatePayload(model.command_stream, constants, model.scratch.size, inputs, outputs))
    return payloads


@cache
def files() -> list[bytes]:
    """.tflite files of Vela's that run."""
    from tests.helpers.npu_graphs import compile_graph
    from tests.npu.test_files import TFLITE, network

    return [bytes(compile_graph(network(), t, TFLITE, fmt="TFLITE").model) for t in ("u55-128", "u85-256")]


@cache
def raw_arrays() -> dict[str, np.ndarray]:
    """What Vela's .npz of a program that runs holds."""
    p = corpus()[0]
    tensors = {"input": p.inputs, "output": p.outputs}
    arrays = {f"{kind}_shape": np.array([t.shape for t in ts]) for kind, ts in tensors.items()}
    arrays |= {f"{kind}_elem_size": np.array([t.element_size for t in ts]) for kind, ts in tensors.items()}
    arrays |= {f"{kind}_region": np.array([t.region for t in ts]) for kind, ts in tensors.items()}
    arrays |= {f"{kind}_offset": np.array([t.offset for t in ts]) for kind, ts in tensors.items()}
    arrays |= {"scratch_size": np.array(p.scratch_bytes), "scratch_fast_region": np.array(0), "scratch_fast_size": np.array(0)}
    return arrays | {"cmd_data": np.array(p.commands), "weight_data": np.frombuffer(p.weights, np.uint8)}


def raw_file(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def damaged_array(rnd: random.Random, array: np.ndarray) -> np.ndarray:
    kind = rnd.random()
    if kind < 0.6 and array.size:
        data = bytearray(array.tobytes())
        for _ in range(rnd.choice((1, 2))):
            data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)
        return np.frombuffer(bytes(data), array.dtype).reshape(array.shape)
    if kind < 0.8:
        return array.ravel()[: rnd.randrange(array.size + 1)]
    return rnd.choice((np.array("text"), array[None], np.array(rnd.choice((-1, 1 << 62, 0.5, np.nan)))))


@cache
def blobs() -> list[bytes]:
    return [p.pack() for p in corpus()]


def damage(rnd: random.Random, data: bytes) -> bytes:
    """Flipped bits, overwritten words, a cut end."""
    result = bytearray(data)
    if not result:
        return data
    for _ in range(rnd.choice((1, 1, 2, 4))):
        at = rnd.randrange(len(result))
        kind = rnd.random()
        if kind < 0.6:
            result[at] ^= 1 << rnd.randrange(8)
        elif kind < 0.9:
            at &= ~3
            result[at : at + 4] = rnd.choice((b"\xff" * 4, bytes(4), rnd.randbytes(4), struct.pack("<I", rnd.randrange(64))))
        else:
            result[at : at + 1] = b""
    return bytes(result[: rnd.randrange(len(result))] if rnd.random() < 0.05 else result)


def run(program: Program, p: DelegatePayload, staging_bytes: int, rnd: random.Random) -> None:
    checks = rnd.choice(((), (), ("overlap",), ("uninitialized",), ("overlap", "uninitialized")))
    if not checks:
        return run_as_plan_too(lambda c: Machine(program, p.scratch_bytes, staging_bytes, budget=BUDGET, compiled=c), rnd)
    machine = Machine(program, p.scratch_bytes, staging_bytes, budget=BUDGET, checks=checks)
    for tensor in p.inputs:
        machine.mark_written(1, tensor.offset, tensor.nbytes)
    machine.run()


def run_as_plan_too(make: Callable[[bool], Machine], rnd: random.Random) -> None:
    """The same bytes or the same fault from compiled code and from NumPy, whatever lies in memory."""
    data = np.frombuffer(rnd.randbytes(1 << 12), np.uint8)

    def fill(machine: Machine) -> None:
        for number in (1, 2):
            if number in machine.regions:
                machine.regions[number][:] = np.resize(data, machine.regions[number].size)

    run_both_ways(make, fill)
    machine = make(True)
    fill(machine)
    machine.run()


def damaged_program(rnd: random.Random) -> None:
    p = rnd.choice(corpus())
    words, constants = p.commands, p.weights
    if rnd.random() < 0.75 or not constants:
        words = damage(rnd, words)
    else:
        constants = damage(rnd, constants)
    run(Program(words, constants), p, 4096, rnd)


def random_value(rnd: random.Random, f: Field) -> int:
    """A raw value of a field: mostly small, so that dimensions and addresses have a chance to fit together."""
    if f.values is not None:
        return rnd.choice(sorted(f.values))
    width = bin(f.mask).count("1")
    return rnd.getrandbits(width) if rnd.random() < 0.1 else rnd.randrange(min(40, 1 << width))


@cache
def rows(target: str):
    found = sorted(table(target[:3]).values(), key=lambda entry: (entry[0].cmd1, entry[0].code))
    return [row for row, is_operation in found if not is_operation], [row for row, is_operation in found if is_operation]


def random_command(rnd: random.Random, row) -> list[int]:
    """A command with a value its row knows."""
    word = row.code | row.cmd1 << 14
    for _, f in row.named_fields:
        raw = random_value(rnd, f)
        bits = [position for position in range(64) if f.mask >> position & 1]
        low = [b for b in bits if b >= 32] + [b for b in bits if b < 32]  # an address continues in the first word
        word |= sum((raw >> i & 1) << position for i, position in enumerate(low))
    return [word & 0xFFFFFFFF, word >> 32] if row.cmd1 else [word & 0xFFFFFFFF]


def random_stream(rnd: random.Random) -> tuple[str, list[list[int]]]:
    """Known commands with values that fit their fields: what gets past the decoder."""
    target = rnd.choice(list(NPUS.values())).name.removeprefix("ethos-")
    registers, operations = rows(target)
    commands = [random_command(rnd, rnd.choice(registers)) for _ in range(rnd.randrange(40))]
    for _ in range(rnd.randint(1, 3)):
        commands += [random_command(rnd, rnd.choice(registers)) for _ in range(rnd.randrange(4))]
        commands.append(random_command(rnd, rnd.choice(operations)))
    return target, [*commands, STOP]


def assembled_stream(rnd: random.Random) -> None:
    target, commands = random_stream(rnd)
    program = Program(payload(*commands, target=target), rnd.randbytes(300))
    if rnd.random() < 0.1:
        disassembly.text(program)
    if rnd.random() < 0.5:
        return run_as_plan_too(lambda c: Machine(program, 4096, 1024, budget=BUDGET, compiled=c), rnd)
    Machine(program, 4096, 1024, budget=BUDGET, checks=("overlap",)).run()


def spliced_stream(rnd: random.Random) -> None:
    """A real stream with commands of another one, or made up ones, in it."""
    p, other = rnd.choice(corpus()), rnd.choice(corpus())
    program, source = Program(p.commands, p.weights), Program(other.commands)
    target = program.config.name.removeprefix("ethos-")
    registers, operations = rows(target)
    words = list(struct.unpack(f"<{len(p.commands) // 4}I", p.commands))
    at = [program.header.start // 4 + c.offset // 4 for c in program.commands]
    for _ in range(rnd.randint(1, 3)):
        place = rnd.choice(at)
        if rnd.random() < 0.5:
            command = rnd.choice(source.commands)
            start = source.header.start + command.offset
            new = list(struct.unpack_from(f"<{1 + command.row.cmd1}I", other.commands, start))
        else:
            new = random_command(rnd, rnd.choice(registers if rnd.random() < 0.8 else operations))
        words[place : place + len(new)] = new
    run(Program(struct.pack(f"<{len(words)}I", *words), p.weights), p, 4096, rnd)


def damaged_weights(rnd: random.Random) -> None:
    """Decoders, with and without compiled code: the same weights, or a fault from both."""
    data = damage(rnd, rnd.choice(corpus()).weights) if rnd.random() < 0.8 else rnd.randbytes(rnd.randrange(200))
    start = rnd.randrange(len(data) + 1) & ~15
    data = data[start : start + rnd.choice((16, 64, 256, 1024))]
    with contextlib.suppress(MachineFault):
        decode_fast(data)
    fast = slow = None
    with contextlib.suppress(MachineFault):
        fast = decode_standard(data)
    with contextlib.suppress(MachineFault):
        slow = decode_standard_numpy(data)
    assert (fast is None) == (slow is None) and (fast is None or np.array_equal(fast, slow)), "the decoders differ"


def damaged_payload(rnd: random.Random) -> None:
    """The delegate blob, as the runtime hands it over: parsed twice, staging memory sized, run."""
    from ethorch import runtime

    blob = rnd.choice(blobs())
    header = blob.find(b"weight_data\0\0\0\0\0")
    end = blob.find(b"scratch_size\0\0\0\0")
    if rnd.random() < 0.7:  # weights are most of it: spend the damage elsewhere
        head, middle, tail = blob[: header + 32], blob[header + 32 : end], blob[end:]
        if rnd.random() < 0.5:
            tail = damage(rnd, tail)
        else:
            head = damage(rnd, head)
        blob = head + middle + tail
    else:
        blob = damage(rnd, blob)
    p = DelegatePayload.unpack(blob)
    machine = runtime.npu_machine(p)
    assert isinstance(machine, Machine)
    machine.budget = BUDGET
    machine.run()


def damaged_file(rnd: random.Random) -> None:
    kind = rnd.random()
    if kind < 0.7:
        data = damage(rnd, rnd.choice(files()))
    elif kind < 0.8:
        data = damage(rnd, raw_file(raw_arrays()))
    else:  # a whole .zip around damaged arrays
        arrays = dict(raw_arrays())
        name = rnd.choice(sorted(arrays))
        arrays[name] = damaged_array(rnd, arrays[name])
        data = raw_file(arrays)
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        file.write(data)
        file.flush()
        found = read_vela(Path(file.name))
    found.run([np.zeros(t.shape, t.dtype) for t in found.inputs], budget=BUDGET)


def damaged_sources(rnd: random.Random) -> None:
    text = '{"sources": [{"name": "a", "operator": "b", "op_cycles": 1, "npu_cycles": 1, "macs": 1}], "ends": [[4, 0]]}'
    sources = Sources.from_json(damage(rnd, text.encode()).decode(errors="replace"))
    sources.at(4)


KINDS: list[tuple[int, Callable[[random.Random], None]]] = [  # of a hundred
    (40, damaged_program),
    (16, assembled_stream),
    (14, spliced_stream),
    (14, damaged_weights),
    (10, damaged_payload),
    (4, damaged_file),
    (2, damaged_sources),
]


class Slow(BaseException):
    """An input takes more CPU than allowed."""


def _slow(*_: object) -> None:
    raise Slow


def _kind(number: int) -> Callable[[random.Random], None]:
    place = number % 100
    for share, kind in KINDS:
        if place < share:
            return kind
        place -= share
    raise AssertionError("the shares do not add up to 100")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(number: int) -> str:
    """Run input ``number``; what became of it. Raises what it raises, if that is none of our errors."""
    kind = _kind(number)
    rnd = random.Random(number)
    try:
        kind(rnd)
    except EthorchError:
        return f"{kind.__name__}, refused"
    return f"{kind.__name__}, ran"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.npu.fuzzing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--progress", help="a file that always holds the number in work")
    options = parser.parse_args(arguments)
    corpus(), blobs(), files()
    for number in range(WARM_UP):  # what is imported and cached on first use belongs to the baseline
        with contextlib.suppress(Exception):
            one(number)
    signal.signal(signal.SIGVTALRM, _slow)
    progress = open(options.progress, "wb", buffering=0) if options.progress else None  # noqa: SIM115
    peak, problems = peak_bytes(), 0
    seen: Counter[str] = Counter()
    started = time.time()
    for number in range(options.first, options.first + options.count):
        if progress:
            progress.seek(0)
            progress.write(b"%d\n" % number)
        if number % 64 == 0:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=sys.__stderr__)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            seen[one(number)] += 1
        except (Exception, Slow) as error:
            problems += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{number}: {_kind(number).__name__}: {repr(error)[:200]} at {last.filename}:{last.lineno}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if peak_bytes() > peak + MOST_BYTES:
            problems += 1
            print(f"{number}: {_kind(number).__name__}: memory rose from {peak >> 20} to {peak_bytes() >> 20} MiB", flush=True)
            peak = peak_bytes()
    faulthandler.cancel_dump_traceback_later()
    for what, count in sorted(seen.items()):
        print(f"{what}: {count}")
    print(f"{options.count} inputs, {problems} problems, {time.time() - started:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
