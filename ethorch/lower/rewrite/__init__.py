"""Rewrites of TOSA graphs that preserve results bit by bit."""
