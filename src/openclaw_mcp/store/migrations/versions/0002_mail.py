"""The mailroom's tables: letters on their way, arrivals, acquaintances, local conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

Big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _outbox()
    _inbox()
    _acquaintances()
    _local()


def _outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("channel", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("to", sa.String(length=512), nullable=False),
        sa.Column("thread", sa.String(length=256), nullable=True),
        sa.Column("letters", sa.Text(), nullable=False),
        sa.Column("poll", sa.Text(), nullable=True),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("session", sa.String(length=512), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", Big, nullable=False),
        sa.Column("created_at", Big, nullable=False),
        sa.Column("updated_at", Big, nullable=False),
        sa.Column("receipts", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("uid", name=op.f("uq_outbox_uid")),
        sa.UniqueConstraint("key", name=op.f("uq_outbox_key")),
    )
    op.create_index("ix_outbox_session_created_at", "outbox", ["session", "created_at"])
    op.create_index("ix_outbox_status_id", "outbox", ["status", "id"])


def _inbox() -> None:
    op.create_table(
        "inbox",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("channel", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("message", sa.String(length=512), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("run_id", sa.String(length=256), nullable=True),
        sa.Column("session", sa.String(length=512), nullable=True),
        sa.Column("heard", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inbox")),
        sa.UniqueConstraint("channel", "account", "message", name=op.f("uq_inbox_channel_account_message")),
    )
    owed = sa.text("status <> 'done'")
    op.create_index("ix_inbox_owed", "inbox", ["id"], sqlite_where=owed, postgresql_where=owed)


def _acquaintances() -> None:
    op.create_table(
        "acquaintances",
        sa.Column("channel", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("sender", sa.String(length=512), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=True),
        sa.Column("code", sa.String(length=32), nullable=False),
        sa.Column("at", Big, nullable=False),
        sa.Column("approved", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("channel", "account", "sender", name=op.f("pk_acquaintances")),
    )


def _local() -> None:
    op.create_table(
        "local_messages",
        sa.Column("id", Big, autoincrement=True, nullable=False),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("conversation", sa.String(length=512), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("thread", sa.String(length=256), nullable=True),
        sa.Column("at", Big, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_local_messages")),
        sa.UniqueConstraint("account", "conversation", "key", name=op.f("uq_local_messages_account_conversation_key")),
    )
    op.create_index("ix_local_messages_conversation", "local_messages", ["account", "conversation", "id"])
    op.create_index("ix_local_messages_uid", "local_messages", ["uid"])
    op.create_table(
        "local_files",
        sa.Column("message", Big, nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("mime_type", sa.String(length=256), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["message"],
            ["local_messages.id"],
            name=op.f("fk_local_files_message"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("message", "n", name=op.f("pk_local_files")),
    )
