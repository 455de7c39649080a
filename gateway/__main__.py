"""`python -m gateway`."""

import sys

try:
    from gateway.cli import main
except ModuleNotFoundError as exc:
    if (exc.name or "").partition(".")[0] == "gateway":
        raise
    sys.exit(
        f"gateway: {exc.name!r} is not installed for {sys.executable}: "
        "`make install` puts everything into .venv, then use .venv/bin/gateway"
    )

raise SystemExit(main())
