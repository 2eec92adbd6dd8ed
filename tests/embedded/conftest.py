"""The Arm backend's files, as tests/host has them."""

from tests.host.conftest import incumbent

__all__ = ["incumbent"]
