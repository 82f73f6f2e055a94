# SPDX-License-Identifier: Apache-2.0 OR MIT
"""trapless-sign: the note is found, zeroed and verified here in another way, by pyelftools and openssl.

What this cannot see: whether a hypervisor that verifies accepts it; none is packaged yet.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from trapless_lab import artifacts
from trapless_lab.machines import runner
from trapless_lab.machines.initramfs import File
from trapless_lab.machines.machine import MACHINES
from trapless_lab.machines.script import Step
from trapless_lab.pagetable.parts import NAME

SIGN = Path(__file__).resolve().parents[1] / "trapless-sign"
SECTION = ".note.Xen.signature"
# Version 1 in the low half; algorithm and hash, RSA and SHA-256, are 0.
RSA_SHA256 = 1


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of key pairs: one, another, one that is too short, and one that is not RSA."""
    folder = tmp_path_factory.mktemp("keys")
    for name, bits in (("one", 2048), ("other", 3072), ("short", 1024)):
        openssl("genrsa", "-out", folder / name, str(bits))
    openssl("genpkey", "-algorithm", "ed25519", "-out", folder / "curve")
    for name in ("one", "other"):
        openssl("pkey", "-in", folder / name, "-pubout", "-out", folder / f"{name}.pub")
    subject = ("-subj", "/CN=live patches", "-days", "1")
    openssl("req", "-new", "-x509", "-key", folder / "one", "-out", folder / "one.crt", *subject)
    return folder


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    source = tmp_path / "a.c"
    source.write_text("int a(int b) { return b + 1; }\n")
    made = tmp_path / "store" / "0123" / f"{NAME}.livepatch"
    made.parent.mkdir(parents=True)
    subprocess.run(["gcc", "-c", source, "-o", made], check=True)
    return made


def sign(store: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRAPLESS_STORE": str(store)}
    return subprocess.run([SIGN, *arguments], env=environment, capture_output=True, text=True, check=False)


def is_valid(file: Path, public: Path, work: Path) -> bool:
    """Verify as Xen's design says: copy the signature, zero it, compare."""
    with file.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(SECTION)
        assert section is not None and section["sh_type"] == "SHT_NOTE"
        at, contents = section["sh_offset"], section.data()
    assert contents[:4] == (4).to_bytes(4, "little") and contents[12:16] == b"Xen\0"
    size = int.from_bytes(contents[4:8], "little")
    assert int.from_bytes(contents[8:12], "little") == RSA_SHA256
    text = bytearray(file.read_bytes())
    (work / "signature").write_bytes(text[at + 16 : at + 16 + size])
    text[at + 16 : at + 16 + size] = bytes(size)
    (work / "text").write_bytes(text)
    command: list[str | Path] = ["openssl", "dgst", "-sha256", "-verify", public]
    command += ["-signature", work / "signature", work / "text"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_every_payload_of_the_host_is_signed(payload: Path, keys: Path, tmp_path: Path) -> None:
    store = payload.parents[1]
    second = store / "4567" / payload.name
    second.parent.mkdir()
    shutil.copy(payload, second)
    done = sign(store, keys / "one")
    assert done.returncode == 0 and done.stdout.count("signed") == 2, done.stderr
    for file in (payload, second):
        assert is_valid(file, keys / "one.pub", tmp_path)
        assert not is_valid(file, keys / "other.pub", tmp_path)
    for what in ("one.pub", "one.crt"):
        assert sign(store, "--check", keys / what).returncode == 0
    refused = sign(store, "--check", keys / "other.pub")
    assert refused.returncode == 1 and "not signed with this key" in refused.stderr


def test_the_code_is_what_it_was(payload: Path, keys: Path) -> None:
    def text() -> bytes:
        with payload.open("rb") as stream:
            section = ELFFile(stream).get_section_by_name(".text")
            assert section is not None
            return bytes(section.data())

    before = text()
    assert sign(payload.parents[1], keys / "one").returncode == 0
    assert text() == before


def test_negative_control_a_changed_byte_is_seen(payload: Path, keys: Path, tmp_path: Path) -> None:
    assert sign(payload.parents[1], keys / "one", payload).returncode == 0
    signed = payload.read_bytes()
    for at in (40, len(signed) // 2, len(signed) - 1):
        changed = bytearray(signed)
        changed[at] ^= 1
        payload.write_bytes(changed)
        assert sign(payload.parents[1], "--check", keys / "one.pub", payload).returncode == 1
    payload.write_bytes(signed)
    assert is_valid(payload, keys / "one.pub", tmp_path)


def test_another_signature_takes_the_place_of_the_first(payload: Path, keys: Path, tmp_path: Path) -> None:
    for key in ("one", "other"):
        assert sign(payload.parents[1], keys / key).returncode == 0
    assert is_valid(payload, keys / "other.pub", tmp_path)
    with payload.open("rb") as stream:
        assert sum(section.name == SECTION for section in ELFFile(stream).iter_sections()) == 1


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("short", "2048 are the least"),
        ("curve", "not an RSA key"),
        ("one.pub", "not a private key"),
        ("gone", "read"),
    ],
)
def test_a_key_that_xen_would_not_take_changes_nothing(payload: Path, keys: Path, key: str, why: str) -> None:
    before = payload.read_bytes()
    refused = sign(payload.parents[1], keys / key)
    assert refused.returncode == 1 and why in refused.stderr
    assert payload.read_bytes() == before


def test_what_is_no_payload_is_named_before_any_is_changed(payload: Path, keys: Path, tmp_path: Path) -> None:
    before = payload.read_bytes()
    assert "no such file" in sign(tmp_path, keys / "one", payload, tmp_path / "gone").stderr
    (tmp_path / "text").write_text("no ELF")
    assert "no ELF file" in sign(tmp_path, keys / "one", tmp_path / "text").stderr
    assert "no payload" in sign(tmp_path / "empty", keys / "one").stderr
    assert "no signature" in sign(tmp_path, "--check", keys / "one.pub", payload).stderr
    assert payload.read_bytes() == before
    assert sign(tmp_path).returncode == 2 and sign(tmp_path, "--no-such").returncode == 2


@pytest.mark.machine
@pytest.mark.long("a boot for a note that today's Xen ignores")
def test_stock_xen_takes_a_signed_payload(keys: Path, tmp_path: Path) -> None:
    signed = tmp_path / "signed.livepatch"
    shutil.copy(artifacts.payload("pagetable", NAME), signed)
    assert sign(tmp_path, keys / "other", signed).returncode == 0
    transcript = runner.run(
        MACHINES["xen-relaxed"],
        [
            Step("load", f"xen-livepatch load /{NAME}.livepatch && xen-livepatch list"),
            Step("use", "spawn fork-exit -n 20"),
            Step("unload", f"xen-livepatch revert {NAME} && xen-livepatch unload {NAME}"),
        ],
        files={f"/{NAME}.livepatch": File(signed)},
    )
    assert "APPLIED" in transcript["load"].output and not transcript.kernel_warnings()
