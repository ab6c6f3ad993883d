"""X.509-SVIDs: what is issued, what is refused, and vectors of another implementation."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import SvidError
from ztdpu.trust import certificate as reading
from ztdpu.trust.svid import (
    Bundle,
    SpiffeId,
    check_leaf,
    check_signing_certificate,
    create_authority,
    issue_control_certificate,
    issue_svid,
    parse_spiffe_id,
    verify_svid,
)

DOMAIN = "ztdpu.lab"
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def authority(world):
    return create_authority(DOMAIN, world.now, world.p384(10), 1)


@pytest.fixture(scope="module")
def bundle(authority):
    return Bundle(trust_domain=DOMAIN, authorities=(authority.certificate,))


def issue(world, authority, **changes):
    arguments = {
        "trust_domain": DOMAIN,
        "path": "/dpu/dpu-0",
        "public_key": world.p256(11).public_key(),
        "not_before": world.now - timedelta(seconds=30),
        "not_after": world.now + 10 * MINUTE,
        "serial": 77,
    } | changes
    return issue_svid(authority, **arguments)


def build(world, issuer_key, **changes):
    """A leaf (or anything else) built by hand, right except for `changes`; None leaves an extension out."""
    options = {
        "subject": x509.Name([]),
        "issuer": None,
        "key": world.p256(12),
        "uris": ["spiffe://ztdpu.lab/dpu/dpu-0"],
        "dns": [],
        "san_critical": True,
        "ca": False,
        "path_length": None,
        "usage": {"digital_signature"},
        "usage_critical": True,
        "purposes": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
        "not_before": world.now - MINUTE,
        "not_after": world.now + MINUTE,
        "extra": None,
        "hash": hashes.SHA256(),
    } | changes
    builder = (
        x509.CertificateBuilder()
        .subject_name(options["subject"])
        .issuer_name(options["issuer"] or x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "?")]))
        .public_key(options["key"].public_key())
        .serial_number(5)
        .not_valid_before(options["not_before"])
        .not_valid_after(options["not_after"])
    )
    if options["ca"] is not None:
        builder = builder.add_extension(
            x509.BasicConstraints(ca=options["ca"], path_length=options["path_length"]), critical=True
        )
    if options["usage"] is not None:
        names = (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        )
        usage = x509.KeyUsage(**{name: name in options["usage"] for name in names})
        builder = builder.add_extension(usage, critical=options["usage_critical"])
    if options["purposes"]:
        builder = builder.add_extension(x509.ExtendedKeyUsage(options["purposes"]), critical=False)
    names = [*map(x509.UniformResourceIdentifier, options["uris"]), *map(x509.DNSName, options["dns"])]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=options["san_critical"])
    if options["extra"]:
        builder = builder.add_extension(options["extra"], critical=True)
    return builder.sign(issuer_key, options["hash"])


def der(certificate):
    return certificate.public_bytes(Encoding.DER)


# --- SPIFFE IDs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "domain", "path"),
    [
        ("spiffe://ztdpu.lab", "ztdpu.lab", ""),
        ("spiffe://ztdpu.lab/dpu/dpu-0", "ztdpu.lab", "/dpu/dpu-0"),
        ("spiffe://10.0.0.1/A_b.c-9", "10.0.0.1", "/A_b.c-9"),
        ("spiffe://a_b/...", "a_b", "/..."),
        ("spiffe://" + "a" * 255, "a" * 255, ""),
    ],
)
def test_spiffe_ids(text, domain, path):
    spiffe_id = parse_spiffe_id(text)
    assert spiffe_id == SpiffeId(trust_domain=domain, path=path)
    assert str(spiffe_id) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://ztdpu.lab/a",
        "spiffe:ztdpu.lab",
        "spiffe:///a",
        "SPIFFE://ztdpu.lab/a",
        "spiffe://Ztdpu.lab/a",
        "spiffe://ztdpu.lab/",
        "spiffe://ztdpu.lab//a",
        "spiffe://ztdpu.lab/a/",
        "spiffe://ztdpu.lab/./a",
        "spiffe://ztdpu.lab/../a",
        "spiffe://ztdpu.lab/a%2fb",
        "spiffe://ztdpu.lab/a?b",
        "spiffe://ztdpu.lab/a#b",
        "spiffe://ztdpu.lab:443/a",
        "spiffe://user@ztdpu.lab/a",
        "spiffe://ztdpu.lab/a\n",
        "spiffe://ztdpu.lab/ä",
        "spiffe://" + "a" * 256,
        "spiffe://ztdpu.lab/" + "a" * 2040,
    ],
)
def test_what_is_no_spiffe_id(text):
    with pytest.raises(SvidError):
        parse_spiffe_id(text)


# --- issuing -------------------------------------------------------------------------------------


def test_device_svid_has_no_name_but_its_uri(world, authority, bundle):
    chain = issue(world, authority)
    leaf = x509.load_der_x509_certificate(chain[0])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert list(names.value) == [x509.UniformResourceIdentifier("spiffe://ztdpu.lab/dpu/dpu-0")]
    assert list(leaf.subject) == []
    assert leaf.serial_number == 77
    assert verify_svid(chain, bundle, world.now) == SpiffeId(trust_domain=DOMAIN, path="/dpu/dpu-0")


def test_only_control_has_a_dns_name(world, authority, bundle):
    chain = issue_control_certificate(
        authority,
        public_key=world.p256(13).public_key(),
        not_before=world.now,
        not_after=world.now + timedelta(hours=24),
        serial=3,
    )
    names = x509.load_der_x509_certificate(chain[0]).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["control.ztdpu.lab"]
    assert str(verify_svid(chain, bundle, world.now)) == "spiffe://ztdpu.lab/control"


def test_an_authority_on_p256_works_too(world):
    authority = create_authority(DOMAIN, world.now, world.p256(14), 2)
    bundle = Bundle(trust_domain=DOMAIN, authorities=(authority.certificate,))
    assert verify_svid(issue(world, authority), bundle, world.now).path == "/dpu/dpu-0"


def test_issuing_refuses_what_verifying_would(world, authority):
    start, end = authority.certificate.not_valid_before_utc, authority.certificate.not_valid_after_utc
    wrong = [
        {"path": ""},
        {"path": "/"},
        {"path": "dpu-0"},
        {"path": "/dpu/../control"},
        {"path": "/control"},
        {"path": "/control/x"},
        {"trust_domain": "other.lab"},
        {"trust_domain": "ZTDPU.lab"},
        {"public_key": world.p384(15).public_key()},
        {"public_key": rsa.generate_private_key(65537, 2048).public_key()},
        {"public_key": ed25519.Ed25519PrivateKey.generate().public_key()},
        {"not_after": world.now - MINUTE},
        {"not_after": world.now + timedelta(days=2)},
        {"not_before": start - MINUTE, "not_after": start + MINUTE},
        {"not_before": end - MINUTE, "not_after": end + MINUTE},
    ]
    for changes in wrong:
        with pytest.raises(SvidError):
            issue(world, authority, **changes)
    assert issue(world, authority)


def test_an_authority_never_certifies_its_own_key(world):
    authority = create_authority(DOMAIN, world.now, world.p256(16), 2)
    with pytest.raises(SvidError, match="own key"):
        issue(world, authority, public_key=authority.key.public_key())


@pytest.mark.parametrize("domain", ["", "A.lab", "a b", "a/b", "ä", "a" * 256])
def test_no_authority_without_a_trust_domain(world, domain):
    with pytest.raises(SvidError):
        create_authority(domain, world.now, world.p384(10), 1)


# --- verifying -----------------------------------------------------------------------------------


def test_validity_to_the_second(world, authority, bundle):
    chain = issue(world, authority)
    first, last = world.now - timedelta(seconds=30), world.now + 10 * MINUTE
    for now in (first, last):
        assert verify_svid(chain, bundle, now)
    for now in (first - timedelta(seconds=1), last + timedelta(seconds=1)):
        with pytest.raises(SvidError, match=r"valid|expired"):
            verify_svid(chain, bundle, now)
    with pytest.raises(ValueError, match="time zone"):
        verify_svid(chain, bundle, world.now.replace(tzinfo=None))


def test_every_rule_for_leaves_has_a_refusal(world, authority, bundle):
    common_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "control.ztdpu.lab")])
    country = x509.Name([x509.NameAttribute(NameOID.COUNTRY_NAME, "US")])
    good = [
        {},
        {"ca": None},
        {"purposes": []},
        {"subject": country, "san_critical": False},
        {"usage": {"digital_signature", "key_encipherment", "key_agreement"}},
        {"uris": ["spiffe://ztdpu.lab/control"], "dns": ["control.ztdpu.lab"]},
    ]
    wrong = [
        {"uris": []},
        {"uris": [], "dns": ["control.ztdpu.lab"]},
        {"uris": ["spiffe://ztdpu.lab/a", "spiffe://ztdpu.lab/b"]},
        {"uris": ["spiffe://ztdpu.lab/a", "https://ztdpu.lab/b"]},
        {"uris": ["spiffe://ztdpu.lab"]},
        {"uris": ["https://ztdpu.lab/a"]},
        {"uris": ["spiffe://other.lab/dpu/dpu-0"]},
        {"san_critical": False},
        {"subject": common_name},
        {"dns": ["control.ztdpu.lab"]},
        {"dns": ["localhost"]},
        {"uris": ["spiffe://ztdpu.lab/control"], "dns": ["control.ztdpu.lab", "localhost"]},
        {"ca": True},
        {"usage": None},
        {"usage_critical": False},
        {"usage": {"key_encipherment"}},
        {"usage": {"digital_signature", "key_cert_sign"}},
        {"usage": {"digital_signature", "crl_sign"}},
        {"purposes": [ExtendedKeyUsageOID.SERVER_AUTH]},
        {"purposes": [ExtendedKeyUsageOID.CLIENT_AUTH]},
        {"key": world.p384(17)},
        {"extra": x509.NameConstraints(permitted_subtrees=[x509.DNSName("x")], excluded_subtrees=None)},
        {"issuer": country},
    ]
    name = authority.certificate.subject
    for changes in good:
        assert verify_svid([der(build(world, authority.key, **{"issuer": name} | changes))], bundle, world.now)
    for changes in wrong:
        with pytest.raises(SvidError):
            verify_svid([der(build(world, authority.key, **{"issuer": name} | changes))], bundle, world.now)


def test_a_leaf_signed_by_another_key_under_the_same_name_is_refused(world, authority, bundle):
    forged = build(world, world.p384(18), issuer=authority.certificate.subject)
    with pytest.raises(SvidError, match="no authority"):
        verify_svid([der(forged)], bundle, world.now)


def intermediate(world, authority, **changes):
    options = {
        "issuer": authority.certificate.subject,
        "subject": x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "between")]),
        "key": world.p384(19),
        "uris": ["spiffe://ztdpu.lab"],
        "ca": True,
        "usage": {"key_cert_sign"},
        "purposes": [],
    } | changes
    return build(world, authority.key, **options)


@pytest.fixture(scope="module")
def root_with_room(world):
    """A root that allows one authority below it (ours do not)."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    key = world.p384(20)
    certificate = build(
        world, key, issuer=name, subject=name, key=key, uris=["spiffe://ztdpu.lab"], ca=True, path_length=1,
        usage={"key_cert_sign"}, purposes=[],
    )  # fmt: skip
    authority = create_authority(DOMAIN, world.now, key, 9)
    object.__setattr__(authority, "certificate", certificate)
    return authority


