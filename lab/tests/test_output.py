# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results go to the user's path, and destroy nothing there."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trapless_lab import output
from trapless_lab.errors import LabError


def test_a_new_file_is_readable_by_others(tmp_path: Path) -> None:
    output.require_writable(tmp_path / "new")
    output.write(tmp_path / "new", b"x")
    assert (tmp_path / "new").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_bytes(b"longer than that")
    target.chmod(0o600)
    output.write(target, b"x")
    assert target.read_bytes() == b"x" and stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(there: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    if there:
        (tmp_path / "folder" / "file").write_bytes(b"old")
    output.require_writable(tmp_path / "link")
    output.write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"x"


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    """A link to a device is enough: a replacement would replace the link."""
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    for target in (Path("/dev/null"), link):
        output.require_writable(target)
        output.write(target, b"x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert link.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs root")
def test_a_new_device_is_not_replaced(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices are made here")
    output.write(device, b"x")
    assert stat.S_ISCHR(device.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.touch()
    os.chown(target, 65534, 65534)
    output.write(target, b"x")
    assert (target.stat().st_uid, target.stat().st_gid) == (65534, 65534)


def test_an_open_file_is_written_itself(tmp_path: Path) -> None:
    """As /dev/fd/1 and /dev/stderr are, which may lead to a file that a shell has opened."""
    with (tmp_path / "open").open("wb") as file:
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")
        output.write(tmp_path / "link", b"x")
        assert os.fstat(file.fileno()).st_size == 1
    assert (tmp_path / "link").is_symlink()


WITHOUT_LINKS = """
mount -t tmpfs none $1 && echo old >$1/target && ln -s target $1/link &&
    ln -s none $1/dangling && mount -o remount,nosymfollow $1 || exit 77
for link in link dangling; do
    "$2" -c 'import sys; from pathlib import Path; from trapless_lab import output
try:
    output.require_writable(Path(sys.argv[1])); output.write(Path(sys.argv[1]), b"x")
except output.LabError as error:
    print(error)' $1/$link
done
ls $1; cat $1/target; test -h $1/link
"""


def test_a_link_that_the_kernel_does_not_follow_is_refused(tmp_path: Path) -> None:
    """In /tmp the kernel follows no other user's links (fs.protected_symlinks); on this file system none."""
    command = ["unshare", "-rm", "sh", "-c", WITHOUT_LINKS, "sh", str(tmp_path), sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(Path(output.__file__).parents[1])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode and not ran.stdout:
        pytest.skip(f"no name space of one's own: {ran.stderr.strip()}")
    assert ran.stdout.count("symbolic links") == 2, ran
    assert ran.stdout.endswith("dangling\nlink\ntarget\nold\n"), ran


def test_a_pipe_gets_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    output.require_writable(pipe)
    writer = threading.Thread(target=output.write, args=(pipe, b"through"))
    writer.start()
    assert pipe.read_bytes() == b"through"
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.require_writable(Path(name))
    output.write(Path(name), b"x\n")
    assert capfdbinary.readouterr().out == b"x\n"
    assert not Path("-").exists()


@pytest.mark.parametrize("target", ["/no/such/folder/x", "/proc/x", "/tmp", "{here}/circle", "{here}/file/x"])
def test_a_path_that_cannot_be_written_is_refused_by_its_name(target: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").touch()
    path = Path(target.format(here=tmp_path))
    with pytest.raises(LabError) as found:
        output.require_writable(path)
    assert str(path) in str(found.value)


def test_a_full_device_is_an_error_with_its_name() -> None:
    output.require_writable(Path("/dev/full"))
    with pytest.raises(LabError, match="cannot write /dev/full: No space left"):
        output.write(Path("/dev/full"), b"x")


@pytest.mark.parametrize("target", ["/proc/x/y", "{here}/file", "{here}/file/below"])
def test_a_path_that_is_not_a_folder_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = Path(target.format(here=tmp_path))
    with pytest.raises(LabError, match=str(path)):
        output.require_folder(path)
