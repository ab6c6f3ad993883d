"""What a tenant's endpoint sees of its device: api.sock with the SPIFFE Workload API and SidecarService."""
