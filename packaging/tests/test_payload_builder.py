# SPDX-License-Identifier: Apache-2.0 OR MIT
"""trapless-payload: what it builds, what it does not touch, and how it reports refusals. Checker and compiler
are replaced; check-upgrade uses the real ones.
"""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PACKAGING = Path(__file__).resolve().parents[1]
PAYLOAD = "trapless_pagetable.livepatch"

CHECKER_PATH = "sources/pagetable/xen/prove/check_layout.py"
# The id of an image is its first word; an image with the word "strange" is refused.
CHECKER = "import sys\nprint(open(sys.argv[sys.argv.index('--xen') + 1]).read().split()[0])\n"
MAKEFILE = """
payload:
	@echo built >>$(BUILT)
	@! grep -q strange $(XEN) || { echo 'REFUSED item: why'; false; }
	@echo '7 of 8 loops are proven for Xen'
	@echo 'LEFT OUT promote_l2: claim 5: why'
	@echo 'LEFT OUT l1_update: why'; echo 'LEFT OUT l1_update: why'
	@mkdir -p $(O) && cp $(XEN) $(O)/trapless_pagetable.livepatch
"""

NOBODY = "The project did not run it on this build: trapless pagetable verify does on the host."
NOT_PASSED = "echo 'WRONG: got     : call 5'; echo 'not passed: x'; exit 1"


