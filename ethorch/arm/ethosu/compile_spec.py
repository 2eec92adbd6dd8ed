"""Supported names of ``executorch.backends.arm.ethosu.compile_spec``."""

from ethorch.targets.compile_spec import EthosUCompileSpec

__all__ = ["EthosUCompileSpec"]
