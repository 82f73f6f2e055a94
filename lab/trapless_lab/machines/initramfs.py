# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Packs an initramfs out of the host's own binaries.

Invariant: equal contents give equal bytes: names sorted, times zero, everything owned by root, inode
numbers renewed.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .. import host


@dataclass(frozen=True)
class File:
    """A file of the guest, from the host or from memory."""

    content: Path | bytes
    mode: int = 0o644

    def read(self) -> bytes:
        """Return its contents in the guest."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


@dataclass(frozen=True)
class Link:
    """A symbolic link of the guest."""

    target: str


Tree = Mapping[str, File | Link]
"""Absolute guest path -> its contents; parent directories are created."""

MOUNT_POINTS = ("proc", "sys", "dev", "tmp")


def program(path: Path, root: Path = host.ROOT) -> dict[str, File | Link]:
    """Return a program in /bin and its shared libraries where its loader looks for them.

    ``root`` is a folder of unpacked packages that it is from, if not installed on the host. Their /usr/lib is
    the guest's /lib, where its other programs look too: a later C library serves these.
    """
    tree: dict[str, File | Link] = {f"/bin/{path.name}": File(path, 0o755)}
    for library in host.shared_libraries(path, root):
        if root != host.ROOT and library.is_relative_to(root):
            place = library.relative_to(root / "usr" if library.is_relative_to(root / "usr") else root)
        else:
            place = library.relative_to(host.ROOT)
        tree[f"/{place}"] = File(library, 0o755)
    return tree


def folder(path: Path) -> dict[str, File | Link]:
    """Return every file of a folder of the host at the same place."""
    return {str(file): File(file) for file in path.rglob("*") if file.is_file()}


def busybox(path: Path, like: Path | None = None) -> dict[str, File | Link]:
    """Return busybox and a link for each of its applets: those of ``like``, if the host cannot run it."""
    shown = subprocess.run([like or path, "--list"], capture_output=True, text=True, check=True)
    applets = shown.stdout.split()
    links: dict[str, File | Link] = {f"/bin/{applet}": Link("busybox") for applet in applets}
    return links | {"/bin/busybox": File(path, 0o755)}


def modules(files: Sequence[Path]) -> dict[str, File | Link]:
    """Return kernel modules and the order in which the guest's init loads them."""
    unpacked = {path.name.removesuffix(".xz"): path for path in files}
    tree: dict[str, File | Link] = {
        f"/modules/{name}": File(path if path.name == name else host.module_content(path))
        for name, path in unpacked.items()
    }
    order = "".join(f"{name}\n" for name in unpacked)
    return tree | {"/modules/order": File(order.encode())}


def pack(tree: Tree, target: Path, *, compress: bool = True) -> None:
    """Write ``tree`` as a newc archive, compressed unless unpacking takes the machine too long."""
    with tempfile.TemporaryDirectory(prefix="trapless-initramfs-") as staging:
        root = Path(staging)
        for mount_point in MOUNT_POINTS:
            (root / mount_point).mkdir()
        for name, entry in tree.items():
            _place(root / PurePosixPath(name).relative_to("/"), entry)
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        for name in names:
            path = root / name
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
            os.utime(path, (0, 0), follow_symlinks=False)
        archive = subprocess.run(
            [host.tool("cpio", "cpio"), "-o0", "-H", "newc", "--reproducible", "--owner=+0:+0", "--quiet"],
            input="".join(f"{name}\0" for name in names).encode(),
            stdout=subprocess.PIPE,
            cwd=root,
            check=True,
        ).stdout
    if compress:
        archive = subprocess.run(
            [host.tool("gzip", "gzip"), "-1n"], input=archive, stdout=subprocess.PIPE, check=True
        ).stdout
    target.write_bytes(archive)


def _place(path: Path, entry: File | Link) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(entry, Link):
        path.symlink_to(entry.target)
    else:
        path.write_bytes(entry.read())
        path.chmod(entry.mode)
