"""What an account knows of its rooms, as the syncs tell it: names, members, encryption, who is talked to alone."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct, field

from ....core.model import Json

DIRECT_ROOM_MEMBERS: Final = 2  # a conversation between us and one other


class MatrixRoom(Struct, kw_only=True):
    id: str
    name: str | None = None
    alias: str | None = None
    encrypted: bool = False
    marked_direct: bool = False
    """Somebody said it is a direct chat: the invitation, or our own list."""
    members: dict[str, Json] = field(default_factory=dict)
    """Member events' contents by user id, of those the server told us about."""
    has_all_members: bool = False
    """Whether `people` has all."""
    joined_count: int = 0
    invited_count: int = 0

    @property
    def is_direct(self) -> bool:
        """Never with a third in the room, whatever anybody marked."""
        alone = self.joined_count + self.invited_count <= DIRECT_ROOM_MEMBERS
        return alone and (self.marked_direct or (self.name is None and self.alias is None))

    @property
    def member_ids(self) -> list[str]:
        return [user for user, content in self.members.items() if content.get("membership") in ("join", "invite")]

    def display_name(self, user: str) -> str | None:
        return _text(self.members.get(user, {}).get("displayname"))


class MatrixRooms:
    """The rooms of one account, by id."""

    def __init__(self, user_id: str) -> None:
        self.user_id = user_id
        self._rooms: dict[str, MatrixRoom] = {}
        self._direct_rooms: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def get(self, id: str) -> MatrixRoom | None:
        return self._rooms.get(id)

    def find_by_alias(self, alias: str) -> str | None:
        return next((room.id for room in self._rooms.values() if room.alias == alias), None)

    def find_direct_room(self, user: str) -> str | None:
        """The room we talk to `user` alone in, if there is one and they have not left it."""
        listed = [id for id in self._direct_rooms.get(user, ()) if id in self._rooms]
        for id in [*listed, *self._rooms]:
            room = self._rooms[id]
            there = room.members.get(user, {}).get("membership", "join" if id in listed else None)
            if (
                room.is_direct
                and room.joined_count + room.invited_count == DIRECT_ROOM_MEMBERS
                and there in ("join", "invite")
            ):
                return id
        return None

    def add_direct_room(self, *, user: str, room: str) -> Json:
        """Our list of direct chats with one more in it, for the account's `m.direct`."""
        mine = {person: list(ids) for person, ids in self._direct_rooms.items()}
        mine.setdefault(user, []).append(room)
        self._direct_rooms = mine
        return dict(mine)

    def apply_account_data(self, events: Any) -> None:
        for event in _events(events):
            if event.get("type") == "m.direct" and isinstance(event.get("content"), dict):
                lists = event["content"].items()
                self._direct_rooms = {
                    user: [id for id in ids if isinstance(id, str)] for user, ids in lists if _is_list(ids)
                }
                known = {id for ids in self._direct_rooms.values() for id in ids}
                for room in self._rooms.values():
                    room.marked_direct = room.marked_direct or room.id in known

    def remove(self, id: str) -> None:
        self._rooms.pop(id, None)

    def update(self, id: str, part: Json) -> bool:
        """Take in a room's part of a sync; whether anybody came or went."""
        room = self._rooms.setdefault(id, MatrixRoom(id=id))
        room.marked_direct = room.marked_direct or any(id in ids for ids in self._direct_rooms.values())
        state = [*_events(part.get("state")), *_events(part.get("timeline"))]
        moved = [self._apply_state(room, event) for event in state if "state_key" in event]
        summary = _dict(part.get("summary"))
        room.joined_count = _count(summary.get("m.joined_member_count"), room.joined_count)
        room.invited_count = _count(summary.get("m.invited_member_count"), room.invited_count)
        return any(moved)

    def _apply_state(self, room: MatrixRoom, event: Json) -> bool:
        content = _dict(event.get("content"))
        match event.get("type"):
            case "m.room.name":
                room.name = _text(content.get("name"))
            case "m.room.canonical_alias":
                room.alias = _text(content.get("alias"))
            case "m.room.encryption":
                room.encrypted = True  # for good: a room can't be opened again
            case "m.room.member":
                return self._apply_member(room, str(event.get("state_key")), content)
        return False

    def _apply_member(self, room: MatrixRoom, user: str, content: Json) -> bool:
        before = room.members.get(user, {}).get("membership")
        room.members[user] = content
        if user == self.user_id:
            room.marked_direct = room.marked_direct or content.get("is_direct") is True
        return bool(before != content.get("membership"))


def timeline_events(part: Json) -> list[Json]:
    return list(_events(part.get("timeline")))


def _events(part: Any) -> Iterable[Json]:
    events = part.get("events") if isinstance(part, dict) else part
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _count(value: Any, before: int) -> int:
    return value if isinstance(value, int) else before


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
