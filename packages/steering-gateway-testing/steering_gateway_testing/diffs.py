"""The program that applies a diff in the working folder, as people do."""

from __future__ import annotations

import shutil

# Git's, where there is no `patch`, as in small images.
APPLY = ["patch", "-p1", "--binary"]
if shutil.which(APPLY[0]) is None:
    APPLY = ["git", "apply", "-p1", "--whitespace=nowarn"]
