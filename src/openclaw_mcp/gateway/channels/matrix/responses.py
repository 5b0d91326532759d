"""Answers of the client-server API, with the fields that we read."""

from msgspec import Struct

from ....core.model import Json
from .events import MatrixEvent


class Acknowledgement(Struct, frozen=True):
    """The answer to a change."""

    event_id: str = ""


class RoomAnswer(Struct, frozen=True):
    room_id: str


class UploadAnswer(Struct, frozen=True):
    content_uri: str


class EventList(Struct, frozen=True, kw_only=True):
    events: list[MatrixEvent] = []


class Timeline(EventList, frozen=True, kw_only=True):
    limited: bool = False
    """Whether events before these were left out."""
    prev_batch: str | None = None


class RoomSummary(Struct, frozen=True, rename={"joined": "m.joined_member_count", "invited": "m.invited_member_count"}):
    joined: int | None = None
    invited: int | None = None


class JoinedRoom(Struct, frozen=True, kw_only=True):
    state: EventList = EventList()
    timeline: Timeline = Timeline()
    summary: RoomSummary = RoomSummary()


class InvitedRoom(Struct, frozen=True):
    invite_state: EventList = EventList()


class SyncedRooms(Struct, frozen=True, kw_only=True):
    join: dict[str, JoinedRoom] = {}
    invite: dict[str, InvitedRoom] = {}
    leave: dict[str, JoinedRoom] = {}


class OtherEvent(Struct, frozen=True):
    """An event that is not of a room; what it holds depends on its type."""

    type: str = ""
    content: Json = {}


class AccountData(Struct, frozen=True):
    events: list[OtherEvent] = []


class ToDevice(Struct, frozen=True):
    events: list[Json] = []
    """As they are: nio parses them."""


class DeviceLists(Struct, frozen=True):
    changed: list[str] = []


class SyncAnswer(Struct, frozen=True, kw_only=True):
    next_batch: str
    rooms: SyncedRooms = SyncedRooms()
    account_data: AccountData = AccountData()
    to_device: ToDevice = ToDevice()
    device_lists: DeviceLists = DeviceLists()
    device_one_time_keys_count: dict[str, int] | None = None


class EventPage(Struct, frozen=True, kw_only=True):
    """One page of a room's events, or of those related to one."""

    chunk: list[MatrixEvent] = []
    end: str | None = None
    next_batch: str | None = None


class EventNeighbourhood(Struct, frozen=True):
    """The answer of `context`."""

    start: str
