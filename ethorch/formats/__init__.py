"""File formats: .pte programs, delegate payloads and flatbuffers, without ExecuTorch."""
