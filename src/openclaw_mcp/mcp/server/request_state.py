"""The state of a call of the stateless era, kept by the client and signed by us.

`requestState` is in the client's hands, so it is signed, bound to the caller and the exact call, expires, and is
good for one use. It names the questions that were asked, by a digest of each as it was shown, and carries the answers
given so far, which lets a tool ask in several rounds. An answer counts for the question it was given to and no other.
"""

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from ...core.model import Caller, InputRequest, Json
from ...protocol.jsonrpc import INTERNAL_ERROR, JsonRpcError, JsonRpcRequest
from .exchange import invalid_params

LIFETIME: Final = 900.0  # seconds a person has to answer
MAX_REMEMBERED: Final = 20_000  # used states remembered until they expire
LONGEST_STATE: Final = 1 << 20

_encode = msgspec.json.Encoder(order="deterministic").encode


class RecordedAnswer(Struct, frozen=True, array_like=True):
    """One answer, and the digest of the question it was given to."""

    question: str
    answer: Json


class _State(Struct, frozen=True, array_like=True):
    nonce: str
    expires: float
    digest: str
    asked: dict[str, str]
    """The questions this state was handed out with, by their digests."""
    answers: dict[str, RecordedAnswer]


_decode = msgspec.json.Decoder(_State).decode


class CallAnswers:
    """A client's answers over all rounds of one call."""

    __slots__ = ("_recorded", "matched")

    def __init__(self, recorded: Mapping[str, RecordedAnswer]) -> None:
        self._recorded = recorded
        self.matched: dict[str, RecordedAnswer] = {}
        """Those whose question was asked again, unchanged."""

    def find(self, key: str, question: InputRequest) -> Json | None:
        """The answer to this very question; None when it was not asked, not answered, or reads otherwise by now."""
        given = self._recorded.get(key)
        if given is None or given.question != question_digest(question):
            return None
        self.matched[key] = given
        return given.answer


class RequestStateSigner:
    """Servers that share one serve each other's repeats: the key and the memory of what was used go together."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._key = os.urandom(32)
        self._used_nonces: dict[str, float] = {}

    def issue_state(
        self,
        caller: Caller,
        request: JsonRpcRequest,
        questions: Mapping[str, InputRequest],
        answers: CallAnswers | None = None,
    ) -> str:
        """The state to hand out with `questions`."""
        asked = {key: question_digest(question) for key, question in questions.items()}
        earlier = {} if answers is None else answers.matched
        state = _State(os.urandom(12).hex(), self._clock() + LIFETIME, _call_digest(caller, request), asked, earlier)
        body = _encode(state)
        return f"{self._sign(body)}.{body.hex()}"

    def verify_state(self, caller: Caller, request: JsonRpcRequest) -> CallAnswers:
        """Earlier answers, and those of this request that answer what its state asked: no others count.

        Raises JsonRpcError when the state is not ours, not for this call, or used.
        """
        request_state = request.params.get("requestState")
        if type(request_state) is not str or len(request_state) > LONGEST_STATE:
            raise invalid_params("`requestState` must be the string this server gave")
        signature, _, hexed = request_state.partition(".")
        try:
            body = bytes.fromhex(hexed)
        except ValueError:
            body = b""
        if not hmac.compare_digest(signature.encode(errors="replace"), self._sign(body).encode()):
            raise invalid_params("`requestState` was altered or is not this server's; send the call without it")
        state = _decode(body)
        if state.digest != _call_digest(caller, request):
            raise invalid_params("`requestState` belongs to another call; send this one without it")
        now = self._clock()
        if state.expires <= now or state.nonce in self._used_nonces:
            raise invalid_params("`requestState` has expired or was used already; send the call without it")
        self._remember(state, now)
        responses = request.params.get("inputResponses")
        fresh = {
            key: RecordedAnswer(state.asked[key], answer)
            for key, answer in (responses.items() if type(responses) is dict else ())
            if key in state.asked and type(answer) is dict  # one that is no object counts as not given
        }
        return CallAnswers(state.answers | fresh)

    def _remember(self, state: _State, now: float) -> None:
        if len(self._used_nonces) >= MAX_REMEMBERED:
            self._used_nonces = {nonce: until for nonce, until in self._used_nonces.items() if until > now}
        if len(self._used_nonces) >= MAX_REMEMBERED:  # forgetting one early would let it be used twice
            raise JsonRpcError(INTERNAL_ERROR, "Too many questions were answered just now; try again in a few minutes")
        self._used_nonces[state.nonce] = state.expires

    def _sign(self, body: bytes) -> str:
        return hmac.new(self._key, body, hashlib.sha256).hexdigest()


def question_digest(question: InputRequest) -> str:
    """Of all the client is shown, and of what its answer is bound to: a changed text is another question."""
    return hashlib.sha256(_encode([question.method, question.params, question.binding])).hexdigest()


def _call_digest(caller: Caller, request: JsonRpcRequest) -> str:
    """Of what makes two calls the same call, with different answers too."""
    same = {key: request.params[key] for key in ("name", "arguments", "uri") if key in request.params}
    return hashlib.sha256(_encode([caller, request.method, same])).hexdigest()
