"""What surrounds the operators: headers, faults, budgets, checks, traces, counters, disassembly, branches."""

from __future__ import annotations

import itertools
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from ethorch import vela
from ethorch.npu import Machine, Program, Sources, disassembly
from ethorch.npu.counters import AXI0_WRITE_BEATS, AXI1_READ_BEATS, CYCLE, MAC_ACTIVE, NPU_ACTIVE
from ethorch.npu.machine import PREPARE_WORK
from ethorch.npu.prepared import COMMAND_WORK
from ethorch.npu.registers import REGISTERS, table
from ethorch.support.errors import FormatError, MachineFault
from ethorch.targets.compile_spec import EthosUCompileSpec
from tests.helpers.npu_graphs import TARGETS, Graph, Refused, check, compile_graph, draw, make_machine, reference, run_machine, ts
from tests.npu.cases import CASES
from tests.npu.fuzzing import payload

pytestmark = pytest.mark.core

STOP = 0xFFFF0000


def cmd0(code: int, value: int = 0) -> list[int]:
    return [code | value << 16]


def cmd1(code: int, data: int, high: int = 0) -> list[int]:
    return [code | 1 << 14 | high << 16, data]


def compiled(name: str, target: str, seed: int = 1, **options):
    graph = Graph(seed)
    CASES[name](graph)
    tosa = graph.serialize()
    model = compile_graph(tosa, target, **options)
    return graph, tosa, model, Program(model.command_stream, np.frombuffer(model.read_only.data, np.uint8))


# Headers and rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_program_knows_its_npu(target):
    _, _, _, program = compiled("identity", target)
    assert program.config.name == f"ethos-{target}"


@pytest.mark.parametrize("target", ["u55-128", "u65-512", "u85-256"])
def test_cop2_is_read(target):
    options = "[compiler]\noutput_format=Raw\ncop_format=COP2\n[scheduler]\nseparate_io_regions=true"
    graph, tosa, model, program = compiled("conv_3x3_same", target, options=options)
    assert model.command_stream[:4] == b"COP2" and program.header.local_addressing
    arrays = draw(graph, 7)
    assert np.array_equal(run_machine(model, arrays)[0].ravel(), np.ravel(reference(tosa, arrays)[0]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "COP1 or COP2"),
        (b"COP3" + bytes(60), "COP1 or COP2"),
        (b"COP1", "COP1 header"),
        (payload([STOP])[:-2], "expected 1 command words"),
        (b"COP1" + struct.pack("<4I", 2, 0, 0, 0), "precedes its optimizer configuration"),
        (b"COP1" + struct.pack("<4I", 0x77, 0, 0, 0), "unknown driver action 0x77"),
        (payload([STOP]).replace(struct.pack("<I", 0x1807), struct.pack("<I", 0x1808)), "CONFIG word 0x00001808"),
        (payload([0x8000]), "control bits 2"),
        (payload([0x3FF]), "no CMD0 with opcode 0x3ff"),
        (payload([0x4000]), "second word"),
        (payload(cmd0(0x108)), "ethos-u55-128 has no CMD0 with opcode 0x108"),
        (payload(cmd0(0x105, 3 << 2)), "IFM_PRECISION.precision = 3 is not a legal value"),
        (payload(cmd0(0x107, 8)), "bits 0x80000 are set"),
        (payload(cmd0(0x006, 10)), "mode = 10 is not a legal value"),
        (b"COP2" + bytes(60), "got version 0"),
    ],
)
def test_malformed_payloads_are_refused(data, message):
    with pytest.raises(MachineFault, match=message):
        Program(data)


@pytest.mark.parametrize("family", ["u55", "u65", "u85"])
def test_fields_of_a_register_do_not_overlap(family):
    for row, _ in table(family).values():
        used = 0
        for _, f in row.named_fields:
            assert not used & f.mask, row
            used |= f.mask


