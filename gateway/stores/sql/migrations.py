"""The migrations that create the tables of both databases, from scripts: `tables.sql` here, and the
`schema.sql` of each database, whose types and options of tables its `types.toml` gives."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.data_files import read_toml
from gateway.hooks import ORDER, features, paths
from gateway.observability.logging import get_logger
from gateway.values import Texts, Value, by_name

_COLUMNS = re.compile(
    r"(^ +|^ALTER TABLE \w+ ADD COLUMN | \| )"  # the place
    r"(\w+(?:, \w+)*): (\w+)(\??)([^,;|\n]*?)(?=([,;]?)$| \| )",
    re.MULTILINE,
)
_OPTIONS = re.compile(r"\) (by_key|often_changed);")


class Migration(Value):
    """One change of the tables."""

    name: str  # stored with the database: never rename, reorder or edit a shipped one
    sql: str  # one or more statements
    # takes something away, so that older versions refuse a shared database
    breaks_older: bool = False


def migrations(package: str) -> tuple[Migration, ...]:
    """The migrations of a database, in its types."""
    types = read_toml(package, "types.toml")
    shared = parts_of(Path(__file__).with_name("tables.sql"))

    def columns(match: re.Match[str]) -> str:
        place, names, kind, optional, rest, end = match.groups()
        null = " NOT NULL"
        if optional or kind == "key":
            null = ""
        indent = place
        if place == " | ":
            indent = "    "
        lines = [f"{indent}{name} {types[kind]}{null}{rest}" for name in names.split(", ")]
        return (",\n" if place == " | " else "") + (";\n" if end == ";" else ",\n").join(lines)

    def sql(script: str) -> str:
        script = expanded(script, shared)
        return _OPTIONS.sub(lambda match: f"){types[match[1]]};", _COLUMNS.sub(columns, script))

    scripts = parts_of(Path(sys.modules[package].__path__[0], "schema.sql"))
    for path in paths("tables.sql"):
        scripts |= parts_of(path)
    return tuple([Migration(name=name, sql=sql(script)) for name, script in scripts.items()])


def say_migrated(place: str, changes: Sequence[str], before: int, copy: str = "") -> None:
    """Log that a database was changed. Its form is the number of changes that it has; `before`: the
    earlier one. `copy`: the file that still has it."""
    get_logger("gateway.store").warning(
        "the database was changed for this version: an older version may refuse it now",
        path=place,
        from_form=before,
        to_form=before + len(changes),
        changes=changes,
        copy=copy,
    )


def tables_of_features() -> list[str]:
    """The names of the tables that features have."""
    scripts = [path.read_text("utf-8") for path in paths("tables.sql")]
    return [name for script in scripts for name in re.findall(r"CREATE TABLE (\w+)", script)]


def of_deleted(name: str) -> bool:
    """Whether a migration is that of a feature whose folder was deleted: what it keeps, such as
    gateway keys, must not be ignored."""
    return name.partition("_")[0] in set(ORDER) - features().keys()


def expanded(script: str, parts: Texts) -> str:
    """A script with parts in place of their names, such as `@name`."""
    while "@" in script:
        script = re.sub(r"@(\w+)", lambda match: parts[match[1]], script)
    return script


def parts_of(file: Path) -> dict[str, str]:
    """The parts of a script, each after a line `-- = name`, without its comments."""
    _, *found = re.split(r"^-- = (\w+)\n", file.read_text("utf-8"), flags=re.MULTILINE)
    plain = [re.sub(r"^--.*\n", "", part, flags=re.MULTILINE).strip("\n") for part in found[1::2]]
    return by_name(found[::2], plain)
