"""The gateway's side of the handshake: who comes in, as whom, and with which exact words others are refused."""

import hmac
import re
import time
from typing import Any, Final, Literal, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ...core.model import Caller
from ...core.rpc import Fault, covers
from ...core.session_target import Acting, Place, by_session
from ...net.gateway_client import identity
from ...net.gateway_client.acting_headers import is_grant
from ...net.gateway_client.handshake import (
    BROWSER_CLIENTS,
    UI_CLIENTS,
    Connect,
    Credentials,
    DeviceProof,
    signing_words,
)
from ...protocol.gateway_frames import OLDEST_PROBE, PROTOCOL
from .grants import Grants, granted
from .pairing import Pairing, Reason, now_ms
from .throttle import Throttle, is_loopback

CLOCK_SLACK: Final = 120_000  # milliseconds a device's signature may be away from our clock
LOOPBACK_ORIGINS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
PROXY_HEADERS: Final = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded")

AuthMethod = Literal["token", "device-token"]


class Visitor(Struct, frozen=True, kw_only=True):
    """Where a connection comes from."""

    address: str
    origin: str | None = None
    proxied: bool = False
    place: Place | None = None
    """In which session it says it acts."""

    @property
    def local(self) -> bool:
        """A program of this machine, with nothing in between that might speak for somebody else."""
        return is_loopback(self.address) and not self.proxied


class Challenge(Struct, frozen=True):
    nonce: str
    ts: int


class Admitted(Struct, frozen=True, kw_only=True):
    """Let in. `connect.scopes` is what was granted, which may be less than was asked."""

    caller: Caller
    connect: Connect
    method: AuthMethod
    device_token: str | None = None
    issued_at_ms: int | None = None
    grant: str | None = None
    """The id of the run grant it came in with: then only what that run may do is open."""

    @property
    def bound(self) -> Caller | None:
        """Whose tools are all that this connection opens: a run's, or those of the session that an operator's client
        named; None: it is an operator's or a node's own."""
        return self.caller if self.caller.bound else None


class Refused(Exception):
    """Not let in: the fault to answer, then the close code and reason."""

    def __init__(self, fault: Fault, *, close: int = 1008, reason: str | None = None) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.close = close
        self.reason = str(fault) if reason is None else reason


