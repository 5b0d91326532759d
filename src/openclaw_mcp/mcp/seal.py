"""The stateless era's memory of a call in progress, kept by the client and signed by us.

`requestState` is in the client's hands, so it is signed, bound to the caller and the exact call, expires, and is
good for one use. It carries the answers given so far, which lets a tool ask in several rounds.
"""

import hashlib
import hmac
import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.model import Caller, Json
from ..wire.jsonrpc import INTERNAL_ERROR, RpcError
from .exchange import invalid_params

LIFETIME: Final = 900.0  # seconds a person has to answer
MOST_REMEMBERED: Final = 20_000  # used states remembered until they expire
LONGEST: Final = 1 << 20

_encode = msgspec.json.Encoder(order="deterministic").encode


class _State(Struct, frozen=True, array_like=True):
    nonce: str
    expires: float
    digest: str
    answers: dict[str, Json]


_decode = msgspec.json.Decoder(_State).decode


class Seal:
    """One key signs for one server; servers that share the key serve each other's repeats."""

    def __init__(self, key: bytes | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._key = key or os.urandom(32)
        self._used: dict[str, float] = {}

    def close(self, caller: Caller, call: Json, answers: dict[str, Json]) -> str:
        state = _State(os.urandom(12).hex(), self._clock() + LIFETIME, _digest(caller, call), answers)
        body = _encode(state)
        return f"{self._sign(body)}.{body.hex()}"

    def open(self, sealed: Any, caller: Caller, call: Json) -> dict[str, Json]:
        """The answers given in earlier rounds. Raises RpcError when the state is not ours, not for this, or spent."""
        if type(sealed) is not str or len(sealed) > LONGEST:
            raise invalid_params("`requestState` must be the string this server gave")
        signature, _, hexed = sealed.partition(".")
        try:
            body = bytes.fromhex(hexed)
        except ValueError:
            body = b""
        if not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            raise invalid_params("`requestState` was altered or is not this server's; send the call without it")
        state = _decode(body)
        if state.digest != _digest(caller, call):
            raise invalid_params("`requestState` belongs to another call; send this one without it")
        now = self._clock()
        if state.expires < now or state.nonce in self._used:
            raise invalid_params("`requestState` has expired or was used already; send the call without it")
        self._remember(state, now)
        return state.answers

    def _remember(self, state: _State, now: float) -> None:
        if len(self._used) >= MOST_REMEMBERED:
            self._used = {nonce: until for nonce, until in self._used.items() if until > now}
        if len(self._used) >= MOST_REMEMBERED:  # forgetting one early would let it be used twice
            raise RpcError(INTERNAL_ERROR, "Too many questions were answered just now; try again in a few minutes")
        self._used[state.nonce] = state.expires

    def _sign(self, body: bytes) -> str:
        return hmac.new(self._key, body, hashlib.sha256).hexdigest()


def _digest(caller: Caller, call: Json) -> str:
    identity = [caller.kind, caller.name, caller.session]
    return hashlib.sha256(_encode([identity, call])).hexdigest()
