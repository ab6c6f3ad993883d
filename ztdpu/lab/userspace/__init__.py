"""A lab without any privilege: real control, agents, roots of trust and workers as plain processes of one user.

    devices    processes on addresses of their own in 127/8; PSP over UDP on a port that everybody may bind
    wire       a process between them, in place of br0 and oob0: relays, counts, holds, puts
    endpoints  in memory, held by the factory: real IP packets, but no network stack behind them
    taps       how captures, senders and attacks reach endpoints and wire, in place of packet sockets

Used by `lab.cluster`, `enter`, `restart` and `status` where the fabric is `userspace`. What is not there is said.
"""
