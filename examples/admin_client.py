"""Watch a fleet with nothing but the generated stubs: what any gRPC client in any language would do.

    python examples/admin_client.py                                  # the lab's admin socket, once
    python examples/admin_client.py --socket PATH --watch 10         # again each second for ten seconds, changes only

Whoever can open the UNIX socket is an operator; it lies in a directory that only its owner can enter.
"""

import argparse
import time

import grpc

from ztdpu.v1 import device_pb2, device_pb2_grpc


def main() -> None:
    """List devices, then say what changes."""
    parser = argparse.ArgumentParser(description="List devices and watch their state.")
    parser.add_argument("--socket", default="/run/ztdpu/lab/control/admin.sock")
    parser.add_argument("--watch", type=float, default=0.0, metavar="SECONDS")
    given = parser.parse_args()
    # The authority is what the HTTP/2 request calls its host; a socket has none, so give it one.
    options = [("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{given.socket}", options=options) as channel:
        devices = device_pb2_grpc.DeviceServiceStub(channel)
        seen: dict[str, tuple[str, bool]] = {}
        end = time.monotonic() + given.watch
        while True:
            for one in devices.ListDevices(device_pb2.ListDevicesRequest(), timeout=5).devices:
                if seen.get(one.name) != (one.state, one.ready):
                    ready = "ready" if one.ready else "not ready"
                    print(
                        f"{one.name}  {one.state}  {ready}  lease {one.lease_ms / 1000:.1f} s  {one.reason}", flush=True
                    )
                    seen[one.name] = (one.state, one.ready)
            if time.monotonic() >= end:
                return
            time.sleep(min(1.0, max(end - time.monotonic(), 0.0)))


if __name__ == "__main__":
    main()
