"""Quantizer, graph passes, observers and calibration."""
