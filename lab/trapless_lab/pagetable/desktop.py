# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A small X11 desktop as files of a guest: Debian's Xvfb, jwm and xterm.

jwm is a window manager with a panel, a task list and a clock in one program.

Invariant: the programs and their configuration are the installed packages' own; the screen is in the guest's
memory, for there is no display.
"""

from pathlib import Path

from .. import host
from ..machines import initramfs
from ..machines.initramfs import File, Link, Tree

_HELPER = Path("/usr/bin/xkbcomp")
_PROGRAMS = {
    Path("/usr/bin/Xvfb"): "xvfb",
    _HELPER: "x11-xkb-utils",
    Path("/usr/bin/jwm"): "jwm",
    Path("/usr/bin/xterm"): "xterm",
}
# Keyboards, fonts, and how the two clients look.
_DATA = {
    Path("/usr/share/X11/xkb"): "xkb-data",
    Path("/etc/fonts"): "fontconfig-config",
    Path("/usr/share/fonts/truetype/dejavu"): "fonts-dejavu-core",
    Path("/etc/jwm"): "jwm",
    Path("/usr/share/jwm"): "jwm",
    Path("/etc/X11/app-defaults"): "xterm",
}
PACKAGES = ("xvfb", "jwm", "xterm")

_SCREEN = Path("/tmp/screen/Xvfb_screen0")
# How much is on the screen.
_DRAWN = f"gzip -c {_SCREEN} | wc -c"

PREPARE = f"""mkdir -p /dev/pts /tmp/home {_SCREEN.parent} /tmp/.X11-unix /var/lib/xkb
mountpoint -q /dev/pts || mount -t devpts devpts /dev/pts"""
"""Once in a machine."""

LOG_IN = f"""export HOME=/tmp/home DISPLAY=:0
mkfifo /tmp/ready
Xvfb :0 -screen 0 1280x1024x24 -nolisten tcp -fbdir {_SCREEN.parent} -displayfd 3 \\
	3>/tmp/ready >/tmp/Xvfb.log 2>&1 &
read -r display </tmp/ready || {{ tail -n 5 /tmp/Xvfb.log; exit 1; }}
{_DRAWN}
jwm >/tmp/jwm.log 2>&1 &
xterm -e sh -c 'tty >/tmp/ready; exec sh' >/tmp/xterm.log 2>&1 &
read -r terminal </tmp/ready"""
"""The desktop appears, with a terminal in which a shell waits; prints the packed size of the empty screen."""

RUNS = f"""for program in Xvfb jwm xterm; do
	pidof $program >/dev/null || {{ echo $program has ended; tail -n 5 /tmp/$program.log; exit 1; }}
done
{_DRAWN}"""
"""Fails if one of its programs has ended; prints the packed size of the screen."""


def files() -> Tree:
    """Return the guest's files."""
    # Where the X server looks for its helper.
    tree: dict[str, File | Link] = {str(_HELPER): Link(f"/bin/{_HELPER.name}")}
    for program, package in _PROGRAMS.items():
        tree |= initramfs.program(host.file(program, package))
    for data, package in _DATA.items():
        tree |= initramfs.folder(host.file(data, package))
    return tree
