"""Tool names as model APIs take them: letters, digits, `_` and `-`, 64 at most. Pure."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

LONGEST_NAME: Final = 64
_ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def api_tool_names(names: Iterable[str]) -> Mapping[str, str]:
    """Each name's spelling, no two the same. One that is fine as it is keeps it, whatever others would like."""
    names = list(names)
    spelling = {name: name for name in names if _ALLOWED.fullmatch(name)}
    taken = set(spelling)
    for name in names:
        if name in spelling:
            continue
        wanted = _OTHER.sub("_", name)
        if len(wanted) > LONGEST_NAME or not wanted or wanted in taken:
            mark = hashlib.sha256(name.encode()).hexdigest()[:8]
            wanted = f"{wanted[: LONGEST_NAME - 9]}_{mark}"
        spelling[name] = wanted
        taken.add(wanted)
    return spelling
