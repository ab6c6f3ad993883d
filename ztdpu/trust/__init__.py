"""Trust: root of trust, evidence, appraisal, attestation results, identities, the operator's roster.

Pure all through: time, nonces, random bytes and keys are arguments. Control appraises with it, agents judge their
peers with it. Nothing is imported here, so that `ztdpu.trust.chain` costs no JOSE library.
"""
