"""One order carried out in this process: `chat.send`, then its run's events, typed as the agent made them."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Final

from ..core import agent
from ..core.agent import AgentEvent, MediaAttached
from ..core.chat_messages import ChatMessage
from ..core.gateway_port import LocalGateway
from ..core.lenient import read_struct
from ..core.sessions import RunEnded, RunEvent, RunOutput
from ..net.gateway_client.remote_run import ADMIT_TIMEOUT, chat_send_params, stop_remote_run
from .approvals import OrderEvent
from .conversation import STOP_TIMEOUT, STOPPED, AgentOrder

PARTIAL_INTERVAL: Final = 0.075  # seconds between two reports of the text so far: faster than eyes, slower than tokens


async def run_local_order(gateway: LocalGateway, order: AgentOrder) -> AsyncGenerator[OrderEvent, None]:
    """The agent's events, ending with `TurnCompleted` or `TurnFailed`. Closing the iterator early stops the run."""
    reader = _RunReader(str(uuid.uuid4()))
    disconnect = gateway.run_events.connect(reader.on_run_event)
    ended = False
    try:
        contents = [item.data for item in order.attachments]
        params = chat_send_params(order.session_key, order.message, order.attachments, contents)
        await gateway.call("chat.send", {**params, "idempotencyKey": reader.run_id}, within=ADMIT_TIMEOUT)
        while not ended:
            event = await reader.events.get()
            ended = isinstance(event, agent.TurnCompleted | agent.TurnFailed)
            yield event
    finally:
        disconnect()
        reader.close()
        if not ended:
            await stop_remote_run(gateway, order.session_key, reader.run_id, STOP_TIMEOUT)


class _RunReader:
    """Turns the events of one run into those of an order: text as growing snapshots, not too often, then the end."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self._text = ""
        self._reported_text = ""
        self._next_report = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._media: list[MediaAttached] = []

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_run_event(self, event: RunEvent) -> None:
        match event:
            case RunOutput(run=run, event=output) if run.run_id == self.run_id:
                self._on_output(output)
            case RunEnded(run=run) if run.run_id == self.run_id:
                self._on_end(event)

    def _on_output(self, event: AgentEvent) -> None:
        match event:
            case agent.PartialAnswer(text=text, replace=replace):
                self._text = text if replace else self._text + text
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_at(self._next_report, self._report_text)
            case agent.ToolUse():
                self._report_text()
                self.events.put_nowait(event)
            case agent.ToolOutcome(content=content):
                shown = read_struct({"content": list(content)}, ChatMessage)
                self._put(event, *map(MediaAttached, shown.media))
            case MediaAttached(attachment=item) if item.data is not None:
                self._media.append(event)

    def _report_text(self) -> None:
        self.close()
        if self._text != self._reported_text:
            self._reported_text = self._text
            self._next_report = asyncio.get_running_loop().time() + PARTIAL_INTERVAL
            self.events.put_nowait(agent.PartialAnswer(text=self._text, replace=True))

    def _on_end(self, event: RunEnded) -> None:
        self._report_text()
        if self._text:
            self.events.put_nowait(agent.AnswerBlock(text=self._text))
        run = event.run
        if run.status == "aborted":
            self._put(agent.TurnFailed(message=STOPPED))
        elif run.status != "ok":
            self._put(agent.TurnFailed(message=run.error or "the agent failed"))
        else:
            bodies = (message.body for message in reversed(event.messages) if message.role == "assistant")
            answer = read_struct(next(bodies, None), ChatMessage)
            # A run that another process carried out left its pictures in the answer alone.
            self._put(*(self._media or map(MediaAttached, answer.media)), agent.TurnCompleted(text=answer.text))

    def _put(self, *events: AgentEvent) -> None:
        for event in events:
            self.events.put_nowait(event)
