# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest whose first process is Debian's systemd: units that load something at boot, booted.

Invariant: systemctl itself enables the units, from their own [Install] sections, and the lab's steps are one
more service, which systemd starts like any service of a host.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .. import host
from . import guest
from .initramfs import File, Link, Tree, program

_MANAGER = Path("/usr/lib/systemd/systemd")
# What starts a service's process, since systemd 255.
_EXECUTOR = _MANAGER.with_name("systemd-executor")
_UNITS = Path("/usr/lib/systemd/system")
# The targets of a host's boot, without services that a guest without a disk does not need.
_STOCK_UNITS = (
    "basic.target",
    "local-fs.target",
    "multi-user.target",
    "sysinit.target",
    "timers.target",
    "modprobe@.service",
)
_INIT = "/lib/lab/init"
# Their terminal has no user: no pager, no colours.
_STEPS = f"""[Unit]
Description=The steps of the lab
After=basic.target

[Service]
ExecStart={_INIT}
Environment=SYSTEMD_PAGER= SYSTEMD_COLORS=0
"""
# No journal: the units' output goes to the console, which the lab records.
_CONFIG = b"[Manager]\nLogTarget=console\nDefaultStandardOutput=tty\nDefaultTimeoutStopSec=30\n"
# Set, so that systemd does not treat this as a first boot and enable all units.
_MACHINE_ID = b"0123456789abcdef0123456789abcdef\n"


def tree(units: Sequence[Path], enabled: Sequence[str], modules: Sequence[str] = ()) -> Tree:
    """Return the guest files that replace the lab's init by systemd.

    ``units`` are files for /usr/lib/systemd/system, ``enabled`` the names of those that systemctl enables;
    ``modules`` are stock modules that modprobe can load.
    """
    host.file(_MANAGER, "systemd")
    stock = {f"{_UNITS}/{name}": File(host.file(_UNITS / name, "systemd")) for name in _STOCK_UNITS}
    ours = {f"{_UNITS}/{unit.name}": File(unit) for unit in units}
    programs = [path for path in (_MANAGER, _EXECUTOR) if path.exists()]
    libraries = {library for path in programs for library in host.shared_libraries(path)}
    return {
        "/init": Link(str(_MANAGER)),
        **{str(path): File(path, 0o755) for path in (*programs, *sorted(libraries))},
        **program(host.tool("systemctl", "systemd")),
        **stock,
        **ours,
        **_links(units, enabled),
        **_modprobe(modules),
        f"{_UNITS}/default.target": Link("multi-user.target"),
        f"{_UNITS}/lab-steps.service": File(_STEPS.encode()),
        f"{_UNITS}/multi-user.target.wants/lab-steps.service": Link("../lab-steps.service"),
        _INIT: File(guest.INIT, 0o755),
        "/etc/systemd/system.conf": File(_CONFIG),
        "/etc/machine-id": File(_MACHINE_ID),
        # Debian's /bin and /sbin are links too.
        "/usr/bin": Link("/bin"),
        "/sbin": Link("/bin"),
    }


def _links(units: Sequence[Path], enabled: Sequence[str]) -> dict[str, Link]:
    """Return the links that ``systemctl enable`` creates."""
    with tempfile.TemporaryDirectory(prefix="trapless-units-") as directory:
        root = Path(directory)
        installed = root / _UNITS.relative_to("/")
        installed.mkdir(parents=True)
        for unit in units:
            (installed / unit.name).write_bytes(unit.read_bytes())
        systemctl = host.tool("systemctl", "systemd")
        subprocess.run([systemctl, "--quiet", f"--root={root}", "enable", *enabled], check=True)
        return {
            f"/{path.relative_to(root)}": Link(str(path.readlink()))
            for path in (root / "etc").rglob("*")
            if path.is_symlink()
        }


def _modprobe(modules: Sequence[str]) -> dict[str, File]:
    """Return the input of busybox's modprobe, with dependencies in its order: the last to be loaded first."""
    kernel = host.kernel()
    release = kernel.release
    tree: dict[str, File] = {}
    lines = []
    for name in modules:
        paths = host.module_files(kernel, name)
        tree |= {str(path): File(path) for path in paths}
        names = [str(path.relative_to(f"/lib/modules/{release}")) for path in reversed(paths)]
        lines.append(f"{names[0]}: {' '.join(names[1:])}\n")
    return {**tree, f"/lib/modules/{release}/modules.dep": File("".join(lines).encode())}
