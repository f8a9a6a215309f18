"""Frames of the internal RPC, for peers that tests play."""

from magnetar.protocol.rpc_frames import OVERHEAD_SIZE_BYTES, pack_frame_header


def encode_frame_header(kind: int, code: int, request_id: int, payload_size: int) -> bytes:
    """Everything of a frame before its payload of `payload_size` bytes."""
    return pack_frame_header(OVERHEAD_SIZE_BYTES + payload_size, kind, code, request_id)
