"""The gateway's side of the handshake: who is authenticated, as whom, and how others are refused."""

import asyncio
import hmac
import re
import time
from typing import Final, Literal, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ...core.clock import now_ms
from ...core.json_values import drop_none
from ...core.model import Caller
from ...core.rpc import RpcError, has_scope
from ...core.session_target import BindSession, SessionAddress, bind_by_key
from ...net.gateway_client import identity
from ...net.gateway_client.acting_headers import is_grant_token
from ...net.gateway_client.handshake import (
    BROWSER_CLIENTS,
    UI_CLIENTS,
    Challenge,
    ConnectParams,
    Credentials,
    DeviceProof,
    signature_payload,
)
from ...net.peers import is_loopback
from ...protocol.gateway_frames import MIN_PROBE_PROTOCOL, PROTOCOL
from .grants import RunGrants, grant_caller
from .pairing import DevicePairing, PairedDevice, PairingReason, upgrade_reason
from .throttle import LoginThrottle

CLOCK_SKEW_MS: Final = 120_000  # milliseconds a device's signature may be away from our clock
LOOPBACK_ORIGINS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

AuthMethod = Literal["token", "device-token"]


class PeerInfo(Struct, frozen=True, kw_only=True):
    """Where a connection comes from."""

    address: str
    origin: str | None = None
    proxied: bool = False
    session_address: SessionAddress | None = None
    """In which session it says it acts."""

    @property
    def is_local(self) -> bool:
        """A program of this machine, with no reverse proxy between that might forward another machine's request."""
        return is_loopback(self.address) and not self.proxied


class AuthResult(Struct, frozen=True, kw_only=True):
    """Authenticated. `connect.scopes` are the granted scopes, which may be fewer than the requested ones."""

    caller: Caller
    connect: ConnectParams
    method: AuthMethod
    device_token: str | None = None
    issued_at_ms: int | None = None
    grant: str | None = None
    """The id of the run grant it authenticated with: it may do only what that run may."""

    @property
    def policy_caller(self) -> Caller | None:
        """The caller whose tool rules bind this connection: a run's, or that of the session an operator's client named;
        None for an operator or a node of its own."""
        return self.caller if self.caller.acts_in_session or self.grant is not None else None


