"""Read and write .pte programs, delegate payloads and flatbuffers without ExecuTorch."""
