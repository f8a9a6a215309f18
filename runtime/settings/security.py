"""Who may connect, and what roles may do: authentication and authorization of clients and of the admin's callers."""

from dataclasses import dataclass

from ...protocol.errors import SettingError
from .text import setting


@dataclass(frozen=True)
class SecuritySettings:
    """Keys and passwords stand in files, and a setting names the file: settings are shown and logged."""

    authentication_enabled: bool = setting(
        "authenticationEnabled",
        False,
        "Whether clients have to prove who they are, on connections to brokers and on the admin HTTP.",
    )
    authentication_providers: str = setting(
        "authenticationProviders",
        "",
        "How clients may prove who they are, separated by commas: `token`, `basic`, `tls`, the classes of Pulsar with "
        "these methods, or a class of your own as `module:Class`. The first provider of a method that accepts a "
        "credential counts.",
    )
    authentication_refresh_check_s: int = setting(
        "authenticationRefreshCheckSeconds",
        60,
        "How long a client may take to renew a credential that is over, once the broker asks for it.",
        within=(1, 86_400),
    )
    anonymous_user_role: str = setting(
        "anonymousUserRole",
        "",
        "The role of clients that give no credential. Empty: they are refused.",
    )
    ray_client_role: str = setting(
        "rayClientRole",
        "ray",
        "The role of clients that find the cluster through Ray and give no credential of their own: the coordinator "
        "gives them tokens. Empty: they need a credential.",
        origin="magnetar",
    )
    super_user_roles: str = setting(
        "superUserRoles",
        "",
        "Roles that may do everything, separated by commas.",
    )
    proxy_roles: str = setting(
        "proxyRoles",
        "",
        "Roles of proxies, separated by commas. A proxy names the role of its client, and both need the permission.",
    )
    authenticate_original_auth_data: bool = setting(
        "authenticateOriginalAuthData",
        False,
        "Whether the credential of a proxy's client is checked, too. If not, the broker believes the proxy who it is.",
    )
    authorization_enabled: bool = setting(
        "authorizationEnabled",
        False,
        "Whether roles need permissions. If not, all who are authenticated may do everything.",
    )
    authorization_provider: str = setting(
        "authorizationProvider",
        "",
        "A class of your own that decides, as `module:Class`. Empty: permissions of tenants, namespaces and topics.",
        original="org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider; the default has its rules",
    )
    authorization_allow_wildcards_matching: bool = setting(
        "authorizationAllowWildcardsMatching",
        False,
        "Whether `*` at the beginning or the end of a role in a permission stands for any text.",
    )
    token_secret_key: str = setting(
        "tokenSecretKey",
        "",
        "The key that symmetric tokens are signed with: `file:///path`. The bytes of the file are the key.",
    )
    token_public_key: str = setting(
        "tokenPublicKey",
        "",
        "The public key that verifies asymmetric tokens: `file:///path`. The file has DER or PEM.",
    )
    token_public_alg: str = setting(
        "tokenPublicAlg",
        "RS256",
        "How tokens are signed that `tokenPublicKey` verifies.",
        choices=("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
    )
    token_auth_claim: str = setting("tokenAuthClaim", "sub", "The claim of a token that has the role.")
    token_audience_claim: str = setting(
        "tokenAudienceClaim",
        "",
        "The claim that names whom a token is for, such as `aud`. Empty: a token is for anybody.",
    )
    token_audience: str = setting(
        "tokenAudience", "", "What stands in that claim, alone or in a list, for tokens of this cluster."
    )
    token_allowed_clock_skew_s: int = setting(
        "tokenAllowedClockSkewSeconds",
        0,
        "How much the clock of the maker of tokens may differ.",
        within=(0, 3_600),
    )
    basic_auth_conf: str = setting(
        "basicAuthConf",
        "",
        "The users and the hashes of their passwords: the path of a file as `htpasswd` makes it, with bcrypt, apr1 or "
        "SHA.",
    )
    authenticate_metrics_endpoint: bool = setting(
        "authenticateMetricsEndpoint",
        False,
        "Whether `/metrics` asks for a credential.",
    )

    audit_log_enabled: bool = setting(
        "auditLogEnabled",
        False,
        "Whether brokers and the admin write who did what: lines of JSON in `NAME.audit.jsonl` beside their logs.",
        origin="magnetar",
    )

    @property
    def asks_who_calls(self) -> bool:
        """Whether a stranger may not simply do everything."""
        return self.authentication_enabled and (self.authorization_enabled or not self.anonymous_user_role)

    def check_security(self) -> None:
        """Raises SettingError for what contradicts itself."""
        if self.authentication_enabled and not words(self.authentication_providers) and not self.anonymous_user_role:
            raise SettingError(
                "authenticationEnabled=true needs authenticationProviders: token, basic, tls, or module:Class"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise SettingError("authorizationEnabled=true needs authenticationEnabled=true: else nobody has a role")
        if bool(self.token_audience_claim) != bool(self.token_audience):
            raise SettingError("tokenAudienceClaim and tokenAudience go together: set both, or none")
        if self.anonymous_user_role in words(self.proxy_roles) | words(self.super_user_roles):
            raise SettingError(
                "anonymousUserRole must not be one of proxyRoles or superUserRoles: anybody could do everything"
            )
        if self.ray_client_role in words(self.proxy_roles):
            raise SettingError("rayClientRole must not be one of proxyRoles: all tasks of the Ray could name any role")


def words(text: str) -> frozenset[str]:
    """The roles or names of a list that is separated by commas."""
    return frozenset(word.strip() for word in text.split(",") if word.strip())