class Door:
    """One gateway's rules. `origins` are hosts a page may come from, beside this machine's own."""

    def __init__(
        self,
        token: str,
        pairing: Pairing,
        *,
        origins: frozenset[str] = frozenset(),
        grants: Grants | None = None,
    ) -> None:
        self.grants = grants or Grants()
        self.acting: Acting = by_session
        """Set by the caretaker, who knows sessions."""
        self._token = token.encode()
        self._pairing = pairing
        self._origins = LOOPBACK_ORIGINS | origins
        self._throttle = Throttle()

    def knows(self, token: str | None) -> bool:
        """Whether this is the shared token. Takes the same time however much of it is right."""
        return token is not None and hmac.compare_digest(token.encode(), self._token)

    async def admit(self, connect: Connect, visitor: Visitor, challenge: Challenge) -> Admitted:
        """Raises Refused."""
        admitted = await self._admit(connect, visitor, challenge)
        if visitor.place is None or admitted.grant is not None or admitted.connect.role != "operator":
            return admitted
        acting = await self.acting(admitted.caller, visitor.place)
        self._check_standing(admitted)  # it may have lost it in the meantime, and is no guest yet that could be cut off
        return replace(admitted, caller=acting)

    def _check_standing(self, admitted: Admitted) -> None:
        """Raises Refused unless the device still holds the token it was admitted with."""
        device, token = admitted.connect.device, admitted.device_token
        if (
            device is not None
            and token is not None
            and not self._pairing.holds(device.id, admitted.connect.role, token)
        ):
            details = {"code": "AUTH_DEVICE_TOKEN_MISMATCH"}
            raise Refused(
                Fault("unauthorized: the device was removed or its token changed; pair it again", details=details)
            )

    async def _admit(self, connect: Connect, visitor: Visitor, challenge: Challenge) -> Admitted:
        _check_protocol(connect)
        if connect.role not in ("operator", "node"):
            raise Refused(Fault("invalid role"))
        self._check_origin(connect, visitor)
        auth = connect.auth or Credentials()
        shared = self.knows(auth.token) or self.knows(auth.password)
        if not shared and is_grant(auth.token):
            return self._by_grant(connect, visitor, auth)
        if not shared and not self._holds_device_token(connect, auth):
            self._check_throttle(connect, visitor)
        if connect.device is None:
            return self._without_device(connect, visitor, auth, shared=shared)
        public_key = _check_proof(connect, connect.device, challenge)
        method: AuthMethod = "token" if shared else self._by_device_token(connect, visitor, auth)
        self._throttle.succeed(visitor.address)
        if _is_backend(connect) and visitor.local and visitor.origin is None:
            return _admitted(connect, method)
        await self._pair(connect, visitor, method, public_key)
        device = self._pairing.find(connect.device.id)
        assert device is not None
        return _admitted(
            connect,
            method,
            device_token=self._pairing.token(device.device_id, connect.role),
            issued_at_ms=device.grants[connect.role].created_at_ms,
        )

    # ---- the steps -----------------------------------------------------------------------------------------------

    def _check_origin(self, connect: Connect, visitor: Visitor) -> None:
        if visitor.origin is None and connect.client.id not in BROWSER_CLIENTS:
            return
        if visitor.origin is not None and _origin_host(visitor.origin) in self._origins:
            return
        reason = "origin missing or invalid" if visitor.origin is None else "origin not allowed"
        words = "open the Control UI from the gateway host or allow it in gateway.controlUi.allowedOrigins"
        details = {"code": "CONTROL_UI_ORIGIN_NOT_ALLOWED", "reason": reason}
        raise Refused(Fault(f"origin not allowed ({words})", details=details))

    def _check_throttle(self, connect: Connect, visitor: Visitor) -> None:
        wait = self._throttle.wait(visitor.address, time.monotonic())
        if wait:
            self._unauthorized(connect, visitor, "rate_limited", retry_after=wait)

    def _holds_device_token(self, connect: Connect, auth: Credentials) -> bool:
        """Whether it comes with a paired device's own token, which nobody guesses: others of its address did."""
        given = auth.device_token or auth.token
        return bool(connect.device and given and self._pairing.holds(connect.device.id, connect.role, given))

    def _by_grant(self, connect: Connect, visitor: Visitor, auth: Credentials) -> Admitted:
        """A program a run started: of this machine, with the run's own token in place of the shared one."""
        held = self.grants.find(auth.token)
        proper = _is_backend(connect) and connect.role == "operator" and visitor.local and visitor.origin is None
        if held is None or not proper:
            self._unauthorized(connect, visitor, "grant_ended" if held is None else "grant_misused")
        caller = granted(held.caller)
        narrow = replace(connect, scopes=tuple(sorted(caller.scopes)), device=None)
        return Admitted(caller=caller, connect=narrow, method="token", grant=held.id)

    def _without_device(self, connect: Connect, visitor: Visitor, auth: Credentials, *, shared: bool) -> Admitted:
        if connect.client.id in UI_CLIENTS:
            words = "control ui requires device identity (use HTTPS or localhost secure context)"
            raise Refused(Fault(words, details={"code": "CONTROL_UI_DEVICE_IDENTITY_REQUIRED"}))
        if not shared and (auth.token or auth.password):
            self._unauthorized(connect, visitor, "token_mismatch")
        if not shared or connect.role != "operator":
            details = {"code": "DEVICE_IDENTITY_REQUIRED"}
            raise Refused(Fault("device identity required", kind="NOT_PAIRED", details=details))
        self._throttle.succeed(visitor.address)
        trusted = visitor.local and visitor.origin is None and (_is_backend(connect) or _is_cli(connect))
        return _admitted(connect if trusted else replace(connect, scopes=()), "token")

    def _by_device_token(self, connect: Connect, visitor: Visitor, auth: Credentials) -> AuthMethod:
        """The device's own token stands in for the shared one."""
        assert connect.device is not None
        given = auth.device_token or auth.token
        if not given:
            self._unauthorized(connect, visitor, "token_missing" if not auth.password else "token_mismatch")
        if not self._pairing.holds(connect.device.id, connect.role, given):
            self._unauthorized(connect, visitor, "device_token_mismatch" if auth.device_token else "token_mismatch")
        device = self._pairing.find(connect.device.id)
        assert device is not None
        held = frozenset(device.grants[connect.role].scopes)
        if not all(covers(held, scope) for scope in connect.scopes):
            self._unauthorized(connect, visitor, "scope_mismatch")
        return "device-token"

    async def _pair(self, connect: Connect, visitor: Visitor, method: AuthMethod, public_key: str) -> None:
        reason = self._pairing.wants(connect)
        if reason is None:
            return
        remote = None if visitor.local else visitor.address
        if _is_silent(connect, visitor, method, reason, known=reason != "not-paired"):
            await self._pairing.admit_silently(connect, public_key=public_key, remote_ip=remote)
            return
        asked = self._pairing.ask(connect, public_key=public_key, remote_ip=remote)
        requirement, hint = _PAIRING_WORDS[reason]
        details: dict[str, Any] = {
            "code": "PAIRING_REQUIRED",
            "reason": reason,
            "requestId": asked.request_id,
            "remediationHint": hint,
            "recommendedNextStep": "wait_then_retry",
            "retryable": True,
            "pauseReconnect": False,
            "deviceId": asked.device_id,
            "requestedRole": asked.role,
            "requestedScopes": asked.scopes,
        }
        known = self._pairing.find(asked.device_id)
        if known is not None:
            details["approvedRoles"] = known.roles
            details["approvedScopes"] = sorted({s for role in known.roles for s in known.grants[role].scopes})
        words = f"pairing required: {requirement}"
        fault = Fault(words, kind="NOT_PAIRED", details=details)
        raise Refused(fault, reason=f"{words} (requestId: {asked.request_id})")

    def _unauthorized(
        self, connect: Connect, visitor: Visitor, reason: str, *, retry_after: float | None = None
    ) -> NoReturn:
        if retry_after is None and reason not in ("scope_mismatch", "grant_ended"):
            self._throttle.fail(visitor.address, time.monotonic())
        retry = reason == "token_mismatch" and connect.device is not None
        details = {
            "code": f"AUTH_{reason.upper()}",
            "authReason": reason,
            "canRetryWithDeviceToken": retry,
            "recommendedNextStep": "retry_with_device_token" if retry else _NEXT_STEP[reason],
        }
        raise Refused(
            Fault(
                f"unauthorized: {_words(connect, visitor, reason)}",
                details=details,
                retryable=None if retry_after is None else True,
                retry_after_ms=None if retry_after is None else int(retry_after * 1000),
            )
        )


