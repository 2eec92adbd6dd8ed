"""Supported names of ``executorch.backends.arm.ethosu``."""

from ethorch.backend.partitioner import EthosUPartitioner
from ethorch.backend.preprocess import EthosUBackend
from ethorch.targets.compile_spec import EthosUCompileSpec

__all__ = ["EthosUBackend", "EthosUCompileSpec", "EthosUPartitioner"]
