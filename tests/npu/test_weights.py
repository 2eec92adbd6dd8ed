"""Weight streams against the vectors of the design's description, and against Vela's own codec."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from ethosu import mlw_codec

from ethorch.npu.weights import compiled
from ethorch.npu.weights.decode import decode_fast, decode_standard, decode_standard_numpy
from ethorch.npu.weights.order import Order, entries, positions
from ethorch.support.errors import MachineFault

pytestmark = pytest.mark.core

# npu-reference 4.1: hex stream -> weights.
STREAMS = [
    (
        "7e0044800ec040407f131c281820c01eaf0641428fffffffffffffffffffffff",
        [0, 1, -1, 5, 0, 0, 0, 7, -128, 127, 3, 3, 3, 0, 0, -9],
    ),
    ("a6004030044508dad5b6540cd0ffffff", [0] * 5 + [2, -2] * 6 + [0, 0, 0, 4]),
]


def order(kind, od, kernel, ifm_depth, block, bits, unit, dilation=1, stream=0, streams=1, stride=1, sparse=0, macs=0):
    return Order(
        kind,
        od,
        ifm_depth,
        kernel,
        (dilation, dilation),
        block,
        bits,
        unit,
        stream,
        streams,
        (stride, stride),
        bool(sparse),
        macs,
    )


# npu-reference 4.2, 4.3: (order, entries, CRC-32 of the index list as little-endian int32).
ORDERS_5X = [
    (order("DF", 21, (3, 3), 13, 16, 8, 8), 6912, 0x97FDB4EB),
    (order("PK", 21, (3, 3), 13, 16, 8, 8), 4608, 0x1B1EFA7D),
    (order("DF", 21, (3, 3), 13, 16, 16, 8), 3456, 0x1753F53E),
    (order("PK", 21, (3, 3), 13, 16, 16, 8), 3840, 0x8EF54C9E),
    (order("DW", 19, (5, 5), 1, 16, 8, 8, 2), 672, 0x5E9B3E2C),
    (order("PK", 9, (9, 10), 5, 16, 8, 8), 11776, 0xD89A9874),
    (order("DF", 6, (1, 1), 40, 8, 8, 4), 512, 0x7DED2F8D),
    (order("PK", 21, (3, 3), 13, 16, 8, 8, 1, 0, 2), 3072, 0xC31B6806),
    (order("PK", 21, (3, 3), 13, 16, 8, 8, 1, 1, 2), 3072, 0x421D786E),
]
ORDERS_85 = [
    (order("DF", 21, (3, 3), 13, 32, 8, 16, macs=256), 9216, 0x0C6BEC47),
    (order("PK", 21, (3, 3), 13, 32, 8, 8, macs=256), 3840, 0xBB93C89E),
    (order("PK", 21, (3, 3), 13, 32, 8, 8, stride=2, macs=256), 3840, 0xBDF773EE),
    (order("PK", 21, (3, 3), 13, 32, 16, 8, macs=256), 3840, 0xA77057FC),
    (order("DW", 19, (5, 5), 1, 16, 8, 16, 2, macs=256), 1600, 0x322B8CAF),
    (order("DW", 19, (3, 3), 1, 16, 16, 16, stride=2, macs=256), 384, 0x8D713E21),
    (order("DF", 21, (3, 3), 100, 32, 8, 8, macs=256), 27648, 0x2C0C1259),
    (order("PK", 40, (3, 3), 16, 32, 8, 16, 1, 1, 2, macs=512), 3840, 0x41977AE2),
    (order("DF", 40, (1, 1), 130, 64, 8, 32, 1, 3, 4, macs=1024), 3072, 0x0A145A92),
    (order("PK", 21, (3, 3), 16, 32, 8, 16, sparse=1, macs=256), 5120, 0x885B1385),
    (order("DF", 21, (1, 1), 256, 32, 8, 16, sparse=1, macs=256), 8192, 0x4365FE27),
]


DECODERS = pytest.mark.parametrize("decode", [decode_standard, decode_standard_numpy], ids=["compiled", "numpy"])


def test_there_is_compiled_code():
    assert compiled.library() is not None


@DECODERS
@pytest.mark.parametrize(("stream", "weights"), STREAMS)
def test_stream_vectors(stream, weights, decode):
    assert decode(bytes.fromhex(stream)).tolist() == weights


@pytest.mark.parametrize(
    ("family", "row"), [("u55", r) for r in ORDERS_5X] + [("u85", r) for r in ORDERS_85], ids=lambda v: str(v)[:60]
)
def test_order_vectors(family, row):
    wanted, count, crc = row
    index = positions(wanted, family)
    assert len(index) == entries(wanted, family) == count
    assert zlib.crc32(index.astype("<i4").tobytes()) == crc
    used = np.sort(index[index >= 0])
    assert len(np.unique(used)) == len(used), "a weight is listed twice"
    assert wanted.streams > 1 or np.array_equal(used, np.arange(wanted.weights))


@pytest.mark.parametrize(
    ("count", "spread", "zeros"),
    [(1, 3, 0), (40000, 30, 0), (70000, 4, 0), (50000, 30, 0.7), (50000, 2, 0.3), (9, 200, 1)],
)
@DECODERS
def test_decoder_inverts_velas_encoder(count, spread, zeros, decode):
    rng = np.random.default_rng(count)
    weights = np.clip(rng.normal(0, spread, count).round(), -255, 255).astype(int)
    weights[rng.random(count) < zeros] = 0
    assert np.array_equal(decode(bytes(mlw_codec.encode(weights.tolist()))), weights)


@DECODERS
def test_small_palettes_invert(decode):
    rng = np.random.default_rng(1)
    for _ in range(60):
        values = rng.integers(-255, 256, rng.integers(1, 60))
        weights = rng.choice(values, rng.integers(1, 2000))
        weights[rng.random(len(weights)) < rng.random()] = 0
        assert np.array_equal(decode(bytes(mlw_codec.encode(weights.tolist()))), weights)


def test_damaged_streams_fault_or_decode():
    """Flipped bits and cut ends: weights or a MachineFault, nothing else, and the same of both decoders."""
    rnd = random.Random(2)
    rng = np.random.default_rng(2)
    good = [bytes.fromhex(s) for s, _ in STREAMS]
    good.append(bytes(mlw_codec.encode(rng.integers(-9, 9, 900).tolist())))
    good.append(bytes(mlw_codec.encode((rng.integers(-200, 200, 900) * (rng.random(900) < 0.3)).tolist())))
    faults = 0
    for _ in range(1500):
        data = bytearray(rnd.choice(good))
        for _ in range(rnd.randint(1, 8)):
            data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)
        data = data[: rnd.randint(1, len(data))]
        results = []
        for decode in (decode_standard, decode_standard_numpy):
            try:
                results.append(decode(bytes(data)).tolist())
            except MachineFault as fault:
                results.append(str(fault))
        faults += isinstance(results[0], str)
        assert results[0] == results[1]
    assert faults


def test_without_a_compiler(monkeypatch, tmp_path):
    """NumPy takes over."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("ETHORCH_CACHE_DIR", str(tmp_path))
    compiled.library.cache_clear()
    try:
        assert compiled.library() is None
        assert decode_standard(bytes.fromhex(STREAMS[0][0])).tolist() == STREAMS[0][1]
    finally:
        compiled.library.cache_clear()


def test_fast_streams():
    """4.4's three forms: raw bytes minus an adjustment, 4-bit and 2-bit indices."""
    table = [0, 5, -7, 255, *range(1, 13)]
    lut = 0
    for i, v in enumerate(table):
        lut |= ((abs(v) << 1) | (v < 0)) << (112 + 9 * i)
    raw = (1 | (0xFD << 104)).to_bytes(32, "little") + bytes([0x80, 0x7F, 0x00])
    assert decode_fast(raw).tolist() == [-125, 130, 3]
    assert decode_fast(lut.to_bytes(32, "little") + bytes([0x21, 0xF3])).tolist() == [5, -7, 255, 12]
    assert decode_fast((lut | 2).to_bytes(32, "little") + bytes([0b11100100])).tolist() == [0, 5, -7, 255]
    with pytest.raises(MachineFault, match="32-byte header"):
        decode_fast(b"\0" * 31)
