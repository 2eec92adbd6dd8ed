"""Quantized tensors, and the Builder with which lowerings emit TOSA for them."""
