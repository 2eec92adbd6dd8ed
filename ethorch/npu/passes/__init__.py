"""Passes that change command streams."""
