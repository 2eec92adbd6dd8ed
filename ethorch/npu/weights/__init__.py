"""Weight streams: decoding, and the order in which each NPU reads weights."""
