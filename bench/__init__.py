"""Benchmarks that compile the same networks with ethorch and with ExecuTorch's Arm backend."""