class HandshakeRefused(Exception):
    """Not authenticated: the error to answer, then the close code and reason."""

    def __init__(self, error: RpcError, *, close_code: int = 1008, close_reason: str | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.close_code = close_code
        self.close_reason = str(error) if close_reason is None else close_reason


class Authenticator:
    """One gateway's rules."""

    def __init__(
        self,
        token: str,
        pairing: DevicePairing,
        *,
        origins: frozenset[str] = frozenset(),
        grants: RunGrants | None = None,
        bind_session: BindSession = bind_by_key,
    ) -> None:
        """`origins`: hosts a page may come from, beside this machine's own. `bind_session`: the caller as it acts in
        the session its headers name."""
        self.grants = grants or RunGrants()
        self._bind_session = bind_session
        self._token = token.encode()
        self._pairing = pairing
        self._origins = LOOPBACK_ORIGINS | origins
        self._throttle = LoginThrottle()

    def is_shared_token(self, token: str | None) -> bool:
        """Whether this is the shared token. Takes the same time however much of it is right."""
        return token is not None and hmac.compare_digest(token.encode(), self._token)

    async def authenticate(self, connect: ConnectParams, peer: PeerInfo, challenge: Challenge) -> AuthResult:
        """Raises HandshakeRefused."""
        result = await self._identify(connect, peer, challenge)
        if peer.session_address is None or result.grant is not None or connect.role != "operator":
            return result
        caller = await self._bind_session(result.caller, peer.session_address)
        # Its device may have been removed meanwhile, and it has no connection yet that could have been closed.
        device, token = connect.device, result.device_token
        if device and token and not self._pairing.is_valid_token(device.id, connect.role, token):
            reason = "unauthorized: the device was removed or its token changed; pair it again"
            raise HandshakeRefused(RpcError(reason, details={"code": "AUTH_DEVICE_TOKEN_MISMATCH"}))
        return replace(result, caller=caller)

    async def _identify(self, connect: ConnectParams, peer: PeerInfo, challenge: Challenge) -> AuthResult:
        _check_protocol(connect)
        if connect.role not in ("operator", "node"):
            raise HandshakeRefused(RpcError("invalid role"))
        self._check_origin(connect, peer)
        auth, proof = connect.auth or Credentials(), connect.device
        shared = self.is_shared_token(auth.token) or self.is_shared_token(auth.password)
        if not shared and is_grant_token(auth.token):
            return self._authenticate_grant(connect, peer, auth)
        if not shared and not self._has_device_token(connect, auth):
            self._check_throttle(connect, peer)
        if proof is None:
            return self._authenticate_without_device(connect, peer, auth, shared=shared)
        if not identity.is_library_loaded():
            await asyncio.to_thread(identity.load_library)  # it takes a moment, which others need not wait
        public_key = _check_proof(connect, proof, challenge)
        method: AuthMethod = "token" if shared else self._check_device_token(connect, proof, peer, auth)
        self._throttle.record_success(peer.address)
        if _is_backend(connect) and peer.is_local and peer.origin is None:
            return _make_auth_result(connect, method)
        device = await self._require_pairing(connect, proof, peer, method, public_key)
        return _make_auth_result(
            connect,
            method,
            device_token=self._pairing.device_token(device.device_id, connect.role),
            issued_at_ms=device.grants[connect.role].created_at_ms,
        )

    # ---- the steps -----------------------------------------------------------------------------------------------

    def _check_origin(self, connect: ConnectParams, peer: PeerInfo) -> None:
        if peer.origin is None and connect.client.id not in BROWSER_CLIENTS:
            return
        if peer.origin is not None and _origin_host(peer.origin) in self._origins:
            return
        reason = "origin missing or invalid" if peer.origin is None else "origin not allowed"
        # Word for word as the reference gateway refuses, though this version does not read that key.
        hint = "open the Control UI from the gateway host or allow it in gateway.controlUi.allowedOrigins"
        details = {"code": "CONTROL_UI_ORIGIN_NOT_ALLOWED", "reason": reason}
        raise HandshakeRefused(RpcError(f"origin not allowed ({hint})", details=details))

    def _check_throttle(self, connect: ConnectParams, peer: PeerInfo) -> None:
        wait = self._throttle.retry_after(peer.address, time.monotonic())
        if wait:
            self._refuse(connect, peer, "rate_limited", retry_after=wait)

    def _has_device_token(self, connect: ConnectParams, auth: Credentials) -> bool:
        """Whether it has a paired device's own token. That can't be guessed: the failed attempts of its address were
        other clients'."""
        given = auth.device_token or auth.token
        return bool(connect.device and given and self._pairing.is_valid_token(connect.device.id, connect.role, given))

    def _authenticate_grant(self, connect: ConnectParams, peer: PeerInfo, auth: Credentials) -> AuthResult:
        """A program that a run started: on this machine, with the run's own token in place of the shared one."""
        held = self.grants.find(auth.token)
        proper = _is_backend(connect) and connect.role == "operator" and peer.is_local and peer.origin is None
        if held is None or not proper:
            self._refuse(connect, peer, "grant_ended" if held is None else "grant_misused")
        caller = grant_caller(held.caller)
        narrow = replace(connect, scopes=tuple(sorted(caller.scopes)), device=None)
        return AuthResult(caller=caller, connect=narrow, method="token", grant=held.id)

    def _authenticate_without_device(
        self, connect: ConnectParams, peer: PeerInfo, auth: Credentials, *, shared: bool
    ) -> AuthResult:
        if connect.client.id in UI_CLIENTS:
            reason = "control ui requires device identity (use HTTPS or localhost secure context)"
            raise HandshakeRefused(RpcError(reason, details={"code": "CONTROL_UI_DEVICE_IDENTITY_REQUIRED"}))
        if not shared and (auth.token or auth.password):
            self._refuse(connect, peer, "token_mismatch")
        if not shared or connect.role != "operator":
            details = {"code": "DEVICE_IDENTITY_REQUIRED"}
            raise HandshakeRefused(RpcError("device identity required", kind="NOT_PAIRED", details=details))
        self._throttle.record_success(peer.address)
        trusted = peer.is_local and peer.origin is None and (_is_backend(connect) or _is_cli(connect))
        return _make_auth_result(connect if trusted else replace(connect, scopes=()), "token")

    def _check_device_token(
        self, connect: ConnectParams, proof: DeviceProof, peer: PeerInfo, auth: Credentials
    ) -> AuthMethod:
        """The device's own token in place of the shared one."""
        given = auth.device_token or auth.token
        if not given:
            self._refuse(connect, peer, "token_missing" if not auth.password else "token_mismatch")
        device = self._pairing.find(proof.id)
        if device is None or not self._pairing.is_valid_token(proof.id, connect.role, given):
            self._refuse(connect, peer, "device_token_mismatch" if auth.device_token else "token_mismatch")
        held = frozenset(device.grants[connect.role].scopes)
        if not all(has_scope(held, scope) for scope in connect.scopes):
            self._refuse(connect, peer, "scope_mismatch")
        return "device-token"

    async def _require_pairing(
        self, connect: ConnectParams, proof: DeviceProof, peer: PeerInfo, method: AuthMethod, public_key: str
    ) -> PairedDevice:
        """The paired device. One of this machine is paired here; for others a request is filed and they are refused."""
        known = self._pairing.find(proof.id)
        reason: PairingReason = "not-paired"
        if known is not None:
            upgrade = upgrade_reason(connect, known)
            if upgrade is None:
                return known
            reason = upgrade
        remote = None if peer.is_local else peer.address
        if _may_pair_silently(connect, peer, method, reason):
            return await self._pairing.approve_silently(connect, proof.id, public_key=public_key, remote_ip=remote)
        request = self._pairing.request(connect, proof.id, public_key=public_key, remote_ip=remote)
        requirement, hint = _PAIRING_MESSAGES[reason]
        approved = None if known is None else sorted({s for role in known.roles for s in known.grants[role].scopes})
        details = {
            "code": "PAIRING_REQUIRED", "reason": reason, "requestId": request.request_id, "remediationHint": hint,
            "recommendedNextStep": "wait_then_retry", "retryable": True, "pauseReconnect": False,
            "deviceId": request.device_id, "requestedRole": request.role, "requestedScopes": request.scopes,
            "approvedRoles": None if known is None else known.roles, "approvedScopes": approved,
        }  # fmt: skip
        message = f"pairing required: {requirement}"
        error = RpcError(message, kind="NOT_PAIRED", details=drop_none(details))
        raise HandshakeRefused(error, close_reason=f"{message} (requestId: {request.request_id})")

    def _refuse(
        self, connect: ConnectParams, peer: PeerInfo, reason: str, *, retry_after: float | None = None
    ) -> NoReturn:
        if retry_after is None and reason not in ("scope_mismatch", "grant_ended"):
            self._throttle.record_failure(peer.address, time.monotonic())
        retry = reason == "token_mismatch" and connect.device is not None
        details = {
            "code": f"AUTH_{reason.upper()}",
            "authReason": reason,
            "canRetryWithDeviceToken": retry,
            "recommendedNextStep": "retry_with_device_token" if retry else _NEXT_STEP[reason],
        }
        raise HandshakeRefused(
            RpcError(
                f"unauthorized: {_refusal_message(connect, peer, reason)}",
                details=details,
                retryable=None if retry_after is None else True,
                retry_after_ms=None if retry_after is None else int(retry_after * 1000),
            )
        )


def _check_protocol(connect: ConnectParams) -> None:
    low, high = connect.min_protocol, connect.max_protocol
    probe = connect.client.mode == "probe" and low <= PROTOCOL and high >= MIN_PROBE_PROTOCOL
    is_node = connect.role == "node" and connect.client.mode == "node"
    older_node = is_node and low <= MIN_PROBE_PROTOCOL <= high
    if low <= PROTOCOL <= high or probe or older_node:
        return
    details = {
        "code": "PROTOCOL_MISMATCH", "clientMinProtocol": low, "clientMaxProtocol": high,
        "expectedProtocol": PROTOCOL, "minimumProbeProtocol": MIN_PROBE_PROTOCOL,
    }  # fmt: skip
    raise HandshakeRefused(RpcError("protocol mismatch", details=details), close_code=1002)


def _check_proof(connect: ConnectParams, proof: DeviceProof, challenge: Challenge) -> str:
    """The device's public key, once the signature shows that it holds the private one."""
    try:
        key = identity.read_public_key(proof.public_key)
    except ValueError:
        key = b""
    if not key or identity.device_id(key) != proof.id:
        raise _proof_error("device identity mismatch", "DEVICE_ID_MISMATCH", "device-id-mismatch")
    if abs(proof.signed_at - now_ms()) > CLOCK_SKEW_MS:
        raise _proof_error("device signature expired", "SIGNATURE_EXPIRED", "device-signature-stale")
    if not hmac.compare_digest(proof.nonce.encode(), challenge.nonce.encode()):
        raise _proof_error("device nonce mismatch", "NONCE_MISMATCH", "device-nonce-mismatch")
    for version in ("v3", "v2"):
        payload = signature_payload(
            proof.id, connect.client, role=connect.role, scopes=connect.scopes, signed_at=proof.signed_at,
            token=(connect.auth or Credentials()).signature_secret, nonce=proof.nonce, version=version,
        )  # fmt: skip
        if identity.is_valid_signature(key, payload, proof.signature):
            return identity.encode_base64url(key)
    raise _proof_error("device signature invalid", "SIGNATURE_INVALID", "device-signature")


def _proof_error(message: str, code: str, reason: str) -> HandshakeRefused:
    return HandshakeRefused(RpcError(message, details={"code": f"DEVICE_AUTH_{code}", "reason": reason}))


def _is_backend(connect: ConnectParams) -> bool:
    return (connect.client.id, connect.client.mode) == ("gateway-client", "backend")


def _is_cli(connect: ConnectParams) -> bool:
    return (connect.client.id, connect.client.mode) == ("cli", "cli")


def _may_pair_silently(connect: ConnectParams, peer: PeerInfo, method: AuthMethod, reason: PairingReason) -> bool:
    """Whether a device of this machine is paired without an operator's approval."""
    if not peer.is_local or reason == "metadata-upgrade":
        return False
    if peer.origin is not None and connect.client.id not in BROWSER_CLIENTS | UI_CLIENTS:
        return False
    if reason != "not-paired" and connect.role != "operator":
        return False
    return reason != "scope-upgrade" or method == "token"


def _make_auth_result(
    connect: ConnectParams, method: AuthMethod, *, device_token: str | None = None, issued_at_ms: int | None = None
) -> AuthResult:
    caller = Caller(
        kind="node" if connect.role == "node" else "operator",
        name=connect.device.id if connect.device else connect.client.id,
        scopes=frozenset(connect.scopes),
    )
    return AuthResult(
        caller=caller, connect=connect, method=method, device_token=device_token, issued_at_ms=issued_at_ms
    )


def _refusal_message(connect: ConnectParams, peer: PeerInfo, reason: str) -> str:
    """What is wrong and what to change, by the kind of client."""
    client, mode = connect.client.id, connect.client.mode
    page = client in UI_CLIENTS or mode == "webchat"
    if client == "cli" or mode == "cli":
        hint = _LOCAL_CLI_HINT if peer.is_local else "set gateway.remote.token to match gateway.auth.token"
    else:
        hint = _PAGE_MISMATCH_HINT if page else "provide gateway auth token"
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
_LOCAL_CLI_HINT: Final = "use this gateway's gateway.auth.token or pair the device"
_PAGE_MISMATCH_HINT: Final = "open the dashboard URL and paste the token in Control UI settings"
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

_PAIRING_MESSAGES: Final[dict[PairingReason, tuple[str, str]]] = {
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
