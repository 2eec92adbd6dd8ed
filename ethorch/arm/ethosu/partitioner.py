"""Drop-in replacement for ``executorch.backends.arm.ethosu.partitioner``."""

from ethorch.backend.partitioner import EthosUPartitioner

__all__ = ["EthosUPartitioner"]
