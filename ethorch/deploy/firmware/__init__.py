"""Firmware: what a .pte does, as a C project that needs no ExecuTorch."""