def test_chains_of_three(world, root_with_room):
    bundle = Bundle(trust_domain=DOMAIN, authorities=(root_with_room.certificate,))
    between = intermediate(world, root_with_room)
    leaf = build(world, world.p384(19), issuer=between.subject)
    assert verify_svid([der(leaf), der(between)], bundle, world.now)
    assert verify_svid([der(leaf), der(between), der(root_with_room.certificate)], bundle, world.now)
    assert verify_svid([der(leaf)], Bundle(trust_domain=DOMAIN, authorities=(between,)), world.now)
    with pytest.raises(SvidError):
        verify_svid([der(leaf)], bundle, world.now)
    with pytest.raises(SvidError):
        verify_svid([der(between), der(leaf)], bundle, world.now)
    with pytest.raises(SvidError, match="does not end"):
        verify_svid([der(leaf), der(between), der(between)], bundle, world.now)
    with pytest.raises(SvidError, match="3 are read"):
        verify_svid([der(leaf), der(between), der(between), der(root_with_room.certificate)], bundle, world.now)
    for changes in (
        {"ca": False},
        {"ca": None},
        {"usage": {"digital_signature"}},
        {"usage": None},
        {"usage_critical": False},
        {"uris": ["spiffe://ztdpu.lab/dpu/dpu-0"]},
        {"uris": ["spiffe://other.lab"]},
        {"not_after": world.now - timedelta(seconds=1)},
    ):
        wrong = intermediate(world, root_with_room, **changes)
        with pytest.raises(SvidError):
            verify_svid([der(leaf), der(wrong)], bundle, world.now)


