# SPDX-License-Identifier: Apache-2.0 OR MIT
"""scripts/mutant: all patches or nothing, and never in the product's own files."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "mutant"
ROOT = SCRIPT.parents[1]
# For sources that are not in the repository: the Boehm collector's.
ELSEWHERE = {"bdwgc-forget.patch"}
PRODUCT = "int flush(void)\n{\n\tdo_flush();\n\treturn 0;\n}\n"
PATCH = """\
Leaves the flush out.
--- a/power/flush.c
+++ b/power/flush.c
@@ -1,5 +1,4 @@
 int flush(void)
 {
-\tdo_flush();
 \treturn 0;
 }
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with one system of one file, and a mutant of it."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts/mutant")
    (tmp_path / "power/tests/mutants").mkdir(parents=True)
    (tmp_path / "power/flush.c").write_text(PRODUCT)
    (tmp_path / "power/tests/mutants/no-flush.patch").write_text(PATCH)
    return tmp_path


def mutant(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "scripts/mutant", "power", "build/copy", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_copy_has_the_mistake_and_the_product_has_not(tree: Path) -> None:
    assert mutant(tree, "no-flush").returncode == 0
    assert "do_flush" not in (tree / "build/copy/power/flush.c").read_text()
    assert (tree / "power/flush.c").read_text() == PRODUCT


def test_a_patch_may_have_moved_but_its_context_must_match(tree: Path) -> None:
    (tree / "power/flush.c").write_text("\n\n" + PRODUCT)
    assert mutant(tree, "no-flush").returncode == 0
    (tree / "power/flush.c").write_text(PRODUCT.replace("return 0", "return 1"))
    result = mutant(tree, "no-flush")
    assert result.returncode == 1
    assert "no-flush.patch no longer applies" in result.stderr
    assert not (tree / "build/copy").exists(), "a copy without the mistake would pass for a mutant"
    assert not list((tree / "build").iterdir())


def test_an_unchanged_copy_is_left_alone_and_a_changed_product_is_copied(tree: Path) -> None:
    mutant(tree, "no-flush")
    built = tree / "build/copy/flush.o"
    built.touch()
    mutant(tree, "no-flush")
    assert built.exists()
    (tree / "power/flush.c").write_text("/* new */\n" + PRODUCT)
    mutant(tree, "no-flush")
    assert not built.exists()
    assert "/* new */" in (tree / "build/copy/power/flush.c").read_text()


@pytest.mark.parametrize("arguments", [[], ["no-such"]])
def test_missing_inputs_are_named(tree: Path, arguments: list[str]) -> None:
    result = mutant(tree, *arguments)
    assert result.returncode == 2
    assert result.stderr


# The objects of a kernel module with a mistake

COMMAND = "cmd_{build}/flush.o := gcc -c -o {build}/flush.o {build}/flush.c\ndeps := {root}/dirty/found.h\n"
HEADER_PATCH = """\
Forgets what was found.
--- a/dirty/found.h
+++ b/dirty/found.h
@@ -1 +1 @@
-int found;
+int lost;
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """Return a repository with a module that was built, and the copy of its sources with a mistake."""
    (tmp_path / "scripts").mkdir()
    for name in ("mutant", "mutant-objects"):
        shutil.copy(SCRIPT.with_name(name), tmp_path / "scripts")
    (tmp_path / "dirty/tests/mutants").mkdir(parents=True)
    (tmp_path / "dirty/found.h").write_text("int found;\n")
    (tmp_path / "dirty/tests/mutants/forgets.patch").write_text(HEADER_PATCH)
    subprocess.run(
        [tmp_path / "scripts/mutant", "dirty", "build/forgets/source", "forgets"],
        check=True,
    )
    # Later than the copy: the case in which times alone would keep the mistake out.
    product = tmp_path / "build/module"
    product.mkdir()
    (product / "flush.c").touch()
    (product / "flush.o").write_text("an object")
    (product / "left-out.c").touch()
    (product / ".flush.o.cmd").write_text(COMMAND.format(build=product, root=tmp_path))
    return tmp_path


def objects(module: Path, product: str = "build/module") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [module / "scripts/mutant-objects", product, "build/forgets"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_objects_come_with_the_names_of_the_copy(module: Path) -> None:
    assert objects(module).returncode == 0
    build = module / "build/forgets"
    assert (build / "flush.o").read_text() == "an object"
    assert (build / ".flush.o.cmd").read_text() == COMMAND.format(build=build, root=build / "source")
    assert not (build / "left-out.o").exists()


def test_what_the_mistake_changes_is_younger_than_every_object(module: Path) -> None:
    build = module / "build/forgets"
    changed = build / "source/dirty/found.h"
    assert changed.read_text() == "int lost;\n"
    assert changed.stat().st_mtime_ns <= (module / "build/module/flush.o").stat().st_mtime_ns
    assert objects(module).returncode == 0
    assert changed.stat().st_mtime_ns > (build / "flush.o").stat().st_mtime_ns


def test_what_was_compiled_stays_until_the_copy_is_another(module: Path) -> None:
    objects(module)
    build = module / "build/forgets"
    (build / "flush.o").write_text("compiled")
    objects(module)
    assert (build / "flush.o").read_text() == "compiled"
    (build / "source/.mutant").touch()
    objects(module)
    assert (build / "flush.o").read_text() == "an object"


def test_without_a_product_nothing_is_given(module: Path) -> None:
    assert objects(module, "build/none").returncode == 0
    assert not (module / "build/forgets/flush.o").exists()


def test_objects_need_a_copy(module: Path) -> None:
    shutil.rmtree(module / "build/forgets/source")
    result = objects(module)
    assert result.returncode == 2 and "is not what scripts/mutant makes" in result.stderr


def applies(patch: Path) -> bool:
    """Whether a mistake can still be made in today's sources."""
    how = ("-p1", "--fuzz=0", "--batch", "--forward", "--dry-run", "--quiet", "-i", patch)
    return subprocess.run(["patch", *how], cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("system", ["dirty", "lab", "pagetable", "power"])
def test_every_mistake_of_the_repository_can_be_made(system: str, tmp_path: Path) -> None:
    """Most are built by make check-long alone."""
    patches = [patch for patch in ROOT.glob(f"{system}/tests/mutants/*.patch") if patch.name not in ELSEWHERE]
    assert patches
    assert [patch.name for patch in patches if not applies(patch)] == []
    stale = tmp_path / "stale.patch"
    stale.write_text(PATCH.replace("power/flush.c", "README.md"))
    assert not applies(stale), "the control"
