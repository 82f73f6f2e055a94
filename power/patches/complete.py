#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Write the series for a kernel as maintainers get it, for `git am`.

    complete.py SERIES FOLDER [--fixes]

SERIES is 6.1, 6.12, ...; FOLDER gets a numbered file for each patch. The patches beside this
file change files of the kernel only. Those of the feature name in a line "Brings:", below
their message, which of our files come with them, and here these are added. With --fixes
only what repairs stock KVM is written.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

POWER = Path(__file__).resolve().parents[1]
HOME = {"kvm": "arch/powerpc/kvm", "driver": "drivers/virt"}
_BRINGS = re.compile(r"^ *Brings: (\S+)\n", re.MULTILINE)
_STAT = re.compile(r"^ \S.* \|  *\d+ [+-]*\n(?: .*\n)*", re.MULTILINE)


def patches(series: str) -> list[Path]:
    """Return the patches for a kernel, in order."""
    listed = subprocess.run([POWER / "patches/list", series], capture_output=True, text=True, check=True)
    return [Path(line) for line in listed.stdout.splitlines()]


def is_fix(patch: str) -> bool:
    """Whether a patch repairs something that stock Linux has."""
    return bool(re.search(r"^Fixes: ", patch, re.MULTILINE))


def brought(patch: str) -> list[str]:
    """Return the files of ours that come with a patch, relative to power/."""
    return _BRINGS.findall(patch)


def place(ours: str) -> str:
    """Return where in the kernel a file of ours is."""
    folder, name = ours.split("/")
    return f"{HOME[folder]}/{name}"


def _new_file(ours: str) -> str:
    lines = (POWER / ours).read_text().splitlines(keepends=True)
    path = place(ours)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}" for line in lines)
    )


def _stat(changes: str) -> str:
    command = ["git", "apply", "--stat", "--summary", "-"]
    made = subprocess.run(command, input=changes, capture_output=True, text=True, check=True)
    return made.stdout


def complete(patch: str, number: int, of: int) -> str:
    """Return a patch with the files it brings, and its place in the series."""
    start = patch.index("\ndiff --git ") + 1 if "\ndiff --git " in patch else len(patch)
    head, changes = patch[:start], patch[start:].rstrip("\n") + "\n"
    ours = brought(head)
    changes = "".join(_new_file(one) for one in ours) + (changes if changes.strip() else "")
    message, notes = head.split("\n---\n", 1)
    notes = _STAT.sub("", _BRINGS.sub("", notes))
    notes = re.sub(r"\nNotes:\n\s*\Z", "\n", notes).strip("\n")
    message = message.replace("Subject: [PATCH] ", f"Subject: [PATCH {number:02}/{of}] ", 1)
    return f"{message}\n---\n{notes}{chr(10) * 2 if notes else ''}{_stat(changes)}\n{changes}"


def write(series: str, folder: Path, only_fixes: bool = False) -> list[Path]:
    """Write the series into a folder without patches in it; return its files in order."""
    sources = [path for path in patches(series) if not only_fixes or is_fix(path.read_text())]
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.patch"):
        stale.unlink()
    written = []
    for number, path in enumerate(sources, 1):
        written.append(folder / f"{number:04}{path.name[4:]}")
        written[-1].write_text(complete(path.read_text(), number, len(sources)))
    return written


def main() -> int:
    """Write the series that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write the series for a kernel, for git am.")
    parser.add_argument("series")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fixes", action="store_true", help="only what repairs stock KVM")
    args = parser.parse_args()
    for path in write(args.series, args.folder, args.fixes):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