def test_our_authority_allows_none_below_it(world, authority, bundle):
    between = intermediate(world, authority)
    leaf = build(world, world.p384(19), issuer=between.subject)
    with pytest.raises(SvidError, match="longer than"):
        verify_svid([der(leaf), der(between)], bundle, world.now)


def test_an_svid_cannot_issue_another(world, authority, bundle):
    holder = world.p256(11)
    chain = issue(world, authority)
    forged = build(world, holder, issuer=x509.load_der_x509_certificate(chain[0]).subject)
    with pytest.raises(SvidError):
        verify_svid([der(forged), chain[0]], bundle, world.now)


def test_bundles_of_two_domains_do_not_mix(world, authority):
    other = create_authority("other.lab", world.now, world.p384(21), 4)
    foreign = issue(world, other, trust_domain="other.lab")
    with pytest.raises(SvidError, match="trust domain"):
        verify_svid(foreign, Bundle(trust_domain=DOMAIN, authorities=(other.certificate,)), world.now)
    with pytest.raises(SvidError, match="no authority"):
        verify_svid(issue(world, authority), Bundle(trust_domain=DOMAIN, authorities=()), world.now)


def test_while_an_authority_is_replaced_both_are_believed(world, authority):
    successor = create_authority(DOMAIN, world.now, world.p384(22), 2)
    both = Bundle(trust_domain=DOMAIN, authorities=(authority.certificate, successor.certificate))
    for one in (authority, successor):
        assert verify_svid(issue(world, one), both, world.now)
    after = Bundle(trust_domain=DOMAIN, authorities=(successor.certificate,))
    with pytest.raises(SvidError):
        verify_svid(issue(world, authority), after, world.now)


