"""Data files of the package, each in the folder of the modules that read it."""

import tomllib
from pkgutil import get_data

from gateway.values import FieldDict


def read_text(package: str, name: str) -> str:
    """The text of a file in the folder of `package`."""
    return (get_data(package, name) or b"").decode()


def read_toml(package: str, name: str) -> FieldDict:
    """The values of a TOML file in the folder of `package`."""
    return tomllib.loads(read_text(package, name))
