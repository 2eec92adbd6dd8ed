from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ethorch.support.errors import SpecError, unknown_name

#: Version -> profile -> its extensions (TOSA 1.0 and 1.1). ``u55`` is not a TOSA extension: ExecuTorch's Arm backend uses it for
#: the subset that Ethos-U55 supports.
PROFILES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "1.0": {"INT": ("int16", "int4", "var", "cf", "u55"), "FP": ("bf16", "fp8e4m3", "fp8e5m2", "fft", "var", "cf")},
    "1.1": {
        "INT": ("shape", "int64", "int16", "int4", "var", "cf", "u55"),
        "FP": ("shape", "int64", "bf16", "fp8e4m3", "fp8e5m2", "fft", "var", "cf", "random", "mxfp", "blockscale_ue5m3"),
    },
}

#: Extension -> operators or types of the extension that ethorch does not emit. ExecuTorch's Arm backend emits some of them.
_NOT_LOWERED: Mapping[str, str] = {
    "fp8e4m3": "FP8 tensors",
    "fp8e5m2": "FP8 tensors",
    "fft": "FFT2D and RFFT2D",
    "random": "random numbers",
    "mxfp": "block-scaled tensors",
    "blockscale_ue5m3": "block-scaled tensors",
}

_FORM = re.compile(r"TOSA-(\d+\.\d+)(?:\.\d+)?((?:\+\w+)*)")


@dataclass(frozen=True)
class TosaSpecification:
    """A TOSA version with profiles (``INT``, ``FP``) and extensions. Construct it with ``create_from_string``."""

    version: str
    profiles: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    level_8k: bool = False

    @staticmethod
    def create_from_string(text: str) -> TosaSpecification:
        """Parse a specification such as ``"TOSA-1.0+INT+int16"``.

        Raises:
            SpecError: The text is malformed, contains no profile, or contains an unsupported version or extension.
        """
        match = _FORM.fullmatch(text)
        if not match:
            raise SpecError(f"{text!r} is not a TOSA specification; expected the form 'TOSA-1.0+INT+int16'.")
        version = ".".join(str(int(number)) for number in match.group(1).split("."))  # 1.00 becomes 1.0
        parts = [part for part in match.group(2).split("+") if part]
        if version not in PROFILES:
            raise unknown_name("TOSA version", version, PROFILES)
        profiles = tuple(part for part in parts if part in PROFILES[version])
        if not profiles:
            raise SpecError(f"{text!r} has no profile; expected one of {', '.join(PROFILES[version])}.")
        allowed = {extension for profile in profiles for extension in PROFILES[version][profile]}
        extensions = tuple(part for part in parts if part not in profiles and part != "8k")
        for extension in extensions:
            if extension not in allowed:
                raise unknown_name(f"extension of TOSA-{version}+{'+'.join(profiles)}", extension, allowed - _NOT_LOWERED.keys())
            if extension in _NOT_LOWERED:
                raise SpecError(
                    f"{text!r}: ethorch does not support the extension {extension} ({_NOT_LOWERED[extension]}). Remove "
                    f"+{extension}; operators that require the extension then run on the CPU."
                )
        return TosaSpecification(version, profiles, extensions, "8k" in parts)

    @property
    def is_U55_subset(self) -> bool:  # the name in ExecuTorch's Arm backend
        """True if the specification is limited to Ethos-U55's subset of TOSA."""
        return self.support_extension("u55")

    def support_integer(self) -> bool:
        """Return True if the specification contains the profile INT."""
        return "INT" in self.profiles

    def support_float(self) -> bool:
        """Return True if the specification contains the profile FP."""
        return "FP" in self.profiles

    def support_extension(self, extension: str) -> bool:
        """Return True if the specification contains ``extension``, e.g. ``int16``."""
        return extension in self.extensions

    def __str__(self) -> str:
        return "+".join([f"TOSA-{self.version}", *self.profiles, *(["8k"] if self.level_8k else []), *self.extensions])