def test_every_register_decodes_zero():
    for row in REGISTERS:
        assert all(isinstance(v, int) for v in row.decode(0).values())


# Faults ---------------------------------------------------------------------------------------------------------------


def copy(source: int = 0, target: int = 0, length: int = 16, regions=(1, 1)) -> list[list[int]]:
    """Commands of a DMA."""
    return [
        cmd0(0x130, regions[0]),
        cmd0(0x131, regions[1]),
        cmd1(0x030, source),
        cmd1(0x031, target),
        cmd1(0x032, length),
        cmd0(0x010),
    ]


def test_dma_copies():
    machine = Machine(Program(payload(*copy(0, 32, 16), [STOP])), 64)
    machine.region(1)[:16] = np.arange(16)
    machine.run()
    assert machine.region(1)[32:48].tolist() == list(range(16))


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (copy(56), r"command 5 at byte 0x20, NPU_OP_DMA_START: DMA0_SRC covers bytes 0x38..0x48 of region 1"),
        (copy(regions=(1, 0)), "region 0, which holds constants"),
        (copy(regions=(2, 1)), "region 2 does not exist; the regions are 0, 1"),
        ([], "ends without NPU_OP_STOP"),
        ([cmd0(0x002), [STOP]], "NPU_OP_CONV"),
        ([cmd0(0x005, 1), [STOP]], "NPU_OP_POOL AVERAGE"),
        ([cmd0(0x10A, 65535), cmd0(0x111, 65535), cmd0(0x112, 65535), cmd0(0x006, 6), [STOP]], "array of 4294967296 elements"),
    ],
)
def test_faults_say_where_and_why(commands, message):
    machine = Machine(Program(payload(*(commands + [[STOP]] if commands and commands[-1] != [STOP] else commands))), 64)
    with pytest.raises(MachineFault, match=message):
        machine.run()


@pytest.mark.parametrize(
    ("register", "value", "message"),
    [
        (0x000, 0x7FFFFFF0, "IFM covers bytes"),
        (0x010, 0x7FFFFFF0, "OFM covers bytes"),
        (0x010, 8, "OFM base 0x8 is not aligned to 16"),
        (0x020, 0x7FFFFFF0, "WEIGHT covers bytes"),
        (0x021, 16, "weight stream"),
        (0x023, 32, "expected at least 24 entries in the scale stream, got 3"),
        (0x023, 40, "SCALE base .* or length 40 is not aligned to 16 bytes"),
        (0x020, 8, "WEIGHT base 0x8 .* is not aligned to 16 bytes"),
    ],
)
def test_a_changed_register_is_noticed(register, value, message):
    """Overwrite one CMD1 register of a real convolution."""
    options = "[compiler]\noutput_format=Raw\n[scheduler]\noptimize=Performance"
    _, _, model, program = compiled("residual_block", "u55-128", options=options)
    words = bytearray(model.command_stream)
    for command in program.commands:
        if command.row.cmd1 and command.row.code == register and not command.is_operation:
            struct.pack_into("<I", words, program.header.start + command.offset + 4, value)
    with pytest.raises(MachineFault, match=message):
        make_machine(Program(bytes(words), program.constants), model).run()


@pytest.mark.parametrize("name", ["asr", "asr_large"])
def test_shifts_by_what_no_shift_is_are_noticed(name):
    graph, _, model, program = compiled(name, "u85-256")
    arrays = draw(graph, 1)
    arrays[1].ravel()[-1] = -1
    with pytest.raises(MachineFault, match=r"SHR: expected shift amounts of 0\.\.63, got -1\.\."):
        run_machine(model, arrays, make_machine(program, model))


def test_endless_branches_run_out_of_budget():
    program = Program(payload(cmd1(0x100, 0), [STOP], target="u85-256"))
    with pytest.raises(MachineFault, match="budget"):
        Machine(program, 64, budget=1 << 30).run()
    assert Machine(program, 64).budget <= 1 << 35  # ten seconds


