"""Device chains: every rule has a chain that breaks it alone, and a twin that does not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ztdpu.errors import CertificateError
from ztdpu.trust import dice, extensions
from ztdpu.trust.chain import encode_chain, verify_device_chain
from ztdpu.trust.extensions import Boot, CompositeDeviceId, Fwid, TcbInfo
from ztdpu.trust.profile import FwidExtension

NO_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.fixture(scope="module")
def certificates(world):
    return world.boot().certificates


def verify(world, certificates, **changes):
    arguments = {"roots": world.roots, "now": world.now, "profile": world.profile} | changes
    return verify_device_chain(certificates, **arguments)


class Forge:
    """A chain with this profile's levels and our own keys, right except for what `changes` say of a level."""

    def __init__(self, world, profile=None):
        self.world = world
        self.profile = profile or world.profile
        self.keys = [world.p384(100 + level) for level in range(len(self.profile.levels))]

    def spki(self, level):
        return self.world.spki(self.keys[level])

    def fwid_extension(self, level, **changes):
        if self.profile.fwid_extension is FwidExtension.TCB_INFO:
            fields = {
                "vendor": self.profile.vendor,
                "model": self.profile.model,
                "layer": level - 3,
                "fwids": (Fwid(hash="sha384", digest=b"f" * 48),),
            } | changes
            return extensions.encode_tcb_info(TcbInfo(**fields))
        fields = {"device_id_spki": self.spki(3), "fwid": Fwid(hash="sha384", digest=b"f" * 48)} | changes
        return extensions.encode_composite_device_id(CompositeDeviceId(**fields))

    def defaults(self, level):
        names = [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "forged"),
            x509.NameAttribute(NameOID.COMMON_NAME, self.profile.levels[level].common_name),
        ]
        last = len(self.profile.levels) - 1
        options = {
            "subject": x509.Name(names),
            "key": self.keys[level],
            "ca": level < last,
            "path_length": None,
            "usage": {"key_cert_sign"} if level < last else {"digital_signature"},
            "not_before": self.world.now - timedelta(days=1),
            "not_after": NO_END,
            "custom": {},
            "critical": (),
            "hash": hashes.SHA384(),
        }
        if level == 3:
            options["custom"] = {extensions.TCG_UEID_OID: extensions.encode_ueid(dice.make_ueid(self.spki(3)))}
        if level > 3:
            options["custom"] = {extensions.TCG_DICE_OID: self.fwid_extension(level)}
        if level == last:
            boot = Boot(counter=3, nonce=b"n" * 16)
            options["custom"] = options["custom"] | {extensions.BOOT_OID: extensions.encode_boot(boot)}
        return options

    def make(self, changes=None):
        chain, issuer, issuer_key = [], None, None
        for level in range(len(self.profile.levels)):
            options = self.defaults(level) | (changes or {}).get(level, {})
            builder = (
                x509.CertificateBuilder()
                .subject_name(options["subject"])
                .issuer_name(options.get("issuer") or issuer or options["subject"])
                .public_key(options["key"].public_key())
                .serial_number(level + 1)
                .not_valid_before(options["not_before"])
                .not_valid_after(options["not_after"])
            )
            if options["ca"] is not None:
                constraints = x509.BasicConstraints(ca=options["ca"], path_length=options["path_length"])
                builder = builder.add_extension(constraints, critical=True)
            if options["usage"] is not None:
                builder = builder.add_extension(key_usage(options["usage"]), critical=True)
            for oid, value in options["custom"].items():
                builder = builder.add_extension(
                    x509.UnrecognizedExtension(oid, value), critical=oid in options["critical"]
                )
            certificate = builder.sign(options.get("signer") or issuer_key or options["key"], options["hash"])
            chain.append(certificate)
            issuer, issuer_key = options["subject"], options["key"]
        return chain

    def verify(self, changes=None, *, roots=None, **more):
        chain = self.make(changes)
        ders = [one.public_bytes(Encoding.DER) for one in chain]
        arguments = {"roots": roots or chain[:1], "profile": self.profile} | more
        return verify(self.world, ders, **arguments)


