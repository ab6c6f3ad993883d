"""The virtual function factory: stands for the PCIe side of a DPU.

One process per lab, host root, outside every user namespace. On a real device the hardware makes virtual
functions and hands one end to the host; here the factory makes a TUN in the endpoint's network namespace
and hands its descriptor to the agent of the device. One SOCK_SEQPACKET socket per device:

    agent   -> ["make", endpoint name, endpoint id]
    factory -> ["made", endpoint id, ""] with the descriptor, or ["refused", endpoint id, message]

Only the device's own uid range is answered, where uids do not tell devices apart only its own pid namespace, and only
for endpoints that the plan puts on that device.
Keeps no descriptor: when the worker that got it ends, the interface is gone.
"""

from __future__ import annotations

import array
import fcntl
import os
import selectors
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import cbor2

from ztdpu.errors import MachineError, RefusedError, StateError, UsageError
from ztdpu.lab import processes
from ztdpu.lab.fabric.choice import Isolation
from ztdpu.lab.layout import UID_RANGE, DevicePlan, EndpointPlan, LabPlan, family, gso_limit_octets
from ztdpu.lab.listening import listen_at
from ztdpu.lab.namespaces.links import run_here
from ztdpu.lab.namespaces.netns import inside
from ztdpu.lab.record import require_record

INTERFACE: Final = "ztdpu0"
MOST_SEGMENTS: Final = 128
QUEUE_PACKETS: Final = 256
"""No packet is lost while others keep the worker off its core (docs/performance.md); longer only adds latency."""
_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_TUNSETVNETHDRSZ: Final = 0x400454D8
_VNET_HEADER_OCTETS: Final = 10
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_TUN_F_CSUM: Final = 0x01
_TUN_F_TSO4: Final = 0x02
_TUN_F_TSO6: Final = 0x04
_REQUEST_OCTETS: Final = 4096
_BACKLOG: Final = 4
CONNECTIONS_LIMIT: Final = 8
"""Of each device; a further one is closed at once. One device must not cost the others their factory."""


def make_virtual_function(plan: LabPlan, endpoint: EndpointPlan) -> int:
    """Make `ztdpu0` in the endpoint's namespace, configured and up; returns the TUN's descriptor.

    One that is still there (its worker died a moment ago) is deleted first. Raises OSError, MachineError.
    """
    with inside(plan.namespace(endpoint.name)):
        if INTERFACE in {name for _, name in socket.if_nameindex()}:
            with suppress(MachineError):  # it went by itself in between
                run_here([f"link del {INTERFACE}"])
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), flags))
            fcntl.ioctl(descriptor, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_HEADER_OCTETS))
            fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
            run_here(interface_lines(endpoint))
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def interface_lines(endpoint: EndpointPlan) -> list[str]:
    """`ip` commands that set up `ztdpu0`: own addresses, everything else is the device's business."""
    limits = f"gso_max_segs {MOST_SEGMENTS} gso_max_size {gso_limit_octets(endpoint.mtu_octets)}"
    lines = [
        f"link set {INTERFACE} mtu {endpoint.mtu_octets} txqueuelen {QUEUE_PACKETS} {limits} addrgenmode none",
        f"link set {INTERFACE} up",
    ]
    hosts = {4: f"/32 dev {INTERFACE}", 6: f"/128 dev {INTERFACE} nodad"}
    everywhere = {4: "0.0.0.0/0", 6: "::/0"}
    lines += [f"addr add {address}{hosts[family(address)]}" for address in endpoint.addresses]
    versions = sorted({family(address) for address in endpoint.addresses})
    lines += [f"route add {everywhere[version]} dev {INTERFACE}" for version in versions]
    return lines


