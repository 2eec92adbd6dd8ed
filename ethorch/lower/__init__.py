"""Lowering of a quantized FX graph to TOSA: the walk, the operators, the builder and the rewrites."""
