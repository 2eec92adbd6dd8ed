"""The networks that benchmarks and whole-model tests run, by name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from bench.models import mlperf_tiny, sequence, various, vision
from bench.models.case import ModelCase

_CASES = {case.name: case for case in (*vision.CASES, *mlperf_tiny.CASES, *sequence.CASES)}

#: In the order of the tables in README.md: the seven that ``--models`` stands for where it is not given, then the others.
_FIRST = ("mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet8", "ds_cnn", "mobilenet_v1_025", "autoencoder")
_ORDER = (
    *_FIRST, "efficientnet_b0", "shufflenet_v2", "squeezenet", "densenet", "unet", "bert", "deit", "lstm", "gru", "acoustic",
    "llama", "yolo",
)  # fmt: skip

ALL_MODELS: dict[str, ModelCase] = {name: _CASES[name] for name in _ORDER}
MODELS: dict[str, ModelCase] = {name: ALL_MODELS[name] for name in _FIRST}

#: Further networks for accuracy. They are not in the tables of README.md, and some need optional libraries.
VARIOUS: dict[str, ModelCase] = {case.name: case for case in various.CASES}


def models_named(parser: argparse.ArgumentParser, text: str | None, more: Mapping[str, ModelCase] | None = None) -> list[str]:
    """Return the models of a ``--models`` argument: comma-separated names, "all", or None for the first seven.

    An unknown name is an error of the parser.

    Args:
        more: Further models that the argument may name. "various" selects all of them.
    """
    if more and text == "various":
        return list(more)
    models = list(MODELS) if text is None else list(ALL_MODELS) if text == "all" else text.split(",")
    known = {**ALL_MODELS, **(more or {})}
    if unknown := [model for model in models if model not in known]:
        parser.error(f"unknown models {', '.join(unknown)}; known: {', '.join(known)}")
    return models
