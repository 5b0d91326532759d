"""Statements compiled once and run often, without what each execution costs above the driver. For the busiest few."""

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, Dialect


class _Compiled(NamedTuple):
    sql: str
    bind: Callable[[Mapping[str, Any]], Sequence[Any]]
    """Makes the driver's parameters of named values."""
    make_row: Callable[[Sequence[Any]], Any]


class PreparedStatement:
    """`statement` may hold values and named parameters, but no list of them. Rows have their columns as attributes.

    With SQLite it runs on the driver itself, whose errors are then raised as they are (`sqlite3.Error`).
    """

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._compiled: dict[tuple[str, ...], _Compiled] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        self.all(connection, values)

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """The first row, or None."""
        rows = self.all(connection, values)
        return rows[0] if rows else None

    def all(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Any]:
        rows = self.tuples(connection, values)
        if not rows or connection.dialect.name != "sqlite":
            return rows
        make_row = self._compile(connection.dialect, values).make_row
        return list(map(make_row, rows))

    def tuples(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Any]:
        """Rows as the driver makes them: with SQLite, tuples in which 0 and 1 stand for booleans."""
        if connection.dialect.name != "sqlite":
            result = connection.execute(self._statement, values)
            return result.all() if result.returns_rows else ()
        compiled = self._compile(connection.dialect, values)
        return _driver(connection).execute(compiled.sql, compiled.bind(values)).fetchall()

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for every row; all rows have the same names."""
        if not rows:
            return
        if connection.dialect.name != "sqlite":
            connection.execute(self._statement, rows)
            return
        compiled = self._compile(connection.dialect, rows[0])
        _driver(connection).executemany(compiled.sql, map(compiled.bind, rows))

    def scalar_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """For every row the value that the statement returned, None where it returned nothing."""
        if connection.dialect.name != "sqlite":
            return [connection.execute(self._statement, row).scalar() for row in rows]
        compiled = self._compile(connection.dialect, rows[0])
        execute, bind = _driver(connection).cursor().execute, compiled.bind
        found = (execute(compiled.sql, bind(row)).fetchone() for row in rows)
        return [None if row is None else row[0] for row in found]

    def _compile(self, dialect: Dialect, values: Mapping[str, Any]) -> _Compiled:
        names = tuple(values)
        found = self._compiled.get(names)
        if found is None:
            made = self._statement.compile(dialect=dialect, column_keys=list(names))
            bind = _binder(tuple(made.positiontup or ()), made.params, names)
            found = _Compiled(str(made), bind, _row_factory(list(self._statement.exported_columns)))
            self._compiled[names] = found
        return found


def _driver(connection: Connection) -> sqlite3.Connection:
    return connection.connection.driver_connection  # type: ignore[return-value]  # it is SQLite's


def _binder(
    parameters: tuple[str, ...], constants: Mapping[str, Any], names: tuple[str, ...]
) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    if len(parameters) > 1 and set(parameters) <= set(names):
        return itemgetter(*parameters)
    return lambda values: [values[name] if name in values else constants[name] for name in parameters]


def _row_factory(columns: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    row = namedtuple("Row", [column.name for column in columns])  # type: ignore[misc]  # its fields are the statement's
    booleans = [index for index, column in enumerate(columns) if isinstance(column.type, Boolean)]
    if not booleans:
        return row._make

    def make(values: Iterable[Any]) -> Any:
        found = list(values)
        for index in booleans:
            found[index] = bool(found[index])
        return row._make(found)

    return make
