"""What a user may choose, what is refused, and the list form."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ethorch.support.errors import SpecError
from ethorch.targets import vela_ini
from ethorch.targets.compile_spec import ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.compile_spec_builder import ArmCompileSpecBuilder
from ethorch.targets.npus import TARGETS, lookup
from ethorch.targets.vela_flags import FLAGS, parse_flags
from tests.runtime.conftest import incumbent

__all__ = ["incumbent"]  # its folder has the flags of every target

U55 = "ethos-u55-128"


def test_targets_are_velas():
    from ethosu.vela.architecture_features import Accelerator

    assert sorted(TARGETS) == sorted(Accelerator.member_list())


def test_lookup_takes_any_case_and_names_near_misses():
    assert lookup("Ethos-U55-128") is TARGETS[U55]
    with pytest.raises(SpecError, match=r"ethos-u55-12'.*Did you mean.*'ethos-u55-128'.*ethos-u85-2048"):
        lookup("ethos-u55-12")
    with pytest.raises(SpecError, match="None"):
        lookup(None)  # type: ignore[arg-type]


def test_defaults_and_flags_are_the_incumbents(incumbent: Path) -> None:
    theirs = json.loads((incumbent / "flags.json").read_text())
    assert theirs == {name: EthosUCompileSpec(name).compiler_flags for name in TARGETS}


@pytest.mark.parametrize("name", TARGETS)
def test_list_round_trip(name, tmp_path):
    spec = EthosUCompileSpec(name, extra_flags=["--optimise", "Size", "--arena-cache-size=65536", "--verbose-all"])
    spec.dump_intermediate_artifacts_to(tmp_path).dump_debug_info(EthosUCompileSpec.DebugMode.JSON)
    items = spec.to_list()
    assert EthosUCompileSpec.from_list(items) == spec
    assert ArmCompileSpec.from_list(items) == spec  # the list says which kind it is
    assert EthosUCompileSpec.of(items) == EthosUCompileSpec.of(spec) == spec
    assert spec.path_for_intermediates == str(tmp_path)


def test_pairs_of_key_and_value_are_read_without_executorch():
    spec = EthosUCompileSpec(U55, extra_flags="--optimise Size")
    assert EthosUCompileSpec.from_pairs((item.key, item.value) for item in spec.to_list()) == spec
    with pytest.raises(SpecError, match="twice"):
        EthosUCompileSpec.from_pairs([("target", b"a"), ("target", b"a")])
    with pytest.raises(SpecError, match=r"\.ptd file"):  # as the Arm backend writes it
        EthosUCompileSpec.from_pairs([*spec.to_pairs(), ("external_block_placements", b'{"weight_data":"flash"}')])


def test_a_list_made_by_the_incumbent_is_read():
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    flags = "--optimise Size --accelerator-config=ethos-u85-256 --config=Arm/vela.ini --output-format=raw"
    items = {
        "tosa_spec": "TOSA-1.0+INT+int16+int4+cf",
        "compile_flags": flags + " --system-config=Ethos_U85_SYS_DRAM_Mid --memory-mode=Dedicated_Sram_384KB",
        "output_format": "vela",
        "ouput_reorder_workaround": "",
        "preserve_io_quantization": "False",
        "target": "ethos-u85-256",
    }
    spec = EthosUCompileSpec.from_list([CompileSpec(key, value.encode()) for key, value in items.items()])
    assert spec == EthosUCompileSpec("ethos-u85-256", None, "Dedicated_Sram_384KB", "--optimise=Size")


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({}, "no 'output_format'; it contains no keys"),
        ({"target": U55}, "no 'output_format'; it contains target"),
        ({"output_format": "vgf", "target": U55}, "vgf.*vela"),
        ({"output_format": "vela"}, "neither 'target' nor --accelerator-config"),
        ({"output_format": "vela", "target": U55, "tosa_mode": "x"}, "tosa_mode.*Known"),
        ({"output_format": "vela", "target": U55, "dump_debug_info": "XML"}, "XML.*JSON, TOSA"),
    ],
)
def test_malformed_lists_are_refused(items, words):
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    with pytest.raises(SpecError, match=words):
        EthosUCompileSpec.from_list([CompileSpec(key, value.encode()) for key, value in items.items()])


def test_a_key_given_twice_or_not_text_is_refused():
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    with pytest.raises(SpecError, match="twice"):
        EthosUCompileSpec.from_list([CompileSpec("target", b"a"), CompileSpec("target", b"a")])
    with pytest.raises(SpecError, match="compile spec 'target': expected UTF-8 text"):
        EthosUCompileSpec.from_list([CompileSpec("target", b"\xff\xfe")])


def test_the_older_spelling():
    items = (
        ArmCompileSpecBuilder()
        .ethosu_compile_spec(
            U55,
            system_config="Ethos_U55_High_End_Embedded",
            memory_mode="Shared_Sram",
            extra_flags="--output-format=raw --debug-force-regor",
        )
        .dump_intermediate_artifacts_to("somewhere")
        .build()
    )
    spec = EthosUCompileSpec.of(items)
    assert spec.target is TARGETS[U55]
    assert spec.path_for_intermediates == "somewhere"
    assert list(spec.flags_without_effect) == ["--debug-force-regor"]
    with pytest.raises(SpecError, match="no target"):
        ArmCompileSpecBuilder().build()
    with pytest.raises(SpecError, match="already has a target"):
        ArmCompileSpecBuilder().ethosu_compile_spec(U55).ethosu_compile_spec(U55)


def test_every_flag_of_velas_command_line_is_known():
    """And none that it does not have: read off its own parser, whichever Vela is installed."""
    import re
    from pathlib import Path

    from ethosu.vela import vela

    theirs = set(re.findall(r'"(--[a-z0-9-]+)"', Path(str(vela.__file__)).read_text().split("def main(")[1]))
    assert theirs - set(FLAGS) == set()
    assert set(FLAGS) - theirs == {"--help"}


def test_flags_as_string_list_and_mixed():
    wanted = {"--optimise": "Size", "--config": ["a b.ini"], "--verbose-all": True}
    assert parse_flags("--optimise Size --config='a b.ini' --verbose-all") == wanted
    assert parse_flags(["--optimise", "Size", "--config=a b.ini", "--verbose-all"]) == wanted
    assert parse_flags(["--optimise Size", "--config", "a b.ini", "--verbose-all"]) == wanted
    assert parse_flags(None) == parse_flags([]) == parse_flags("") == {}
    assert parse_flags("--optimise Performance --optimise Size")["--optimise"] == "Size"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--optimize Size", "--optimize'. Did you mean '--optimise'"),
        ("--optimise size", "'size'; expected one of Performance, Size"),
        ("--optimise", "requires a value"),
        ("--optimise --verbose-all", "requires a value, got '--verbose-all'"),
        ("--optimise=", "requires a value"),
        ("--verbose-all=yes", "does not accept a value"),
        ("--arena-cache-size=-1", "at least 0"),
        ("--arena-cache-size=4294967297", "expected at most 4294967296"),
        ("--arena-cache-size=1MB", "an integer"),
        ("--cpu-tensor-alignment 24", "power of two"),
        ("--tensor-allocator Best", "LinearAlloc, Greedy, HillClimb"),
        ("--cop-format COP3", "COP1, COP2"),
        ("--experimental-softmax-int16-neg-exp-range nan", "above 0 and below 65535"),
        ("--max-block-dependency 4", "at most 3"),
        ("--output-format tflite", "expected raw"),
        ("--separate-io-regions", "scratch region"),
        ("--debug-force-legacy-core", "cannot read TOSA"),
        ("--version", "run vela directly"),
        ("model.tosa", "neither a flag"),
        ("--config 'unbalanced", "cannot be split"),
        ([1], "expected strings"),
        ("--accelerator-config ethos-u55-64", "contradicts target 'ethos-u55-128'"),
        ("--accelerator-config ethos-u56", "unknown target"),
    ],
)
def test_refused_flags(flags, words):
    with pytest.raises(SpecError, match=words):
        EthosUCompileSpec(U55, extra_flags=flags)


def test_configs_among_the_flags_count_unless_they_contradict():
    flags = "--system-config Ethos_U55_Deep_Embedded --accelerator-config ethos-u55-128"
    spec = EthosUCompileSpec(U55, extra_flags=flags)
    assert spec.system_config == "Ethos_U55_Deep_Embedded"
    assert spec.memory_system.core_clock_hz == 200e6
    with pytest.raises(SpecError, match=r"--memory-mode .Sram_Only. contradicts memory_mode='Shared_Sram'"):
        EthosUCompileSpec(U55, memory_mode="Shared_Sram", extra_flags="--memory-mode=Sram_Only")


def test_unknown_configs_are_refused_with_the_known_ones():
    with pytest.raises(SpecError, match=r"system config in Arm/vela.ini: 'High_End'.*Ethos_U55_Deep_Embedded"):
        EthosUCompileSpec(U55, system_config="High_End")
    with pytest.raises(SpecError, match=r"'Shared_SRAM'. Did you mean 'Shared_Sram'.*Dedicated_Sram_512KB"):
        EthosUCompileSpec(U55, memory_mode="Shared_SRAM")
    with pytest.raises(SpecError, match="arena_mem_area is OffChipFlash"):
        EthosUCompileSpec("ethos-u85-256", "Ethos_U85_SYS_Flash_High", "Dedicated_Sram")


def test_another_families_system_config_warns():
    with pytest.warns(UserWarning, match="describes an NPU other than ethos-u55-128"):
        EthosUCompileSpec(U55, system_config="Ethos_U65_Embedded")


@pytest.mark.parametrize("name", TARGETS)
def test_memory_modes_read_as_vela_reads_them(name):
    """Every shipped combination: the same areas and sizes as Vela's own reader, or a refusal where it refuses."""
    from ethosu.vela.architecture_features import ArchitectureFeatures
    from ethosu.vela.errors import VelaError as TheirError

    config = vela_ini.load(["Arm/vela.ini"])
    path = str(vela_ini.find_shipped_root() / "Arm/vela.ini")
    for system in config.system_configs:
        for mode in config.memory_modes:
            try:
                theirs = ArchitectureFeatures([path], name, system, mode, 3, False, None)
            except TheirError:
                with pytest.raises(SpecError):
                    config.memory_system(system, mode)
                continue
            ours = config.memory_system(system, mode)
            assert ours.core_clock_hz == theirs.core_clock
            assert ours.arena_area == theirs.feature_map_storage_mem_area.name
            assert ours.cache_area == theirs.fast_storage_mem_area.name
            assert ours.const_area == theirs.permanent_storage_mem_area.name
            assert (ours.arena_cache_bytes or 1 << lookup(name).address_bits) == theirs.arena_cache_size


