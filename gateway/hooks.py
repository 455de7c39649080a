"""The table of hooks that features fill, and the features that are there.

The rest of the gateway asks this table and imports no feature; one whose folder was deleted is not
there. A row is `FEATURE` in `feature.py` of a folder in `gateway/features`. It names what it gives
as `module:name`, with a module of the same folder, which is imported when it is asked for: a
command must not load what only a server needs. Model: the ordered list of addons of mitmproxy."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

from gateway.core.plugins import load_class

# Folders in `gateway/features`, in the order in which a hook asks them.
ORDER = (
    "budgets",
    "demo",
    "wrap",
    "history",
    "postgres",
    "store_outages",
    "keys",
    "litellm",
    "prices",
    "pages",
    "learning",
    "reports",
    "alerts",
    "client_hooks",
)

_FOLDER = Path(__file__).with_name("features")


class Feature(NamedTuple):
    """The row of one feature: names of objects, empty where it gives none."""

    # Single things, by the hook that asks for them (`given`).
    # `store`: class of a store, made of an `Engine`; `Stores.of` gets it by this class. The
    # migrations of its tables are in the file `tables.sql`, in the form of `stores/sql/tables.sql`;
    # they come after those of the stores.
    # `metrics`: class that declares metrics, made of `Metrics`; `Metrics.of` gets it by this class.
    # `start`: async function of the `Runtime`, called when everything else is open.
    # `operations`: `Operations` of the control plane.
    # `routes`: function of the `Runtime` and the `Authenticator`: routes behind `/api`.
    # `pages`: a tuple of the `PageRoute`s of the dashboard.
    # `now_part`: async function of a `Visit` and the ids of the runs that the page Now shows: a
    # part with the name of its `template` in the folder `templates`, for the page's side or, where
    # it is `wide`, for its whole width; or None.
    # `step_notes`: async function of a `Visit` and the `RunTrace` that it shows: dicts with the
    # name of their `template` in the folder `templates`, by the step below which they stand.
    # `models`: function of the file in which a list of prices may be kept (`""`: nowhere) that
    # gives a `ModelList`, or None when there is none.
    # `lesson_rules`: function of the `Settings` that gives the `Lessons` which decide for a call.
    # `keys`: class of `Keys`, which the authenticator asks. `rights`: class of `Rights`.
    # `accounting`: class of `Accounting`, which counts what calls use.
    # `agent_of`: function of a file that gives the agent whose session it is; "" if it is none.
    # `agreed`: async function of the `Stores` and the question to which a person has said yes; it
    # does what was asked for, and gives the questions that this answers, too.
    # `key_budgets`: async function of the `Stores` that gives the budgets of keys.
    # `key_budget`: function that makes the budget of a key.
    # Of `Settings`: `check` raises ValueError for what cannot be; `lost`: key paths that a reload
    # may not remove, of the old and the new ones; `named_models`: (key path, model) of models that
    # it names; `doubts`: warnings, of a `ModelCatalogue` too.
    # `erase`: function of the `StorageSettings` and of one that takes a `CallRecord`: removes those
    # that it takes from files beside the database, and returns their number. It may block.
    # `states`: class of `WatchedStates` over a `StateStore`, made like it.
    # `lane`: class of a `TranslatingLane`. `embedder`: class of the embedders of providers.
    parts: Mapping[str, str] = {}
    # Features before it that it cannot do without: where one is gone, it is as good as gone.
    needs: tuple[str, ...] = ()
    # Sections of the config by key: a frozen dataclass, in a module that is quick to import.
    # `Settings.of` gets a section by this class. With `NAMES_KEYS = True` it may name keys of other
    # services, and commands that only read the database go without it.
    settings: Mapping[str, str] = {}
    # By the key of a section of the rest, its class with the keys that the feature adds to it.
    adds: Mapping[str, str] = {}
    # Commands by name: a function that declares one in the parser it is given.
    commands: Mapping[str, str] = {}
    # By the scheme of `storage.url`, an async function that opens the `Stores` (`open_stores`).
    databases: Mapping[str, str] = {}


@cache
def features() -> Mapping[str, Feature]:
    """The features that are there, by name, in their order."""
    found = dict[str, Feature]()
    for name in ORDER:
        if (_FOLDER / name).exists():
            # Not as a module: the package of the features begins with the whole config.
            feature = run_path(str(_FOLDER / name / "feature.py"))["FEATURE"]
            if found.keys() >= set(feature.needs):
                found[name] = feature
    return found


def given(hook: str) -> Iterator[Any]:
    """Yields what the features give for one hook."""
    for name, feature in features().items():
        if hook in feature.parts:
            yield load_class(f"gateway.features.{name}", f".{feature.parts[hook]}")


def named(hook: str, only: str = "") -> Mapping[str, Any]:
    """Returns what the features give for a hook with names, by name; or `only` one of them."""
    found = written(hook).items()
    return {key: load_class("gateway", each) for key, each in found if only in ("", key)}


def written(hook: str) -> Mapping[str, str]:
    """Returns what the features name for a hook with names, by name, without importing it."""
    return {
        key: f"gateway.features.{name}.{each}"
        for name, feature in features().items()
        for key, each in getattr(feature, hook).items()
    }


def paths(name: str) -> list[Path]:
    """The files or folders of this name that features have."""
    return [path for each in features() if (path := _FOLDER / each / name).exists()]
