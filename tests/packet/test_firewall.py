"""Scripts: a device of rules, then one line per packet: way, endpoint, packet, outcome.

`out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1`
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.packet import raw

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.headers import Packet, parse
from ztdpu.packet.tables import DeviceTables, EndpointTable, NetworkTable, PeerTable, Prefix, Route, Rule, check_tables

PROTOCOLS = {"any": 0, "icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}
HERE, PEER, OTHER = "dpu-0", "dpu-1", "dpu-2"
WHERE = {
    "blue-0": (HERE, "blue", ("10.1.0.10", "fd00:1::10")),
    "blue-1": (PEER, "blue", ("10.1.0.11", "fd00:1::11")),
    "blue-2": (HERE, "blue", ("10.1.0.12", "fd00:1::12")),
    "blue-3": (OTHER, "blue", ("10.1.0.13", "fd00:1::13")),
    "red-0": (HERE, "red", ("10.1.0.10", "fd00:1::10")),
    "red-1": (PEER, "red", ("10.1.0.11", "fd00:1::11")),
    "green-0": (PEER, "green", ("10.3.0.10",)),
}


def padded(name):
    return name.encode().ljust(16, b"-")


def packed(text):
    return ip_address(text).packed


def prefix(text):
    network = ip_network(text)
    return Prefix(address=network.network_address.packed, length=network.prefixlen)


def rule(text, rule_id):
    """`egress ALLOW tcp 80-443 10.0.0.0/8,fd00::/8`; `*` stands for all ports, or everywhere."""
    direction, verdict, protocol, ports, peers = text.split()
    first, _, last = ("0-65535" if ports == "*" else ports).partition("-")
    return Rule(
        rule_id=rule_id,
        direction=Direction(direction),
        verdict=Verdict(verdict),
        protocol=PROTOCOLS[protocol],
        port_first=int(first),
        port_last=int(last or first),
        peers=tuple(map(prefix, ("0.0.0.0/0,::/0" if peers == "*" else peers).split(","))),
    )


def device(rules=(), *, quota=100, generation=1, where=WHERE):
    """Tables of dpu-0. A rule is `blue-0 egress ALLOW tcp 80 10.1.0.0/24`; its number is its place, from 1."""
    rules = [line.partition(" ") for line in rules]
    numbered = {name: [] for name in where}
    for number, (name, _, text) in enumerate(rules, 1):
        numbered[name].append(rule(text, number))
    tables = DeviceTables(
        device=HERE,
        networks=tuple(
            NetworkTable(
                network_id=padded(tenant),
                generation=generation,
                tenant=tenant,
                psp_version=1,
                flow_quota=quota,
                routes=tuple(
                    Route(address=packed(address), device=on, endpoint_id=padded(name))
                    for name, (on, owner, addresses) in where.items()
                    if owner == tenant
                    for address in addresses
                ),
            )
            for tenant in ("blue", "red", "green")
        ),
        endpoints=tuple(
            EndpointTable(
                endpoint_id=padded(name),
                name=name,
                network_id=padded(owner),
                addresses=tuple(map(packed, addresses)),
                mtu_octets=9000,
                rules=tuple(numbered[name]),
            )
            for name, (on, owner, addresses) in where.items()
            if on == HERE
        ),
        peers=tuple(PeerTable(device=name, underlay_address=bytes(4)) for name in (PEER, OTHER)),
    )
    check_tables(tables)
    return tables


def split_port(text):
    """`10.1.0.10:80`, `[fd00::1]:80` or an address alone."""
    if text.startswith("["):
        address, _, port = text[1:].partition("]:")
    elif text.count(":") == 1:
        address, _, port = text.partition(":")
    else:
        address, port = text, "0"
    return address, int(port or 0)


def build(source, destination, kind, detail=""):
    """Layers of `10.1.0.10:5000 > 10.1.0.11:80 tcp SA`, `... echo 7`, `... reply 7`, `... udp`."""
    (source, sport), (destination, dport) = split_port(source), split_port(destination)
    is_v6 = ":" in source
    ip = (IPv6 if is_v6 else IP)(src=source, dst=destination)
    if kind == "tcp":
        return ip / TCP(sport=sport, dport=dport, flags=detail if detail != "-" else 0)
    if kind == "udp":
        return ip / UDP(sport=sport, dport=dport)
    number = int(detail)
    if kind == "icmp":
        return ip / ICMP(type=number)
    if is_v6:
        return ip / (ICMPv6EchoRequest if kind == "echo" else ICMPv6EchoReply)(id=number)
    return ip / ICMP(type=8 if kind == "echo" else 0, id=number)


def judge(firewall, way, endpoint, layers, now_s=0.0, packet=None):
    octets = raw(layers)
    packet = packet or Packet()
    assert parse(packet, octets, 0, len(octets)) is None
    return (firewall.egress if way == "out" else firewall.ingress)(padded(endpoint), packet, now_s)


def run(firewall, script, now_s=0.0):
    """Send each packet of the script, compare its outcome, return the counters by reason."""
    counters = Counter()
    for line in filter(None, map(str.strip, script.splitlines())):
        question, _, expected = line.partition(" = ")
        way, endpoint, source, _, destination, *kind = question.split()
        outcome = judge(firewall, way, endpoint, build(source, destination, *kind), now_s)
        rule_id = "" if outcome.rule_id is None else f" {outcome.rule_id}"
        assert f"{outcome.verdict} {outcome.reason}{rule_id}" == expected, line
        counters[outcome.reason.value] += 1
    return counters


OPEN = ("blue-0 egress ALLOW any * *", "blue-0 ingress ALLOW any * *")


# --- default deny and rules ----------------------------------------------------------------------


def test_without_rules_nothing_passes_and_nothing_is_remembered():
    firewall = Firewall(device())
    counters = run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = DROP no_rule
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 udp = DROP no_rule
        out blue-0 10.1.0.10 > 10.1.0.11 echo 1 = DROP no_rule
        out blue-0 [fd00:1::10]:5000 > [fd00:1::11]:80 tcp S = DROP no_rule
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp S = DROP no_rule
        in blue-0 fd00:1::11 > fd00:1::10 echo 1 = DROP no_rule
    """)  # fmt: skip
    assert counters == {"no_rule": 6}
    assert firewall.flow_count == 0


