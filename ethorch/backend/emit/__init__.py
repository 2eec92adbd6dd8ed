"""Partition a converted graph, compile the partitions and write the ``.pte``, without ExecuTorch's slower lowering."""