def key_usage(usage):
    names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign"
    names = (*names.split(), "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: name in usage for name in names})


@pytest.fixture(scope="module")
def forge(world):
    return Forge(world)


# --- emulated devices ----------------------------------------------------------------------------


def test_a_booted_device(world, certificates):
    chain = verify(world, certificates)
    assert chain.ueid == b"\x01" + chain.device_id_sha256
    assert chain.boot == Boot(counter=7, nonce=b"n" * 16)
    assert [fwid.level for fwid in chain.fwids] == [4, 5]
    assert encode_chain(chain) == certificates


def test_another_boot_keeps_the_device_and_changes_the_alias(world, certificates):
    first, second = verify(world, certificates), verify(world, world.boot(counter=8).certificates)
    assert first.device_id_sha256 == second.device_id_sha256
    assert first.alias_spki_sha256 != second.alias_spki_sha256
    assert first.fwids[0].digest == second.fwids[0].digest


def test_any_order_is_sorted_by_issuer(world, certificates):
    for order in (certificates[::-1], (*certificates[3:], *certificates[:3])):
        assert verify(world, order).ueid == verify(world, certificates).ueid


def test_every_wrong_set_of_certificates(world, certificates):
    other = world.boot("dpu-1").certificates
    for wrong in (
        (),
        certificates[:-1],
        certificates[1:],
        (*certificates, certificates[-1]),
        (*certificates[:-1], certificates[0]),
        (*certificates[:-1], certificates[-2]),
        (*certificates[:-1], other[-1]),
        (*certificates[:3], *other[3:-1], certificates[-1]),
        (*certificates[:-1], b""),
        (*certificates[:-1], certificates[-1] + b"\0"),
        (*certificates[:-1], bytes(9000)),
        certificates * 20,
    ):
        with pytest.raises(CertificateError):
            verify(world, wrong)
    assert verify(world, certificates)


def test_a_root_of_our_name_and_another_key_is_refused(world, certificates):
    root = world.manufacturer.root
    own = world.p384(50)
    swapped = (
        x509.CertificateBuilder()
        .subject_name(root.subject)
        .issuer_name(root.subject)
        .public_key(own.public_key())
        .serial_number(1)
        .not_valid_before(root.not_valid_before_utc)
        .not_valid_after(root.not_valid_after_utc)
        .sign(own, hashes.SHA384())
    )
    with pytest.raises(CertificateError, match="pinned"):
        verify(world, (swapped.public_bytes(Encoding.DER), *certificates[1:]))


@pytest.mark.parametrize("level", range(6))
def test_no_flip_in_any_certificate(world, certificates, level):
    der = certificates[level]
    for place in range(0, len(der), 7):
        flipped = bytearray(der)
        flipped[place] ^= 1 << place % 8
        chain = (*certificates[:level], bytes(flipped), *certificates[level + 1 :])
        if level == 0:
            # Our own copy of the root counts; of the sent one only name and key are read.
            try:
                assert verify(world, chain).certificates[0] == world.manufacturer.root
            except CertificateError:
                continue
        else:
            with pytest.raises(CertificateError):
                verify(world, chain)


# --- rules one by one ----------------------------------------------------------------------------


def test_the_forged_chain_is_good_when_nothing_is_changed(forge):
    assert forge.verify().boot.counter == 3


def wrong_chains(forge, world):
    """What each refusal must say, and the one change that must lead to it."""
    sibling = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ztdpu emulated ConnectX-7 Identity")])
    day = timedelta(days=1)
    unknown = x509.ObjectIdentifier("1.2.3.4")
    fwid, boot = extensions.TCG_DICE_OID, extensions.BOOT_OID
    good_boot = forge.defaults(5)["custom"][boot]
    good_fwid = forge.fwid_extension(5)
    zero_id = dice.derive_key(bytes(32))
    zero_spki = world.spki(zero_id)
    yield "level family expired", {1: {"not_after": world.now - timedelta(seconds=1)}}
    yield "level root expired", {0: {"not_after": world.now - timedelta(seconds=1)}}
    yield "level alias is not valid before", {5: {"not_before": world.now + day}}
    yield "device-id may not issue", {3: {"ca": False}}
    yield "device-id may not issue", {3: {"ca": None}}
    yield "provisioner may not issue", {2: {"usage": {"digital_signature"}}}
    yield "layer has no key usage", {4: {"usage": None}}
    yield "family does not allow a chain this long", {1: {"path_length": 2}}
    yield "Alias is a certificate authority", {5: {"ca": True}}
    yield "sign nothing else", {5: {"usage": {"digital_signature", "key_cert_sign"}}}
    yield "sign nothing else", {5: {"usage": {"key_agreement"}}}
    yield "alias has no key usage", {5: {"usage": None}}
    yield "not on secp384r1", {5: {"key": world.p256(60)}}
    yield "not on secp384r1", {3: {"key": world.p256(61)}}
    yield "weak or unknown hash", {5: {"hash": hashes.SHA224()}}
    yield "not signed by its issuer", {5: {"signer": world.p384(62)}}
    yield "not signed by its issuer", {1: {"signer": world.p384(63)}}
    yield "not of this product", {1: {"subject": sibling}}
    yield "critical extension 1.2.3.4", {2: {"custom": {unknown: b"\x05\x00"}, "critical": (unknown,)}}
    yield "which boot", {5: {"custom": {fwid: good_fwid}}}
    yield "malformed", {5: {"custom": {fwid: good_fwid, boot: good_boot + b"\0"}}}
    yield "level 5 names no firmware", {5: {"custom": {boot: good_boot}}}
    yield "level 4 names no firmware", {4: {"custom": {}}}
    zero = forge.fwid_extension(5, fwid=Fwid(hash="sha384", digest=bytes(48)))
    yield "is zero or not of", {5: {"custom": {boot: good_boot, fwid: zero}}}
    short = forge.fwid_extension(5, fwid=Fwid(hash="sha256", digest=b"f" * 32))
    yield "is zero or not of", {5: {"custom": {boot: good_boot, fwid: short}}}
    foreign = forge.fwid_extension(5, device_id_spki=world.spki(world.p384(64)))
    yield "made for another DeviceID", {5: {"custom": {boot: good_boot, fwid: foreign}}}
    yield "malformed", {5: {"custom": {boot: good_boot, fwid: b"\x30\x00"}}}
    ueid = extensions.encode_ueid(b"\x01" + bytes(32))
    yield "another device's UEID", {3: {"custom": {extensions.TCG_UEID_OID: ueid}}}
    zero_fwid = forge.fwid_extension(5, device_id_spki=zero_spki)
    yield (
        "never provisioned",
        {
            3: {"key": zero_id, "custom": {}},
            4: {"custom": {fwid: zero_fwid}},
            5: {"custom": {fwid: zero_fwid, boot: good_boot}},
        },
    )


def test_each_rule_refuses_alone(forge, world):
    for reason, changes in wrong_chains(forge, world):
        with pytest.raises(CertificateError, match=reason):
            forge.verify(changes)


def test_what_looks_odd_and_is_right(forge, world):
    unknown = x509.ObjectIdentifier("1.2.3.4")
    boot, fwid = extensions.BOOT_OID, extensions.TCG_DICE_OID
    for changes in (
        {1: {"path_length": 3}},
        {2: {"custom": {unknown: b"\x05\x00"}}},
        {3: {"custom": {}}},
        {5: {"ca": None}},
        {5: {"critical": (boot, fwid)}},
        {5: {"not_before": world.now}},
        {5: {"not_before": world.now - timedelta(days=1), "not_after": world.now}},
    ):
        assert forge.verify(changes)


def test_roots_are_pinned_by_name_and_key(forge, world):
    root = forge.make()[0]
    renewed = forge.make({0: {"not_before": world.now - timedelta(days=9)}})[0]
    assert forge.verify(roots=[world.manufacturer.root, renewed]).certificates[0] == renewed
    with pytest.raises(CertificateError, match="pinned"):
        forge.verify(roots=[world.manufacturer.root])
    assert forge.verify(roots=[root])


def test_our_copy_of_the_root_decides_about_its_dates(forge, world):
    ended = forge.make({0: {"not_after": world.now - timedelta(seconds=1)}})[0]
    with pytest.raises(CertificateError, match="expired"):
        forge.verify(roots=[ended])


def test_tcb_info_profiles(world):
    profile = dataclasses.replace(world.profile, fwid_extension=FwidExtension.TCB_INFO)
    forge = Forge(world, profile)
    boot = forge.defaults(5)["custom"][extensions.BOOT_OID]

    def alias(**changes):
        return {5: {"custom": {extensions.BOOT_OID: boot, extensions.TCG_DICE_OID: forge.fwid_extension(5, **changes)}}}

    assert forge.verify().fwids[1].digest == b"f" * 48
    assert forge.verify(alias(flags=0b1000)).fwids[1].bad_flags == ("debug",)
    two = (Fwid(hash="sha384", digest=b"f" * 48), Fwid(hash="sha384", digest=bytes(48)))
    assert forge.verify(alias(fwids=two)).fwids[1].digest == b"f" * 48
    for changes in (
        {"fwids": ()},
        {"fwids": two[:1] * 2},
        {"vendor": "ACME"},
        {"model": "BlueField-2"},
        {"model": None},
        {"layer": 1},
        {"layer": None},
        {"fwids": (Fwid(hash="sha256", digest=b"f" * 32),)},
    ):
        with pytest.raises(CertificateError):
            forge.verify(alias(**changes))


def test_loops_and_large_chains_cost_little(forge, world):
    """Threat A9: no search, no recursion; sizes and key types are looked at before any signature.

    What is refused costs less than twenty good chains, measured in the same run.
    """
    good = [one.public_bytes(Encoding.DER) for one in forge.make()]
    started = time.process_time()
    for _ in range(20):
        verify(world, good, roots=forge.make()[:1])
    limit_s = time.process_time() - started
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in "ab"]
    loop = {4: {"subject": names[0], "issuer": names[1]}, 5: {"subject": names[1], "issuer": names[0]}}
    big = {level: {"custom": {x509.ObjectIdentifier("1.2.3.4"): bytes(7000)}} for level in (0, 1, 2, 4, 5)}
    rsa_key = rsa.generate_private_key(65537, 2048)
    for changes, reason in ((loop, "does not belong"), (big, "larger than"), ({2: {"key": rsa_key}}, "secp384r1")):
        chain = [one.public_bytes(Encoding.DER) for one in forge.make(changes)]
        started = time.process_time()
        with pytest.raises(CertificateError, match=reason):
            verify(world, chain, roots=forge.make()[:1])
        assert time.process_time() - started < limit_s


def test_it_is_light():
    code = "import sys, ztdpu.trust.chain; sys.exit('joserfc' in sys.modules or 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
