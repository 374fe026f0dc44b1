"""A server with the demo checkpoint, for the tests that need one: NTL_SERVER names the program."""

import os

import pytest

import ntl


@pytest.fixture(scope="session")
def program():
    found = os.environ.get("NTL_SERVER")
    if not found:
        pytest.skip("NTL_SERVER names no ntl-server")
    return found


@pytest.fixture(scope="session")
def client(program):
    with ntl.serve(server=program) as client:
        yield client
