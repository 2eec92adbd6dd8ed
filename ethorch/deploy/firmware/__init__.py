"""C projects that run a .pte without ExecuTorch."""
