"""The writer of the ``.pte``, which partitions a converted graph, compiles the partitions and writes the program.

ExecuTorch's lowering exports and traces the graph several times, at about 0.1 s per operator.
"""
