"""The emulated cluster on one Linux machine, and the demonstration that runs on it.

Reading order: `layout` (what is where), `syscalls`, `netns`, `view`, `isolate` and `holder` (namespaces with
uid ranges of their own), `links` (cables and bridges), `factory` (the PCIe side), `documents` and
`manufacture` (plan, device secrets, roster), `marks` (whose a namespace is), `cluster` (up), `takedown` (down),
`readiness`, `roles`, `status`, `restart`, `enter` (exec), `interruption` (signals). Then what runs on it: `crew`
(programs in its namespaces), `capture`, `traffic`, `probe`, `attacks` (one program each), `campaign` (every attack
with its twin, counted), `connectivity` (`check`), `scorecard` and `demo`; `bench` measures.

Needs root of the host. What runs inside a device or an endpoint is root of that one's uid range only.
Nothing here imports grpc before the last fork of `lab up`.
"""
