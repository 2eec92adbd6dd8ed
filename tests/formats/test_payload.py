"""The delegate payload: format, round trip, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ethorch.formats.payload import DelegatePayload, IoTensor, external_key
from ethorch.support.errors import PayloadError

pytestmark = pytest.mark.core


def block(name: bytes, data: bytes) -> bytes:
    return name.ljust(16, b"\0") + struct.pack("<i12x", len(data)) + data + bytes(-len(data) % 16)


IO = struct.pack("<10i", 1, 1, 1, 1, 2, 3, 4, 1, 8, 1)
BLOCKS = {
    b"vela_bin_stream": b"",
    b"cmd_data": b"COP1" + bytes(16),
    b"weight_data": b"\x05\x06\x07",
    b"scratch_size": struct.pack("<I", 32),
    b"inputs": IO,
    b"outputs": struct.pack("<i", 0),
    b"vela_end_stream": b"",
}
PAYLOAD = DelegatePayload(b"COP1" + bytes(16), b"\x05\x06\x07", 32, (IoTensor((1, 1, 1, 2, 3, 4), 1, 8),), ())


def join(blocks: dict[bytes, bytes]) -> bytes:
    return b"".join(block(name, data) for name, data in blocks.items())


BLOB = join(BLOCKS)


def test_the_format_byte_for_byte():
    assert PAYLOAD.pack() == BLOB
    assert DelegatePayload.unpack(BLOB) == PAYLOAD
    assert len(BLOB) % 16 == 0


tensors = st.builds(
    IoTensor,
    st.tuples(*[st.integers(1, 9)] * 6),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 2**31 - 1),
)
payloads = st.tuples(
    st.binary(max_size=80).map(lambda b: b"COP1" + b[: len(b) // 4 * 4]),
    st.binary(max_size=80),
    st.lists(tensors, max_size=3).map(tuple),
    st.lists(tensors, max_size=3).map(tuple),
)


@given(payloads)
def test_round_trip(parts):
    commands, weights, inputs, outputs = parts
    need = max((t.offset + t.nbytes for t in (*inputs, *outputs)), default=0)
    assume(need < 2**32)
    payload = DelegatePayload(commands, weights, need, inputs, outputs)
    blob = payload.pack()
    assert len(blob) % 16 == 0
    assert DelegatePayload.unpack(blob) == payload
    assert DelegatePayload.unpack(memoryview(blob)) == payload


@settings(max_examples=500)
@given(st.data())
def test_mutations_give_a_payload_or_a_payload_error(data):
    blob = bytearray(BLOB)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(blob) - 1))
        blob[position] = data.draw(st.integers(0, 255))
    blob = blob[: data.draw(st.integers(0, len(blob)))] if data.draw(st.booleans()) else blob
    try:
        found = DelegatePayload.unpack(bytes(blob))
    except PayloadError:
        return
    assert DelegatePayload.unpack(found.pack()) == found


@given(st.binary(max_size=200))
def test_any_bytes(blob):
    with pytest.raises(PayloadError):
        DelegatePayload.unpack(blob)


def test_every_truncation_is_refused():
    for length in range(len(BLOB)):
        with pytest.raises(PayloadError):
            DelegatePayload.unpack(BLOB[:length])


def changed(**replaced: bytes | None) -> bytes:
    blocks = {name: replaced.get(name.decode(), data) for name, data in BLOCKS.items()}
    return join({name: data for name, data in blocks.items() if data is not None})


def io(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}i", *words)


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "truncated"),
        (block(b"cmd_data", b"") + BLOB, "first block is 'cmd_data'"),
        (BLOB + bytes(16), "16 bytes follow vela_end_stream"),
        (changed(weight_data=None), "has no block weight_data"),
        (BLOB[:32] + block(b"weight_data", b"") + BLOB[32:], "weight_data occurs twice"),
        (BLOB[:32] + BLOB, "vela_bin_stream'"),
        (BLOB[:32] + block(b"weight_dats", b"") + BLOB[32:], "unknown block 'weight_dats' at byte 32.*upgrade ethorch"),
        (BLOB[:32] + block(b"cmd_data\0x", b"") + BLOB[32:], "unknown block"),
        (BLOB[:32] + block(b"\xff\xfe", b"") + BLOB[32:], r"unknown block '\\\\xff\\\\xfe'"),
        (changed(vela_bin_stream=bytes(16)), "has 16 bytes; expected an empty block"),
        (BLOB[:16] + struct.pack("<i", -1) + BLOB[20:], "declares -1 bytes"),
        (BLOB[:48] + struct.pack("<i", 2**31 - 1) + BLOB[52:], "declares 2147483647 bytes"),
        (BLOB[:24] + b"\1" + BLOB[25:], "must be 0 or 1, and the others 0"),
        (changed(cmd_data=b"COP3" + bytes(16)), "COP1 or COP2"),
        (changed(cmd_data=b""), "COP1 or COP2"),
        (changed(cmd_data=b"COP1\0"), "5 bytes; expected a multiple of 4"),
        (changed(scratch_size=b"\x20\0\0\0\0"), "has 5 bytes; expected 4"),
        (changed(inputs=b""), "0 bytes and declares -1 tensors"),
        (changed(inputs=io(2) + IO[4:]), "declares 2 tensors"),
        (changed(inputs=io(-1)), "declares -1 tensors"),
        (changed(inputs=IO + bytes(4)), "has 44 bytes"),
        (changed(inputs=io(1, 1, 1, 1, 2, 3, 4, 1, 9, 1)), "24 bytes at offset 9, outside the scratch region of 32"),
        (changed(inputs=io(1, 1, 1, 1, 2, 3, 4, 1, -1, 1)), "input 0 has 24 bytes at offset -1"),
        (changed(inputs=io(1, 1, 1, 1, 2, 3, 4, 1, 8, 0)), "in region 0"),
        (changed(inputs=io(1, 1, 1, 1, 2, 3, 4, 3, 0, 1)), "element size 3"),
        (changed(inputs=io(1, 1, 1, 1, 2, 0, 4, 1, 8, 1)), "sizes from 1 to"),
        (changed(outputs=io(1, 1, 1, 1, -2, 3, 4, 1, 8, 1)), "output 0 has shape"),
        (changed(outputs=io(1, *[2**31 - 1] * 6, 8, 0, 1)), "output 0 has .* at offset 0"),
    ],
)
def test_refusals_name_what_is_wrong(blob, words):
    with pytest.raises(PayloadError, match=words):
        DelegatePayload.unpack(blob)


def test_block_order_and_padding_bytes_do_not_matter():
    first, *middle, last = BLOCKS
    order = [first, *reversed(middle), last]
    assert DelegatePayload.unpack(join({name: BLOCKS[name] for name in order})) == PAYLOAD
    padded = BLOB.replace(b"\x05\x06\x07" + bytes(13), b"\x05\x06\x07" + b"\xaa" * 13)
    assert padded != BLOB
    assert DelegatePayload.unpack(padded) == PAYLOAD


def test_a_payload_that_is_built_is_checked_too():
    with pytest.raises(PayloadError, match="scratch_size is 4294967296"):
        DelegatePayload(b"COP1", b"", 2**32, (), ())
    with pytest.raises(PayloadError, match="6 sizes"):
        DelegatePayload(b"COP1", b"", 16, (IoTensor((1, 2), 1, 0),), ())


def test_repr_is_short():
    assert len(repr(DelegatePayload(b"COP1" * 1000, bytes(1000), 0, (), ()))) < 200


def test_external_blocks_are_named_data():
    blob = PAYLOAD.pack(["weight_data", "cmd_data"])
    named = {external_key(data): data for data in (PAYLOAD.weights, PAYLOAD.commands)}
    assert PAYLOAD.weights not in blob
    assert DelegatePayload.unpack(blob, named) == PAYLOAD
    other = replace(PAYLOAD, scratch_bytes=PAYLOAD.scratch_bytes + 16)
    assert external_key(PAYLOAD.weights).encode() in other.pack(["weight_data"])  # one name for equal data


def test_external_blocks_that_are_not_there_are_named():
    blob = PAYLOAD.pack(["weight_data"])
    key = external_key(PAYLOAD.weights)
    with pytest.raises(PayloadError, match=f"weight_data is external, but the program has no data named {key}"):
        DelegatePayload.unpack(blob)
    with pytest.raises(PayloadError, match="a key of 63 bytes"):
        DelegatePayload.unpack(blob.replace(struct.pack("<iB", 64, 1), struct.pack("<iB", 63, 1)), {key: PAYLOAD.weights})
