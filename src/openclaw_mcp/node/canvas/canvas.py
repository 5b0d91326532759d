"""The canvas: a page an agent may show, script, capture and build from A2UI lines."""

import asyncio
import os
import sys
import tempfile
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ...core.errors import ToolArguments, ToolError
from ...core.model import Json, ToolCall, ToolResult, ToolSpec
from ...net.file_access import FileAccess, FileOutside, FileRefused, read_file
from .. import arguments
from ..capability import NodeCommand, UnavailableReason, hold_lock, json_result
from ..media.results import image_result
from ..settings import NodeSettings
from . import a2ui, chromium, urls
from .browser_page import NO_BROWSER, BrowserPage, PageContent, Window

DEADLINE: Final = 90.0  # seconds: a cold start, a slow page and one answer
QUEUE_WAIT: Final = 60.0  # seconds behind other canvas calls; each of them is bounded
MAX_HTML: Final = 4 << 20  # characters of one page
MAX_VALUE: Final = 4 << 20  # bytes a script may hand back

WINDOW_PROPERTIES: Final = {
    "width": {"type": "integer", "description": "Width of the page, 100 to 7680; default 800."},
    "height": {"type": "integer", "description": "Height of the page, 100 to 7680; default 600."},
    "x": {"type": "integer", "description": "Left edge of the window; -1, the default, centres it."},
    "y": {"type": "integer", "description": "Top edge of the window; -1, the default, centres it."},
    "title": {"type": "string", "description": "Title of a page given as html that has none."},
    "alwaysOnTop": {"type": "boolean", "description": "Accepted; the window is an ordinary one."},
}
A2UI_PROPERTIES: Final = {
    "jsonl": {"type": "string", "description": "A2UI 0.8 messages, one JSON object a line, 4 MiB and 4096 lines."},
    "jsonlPath": {"type": "string", "description": "Or a file with them, inside the temporary directory."},
    "props": {"type": "object", "description": "Accepted, not used."},
}

CanvasHandler = Callable[["CanvasCapability", ToolCall], Awaitable[ToolResult]]
_COMMANDS: list[tuple[ToolSpec, CanvasHandler]] = []


def _register_command(
    name: str, description: str, properties: dict[str, Json], *, required: tuple[str, ...] = (), reads: bool = False
) -> Callable[[CanvasHandler], CanvasHandler]:
    spec = arguments.command_spec(
        f"canvas.{name}",
        None,
        description,
        properties,
        required=required,
        annotations={"readOnlyHint": reads, "destructiveHint": False},
        effect="read" if reads else "write",
        deadline=DEADLINE,
    )

    def register(run: CanvasHandler) -> CanvasHandler:
        _COMMANDS.append((spec, run))
        return run

    return register


