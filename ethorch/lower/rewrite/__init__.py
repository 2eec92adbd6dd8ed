"""Rewrites of TOSA graphs that preserve every bit of the results."""