def test_an_rsa_authority_is_refused(world, authority):
    key = rsa.generate_private_key(65537, 2048)
    name = authority.certificate.subject
    root = build(world, key, issuer=name, subject=name, key=key, uris=[], ca=True, usage={"key_cert_sign"}, purposes=[])
    leaf = build(world, key, issuer=name)
    with pytest.raises(SvidError):
        verify_svid([der(leaf)], Bundle(trust_domain=DOMAIN, authorities=(root,)), world.now)


@pytest.fixture(scope="module")
def leaf_der(world, authority):
    return issue(world, authority)[0]


def test_signature_with_unused_bits(world, authority, bundle):
    """The library lets this one octet vary where the signature's last bits are zero; found by the mutations below."""
    for serial in range(1, 200):
        leaf = issue(world, authority, serial=serial)[0]
        signature = x509.load_der_x509_certificate(leaf).signature
        if signature[-1] & 1 == 0:
            break
    place = len(leaf) - len(signature) - 1
    assert leaf[place] == 0
    verify_svid([leaf], bundle, world.now)
    with pytest.raises(SvidError, match="whole number"):
        verify_svid([leaf[:place] + b"\x01" + leaf[place + 1 :]], bundle, world.now)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutations_are_refused_and_never_crash(world, leaf_der, bundle, data):
    octets = bytearray(leaf_der)
    place = data.draw(st.integers(0, len(octets) - 1))
    octets[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SvidError):
        verify_svid([bytes(octets)], bundle, world.now)


@pytest.mark.parametrize("chain", [[], [b""], [b"\x30\x00"], [bytes(9000)], [b"x"] * 4])
def test_what_is_no_chain(world, bundle, chain):
    with pytest.raises(SvidError):
        verify_svid(chain, bundle, world.now)


def test_openssl_agrees(world, authority, tmp_path):
    (tmp_path / "root.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    leaf = x509.load_der_x509_certificate(issue(world, authority)[0])
    (tmp_path / "leaf.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    at = str(int(world.now.timestamp()))
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-attime", at, "-CAfile"]
    done = subprocess.run(
        [*command, tmp_path / "root.pem", tmp_path / "leaf.pem"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- vectors of another implementation -----------------------------------------------------------


def load_vector(folder, name):
    path = folder / "spiffe" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return x509.load_pem_x509_certificates(path.read_bytes())


def test_good_chain_of_another_implementation(shared_vectors):
    leaf, between = load_vector(shared_vectors, "good-leaf-and-intermediate.pem")
    bundle = Bundle(trust_domain="example.org", authorities=(between,))
    at = datetime(2020, 3, 24, 14, 30, tzinfo=UTC)
    assert str(verify_svid([der(leaf)], bundle, at)) == "spiffe://example.org/workload-1"
    with pytest.raises(SvidError, match="expired"):
        verify_svid([der(leaf)], bundle, at + timedelta(days=1))


def test_good_leaf_of_another_implementation(shared_vectors):
    (leaf,) = load_vector(shared_vectors, "good-leaf-only.pem")
    assert str(check_leaf(leaf)) == "spiffe://example.org/workload-1"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("wrong-leaf-ca-true.pem", "signing certificate"),
        ("wrong-leaf-cert-sign.pem", "may sign"),
        ("wrong-leaf-crl-sign.pem", "may sign"),
        ("wrong-leaf-empty-id.pem", "0 URI names"),
        ("wrong-leaf-no-digital-signature.pem", "digitalSignature"),
    ],
)
def test_wrong_leaves_of_another_implementation(shared_vectors, name, why):
    with pytest.raises(SvidError, match=why):
        check_leaf(load_vector(shared_vectors, name)[0])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("wrong-intermediate-no-ca.pem", "no certificate authority"),
        ("wrong-intermediate-no-key-cert-sign.pem", "keyCertSign"),
    ],
)
def test_wrong_issuers_of_another_implementation(shared_vectors, name, why):
    _, between = load_vector(shared_vectors, name)
    with pytest.raises(SvidError, match=why):
        check_signing_certificate(between, trust_domain="example.org")


def test_trailing_octets_are_refused(world, authority):
    chain = issue(world, authority)
    with pytest.raises(SvidError):
        reading.load_certificate(chain[0] + b"\0", refusal=SvidError)
