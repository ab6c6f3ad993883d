"""SPDM 1.1 and 1.2 (DMTF DSP0274) without any transport: messages, transcripts, requester and responder.

`requester` is driven by control, `responder` by the root of trust; both take and give whole messages.
"""