@dataclass
class Host:
    """A host of files only."""

    root: Path

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        (self.root / path).chmod(mode)

    def lab(self, verdict: str, version: str = "@VERSION@") -> str:
        """Return a lab that says this of every payload."""
        self.write(
            "lab/trapless-lab",
            f"""#!/bin/sh
if [ "$1" = --version ]; then echo "trapless-lab, version {version}"; exit; fi
echo "$@" >>{self.root}/asked
{verdict}
""",
            0o755,
        )
        return f"{self.root}/lab/trapless-lab"

    def asked(self) -> list[str]:
        """What a lab was asked to judge."""
        asked = self.root / "asked"
        return asked.read_text().splitlines() if asked.exists() else []

    def command(self, *arguments: str, lab: str | None = "") -> dict[str, Any]:
        """Return how to run it with this lab, with none, or (None) with the one that the host has."""
        environment = {
            **os.environ,
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "BUILT": f"{self.root}/built",
            "TRAPLESS_SOURCES": f"{self.root}/sources",
            "TRAPLESS_BOOT": f"{self.root}/boot",
            "TRAPLESS_DEBUG": f"{self.root}/debug",
            "TRAPLESS_STORE": f"{self.root}/store",
            "TRAPLESS_ETC": f"{self.root}/etc",
        }
        environment.pop("TRAPLESS_LAB", None)
        if lab is not None:
            environment["TRAPLESS_LAB"] = lab
        command = ["sh", str(PACKAGING / "trapless-payload"), *arguments]
        return {"args": command, "env": environment, "text": True}

    def run(self, *arguments: str, lab: str | None = "") -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(**self.command(*arguments, lab=lab), capture_output=True, check=False)

    def stored(self) -> set[str]:
        return {str(path.relative_to(self.root / "store")) for path in self.root.glob("store/*/*")}

    def builds(self) -> int:
        built = self.root / "built"
        return built.read_text().count("built") if built.exists() else 0


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.write(CHECKER_PATH, CHECKER)
    host.write("sources/pagetable/xen/Makefile", MAKEFILE)
    host.write("debug/xen-syms-4.17-amd64", "symbols")
    host.write("boot/xen-4.17-amd64.gz", "aaaa")
    host.write("bin/logger", f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n', 0o755)
    return host


def test_builds_once_and_again_if_the_bytes_change(host: Host) -> None:
    first = host.run("build")
    assert first.returncode == 0, first.stderr
    assert host.stored() == {f"aaaa/{PAYLOAD}", "aaaa/report.txt"}
    assert "LEFT OUT promote_l2" in first.stdout
    assert host.run("build").returncode == 0 and host.builds() == 1
    host.write("boot/xen-4.17-amd64.gz", "aaaa and other bytes under the same id")
    assert host.run("build").returncode == 0 and host.builds() == 2
    host.write("debug/xen-syms-4.17-amd64", "other symbols")
    assert host.run("build").returncode == 0 and host.builds() == 3
    assert host.run("build", "--force").returncode == 0 and host.builds() == 4
    assert not (host.root / "said").exists()


def test_the_report_says_what_is_missing(host: Host) -> None:
    host.run("build")
    listed = host.run("list").stdout
    assert "build-id: aaaa\n" in listed
    assert "loops: 7 of 8\n" in listed
    assert "left-out: l1_update promote_l2\n" in listed
    assert f"differential: not run here: there is no lab. {NOBODY}\n" in listed


def test_it_says_where_the_differential_test_was_run(host: Host) -> None:
    """A loop that is left out is stock Xen's; a part that repeats decisions is left out of unknown builds."""
    host.write("sources/pagetable/xen/Makefile", MAKEFILE.replace("LEFT OUT l1_update", "FITTED l1_update"))
    said = host.run("build").stdout
    why = "not run here: there is no lab. The project ran it, on a build with the same functions."
    assert f"differential test: {why}\n" in said
    assert f"differential: {why}\n" in host.run("list").stdout


def test_where_there_is_a_lab_a_payload_has_to_pass(host: Host) -> None:
    ran = host.run("build", lab=host.lab("echo noise >&2; echo 'passed: 9,000 calls as by stock Xen'"))
    assert ran.returncode == 0, ran.stderr
    assert host.stored() == {f"aaaa/{PAYLOAD}", "aaaa/report.txt"}
    (asked,) = host.asked()
    command, image, payload = asked.split()
    assert (command, image) == ("verify-payload", f"{host.root}/boot/xen-4.17-amd64.gz")
    assert payload.endswith(f"/{PAYLOAD}") and not payload.startswith(f"{host.root}/store")
    what = "run here in a machine: 9,000 calls as by stock Xen\n"
    assert f"differential test: {what}" in ran.stdout
    assert f"differential: {what}" in host.run("list").stdout
    assert host.run("build", lab=host.lab(NOT_PASSED)).returncode == 0, "what is there was judged again"


@pytest.mark.parametrize("part", ["l1_update", "table_refs", "ranges"])
def test_any_part_that_is_left_out_was_not_compared_by_the_project(host: Host, part: str) -> None:
    host.write("sources/pagetable/xen/Makefile", MAKEFILE.replace("LEFT OUT l1_update", f"LEFT OUT {part}"))
    assert NOBODY in host.run("build").stdout


def test_what_did_not_pass_is_refused(host: Host) -> None:
    host.run("build")
    refused = host.run("build", "--force", lab=host.lab(NOT_PASSED))
    assert refused.returncode == 1
    for said in (refused.stderr, (host.root / "said").read_text()):
        assert "NO PAYLOAD for" in said and "REFUSED differential test: got     : call 5" in said
        assert "TRAPLESS_LAB= trapless-payload build" in said
    assert host.stored() == {"aaaa/refused.txt"}
    assert "got     : call 5" in (host.root / "store/aaaa/refused.txt").read_text()
    # It is tried again, as nothing is there.
    assert host.run("build", lab=host.lab("echo 'passed: all'")).returncode == 0
    assert host.stored() == {f"aaaa/{PAYLOAD}", "aaaa/report.txt"}


def test_one_that_did_not_pass_is_still_an_error_when_the_next_passes(host: Host) -> None:
    host.write("boot/xen-4.17-amd64.efi", "eeee")
    lab = host.lab(f"case $2 in *.efi) {NOT_PASSED} ;; *) echo 'passed: all' ;; esac")
    assert host.run("build", lab=lab).returncode == 1
    lab = host.lab(f"case $2 in *.gz) {NOT_PASSED} ;; *) echo 'passed: all' ;; esac")
    assert host.run("build", "--force", lab=lab).returncode == 1
    assert host.stored() == {"aaaa/refused.txt", f"eeee/{PAYLOAD}", "eeee/report.txt"}


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        ("echo booting; echo 'Error: nothing was judged: no QEMU'; echo ' more'; exit 3", "no QEMU"),
        ("printf '%s\n' 'Error: nothing was judged: a\\nb \\c d'; exit 3", r"a\nb \c d"),
        ("exit 3", "LAB verify-payload ended with exit code 3"),
        # A lab that is broken, or killed: nothing of it is about the payload.
        ("exit 1", "LAB verify-payload ended with exit code 1"),
        ("echo Aborted!; exit 1", "LAB verify-payload ended with exit code 1"),
        ("kill -KILL $$", "LAB verify-payload ended with exit code 137"),
        ("echo 'passed: all'; exit 1", "LAB verify-payload ended with exit code 1"),
        ("true", "LAB verify-payload ended with exit code 0"),
        ("echo 'passed: '", "LAB verify-payload ended with exit code 0"),
    ],
)
def test_a_payload_that_was_not_judged_is_kept_and_the_report_says_why(
    host: Host, verdict: str, why: str
) -> None:
    lab = host.lab(verdict)
    ran = host.run("build", lab=lab)
    assert ran.returncode == 0, ran.stderr
    assert host.stored() == {f"aaaa/{PAYLOAD}", "aaaa/report.txt"}
    line = f"differential: not run here: {why.replace('LAB', lab)}. {NOBODY}\n"
    assert f"{line}\n" in host.run("list").stdout
    if "more" in verdict:
        assert "\n more\n" in (host.root / "store/aaaa/report.txt").read_text()


