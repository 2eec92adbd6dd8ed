"""The writer of the ``.pte``, which partitions a converted graph and compiles the partitions.

ExecuTorch's lowering exports and traces the graph several times, at about 0.1 s per operator.
"""
