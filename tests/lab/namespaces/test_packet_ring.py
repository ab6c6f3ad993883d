"""The ring shows what a packet socket shows, in memory that no socket buffer bounds, and says what it missed."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

PROGRAM = """
import json, select, socket, struct, subprocess, sys
from ztdpu.lab.namespaces.packet_ring import PacketRing

subprocess.run(["ip", "link", "set", "lo", "up", "mtu", "65536"], check=True)
plain = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
plain.setsockopt(socket.SOL_SOCKET, 35, 1)
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
ring = PacketRing(blocks=2)
for handle in (plain, ring):
    handle.bind(("lo", 3))
    handle.setblocking(False)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

def statistics(handle):
    return struct.unpack("II", handle.getsockopt(263, 6, 8))

def read(handle):
    try:
        packet, ancillary, _, address = handle.recvmsg(70_000, 64)
    except BlockingIOError:
        return None
    seconds, _ = struct.unpack("qq", ancillary[0][2])
    return [packet.hex(), address[1], address[2], seconds // 60]

said = {"same": [], "nothing": read(ring) is None}
for octets in (b"small", bytes(65_000)):
    sender.sendto(octets, ("127.0.0.1", 9))
    select.select([ring], [], [], 5)
    for _ in range(3):
        said["same"].append((read(ring), read(plain)))
    while read(ring) or read(plain):
        pass
statistics(ring), statistics(plain)
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
for _ in range(6):  # each comes four times: out, in, and the ICMP error that answers it
    sender.sendto(bytes(60_000), ("127.0.0.1", 9))
said["lost"], said["plain_lost"] = statistics(ring)[1], statistics(plain)[1]
count = 0
while read(ring):
    count += 1
said["large"] = count
for _ in range(200):
    sender.sendto(b"x", ("127.0.0.1", 9))
said["overfull"] = statistics(ring)[1]
count = 0
while read(ring):
    count += 1
said["kept"] = count
sender.sendto(b"again", ("127.0.0.1", 9))
said["goes_on"] = read(ring) is not None
ring.close()
print(json.dumps(said))
"""


def test_a_ring_is_a_packet_socket_with_more_room():
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["nothing"]
    for ours, theirs in said["same"]:
        assert ours is not None
        assert ours == theirs
    assert len(said["same"][3][0][0]) > 2 * 65_000, "a large packet is there whole"
    assert (said["lost"], said["large"] >= 12) == (0, True)
    assert said["plain_lost"] > 0, "the twin with a small buffer misses some of the same"
    assert said["overfull"] > 0, "what does not fit is counted"
    assert said["kept"] == 30
    assert said["goes_on"]