def test_operations_under_ever_new_registers_cost_budget():
    """A loop may write bits of a count to registers: each turn is then an operation of its own, and would be kept."""

    def run(operations: int) -> None:
        words = [*cmd0(0x130, 1), *cmd0(0x131, 1), *cmd1(0x031, 32), *cmd1(0x032, 16)]  # DMA0: 16 bytes within region 1
        for turn in range(operations):
            words += [*cmd0(0x120, turn), *cmd0(0x010)]
        words += [*cmd1(0x100, 4 * (len(words) + 2)), STOP]
        Machine(Program(payload(words, target="u85-256")), 64, budget=20 * (PREPARE_WORK + 4 * COMMAND_WORK)).run()

    run(18)
    with pytest.raises(MachineFault, match="budget"):
        run(21)


def test_budget_is_configurable():
    _, _, model, program = compiled("conv_3x3_same", "u55-128")
    ran = []
    with pytest.raises(MachineFault, match=rf"NPU_OP_CONV WEIGHTS: the run requires {program.work} .*budget of 1000 work units"):
        make_machine(program, model, budget=1000, trace=ran.append).run()
    with pytest.raises(MachineFault, match="budget"):
        make_machine(program, model, budget=program.work - 1, trace=ran.append).run()
    assert not ran
    make_machine(program, model, budget=program.work, trace=ran.append).run()
    assert ran


def long_rows(g: Graph) -> None:
    """The largest number of each of four long rows: on U55 and U65 one pool, whose window is a row."""
    g.output(g.op("REDUCE_MAX", [g.input(1, 1, 60000, 4)], (1, 1, 1, 4), "INT8", axis=2, nan_mode=ts.NanPropagationMode.PROPAGATE))


def long_gather(g: Graph) -> None:
    """Many rows by index: a turn of a loop for each."""
    values, indices = g.input(1, 20000, 16), g.input(1, 20000, dtype="INT32", low=0, high=19999)
    g.output(g.op("GATHER", [values, indices], (1, 20000, 16), "INT8"))


@pytest.mark.parametrize(("build", "target"), [(long_rows, "u55-128"), (long_rows, "u65-512"), (long_gather, "u85-256")])
def test_many_turns_of_a_loop_are_within_budget(build, target):
    check(build, target, least=1)


def test_deep_networks_of_large_images_are_within_budget():
    """As in super-resolution: the memory of three feature maps, and 24 convolutions. Compiled only: it would run seconds."""
    g = Graph(1)
    x = g.conv(g.input(1, 128, 128, 3), 64, pad=(1, 1, 1, 1))
    for _ in range(22):
        x = g.conv(x, 64, pad=(1, 1, 1, 1))
    g.output(g.conv(x, 12, pad=(1, 1, 1, 1)))
    model = compile_graph(g.serialize(), "u55-128")
    program = Program(model.command_stream, np.frombuffer(model.read_only.data, np.uint8))
    assert program.work > 1 << 33
    assert program.work < make_machine(program, model).budget / 5


def test_streams_without_branches_are_refused_before_they_run():
    """The work of a thousand copies is known before the first; it takes no time to refuse them."""
    program = Program(payload(*copy(0, 64, 64), *[cmd0(0x010)] * 1000, [STOP]))
    with pytest.raises(MachineFault, match="budget of 1000000 work units"):
        Machine(program, 128, budget=1_000_000, trace=lambda _: pytest.fail("it runs")).run()


def test_reads_of_unwritten_bytes_are_noticed():
    _, _, model, program = compiled("conv_3x3_same", "u55-128")
    machine = make_machine(program, model, checks=("uninitialized",))
    with pytest.raises(MachineFault, match="IFM reads unwritten bytes of region 1"):
        machine.run()


