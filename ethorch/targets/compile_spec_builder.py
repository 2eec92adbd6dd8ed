"""Compile spec builder of ExecuTorch's Arm backend up to version 0.7."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ethorch.support.errors import SpecError
from ethorch.targets.compile_spec import DEFAULT_INI, ArmCompileSpec, EthosUCompileSpec
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tosa_specification import TosaSpecification

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec


class ArmCompileSpecBuilder:
    """A builder for compile spec lists. Call ``ethosu_compile_spec()`` or ``tosa_compile_spec()``, then ``build()``."""

    def __init__(self) -> None:
        self._spec: ArmCompileSpec | None = None
        self._path: str | os.PathLike[str] | None = None
        self._mode: ArmCompileSpec.DebugMode | str | None = None

    def ethosu_compile_spec(
        self,
        target: str,
        system_config: str | None = None,
        memory_mode: str | None = None,
        extra_flags: str | Sequence[str] | None = None,
        config_ini: str | None = DEFAULT_INI,
    ) -> ArmCompileSpecBuilder:
        """Select an Ethos-U NPU as the target. See ``EthosUCompileSpec``."""
        return self._with(EthosUCompileSpec(target, system_config, memory_mode, extra_flags, config_ini))

    def tosa_compile_spec(self, tosa_spec: str | TosaSpecification) -> ArmCompileSpecBuilder:
        """Select TOSA flatbuffers as the target. See ``TosaCompileSpec``."""
        return self._with(TosaCompileSpec(tosa_spec))

    def _with(self, spec: ArmCompileSpec) -> ArmCompileSpecBuilder:
        if self._spec is not None:
            raise SpecError("this ArmCompileSpecBuilder already has a target. Create a new builder for another target.")
        self._spec = spec
        return self

    def dump_intermediate_artifacts_to(self, output_path: str | os.PathLike[str] | None) -> ArmCompileSpecBuilder:
        """Set the folder for intermediate files. See ``ArmCompileSpec``."""
        self._path = output_path
        return self

    def dump_debug_info(self, debug_mode: ArmCompileSpec.DebugMode | str | None) -> ArmCompileSpecBuilder:
        """Set the debug mode. See ``ArmCompileSpec``."""
        self._mode = debug_mode
        return self

    def build(self) -> list[CompileSpec]:
        """Return the compile spec list for the quantizer and the partitioner. Raise SpecError if no target is set."""
        if self._spec is None:
            raise SpecError(
                "ArmCompileSpecBuilder has no target. Call ethosu_compile_spec() or tosa_compile_spec() before build()."
            )
        return self._spec.dump_intermediate_artifacts_to(self._path).dump_debug_info(self._mode).to_list()