def test_first_match_decides():
    firewall = Firewall(device((
        "blue-0 egress DROP tcp 22 10.1.0.11/32",
        "blue-0 egress ALLOW tcp 1-1023 10.1.0.0/24",
        "blue-0 egress ALLOW udp 53 *",
    )))  # fmt: skip
    counters = run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:22 tcp S = DROP rule_denied 1
        out blue-0 10.1.0.10:5000 > 10.1.0.13:22 tcp S = ALLOW rule_allowed 2
        out blue-0 10.1.0.10:5000 > 10.1.0.11:1023 tcp S = ALLOW rule_allowed 2
        out blue-0 10.1.0.10:5000 > 10.1.0.11:1024 tcp S = DROP no_rule
        out blue-0 10.1.0.10:5000 > 10.1.0.11:53 udp = ALLOW rule_allowed 3
        out blue-0 [fd00:1::10]:5000 > [fd00:1::11]:53 udp = ALLOW rule_allowed 3
        out blue-0 [fd00:1::10]:5000 > [fd00:1::11]:22 tcp S = DROP no_rule
    """)  # fmt: skip
    assert counters == {"rule_denied": 1, "rule_allowed": 4, "no_rule": 2}
    assert firewall.flow_count == 4


def test_egress_rules_do_not_open_ingress():
    firewall = Firewall(device(("blue-0 egress ALLOW any * *",)))
    run(firewall, """
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp S = DROP no_rule
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
    """)  # fmt: skip


def test_audit_passes_and_says_so():
    firewall = Firewall(device(("blue-0 egress AUDIT tcp 80 *",)))
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = AUDIT rule_denied 1
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = AUDIT flow_established 1
    """)  # fmt: skip