@pytest.mark.parametrize("version", ["0.1.0", "0.1.0@VERSION@"])
def test_a_lab_of_another_version_is_not_asked(host: Host, version: str) -> None:
    lab = host.lab(NOT_PASSED, version)
    assert host.run("build", lab=lab).returncode == 0 and not host.asked()
    assert f"not run here: {lab} is no lab of version @VERSION@. {NOBODY}" in host.run("list").stdout


@pytest.mark.parametrize("lab", ["/nowhere/trapless-lab", "/dev/null", "/bin/true", "/bin/false"])
def test_what_is_no_lab_is_said(host: Host, lab: str) -> None:
    assert host.run("build", lab=lab).returncode == 0
    assert f"not run here: {lab} is no lab of version @VERSION@" in host.run("list").stdout


def test_the_lab_that_the_host_is_configured_for_is_asked(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its link, also with the PATH that apt gives to dpkg; what a PATH has is never run by root."""
    lab = Path(host.lab("echo 'passed: all'"))
    monkeypatch.setenv("PATH", f"{lab.parent}:{os.environ['PATH']}")
    assert host.run("build", lab=None).returncode == 0 and not host.asked()
    assert "there is no lab" in host.run("list").stdout
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    (host.root / "etc").mkdir()
    (host.root / "etc/lab").symlink_to(lab)
    assert host.run("build", "--force", lab="").returncode == 0 and not host.asked(), "empty is none"
    assert host.run("build", "--force", lab=None).returncode == 0 and len(host.asked()) == 1
    lab.unlink()
    assert host.run("build", "--force", lab=None).returncode == 0
    assert f"{host.root}/etc/lab is no lab of version" in host.run("list").stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_lab_and_keeps_what_was_there(host: Host, number: signal.Signals) -> None:
    host.run("build")
    before = {path: (host.root / "store" / path).read_bytes() for path in host.stored()}
    lab = host.lab(
        f"echo $$ $TMPDIR >{host.root}/lab.new; mv {host.root}/lab.new {host.root}/judging; exec sleep 600"
    )
    command = host.command("build", "--force", lab=lab)
    # A shell cannot trap what is ignored where it starts, as SIGINT is by what runs in the background.
    command["args"] = ["env", f"--default-signal={number.name.removeprefix('SIG')}", *command["args"]]
    running = subprocess.Popen(**command)
    judging = host.root / "judging"
    while not judging.exists():
        assert running.poll() is None
        time.sleep(0.05)
    process, folder = judging.read_text().split()
    running.send_signal(number)
    assert running.wait(timeout=60) == 128 + number
    assert not Path(f"/proc/{process}").exists() and not Path(folder).exists()
    assert {path: (host.root / "store" / path).read_bytes() for path in host.stored()} == before


def test_what_cannot_be_proven_is_not_verified(host: Host) -> None:
    host.write("boot/xen-4.17-amd64.gz", "aaaa strange")
    assert host.run("build", lab=host.lab("echo 'passed: all'")).returncode == 1
    assert not host.asked()


def test_an_upgrade_keeps_the_payload_of_the_build_that_runs(host: Host) -> None:
    host.run("build")
    host.write("boot/xen-4.17-amd64.gz", "bbbb")
    assert host.run("build").returncode == 0
    assert {f"aaaa/{PAYLOAD}", f"bbbb/{PAYLOAD}"} < host.stored()


def test_refuses_loudly(host: Host) -> None:
    host.run("build")
    host.write("boot/xen-4.17-amd64.gz", "bbbb strange")
    refused = host.run("build")
    assert refused.returncode == 1
    said = (host.root / "said").read_text()
    for output in (refused.stderr, said):
        assert "NO PAYLOAD for" in output and "REFUSED item: why" in output
    assert host.stored() == {f"aaaa/{PAYLOAD}", "aaaa/report.txt", "bbbb/refused.txt"}
    assert "refused: " in host.run("list").stdout
    host.write("boot/xen-4.17-amd64.gz", "bbbb")
    assert host.run("build").returncode == 0
    assert f"bbbb/{PAYLOAD}" in host.stored() and "bbbb/refused.txt" not in host.stored()


def test_a_payload_that_is_no_longer_proven_is_removed(host: Host) -> None:
    host.run("build")
    host.write("boot/xen-4.17-amd64.gz", "aaaa strange")
    assert host.run("build").returncode == 1
    assert host.stored() == {"aaaa/refused.txt"}


@pytest.mark.parametrize("before", [True, False])
def test_what_cannot_be_put_there_is_an_error_and_the_old_one_stays(host: Host, before: bool) -> None:
    if before:
        host.run("build")
    old = {path: (host.root / "store" / path).read_bytes() for path in host.stored()}
    # As on a full disk: half of it is there, then an error.
    half = '#!/bin/sh\nfor to; do :; done\necho half >"$to"\necho "No space left on device" >&2\nexit 1\n'
    host.write("bin/install", half, 0o755)
    refused = host.run("build", "--force")
    assert refused.returncode == 1
    for output in (refused.stderr, (host.root / "said").read_text()):
        assert "NO NEW PAYLOAD for" in output
    assert {path: (host.root / "store" / path).read_bytes() for path in host.stored()} == old
    (host.root / "bin/install").unlink()
    assert host.run("build").returncode == 0
    assert host.stored() == {f"aaaa/{PAYLOAD}", "aaaa/report.txt"}


def test_a_store_that_cannot_be_made_is_an_error(host: Host) -> None:
    host.write("store", "a file")
    refused = host.run("build")
    assert refused.returncode == 1 and "NO NEW PAYLOAD for" in refused.stderr


def test_a_checker_that_does_not_run_is_named(host: Host) -> None:
    host.write(CHECKER_PATH, "import no_such_module_of_ours\n")
    refused = host.run("build")
    assert refused.returncode == 1 and "No module named 'no_such_module_of_ours'" in refused.stderr


def test_one_refused_image_does_not_keep_the_other_from_its_payload(host: Host) -> None:
    host.write("boot/xen-4.17-amd64.gz", "aaaa strange")
    host.write("boot/xen-4.17-amd64.efi", "eeee")
    assert host.run("build").returncode == 1
    assert {f"eeee/{PAYLOAD}", "aaaa/refused.txt"} < host.stored()


def test_an_image_without_an_id_is_refused(host: Host) -> None:
    host.write(CHECKER_PATH, "import sys\nsys.exit('check_layout: no image')\n")
    refused = host.run("build")
    assert refused.returncode == 1 and "check_layout: no image" in refused.stderr
    assert not host.stored()


def test_each_release_is_proven_with_its_own_symbols(host: Host) -> None:
    """As after an upgrade of the distribution: the old Xen is still there, and a link to the new one."""
    host.write("boot/xen-4.20-amd64.gz", "bbbb")
    host.write("boot/xen-4.20-amd64.efi", "eeee")
    host.write("debug/xen-syms-4.20-amd64", "other symbols")
    (host.root / "boot/xen-amd64.gz").symlink_to("xen-4.20-amd64.gz")
    (host.root / "boot/xen-4-amd64.gz").symlink_to("xen-4.20-amd64.gz")
    host.write("boot/xen-4.20-amd64.config", "no image")
    assert host.run("build").returncode == 0 and host.builds() == 3
    listed = host.run("list").stdout
    for release, identity in (("4.17", "aaaa"), ("4.20", "bbbb")):
        report = (host.root / f"store/{identity}/report.txt").read_text()
        assert f"xen-{release}-amd64.gz\n" in report and f"xen-syms-{release}-amd64\n" in report
        assert f"package: xen-hypervisor-{release}-amd64 " in report and report.split("\n\n")[0] in listed
    # Without the symbols of one, the other still has its payload.
    (host.root / "debug/xen-syms-4.20-amd64").unlink()
    ran = host.run("build", "--force")
    assert ran.returncode == 0 and host.builds() == 4
    assert "apt install xen-hypervisor-4.20-amd64-dbg" in ran.stderr and "4.17-amd64-dbg" not in ran.stderr


def test_no_xen_is_no_error(host: Host) -> None:
    (host.root / "boot/xen-4.17-amd64.gz").unlink()
    assert host.run("build").returncode == 0 and host.builds() == 0


def test_without_symbols_it_says_what_to_install_and_builds_nothing(host: Host) -> None:
    """No error: the package with the symbols starts it again, and apt is not left with a broken package."""
    symbols = host.root / "debug/xen-syms-4.17-amd64"
    symbols.unlink()
    ran = host.run("build")
    assert ran.returncode == 0 and host.builds() == 0 and not host.stored()
    assert "apt install xen-hypervisor-4.17-amd64-dbg" in ran.stderr
    assert "NO PAYLOAD for" in (host.root / "said").read_text()
    symbols.write_text("symbols")
    assert host.run("build").returncode == 0 and f"aaaa/{PAYLOAD}" in host.stored()


def test_probe_passes_on_what_it_is_given_and_changes_nothing(host: Host) -> None:
    probe = "import sys\nprint(sys.argv[1:])\nsys.exit(1)\n"
    host.write("sources/pagetable/xen/prove/probe.py", probe)
    ran = host.run("probe", "an image", "symbols", "--json", "report")
    assert ran.returncode == 1 and "['an image', 'symbols', '--json', 'report']" in ran.stdout
    assert not host.stored() and host.builds() == 0 and not (host.root / "said").exists()


def test_the_first_python_of_a_path_is_not_taken(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's own lacks the provers' modules."""
    host.write("own/python3", "#!/bin/sh\nexit 9\n", 0o755)
    host.write("sources/pagetable/xen/prove/probe.py", "import sys\nprint(sys.executable)\n")
    monkeypatch.setenv("PATH", f"{host.root}/own:{os.environ['PATH']}")
    ran = host.run("probe", "image", "symbols")
    assert (ran.returncode, ran.stdout) == (0, "/usr/bin/python3\n")


@pytest.mark.parametrize("arguments", [[], ["remove"], ["build", "all"], ["list", "x"]])
def test_wrong_use(host: Host, arguments: list[str]) -> None:
    assert host.run(*arguments).returncode == 2


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_all_compiled_sources_are_installed(tmp_path: Path) -> None:
    """Every source that a Makefile or Kbuild names is in the package, and no test is."""
    command = ["make", "-s", "-C", str(PACKAGING), f"DESTDIR={tmp_path}/to"]
    subprocess.run([*command, "install-xen", "install-dirty-sources"], check=True)
    dirty, sources = sorted((tmp_path / "to/usr/src").iterdir())
    for part in (
        "kmod",
        *(f"pagetable/{part}" for part in ("abi", "pool", "pvmmu", "table_test", "device_test", "xen")),
    ):
        there = (PACKAGING.parent / part).iterdir()
        wanted = {path.name for path in there if path.suffix in (".c", ".h", ".S")}
        assert wanted <= {path.name for path in (sources / part).iterdir()}
    prove = PACKAGING.parent / "pagetable/xen/prove"
    for path in prove.rglob("*.py"):
        assert (sources / "pagetable/xen/prove" / path.relative_to(prove)).exists()
    for part in ("abi", "module"):
        there = (PACKAGING.parent / "dirty" / part).iterdir()
        wanted = {path.name for path in there if path.is_file()} - {"Makefile"}
        assert wanted == {path.name for path in (dirty / "dirty" / part).iterdir()}
    assert not list((tmp_path / "to").rglob("test*"))
    for name in ("trapless-dirty", "trapless-xen"):
        (config,) = (tmp_path / "to/usr/src").glob(f"{name}-*/dkms.conf")
        assert f'PACKAGE_NAME="{name}"' in config.read_text() and "@VERSION@" not in config.read_text()
    assert "@VERSION@" not in (tmp_path / "to/usr/sbin/trapless-payload").read_text()
