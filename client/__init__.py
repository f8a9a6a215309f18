"""The client library: producers, consumers and readers over Pulsar's protocol, on asyncio or blocking.

It guarantees what Pulsar's clients guarantee. Messages of a producer are sent, resent and acknowledged in order. A
message is lost only if its send was reported as failed. It works against any broker that speaks the protocol.
"""
