"""Lowering of quantized FX graphs to TOSA."""
