# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The patches for Xen's sources: their new files against stubs, and their logic against the model of Xen.

Xen's sources are not here. So the new files are taken from the patches, compiled against the few declarations
that they need (xen-source/stubs), and put where the payload's own tests (host/) expect the payload. What a
hunk stands in is held by nothing here; xen-source/README.md says where it was read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

XEN_DIR = Path(__file__).resolve().parents[2] / "xen"
SOURCE = XEN_DIR.parent / "xen-source"
HOST = XEN_DIR / "tests" / "host"
PATCHES = sorted((SOURCE / "patches").glob("*.patch"))
ABI = XEN_DIR.parent / "include" / "trapless_pagetable.h"

TYPE = "xen/arch/x86/pv/semi-writable.c"
OPERATIONS = "xen/arch/x86/pv/semi-writable-op.c"
PUBLIC = "xen/include/public/arch-x86/semi-writable.h"
HOOKS = "hooks.h"

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
# As Xen 4.17 compiles itself, besides -Wall.
XEN_WARNINGS = ["-std=gnu99", "-Wdeclaration-after-statement", "-Wstrict-prototypes", "-Wvla"]
SANITIZE = ["-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, capture_output=True, timeout=120, env=env
    )


def demand(*command: str | Path, cwd: Path) -> str:
    result = run(*command, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def hunks(patch: Path, path: str) -> list[str]:
    """What a patch makes of each place of a file: context and new lines."""
    part = patch.read_text().split(f"\n+++ b/{path}\n", 1)[1].split("\ndiff --git", 1)[0]
    places = re.split(r"^@@ .*\n", part, flags=re.MULTILINE)[1:]
    return ["".join(f"{line[1:]}\n" for line in place.splitlines() if line[:1] in " +") for place in places]


def changed_functions() -> str:
    """Make the two functions of iommu.c whole again: head and end are beyond the hunks."""
    iommu_map, iommu_unmap = hunks(PATCHES[1], "xen/drivers/passthrough/iommu.c")
    head = (
        "int iommu_legacy_map(struct domain *d, dfn_t dfn, mfn_t mfn,\n"
        "                     unsigned long page_count, unsigned int flags)\n{\n"
        "    unsigned int flush_flags = 0;\n"
    )
    end = "    return rc;\n}\n"
    return head + iommu_map + end + iommu_unmap + end


def new_files(tree: Path, patches: list[Path] = PATCHES) -> Path:
    """Put the patches' new files into a tree, and stubs for all that they include."""
    tree.mkdir()
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    for patch in patches:
        only = ["--include=*/semi-writable.[ch]", "--include=*/semi-writable-op.c"]
        result = run("git", "apply", *only, patch, cwd=tree, env=environment)
        assert result.returncode == 0, result.stderr
    (tree / "xen/include/public/xen.h").write_text('#include "stubs.h"\n')
    for path in tree.glob("xen/**/semi-writable*"):
        for name in re.findall(r"#include <((?:xen|asm)/[^>]*)>", path.read_text()):
            stub = tree / "stubs" / name
            if not name.startswith("asm/pv/") and not (SOURCE / "stubs" / name).exists():
                stub.parent.mkdir(parents=True, exist_ok=True)
                stub.write_text('#include "stubs.h"\n')
    (tree / HOOKS).write_text(changed_functions())
    return tree


def includes(tree: Path) -> list[str]:
    folders = [tree, SOURCE / "stubs", tree / "stubs", tree / "xen/arch/x86/include", tree / "xen/include"]
    return [f"-I{folder}" for folder in folders]


def syntax(compiler: str, tree: Path, path: str) -> subprocess.CompletedProcess[str]:
    options = ["-fsyntax-only", *XEN_WARNINGS, *WARNINGS, "-DCONFIG_PV_SEMI_WRITABLE", *includes(tree)]
    return run(compiler, *options, path, cwd=tree)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has changed: {old!r}"
    path.write_text(text.replace(old, new))


# -- form ---------------------------------------------------------------------------------------


def test_the_series_is_whole() -> None:
    assert [int(patch.name[:4]) for patch in PATCHES] == [1, 2, 3, 4]
    for number, patch in enumerate(PATCHES, 1):
        assert f"Subject: [PATCH {number}/4] " in patch.read_text()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name[:4])
def test_a_patch_is_well_formed(patch: Path, tmp_path: Path) -> None:
    demand("git", "apply", "--numstat", patch, cwd=tmp_path)
    added = [line[1:] for line in patch.read_text().splitlines() if re.match(r"\+(?!\+\+ )", line)]
    assert [line for line in added if line != line.rstrip() or len(line.expandtabs(8)) > 80] == []


