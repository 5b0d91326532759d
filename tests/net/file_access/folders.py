"""A machine with files that may leave and files that may not, and every way to name the latter."""

import json
import os
import socket
from pathlib import Path
from urllib.parse import quote

SECRET = "the-secret-of-this-machine"
PLAN = "the plan"


class Ground:
    """`work` is the workspace of the agent `main`, `other` of the agent `b`; the gateway's state is in `state`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work, self.other, self.state = folder / "work", folder / "other", folder / "state"
        for each in (self.work / "sub", self.work / ".git", self.other, self.state / "media", folder / "vault"):
            each.mkdir(parents=True)
        self.outside = folder / "vault" / "outside.txt"
        self.token = self.state / "gateway-token.txt"
        for secret in (self.outside, self.other / "outside.txt", self.work / ".env", self.work / ".git" / "config"):
            secret.write_text(SECRET)
        for plan in (self.work / "plan.txt", self.work / "sub" / "deep plan.txt", self.state / "media" / "plan.txt"):
            plan.write_text(PLAN)
        (self.work / "inner.txt").symlink_to("plan.txt")
        (self.work / "inner").symlink_to(self.work / "sub")

    def configure(self, **config: object) -> None:
        agents = [{"id": "main", "workspace": str(self.work)}, {"id": "b", "workspace": str(self.other)}]
        whole = {"agents": {"list": agents}, **config}
        (self.state / "openclaw.json").write_text(json.dumps(whole))

    def plant(self) -> None:
        """Links and odd files in the workspace; the gateway's token must be there by now."""
        work = self.work
        (work / "link.txt").symlink_to(self.outside)
        (work / "token.txt").symlink_to(self.token)
        (work / "climbing.txt").symlink_to("../vault/outside.txt")
        (work / "chain.txt").symlink_to("link.txt")
        (work / "linked").symlink_to(self.outside.parent)
        (work / "sub" / "linked").symlink_to("../../vault")
        (work / "root").symlink_to("/")
        (work / "environ.txt").symlink_to("/proc/self/environ")
        (work / "state").symlink_to(self.state)
        (work / "hard.txt").hardlink_to(self.outside)
        (work / "hard-token.txt").hardlink_to(self.token)
        (work / "copied.json").write_text(
            json.dumps({"headers": {"Authorization": f"Bearer {self.token.read_text()}"}})
        )
        (work / "sub" / ".hidden").symlink_to("../plan.txt")
        (work / "pretty").symlink_to(".git")
        os.mkfifo(work / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.open(work, os.O_RDONLY)
            listener.bind(f"/proc/self/fd/{here}/socket")  # a path that is short enough, wherever the tests are
            os.close(here)

    def mine(self) -> dict[str, str]:
        """Ways to name a file of the workspace, or of the folder made for it: these go out."""
        work = self.work
        return {
            "path": f"{work}/plan.txt",
            "relative": "plan.txt",
            "relative, deeper": "sub/deep plan.txt",
            "dotted": "./sub/../plan.txt",
            "spaces around": f"  {work}/plan.txt ",
            "doubled slashes": f"{work}//sub///deep plan.txt",
            "address": f"file://{work}/plan.txt",
            "address, capitals": f"FILE://{work}/plan.txt",
            "address, one slash": f"file:{work}/plan.txt",
            "address of this machine": f"file://localhost{work}/plan.txt",
            "address, encoded": f"file://{quote(str(work))}/sub/deep%20plan.txt",
            "link that stays inside": f"{work}/inner.txt",
            "folder link that stays inside": f"{work}/inner/deep plan.txt",
            "folder for files to send": f"{self.state}/media/plan.txt",
        }

    def secrets(self) -> dict[str, str]:
        """Ways to name what belongs to the gateway itself: these are sent to no caller."""
        work, token = self.work, self.token
        return {
            "token": str(token),
            "token, by address": f"file://{token}",
            "token, by link": f"{work}/token.txt",
            "token, by a linked folder": f"{work}/state/gateway-token.txt",
            "token, by dots": f"{work}/../state/gateway-token.txt",
            "token, by dots from its neighbour": f"{self.state}/media/../gateway-token.txt",
            "token, by a link to everything": f"{work}/root{token}",
            "token, by hard link": f"{work}/hard-token.txt",
            "token, through the process": f"/proc/self/root{token}",
            "token, encoded": f"file://{quote(str(self.state))}/gateway%2Dtoken%2Etxt",
            "token, in settings of a client": f"{work}/copied.json",
            "config": f"{self.state}/openclaw.json",
            "config, by a linked folder": f"{work}/state/openclaw.json",
            "store": f"{self.state}/openclaw.sqlite",
            "audit key": f"{self.state}/audit-key.bin",
            "log": f"{self.state}/gateway.log",
        }

    def not_mine(self) -> dict[str, str]:
        """Ways to name other files: these are not sent for an agent that acts for a stranger."""
        work, outside = self.work, self.outside
        climb = "../" * 30
        return {
            "outside": str(outside),
            "outside, trailing slash": f"{outside}/",
            "outside, by address": f"file://{outside}",
            "outside, by address in capitals": f"FILE://{outside}",
            "outside, by address with one slash": f"file:{outside}",
            "outside, by address of this machine": f"file://localhost{outside}",
            "outside, by address of another machine": f"file://elsewhere{outside}",
            "outside, by relative address": "file:../vault/outside.txt",
            "outside, encoded": f"file://{quote(str(outside), safe='')}",
            "outside, encoded dots": f"file://{work}/%2e%2e/vault/outside.txt",
            "outside, encoded twice": f"file://{work}/%252e%252e/vault/outside.txt",
            "outside, encoded without an address": f"{work}/%2e%2e/vault/outside.txt",
            "outside, by dots": f"{work}/../vault/outside.txt",
            "outside, by relative dots": "../vault/outside.txt",
            "outside, by dots deeper": f"{work}/sub/../../vault/outside.txt",
            "outside, by many dots": f"{climb}{outside}",
            "outside, by dots after a link": f"{work}/linked/../vault/outside.txt",
            "outside, by link": f"{work}/link.txt",
            "outside, by relative link": f"{work}/climbing.txt",
            "outside, by a chain of links": f"{work}/chain.txt",
            "outside, by a linked folder": f"{work}/linked/outside.txt",
            "outside, by a linked folder deeper": f"{work}/sub/linked/outside.txt",
            "outside, by a link to everything": f"{work}/root{outside}",
            "outside, by hard link": f"{work}/hard.txt",
            "outside, through the process": f"/proc/self/root{outside}",
            "outside, through a thread": f"/proc/thread-self/root{outside}",
            "outside, through the first process": f"/proc/1/root{outside}",
            "another agent's": f"{self.other}/outside.txt",
            "another agent's, by dots": f"{work}/../other/outside.txt",
            "hidden": f"{work}/.env",
            "hidden folder": f"{work}/.git/config",
            "hidden folder, by another name": f"{work}/pretty/config",
            "environment": "/proc/self/environ",
            "environment, by link": f"{work}/environ.txt",
            "memory": "/proc/self/mem",
            "command line": "/proc/self/cmdline",
            "descriptor": "/proc/self/fd/3",
            "descriptor, shorter": "/dev/fd/3",
            "standard input": "/dev/stdin",
            "device": "/dev/zero",
            "terminal": "/dev/tty",
            "kernel": "/sys/kernel/notes",
            "users": "/etc/passwd",
            "users, by look-alike dots": f"{work}/‥/‥/etc/passwd",
            "users, full-width": "／etc／passwd",  # noqa: RUF001 - the point of it
            "home": "~/.ssh/id_rsa",
            "home of root": "~root/.bashrc",
            "home, by address": "file://~/.ssh/id_rsa",
            "pipe": f"{work}/pipe",
            "socket": f"{work}/socket",
            "folder": str(work),
            "folder in it": f"{work}/sub",
            "nothing": f"{work}/nothing.txt",
            "other case": f"{self.folder}/WORK/plan.txt" if not (self.folder / "WORK").exists() else "/etc/passwd",
            "NUL": f"{work}/plan.txt\0.png",
            "NUL before": f"\0{outside}",
            "encoded NUL": f"file://{work}/plan.txt%00.png",
            "long name": f"{work}/{'x' * 300}",
            "long path": f"{work}/{'sub/../' * 2000}plan.txt",
            "lone surrogate": f"{work}/\ud800.txt",
            "Windows drive": "C:\\Windows\\win.ini",
            "Windows share": "\\\\server\\share\\file.txt",
            "Windows device": "\\\\?\\C:\\Windows\\win.ini",
            "Windows drive, by address": "file:///C:/Windows/win.ini",
            "other scheme": f"ftp://localhost{outside}",
            "scheme of a program": f"php://filter/resource={outside}",
            "scheme in a scheme": f"jar:file://{outside}!/x",
            "scheme with a break": f"fi\nle://{outside}",
            "only the scheme": "file:",
            "only slashes": "file://",
            "dot": ".",
            "dots": "..",
        }

    def refused(self) -> dict[str, str]:
        return self.secrets() | self.not_mine()
