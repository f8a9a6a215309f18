"""Pulsar's protocol, server side: one connection and its families of commands, with the bounds on both.

Left to others: what a topic does with a command (`actors.topics`).
"""
