"""Why a connection with TLS could not be made, in words that say what to do."""

import ssl

from ..protocol.names import TLS_PORT

_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_CA = (2, 18, 19, 20, 21)
_OTHER_NAME = (62, 64)
"""Of OpenSSL's `X509_V_ERR_` codes."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_OWN_CERTIFICATE = (
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "TLSV1_ALERT_DECRYPT_ERROR",
)
ENDED = (
    "it ended the connection behind the TLS handshake. Perhaps it wants a certificate: pass one as "
    "tls_certificate_file_path, and its key as tls_private_key_file_path"
)
"""A server's alert may be lost: this is what is left of it."""


def explain(error: ssl.SSLError, host: str) -> str:
    """Why the broker at `host` cannot be reached, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error, host)
    reason = error.reason or ""
    if reason in _NO_TLS:
        return f"it does not speak TLS on this port: use its port for TLS, {TLS_PORT} by default, or pulsar://"
    if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        return (
            f"it refuses TLS: this may be its port without TLS, so use that for TLS, {TLS_PORT} by default, or "
            "pulsar://"
        )
    if reason in _OWN_CERTIFICATE:
        return (
            f"it refuses the certificate of this client ({reason}): pass a valid one that the broker's CA vouches for "
            "as tls_certificate_file_path, and its key as tls_private_key_file_path"
        )
    if reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"):
        return "it speaks neither TLS 1.2 nor 1.3"
    return f"TLS failed: {reason or error}"


def _of_certificate(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code in _OTHER_NAME:
        return (
            f"its certificate is not for {host}: use a host name of the certificate, or replace it. "
            "tls_validate_hostname=False accepts every certificate of that CA"
        )
    if code == _EXPIRED:
        return "its certificate has expired: its operator has to replace it"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: check the clocks of both machines"
    if code in _UNKNOWN_CA:
        return (
            f"its certificate is of a CA that is not trusted here ({error.verify_message}): pass the file of that CA "
            "as tls_trust_certs_file_path"
        )
    return f"its certificate is refused: {error.verify_message}"