def test_an_endpoint_that_is_not_here_has_no_tables():
    firewall = Firewall(device(OPEN))
    run(firewall, """
        out blue-1 10.1.0.11:5000 > 10.1.0.10:80 tcp S = DROP no_tables
        in blue-1 10.1.0.10:5000 > 10.1.0.11:80 tcp S = DROP no_tables
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
    """)  # fmt: skip


# --- addresses -----------------------------------------------------------------------------------


def test_sources_and_destinations():
    firewall = Firewall(device(OPEN))
    counters = run(firewall, """
        out blue-0 10.1.0.11:5000 > 10.1.0.12:80 tcp S = DROP spoofed_source
        out blue-0 10.1.0.12:5000 > 10.1.0.11:80 udp = DROP spoofed_source
        out blue-0 fd00:1::99 > fd00:1::11 echo 1 = DROP spoofed_source
        out blue-0 10.1.0.11 > 10.1.0.12 icmp 3 = DROP spoofed_source
        out blue-0 10.1.0.10:5000 > 10.3.0.10:80 tcp S = DROP no_route
        out blue-0 10.1.0.10:5000 > 8.8.8.8:53 udp = DROP no_route
        out blue-0 10.1.0.10:80 > 10.1.0.10:80 tcp S = DROP martian
        in blue-0 10.1.0.11:80 > 10.1.0.12:80 tcp S = DROP foreign_destination
        in blue-0 10.3.0.10:80 > 10.1.0.10:80 tcp S = DROP foreign_source
        in blue-0 10.1.0.10:80 > 10.1.0.10:80 tcp S = DROP martian
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp S = ALLOW rule_allowed 2
    """)  # fmt: skip
    assert counters["spoofed_source"] == 4
    assert firewall.flow_count == 2


def test_look_ups():
    firewall = Firewall(device(OPEN))
    blue, red = padded("blue"), padded("red")
    packet = Packet()

    def admit(network_id, source, destination, device):
        raw_packet = raw(IP(src=source, dst=destination) / UDP(sport=1, dport=2))
        assert parse(packet, raw_packet, 0, len(raw_packet)) is None
        found = firewall.admit(network_id, packet, device)
        return found if isinstance(found, Reason) else found.name

    assert admit(blue, "10.1.0.11", "10.1.0.10", PEER) == "blue-0"
    assert admit(red, "10.1.0.11", "10.1.0.10", PEER) == "red-0"
    assert admit(blue, "10.1.0.11", "10.1.0.10", OTHER) is Reason.FOREIGN_SOURCE
    assert admit(blue, "10.3.0.10", "10.1.0.10", PEER) is Reason.FOREIGN_SOURCE
    assert admit(blue, "10.1.0.11", "10.1.0.13", PEER) is Reason.FOREIGN_DESTINATION
    assert admit(blue, "10.3.0.10", "10.1.0.13", PEER) is Reason.FOREIGN_SOURCE
    assert admit(padded("nobody"), "10.1.0.11", "10.1.0.10", PEER) is Reason.FOREIGN_SOURCE
    assert firewall.endpoint(padded("blue-0")).name == "blue-0"
    assert firewall.endpoint(padded("blue-1")) is None


def test_what_passes_carries_flow_and_route():
    firewall, packet = Firewall(device(OPEN)), Packet()
    judge(firewall, "out", "blue-0", build("10.1.0.10:5", "10.1.0.13:80", "tcp", "S"), packet=packet)
    assert packet.route.device == OTHER
    opened = packet.flow
    judge(firewall, "in", "blue-0", build("10.1.0.13:80", "10.1.0.10:5", "tcp", "SA"), packet=packet)
    assert packet.route.device == OTHER
    assert packet.flow is opened


