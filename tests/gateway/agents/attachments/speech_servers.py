"""A transcription service on loopback, as OpenAI and Deepgram have one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Json = dict[str, Any]


class SpeechHandler(BaseHTTPRequestHandler):
    """Answers as the transcription services do."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert b"ID3 speech" in body
        if self.path == "/v1/audio/transcriptions":
            assert self.headers["Authorization"] == "Bearer k1"
            assert b"whisper-x" in body
            answer: Json = {"text": "hello from openai"}
        else:
            assert self.path.startswith("/v1/listen?model=nova-3")
            assert self.headers["Authorization"] == "Token k2"
            received = {"alternatives": [{"transcript": "hello from deepgram"}]}
            answer = {"results": {"channels": [received]}}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def handlers() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SpeechHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