def test_a_damaged_patch_is_not(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.patch"
    damaged.write_text(PATCHES[1].read_text().replace("+        smp_mb();\n", "", 1))
    assert run("git", "apply", "--numstat", damaged, cwd=tmp_path).returncode != 0


# -- types --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["gcc", "clang-14"])
@pytest.mark.parametrize("count", [1, len(PATCHES)])
def test_new_files_compile(compiler: str, count: int, tmp_path: Path) -> None:
    tree = new_files(tmp_path / "tree", PATCHES[:count])
    for path in [TYPE, OPERATIONS][: 1 if count == 1 else 2]:
        result = syntax(compiler, tree, path)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (TYPE, "mark_frame(d, _mfn(mfns[n]),", "mark_frame(d, mfns[n],"),
        (TYPE, "iommu_unmap(d, _dfn(mfn_x(mfn)), 1,", "iommu_unmap(d, mfn, 1,"),
        (TYPE, "rc = map_frame(d, mfn, flush_flags);", "rc = map_frame(d, pdx, flush_flags);"),
        (OPERATIONS, "uint64_t *mfns;", "uint32_t *mfns;"),
    ],
)
def test_a_wrong_type_does_not_compile(path: str, old: str, new: str, tmp_path: Path) -> None:
    tree = new_files(tmp_path / "tree")
    replace(tree / path, old, new)
    assert syntax("gcc", tree, path).returncode != 0


def test_without_the_option_nothing_is_left(tmp_path: Path) -> None:
    tree = new_files(tmp_path / "tree")
    (tree / "off.c").write_text(
        '#include "stubs.h"\n#include <asm/pv/semi-writable.h>\n'
        '_Static_assert(!sizeof(struct semi_writable_domain), "no room");\n'
        "int off(struct domain *d);\n"
        "int off(struct domain *d)\n"
        "{ pv_semi_writable_domain_init(d); return pv_semi_writable_relinquish(d); }\n"
    )
    demand("gcc", "-fsyntax-only", *WARNINGS, *includes(tree), "off.c", cwd=tree)


# -- the interface ------------------------------------------------------------------------------


