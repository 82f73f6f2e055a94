# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The documents name existing files: by links, and by paths in backquotes that begin with one of our folders.

Not checked: paths without a folder ("`cache.c`"), and whether statements about files are true.
"""

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_QUOTED = re.compile(r"`([^`\s]+)`")


def tracked() -> list[Path]:
    """Return every file of the repository, as git knows them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if (REPOSITORY / line).exists()]


def missing(document: Path, text: str, files: list[Path]) -> list[str]:
    """Return what ``text`` names and ``files`` do not have."""
    names = {str(file) for file in files} | {str(parent) for file in files for parent in file.parents}
    roots = {file.parts[0] for file in files if len(file.parts) > 1}
    absent = []
    for link in _LINK.findall(text):
        target = (REPOSITORY / document.parent / link).resolve()
        if "://" not in link and not link.startswith("mailto:"):
            known = target.is_relative_to(REPOSITORY) and str(target.relative_to(REPOSITORY)) in names
            if not known:
                absent.append(link)
    for quoted in _QUOTED.findall(text):
        path = quoted.rstrip("/").split("::")[0]
        if "/" not in path or path.split("/")[0] not in roots or re.search(r"[A-Z…@{<]{3,}|[…{}<>]", path):
            continue
        found = any(Path(name).match(path) for name in names) if "*" in path else path in names
        if not found:
            absent.append(quoted)
    return absent


def test_files_named_in_documents_exist() -> None:
    files = tracked()
    wrong = {
        str(file): absent
        for file in files
        if file.suffix == ".md" and (absent := missing(file, (REPOSITORY / file).read_text(), files))
    }
    assert not wrong


def test_negative_control_a_missing_file_is_named() -> None:
    files = [Path("docs/a.md"), Path("dirty/there.c")]
    text = "[b](b.md) [a](a.md) `dirty/gone.c` `dirty/there.c` `dirty/g*.c` `dirty/t*.c` `make check`"
    assert missing(Path("docs/a.md"), text, files) == ["b.md", "dirty/gone.c", "dirty/g*.c"]