def test_an_ofm_on_its_ifm_is_noticed():
    """A convolution that writes where it reads; hardware would read what it has just written."""
    _, _, model, program = compiled("conv_3x3_same", "u55-128")
    words = bytearray(model.command_stream)
    ofm = next(c.values["OFM_BASE0"] for c in program.commands if c.row.name == "OFM_BASE0")
    for command in program.commands:
        if command.row.name == "IFM_BASE0":
            struct.pack_into("<I", words, program.header.start + command.offset + 4, ofm + 64)
    damaged = Program(bytes(words), program.constants)
    make_machine(damaged, model).run()
    with pytest.raises(MachineFault, match="OFM overlaps IFM"):
        make_machine(damaged, model, checks=("overlap",)).run()


@pytest.mark.parametrize(("to", "clash"), [(16, False), (32, True), (80, False)])
def test_a_dma_onto_itself_is_no_race(to, clash):
    """Vela leaves the copy in whose two ends its allocation has put in one place."""
    machine = Machine(Program(payload(*copy(16, to, 64), [STOP])), 256, checks=("overlap",))
    if clash:
        with pytest.raises(MachineFault, match="DMA0_DST overlaps DMA0_SRC"):
            machine.run()
    else:
        machine.run()


def test_unknown_checks_and_regions_are_refused():
    program = Program(payload([STOP]))
    with pytest.raises(MachineFault, match="expected overlap, uninitialized"):
        Machine(program, 64, checks=("speling",))
    with pytest.raises(MachineFault, match="contiguous one-dimensional uint8"):
        Machine(program, regions={1: np.zeros((4, 4), np.uint8)})
    with pytest.raises(MachineFault, match="region 5 does not exist"):
        Machine(program, 64).region(5)


# Use ------------------------------------------------------------------------------------------------------------------


def test_memory_of_the_caller_is_used_in_place():
    graph, tosa, model, program = compiled("conv_3x3_same", "u55-128")
    memory = np.zeros(model.scratch.size, np.uint8)
    arrays = draw(graph, 3)
    got = run_machine(model, arrays, Machine(program, regions={1: memory}))
    assert np.array_equal(got[0].ravel(), np.ravel(reference(tosa, arrays)[0]))
    out = model.outputs[0]
    assert np.array_equal(memory[out.address : out.address + out.size].view(np.int8), got[0].ravel())


def test_threads_share_a_program():
    graph, _, model, program = compiled("residual_block", "u65-512")
    inputs = [draw(graph, seed) for seed in range(6)]
    wanted = [run_machine(model, arrays)[0] for arrays in inputs]
    got: list = [None] * len(inputs)

    def work(i):
        machine = make_machine(program, model)
        for _ in range(3):
            got[i] = run_machine(model, inputs[i], machine)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(w, g) for w, g in zip(wanted, got, strict=True))


def test_trace_sees_operands_and_registers():
    graph, _, model, program = compiled("maximum_int32", "u55-128")
    events = []
    arrays = draw(graph, 1)
    got = run_machine(model, arrays, make_machine(program, model, trace=events.append))
    event = next(e for e in events if e.op.title == "NPU_OP_ELEMENTWISE MAX")
    assert event.op["OFM_DEPTH"] == 20
    assert {event.inputs[k].tobytes() for k in ("IFM", "IFM2")} == {a.tobytes() for a in arrays}
    assert event.outputs["OFM"].tobytes() == got[0].tobytes()


def test_counters():
    graph, _, model, program = compiled("conv_3x3_same", "u55-128")
    machine = make_machine(program, model)
    for seed in range(2):
        run_machine(model, draw(graph, seed), machine)
    convs = [c for c in machine.counters.values() if c.op.name == "NPU_OP_CONV"]
    assert all(c.runs == 2 and c.seconds > 0 for c in convs)
    assert sum(c.macs for c in convs) == 2 * 13 * 11 * 24 * 9 * 8
    assert sum(c.written_bytes[1] for c in convs) == 2 * 13 * 11 * 24
    assert sum(c.weight_bytes for c in convs) > 0