def interface(header: Path, options: list[str], cwd: Path) -> str:
    """Every number and every field's place, as the compiler sees them."""
    text = ABI.read_text()
    numbers = re.findall(r"^#define (TPT_\w+)", text, re.MULTILINE)
    lines = [f'printf("{name} %llu\\n", (unsigned long long){name});' for name in numbers]
    for name, body in re.findall(r"^struct (tpt_\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in re.findall(r"(\w+);", body):
            size = f"sizeof(((struct {name} *)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), {size});')
    assert len(numbers) > 10 and len(lines) > 30
    (cwd / "probe.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void)\n{{\n'
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    demand("gcc", *options, "-o", "probe", "probe.c", cwd=cwd)
    return demand("./probe", cwd=cwd)


def test_the_guest_module_finds_the_interface_it_knows(tmp_path: Path) -> None:
    tree = new_files(tmp_path / "tree")
    known = interface(ABI, [], tmp_path)
    assert interface(tree / PUBLIC, includes(tree), tmp_path) == known
    replace(tree / PUBLIC, "    uint32_t done;", "    uint64_t done;")
    assert interface(tree / PUBLIC, includes(tree), tmp_path) != known


def test_the_public_header_passes_xens_own_check(tmp_path: Path) -> None:
    """Xen compiles its public headers as C90 and C++; stubs are neither, so only ours is looked at."""
    tree = new_files(tmp_path / "tree")
    (tree / "xen/include/public/xen.h").write_text(
        "#define DEFINE_XEN_GUEST_HANDLE(name) struct handle_##name\n"
    )
    for language in ("c", "c++"):
        options = ["-ansi", "-Wall", "-Werror", "-include", "stdint.h", "-fsyntax-only"]
        demand("gcc", "-x", language, *options, PUBLIC, cwd=tree)


# -- the logic ----------------------------------------------------------------------------------


class Model:
    """The payload's tests, built once, to be linked with one version of the patched Xen after another."""

    # What the tests say of the payload alone.
    ADAPTED = (
        ("&marks_of(&dom0)->next", "source_waiting(&dom0)"),
        ("marks_of(&dom0)->serving++", "--*source_waiting(&dom0)"),
        ("\t\tTEST(switches_as_told),\n", ""),
        ("\t\tTEST(failed_revert_changes_nothing),\n", ""),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tests"
        self.folder.mkdir()
        shutil.copytree(XEN_DIR.parent / "include", folder / "include")
        for path in [*XEN_DIR.glob("*.h"), *HOST.glob("*.[ch]"), HOST / "fake" / "layout.h"]:
            shutil.copy(path, self.folder)
        values = re.findall(
            r"^#define (?:PGT_|PGC_|IOMMUF_|XEN_SIZE_|XEN_PROLOGUE_).*\n",
            (XEN_DIR / "layout.h").read_text(),
            re.MULTILINE,
        )
        (self.folder / "layout_values.h").write_text("".join(values))
        replace(
            self.folder / "fake_xen.h", "\nstruct domain {\n", "\nstruct domain {\n\tu64 semi_writable[8];\n"
        )
        tests = self.folder / "test_semi_writable.c"
        for old, new in self.ADAPTED:
            replace(tests, old, new)
        options = [*SANITIZE, *WARNINGS, "-Wno-unused-function", f"-I{self.folder}", f"-I{SOURCE / 'model'}"]
        own = [SOURCE / "model" / name for name in ("model.c", "test_page_lock.c")]
        names: list[str | Path] = ["fake_xen.c", "call.c", "test_semi_writable.c", *own]
        for name in names:
            demand("clang-14", *options, "-include", "source.h", "-c", name, cwd=self.folder)

    def check(self, tree: Path) -> str:
        """Return what failed, empty if nothing did."""
        options = [*SANITIZE, *WARNINGS, "-Wno-unused", "-DCONFIG_PV_SEMI_WRITABLE", *includes(tree)]
        source = SOURCE / "model" / "source.c"
        demand("clang-14", *options, f"-I{SOURCE / 'model'}", "-c", "-o", "source.o", source, cwd=tree)
        failed = ""
        for test in ("test_semi_writable", "test_page_lock"):
            objects = [self.folder / f"{name}.o" for name in ("fake_xen", "call", "model", test)]
            demand("clang-14", *SANITIZE, "-o", test, "source.o", *objects, "-lcmocka", cwd=tree)
            result = run(f"./{test}", cwd=tree)
            if result.returncode:
                failed += result.stdout + result.stderr
        return failed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"))


def test_the_payloads_tests_pass(model: Model, tmp_path: Path) -> None:
    assert model.check(new_files(tmp_path / "tree")) == ""


FLUSH = "    flush_rc = flush_iotlb(d, flush_flags);\n"
UNDO = "    if ( flush_rc )\n    {\n        rc = undo_marks(d, mfns, n, flush_rc);\n        n = 0;\n    }\n\n"
I4 = "    /* I4: from here on the frames may become page tables. */\n"
DROP = "    for ( i = 0; i < n; i++ )\n        put_page_type(mfn_to_page(_mfn(mfns[i])));\n"


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        pytest.param(
            TYPE, "    return iommu_iotlb_flush_all(d, flush_flags);", "    return 0;", id="no-flush"
        ),
        pytest.param(
            TYPE,
            "        if ( !rc )\n            return 0;\n",
            "        if ( !rc )\n        {\n            put_page(page);\n            return 0;\n        }\n",
            id="mark-keeps-no-reference",
        ),
        pytest.param(TYPE, FLUSH + UNDO + I4 + DROP, DROP + FLUSH + UNDO, id="type-dropped-before-flush"),
        pytest.param(TYPE, "    spin_lock(&sw->lock);", "    sw->lock.next++;", id="no-lock"),
        pytest.param(TYPE, " || atomic_read(&sw->waiting)", "", id="lock-kept"),
        pytest.param(
            TYPE, "table = (page->u", "table = true || (page->u", id="writable-page-taken-for-a-table"
        ),
        pytest.param(TYPE, "map && mfn_valid(mfn) &&", "map &&", id="alias-has-mark"),
        pytest.param(TYPE, "is_special_page(page) || ", "", id="special-frame-marked"),
        pytest.param(TYPE, "            semi_writable_of(d)->held++;\n", "", id="held-frame-not-counted"),
        pytest.param(
            TYPE,
            "    put_page_and_type(pdx_to_page(pdx));",
            "    put_page(pdx_to_page(pdx));",
            id="type-left",
        ),
        pytest.param(TYPE, "if ( !is_pv_domain(d) )", "if ( true )", id="zombie"),
        pytest.param(OPERATIONS, "if ( !need_iommu_pt_sync(d) )", "if ( false )", id="serves-relaxed"),
        pytest.param(OPERATIONS, "is_hardware_domain(d) ? op_stats", "true ? op_stats", id="open-to-guests"),
        pytest.param(HOOKS, "if ( pv_semi_writable(d, mfn) )", "if ( false )", id="grant-maps-marked-frame"),
        pytest.param(HOOKS, "dfn_x(dfn) == mfn_x(mfn) &&\n", "true &&\n", id="skips-any-address"),
    ],
)
def test_a_mutant_is_caught(path: str, old: str, new: str, model: Model, tmp_path: Path) -> None:
    tree = new_files(tmp_path / "tree")
    replace(tree / path, old, new)
    assert model.check(tree) != ""