def test_two_tenants_with_the_same_addresses_never_meet():
    firewall = Firewall(device(("blue-0 egress ALLOW tcp 80 *",)))
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
        out red-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = DROP no_rule
        out red-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP tcp_state
        in red-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = ALLOW flow_established 1
    """)  # fmt: skip


# --- TCP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [("10.1.0.10", "10.1.0.11"), ("fd00:1::10", "fd00:1::11")], ids=["v4", "v6"])
def test_a_connection_from_here(a, b):
    firewall = Firewall(device(("blue-0 egress ALLOW tcp 80 *",)))
    counters = run(firewall, f"""
        out blue-0 [{a}]:5000 > [{b}]:80 tcp S = ALLOW rule_allowed 1
        in blue-0 [{b}]:80 > [{a}]:5000 tcp SA = ALLOW flow_established 1
        out blue-0 [{a}]:5000 > [{b}]:80 tcp A = ALLOW flow_established 1
        out blue-0 [{a}]:5000 > [{b}]:80 tcp PA = ALLOW flow_established 1
        in blue-0 [{b}]:80 > [{a}]:5000 tcp PA = ALLOW flow_established 1
        out blue-0 [{a}]:5000 > [{b}]:80 tcp FA = ALLOW flow_established 1
        in blue-0 [{b}]:80 > [{a}]:5000 tcp FA = ALLOW flow_established 1
        out blue-0 [{a}]:5000 > [{b}]:80 tcp A = ALLOW flow_established 1
    """)  # fmt: skip
    assert counters == {"rule_allowed": 1, "flow_established": 7}
    assert firewall.flow_count == 1
    assert firewall.expire(31.0) == 1


def test_a_connection_to_here():
    firewall = Firewall(device(("blue-0 ingress ALLOW tcp 80 10.1.0.11/32",)))
    run(firewall, """
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp S = ALLOW rule_allowed 1
        out blue-0 10.1.0.10:80 > 10.1.0.11:5000 tcp SA = ALLOW flow_established 1
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp A = ALLOW flow_established 1
        in blue-0 10.1.0.13:5000 > 10.1.0.10:80 tcp S = DROP no_rule
    """)  # fmt: skip


def test_segments_that_open_nothing():
    firewall = Firewall(device(OPEN))
    counters = run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp SA = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp FA = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp R = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp FPU = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp - = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp SF = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp SR = DROP tcp_state
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp A = DROP tcp_state
        in blue-0 10.1.0.11:5000 > 10.1.0.10:80 tcp SA = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp SEC = ALLOW rule_allowed 1
    """)  # fmt: skip
    assert counters == {"tcp_state": 10, "rule_allowed": 1}
    assert firewall.flow_count == 1


def test_segments_that_do_not_fit_leave_the_flow_as_it_is():
    firewall = Firewall(device(("blue-0 egress ALLOW tcp 80 *",)))
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp S = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp FA = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = ALLOW flow_established 1
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = ALLOW flow_established 1
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp S = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp - = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp FPU = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp A = ALLOW flow_established 1
    """)  # fmt: skip


def test_a_reset_ends_it_and_a_new_syn_is_judged_again():
    firewall = Firewall(device(("blue-0 egress ALLOW tcp 80 *",)))
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp RA = ALLOW flow_established 1
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = DROP tcp_state
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp S = DROP no_rule
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
    """)  # fmt: skip
    assert firewall.flow_count == 1


# --- UDP and ICMP --------------------------------------------------------------------------------


def test_udp_answers_belong_to_the_flow():
    firewall = Firewall(device(("blue-0 egress ALLOW udp 53 *",)))
    run(firewall, """
        in blue-0 10.1.0.11:53 > 10.1.0.10:5000 udp = DROP no_rule
        out blue-0 10.1.0.10:5000 > 10.1.0.11:53 udp = ALLOW rule_allowed 1
        out blue-0 10.1.0.10:5000 > 10.1.0.11:53 udp = ALLOW flow_established 1
        in blue-0 10.1.0.11:53 > 10.1.0.10:5000 udp = ALLOW flow_established 1
        in blue-0 10.1.0.11:53 > 10.1.0.10:5001 udp = DROP no_rule
        in blue-0 10.1.0.13:53 > 10.1.0.10:5000 udp = DROP no_rule
        in blue-0 10.1.0.11:53 > 10.1.0.10:5000 tcp S = DROP no_rule
    """)  # fmt: skip
    assert firewall.expire(299.0) == 0
    assert firewall.expire(301.0) == 1


