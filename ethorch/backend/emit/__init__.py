"""The direct way from a converted graph to a .pte: one walk, Vela, and a program written by ourselves.

ExecuTorch's way exports the graph anew, traces it several times and throws it away: some 0.1 s an operator, where this takes
what Vela takes. It serves the programs that are quantize nodes, one delegate, dequantize nodes; ``ethorch.backend.reduced`` those
with operators on the CPU. Both give the payloads that ExecuTorch's way gives.
"""
