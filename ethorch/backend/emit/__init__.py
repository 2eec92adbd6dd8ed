"""The writer of the ``.pte``: partitions of a converted graph, Vela, and the program around them, without ExecuTorch.

ExecuTorch exports a graph anew, traces it several times and discards it, some 0.1 s an operator.
"""
