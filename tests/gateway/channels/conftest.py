"""One homeserver for all tests that talk to one; and which promises of the contract a channel does not make."""

from collections.abc import Iterator

import pytest

from .synapse import Synapse, synapse_at


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests a class names in `lacks` are about what its channel says it can't do: there is nothing to run.

    A real homeserver is a counterpart: what needs it is run by `make interop`.
    """
    for item in items:
        if isinstance(item, pytest.Function) and "synapse" in item.fixturenames:
            item.add_marker(pytest.mark.interop)
    lacking = [
        item
        for item in items
        if isinstance(item, pytest.Function) and item.originalname in getattr(item.cls, "lacks", ())
    ]
    config.hook.pytest_deselected(items=lacking)
    items[:] = [item for item in items if item not in lacking]


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with synapse_at(tmp_path_factory.mktemp("synapse")) as server:
        yield server
