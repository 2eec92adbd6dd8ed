"""Vela in process: what it returns, what it refuses, and what the flags reach."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ethorch import vela
from ethorch.formats.payload import DelegatePayload
from ethorch.lower.builder.builder import Builder
from ethorch.support.errors import VelaError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.targets.npus import TARGETS
from ethorch.tosa.serialize import serialize
from tests.helpers.ladder import machine
from tests.helpers.npu_graphs import Graph
from tests.lower.rewrite.vela_bug_views import table_of_transpose


def small() -> bytes:
    """Two convolutions on int8[1,16,16,8]."""
    g = Graph(3)
    g.output(g.conv(g.conv(g.input(1, 16, 16, 8), 16, pad=(1, 1, 1, 1)), 24, stride=(2, 2), pad=(0, 1, 0, 1)))
    return g.serialize()


TOSA = small()


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_compiles(name):
    spec = EthosUCompileSpec(name)
    model = vela.compile(TOSA, spec)
    assert [(t.shape, t.element_size, t.region) for t in model.inputs] == [((1, 1, 1, 16, 16, 8), 1, 1)]
    assert [(t.shape, t.element_size, t.region) for t in model.outputs] == [((1, 1, 1, 8, 8, 24), 1, 1)]
    assert model.payload.scratch_bytes == model.scratch_bytes
    performance = model.performance
    assert performance.mac_count >= 16 * 16 * 16 * 8 * 9 + 8 * 8 * 24 * 16 * 9
    assert performance.inference_seconds == performance.total_cycles / spec.memory_system.core_clock_hz
    assert (model.scratch_fast_bytes > 0) == spec.memory_system.staged
    if spec.memory_system.staged:
        assert performance.sram_bytes == model.scratch_fast_bytes
        assert performance.dram_bytes >= len(model.constants)
    from ethorch.npu import Program

    assert Program(model.command_stream, model.constants).config.name == name


@pytest.mark.parametrize("name", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-512"])
def test_rows_add_up_to_the_report_and_lead_back_to_tosa(name):
    import tosa_serializer  # noqa: F401  the graphs' operators are counted in its order: CONST first

    model = vela.compile(TOSA, EthosUCompileSpec(name))
    rows = model.rows()
    assert sum(row.npu_cycles for row in rows) == model.performance.npu_cycles
    assert sum(row.op_cycles for row in rows) == model.performance.total_cycles
    assert sum(row.macs for row in rows) == model.performance.mac_count
    convolutions = [row for row in rows if row.macs]
    assert len({row.tosa_op for row in convolutions}) == 2
    offsets = [offset for row in rows for offset in row.command_offsets]
    assert offsets == sorted(offsets)
    assert all(0 <= offset < len(model.command_stream) for offset in offsets)
    for row in convolutions:
        assert model.op_at(row.command_offsets[-1]) is row
    assert model.op_at(0) is next(row for row in rows if row.command_offsets)
    assert model.op_at(len(model.command_stream)) is None


def test_command_offsets_point_at_operations():
    from ethorch.npu import Program

    model = vela.compile(TOSA, EthosUCompileSpec("ethos-u55-128"))
    names = {op.offset: op.name for op in Program(model.command_stream, model.constants).operations()}
    found = {names[offset] for row in model.rows() for offset in row.command_offsets if row.macs}
    assert found == {"NPU_OP_CONV"}


def test_flags_reach_the_compiler():
    def compiled(flags, **kwargs):
        return vela.compile(TOSA, EthosUCompileSpec("ethos-u55-128", extra_flags=flags, **kwargs))

    default = compiled([])
    assert compiled("--cop-format COP2").command_stream[:4] == b"COP2"
    assert default.command_stream[:4] == b"COP1"
    assert compiled("--tensor-allocator LinearAlloc").scratch_bytes > default.scratch_bytes
    assert compiled("--disable-buffering --disable-cascading").command_stream != default.command_stream
    size = compiled("--optimise Size")
    assert size.performance.sram_bytes < default.performance.sram_bytes
    slow = compiled([], system_config="Ethos_U55_Deep_Embedded")
    assert slow.performance.core_clock_hz == 200e6


def test_options_are_velas_own():
    """The same text as Vela's driver makes from the same flags."""
    from ethosu.vela import vela as driver

    flags = {
        "optimize": "Size",
        "arena_cache_size": 12345,
        "disable_fwd": True,
        "disable_buffering": True,
        "cop_format": "COP1",
        "cpu_tensor_alignment": 64,
        "tensor_allocator": "Greedy",
        "softmax_int16_neg_exp_range": 10.0,
        "enable_debug_db": True,
        "output_format": "raw",
        "verbose_schedule": True,
    }
    code = driver.get_compiler_config.__code__
    names = code.co_varnames[: code.co_argcount]
    theirs = driver.get_compiler_config(**{name: flags.get(name, False) for name in names})
    spec = EthosUCompileSpec(
        "ethos-u85-256",
        extra_flags="--optimise Size --arena-cache-size 12345 --disable-fwd --disable-buffering "
        "--cpu-tensor-alignment 64 --tensor-allocator Greedy --verbose-schedule",
    )
    assert sorted(vela.options_text(spec).split()) == sorted(theirs.split())


