"""Zero-trust isolation of tenants on AI training clusters with DPUs.

ARCHITECTURE.md tells which package owns what and in which direction data flows.
"""

__version__ = "0.1.0"
