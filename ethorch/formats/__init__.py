"""File formats read and written without ExecuTorch: .pte programs, delegate payloads, flatbuffers."""
