"""Decoding and order of weight streams."""
