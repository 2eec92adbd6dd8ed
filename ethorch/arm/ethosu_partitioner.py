"""The partitioner under its module path in earlier releases of ``executorch.backends.arm``."""

from ethorch.backend.partitioner import EthosUPartitioner

__all__ = ["EthosUPartitioner"]