@pytest.mark.parametrize(
    ("a", "b", "word"), [("10.1.0.10", "10.1.0.11", "icmp"), ("fd00:1::10", "fd00:1::11", "icmpv6")]
)
def test_echo(a, b, word):
    firewall = Firewall(device((f"blue-0 egress ALLOW {word} * *",)))
    run(firewall, f"""
        in blue-0 {b} > {a} reply 7 = DROP icmp_state
        out blue-0 {a} > {b} echo 7 = ALLOW rule_allowed 1
        in blue-0 {b} > {a} reply 7 = ALLOW flow_established 1
        in blue-0 {b} > {a} reply 8 = DROP icmp_state
        in blue-0 {b} > {a} echo 7 = DROP no_rule
        out blue-0 {a} > {b} reply 7 = DROP icmp_state
        out blue-0 {a} > {b} echo 7 = ALLOW flow_established 1
    """)  # fmt: skip
    assert firewall.flow_count == 1
    assert firewall.expire(62.0) == 1


def test_both_ends_may_ping_with_one_identifier():
    firewall = Firewall(device(OPEN))
    run(firewall, """
        out blue-0 10.1.0.10 > 10.1.0.11 echo 7 = ALLOW rule_allowed 1
        in blue-0 10.1.0.11 > 10.1.0.10 echo 7 = ALLOW rule_allowed 2
        in blue-0 10.1.0.11 > 10.1.0.10 reply 7 = ALLOW flow_established 1
        out blue-0 10.1.0.10 > 10.1.0.11 reply 7 = ALLOW flow_established 2
    """)  # fmt: skip
    assert firewall.flow_count == 2


@pytest.mark.parametrize("kind", [4, 5, 9, 10, 13, 14, 15, 17, 18, 30, 40, 42])
def test_other_icmp_is_refused_even_where_all_is_allowed(kind):
    run(Firewall(device(OPEN)), f"""
        out blue-0 10.1.0.10 > 10.1.0.11 icmp {kind} = DROP icmp_state
        in blue-0 10.1.0.11 > 10.1.0.10 icmp {kind} = DROP icmp_state
    """)  # fmt: skip


SENT = build("10.1.0.10:5000", "10.1.0.11:53", "udp")
RECEIVED = build("10.1.0.11:5000", "10.1.0.10:53", "udp")
ERROR_IN = IP(src="10.1.0.11", dst="10.1.0.10") / ICMP(type=3, code=3)
ERROR_OUT = IP(src="10.1.0.10", dst="10.1.0.11") / ICMP(type=3, code=3)


def test_an_error_about_a_live_flow_is_related():
    firewall = Firewall(device(("blue-0 egress ALLOW udp 53 *", "blue-0 ingress ALLOW udp 53 *")))
    assert judge(firewall, "in", "blue-0", ERROR_IN / SENT).reason is Reason.ICMP_STATE
    judge(firewall, "out", "blue-0", SENT)
    judge(firewall, "in", "blue-0", RECEIVED)
    packet = Packet()
    inward = judge(firewall, "in", "blue-0", ERROR_IN / SENT, packet=packet)
    assert (inward.verdict, inward.reason, inward.rule_id) == (Verdict.ALLOW, Reason.FLOW_RELATED, 1)
    assert packet.route.device == PEER
    outward = judge(firewall, "out", "blue-0", ERROR_OUT / RECEIVED)
    assert (outward.verdict, outward.reason, outward.rule_id) == (Verdict.ALLOW, Reason.FLOW_RELATED, 2)


