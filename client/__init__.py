"""The client library: producers, consumers and readers over Pulsar's protocol, on asyncio or blocking.

It guarantees what Pulsar's clients guarantee. Messages of a producer are sent, resent and acknowledged in order. A
message is lost only if its send was reported as failed. It works against any broker that speaks the protocol. Schemas,
chunking, encryption, delayed delivery, retry and dead letter topics and several topics at once are not there yet.
"""
