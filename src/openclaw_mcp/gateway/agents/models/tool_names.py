"""Tool names as model APIs take them. Pure."""

import hashlib
from collections.abc import Iterable, Mapping

from ....core.tool_naming import MAX_TOOL_NAME, replace_unsafe


def api_tool_names(names: Iterable[str]) -> Mapping[str, str]:
    """Each name's spelling, no two the same. A valid name keeps its own, also when another would get the same."""
    names = list(names)
    spelling = {name: name for name in names if 0 < len(name) <= MAX_TOOL_NAME and replace_unsafe(name, "") == name}
    taken = set(spelling)
    for name in names:
        if name in spelling:
            continue
        wanted = replace_unsafe(name, "_")
        if len(wanted) > MAX_TOOL_NAME or not wanted or wanted in taken:
            mark = hashlib.sha256(name.encode()).hexdigest()[:8]
            wanted = f"{wanted[: MAX_TOOL_NAME - 9]}_{mark}"
        spelling[name] = wanted
        taken.add(wanted)
    return spelling
