"""DER of certificate extensions."""

import contextlib
import json
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import CertificateError
from ztdpu.trust import dice, extensions
from ztdpu.trust.extensions import Boot, CompositeDeviceId, Fwid, TcbInfo

VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "dice"
SPKI = dice.encode_spki(dice.derive_key(b"\7" * 32).public_key())
COMPOSITE = CompositeDeviceId(device_id_spki=SPKI, fwid=Fwid(hash="sha384", digest=b"\x11" * 48))
BOOT = Boot(counter=7, nonce=b"\x22" * 16)


def read_vector(name):
    path = VECTORS / name
    if not path.is_file():
        pytest.skip(f"{name} is not here")
    return json.loads(path.read_text())


def test_tcb_info_known_answer():
    vector = read_vector("tcbinfo_kat.json")
    info = extensions.decode_tcb_info(bytes.fromhex(vector["der"]))
    assert (info.vendor, info.model, info.version, info.svn, info.layer, info.index, info.flags) == (
        "NVIDIA",
        "BlueField-3",
        "32.41.1000",
        7,
        2,
        0,
        1 << 3,
    )
    assert info.fwids == (Fwid(hash="sha256", digest=bytes(range(32))),)
    assert extensions.encode_tcb_info(info).hex() == vector["der"]


def test_ueid_of_a_real_certificate():
    certificate = x509.load_der_x509_certificate(bytes.fromhex(read_vector("caliptra_fmc_alias.json")["cert"]))
    value = certificate.extensions.get_extension_for_oid(extensions.TCG_UEID_OID).value
    assert isinstance(value, x509.UnrecognizedExtension)
    assert extensions.decode_ueid(value.value) == bytes(17)
    assert extensions.encode_ueid(bytes(17)) == value.value


def split_sequence(der):
    """Elements of a SEQUENCE whose lengths have one or two octets."""
    elements, at = [], 2 if der[1] < 0x80 else 3
    while at < len(der):
        end = at + 2 + der[at + 1] if der[at + 1] < 0x80 else at + 3 + der[at + 2]
        elements.append(der[at:end])
        at = end
    return elements


def test_tcb_infos_of_a_real_certificate():
    """A MultiTcbInfo is a sequence of what we read one at a time; flags there are 32 wide (fixedWidth)."""
    ders = split_sequence(bytes.fromhex(read_vector("caliptra_fmc_alias.json")["multi_tcb_info"]))
    infos = [extensions.decode_tcb_info(der) for der in ders]
    assert [extensions.encode_tcb_info(info) for info in infos] == ders
    assert [(info.svn, info.type, info.flags) for info in infos] == [
        (263, b"DEVICE_INFO", 1 << 31),
        (265, b"FMC_INFO", 0),
    ]
    assert infos[0].flags_mask == 1 << 31 | 0b1011
    assert {fwid.hash for info in infos for fwid in info.fwids} == {"sha384"}


def test_composite_device_id_round_trip():
    assert extensions.decode_composite_device_id(extensions.encode_composite_device_id(COMPOSITE)) == COMPOSITE


@given(st.integers(0, (1 << 64) - 1), st.binary(min_size=16, max_size=16))
def test_boot_round_trip(counter, nonce):
    boot = Boot(counter=counter, nonce=nonce)
    assert extensions.decode_boot(extensions.encode_boot(boot)) == boot


@given(
    st.builds(
        TcbInfo,
        vendor=st.none() | st.text(max_size=20),
        svn=st.none() | st.integers(0, 1 << 40),
        fwids=st.lists(st.just(COMPOSITE.fwid), max_size=3).map(tuple),
        flags=st.integers(0, (1 << 32) - 1),
        vendor_info=st.none() | st.binary(max_size=20),
        flags_mask=st.none() | st.integers(0, (1 << 32) - 1),
    )
)
def test_tcb_info_round_trip(info):
    assert extensions.decode_tcb_info(extensions.encode_tcb_info(info)) == info


@pytest.mark.parametrize(
    ("decode", "der"),
    [
        (extensions.decode_composite_device_id, extensions.encode_composite_device_id(COMPOSITE)),
        (extensions.decode_boot, extensions.encode_boot(BOOT)),
        (extensions.decode_ueid, extensions.encode_ueid(b"\1" + bytes(32))),
        (extensions.decode_tcb_info, extensions.encode_tcb_info(TcbInfo(vendor="v", fwids=(COMPOSITE.fwid,), flags=9))),
    ],
)
def test_truncations_and_trailing_octets_are_refused(decode, der):
    decode(der)
    for length in range(len(der)):
        with pytest.raises(CertificateError):
            decode(der[:length])
    with pytest.raises(CertificateError):
        decode(der + b"\0")
    with pytest.raises(CertificateError):
        decode(der + bytes(extensions.EXTENSION_LIMIT_OCTETS))


@settings(max_examples=300)
@given(st.data())
def test_flipped_octets_never_read_the_same(data):
    der = bytearray(extensions.encode_composite_device_id(COMPOSITE))
    der[data.draw(st.integers(0, len(der) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CertificateError):
        assert extensions.decode_composite_device_id(bytes(der)) != COMPOSITE


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read(der):
    for decode in (
        extensions.decode_composite_device_id,
        extensions.decode_boot,
        extensions.decode_tcb_info,
        extensions.decode_ueid,
    ):
        with contextlib.suppress(CertificateError):
            decode(der)


@pytest.mark.parametrize("boot", [Boot(counter=1 << 64, nonce=bytes(16)), Boot(counter=1, nonce=bytes(15))])
def test_boot_out_of_bounds_is_refused(boot):
    with pytest.raises(CertificateError):
        extensions.decode_boot(extensions.encode_boot(boot))
