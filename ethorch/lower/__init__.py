"""The walk: a quantized FX graph becomes a TOSA graph."""
