"""Rewrites of TOSA graphs that keep results bit-exact."""
