"""Roots of trust, evidence and its appraisal, identities: the verifier's half and the attester's half.

Pure: no clock, randomness, socket or event loop. Control drives the verifier's half, the process
`ztdpu.agent.root_of_trust` the attester's half; both speak only bytes defined here.
"""
