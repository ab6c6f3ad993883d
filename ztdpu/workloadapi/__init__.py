"""Generated from protos/ztdpu/workloadapi: the SPIFFE Workload API. Imported by agent.sidecar alone."""
