"""A statement made once and run often, without what each execution costs above the driver. For the busiest few."""

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, Dialect


class _CompiledStatement(NamedTuple):
    sql: str
    parameters: Sequence[str]
    constants: Mapping[str, Any]
    make_row: Callable[[Sequence[Any]], Any] | None


class PreparedStatement:
    """`statement` may hold values and named parameters, but no list of them. Rows have their columns as attributes.

    With SQLite it goes straight to the driver, whose errors then come as they are (`sqlite3.Error`).
    """

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._compiled: dict[tuple[str, ...], _CompiledStatement] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self._fetch(connection, values)

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """For every row, whose names are all the same."""
        if not rows:
            return
        if connection.dialect.name != "sqlite":
            connection.execute(self._statement, rows)
            return
        plan = self._get_compiled_statement(connection, rows[0])
        if not plan.constants.keys() <= rows[0].keys():
            rows = [{**plan.constants, **row} for row in rows]
        values = itemgetter(*plan.parameters) if len(plan.parameters) > 1 else lambda row: (row[plan.parameters[0]],)
        _driver_connection(connection).executemany(plan.sql, map(values, rows))

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """The first row, or None."""
        rows = self._fetch(connection, values)
        return rows[0] if rows else None

    def all(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Any]:
        return self._fetch(connection, values)

    def _fetch(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Any]:
        if connection.dialect.name != "sqlite":
            result = connection.execute(self._statement, values)
            return result.all() if result.returns_rows else ()
        plan = self._get_compiled_statement(connection, values)
        bound = [values[name] if name in values else plan.constants[name] for name in plan.parameters]
        rows = _driver_connection(connection).execute(plan.sql, bound).fetchall()
        return rows if plan.make_row is None else list(map(plan.make_row, rows))

    def _get_compiled_statement(self, connection: Connection, values: Mapping[str, Any]) -> _CompiledStatement:
        return self._compiled.get(tuple(values)) or self._compile(connection.dialect, tuple(values))

    def _compile(self, dialect: Dialect, names: tuple[str, ...]) -> _CompiledStatement:
        compiled = self._statement.compile(dialect=dialect, column_keys=list(names))
        columns = list(self._statement.exported_columns)
        plan = _CompiledStatement(
            str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params), _row_factory(columns)
        )
        self._compiled[names] = plan
        return plan


def _driver_connection(connection: Connection) -> sqlite3.Connection:
    return connection.connection.driver_connection  # type: ignore[return-value]  # it is SQLite's


def _row_factory(columns: Sequence[Any]) -> Callable[[Sequence[Any]], Any] | None:
    if not columns:
        return None
    row = namedtuple("Row", [column.name for column in columns])  # type: ignore[misc]  # its fields are the statement's
    yes_or_no = [place for place, column in enumerate(columns) if isinstance(column.type, Boolean)]
    if not yes_or_no:
        return row._make

    def made(values: Iterable[Any]) -> Any:
        found = list(values)
        for place in yes_or_no:
            found[place] = bool(found[place])
        return row._make(found)

    return made