OWN = """
[System_Config.My_Board]
core_clock=400e6
axi0_port=Sram
axi1_port=OffChipFlash
[Memory_Mode.Mine]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
[Memory_Mode.Small]
inherit=Memory_Mode.Mine
arena_cache_size=131072
"""


def test_own_ini(tmp_path):
    ini = tmp_path / "board.ini"
    ini.write_text(OWN)
    spec = EthosUCompileSpec(U55, "My_Board", "Small", config_ini=str(ini))
    assert spec.memory_system.core_clock_hz == 400e6
    assert spec.arena_cache_bytes == 131072
    assert EthosUCompileSpec.from_list(spec.to_list()) == spec
    with pytest.raises(SpecError, match=r"board.ini: 'Ethos_U55_High_End_Embedded'. Known: My_Board"):
        EthosUCompileSpec(U55, config_ini=str(ini))
    both = EthosUCompileSpec(U55, memory_mode="Small", extra_flags=[f"--config={ini}"])
    assert both.system_config == "Ethos_U55_High_End_Embedded"
    assert both.arena_cache_bytes == 131072


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("core_clock=400e6", "core_clock=fast", "expected a number for core_clock, got .fast."),
        ("core_clock=400e6", "core_clock=0", "expected a positive core_clock"),
        ("axi0_port=Sram", "axi0_port=Sdram", "expected axi0_port to be one of .*got 'Sdram'"),
        ("arena_mem_area=Axi0", "arena_mem_area=Axi2", "to be Axi0 or Axi1"),
        ("inherit=Memory_Mode.Mine", "inherit=Memory_Mode.Small", "inherit in a cycle"),
        ("inherit=Memory_Mode.Mine", "inherit=Memory_Mode.Yours", "inherits from the unknown"),
        ("[Memory_Mode.Mine]", "[Memory_Mode.Mine", "cannot be read"),
        ("[Memory_Mode.Mine]", "[System_Config.My_Board]", "already exists"),
        ("core_clock=400e6", "core_clock=%(clock)s", "cannot be read"),
    ],
)
def test_broken_ini(tmp_path, old, new, words):
    ini = tmp_path / "board.ini"
    ini.write_text(OWN.replace(old, new))
    with pytest.raises(SpecError, match=words):
        EthosUCompileSpec(U55, "My_Board", "Small", config_ini=str(ini))