def test_an_error_that_goes_the_wrong_way_is_not():
    firewall = Firewall(device(OPEN))
    judge(firewall, "out", "blue-0", SENT)
    back = build("10.1.0.11:53", "10.1.0.10:5001", "udp")
    assert judge(firewall, "in", "blue-0", ERROR_IN / back).reason is Reason.ICMP_STATE
    assert judge(firewall, "in", "blue-0", ERROR_IN / RECEIVED).reason is Reason.ICMP_STATE
    stranger = IP(src="10.1.0.13", dst="10.1.0.10") / ICMP(type=3, code=3)
    assert judge(firewall, "in", "blue-0", stranger / SENT).reason is Reason.ICMP_STATE
    assert judge(firewall, "in", "blue-0", ERROR_IN / SENT).reason is Reason.FLOW_RELATED


def test_errors_do_not_keep_a_flow_alive():
    firewall = Firewall(device(("blue-0 egress ALLOW udp 53 *",)))
    judge(firewall, "out", "blue-0", SENT)
    assert judge(firewall, "in", "blue-0", ERROR_IN / SENT, 29.0).reason is Reason.FLOW_RELATED
    assert firewall.expire(31.0) == 1
    assert judge(firewall, "in", "blue-0", ERROR_IN / SENT, 31.0).reason is Reason.ICMP_STATE


# --- quota, same device --------------------------------------------------------------------------


def test_quota_is_per_network_and_exact():
    firewall = Firewall(device((*OPEN, "blue-2 egress ALLOW any * *", "red-0 egress ALLOW any * *"), quota=10))
    outcomes = Counter(
        judge(firewall, "out", name, build(f"{source}:{port}", "10.1.0.11:80", "tcp", "S")).reason.value
        for port in range(1, 101)
        for name, source in (("blue-0", "10.1.0.10"), ("blue-2", "10.1.0.12"))
    )
    assert outcomes == {"rule_allowed": 10, "flow_quota": 190}
    assert firewall._table.count_of(padded("blue")) == 10
    run(firewall, """
        out red-0 10.1.0.10:1 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 4
        out blue-0 10.1.0.10:1 > 10.1.0.11:80 tcp S = ALLOW flow_established 1
        out blue-0 10.1.0.10:200 > 10.1.0.11:80 tcp S = DROP flow_quota
    """)  # fmt: skip
    run(firewall, "out blue-0 10.1.0.10:200 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1", now_s=62.0)


def test_same_device_traffic_passes_both_fences():
    rules = ("blue-0 egress ALLOW tcp * *", "blue-2 ingress ALLOW tcp 80 *")
    firewall = Firewall(device(rules))
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.12:80 tcp S = ALLOW rule_allowed 1
        in blue-2 10.1.0.10:5000 > 10.1.0.12:80 tcp S = ALLOW rule_allowed 2
        out blue-2 10.1.0.12:80 > 10.1.0.10:5000 tcp SA = ALLOW flow_established 2
        in blue-0 10.1.0.12:80 > 10.1.0.10:5000 tcp SA = ALLOW flow_established 1
        out blue-0 10.1.0.10:5000 > 10.1.0.12:22 tcp S = ALLOW rule_allowed 1
        in blue-2 10.1.0.10:5000 > 10.1.0.12:22 tcp S = DROP no_rule
    """)  # fmt: skip
    assert firewall.flow_count == 3


# --- swap and cut --------------------------------------------------------------------------------

LIVE = """
    out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
    in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp SA = ALLOW flow_established 1
    out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = ALLOW flow_established 1
    out blue-0 10.1.0.10:5000 > 10.1.0.13:53 udp = ALLOW rule_allowed 1
    in blue-0 10.1.0.11 > 10.1.0.10 echo 7 = ALLOW rule_allowed 2
    in blue-0 [fd00:1::13]:5 > [fd00:1::10]:80 tcp S = ALLOW rule_allowed 2
