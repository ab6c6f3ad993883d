"""Bridges and cables: br0 in the fabric, the out-of-band bridge, one cable of each kind per device.

Called by `cluster` when all namespaces have their names. Composes `ip -batch` text (pure) and runs it: a
few processes for the whole lab instead of one per setting.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Final

from ztdpu.errors import MachineError
from ztdpu.lab.layout import OOB_CONTROL, OOB_PREFIX_LENGTH, UNDERLAY_PREFIX_LENGTH, LabPlan, family, port_name

_ICMP: Final = {4: "icmp", 6: "ipv6-icmp"}
_BRIDGE: Final = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0"


def fabric_lines(plan: LabPlan) -> list[str]:
    """`ip` commands inside the fabric's namespace."""
    lines = [f"link add br0 mtu {plan.mtu_octets} {_BRIDGE}", "link set br0 up", "link set lo up"]
    for index, device in enumerate(plan.devices):
        port = port_name(index, device.name)
        peer = f"peer name underlay0 mtu {plan.mtu_octets} netns {plan.namespace(device.name)}"
        lines.append(f"link add {port} mtu {plan.mtu_octets} type veth {peer}")
        lines.append(f"link set {port} master br0 up")
    return lines


def oob_lines(plan: LabPlan) -> list[str]:
    """`ip` commands inside the out-of-band namespace: the bridge and control's cable."""
    return [
        f"link add oobbr0 {_BRIDGE}",
        "link set oobbr0 up",
        "link set lo up",
        *_oob_cable("control", plan, "control"),
    ]


def oob_device_lines(plan: LabPlan) -> list[str]:
    """`ip` commands inside the out-of-band namespace: the devices' cables."""
    ports = ((port_name(index, device.name), device.name) for index, device in enumerate(plan.devices))
    return [line for port, device in ports for line in _oob_cable(port, plan, device)]


def _oob_cable(port: str, plan: LabPlan, target: str) -> list[str]:
    peer = f"peer name oob0 netns {plan.namespace(target)}"
    return [f"link add {port} type veth {peer}", f"link set {port} master oobbr0 up"]


def control_lines() -> list[str]:
    """`ip` commands inside control's namespace."""
    return [f"addr add {OOB_CONTROL}/{OOB_PREFIX_LENGTH} dev oob0", "link set oob0 up", "link set lo up"]


def device_lines(underlay_address: str, oob_address: str) -> list[str]:
    """`ip` commands inside a device's namespace."""
    version = family(underlay_address)
    nodad = " nodad" if version == 6 else ""
    return [
        f"addr add {underlay_address}/{UNDERLAY_PREFIX_LENGTH[version]} dev underlay0{nodad}",
        "link set underlay0 up",
        f"addr add {oob_address}/{OOB_PREFIX_LENGTH} dev oob0",
        "link set oob0 up",
    ]


def silence_lines(underlay_address: str) -> list[str]:
    """Keep a device's own kernel silent on the underlay.

    While no worker listens it would answer PSP packets with ICMP port unreachable, which quotes them: neither PSP nor
    ARP nor ND, and word to everybody that the device is down. ND does not ask the routing rules, so it goes on.
    """
    version = family(underlay_address)
    network = ip_interface(f"{underlay_address}/{UNDERLAY_PREFIX_LENGTH[version]}").network
    return [f"rule add pref 10 ipproto {_ICMP[version]} to {network} blackhole"]


def plug_in_control(plan: LabPlan) -> None:
    """Make the out-of-band bridge and control's address on it. MachineError carries what `ip` said."""
    run_batches({plan.namespace("oob"): oob_lines(plan)})
    run_batches({plan.namespace("control"): control_lines()})


def plug_in_devices(plan: LabPlan) -> None:
    """Make br0 and both cables of every device. MachineError carries what `ip` said."""
    run_batches({plan.namespace("fabric"): fabric_lines(plan), plan.namespace("oob"): oob_device_lines(plan)})
    run_batches({plan.namespace(d.name): device_lines(d.underlay_address, d.oob_address) for d in plan.devices})
    for version in (4, 6):
        silent = [device for device in plan.devices if family(device.underlay_address) == version]
        batches = {plan.namespace(device.name): silence_lines(device.underlay_address) for device in silent}
        run_batches(batches, options=(f"-{version}",))


def run_batches(batches: Mapping[str, Sequence[str]], *, options: Sequence[str] = (), at_once: int = 16) -> None:
    """Run one `ip -batch` per namespace, several at a time."""
    pending = list(batches.items())
    while pending:
        now, pending = pending[:at_once], pending[at_once:]
        running = [(name, lines, _start([*options, "-n", name], lines)) for name, lines in now]
        for name, _, process in running:
            said = process.communicate()[1].strip()
            if process.returncode != 0:
                raise MachineError(f"ip in {name}: {said}")


def run_here(lines: Sequence[str]) -> None:
    """Run an `ip -batch` in the present network namespace. MachineError carries what it said."""
    process = _start([], lines)
    said = process.communicate()[1].strip()
    if process.returncode != 0:
        raise MachineError(f"ip: {said}")


def _start(options: Sequence[str], lines: Sequence[str]) -> subprocess.Popen[str]:
    try:
        process = subprocess.Popen(
            ["ip", *options, "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        raise MachineError(
            "the program `ip` is missing", remedy="apt-get install iproute2 (make setup-system)"
        ) from error
    if process.stdin is None:  # cannot be with PIPE; the type says it can
        raise MachineError("no pipe to ip")
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.flush()
    return process
