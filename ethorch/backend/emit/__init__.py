"""Partition a converted graph, compile the partitions and write the ``.pte``, faster than ExecuTorch's lowering."""