@pytest.mark.parametrize("name", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
def test_the_name_of_a_system_configuration_does_not_change_its_bandwidths(name):
    """Vela gives a U55 ports of 16 bytes where the section's name does not begin with Ethos_U55: twice as fast."""
    usual = EthosUCompileSpec(name)
    renamed = usual.vela_config.text.replace(f"[System_Config.{usual.system_config}]", "[System_Config.my board]")
    mine = EthosUCompileSpec(name, "my board", usual.memory_mode, config_text=renamed)
    found, wanted = vela.compile(TOSA, mine), vela.compile(TOSA, usual)
    assert found.performance == wanted.performance and found.rows() == wanted.rows()
    assert any(sum(row.access_cycles.values()) for row in wanted.rows())


def test_staging_memory_size_is_obeyed():
    g = Graph(5)
    g.output(g.conv(g.input(1, 24, 24, 32), 64, pad=(1, 1, 1, 1)))
    tosa = g.serialize()
    roomy = vela.compile(tosa, EthosUCompileSpec("ethos-u65-256", memory_mode="Dedicated_Sram_512KB"))
    tight = vela.compile(tosa, EthosUCompileSpec("ethos-u65-256", extra_flags=["--arena-cache-size=10000"]))
    assert tight.scratch_fast_bytes <= 10000 < roomy.scratch_fast_bytes <= 524288


@pytest.mark.parametrize("timeout_seconds", [None, 60])
@pytest.mark.parametrize(
    ("tosa", "words"),
    [
        (b"", "not a TOSA flatbuffer"),
        (b"\x00" * 64, "not a TOSA flatbuffer"),
        (TOSA[: len(TOSA) // 2], "TOSA FB Reader error: Failed to load TOSA model"),
    ],
)
def test_garbage_is_refused_in_velas_words(tosa, words, timeout_seconds):
    with pytest.raises(VelaError, match=words):
        vela.compile(tosa, EthosUCompileSpec("ethos-u55-128"), timeout_seconds=timeout_seconds)


def test_an_operator_the_npu_lacks_is_refused_in_velas_words():
    g = Graph()
    g.output(g.op("BITWISE_AND", [g.input(1, 8), g.input(1, 8)], (1, 8), "INT8"))
    vela.compile(g.serialize(), EthosUCompileSpec("ethos-u85-256"))
    with pytest.raises(VelaError, match=r"Vela rejected the graph for ethos-u55-128: .*And"):
        vela.compile(g.serialize(), EthosUCompileSpec("ethos-u55-128"))


def test_a_program_with_a_printed_error_is_no_result(capfd):
    """Vela's bug ``vela.table-of-transpose``: it loads the table behind the end of SHRAM, prints so, and returns a program."""
    b = Builder()
    b.graph.outputs.append(table_of_transpose(b))
    tosa = serialize(b.graph)
    vela.compile(tosa, EthosUCompileSpec("ethos-u55-128"))
    for timeout_seconds in (None, 60):
        with pytest.raises(VelaError, match=r"cannot run on ethos-u55-64. Vela printed: Error: Address out of bounds, .*'shram'"):
            vela.compile(tosa, EthosUCompileSpec("ethos-u55-64"), timeout_seconds=timeout_seconds)
    assert "Address" not in capfd.readouterr().out


def test_a_lost_output_is_no_result():
    """NCHW outside, NHWC inside, as many graphs are: the first output's TRANSPOSE is undone for the second operator."""
    g = Graph()
    nhwc = g.conv(g.input(1, 8, 8, 4), 8, pad=(1, 1, 1, 1))
    nchw = g.op("TRANSPOSE", [nhwc], (1, 8, 8, 8), "INT8", perms=[0, 3, 1, 2])
    again = g.op("TRANSPOSE", [nchw], (1, 8, 8, 8), "INT8", perms=[0, 2, 3, 1])
    g.output(nchw, g.conv(again, 6))
    with pytest.raises(VelaError, match=r"dropped or reordered outputs.*TRANSPOSE"):
        vela.compile(g.serialize(), EthosUCompileSpec("ethos-u55-128"))


def test_a_lost_input_is_no_result():
    g = Graph()
    used, _ = g.input(1, 8, 8, 4), g.input(1, 2, 2, 2)
    g.output(g.conv(used, 6))
    with pytest.raises(VelaError, match=r"dropped or reordered inputs.*unused inputs"):
        vela.compile(g.serialize(), EthosUCompileSpec("ethos-u55-128"))


@pytest.mark.parametrize("name", ["ethos-u55-128", "ethos-u85-256"])
def test_a_child_process_gives_the_same(name):
    spec = EthosUCompileSpec(name, extra_flags="--optimise Size")
    here, there = vela.compile(TOSA, spec), vela.compile(TOSA, spec, timeout_seconds=60)
    assert there == here
    assert [row.command_offsets for row in there.rows()] == [row.command_offsets for row in here.rows()]


def test_an_endless_compilation_ends(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(VelaError, match=r"within 0\.2 seconds"):
        vela.compile(TOSA, EthosUCompileSpec("ethos-u55-128"), timeout_seconds=0.2)


def test_the_dying_of_the_child_is_reported(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nkill -KILL $$\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(VelaError, match="terminated by signal 9"):
        vela.compile(TOSA, EthosUCompileSpec("ethos-u55-128"), timeout_seconds=60)


def test_a_cut_of_int32_is_in_no_cascade() -> None:
    """Vela's bug ``vela.int32-slice-in-cascade``."""
    b = Builder(tuning=TARGETS["ethos-u65-256"].tuning)
    wide = b.rescale(b.input("x", (1, 205, 100, 10), "INT8"), 1.0, input_zp=3, dtype="INT32")
    cut = b.emit("SLICE", wide, start=(0, 2, 0, 0), size=(1, 200, 100, 10))
    b.graph.outputs.append(b.emit("ADD", cut, b.const(np.ones((1, 1, 1, 1), np.int32))))
    codes = [np.random.default_rng(0).integers(-128, 128, (1, 205, 100, 10)).astype(np.int8)]
    (found,) = machine(serialize(b.graph), codes, EthosUCompileSpec("ethos-u65-256"))
    np.testing.assert_array_equal(found.ravel(), codes[0][:, 2:202].ravel().astype(np.int32) - 3 + 1)


def test_the_payload_of_a_compiled_model():
    model = vela.compile(TOSA, EthosUCompileSpec("ethos-u55-128"))
    assert model.payload.commands == model.command_stream
    assert model.payload.weights == model.constants
    assert DelegatePayload.unpack(model.payload.pack()) == model.payload
