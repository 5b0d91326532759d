"""`device.*`: devices that wait for approval, paired ones, and what each may do."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import PAIRING, Publish, RpcCall, RpcEvent, RpcMethod, read_params
from .pairing import DevicePairing, PairedDevice, PairingRequest, PairingResolution


class _RequestParams(Struct, frozen=True, rename="camel"):
    request_id: NonEmptyStr


class _DeviceParams(Struct, frozen=True, rename="camel"):
    device_id: NonEmptyStr


class _RenameParams(Struct, frozen=True, rename="camel"):
    device_id: NonEmptyStr
    label: Annotated[str, Meta(min_length=1, max_length=64)]


class _RoleParams(Struct, frozen=True, rename="camel"):
    device_id: NonEmptyStr
    role: NonEmptyStr
    scopes: tuple[NonEmptyStr, ...] | None = None


class DeviceMethods:
    """An `RpcModule`. `connected_devices`: those with an open connection."""

    def __init__(self, pairing: DevicePairing, publish: Publish, connected_devices: Callable[[], set[str]]) -> None:
        self._pairing = pairing
        self._publish = publish
        self._connected_devices = connected_devices
        pairing.requested.connect(self._on_request)
        pairing.resolved.connect(self._on_resolution)
        pairing.revoked.connect(lambda _: self._publish_change())

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("device.pair.list", PAIRING, self._list),
            RpcMethod("device.pair.approve", PAIRING, self._approve),
            RpcMethod("device.pair.reject", PAIRING, self._reject),
            RpcMethod("device.pair.remove", PAIRING, self._remove),
            RpcMethod("device.pair.rename", PAIRING, self._rename),
            RpcMethod("device.token.rotate", PAIRING, self._rotate),
            RpcMethod("device.token.revoke", PAIRING, self._revoke),
        )

    async def _list(self, call: RpcCall) -> Json:
        online = self._connected_devices()
        return {
            "pending": [to_builtins(asked) for asked in self._pairing.list_pending()],
            "paired": [
                format_device(device, connected=device.device_id in online) for device in self._pairing.devices()
            ],
        }

    async def _approve(self, call: RpcCall) -> Json:
        request = read_params(call.params, _RequestParams, call.method).request_id
        device = await self._pairing.approve(request, by=call.caller.scopes)
        self._publish_change()
        return {
            "requestId": request,
            "device": format_device(device, connected=device.device_id in self._connected_devices()),
        }

    async def _reject(self, call: RpcCall) -> Json:
        asked = self._pairing.reject(read_params(call.params, _RequestParams, call.method).request_id)
        return {"requestId": asked.request_id, "deviceId": asked.device_id}

    async def _remove(self, call: RpcCall) -> Json:
        device = read_params(call.params, _DeviceParams, call.method).device_id
        await self._pairing.remove(device)
        return {"deviceId": device}

    async def _rename(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _RenameParams, call.method)
        await self._pairing.rename(wanted.device_id, wanted.label)
        self._publish_change()
        return {"deviceId": wanted.device_id, "label": wanted.label}

    async def _rotate(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _RoleParams, call.method)
        own = call.caller.name == wanted.device_id
        grant = await self._pairing.rotate(wanted.device_id, wanted.role, wanted.scopes, by=call.caller.scopes)
        answer: Json = {
            "deviceId": wanted.device_id,
            "role": wanted.role,
            "scopes": grant.scopes,
            "rotatedAtMs": grant.created_at_ms,
        }
        if own:
            return answer | {"token": self._pairing.device_token(wanted.device_id, wanted.role)}
        return answer | {"tokenDelivery": "withheld-cross-device"}

    async def _revoke(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _RoleParams, call.method)
        grant = await self._pairing.revoke(wanted.device_id, wanted.role)
        return {"deviceId": wanted.device_id, "role": wanted.role, "revokedAtMs": grant.revoked_at_ms}

    def _on_request(self, request: PairingRequest) -> None:
        self._publish(RpcEvent(name="device.pair.requested", payload=to_builtins(request), scope=PAIRING))

    def _on_resolution(self, resolution: PairingResolution) -> None:
        self._publish(RpcEvent(name="device.pair.resolved", payload=to_builtins(resolution), scope=PAIRING))

    def _publish_change(self) -> None:
        self._publish(RpcEvent(name="device.pair.changed", payload={}, scope=PAIRING))


def format_device(device: PairedDevice, *, connected: bool) -> Json:
    """A device as operators see it: what it may do, never what it could do it with."""
    plain: dict[str, Any] = to_builtins(device)
    grants = plain.pop("grants")
    tokens = [
        {"role": role} | {key: value for key, value in grant.items() if key != "issue"}
        for role, grant in grants.items()
    ]
    scopes = list(dict.fromkeys(scope for role in device.roles for scope in device.grants[role].scopes))
    role = {"role": device.roles[0]} if device.roles else {}
    return plain | role | {"roles": device.roles, "scopes": scopes, "connected": connected, "tokens": tokens}
