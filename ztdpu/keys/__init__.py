"""Keys between devices: the SA exchange, tenant epoch keys, the numbers of a lease.

    wire        strict CBOR             kem        hybrid KEM and HPKE
    envelope    signed envelopes        wrapping   an offer's entries, wrapped and sealed
    messages    the four messages       parties    who speaks to whom, sequence numbers
    ring        epoch keys in force     exchange   the machine that uses all of the above
    epoch       epoch keys sealed by control       lease      deadlines and bounds

All pure: `now`, random identifiers and private keys are arguments. When an SA wears, drains and dies is the
worker's business (`packet.sa_table`, `packet.pipeline`, with the numbers of `model.sa`).
"""
