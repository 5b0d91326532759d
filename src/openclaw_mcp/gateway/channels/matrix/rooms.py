"""The rooms of an account, as the syncs describe them: names, members, encryption, direct chats."""

from typing import Final

from msgspec import Struct, field

from ....core.lenient import convert_lenient
from .events import EventContent, MatrixEvent
from .responses import AccountData, JoinedRoom

DIRECT_ROOM_MEMBERS: Final = 2  # we and one other person


class RoomMember(Struct, frozen=True):
    membership: str | None
    name: str | None


class MatrixRoom(Struct, kw_only=True):
    id: str
    name: str | None = None
    alias: str | None = None
    encrypted: bool = False
    marked_direct: bool = False
    """Whether the invitation, or our own list, calls it a direct chat."""
    members: dict[str, RoomMember] = field(default_factory=dict)
    """The members we received events of, by user id."""
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
        return [user for user, member in self.members.items() if member.membership in ("join", "invite")]

    def display_name(self, user: str) -> str | None:
        return self.members[user].name if user in self.members else None

    def set_member(self, user: str, content: EventContent) -> bool:
        """Returns whether the membership changed."""
        before = self.members.get(user)
        self.members[user] = RoomMember(content.membership, content.displayname or None)
        return content.membership != (before.membership if before is not None else None)


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
            member = room.members.get(user)
            may_be_in = id in listed if member is None else member.membership in ("join", "invite")
            has_both = room.joined_count + room.invited_count == DIRECT_ROOM_MEMBERS
            if room.is_direct and has_both and may_be_in:
                return id
        return None

    def add_direct_room(self, *, user: str, room: str) -> dict[str, list[str]]:
        """Our list of direct chats with this one added, for the account's `m.direct`."""
        lists = {person: list(ids) for person, ids in self._direct_rooms.items()}
        lists.setdefault(user, []).append(room)
        self._direct_rooms = lists
        return lists

    def apply_account_data(self, data: AccountData) -> None:
        for event in data.events:
            if event.type == "m.direct":
                self._direct_rooms = convert_lenient(event.content, dict[str, list[str]])
                known = {id for ids in self._direct_rooms.values() for id in ids}
                for room in self._rooms.values():
                    room.marked_direct = room.marked_direct or room.id in known

    def remove(self, id: str) -> None:
        self._rooms.pop(id, None)

    def update(self, id: str, part: JoinedRoom) -> tuple[MatrixRoom, bool]:
        """Apply a room's part of a sync; returns the room, and whether its members changed."""
        room = self._rooms.setdefault(id, MatrixRoom(id=id))
        room.marked_direct = room.marked_direct or any(id in ids for ids in self._direct_rooms.values())
        state = [event for event in (*part.state.events, *part.timeline.events) if event.state_key is not None]
        member_changes = [self._apply_state(room, event) for event in state]
        summary = part.summary
        room.joined_count = room.joined_count if summary.joined is None else summary.joined
        room.invited_count = room.invited_count if summary.invited is None else summary.invited
        return room, any(member_changes)

    def _apply_state(self, room: MatrixRoom, event: MatrixEvent) -> bool:
        """Returns whether the members changed."""
        content = event.content
        match event.type:
            case "m.room.name":
                room.name = content.name or None
            case "m.room.canonical_alias":
                room.alias = content.alias or None
            case "m.room.encryption":
                room.encrypted = True  # for good: encryption can't be switched off
            case "m.room.member":
                room.marked_direct |= event.state_key == self.user_id and content.is_direct
                return room.set_member(event.state_key or "", content)
        return False
