"""Parity with Apache Pulsar: scenarios that run on Pulsar and on Magnetar, and what both said.

A scenario (`scenarios`) is written once, against the official client, the admin HTTP and raw frames. `record` runs it
on a real Pulsar and keeps the transcript in `recordings`. `test_parity` runs it on Magnetar and compares. What may
differ, and why, stands in `differences`.
"""
