"""Attacks on a running lab: programs that run where the attacker would.

Each says what it did as JSON and knows nothing of what it should achieve. Called by `lab.demo`, which counts
elsewhere what arrived.
"""
