"""Everything at once, as a newcomer starts it."""

import os
import signal
import subprocess
from pathlib import Path

from tests.running import OPENCLAW, process, read_line
from tests.web_client import rpc, send


def test_every_surface_answers_at_the_address_it_is_said_to_have(tmp_path: Path) -> None:
    words = [
        OPENCLAW,
        "up",
        "--gateway-port",
        "0",
        "--node-port",
        "0",
        "--proxy-port",
        "0",
        "--state-dir",
        str(tmp_path),
    ]
    settings = {**os.environ, "HOME": str(tmp_path)}
    with process(*words, stdout=subprocess.PIPE, env=settings) as child:
        assert read_line(child, 60).split()[:2] == [b"surface", b"address"]
        rows = {}
        for _ in range(3):
            name, address, token, *_ = read_line(child).decode().split()
            rows[name] = (address, token)
        assert send(rows["proxy"][0] + "/health", "GET").body == b"ok"
        for name in ("node", "gateway"):
            address, token = rows[name]
            bearer = f"Bearer {Path(token).read_text().strip()}"
            listed = send(address, "POST", rpc("tools/list"), Authorization=bearer)
            assert listed.status == 200, listed.body
            assert send(address, "POST", rpc("tools/list")).status == 401
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) == 0


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    words = [
        OPENCLAW,
        "up",
        "--gateway-port",
        "0",
        "--node-port",
        "0",
        "--proxy-port",
        "0",
        "--state-dir",
        str(tmp_path),
    ]
    with process(*words, stdout=subprocess.PIPE) as child:
        read_line(child, 60)
        number = read_line(child).decode().split()[1].rpartition(":")[2]
        words[words.index("--proxy-port") + 1] = number
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert f"port {number}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
