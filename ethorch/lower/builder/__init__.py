"""Quantized tensors, and the Builder that emits TOSA for lowerings."""
