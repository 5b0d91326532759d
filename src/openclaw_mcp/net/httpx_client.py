"""The httpx library, for services that need what our own client has not: redirects, forms, compressed bodies, a fixed
address under another name. The one module that makes its clients; import it where the first request needs it."""

import httpx

from .http_client.connection import ResponseTooLarge

__all__ = ["ResponseTooLarge", "create_client", "httpx", "read_body"]


def create_client(
    *,
    timeout: float | None,
    connect_timeout: float | None = None,
    send_timeout: float | None = None,
    max_connections: int | None = None,
    max_idle: int | None = None,
    headers: dict[str, str] | None = None,
    trust_environment: bool = True,
    verify: bool = True,
) -> httpx.AsyncClient:
    """A pool of connections that follows no redirect unless a request says so. Seconds are for each wait.

    `trust_environment`: use the proxies that the environment names. `verify=False`: a client that never speaks TLS need
    not read certificates.
    """
    waits = httpx.Timeout(
        timeout,
        connect=timeout if connect_timeout is None else connect_timeout,
        write=timeout if send_timeout is None else send_timeout,
    )
    return httpx.AsyncClient(
        timeout=waits,
        limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_idle),
        headers=headers,
        trust_env=trust_environment,
        verify=verify,
        follow_redirects=False,
    )


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """The whole body of a streamed response. Raises ResponseTooLarge when it is longer than `limit` bytes."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            raise ResponseTooLarge
    return bytes(body)
