"""The emulated cluster on one Linux machine, and the demonstration that runs on it.

Reading order: `layout` (what is where), `syscalls`, `netns`, `view` and `isolate` (namespaces with uid
ranges of their own), `links` (cables and bridges), `factory` (the PCIe side), `manufacture` (device
secrets, roster), `cluster` (up, down, status), `enter` (exec), then `capture`, `attacks` and `demo`.
Runs as root of the host and is the only part of ztdpu that does; what it starts inside a device or an
endpoint is root of that one's uid range only. Imports no grpc before the last fork of `lab up`.
"""