@pytest.fixture(scope="module")
def attributed():
    """Two convolutions, through ethorch.vela, which keeps Vela's database."""
    g = Graph(3)
    g.output(g.conv(g.conv(g.input(1, 16, 16, 8), 16, pad=(1, 1, 1, 1)), 24, stride=(2, 2), pad=(0, 1, 0, 1)))
    model = vela.compile(g.serialize(), EthosUCompileSpec("ethos-u55-128"))
    sources = Sources.from_schedule(model.rows(), {row.name: "conv (net.py:3)" for row in model.rows()})
    return model, sources


def test_counters_by_operator(attributed):
    model, sources = attributed
    machine = Machine(Program(model.command_stream, model.constants), model.scratch_bytes, sources=sources)
    for _ in range(3):
        machine.run()
    convs = [o for o in machine.operators if o.macs]
    assert [o.source.operator for o in convs] == ["Conv2D", "Conv2D"]
    assert [o.macs for o in convs] == [3 * 16 * 16 * 16 * 8 * 9, 3 * 8 * 8 * 24 * 16 * 9]
    assert convs[0].written_bytes[1] == 3 * 16 * 16 * 16
    assert convs[1].written_bytes[1] == 3 * 8 * 8 * 24 + convs[1].dma_bytes  # weights are staged in region 1
    assert all(o.source.op_cycles > 0 and o.runs == 3 and o.blocks >= 3 and o.seconds > 0 for o in convs)
    events = machine.events()
    macs = sum(o.macs for o in convs)
    assert macs / 128 <= events[MAC_ACTIVE] <= macs / 128 + len(machine.counters)
    assert events[AXI0_WRITE_BEATS] == sum(o.written_bytes[1] for o in convs) // 8
    assert events[AXI1_READ_BEATS] >= sum(o.weight_bytes for o in convs) // 8
    assert machine.events(ports={0: 0})[AXI1_READ_BEATS] == 0
    assert events[CYCLE] == events[NPU_ACTIVE] == 3 * sum(row.op_cycles for row in model.rows()) > events[MAC_ACTIVE]


def test_counters_of_a_gather():
    """Bytes that a DMA picks by index are counted for both regions; without sources nobody knows of cycles."""
    graph, _, model, program = compiled("gather_batch", "u85-256")
    machine = make_machine(program, model)
    run_machine(model, draw(graph, 1), machine)
    gathers = [c for c in machine.counters.values() if c.dma_bytes and c.op["DMA0_SRC_REGION.indexed"]]
    size = model.outputs[0].size
    assert sum(c.dma_bytes for c in gathers) == size
    assert sum(sum(c.read_bytes.values()) for c in gathers) == sum(sum(c.written_bytes.values()) for c in gathers) == size
    assert CYCLE not in machine.events()


def test_sources_survive_json(attributed):
    _, sources = attributed
    again = Sources.from_json(sources.to_json())
    assert [again.at(offset) for offset in range(0, 400, 4)] == [sources.at(offset) for offset in range(0, 400, 4)]
    with pytest.raises(FormatError, match=r"expected \[command offset, index into 0 sources\]"):
        Sources.from_json('{"sources": [], "ends": [[1, 2]]}')


def test_a_fault_names_its_operator(attributed):
    model, sources = attributed
    machine = Machine(Program(model.command_stream, model.constants), 2048, sources=sources)
    with pytest.raises(MachineFault, match=r"FM covers bytes .* The command belongs to Conv2D \S+, conv \(net.py:3\)\."):
        machine.run()


@pytest.mark.parametrize("target", ["u55-128", "u65-512", "u85-256"])
def test_disassembly(target):
    _, _, _, program = compiled("residual_block", target)
    rows = disassembly.rows(program)
    depthwise = next(r for r in rows if r["operation"] == "NPU_OP_DEPTHWISE")
    assert depthwise["details"]["kernel"] == "3x3" and depthwise["registers"]["KERNEL_HEIGHT"] == "3"
    conv = next(r for r in rows if r["operation"].startswith("NPU_OP_CONV"))
    assert conv["tensors"]["OFM"].startswith("int8[") and "WEIGHT" in conv["tensors"]
    assert target in disassembly.text(program).splitlines()[0]


