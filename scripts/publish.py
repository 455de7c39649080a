"""Build what is published of a version, into dist/: wheels, SBOM, checksums, and the image.

    make release

Refuses a changelog with unreleased entries and a checkout with changes, so that what is built is a
commit. The SBOM (CycloneDX) lists what the lock file pins for the gateway with LiteLLM; it is made
by cyclonedx-py, in an environment of its own. The image is built where a docker daemon answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway import __version__
from scripts.install import BUILDERS, ROOT, packages

PROJECTS = ("steering-gateway-core", "steering-gateway", "steering-gateway-testing")
"""The distributions, folders below packages/, in the order in which they are uploaded."""
DIST = ROOT / "dist"
SBOM = f"steering-gateway-{__version__}.cdx.json"


def unready(changelog: str, changes: str) -> str:
    """What stands against building, as a line for people; empty if nothing does."""
    fresh = changelog.partition("## [Unreleased]\n")[2]
    if re.split(r"^## \[", fresh, flags=re.MULTILINE)[0].strip():
        return "CHANGELOG.md has unreleased entries: make release DATE=2026-11-30, then commit"
    if changes:
        return f"the checkout has changes; commit them first:\n{changes}"
    return ""


def checksums(folder: Path) -> str:
    """A line for each file of a folder, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def named(sbom: str) -> str:
    """An SBOM whose subject has its version: pyproject.toml leaves it to the package."""
    parts = json.loads(sbom)
    parts["metadata"]["component"]["version"] = __version__
    return json.dumps(parts, indent=2) + "\n"


def build(cyclonedx: Path) -> None:
    """Wheels, SBOM and checksums, into an empty dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for project in PROJECTS:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(DIST)]
        subprocess.run(
            command, cwd=ROOT / "packages" / project, check=True, stdout=subprocess.DEVNULL
        )
    pinned = [entry for name, entry in packages("gateway").items() if name not in BUILDERS]
    with tempfile.TemporaryDirectory(prefix="gateway-release-") as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("".join(pinned), "utf-8")
        options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
        options += ["--of", "JSON", "-o", str(DIST / SBOM)]
        quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}  # of what a list of pins cannot say
        sbom = [str(cyclonedx), "requirements", *options, str(file)]
        subprocess.run(sbom, check=True, env=quiet)
    (DIST / SBOM).write_text(named((DIST / SBOM).read_text("utf-8")), "utf-8")
    (DIST / "SHA256SUMS").write_text(checksums(DIST), "utf-8")


def image() -> str:
    """Build the image, where docker is there. Returns what became of it."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        return "no image: no docker daemon answers here"
    tag = f"steering-gateway:{__version__}"
    subprocess.run([docker, "build", "--tag", tag, str(ROOT)], check=True)
    return f"image {tag}"


def main(environment: Path) -> int:
    """Build all, and list it. Returns the exit status."""
    git = ["git", "-C", str(ROOT), "status", "--porcelain"]
    changes = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    if reason := unready((ROOT / "CHANGELOG.md").read_text("utf-8"), changes):
        print(f"release: {reason}", file=sys.stderr)
        return 1
    build(environment / "bin" / "cyclonedx-py")
    for path in sorted(DIST.iterdir()):
        print(f"dist/{path.name}  {path.stat().st_size:,} bytes")
    print(image())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
