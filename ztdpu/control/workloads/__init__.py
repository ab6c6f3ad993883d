"""Jobs, ranks and identities of workloads, signed on the streams of their devices."""
