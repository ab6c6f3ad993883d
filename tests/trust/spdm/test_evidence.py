"""Evidence: the form in the store, and measurement blocks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import EvidenceError, SpdmError
from ztdpu.trust import canonical
from ztdpu.trust.spdm.evidence import Evidence, MeasurementBlock, decode_blocks, decode_evidence, make_evidence
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import verify_measurements

BLOCKS = st.lists(
    st.builds(
        MeasurementBlock,
        index=st.integers(1, 254),
        value_type=st.integers(0, 127),
        raw=st.booleans(),
        value=st.binary(max_size=80),
    ),
    max_size=8,
    unique_by=lambda block: block.index,
)
BLOCK = MeasurementBlock(index=3, value_type=1, raw=False, value=b"\x11" * 64)


@given(BLOCKS)
def test_blocks_round_trip(blocks):
    record = b"".join(block.encode() for block in blocks)
    assert decode_blocks(record, count=len(blocks)) == tuple(blocks)


def test_block_octets():
    block = MeasurementBlock(index=254, value_type=5, raw=True, value=b"\1\2")
    assert block.encode().hex() == "fe0105008502000102"


@pytest.mark.parametrize(
    ("record", "count"),
    [
        pytest.param(BLOCK.encode(), 2, id="fewer than announced"),
        pytest.param(BLOCK.encode() * 2, 2, id="index twice"),
        pytest.param(BLOCK.encode()[:-1], 1, id="cut short"),
        pytest.param(BLOCK.encode()[:5], 1, id="cut in the header"),
        pytest.param(BLOCK.encode() + b"\0", 1, id="octets behind"),
        pytest.param(b"\0" + BLOCK.encode()[1:], 1, id="index 0"),
        pytest.param(b"\xff" + BLOCK.encode()[1:], 1, id="index 255"),
        pytest.param(b"\3\2" + BLOCK.encode()[2:], 1, id="another specification"),
        pytest.param(bytes.fromhex("03010200010000"), 1, id="size below its header"),
        pytest.param(bytes.fromhex("0301040001000011"), 1, id="sizes contradict"),
    ],
)
def test_malformed_records_are_refused(record, count):
    decode_blocks(BLOCK.encode(), count=1)
    with pytest.raises(SpdmError):
        decode_blocks(record, count=count)


@given(st.binary(max_size=100), st.integers(0, 255))
def test_noise_is_refused_or_read(record, count):
    try:
        blocks = decode_blocks(record, count=count)
    except SpdmError:
        return
    assert b"".join(block.encode() for block in blocks) == record


def test_store_round_trip(bench):
    assert decode_evidence(bench.evidence.encode()) == bench.evidence


def verify(evidence: Evidence, bench) -> None:
    verify_measurements(evidence, bench.device.alias_key.public_key(), suite_of(bench.profile))


def test_every_truncation_is_refused(bench):
    blob = bench.evidence.encode()
    verify(decode_evidence(blob), bench)
    for length in (*range(64), *range(64, len(blob), 61), len(blob) - 1):
        with pytest.raises(EvidenceError):
            decode_evidence(blob[:length])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_flips_in_the_store_change_nothing_that_is_signed(bench, data):
    blob = bytearray(bench.evidence.encode())
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        evidence = decode_evidence(bytes(blob))
        verify(evidence, bench)
    except EvidenceError:
        return
    # What the signature does not cover is left to the chain (certificates) and to the profile.
    assert evidence.blocks == bench.evidence.blocks
    assert evidence.nonce == bench.evidence.nonce
    assert (evidence.certificates, evidence.root_hash, evidence.profile) != (
        bench.evidence.certificates,
        bench.evidence.root_hash,
        bench.evidence.profile,
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda fields: [*fields, 0], id="field more"),
        pytest.param(lambda fields: fields[:-1], id="field missing"),
        pytest.param(lambda fields: ["key-binding", *fields[1:]], id="another label"),
        pytest.param(lambda fields: [fields[0], 2, *fields[2:]], id="another format"),
        pytest.param(lambda fields: [*fields[:3], [], *fields[4:]], id="no certificates"),
        pytest.param(lambda fields: [*fields[:3], [b""] * 11, *fields[4:]], id="too many certificates"),
        pytest.param(lambda fields: [*fields[:3], ["x"], *fields[4:]], id="text for a certificate"),
        pytest.param(lambda fields: [*fields[:5], [], fields[6]], id="no messages"),
        pytest.param(lambda fields: [*fields[:5], fields[5][:-1], fields[6]], id="odd messages"),
        pytest.param(lambda fields: [*fields[:5], fields[5][:-2], fields[6]], id="no measurements"),
        pytest.param(lambda fields: [*fields[:5], [*fields[5][:-1], fields[5][-1][:-1]], fields[6]], id="short answer"),
        pytest.param(lambda fields: [*fields[:5], [*fields[5][:-1], b""], fields[6]], id="empty answer"),
        pytest.param(lambda fields: [*fields[:5], [*fields[5][:-2], b"", fields[5][-1]], fields[6]], id="no request"),
    ],
)
def test_other_forms_are_refused(bench, change):
    fields = canonical.decode(bench.evidence.encode(), refusal=EvidenceError)
    with pytest.raises(EvidenceError):
        decode_evidence(canonical.encode(change(fields)))


def test_an_unsigned_request_is_no_evidence(bench):
    messages = (*bench.evidence.messages[:-2], bytes.fromhex("12e000ff"), bench.evidence.messages[-1])
    with pytest.raises(SpdmError, match="signed"):
        make_evidence(profile="p", certificates=(b"",), root_hash=b"", messages=messages, signature=b"")
