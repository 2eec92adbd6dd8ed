"""What lowerings are written in: quantized tensors, and a Builder that emits TOSA for them."""
