"""What these tests share with those of several gateways on one database."""

from tests.replicas.conftest import database

__all__ = ["database"]
