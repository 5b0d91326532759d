"""A model that answers every request alike after a while. Usage: model.py MILLISECONDS; prints its port."""

import asyncio
import json
import sys

import uvloop

WORDS = ("The ", "answer ", "is ", "42.")


def _answer() -> bytes:
    """Chunks of a streamed chat completion."""
    choices: list[dict[str, object]] = [
        {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None} for word in WORDS
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**frame, "choices": [choice]} for choice in choices]
    usage = {"prompt_tokens": 100, "completion_tokens": 4, "total_tokens": 104}
    chunks.append({**frame, "choices": [], "usage": usage})
    lines = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(lines)
    return head + lines


async def main(seconds: float) -> None:
    answer = _answer()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size or 0))
                await asyncio.sleep(seconds)
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=1 << 22)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1]) / 1000))
