"""Attacks on a running lab: programs that run where the attacker would, one file per attack.

Each says what it did as JSON and knows nothing of what it should achieve. Called by `lab.campaign`, which counts
elsewhere what arrived. Packets are made with scapy.
"""
