"""The emulated cluster on one Linux machine, and the demonstration that runs on it.

Reading order: `fabric`, `fabric.obstacles` and `fabric.trial` (what a lab can be made of here), `layout` (what is
where), `syscalls`, `netns`, `view`, `isolate` and `holder` (namespaces with uids of their own), `enclosure` (around
a lab without root), `links` (cables and bridges), `factory` (the PCIe side), `documents` and
`manufacture` (plan, device secrets, roster), `marks` (whose a namespace is), `cluster` (up), `takedown` (down),
`readiness`, `roles`, `status`, `restart`, `enter` (exec), `interruption` (signals). `userspace` is the lab without
namespaces. Then what runs on it: `crew` (programs in its namespaces), `capture`, `packet_ring`, `traffic`, `probe`,
`attacks` (one program each), `campaign` (every attack with its twin, counted), `connectivity` (`check`), `bystander`,
`scorecard` and `demo`; `bench` measures.

What runs inside a device or an endpoint is root of that one's user namespace only, never of the host.
Nothing here imports grpc before the last fork of `lab up`.
"""
