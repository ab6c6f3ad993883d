"""Keys between devices: the SA exchange, tenant epoch keys, leases and rotation rules.

    wire        strict CBOR             kem        hybrid KEM and HPKE
    envelope    signed envelopes        wrapping   an offer's entries, wrapped and sealed
    messages    the four messages       parties    who speaks to whom, sequence numbers
    ring        epoch keys in force     exchange   the machine that uses all of the above
    epoch       epoch keys sealed by control       lease, rotation    the numbers

All pure: `now`, random identifiers and private keys are arguments. Modules are imported by name, so that the
worker can use `lease` and `rotation` without loading the rest.
"""