def test_disassembly_is_readable():
    """A stream of Vela 5.2's, kept as a file so that no other version changes it."""
    golden = Path(__file__).parent.parent / "golden"
    program = Program((golden / "npu_stream.bin").read_bytes())
    sources = Sources.from_json((golden / "npu_stream.sources.json").read_text())
    assert disassembly.text(program, sources) == (golden / "npu_stream.txt").read_text()


def test_disassembly_of_every_case():
    """No operation of any case fails to be shown."""
    for name, target in itertools.product(("table_fused", "matmul", "add_int16_opa", "resize_bilinear_x2"), ("u55-32", "u85-256")):
        try:
            program = compiled(name, target)[3]
        except Refused:
            continue
        assert not any(line.fault for line in disassembly.lines(program)), name


def test_disassembly_of_what_cannot_run():
    program = Program(payload(cmd0(0x100, 5), cmd0(0x002), [STOP]))
    assert "imply an IFM of size" in disassembly.rows(program)[0]["fault"]
    assert "cannot run: kernel (1, 1)" in disassembly.text(program)


# Branches (U85) -------------------------------------------------------------------------------------------------------


def block(g: Graph, name: str, inputs, body) -> None:
    """A region of its own with one block, as COND_IF and WHILE_LOOP name them."""
    g.ser.startRegion(name)
    g.ser.addBasicBlock(name)
    args = []
    for t in inputs:
        arg = g._tensor(g._name(), t.shape, t.dtype)
        g.ser.addInputTensor(ts.TosaSerializerTensor(str(arg), list(t.shape), getattr(ts.DType, t.dtype), None))
        args.append(arg)
    for o in body(*args):
        g.ser.addOutputTensor(ts.TosaSerializerTensor(str(o), list(o.shape), getattr(ts.DType, o.dtype), None))


def cond_if(g: Graph) -> None:
    c = g.input(1, dtype="BOOL")
    x, y = (g.input(1, 4, 5, 16, dtype="INT32", low=-1000, high=1000) for _ in range(2))
    g.output(g.op("COND_IF", [c, x, y], x.shape, "INT32", then_graph="then", else_graph="else"))
    block(g, "then", [x, y], lambda a, b: [g.op("ADD", [a, b], a.shape, "INT32")])
    block(g, "else", [x, y], lambda a, b: [g.op("SUB", [a, b], a.shape, "INT32")])


def while_loop(g: Graph) -> None:
    n = g.input(1, dtype="INT32", low=2, high=9)
    x = g.input(1, 4, 5, 16, dtype="INT32", low=-1000, high=1000)
    outputs = [g._tensor(g._name(), t.shape, t.dtype) for t in (n, x)]
    for o in outputs:
        g.ser.currRegion.currBasicBlock.addTensor(str(o), list(o.shape), ts.DType.INT32)
    attribute = ts.TosaSerializerAttribute()
    attribute.WhileLoopAttribute(cond_graph="cond", body_graph="body")
    g.ser.addOperator(ts.Op.WHILE_LOOP, [str(n), str(x)], [str(o) for o in outputs], attribute)
    g.output(*outputs)
    block(g, "cond", [n, x], lambda a, b: [g.op("GREATER", [a, g.const([0], "INT32")], (1,), "BOOL")])
    block(
        g,
        "body",
        [n, x],
        lambda a, b: [g.op("SUB", [a, g.const([1], "INT32")], (1,), "INT32"), g.op("ADD", [b, b], b.shape, "INT32")],
    )


@pytest.mark.parametrize("build", [cond_if, while_loop])
@pytest.mark.parametrize("target", ["u85-256", "u85-1024"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_branches(build, target, seed):
    check(build, target, seed)