class CanvasCapability:
    """`canvas.*`. Pages from the loopback or the local network are shown only from origins that the settings trust."""

    name = "canvas"

    def __init__(
        self,
        *,
        state_dir: Path,
        settings: Callable[[], NodeSettings] = NodeSettings,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._surfaces = a2ui.Surfaces()
        self._lock = asyncio.Lock()
        self._state_dir = state_dir
        self._page = BrowserPage(
            state_dir / "canvas", browser=self._find_browser, trusted=self._trusted, environ=environ
        )

    def commands(self) -> Sequence[NodeCommand]:
        return [NodeCommand(spec=spec, run=self._bind_handler(run)) for spec, run in _COMMANDS]

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        if sys.platform == "win32":
            return UnavailableReason(
                "The canvas is not built for Windows yet.", "Use the OpenClaw tray application there."
            )
        if self._find_browser() is None:
            return UnavailableReason(
                NO_BROWSER, "Install one (Debian: apt install chromium), or name it in the setting canvasBrowser."
            )
        return None

    async def aclose(self) -> None:
        await self._page.close()

    @property
    def browser_pid(self) -> int | None:
        """The browser's process, while one runs."""
        return self._page.pid

    def _find_browser(self) -> str | None:
        return chromium.find_browser(self._settings().canvas_browser)

    def _trusted(self) -> frozenset[urls.WebOrigin]:
        return urls.parse_origins(self._settings().canvas_trusted)

    def _bind_handler(self, handler: CanvasHandler) -> Callable[[ToolCall], Awaitable[ToolResult]]:
        async def handle(call: ToolCall) -> ToolResult:
            # One call at a time: they share one page.
            async with hold_lock(self._lock, QUEUE_WAIT, "the canvas is busy with other calls; try again"):
                return await handler(self, call)

        return handle

    async def _require_open(self) -> None:
        if self._page.content is None:
            raise ToolError("CANVAS_NOT_OPEN: call canvas.present first")
        before = self._page.pid
        await self._page.restore()
        if self._page.pid != before and self._page.content.url == f"{urls.CANVAS_ORIGIN}/a2ui":
            await self._draw_surfaces()

    async def _draw_surfaces(self) -> None:
        surfaces = msgspec.json.encode(self._surfaces.to_page()).decode()
        await self._page.evaluate_with_retry(f"openclaw.show({surfaces})")

    def _current_window(self) -> Window:
        return self._page.content.window if self._page.content else Window()

    @_register_command(
        "present",
        "Show a page in the canvas window: a url, or html. A url that begins with / is a file of the canvas's folder.",
        {
            "url": {"type": "string", "description": "http(s), data:text/html, about:blank or /file; wins over html."},
            "html": {"type": "string", "description": "The page itself."},
            **WINDOW_PROPERTIES,
        },
    )
    async def present(self, call: ToolCall) -> ToolResult:
        given = call.arguments
        window = Window(
            width=arguments.integer(call, "width", default=800, least=100, most=7680),
            height=arguments.integer(call, "height", default=600, least=100, most=7680),
            x=arguments.integer(call, "x", default=-1, least=-16384, most=16384),
            y=arguments.integer(call, "y", default=-1, least=-16384, most=16384),
            title=arguments.text(call, "title") or "Canvas",
        )
        url, html = arguments.text(call, "url"), given.get("html")
        if url is not None:
            content = PageContent(url=await urls.resolve_page_url(url, trusted=self._trusted()), window=window)
        else:
            content = PageContent(
                url=f"{urls.CANVAS_ORIGIN}/",
                html=_add_title(html if isinstance(html, str) else "", window),
                window=window,
            )
        await self._page.show(content)
        return json_result({"presented": True})

    @_register_command("hide", "Close the canvas window and end its browser.", {})
    async def hide(self, call: ToolCall) -> ToolResult:
        self._surfaces.reset()
        await self._page.close()
        return json_result({"hidden": True})

    @_register_command(
        "navigate",
        "Open a public https address in the canvas.",
        {"url": {"type": "string", "description": "Absolute http or https address."}},
        required=("url",),
    )
    async def navigate(self, call: ToolCall) -> ToolResult:
        url = arguments.text(call, "url")
        if url is None:
            raise ToolArguments("Missing url parameter")
        target = urls.parse_web_url(url, trusted=self._trusted())
        if target.risk is not None or await urls.leads_to_private_network(target):
            reason = target.risk or "its host is in a private network"
            refusal = {"navigated": False, "opener": "unsupported_in_canvas", "url": target.url, "reason": reason}
            return json_result(refusal)
        await self._page.show(PageContent(url=target.url, window=self._current_window()))
        return json_result({"navigated": True, "opener": "canvas", "url": target.url})

    @_register_command(
        "eval",
        "Run JavaScript in the canvas's page; promises are waited for. The result is the value as JSON text.",
        {
            "script": {"type": "string", "description": "An expression or several statements."},
            "javaScript": {"type": "string", "description": "Another name for script."},
            "javascript": {"type": "string", "description": "Another name for script."},
        },
    )
    async def eval(self, call: ToolCall) -> ToolResult:
        script = arguments.text(call, "script", "javaScript", "javascript")
        if script is None:
            raise ToolArguments("Missing script parameter")
        await self._require_open()
        value = msgspec.json.encode(await self._page.evaluate(script))
        if len(value) > MAX_VALUE:
            raise ToolError(f"The script's value has more than {MAX_VALUE} bytes; hand back less")
        return json_result({"result": value.decode()})

    @_register_command(
        "snapshot",
        "Take a picture of the canvas's page and return it as an image.",
        {
            "format": {"type": "string", "description": "png (default) or jpeg."},
            "maxWidth": {"type": "integer", "description": "Scale down to this width, 32 to 7680; default 1200."},
            "quality": {"type": "number", "description": "JPEG quality, 1 to 100 or a share up to 1; default 80."},
        },
        reads=True,
    )
    async def snapshot(self, call: ToolCall) -> ToolResult:
        form = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg"}.get((arguments.text(call, "format") or "png").lower())
        if form is None:
            raise ToolArguments("Unsupported canvas snapshot format. Supported formats: png, jpeg.")
        width = arguments.integer(call, "maxWidth", default=1200, least=32, most=7680)
        await self._require_open()
        quality = arguments.percent(call, "quality", default=80)
        shot = await self._page.capture_screenshot(form=form, width=width, quality=quality)
        value = {"format": form, "width": shot.width, "height": shot.height}
        return image_result(value, b64decode(shot.base64), f"image/{form}")

    @_register_command("a2ui.push", "Build or change what the canvas shows with A2UI 0.8 messages.", A2UI_PROPERTIES)
    async def push(self, call: ToolCall) -> ToolResult:
        jsonl = call.arguments.get("jsonl")
        path = arguments.text(call, "jsonlPath")
        if not isinstance(jsonl, str) or not jsonl.strip():
            if path is None:
                raise ToolArguments("Missing jsonl or jsonlPath parameter")
            jsonl = await asyncio.to_thread(_read_jsonl, path, self._state_dir)
        counted, skipped = self._surfaces.push(str(jsonl))
        content = self._page.content
        if content is None or content.url != f"{urls.CANVAS_ORIGIN}/a2ui":
            await self._page.show(PageContent(url=f"{urls.CANVAS_ORIGIN}/a2ui", window=self._current_window()))
        else:
            await self._page.restore()
        await self._draw_surfaces()
        return json_result({"pushed": True, "applied": counted, "skipped": skipped})

    _register_command("a2ui.pushJSONL", "Another name for canvas.a2ui.push.", A2UI_PROPERTIES)(push)

    @_register_command("a2ui.reset", "Take away everything A2UI messages have built.", {})
    async def reset(self, call: ToolCall) -> ToolResult:
        self._surfaces.reset()
        content = self._page.content
        if content is not None and content.url == f"{urls.CANVAS_ORIGIN}/a2ui":
            await self._page.restore()
            await self._draw_surfaces()
        return json_result({"reset": True})

    @_register_command("a2ui.dump", "What A2UI messages have built so far, as JSON.", {}, reads=True)
    async def dump(self, call: ToolCall) -> ToolResult:
        return json_result(self._surfaces.dump())

    @_register_command("caps", "What this canvas can do.", {}, reads=True)
    async def caps(self, call: ToolCall) -> ToolResult:
        lines = {"version": a2ui.VERSION, "push": True, "reset": True, "introspect": True}
        return json_result({"renderer": "web", "eval": True, "snapshot": True, "navigate": True, "a2ui": lines})


def _add_title(html: str, window: Window) -> str:
    if len(html) > MAX_HTML:
        raise ToolArguments(f"html has more than {MAX_HTML} characters")
    if "<title" in html.lower():
        return html
    title = msgspec.json.encode(window.title).decode().replace("<", "\\u003c")
    # At the end, where no doctype comes after it: before one it would switch the page to quirks mode.
    return f"{html}<script>document.title ||= {title}</script>"


def _read_jsonl(path: str, state_dir: Path) -> str:
    """A file of lines. It must be in the temporary directory when every link has been followed."""
    access = FileAccess(folders=(Path(tempfile.gettempdir()),), secrets=(state_dir,))
    try:
        return read_file(path, access, max_bytes=a2ui.MAX_BYTES).data.decode("utf-8")
    except FileOutside:
        raise ToolArguments(
            "Failed to read jsonlPath: it must be a file of at most 4 MiB in the temporary directory"
        ) from None
    except FileRefused as exc:
        raise ToolArguments(f"Failed to read jsonlPath: {exc}") from None
    except UnicodeDecodeError:
        raise ToolArguments("Failed to read jsonlPath: it is no text in UTF-8") from None
