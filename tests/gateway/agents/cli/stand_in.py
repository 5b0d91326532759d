"""Stands in for a CLI: does what the JSON file beside it says, step by step, and keeps how it was called.

Started as `PROGRAM ARGS…`; the file holds a list of steps for each start, the last list for all that follow:
`{"line": {...}}` prints an event, `{"raw": "…"}` prints as it is, `{"stderr": "…"}`, `{"sleep": 5}`, `{"exit": 1}`,
`{"child": "…"}` starts a Python program that stays, `{"count": n}` prints n events.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    stdin = sys.stdin.read()
    called = {"args": sys.argv[2:], "env": dict(os.environ), "stdin": stdin, "cwd": str(Path.cwd()), "pid": os.getpid()}
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(json.dumps(called))
    number = 0
    while True:
        try:
            os.link(draft, folder / f"call-{number}.json")
            break
        except FileExistsError:
            number += 1
    attempts = json.loads((folder / "steps.json").read_text())
    for step in attempts[min(number, len(attempts) - 1)]:
        take(step, folder)


def take(step: dict[str, object], folder: Path) -> None:
    match step:
        case {"line": line}:
            print(json.dumps(line), flush=True)
        case {"raw": str(text)}:
            print(text, flush=True)
        case {"count": int(number)}:
            for each in range(number):
                print(json.dumps({"type": "message", "role": "assistant", "content": f"{each} ", "delta": True}))
        case {"stderr": str(text)}:
            print(text, file=sys.stderr, flush=True)
        case {"sleep": float(seconds) | int(seconds)}:
            time.sleep(seconds)
        case {"run": list(argv)}:
            subprocess.run([str(word) for word in argv], check=True)
        case {"child": str(code), **how}:
            child = subprocess.Popen([sys.executable, "-c", code], start_new_session=bool(how.get("apart")))
            (folder / f"child-{child.pid}").touch()
        case {"exit": int(status)}:
            sys.exit(status)


if __name__ == "__main__":
    main()
