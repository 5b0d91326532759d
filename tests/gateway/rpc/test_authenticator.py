"""Who comes in, as whom, and the exact words for the others: each row as a real gateway answered it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.claw_methods import GRANT_PREFIX
from openclaw_mcp.core.clock import now_ms
from openclaw_mcp.core.model import Caller
from openclaw_mcp.core.rpc import ADMIN, PAIRING, READ, WRITE, RpcError
from openclaw_mcp.core.session_target import SessionAddress
from openclaw_mcp.gateway.rpc.authenticator import Authenticator, AuthResult, HandshakeRefused, PeerInfo
from openclaw_mcp.gateway.rpc.grants import RunGrants
from openclaw_mcp.gateway.rpc.pairing import DevicePairing, MemoryPairingStorage
from openclaw_mcp.gateway.rpc.throttle import LOCKOUT_SECONDS, MAX_FAILURES, LoginThrottle, RateLimiter
from openclaw_mcp.net.gateway_client.handshake import (
    Challenge,
    ClientInfo,
    ClientProfile,
    ConnectParams,
    Credentials,
    signature_payload,
)
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity

from .gateways import BACKEND, NODE, TOKEN, TUI

CLI = ClientInfo(id="cli", version="1", platform="linux", mode="cli")
PAGE = ClientInfo(id="openclaw-control-ui", version="1", platform="web", mode="webchat")
PROBE = ClientInfo(id="openclaw-probe", version="1", platform="linux", mode="probe")
HERE = PeerInfo(address="127.0.0.1")
PROXIED = PeerInfo(address="127.0.0.1", proxied=True)
AWAY = PeerInfo(address="192.0.2.7")
GOOD = Credentials(token=TOKEN)
DEVICE = DeviceIdentity(b"\7" * 32)


class Entrance:
    """An authenticator with an empty pairing store."""

    def __init__(self) -> None:
        self.pairing = DevicePairing(MemoryPairingStorage())
        self.door = Authenticator(TOKEN, self.pairing)

    def admit(
        self,
        client: ClientInfo,
        visitor: PeerInfo = HERE,
        credentials: Credentials = GOOD,
        *,
        role: Any = "operator",
        scopes: tuple[str, ...] = (READ,),
        signer: DeviceIdentity | None = None,
        change: Any = None,
    ) -> AuthResult:
        challenge = Challenge("nonce", now_ms())
        profile = ClientProfile(client=client, role=role, scopes=scopes)
        connect = profile.build_connect(challenge, credentials, signer)
        if change is not None:
            connect = change(connect)
        return asyncio.run(self.door.authenticate(connect, visitor, challenge))

    def refused(self, *args: Any, **more: Any) -> HandshakeRefused:
        with pytest.raises(HandshakeRefused) as caught:
            self.admit(*args, **more)
        return caught.value

    def code(self, *args: Any, **more: Any) -> str:
        return str(self.refused(*args, **more).error.details["code"])


@pytest.mark.parametrize(
    ("client", "visitor", "scopes"),
    [
        (BACKEND, HERE, (READ,)),
        (CLI, HERE, (READ,)),
        (ClientInfo(id="test", version="1", platform="linux", mode="test"), HERE, ()),
        (ClientInfo(id="cli", version="1", platform="linux", mode="backend"), HERE, ()),
        (PROBE, HERE, ()),
        (BACKEND, AWAY, ()),
        (CLI, AWAY, ()),
        (CLI, PROXIED, ()),
        (CLI, PeerInfo(address="127.0.0.1", origin="http://localhost:3000"), ()),
    ],
)
def test_the_shared_token_alone_keeps_its_scopes_only_for_programs_of_this_machine(
    client: ClientInfo, visitor: PeerInfo, scopes: tuple[str, ...]
) -> None:
    admitted = Entrance().admit(client, visitor)
    assert admitted.connect.scopes == scopes
    assert admitted.caller.scopes == frozenset(scopes)
    assert admitted.device_token is None


def test_the_secret_is_taken_as_token_or_password() -> None:
    assert Entrance().admit(BACKEND, credentials=Credentials(password=TOKEN)).method == "token"


@pytest.mark.parametrize(
    ("client", "role", "credentials", "code"),
    [
        (BACKEND, "operator", Credentials(), "DEVICE_IDENTITY_REQUIRED"),
        (BACKEND, "operator", Credentials(token="wrong"), "AUTH_TOKEN_MISMATCH"),
        (BACKEND, "operator", Credentials(password="wrong"), "AUTH_TOKEN_MISMATCH"),
        (NODE, "node", GOOD, "DEVICE_IDENTITY_REQUIRED"),
        (TUI, "operator", GOOD, "CONTROL_UI_DEVICE_IDENTITY_REQUIRED"),
        (PAGE, "operator", GOOD, "CONTROL_UI_ORIGIN_NOT_ALLOWED"),
    ],
)
def test_who_has_no_device_is_refused(client: ClientInfo, role: str, credentials: Credentials, code: str) -> None:
    assert Entrance().code(client, credentials=credentials, role=role) == code


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://127.0.0.1.evil.example:80", "file://x"])
def test_a_page_from_elsewhere_is_refused_whatever_it_carries(origin: str) -> None:
    visitor = PeerInfo(address="127.0.0.1", origin=origin)
    assert Entrance().code(PAGE, visitor, signer=DEVICE) == "CONTROL_UI_ORIGIN_NOT_ALLOWED"
    assert Entrance().code(CLI, visitor) == "CONTROL_UI_ORIGIN_NOT_ALLOWED"


def test_a_page_of_this_machine_with_a_device_is_admitted() -> None:
    visitor = PeerInfo(address="127.0.0.1", origin="http://127.0.0.1:18789")
    assert Entrance().admit(PAGE, visitor, signer=DEVICE).device_token is not None


def test_versions_and_roles() -> None:
    entrance = Entrance()

    def speaks(low: int, high: int) -> Any:
        return lambda connect: msgspec.structs.replace(connect, min_protocol=low, max_protocol=high)

    refused = entrance.refused(BACKEND, change=speaks(3, 3))
    assert (refused.close_code, refused.close_reason) == (1002, "protocol mismatch")
    assert refused.error.details == {
        "code": "PROTOCOL_MISMATCH",
        "clientMinProtocol": 3,
        "clientMaxProtocol": 3,
        "expectedProtocol": 4,
        "minimumProbeProtocol": 3,
    }
    assert entrance.refused(BACKEND, change=speaks(5, 9)).close_code == 1002
    assert entrance.admit(BACKEND, change=speaks(1, 9))
    assert entrance.admit(PROBE, change=speaks(3, 3))
    assert entrance.admit(NODE, role="node", scopes=(), signer=DEVICE, change=speaks(3, 3))
    role = entrance.refused(BACKEND, change=lambda connect: msgspec.structs.replace(connect, role="boss"))
    assert str(role.error) == "invalid role"


@pytest.mark.parametrize(
    ("proof", "words", "code"),
    [
        ({"signature": "AAAA"}, "device signature invalid", "DEVICE_AUTH_SIGNATURE_INVALID"),
        ({"nonce": "other"}, "device nonce mismatch", "DEVICE_AUTH_NONCE_MISMATCH"),
        ({"signed_at": 1700000000000}, "device signature expired", "DEVICE_AUTH_SIGNATURE_EXPIRED"),
        ({"id": "ab" * 32}, "device identity mismatch", "DEVICE_AUTH_DEVICE_ID_MISMATCH"),
        ({"public_key": "AAAA"}, "device identity mismatch", "DEVICE_AUTH_DEVICE_ID_MISMATCH"),
    ],
)
def test_a_proof_that_does_not_hold_is_refused(proof: dict[str, Any], words: str, code: str) -> None:
    def change(connect: ConnectParams) -> ConnectParams:
        assert connect.device is not None
        return msgspec.structs.replace(connect, device=msgspec.structs.replace(connect.device, **proof))

    refused = Entrance().refused(TUI, signer=DEVICE, change=change)
    assert str(refused.error) == words
    assert refused.error.details["code"] == code


@pytest.mark.parametrize("field", ["scopes", "role", "client", "auth"])
def test_what_a_device_signed_cannot_be_changed_on_the_way(field: str) -> None:
    changed: dict[str, Any] = {
        "scopes": (ADMIN,),
        "role": "node",
        "client": CLI,
        "auth": Credentials(password=TOKEN),
    }

    def change(connect: ConnectParams) -> ConnectParams:
        return msgspec.structs.replace(connect, **{field: changed[field]})

    assert Entrance().code(TUI, signer=DEVICE, change=change) == "DEVICE_AUTH_SIGNATURE_INVALID"


def test_the_older_signature_is_accepted() -> None:
    def change(connect: ConnectParams) -> ConnectParams:
        proof = connect.device
        assert proof is not None
        words = signature_payload(
            proof.id,
            connect.client,
            role=connect.role,
            scopes=connect.scopes,
            signed_at=proof.signed_at,
            token=TOKEN,
            nonce=proof.nonce,
            version="v2",
        )
        return msgspec.structs.replace(connect, device=msgspec.structs.replace(proof, signature=DEVICE.sign(words)))

    assert Entrance().admit(TUI, signer=DEVICE, change=change)


def test_a_device_from_elsewhere_waits_until_an_operator_who_may_says_yes() -> None:
    entrance = Entrance()
    refused = entrance.refused(TUI, AWAY, signer=DEVICE, scopes=(READ, ADMIN))
    details = refused.error.details
    assert refused.error.kind == "NOT_PAIRED"
    assert str(refused.error) == "pairing required: device is not approved yet"
    assert refused.close_reason.endswith(f"(requestId: {details['requestId']})")
    assert (details["code"], details["reason"]) == ("PAIRING_REQUIRED", "not-paired")
    [request] = entrance.pairing.list_pending()
    assert (request.device_id, request.remote_ip) == (DEVICE.id, AWAY.address)
    with pytest.raises(RpcError, match=r"missing scope: operator\.admin"):
        asyncio.run(entrance.pairing.approve(request.request_id, by=frozenset({PAIRING, WRITE})))
    asyncio.run(entrance.pairing.approve(request.request_id, by=frozenset({ADMIN})))
    admitted = entrance.admit(TUI, AWAY, signer=DEVICE, scopes=(READ, ADMIN))
    assert admitted.connect.scopes == (READ, ADMIN)
    assert admitted.device_token is not None
    assert not entrance.pairing.list_pending()


def test_a_devices_token_covers_what_was_approved_and_no_more() -> None:
    entrance = Entrance()
    token = entrance.admit(TUI, signer=DEVICE).device_token
    assert token is not None
    for credentials in (Credentials(token=token), Credentials(device_token=token)):
        assert entrance.admit(TUI, AWAY, credentials, signer=DEVICE).method == "device-token"
        assert entrance.code(TUI, HERE, credentials, signer=DEVICE, scopes=(ADMIN,)) == "AUTH_SCOPE_MISMATCH"
    other = DeviceIdentity(b"\1" * 32)
    assert entrance.code(TUI, HERE, Credentials(device_token=token), signer=other) == "AUTH_DEVICE_TOKEN_MISMATCH"
    assert entrance.code(TUI, HERE, Credentials(token=token), signer=other) == "AUTH_TOKEN_MISMATCH"
    assert entrance.code(TUI, HERE, Credentials(), signer=other) == "AUTH_TOKEN_MISSING"
    assert entrance.code(TUI, HERE, Credentials(), signer=DEVICE) == "AUTH_TOKEN_MISSING"
    asyncio.run(entrance.pairing.revoke(DEVICE.id, "operator"))
    assert entrance.code(TUI, HERE, Credentials(device_token=token), signer=DEVICE) == "AUTH_DEVICE_TOKEN_MISMATCH"


def test_what_is_silent_on_this_machine_and_what_is_not() -> None:
    entrance = Entrance()
    entrance.admit(TUI, signer=DEVICE)
    assert entrance.admit(TUI, signer=DEVICE, scopes=(ADMIN,)).connect.scopes == (ADMIN,)  # more scopes: silent
    renamed = ClientInfo(id="openclaw-tui", version="1", platform="darwin", mode="ui")
    metadata = entrance.refused(renamed, signer=DEVICE)
    assert metadata.error.details["reason"] == "metadata-upgrade"
    assert metadata.error.details["approvedRoles"] == ("operator",)
    role = entrance.refused(NODE, role="node", scopes=(), signer=DEVICE)
    assert role.error.details["reason"] == "role-upgrade"
    assert entrance.refused(TUI, PROXIED, signer=DeviceIdentity(b"\3" * 32)).error.details["reason"] == "not-paired"
    assert len(entrance.pairing.list_pending()) == 2  # one request per device: the later replaced the earlier


def test_wrong_guesses_from_elsewhere_lock_their_address_out_and_no_other() -> None:
    entrance = Entrance()
    for _ in range(MAX_FAILURES):
        assert entrance.code(BACKEND, AWAY, Credentials(token="wrong")) == "AUTH_TOKEN_MISMATCH"
    refused = entrance.refused(BACKEND, AWAY, Credentials(token="wrong"))
    assert refused.error.details["code"] == "AUTH_RATE_LIMITED"
    assert refused.error.retryable is True
    assert 0 < (refused.error.retry_after_ms or 0) <= LOCKOUT_SECONDS * 1000
    assert entrance.code(BACKEND, PeerInfo(address="192.0.2.8"), Credentials(token="no")) == "AUTH_TOKEN_MISMATCH"
    assert entrance.admit(BACKEND, AWAY)  # a client that knows the token is not locked out by others' guesses
    for _ in range(MAX_FAILURES * 3):
        assert entrance.code(BACKEND, HERE, Credentials(token="wrong")) == "AUTH_TOKEN_MISMATCH"


def test_a_lockout_ends_and_memory_is_bounded() -> None:
    throttle = LoginThrottle()
    for _ in range(MAX_FAILURES):
        throttle.record_failure("192.0.2.1", 0.0)
    assert throttle.retry_after("192.0.2.1", 1.0) == LOCKOUT_SECONDS - 1.0
    assert throttle.retry_after("192.0.2.1", LOCKOUT_SECONDS) == 0.0
    for number in range(11_000):
        throttle.record_failure(f"10.0.{number >> 8}.{number & 255}", 1.0)
    assert len(throttle._failures) <= 10_000
    slow = LoginThrottle()
    for number in range(50):
        slow.record_failure("192.0.2.1", number * 30.0)
    assert slow.retry_after("192.0.2.1", 50 * 30.0) == 0.0


def test_an_allowance_comes_back_with_time() -> None:
    allowance = RateLimiter()
    assert [allowance.take("a", 2, float(second)) for second in (0, 10, 20)] == [0.0, 0.0, 40.0]
    assert allowance.take("b", 2, 20.0) == 0.0
    assert allowance.take("a", 2, 61.0) == 0.0


@pytest.mark.parametrize("as_device_token", [True, False])
def test_wrong_tokens_of_others_at_its_address_do_not_lock_a_paired_device_out(as_device_token: bool) -> None:
    entrance = Entrance()
    token = entrance.admit(CLI, signer=DEVICE).device_token
    for _ in range(MAX_FAILURES):
        entrance.refused(CLI, AWAY, Credentials(token="wrong"))
    assert "too many" in str(entrance.refused(CLI, AWAY, Credentials(token="wrong")).error)

    own = Credentials(device_token=token) if as_device_token else Credentials(token=token)
    assert entrance.admit(CLI, AWAY, own, signer=DEVICE).method == "device-token"
    assert "too many" in str(entrance.refused(CLI, AWAY, Credentials(device_token="guess"), signer=DEVICE).error)


@pytest.mark.parametrize("how", ["revoked", "removed", "rotated"])
@pytest.mark.parametrize("with_token", [True, False])
def test_a_device_that_loses_its_standing_while_it_comes_in_stays_outside(how: str, with_token: bool) -> None:
    entrance = Entrance()
    token = entrance.admit(CLI, signer=DEVICE).device_token
    place = PeerInfo(address="127.0.0.1", session_address=SessionAddress(session="agent:main:main"))
    credentials = GOOD if with_token else Credentials(device_token=token)
    assert entrance.admit(CLI, place, credentials, signer=DEVICE).policy_caller is not None

    async def loses_it(caller: Caller, at: SessionAddress) -> Caller:
        if how == "revoked":
            await entrance.pairing.revoke(DEVICE.id, "operator")
        elif how == "removed":
            await entrance.pairing.remove(DEVICE.id)
        else:
            await entrance.pairing.rotate(DEVICE.id, "operator", None, by=frozenset({ADMIN}))
        return caller

    entrance.door = Authenticator(TOKEN, entrance.pairing, bind_session=loses_it)
    assert entrance.code(CLI, place, credentials, signer=DEVICE) == "AUTH_DEVICE_TOKEN_MISMATCH"


# ---- origins, versions, kinds of programs, one by one ----


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "https://localhost:8443", "http://LOCALHOST/", "http://127.0.0.1:3000", "http://[::1]:18789"],
)
def test_a_page_of_this_machine_may_come_by_any_of_its_names(origin: str) -> None:
    visitor = PeerInfo(address="127.0.0.1", origin=origin)

    assert Entrance().admit(PAGE, visitor, signer=DEVICE).caller.kind == "operator"


@pytest.mark.parametrize("origin", ["ftp://localhost", "localhost", "http://localhost@evil.example", "http://evil"])
def test_what_only_resembles_one_may_not(origin: str) -> None:
    refused = Entrance().refused(PAGE, PeerInfo(address="127.0.0.1", origin=origin), signer=DEVICE)

    assert refused.error.details == {"code": "CONTROL_UI_ORIGIN_NOT_ALLOWED", "reason": "origin not allowed"}


def test_a_page_that_names_no_origin_is_refused_with_that_reason() -> None:
    refused = Entrance().refused(PAGE, signer=DEVICE)

    assert refused.error.details["reason"] == "origin missing or invalid"
    assert refused.close_code == 1008
    assert str(refused) == refused.close_reason == str(refused.error)


@pytest.mark.parametrize(
    ("client", "role", "low", "high", "wanted"),
    [
        (BACKEND, "operator", 4, 4, True),
        (BACKEND, "operator", 1, 4, True),
        (BACKEND, "operator", 4, 9, True),
        (BACKEND, "operator", 3, 3, False),
        (BACKEND, "operator", 5, 5, False),
        (PROBE, "operator", 1, 3, True),
        (PROBE, "operator", 4, 4, True),
        (PROBE, "operator", 1, 2, False),
        (PROBE, "operator", 5, 9, False),
        (NODE, "node", 3, 3, True),
        (NODE, "node", 1, 3, True),
        (NODE, "node", 1, 2, False),
        (NODE, "node", 5, 9, False),
        (NODE, "operator", 3, 3, False),
        (BACKEND, "node", 3, 3, False),
    ],
)
def test_older_versions_are_for_probes_and_nodes(
    client: ClientInfo, role: str, low: int, high: int, wanted: bool
) -> None:
    def speaks(connect: ConnectParams) -> ConnectParams:
        return msgspec.structs.replace(connect, min_protocol=low, max_protocol=high)

    entrance = Entrance()
    if wanted:
        assert entrance.admit(client, role=role, scopes=(), signer=DEVICE, change=speaks).caller.kind == role
    else:
        assert entrance.code(client, role=role, scopes=(), signer=DEVICE, change=speaks) == "PROTOCOL_MISMATCH"


@pytest.mark.parametrize(("away", "wanted"), [(-120_000, True), (120_000, True), (-120_001, False), (120_001, False)])
def test_a_signature_is_good_for_two_minutes_either_way(
    monkeypatch: pytest.MonkeyPatch, away: int, wanted: bool
) -> None:
    def later(connect: ConnectParams) -> ConnectParams:
        assert connect.device is not None
        at = connect.device.signed_at + away
        monkeypatch.setattr("openclaw_mcp.gateway.rpc.authenticator.now_ms", lambda: at)
        return connect

    if wanted:
        assert Entrance().admit(TUI, signer=DEVICE, change=later).device_token is not None
    else:
        assert Entrance().code(TUI, signer=DEVICE, change=later) == "DEVICE_AUTH_SIGNATURE_EXPIRED"


def test_a_program_of_this_machine_needs_no_pairing_for_its_key_and_others_do() -> None:
    entrance = Entrance()
    page = PeerInfo(address="127.0.0.1", origin="http://localhost")

    assert entrance.admit(BACKEND, signer=DEVICE).caller.name == DEVICE.id
    assert entrance.pairing.find(DEVICE.id) is None
    assert entrance.code(BACKEND, AWAY, signer=DEVICE) == "PAIRING_REQUIRED"
    assert entrance.code(BACKEND, PROXIED, signer=DEVICE) == "PAIRING_REQUIRED"
    assert entrance.code(BACKEND, page, signer=DEVICE) == "PAIRING_REQUIRED"
    assert entrance.admit(TUI, signer=DEVICE).device_token is not None
    known = entrance.pairing.find(DEVICE.id)
    assert known is not None
    assert (known.public_key, known.approved_via) == (DEVICE.public_key, "silent")


def test_a_node_comes_in_as_a_node() -> None:
    assert Entrance().admit(NODE, role="node", scopes=(), signer=DEVICE).caller.kind == "node"
    place = PeerInfo(address="127.0.0.1", session_address=SessionAddress(session="agent:main:main"))
    assert Entrance().admit(NODE, place, role="node", scopes=(), signer=DEVICE).caller.session_grant is None
    assert Entrance().admit(CLI, place).caller.session_grant is not None  # without a device, too
    assert (
        Entrance().admit(BACKEND, place, signer=DEVICE).caller.session_grant is not None
    )  # with one that needs no token


def test_a_device_that_wants_more_scopes_from_elsewhere_is_told_what_it_has() -> None:
    entrance = Entrance()
    entrance.admit(TUI, signer=DEVICE, scopes=(READ,))

    refused = entrance.refused(TUI, AWAY, signer=DEVICE, scopes=(READ, ADMIN))

    details = refused.error.details
    assert str(refused.error) == "pairing required: device is asking for more scopes than currently approved"
    assert details["reason"] == "scope-upgrade"
    assert details["remediationHint"] == "Review the requested scopes, then approve the pending upgrade."
    assert (details["approvedRoles"], details["approvedScopes"]) == (("operator",), [READ])
    assert (details["retryable"], details["pauseReconnect"]) == (True, False)
    assert details["recommendedNextStep"] == "wait_then_retry"


# ---- what is wrong, and what to do about it ----

PASTE = "open the dashboard URL and paste the token in Control UI settings"
MISSING_IN_A_PAGE = "paste in Control UI settings or openclaw doctor --generate-gateway-token; restart"
CLI_BY_ITS_ID = ClientInfo(id="cli", version="1", platform="linux", mode="ui")
CLI_BY_ITS_MODE = ClientInfo(id="test", version="1", platform="linux", mode="cli")
CHAT_BY_ITS_MODE = ClientInfo(id="test", version="1", platform="linux", mode="webchat")


@pytest.mark.parametrize(
    ("client", "visitor", "token", "words"),
    [
        (BACKEND, HERE, "x", "gateway token mismatch (provide gateway auth token)"),
        (CLI, HERE, "x", "gateway token mismatch (use this gateway's gateway.auth.token or pair the device)"),
        (CLI, AWAY, "x", "gateway token mismatch (set gateway.remote.token to match gateway.auth.token)"),
        (CLI, PROXIED, "x", "gateway token mismatch (set gateway.remote.token to match gateway.auth.token)"),
        (CLI_BY_ITS_ID, AWAY, None, "gateway token missing (set gateway.remote.token to match gateway.auth.token)"),
        (CLI_BY_ITS_MODE, AWAY, None, "gateway token missing (set gateway.remote.token to match gateway.auth.token)"),
        (BACKEND, HERE, None, "gateway token missing (provide gateway auth token)"),
        (TUI, HERE, "x", f"gateway token mismatch ({PASTE})"),
        (CHAT_BY_ITS_MODE, HERE, "x", f"gateway token mismatch ({PASTE})"),
        (TUI, HERE, None, f"gateway token missing ({MISSING_IN_A_PAGE})"),
        (CHAT_BY_ITS_MODE, HERE, None, f"gateway token missing ({MISSING_IN_A_PAGE})"),
    ],
)  # fmt: skip
def test_each_kind_of_client_is_told_what_it_can_do(
    client: ClientInfo, visitor: PeerInfo, token: str | None, words: str
) -> None:
    refused = Entrance().refused(client, visitor, Credentials(token=token), signer=DEVICE)

    assert str(refused.error) == f"unauthorized: {words}"


@pytest.mark.parametrize(
    ("credentials", "signer", "code", "retry", "step"),
    [
        (Credentials(token="x"), DEVICE, "TOKEN_MISMATCH", True, "retry_with_device_token"),
        (Credentials(token="x"), None, "TOKEN_MISMATCH", False, "update_auth_credentials"),
        (Credentials(password="x"), DEVICE, "TOKEN_MISMATCH", True, "retry_with_device_token"),
        (Credentials(), DEVICE, "TOKEN_MISSING", False, "update_auth_configuration"),
        (Credentials(device_token="x"), DEVICE, "DEVICE_TOKEN_MISMATCH", False, "update_auth_credentials"),
    ],
)
def test_whether_the_devices_own_token_might_help_is_said(
    credentials: Credentials, signer: DeviceIdentity | None, code: str, retry: bool, step: str
) -> None:
    fault = Entrance().refused(CLI, HERE, credentials, signer=signer).error

    assert fault.details == {
        "code": f"AUTH_{code}",
        "authReason": code.lower(),
        "canRetryWithDeviceToken": retry,
        "recommendedNextStep": step,
    }
    assert fault.retryable is None
    assert fault.retry_after_ms is None


def test_a_client_that_says_nothing_of_credentials_is_one_without() -> None:
    def silent(connect: ConnectParams) -> ConnectParams:
        return msgspec.structs.replace(connect, auth=None)

    assert Entrance().code(BACKEND, change=silent) == "DEVICE_IDENTITY_REQUIRED"
    assert Entrance().code(BACKEND, credentials=Credentials(), signer=DEVICE, change=silent) == "AUTH_TOKEN_MISSING"


# ---- what counts as a guess ----


def _guesses(entrance: Entrance) -> int:
    """How many wrong tokens this address has left before it is locked out."""
    left = 0
    while entrance.code(BACKEND, AWAY, Credentials(token="wrong")) != "AUTH_RATE_LIMITED":
        left += 1
    return left


def test_asking_for_too_much_is_no_guess_and_neither_is_a_run_that_is_over() -> None:
    entrance = Entrance()
    token = entrance.admit(TUI, signer=DEVICE).device_token
    for _ in range(15):
        wrong = entrance.code(TUI, AWAY, Credentials(device_token=token), signer=DEVICE, scopes=(ADMIN,))
        assert wrong == "AUTH_SCOPE_MISMATCH"
        assert entrance.code(BACKEND, AWAY, Credentials(token=f"{GRANT_PREFIX}over")) == "AUTH_GRANT_ENDED"

    assert _guesses(entrance) == 10


def test_a_client_that_succeeds_has_all_guesses_again() -> None:
    entrance = Entrance()
    token = entrance.admit(TUI, signer=DEVICE).device_token
    for credentials, signer in ((GOOD, None), (GOOD, DEVICE), (Credentials(device_token=token), DEVICE)):
        for _ in range(9):
            entrance.refused(BACKEND, AWAY, Credentials(token="wrong"))
        entrance.admit(TUI if signer else BACKEND, AWAY, credentials, signer=signer)

    assert _guesses(entrance) == 10


# ---- a run's token ----

RUN = Caller(kind="agent", name="run 1", session="agent:main:main")


def test_a_runs_token_is_for_its_own_programs() -> None:
    entrance = Entrance()
    token = Credentials(token=entrance.door.grants.issue(RUN, seconds=60))
    page = PeerInfo(address="127.0.0.1", origin="http://localhost")

    admitted = entrance.admit(BACKEND, HERE, token, scopes=(ADMIN,))
    assert (admitted.caller.name, admitted.caller.kind) == ("run 1", "agent")
    assert admitted.connect.scopes == tuple(sorted((READ, WRITE)))
    assert admitted.policy_caller == admitted.caller
    for client, visitor, role in (
        (CLI, HERE, "operator"),
        (BACKEND, AWAY, "operator"),
        (BACKEND, PROXIED, "operator"),
        (BACKEND, page, "operator"),
        (BACKEND, HERE, "node"),
    ):
        assert entrance.code(client, visitor, token, role=role) == "AUTH_GRANT_MISUSED"
    ended = entrance.refused(BACKEND, HERE, Credentials(token=f"{GRANT_PREFIX}other"))
    assert ended.error.details["recommendedNextStep"] == "update_auth_credentials"
    assert "this run's token has ended" in str(ended.error)


def test_a_run_is_where_it_is_whatever_place_it_names() -> None:
    entrance = Entrance()
    token = Credentials(token=entrance.door.grants.issue(RUN, seconds=60))
    elsewhere = PeerInfo(address="127.0.0.1", session_address=SessionAddress(session="agent:main:other"))

    admitted = entrance.admit(BACKEND, elsewhere, token)
    operator = entrance.admit(BACKEND, elsewhere)

    assert admitted.caller.session_grant is None
    assert admitted.policy_caller == admitted.caller
    assert operator.caller.session_grant is not None
    assert operator.policy_caller == operator.caller
    assert entrance.admit(BACKEND).policy_caller is None


def test_an_authenticator_keeps_the_grants_it_is_given() -> None:
    issuer = RunGrants()
    issuer.issue(RUN, seconds=60)

    assert Authenticator(TOKEN, DevicePairing(MemoryPairingStorage()), grants=issuer).grants is issuer


def test_a_shared_token_that_looks_like_a_runs_is_the_shared_token() -> None:
    shared = f"{GRANT_PREFIX}shared"
    gateway_auth = Authenticator(shared, DevicePairing(MemoryPairingStorage()))
    challenge = Challenge("nonce", now_ms())
    connect = ClientProfile(client=BACKEND, scopes=(READ,)).build_connect(challenge, Credentials(token=shared), None)

    assert asyncio.run(gateway_auth.authenticate(connect, HERE, challenge)).grant is None


def test_a_device_is_admitted_while_the_loops_threads_are_all_busy() -> None:
    """They may wait for slow name servers and disks on a run's behalf, and its operator must be able to stop it."""

    async def scenario() -> AuthResult:
        loop, free, entrance = asyncio.get_running_loop(), threading.Event(), Entrance()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, free.wait)
        challenge = Challenge("nonce", now_ms())
        connect = ClientProfile(client=CLI, role="operator", scopes=(READ,)).build_connect(challenge, GOOD, DEVICE)
        try:
            async with asyncio.timeout(5):
                return await entrance.door.authenticate(connect, HERE, challenge)
        finally:
            free.set()
            await busy

    assert asyncio.run(scenario()).device_token is not None
