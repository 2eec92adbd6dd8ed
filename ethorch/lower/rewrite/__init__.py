"""Rewrites of TOSA graphs. Each keeps every bit of the result."""
