"""Files that came with a message: fetched once its sender may write to us, and not before."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from ...core.agent import Attachment
from ...core.channel import ChannelBusy, ChannelError, ChannelRefused
from ...core.model import Json

logger = logging.getLogger(__name__)

FETCH_ATTEMPTS: Final = 4  # of one file: a question must not wait for ever for a picture its server can't find
FIRST_WAIT: Final = 1.0  # seconds before the second try, doubled each time
MAX_WAIT: Final = 30.0  # seconds, whatever the server asks for
FALLBACK_MIME_TYPE: Final = "application/octet-stream"


@runtime_checkable
class AttachmentFetcher(Protocol):
    """A channel whose messages name files that lie on its server: `Heard.files`."""

    async def fetch(self, file: Json) -> Attachment:
        """The file, or its name alone when it is too large or gone. Raises ChannelError when it may come later."""


async def fetch_attachments(channel: object, files: Sequence[Json]) -> tuple[Attachment, ...]:
    """One for each, in order; of what can't be had, the name. None: the channel is gone."""
    if not isinstance(channel, AttachmentFetcher):
        return tuple(map(_placeholder, files))
    return tuple([await _fetch_with_retry(channel, file) for file in files])


async def _fetch_with_retry(channel: AttachmentFetcher, file: Json) -> Attachment:
    wait = FIRST_WAIT
    for left in reversed(range(FETCH_ATTEMPTS)):
        try:
            return await channel.fetch(file)
        except ChannelRefused as exc:
            logger.warning("an attachment was not taken: %s", exc)
            break
        except ChannelError as exc:
            logger.warning("an attachment can't be fetched now: %s", exc)
            if left:
                asked = exc.retry_after if isinstance(exc, ChannelBusy) else wait
                await asyncio.sleep(min(asked, MAX_WAIT))
                wait *= 2
    return _placeholder(file)


def _placeholder(file: Json) -> Attachment:
    name, kind = file.get("name"), file.get("mime_type")
    return Attachment(
        mime_type=kind if isinstance(kind, str) else FALLBACK_MIME_TYPE, name=name if isinstance(name, str) else None
    )