def _check_protocol(connect: Connect) -> None:
    low, high = connect.min_protocol, connect.max_protocol
    probe = connect.client.mode == "probe" and low <= PROTOCOL and high >= OLDEST_PROBE
    is_node = connect.role == "node" and connect.client.mode == "node"
    older_node = is_node and low <= OLDEST_PROBE <= high
    if low <= PROTOCOL <= high or probe or older_node:
        return
    details = {
        "code": "PROTOCOL_MISMATCH",
        "clientMinProtocol": low,
        "clientMaxProtocol": high,
        "expectedProtocol": PROTOCOL,
        "minimumProbeProtocol": OLDEST_PROBE,
    }
    raise Refused(Fault("protocol mismatch", details=details), close=1002)


def _check_proof(connect: Connect, proof: DeviceProof, challenge: Challenge) -> str:
    """The device's public key, once it has shown that it holds the private one."""
    try:
        key = identity.read_public_key(proof.public_key)
    except ValueError:
        key = b""
    if not key or identity.device_id(key) != proof.id:
        raise _bad_proof("device identity mismatch", "DEVICE_ID_MISMATCH", "device-id-mismatch")
    if abs(proof.signed_at - now_ms()) > CLOCK_SLACK:
        raise _bad_proof("device signature expired", "SIGNATURE_EXPIRED", "device-signature-stale")
    if not hmac.compare_digest(proof.nonce.encode(), challenge.nonce.encode()):
        raise _bad_proof("device nonce mismatch", "NONCE_MISMATCH", "device-nonce-mismatch")
    for version in ("v3", "v2"):
        words = signing_words(
            proof.id,
            connect.client,
            role=connect.role,
            scopes=connect.scopes,
            signed_at=proof.signed_at,
            token=(connect.auth or Credentials()).signed,
            nonce=proof.nonce,
            version=version,
        )
        if identity.is_signed(key, words, proof.signature):
            return identity.to_base64url(key)
    raise _bad_proof("device signature invalid", "SIGNATURE_INVALID", "device-signature")