def test_unknown_system_configs_are_named():
    with pytest.raises(SpecError, match="unknown system config 'My_Board'"):
        vela_ini.load(["Arm/vela.ini"]).port_scales("My_Board")


def test_missing_ini(tmp_path):
    with pytest.raises(SpecError, match=r"was not found. Searched .*config_files/Arm/mine.ini.*Vela's: Arm/vela.ini"):
        EthosUCompileSpec(U55, config_ini="Arm/mine.ini")
    with pytest.raises(SpecError, match=r"does not end in \.ini"):
        EthosUCompileSpec(U55, config_ini=str(tmp_path / "vela.cfg"))
    (tmp_path / "bad.ini").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        EthosUCompileSpec(U55, config_ini=str(tmp_path / "bad.ini"))


def test_debug_info_needs_a_folder():
    with pytest.raises(SpecError, match="requires a folder"):
        EthosUCompileSpec(U55).dump_debug_info("TOSA").to_list()
    with pytest.raises(SpecError, match=r"unknown debug mode 'xml'"):
        EthosUCompileSpec(U55).dump_debug_info("xml")


def test_calls_kept_for_existing_programs():
    spec = EthosUCompileSpec(U55)
    with pytest.warns(DeprecationWarning, match="program's order"):
        assert spec.set_output_order_workaround(True) is spec
    assert spec.get_output_order_workaround() is False
    with pytest.warns(UserWarning, match="no pass pipeline"):
        spec.set_pass_pipeline_config(object())