class Factory:
    """Serves all devices of one lab, one request at a time."""

    def __init__(self, plan: LabPlan, *, homes: Mapping[str, str] = MappingProxyType({})) -> None:
        """`homes`: the pid namespaces of the devices, in a lab where all have one uid."""
        self._plan = plan
        self._homes = homes
        self.selector = selectors.DefaultSelector()
        self._connections: Counter[str] = Counter()
        for device in plan.devices:
            self.selector.register(self._listen(device), selectors.EVENT_READ, (device, True))

    def make(self, endpoint: EndpointPlan) -> int:
        """Return the device's end of a new virtual function. Raises OSError, MachineError."""
        return make_virtual_function(self._plan, endpoint)

    def watch(self, ready: socket.socket, read: Callable[[], None]) -> None:
        """Call `read` whenever there is something to read, between two requests."""
        self.selector.register(ready, selectors.EVENT_READ, read)

    def _listen(self, device: DevicePlan) -> socket.socket:
        path = self._plan.paths.factory_socket(device.name)
        owner = device.uid_base if device.uid_base != os.geteuid() else None
        return listen_at(path, socket.SOCK_SEQPACKET, backlog=_BACKLOG, owner=owner)

    def serve(self) -> None:
        """Answer until killed."""
        while True:
            for key, _ in self.selector.select():
                if callable(key.data):
                    key.data()
                    continue
                device, is_listening = key.data
                ready = key.fileobj
                if not isinstance(ready, socket.socket):  # only sockets are registered
                    continue
                if is_listening:
                    self._accept(ready, device)
                elif not self._answer(ready, device):
                    self.selector.unregister(ready)
                    ready.close()
                    self._connections[device.name] -= 1

    def _accept(self, listening: socket.socket, device: DevicePlan) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # it went away by itself
        if self._connections[device.name] >= CONNECTIONS_LIMIT:
            connection.close()
            return
        connection.setblocking(False)  # whoever does not take its answers loses its connection
        self._connections[device.name] += 1
        self.selector.register(connection, selectors.EVENT_READ, (device, False))

    def _answer(self, connection: socket.socket, device: DevicePlan) -> bool:
        """Answer one request; False when the connection is over."""
        try:
            request = connection.recv(_REQUEST_OCTETS)
        except OSError:
            return False
        if not request:
            return False
        endpoint_id = b""
        try:
            endpoint = self._wanted(connection, device, request)
            endpoint_id = bytes.fromhex(endpoint.endpoint_id)
            descriptor = self.make(endpoint)
        except (RefusedError, MachineError, OSError, UsageError) as error:
            print(f"refused {device.name}: {error}", file=sys.stderr)
            return self._refuse(connection, endpoint_id, str(error))
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
            connection.sendmsg([cbor2.dumps(["made", endpoint_id, ""])], rights)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        print(f"made {INTERFACE} of {endpoint.name} for {device.name}", file=sys.stderr)
        return True

    @staticmethod
    def _refuse(connection: socket.socket, endpoint_id: bytes, message: str) -> bool:
        try:
            connection.send(cbor2.dumps(["refused", endpoint_id, message]))
        except OSError:
            return False
        return True

    def _wanted(self, connection: socket.socket, device: DevicePlan, request: bytes) -> EndpointPlan:
        """Return the endpoint that may be made, or raise RefusedError."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        if not device.uid_base <= uid < device.uid_base + UID_RANGE:
            raise RefusedError(f"uid {uid} is not of {device.name}")
        if self._homes and processes.pid_namespace(pid) != self._homes.get(device.name):
            raise RefusedError(f"process {pid} is not of {device.name}")
        try:
            fields: Any = cbor2.loads(request)
            word, name, endpoint_id = fields
        except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
            raise RefusedError("request not understood") from error
        # Nothing else is ever shown: a few hundred octets of shared references would print as gigabytes.
        if word != "make" or not isinstance(name, str) or not isinstance(endpoint_id, bytes):
            raise RefusedError("request not understood")
        for endpoint in self._plan.endpoints:
            if (endpoint.name, endpoint.device, endpoint.endpoint_id) == (name, device.name, endpoint_id.hex()):
                return endpoint
        raise RefusedError(f"{device.name} has no endpoint {name!r} of that id")


def main() -> None:
    """`python -m ztdpu.lab.factory STATE`."""
    if len(sys.argv) != 2:
        raise StateError("usage: python -m ztdpu.lab.factory STATE")
    record = require_record(Path(sys.argv[1]))
    homes: dict[str, str] = {}
    if record.isolation is Isolation.SHARED_UID:
        homes = {one.name: processes.pid_namespace(record.holder(one.name).pid) for one in record.plan.devices}
    Factory(record.plan, homes=homes).serve()


if __name__ == "__main__":
    main()