"""


def live():
    firewall = Firewall(device(OPEN))
    run(firewall, LIVE)
    assert firewall.flow_count == 4
    return firewall


def test_a_swap_of_the_same_tables_cuts_nothing():
    firewall = live()
    assert firewall.swap(device(OPEN), 1.0) == 0
    run(firewall, """
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp A = ALLOW flow_established 1
        out blue-0 10.1.0.10 > 10.1.0.11 reply 7 = ALLOW flow_established 2
    """)  # fmt: skip


def test_a_swap_cuts_exactly_what_is_no_longer_allowed():
    firewall = live()
    rules = ("blue-0 egress DROP tcp * 10.1.0.11/32", "blue-0 egress ALLOW any * *", "blue-0 ingress ALLOW tcp 80 *")
    assert firewall.swap(device(rules), 1.0) == 2
    run(firewall, """
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp A = DROP flow_cut
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP flow_cut
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = DROP rule_denied 1
        out blue-0 10.1.0.10 > 10.1.0.11 reply 7 = DROP flow_cut
        in blue-0 10.1.0.11 > 10.1.0.10 echo 7 = DROP no_rule
        in blue-0 10.1.0.13:53 > 10.1.0.10:5000 udp = ALLOW flow_established 2
        out blue-0 [fd00:1::10]:80 > [fd00:1::13]:5 tcp SA = ALLOW flow_established 3
    """)  # fmt: skip
    assert firewall.flow_count == 2


def test_a_cut_flow_is_named_until_its_key_is_used_again():
    firewall = live()
    firewall.swap(device(), 1.0)
    firewall.swap(device(OPEN), 2.0)
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP flow_cut
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp A = DROP flow_cut
        out blue-0 10.1.0.10:5001 > 10.1.0.11:80 tcp A = DROP tcp_state
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp S = ALLOW rule_allowed 1
        in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp RA = ALLOW flow_established 1
    """)  # fmt: skip
    assert firewall.expire(13.0) == 1
    run(firewall, "out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP tcp_state")


def without(name):
    return {key: value for key, value in WHERE.items() if key != name}


def moved(name, to):
    return WHERE | {name: (to, *WHERE[name][1:])}


@pytest.mark.parametrize(
    ("tables", "cut"),
    [
        (device(), 4),
        (device(OPEN, generation=2), 4),
        (device(OPEN, where=without("blue-3")), 2),
        (device(("blue-2 egress ALLOW any * *",), where=without("blue-0")), 4),
        (device(OPEN, where=WHERE | {"blue-0": (HERE, "blue", ("10.1.0.10",))}), 1),
        (device(OPEN, where=WHERE | {"blue-0": (HERE, "green", ("10.1.0.10", "fd00:1::10"))}), 4),
        (device(OPEN, where=without("blue-3") | {"blue-9": (OTHER, "blue", WHERE["blue-3"][2])}), 2),
        (device(OPEN, where=moved("blue-3", PEER)), 0),
        (dataclasses.replace(device(), endpoints=()), 4),
    ],
    ids=[
        "no rules", "network made anew", "peer endpoint gone", "own endpoint gone", "own address gone",
        "own endpoint in another network", "address given to another", "peer endpoint moved", "no endpoints",
    ],
)  # fmt: skip
def test_what_else_a_swap_cuts(tables, cut):
    firewall = live()
    assert firewall.swap(tables, 1.0) == cut
    assert firewall.flow_count == 4 - cut


def test_a_flow_follows_an_endpoint_that_moves():
    firewall = live()
    firewall.swap(device(OPEN, where=moved("blue-3", PEER)), 1.0)
    packet = Packet()
    judge(firewall, "out", "blue-0", build("10.1.0.10:5000", "10.1.0.13:53", "udp"), packet=packet)
    assert packet.route.device == PEER
    assert firewall.cut_device(OTHER) == 0
    assert firewall.cut_device(PEER) == 4


