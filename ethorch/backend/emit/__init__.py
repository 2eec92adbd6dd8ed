"""Partition a converted graph, compile the partitions and write the ``.pte``.

ExecuTorch's lowering is slower because it exports and traces the graph several times, at about 0.1 s per operator.
"""