def test_of_refuses_other_things():
    with pytest.raises(SpecError, match=r"expected EthosUCompileSpec or the result of its to_list\(\), got str"):
        EthosUCompileSpec.of("ethos-u55-128")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("ethorch.targets.compile_spec, ethorch.formats.payload, ethorch.formats.pte", {"numpy", "torch", "executorch", "ethosu"}),
        ("ethorch.vela, ethorch.runtime", {"torch", "executorch", "ethosu"}),
    ],
)
def test_importing_is_cheap(modules, absent):
    script = f"import sys, {modules}; print([m for m in {absent} if m in sys.modules])"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_bytes_per_cycle_are_the_bandwidths_that_velas_ini_states(target):
    """Above each system configuration a comment has its bandwidths."""
    spec = EthosUCompileSpec(target)
    text = spec.vela_config.text
    comment = text[: text.index(f"[System_Config.{spec.system_config}]")].rstrip().rpartition("\n")[2]
    stated = [float(figure) for figure in re.findall(r"\((\d+(?:\.\d+)?) GB/s\)", comment)]
    hardware = [rate for name, rate in spec.bytes_per_cycle.items() if name != "OnChipFlash"]
    found = [rate * spec.memory_system.core_clock_hz / 1e9 for rate in hardware]
    assert stated and found == pytest.approx(stated, rel=0.01)


def test_constants_in_sram_have_its_bandwidth():
    spec = EthosUCompileSpec("ethos-u85-256", memory_mode="Sram_Only")
    assert spec.bytes_per_cycle["OnChipFlash"] == spec.bytes_per_cycle["Sram"] == 32
    assert "OnChipFlash" not in EthosUCompileSpec("ethos-u55-128").bytes_per_cycle
