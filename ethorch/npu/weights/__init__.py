"""Decode weight streams and compute the order of weights."""
