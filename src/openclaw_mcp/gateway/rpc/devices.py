"""The methods about devices: who waits at the door, who is known, and what each may do."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins

from ...core.model import Json
from ...core.rpc import PAIRING, Event, Method, Publish, RpcCall, read_params
from .pairing import Asked, Device, Pairing, Resolved

Text = Annotated[str, Meta(min_length=1)]


class _Request(Struct, frozen=True, rename="camel"):
    request_id: Text


class _Device(Struct, frozen=True, rename="camel"):
    device_id: Text


class _Label(Struct, frozen=True, rename="camel"):
    device_id: Text
    label: Annotated[str, Meta(min_length=1, max_length=64)]


class _Role(Struct, frozen=True, rename="camel"):
    device_id: Text
    role: Text
    scopes: tuple[Text, ...] | None = None


class Devices:
    """A `Room`. `connected` tells which devices have a connection open right now."""

    def __init__(self, pairing: Pairing, publish: Publish, connected: Callable[[], set[str]]) -> None:
        self._pairing = pairing
        self._publish = publish
        self._connected = connected
        pairing.asked.listen(self._on_asked)
        pairing.resolved.listen(self._on_resolved)
        pairing.cut.listen(lambda _: self._on_changed())

    def methods(self) -> Sequence[Method]:
        return (
            Method("device.pair.list", PAIRING, self._list),
            Method("device.pair.approve", PAIRING, self._approve),
            Method("device.pair.reject", PAIRING, self._reject),
            Method("device.pair.remove", PAIRING, self._remove),
            Method("device.pair.rename", PAIRING, self._rename),
            Method("device.token.rotate", PAIRING, self._rotate),
            Method("device.token.revoke", PAIRING, self._revoke),
        )

    async def _list(self, call: RpcCall) -> Json:
        online = self._connected()
        return {
            "pending": [to_builtins(asked) for asked in self._pairing.pending()],
            "paired": [shown(device, connected=device.device_id in online) for device in self._pairing.devices()],
        }

    async def _approve(self, call: RpcCall) -> Json:
        request = read_params(call.params, _Request, call.method).request_id
        device = await self._pairing.approve(request, by=call.caller.scopes)
        self._on_changed()
        return {"requestId": request, "device": shown(device, connected=device.device_id in self._connected())}

    async def _reject(self, call: RpcCall) -> Json:
        asked = self._pairing.reject(read_params(call.params, _Request, call.method).request_id)
        return {"requestId": asked.request_id, "deviceId": asked.device_id}

    async def _remove(self, call: RpcCall) -> Json:
        device = read_params(call.params, _Device, call.method).device_id
        await self._pairing.remove(device)
        return {"deviceId": device}

    async def _rename(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Label, call.method)
        await self._pairing.rename(wanted.device_id, wanted.label)
        self._on_changed()
        return {"deviceId": wanted.device_id, "label": wanted.label}

    async def _rotate(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Role, call.method)
        own = call.caller.name == wanted.device_id
        grant = await self._pairing.rotate(wanted.device_id, wanted.role, wanted.scopes, by=call.caller.scopes)
        answer: Json = {
            "deviceId": wanted.device_id,
            "role": wanted.role,
            "scopes": grant.scopes,
            "rotatedAtMs": grant.created_at_ms,
        }
        if own:
            return answer | {"token": self._pairing.token(wanted.device_id, wanted.role)}
        return answer | {"tokenDelivery": "withheld-cross-device"}

    async def _revoke(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Role, call.method)
        grant = await self._pairing.revoke(wanted.device_id, wanted.role)
        return {"deviceId": wanted.device_id, "role": wanted.role, "revokedAtMs": grant.revoked_at_ms}

    def _on_asked(self, asked: Asked) -> None:
        self._publish(Event(name="device.pair.requested", payload=to_builtins(asked), scope=PAIRING))

    def _on_resolved(self, resolved: Resolved) -> None:
        self._publish(Event(name="device.pair.resolved", payload=to_builtins(resolved), scope=PAIRING))

    def _on_changed(self) -> None:
        self._publish(Event(name="device.pair.changed", payload={}, scope=PAIRING))


def shown(device: Device, *, connected: bool) -> Json:
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
