"""Supported names of ``executorch.backends.arm.quantizer.arm_quantizer_utils``."""

from ethorch.quantization.specs import is_annotated

__all__ = ["is_annotated"]