def test_a_swap_that_fails_changes_nothing():
    firewall = live()
    broken = device(())
    broken = dataclasses.replace(broken, endpoints=(dataclasses.replace(broken.endpoints[0], network_id=bytes(16)),))
    with pytest.raises(KeyError):
        firewall.swap(broken, 1.0)
    run(firewall, "in blue-0 10.1.0.11:80 > 10.1.0.10:5000 tcp A = ALLOW flow_established 1")
    assert firewall.flow_count == 4


def test_cut_device_and_endpoint():
    firewall = live()
    assert firewall.cut_device("dpu-9") == 0
    assert firewall.cut_device(PEER) == 2
    run(firewall, """
        out blue-0 10.1.0.10:5000 > 10.1.0.11:80 tcp A = DROP flow_cut
        in blue-0 10.1.0.13:53 > 10.1.0.10:5000 udp = ALLOW flow_established 1
    """)  # fmt: skip
    assert firewall.cut_endpoint(padded("red-0")) == 0
    assert firewall.cut_endpoint(padded("blue-1")) == 0
    assert firewall.cut_endpoint(padded("blue-0")) == 2
    assert firewall.flow_count == 0


def test_established_packets_get_the_very_same_outcome():
    firewall = live()
    layers = build("10.1.0.10:5000", "10.1.0.11:80", "tcp", "A")
    assert judge(firewall, "out", "blue-0", layers) is judge(firewall, "out", "blue-0", layers)


# --- against a model -----------------------------------------------------------------------------

RULES = st.lists(
    st.sampled_from([
        f"blue-0 {direction} {verdict} {protocol} {peers}"
        for direction in ("egress", "ingress")
        for verdict in ("ALLOW", "DROP")
        for protocol in ("tcp 80", "udp 80-81", "any *", "tcp *")
        for peers in ("10.1.0.11/32", "10.1.0.0/24", "*")
    ]),
    max_size=6,
)  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("out", "in")), st.sampled_from(("10.1.0.11", "10.1.0.13")), st.sampled_from((80, 81)),
        st.sampled_from((80, 81)), st.booleans(),
    ),
    max_size=25,
)  # fmt: skip


class Model:
    """Datagrams only, nothing idle: passes what a rule allows now, or what answers or continues that."""

    def __init__(self, rules):
        self.live = set()
        self.set_rules(rules)

    def set_rules(self, rules):
        self.rules = [rule(text.partition(" ")[2], 0) for text in rules]
        self.live = {flow for flow in self.live if self.allows(*flow)}

    def allows(self, way, peer, _, remote_port, local_port):
        port = remote_port if way == "out" else local_port
        for row in self.rules:
            if (
                (row.direction is Direction.EGRESS) == (way == "out")
                and row.protocol in {0, 17}
                and row.port_first <= port <= row.port_last
                and any(
                    len(p.address) == 4
                    and int.from_bytes(packed(peer)) >> (32 - p.length) == int.from_bytes(p.address) >> (32 - p.length)
                    for p in row.peers
                )
            ):
                return row.verdict is Verdict.ALLOW
        return False

    def passes(self, way, peer, remote_port, local_port):
        conversation = (peer, "udp", remote_port, local_port)
        if ("out", *conversation) in self.live or ("in", *conversation) in self.live:
            return True
        if self.allows(way, *conversation):
            self.live.add((way, *conversation))
            return True
        return False


@settings(max_examples=150, deadline=None)
@given(RULES, RULES, STEPS)
def test_random_rules_packets_and_swaps_against_the_model(before, after, steps):
    firewall, model = Firewall(device(before)), Model(before)
    for way, peer, remote_port, local_port, swaps in steps:
        if swaps:
            lost = len(model.live)
            model.set_rules(after)
            assert firewall.swap(device(after), 0.0) == lost - len(model.live)
            before, after = after, before
        ends = (f"10.1.0.10:{local_port}", f"{peer}:{remote_port}")
        layers = build(*(ends if way == "out" else ends[::-1]), "udp")
        expected = model.passes(way, peer, remote_port, local_port)
        assert (judge(firewall, way, "blue-0", layers).verdict is Verdict.ALLOW) == expected
        assert firewall.flow_count == len(model.live)
