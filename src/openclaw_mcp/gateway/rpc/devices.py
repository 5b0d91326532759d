"""`device.*`: devices that wait for approval, paired ones, and what each may do."""

from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta, Struct, to_builtins

from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import PAIRING, Publish, RpcCall, RpcEvent, RpcMethod, make_method
from .pairing import DevicePairing, PairedDevice, PairingRequest, PairingResolution


class _RequestParams(Struct, frozen=True, rename="camel"):
    request_id: NonEmptyStr


class _DeviceParams(Struct, frozen=True, rename="camel"):
    device_id: NonEmptyStr


class _RenameParams(_DeviceParams, frozen=True, rename="camel"):
    label: Annotated[str, Meta(min_length=1, max_length=64)]


class _RoleParams(_DeviceParams, frozen=True, rename="camel"):
    role: NonEmptyStr
    scopes: tuple[NonEmptyStr, ...] | None = None


class DeviceMethods:
    """An `RpcModule`. `connected_devices`: those with an open connection."""

    def __init__(self, pairing: DevicePairing, publish: Publish, connected_devices: Callable[[], set[str]]) -> None:
        self._pairing = pairing
        self._publish = publish
        self._connected_devices = connected_devices
        pairing.requested.connect(lambda request: self._publish_pairing("requested", request))
        pairing.resolved.connect(lambda resolution: self._publish_pairing("resolved", resolution))
        pairing.revoked.connect(lambda _: self._publish_change())

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("device.pair.list", PAIRING, self._list),
            make_method("device.pair.approve", PAIRING, _RequestParams, self._approve),
            make_method("device.pair.reject", PAIRING, _RequestParams, self._reject),
            make_method("device.pair.remove", PAIRING, _DeviceParams, self._remove),
            make_method("device.pair.rename", PAIRING, _RenameParams, self._rename),
            make_method("device.token.rotate", PAIRING, _RoleParams, self._rotate),
            make_method("device.token.revoke", PAIRING, _RoleParams, self._revoke),
        )

    async def _list(self, call: RpcCall) -> Json:
        online = self._connected_devices()
        return {
            "pending": [to_builtins(asked) for asked in self._pairing.list_pending()],
            "paired": [_format_device(device, online) for device in self._pairing.devices()],
        }

    async def _approve(self, call: RpcCall, asked: _RequestParams) -> Json:
        device = await self._pairing.approve(asked.request_id, by=call.caller.scopes)
        self._publish_change()
        return {"requestId": asked.request_id, "device": _format_device(device, self._connected_devices())}

    async def _reject(self, call: RpcCall, asked: _RequestParams) -> dict[str, str]:
        rejected = self._pairing.reject(asked.request_id)
        return {"requestId": rejected.request_id, "deviceId": rejected.device_id}

    async def _remove(self, call: RpcCall, asked: _DeviceParams) -> dict[str, str]:
        await self._pairing.remove(asked.device_id)
        return {"deviceId": asked.device_id}

    async def _rename(self, call: RpcCall, asked: _RenameParams) -> dict[str, str]:
        await self._pairing.rename(asked.device_id, asked.label)
        self._publish_change()
        return {"deviceId": asked.device_id, "label": asked.label}

    async def _rotate(self, call: RpcCall, asked: _RoleParams) -> Json:
        grant = await self._pairing.rotate(asked.device_id, asked.role, asked.scopes, by=call.caller.scopes)
        answer = {
            "deviceId": asked.device_id,
            "role": asked.role,
            "scopes": grant.scopes,
            "rotatedAtMs": grant.created_at_ms,
        }
        if call.caller.name != asked.device_id:
            return {**answer, "tokenDelivery": "withheld-cross-device"}
        return {**answer, "token": self._pairing.device_token(asked.device_id, asked.role)}

    async def _revoke(self, call: RpcCall, asked: _RoleParams) -> dict[str, str | int | None]:
        grant = await self._pairing.revoke(asked.device_id, asked.role)
        return {"deviceId": asked.device_id, "role": asked.role, "revokedAtMs": grant.revoked_at_ms}

    def _publish_pairing(self, event: str, payload: PairingRequest | PairingResolution) -> None:
        self._publish(RpcEvent(name=f"device.pair.{event}", payload=to_builtins(payload), scope=PAIRING))

    def _publish_change(self) -> None:
        self._publish(RpcEvent(name="device.pair.changed", payload={}, scope=PAIRING))


def _format_device(device: PairedDevice, online: set[str]) -> Json:
    """A device as operators see it: what it may do, never what it could do it with."""
    plain = to_builtins(device)
    tokens = [
        {"role": role} | {key: value for key, value in grant.items() if key != "issue"}
        for role, grant in plain.pop("grants").items()
    ]
    return {
        **plain,
        **({"role": device.roles[0]} if device.roles else {}),
        "roles": device.roles,
        "scopes": list(dict.fromkeys(scope for role in device.roles for scope in device.grants[role].scopes)),
        "connected": device.device_id in online,
        "tokens": tokens,
    }
