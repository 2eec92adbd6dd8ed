"""The layers, memory and timeline of a program, as data."""

from ethorch.figures.cpu_rates import RATES, Rate
from ethorch.figures.estimate import Estimate, estimate
from ethorch.figures.layer import Layer
from ethorch.figures.layers import layers
from ethorch.figures.memory import memory
from ethorch.figures.memory_report import Component, MemoryReport, TensorPlace
from ethorch.figures.timeline import Event, timeline, trace_events

__all__ = [
    "RATES",
    "Component",
    "Estimate",
    "Event",
    "Layer",
    "MemoryReport",
    "Rate",
    "TensorPlace",
    "estimate",
    "layers",
    "memory",
    "timeline",
    "trace_events",
]
