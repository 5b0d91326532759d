"""One homeserver for all tests that talk to one."""

from collections.abc import Iterator

import pytest

from .synapse import Synapse, synapse_at


@pytest.fixture(scope="session")
def synapse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synapse]:
    with synapse_at(tmp_path_factory.mktemp("synapse")) as server:
        yield server
