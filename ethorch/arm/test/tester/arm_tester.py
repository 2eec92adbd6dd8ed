"""Supported names of ``executorch.backends.arm.test.tester.arm_tester``."""

from ethorch.testing.tester import EthosUTester as ArmTester

__all__ = ["ArmTester"]
