"""The bench: what this machine makes of ztdpu, beside plaintext and wireguard-go, in one run.

`make bench` runs it (`python -m ztdpu.lab.bench`). One module per section; `figures` does the arithmetic,
`report` prints, `run` puts them in order. Ratios within one run mean something, figures of two runs do not
compare: machines drift.
"""