def _bad_proof(words: str, code: str, reason: str) -> Refused:
    return Refused(Fault(words, details={"code": f"DEVICE_AUTH_{code}", "reason": reason}))


def _is_backend(connect: Connect) -> bool:
    return (connect.client.id, connect.client.mode) == ("gateway-client", "backend")


def _is_cli(connect: Connect) -> bool:
    return (connect.client.id, connect.client.mode) == ("cli", "cli")


def _is_silent(connect: Connect, visitor: Visitor, method: AuthMethod, reason: Reason, *, known: bool) -> bool:
    """Whether a device of this machine needs nobody's yes."""
    if not visitor.local or reason == "metadata-upgrade":
        return False
    if visitor.origin is not None and connect.client.id not in BROWSER_CLIENTS | UI_CLIENTS:
        return False
    if known and connect.role != "operator":
        return False
    return reason != "scope-upgrade" or method == "token"


def _admitted(
    connect: Connect, method: AuthMethod, *, device_token: str | None = None, issued_at_ms: int | None = None
) -> Admitted:
    caller = Caller(
        kind="node" if connect.role == "node" else "operator",
        name=connect.device.id if connect.device else connect.client.id,
        scopes=frozenset(connect.scopes),
    )
    return Admitted(caller=caller, connect=connect, method=method, device_token=device_token, issued_at_ms=issued_at_ms)


def _words(connect: Connect, visitor: Visitor, reason: str) -> str:
    """What is wrong and what to change, by the kind of client that reads it."""
    client, mode = connect.client.id, connect.client.mode
    page = client in UI_CLIENTS or mode == "webchat"
    if client == "cli" or mode == "cli":
        hint = (
            "use this gateway's gateway.auth.token or pair the device"
            if visitor.local
            else "set gateway.remote.token to match gateway.auth.token"
        )
    else:
        hint = (
            "open the dashboard URL and paste the token in Control UI settings"
            if page
            else "provide gateway auth token"
        )
    return {
        "token_missing": f"gateway token missing ({_PAGE_HINT if page else hint})",
        "token_mismatch": f"gateway token mismatch ({hint})",
        "device_token_mismatch": "device token mismatch (rotate/reissue device token)",
        "scope_mismatch": "device token scope mismatch (re-pair or approve scope upgrade)",
        "grant_ended": "this run's token has ended (the run is over; start another)",
        "grant_misused": "a run's token is for its own programs (connect from this machine as gateway-client, backend)",
        "rate_limited": "too many failed authentication attempts (retry later)",
    }[reason]


def _origin_host(origin: str) -> str:
    """The host an Origin header names, without port; brackets kept around an IPv6 address."""
    scheme, separator, rest = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return ""
    found = _ORIGIN_HOST.fullmatch(rest.lower())
    return found[1] if found is not None else ""


_ORIGIN_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:/@\[\]]*)(?::[0-9]*)?(?:/.*)?")
_PAGE_HINT: Final = "paste in Control UI settings or openclaw doctor --generate-gateway-token; restart"

_NEXT_STEP: Final = {
    "token_missing": "update_auth_configuration",
    "token_mismatch": "update_auth_credentials",
    "device_token_mismatch": "update_auth_credentials",
    "scope_mismatch": "review_auth_configuration",
    "grant_ended": "update_auth_credentials",
    "grant_misused": "review_auth_configuration",
    "rate_limited": "wait_then_retry",
}

_PAIRING_WORDS: Final[dict[Reason, tuple[str, str]]] = {
    "not-paired": ("device is not approved yet", "Approve this device from the pending pairing requests."),
    "role-upgrade": (
        "device is asking for a higher role than currently approved",
        "Review the requested role upgrade, then approve the pending request.",
    ),
    "scope-upgrade": (
        "device is asking for more scopes than currently approved",
        "Review the requested scopes, then approve the pending upgrade.",
    ),
    "metadata-upgrade": (
        "device identity changed and must be re-approved",
        "Review the refreshed device details, then approve the pending request.",
    ),
}
