"""The control service: verifier (RFC 9334), issuer of identities and keys, distributor of policy, audit log."""
