"""The rooms of an account, as the syncs describe them: names, members, encryption, direct chats."""

from typing import Any, Final

from msgspec import Struct, field

from ....core.model import Json
from ..json_values import as_dict, as_int, as_text
from .events import content_of, event_list

DIRECT_ROOM_MEMBERS: Final = 2  # we and one other person


class MatrixRoom(Struct, kw_only=True):
    id: str
    name: str | None = None
    alias: str | None = None
    encrypted: bool = False
    marked_direct: bool = False
    """Whether the invitation, or our own list, calls it a direct chat."""
    members: dict[str, Json] = field(default_factory=dict)
    """Contents of the member events we received, by user id."""
    has_all_members: bool = False
    """Whether `members` is complete."""
    joined_count: int = 0
    invited_count: int = 0

    @property
    def is_direct(self) -> bool:
        """Never with a third member, even if marked so."""
        is_small = self.joined_count + self.invited_count <= DIRECT_ROOM_MEMBERS
        return is_small and (self.marked_direct or (self.name is None and self.alias is None))

    @property
    def member_ids(self) -> list[str]:
        return [user for user, content in self.members.items() if content.get("membership") in ("join", "invite")]

    def display_name(self, user: str) -> str | None:
        return as_text(self.members.get(user, {}).get("displayname")) or None


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
        """Our direct chat with `user`, if there is one and they have not left it."""
        listed = [id for id in self._direct_rooms.get(user, ()) if id in self._rooms]
        for id in [*listed, *self._rooms]:
            room = self._rooms[id]
            membership = room.members.get(user, {}).get("membership", "join" if id in listed else None)
            has_both = room.joined_count + room.invited_count == DIRECT_ROOM_MEMBERS
            if room.is_direct and has_both and membership in ("join", "invite"):
                return id
        return None

    def add_direct_room(self, *, user: str, room: str) -> Json:
        """Our list of direct chats with this one added, for the account's `m.direct`."""
        lists = {person: list(ids) for person, ids in self._direct_rooms.items()}
        lists.setdefault(user, []).append(room)
        self._direct_rooms = lists
        return dict(lists)

    def apply_account_data(self, events: Any) -> None:
        for event in event_list(events):
            if event.get("type") == "m.direct" and isinstance(event.get("content"), dict):
                self._direct_rooms = {
                    user: [id for id in ids if isinstance(id, str)]
                    for user, ids in event["content"].items()
                    if isinstance(ids, list)
                }
                known = {id for ids in self._direct_rooms.values() for id in ids}
                for room in self._rooms.values():
                    room.marked_direct = room.marked_direct or room.id in known

    def remove(self, id: str) -> None:
        self._rooms.pop(id, None)

    def update(self, id: str, part: Json) -> tuple[MatrixRoom, bool]:
        """Apply a room's part of a sync; returns the room, and whether its members changed."""
        room = self._rooms.setdefault(id, MatrixRoom(id=id))
        room.marked_direct = room.marked_direct or any(id in ids for ids in self._direct_rooms.values())
        state = [*event_list(part.get("state")), *event_list(part.get("timeline"))]
        member_changes = [self._apply_state(room, event) for event in state if "state_key" in event]
        summary = as_dict(part.get("summary"))
        room.joined_count = as_int(summary.get("m.joined_member_count"), room.joined_count)
        room.invited_count = as_int(summary.get("m.invited_member_count"), room.invited_count)
        return room, any(member_changes)

    def _apply_state(self, room: MatrixRoom, event: Json) -> bool:
        content = content_of(event)
        match event.get("type"):
            case "m.room.name":
                room.name = as_text(content.get("name")) or None
            case "m.room.canonical_alias":
                room.alias = as_text(content.get("alias")) or None
            case "m.room.encryption":
                room.encrypted = True  # for good: encryption can't be switched off
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
    return event_list(part.get("timeline"))
