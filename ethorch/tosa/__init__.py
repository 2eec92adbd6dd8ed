"""TOSA 1.0: operators, graph, builder, rewrites, flatbuffers; ``run`` executes one in the reference model."""

from ethorch.tosa.run import run

__all__ = ["run"]
