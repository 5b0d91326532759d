"""The device identity: its file, its signatures, and the signatures a gateway accepts."""

import stat
from pathlib import Path

import pytest

from openclaw_mcp.net.files import StateBroken
from openclaw_mcp.net.gateway_client import identity
from openclaw_mcp.net.gateway_client.handshake import (
    Challenge,
    ClientInfo,
    ClientProfile,
    Credentials,
    signature_payload,
)
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity, DeviceTokens

TUI = ClientInfo(id="openclaw-tui", version="1", platform="Linux", mode="ui", device_family="Desktop")
SEED = bytes(range(32))
V3 = "u538yhx_wmuh9rARxYc6QrftdsN07EocF3-Pc_kxAWvU896p19dl3B-AhfZVbtU1JMTbYppAecb_oXjAg5qQCw"
V2 = "50IJokHGmZz0mxasUEcP-wqNQLHUL1cztvM__jQQQ90sTdSHw64a3MTbcUPBudPCE-v5klUQJ3QVGtAM-2uDDA"


def words(version: str = "v3") -> str:
    return signature_payload(
        DeviceIdentity(SEED).id,
        TUI,
        role="operator",
        scopes=("operator.read", "operator.write"),
        signed_at=1700000000000,
        token="testtoken123",
        nonce="11111111-2222-3333-4444-555555555555",
        version="v2" if version == "v2" else "v3",
    )


def test_the_known_key_gives_the_known_id_and_signatures() -> None:
    device = DeviceIdentity(SEED)
    assert device.public_key == "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"
    assert device.id == "56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c"
    assert device.sign(words("v3")) == V3
    assert device.sign(words("v2")) == V2


def test_a_signature_holds_for_its_words_alone() -> None:
    key = identity.read_public_key(DeviceIdentity(SEED).public_key)
    assert identity.is_valid_signature(key, words("v3"), V3)
    assert not identity.is_valid_signature(key, words("v2"), V3)
    assert not identity.is_valid_signature(key, words("v3"), "nonsense!")
    assert not identity.is_valid_signature(key, words("v3"), "")


def test_a_public_key_is_read_in_each_spelling() -> None:
    raw = identity.read_public_key("A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg")
    assert identity.read_public_key("A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=") == raw
    body = "MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
    pem = f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"
    assert identity.read_public_key(pem) == raw
    for wrong in ("", "AAAA", "not base64 at all"):
        with pytest.raises(ValueError, match=r"base64|Ed25519"):
            identity.read_public_key(wrong)


def test_an_identity_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    first, second = DeviceIdentity.load(path), DeviceIdentity.load(path)
    assert first.id == second.id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_broken_identity_file_stops_us_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text('{"version":1,"seed":"short"}')
    with pytest.raises(StateBroken, match="holds no device identity"):
        DeviceIdentity.load(path)
    assert path.read_text() == '{"version":1,"seed":"short"}'


def test_an_introduction_signs_the_challenge() -> None:
    device = DeviceIdentity(SEED)
    profile = ClientProfile(client=TUI, scopes=("operator.read", "operator.write"))
    challenge = Challenge("11111111-2222-3333-4444-555555555555", 1700000000000)
    connect = profile.build_connect(challenge, Credentials(token="testtoken123"), device)
    assert connect.device is not None
    assert connect.device.signature == V3
    assert profile.build_connect(challenge, Credentials(token="t"), None).device is None


def test_a_gateways_token_is_kept_for_that_gateway_and_role(tmp_path: Path) -> None:
    tokens = DeviceTokens(tmp_path / "tokens.json")
    assert tokens.find("ws://a", "operator") is None
    tokens.save("ws://a", "operator", "T")
    assert DeviceTokens(tmp_path / "tokens.json").find("ws://a", "operator") == "T"
    assert tokens.find("ws://a", "node") is None
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(Credentials(token="secret"))
