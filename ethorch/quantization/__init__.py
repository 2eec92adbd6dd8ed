"""Quantizer: selection of configs, graph passes, annotation, observers and calibration."""
