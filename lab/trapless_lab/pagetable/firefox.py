# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian's firefox-esr as files of a guest, and the commands that start it there.

Invariant: what runs is the installed package's own, with a profile of its own in the guest's memory. It has
no network but the guest's loopback, and no display.
"""

from pathlib import Path

from .. import host
from ..machines import initramfs
from ..machines.initramfs import File, Link, Tree

PACKAGE = "firefox-esr"
FOLDER = Path("/usr/lib") / PACKAGE
# What a headless browser does not start.
_LEFT_OUT = ("crashreporter", "crashhelper", "glxtest", "vaapitest", "vulkantest", "pingsender")
# What GTK and fontconfig read besides libraries.
_SHARED = (Path("/etc/fonts"), Path("/usr/share/fonts/truetype/dejavu"))
_SCHEMAS = Path("/usr/share/glib-2.0/schemas/gschemas.compiled")

PAGE = "/tmp/page.html"
_MIB_A_TAB = 30

_PREFERENCES = "".join(
    f"user_pref({name}, {value});\n"
    for name, value in (
        ('"app.normandy.enabled"', "false"),
        ('"browser.shell.checkDefaultBrowser"', "false"),
        ('"datareporting.policy.dataSubmissionEnabled"', "false"),
        ('"network.captive-portal-service.enabled"', "false"),
        ('"network.connectivity-service.enabled"', "false"),
    )
)

PREPARE = f"""ip link set lo up && mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm || exit 1
echo '<script>kept = new Uint8Array({_MIB_A_TAB << 20}).fill(1)</script>a page' >{PAGE}
mkfifo /tmp/done"""
"""Once in a machine."""

PROFILE = (
    "rm -rf /tmp/home /tmp/profile && mkdir /tmp/home /tmp/profile && cp /lib/trapless/user.js /tmp/profile/"
)
"""Before each start: a new profile and an empty home."""

START = (
    "(HOME=/tmp/home LANG=C MOZ_CRASHREPORTER_DISABLE=1 "
    f"{FOLDER}/firefox-bin --headless --no-remote --marionette --profile /tmp/profile about:blank "
    ">/tmp/firefox.log 2>&1; echo $? >/tmp/done) &"
)
ENDED = "read -r status </tmp/done; tail -n 5 /tmp/firefox.log; exit $status"
"""Waits until it has ended; a blocking read in the shell itself, for polling would make processes."""


def files() -> Tree:
    """Return the guest's files."""
    host.file(FOLDER / "firefox-bin", PACKAGE)
    tree: dict[str, File | Link] = {
        "/lib/trapless/user.js": File(_PREFERENCES.encode()),
        # Firefox asks for the name and the folder of its user.
        "/etc/passwd": File(b"root:x:0:0:root:/tmp/home:/bin/sh\n"),
        str(_SCHEMAS): File(host.file(_SCHEMAS, "libgtk-3-0")),
    }
    for path in FOLDER.rglob("*"):
        if path.is_file() and path.name not in _LEFT_OUT:
            program = path.stat().st_mode & 0o111
            tree[str(path)] = File(path, 0o755 if program else 0o644)
            if program or path.suffix == ".so":
                for library in host.shared_libraries(path, beside=FOLDER):
                    tree.setdefault(str(library), File(library, 0o755))
    for shared in _SHARED:
        tree |= initramfs.folder(host.file(shared, "fonts-dejavu-core"))
    return tree
