"""Benchmarks: the same program through ethorch and through ExecuTorch's own Arm backend, side by side."""
