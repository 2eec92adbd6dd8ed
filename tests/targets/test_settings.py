"""Everything a user chooses, kept and read again."""

from __future__ import annotations

import pytest

from ethorch.support.errors import SpecError
from ethorch.targets.settings import Settings, bytes_of


def test_round_trip() -> None:
    settings = Settings(
        "ethos-u85-256",
        "a16w8",
        {"head.fc": "float", 'odd "name"': "int8"},
        "int8",
        "nhwc",
        vela_flags=("--optimise=Size",),
        ram="256K",
    )
    assert Settings.from_toml(settings.to_toml()) == settings
    assert Settings.from_json(settings.to_json()) == settings
    assert settings.ram == 262144
    assert Settings.from_toml("") == Settings()


def test_sizes() -> None:
    for text, size in (("256K", 262144), ("1.5 MiB", 1572864), ("0.5g", 2**29), (12, 12), ("12", 12)):
        assert bytes_of(text, "ram") == size
    for wrong in ("-1", "1T", "", "a K"):
        with pytest.raises(SpecError, match="ram is"):
            bytes_of(wrong, "ram")


def test_wrong_settings_name_file_and_key() -> None:
    for text, said in (
        ("targt = 1", "x.toml: unknown setting 'targt'. Did you mean 'target'"),
        ("target = ", "x.toml is not TOML: "),
        ('target = "ethos-u77"', "x.toml: unknown"),
        ("modules = 3", "x.toml: "),
        ("min_sqnr_db = true", "x.toml: min_sqnr_db is True"),
    ):
        with pytest.raises(SpecError, match=said):
            Settings.from_toml(text, "x.toml")


def test_a_target_that_is_chosen_later_may_have_what_the_default_lacks() -> None:
    settings = Settings(memory_mode="Dedicated_Sram_384KB")
    with pytest.raises(SpecError, match="Dedicated_Sram_384KB"):
        _ = settings.spec
    assert settings.with_(target="ethos-u85-256").spec.memory_mode == "Dedicated_Sram_384KB"
    assert Settings(constants="auto").with_(ram="1M").spec.target.name == "ethos-u55-128"
    with pytest.raises(SpecError, match="Dedicated_Sram_384KB"):
        Settings("ethos-u55-128", memory_mode="Dedicated_Sram_384KB")
