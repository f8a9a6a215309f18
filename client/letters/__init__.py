"""Retry letter and dead letter topics: messages that an application could not handle, stored again elsewhere.

The consumer does all of it. Brokers know nothing of letters.
"""
