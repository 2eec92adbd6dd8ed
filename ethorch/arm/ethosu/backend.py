"""Drop-in replacement for ``executorch.backends.arm.ethosu.backend``."""

from ethorch.backend.preprocess import EthosUBackend

__all__ = ["EthosUBackend"]
