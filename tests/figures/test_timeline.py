"""The layers as a sequence in time, and as a trace."""

from __future__ import annotations

import json

import pytest

from ethorch.figures import layers, timeline, trace_events
from ethorch.support.errors import EthorchError
from tests.figures.programs import CASES, built


@pytest.mark.parametrize("name", CASES)
def test_events_of_npu_and_cpu_follow_each_other_and_last_as_long_as_the_layers(name: str) -> None:
    found = layers(built(name))
    events = timeline(found)
    now = 0
    for event in events:
        if event.lane != "DMA":
            assert event.start_cycles == now
            now = event.end_cycles
            assert found[event.layer].where == event.lane
    assert now == sum(layer.cycles or 0 for layer in found)


def test_transfers_are_over_when_their_layer_computes_and_begin_no_sooner_than_the_layer_before() -> None:
    found = layers(built("picture"))
    events = timeline(found)
    transfers = [event for event in events if event.lane == "DMA"]
    assert transfers and {event.layer for event in transfers} == {layer.index for layer in found if layer.transfer_cycles}
    starts = {event.layer: event.start_cycles for event in events if event.lane != "DMA"}
    for event in transfers:
        before = max(start for layer, start in starts.items() if layer < event.layer)
        assert event.start_cycles >= before
        if found[event.layer].transfer_cycles <= starts[event.layer] - before:
            assert event.end_cycles == starts[event.layer]


def test_a_slower_cpu_takes_longer() -> None:
    found = layers(built("two_delegates"))
    fast, slow = ({e.layer: e.duration_cycles for e in timeline(found, ratio) if e.lane == "CPU"} for ratio in (1.0, 0.5))
    assert all(slow[layer] == 2 * cycles for layer, cycles in fast.items())


def test_the_trace_is_in_microseconds_with_a_thread_for_each_lane() -> None:
    found = layers(built("picture"))
    trace = json.loads(json.dumps(trace_events(found, core_clock_hz=500e6, cpu_clock_hz=250e6)))
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert list(threads.values()) == ["NPU", "DMA", "CPU"]
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    for event in events:
        layer = found[event["args"]["layer"]]
        assert threads[event["tid"]] == event["cat"]
        if event["cat"] == "NPU":
            assert event["dur"] == pytest.approx((layer.cycles or 0) / 500)
        if event["cat"] == "CPU":
            assert event["dur"] == pytest.approx((layer.cycles or 0) / 250)
    assert {e["args"]["module"] for e in events} >= {"stem", "wide", "head"}


def test_unknown_cycles_and_clocks_are_refused() -> None:
    with pytest.raises(EthorchError, match=r"are unknown, because a \.pte does not record them"):
        timeline(layers(built("picture").pte))
    with pytest.raises(EthorchError, match="cpu_clock_ratio"):
        timeline([], 0)
    with pytest.raises(EthorchError, match="core_clock_hz"):
        trace_events([], 0)
    with pytest.raises(EthorchError, match="cpu_clock_hz: expected a positive number, got 0"):
        trace_events([], 500e6, 0)
