"""Requests to models: streamed answers read as they arrive, failures sorted."""

from collections.abc import Callable
from typing import Final

from ....net.http_client.address import InvalidAddress
from ....net.http_client.client import CannotReach, HttpClient, InvalidHeader, public_tls_context
from ....net.http_client.connection import ConnectionBroken, ConnectionTimeout, HttpConnection, ResponseTooLarge
from ....protocol.sse import SseEventTooLong, SseParser
from .errors import ModelError, error_from_response
from .messages import AnswerDelta, AnswerReader, ModelAnswer, ModelCodec, ModelRequest
from .request_body import RequestBody

MAX_CONNECTIONS: Final = 1000  # at once; sessions beyond it wait for one, within their run's own time
MAX_IDLE_CONNECTIONS: Final = 64  # idle ones of one provider, for the next turns
MAX_EVENT_BYTES: Final = 16 << 20  # bytes; one event holds a few words, or an answer that did not stream
MAX_ANSWER_BYTES: Final = 128 << 20  # bytes of all events of one answer; the longest answers of models have a third
MAX_ANSWER_LENGTH: Final = 2_000_000  # characters of text and thoughts in one answer, four times the longest of models:
# clients get the whole text with each delta, so one without an end would leave us no time for anything else
MAX_ERROR_BODY: Final = 64 << 10  # bytes read of an answer that is an error
HTTP_OK: Final = 200
HEADERS: Final = {
    "content-type": "application/json", "accept": "text/event-stream, application/json", "user-agent": "openclaw-mcp",
}  # fmt: skip


class ModelHttpClient:
    """Made once and shared; costs nothing until the first request."""

    def __init__(self) -> None:
        self._http = HttpClient(
            max_connections=MAX_CONNECTIONS,
            max_idle=MAX_IDLE_CONNECTIONS,
            use_proxies=True,
            create_tls_context=public_tls_context,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(
        self, codec: ModelCodec, request: ModelRequest, key: str | None, on_delta: Callable[[AnswerDelta], None]
    ) -> ModelAnswer:
        """The model's answer; `on_delta` gets its pieces as they arrive. Raises ModelError.

        A cancelled wait closes the connection, by which a provider learns that the answer is not wanted any more.
        """
        provider, begun = request.choice.provider, False
        where = provider.base_url.partition("?")[0]
        reader = codec.create_reader(request)
        body = RequestBody(codec.encode_body(request), request.messages)
        headers = {**HEADERS, **codec.headers(key), **dict(provider.headers)}
        sent = self._http.send(
            "POST", codec.url(provider.base_url), headers, body, size=body.size, timeout=provider.idle_limit
        )
        try:
            async with sent as response:
                if response.status != HTTP_OK:
                    refusal = await response.body_start(limit=MAX_ERROR_BODY)
                    raise _redact_key(key, error_from_response(response.status, refusal, response.headers))
                begun = True
                await _read_answer(response, reader, on_delta)
        except InvalidAddress as exc:
            raise ModelError(f"models.providers.{provider.name}.baseUrl {exc}", kind="bad_request") from None
        except InvalidHeader:
            source = f"a header of models.providers.{provider.name}, or its key,"
            raise ModelError(f"{source} holds a line break; write it on one line", kind="bad_request") from None
        except CannotReach as exc:
            silence = f"no server answers at {where}; is it running, and is that its address?"
            raise ModelError(f"{where}: {exc}" if str(exc) else silence, kind="network") from None
        except ConnectionTimeout:
            raise ModelError(f"it sent nothing for {provider.idle_limit:g} s", kind="timeout") from None
        except ConnectionBroken:
            failed = ModelError(f"the connection to {where} failed", kind="network")
            raise _incomplete_error() if begun else failed from None
        answer = reader.answer()
        if answer is None:
            raise _incomplete_error()
        return answer


async def _read_answer(response: HttpConnection, reader: AnswerReader, on_delta: Callable[[AnswerDelta], None]) -> None:
    size = length = 0

    def handle(data: bytes) -> None:
        nonlocal length
        for delta in parse_event(reader, data):
            length += len(delta.text)
            if length > MAX_ANSWER_LENGTH:
                raise _endless_error(f"{MAX_ANSWER_LENGTH} characters")
            on_delta(delta)

    try:
        if "event-stream" not in response.headers.get("content-type", "event-stream"):
            handle(await response.body(limit=MAX_EVENT_BYTES))  # the answer of a server that does not stream
            return
        stream = SseParser(limit=MAX_EVENT_BYTES)
        while data := await response.read():
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise _endless_error(f"{MAX_ANSWER_BYTES} bytes")
            for event in stream.feed(data):
                if event.data:
                    handle(event.data)
    except (SseEventTooLong, ResponseTooLarge):
        raise ModelError(f"it sent an event larger than {MAX_EVENT_BYTES} bytes", kind="bad_request") from None


def parse_event(reader: AnswerReader, data: bytes) -> tuple[AnswerDelta, ...]:
    """The parts of the answer in an event. Data that the reader can't handle is the model's error, not ours."""
    try:
        return tuple(reader.read(data))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ModelError("it sent something that is no answer of this API", kind="dropped") from None


def _incomplete_error() -> ModelError:
    return ModelError("the answer broke off in the middle", kind="dropped")


def _endless_error(limit: str) -> ModelError:
    return ModelError(f"its answer is longer than {limit}", kind="bad_request")


def _redact_key(key: str | None, error: ModelError) -> ModelError:
    """Some providers quote the key they refuse."""
    if key and key in str(error):
        error.args = (str(error).replace(key, "***"),)
    return error
