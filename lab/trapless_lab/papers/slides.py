# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The tables, plots and drawings of the slides of "Out of Hypervisor". They have few numbers of their own."""

from .item import Column, Comparison, Item, Listing, Paper

_PROGRAMS = "rows[].program"
_NESTED = (
    "SPML runs nested: instructions of both guests together. Compare it with /proc of the same table only."
)
_MODEL = "EPML is a model: no processor logs guest-virtual addresses."
_SIZE = "Ours is the largest size that was run: of a quick run the smallest of three."


def _of(key: str, technique: str, rows: str = "rows") -> str:
    """Return the expression for a technique's value of a program, at the largest size that was run."""
    return f"{rows}[?program=='{{row}}' && technique=='{technique}'] | [-1].{key}"


def _techniques(key: str, second: str, theirs: dict[str, dict[str, float]]) -> tuple[Column, ...]:
    """Return the columns of a table by technique; ``second`` is the one that protects pages."""
    return (
        Column("/proc", theirs.get("/proc", {}), _of(key, "/proc")),
        Column(second, {}, _of(key, second)),
        Column("dbit", {}, _of(key, "dbit")),
        Column("EPML", theirs.get("EPML", {}), _of(key, "epml"), model=True),
    )


def _spml(
    experiment: str, title: str, key: str, unit: str, theirs: dict[str, float], of: str = ""
) -> Comparison:
    return Comparison(
        experiment,
        title,
        rows="spml[].program",
        columns=(
            Column("/proc", dict.fromkeys(theirs, 100) if of else {}, _of(key, "/proc", "spml")),
            Column("SPML", theirs, _of(key, "spml", "spml")),
        ),
        unit=unit,
        their_unit="% of /proc" if of else "",
        of=of,
        note=_NESTED,
    )


_LIMITS = (
    Comparison(
        "dirty-guest",
        "How many times slower",
        rows={
            "ufd tracked": "ufd, tracked",
            "ufd tracker": "ufd, tracker",
            "/proc tracked": "/proc, tracked",
            "/proc tracker": "/proc, tracker",
        },
        columns=(
            Column(
                "slowdown",
                {"ufd tracked": 15.6, "ufd tracker": 14.5, "/proc tracked": 4.3, "/proc tracker": 2.5},
                "{\"ufd tracked\": rows[?backend=='uffd-sync' && density==`1`] | [-1].times_untracked, "
                '"/proc tracked": formulas[?backend==\'soft-dirty\']."times tracked" | [0], '
                '"/proc tracker": formulas[?backend==\'soft-dirty\']."times tracker" | [0]}."{row}"',
            ),
        ),
        unit="times",
        chart=False,
        note="The slides: 1 GB. Ours is counted in instructions, so what a fault costs a processor beyond "
        "its "
        "instructions is not in it, and the untracked program, which writes a word a page, is cheaper than "
        "theirs. "
        "No tracker of ours works by userfaultfd alone, so that one value is missing.",
    ),
    Listing(
        "dirty-guest",
        "Ours: every back end, all pages dirty",
        "rows[?density==`1`]",
        {
            "backend": "back end",
            "model": "a model",
            "mib": "MiB",
            "times_untracked": "times slower, tracked",
            "tracked_insns_per_page": "instructions a dirtied page, tracked",
            "collect_insns_per_page": "instructions a page, tracker",
            "missed": "missed",
        },
    ),
    Listing(
        "dirty-native",
        "Ours on a host without a guest: processor time, by this host's kernel",
        "rows",
        {
            "backend": "back end",
            "untracked_ns_per_page": "ns a page, untracked",
            "tracked_ns_per_page": "ns a page, tracked",
            "times_untracked": "times slower, tracked",
            "collect_ns_per_page": "ns a page, tracker",
            "missed": "missed",
        },
        note="Times of one host, and not the same twice.",
    ),
)

_SPML_LIMITS = Comparison(
    "dirty-guest-spml",
    "What is costly of SPML",
    rows={"mapping": "reverse mapping of 1 GB", "call": "an empty hypercall"},
    columns=(
        Column(
            "SPML",
            {"mapping": "15.739 s", "call": "4.49 us"},
            "{mapping: reverse_mapping.instructions_a_gib, call: call.instructions}.{row}",
        ),
    ),
    unit="instructions",
    their_unit="time",
    chart=False,
    note="Nested emulation: instructions of both guests, no time. The module maps by one walk of the page "
    "tables "
    "and not by a search a page.",
)

_PART_NAMES = {
    "tker measured": "E(C_tker) measured",
    "tker estimated": "E(C_tker) estimated",
    "tked_tker measured": "E(C_tked_tker) measured",
    "tked_tker estimated": "E(C_tked_tker) estimated",
    "p": "E(C_p), processing",
}
_MORE_PARTS = {
    "x: drain": "copy of the ring, disable PML",
    "x: walk": "walk of the page tables, reverse mapping",
    "x: parse": "parse pagemap in userspace",
    "x: clear": "clear and flush the TLB",
    "x: collect": "collect",
    "x: read": "read the result",
    "a fault": "a fault, or an exit",
    "faults": "how many",
    "tker accuracy %": "accuracy of E(C_tker), %",
    "tked_tker accuracy %": "accuracy of E(C_tked_tker), %",
}


def _formulas(experiment: str, backends: dict[str, str], theirs: dict[str, dict[str, float]]) -> Comparison:
    """Return the table of the formulas: back end -> what the slides call it."""
    return Comparison(
        experiment,
        "Parts, estimates and measurements",
        rows=_PART_NAMES | _MORE_PARTS,
        columns=tuple(
            Column(
                name,
                theirs.get(backend, {}),
                f"formulas[?backend=='{backend}'].\"{{row}}\" | [0]",
                model=backend == "epml",
            )
            for backend, name in backends.items()
        ),
        unit="instructions",
        their_unit="ms",
        chart=False,
        note="The parts are the slides' as far as ours has them. "
        + (_MODEL if "epml" in backends else _NESTED),
    )


_SPML_FORMULAS = _formulas(
    "dirty-guest-spml",
    {"spml": "SPML"},
    {
        "spml": {
            **{"tker measured": 5503.79, "tker estimated": 5672.9},
            **{"tked_tker measured": 135_255.35, "tked_tker estimated": 136_919.85},
            **{"p": 251.35, "x: drain": 2.55, "x: walk": 5419, "faults": 18_000},
            **{"tker accuracy %": 96.93, "tked_tker accuracy %": 98.77},
        }
    },
)
_PROC_FORMULAS = _formulas(
    "dirty-guest",
    {"soft-dirty": "/proc", "dbit": "dbit", "epml": "EPML"},
    {
        "soft-dirty": {
            **{"tker measured": 1097.99, "tker estimated": 1116.09, "tked_tker estimated": 114_418.58},
            **{"p": 251.35, "x: clear": 1.409, "x: walk": 0.89, "a fault": 0.27, "tker accuracy %": 98.35},
        }
    },
)


def _accuracy(experiment: str, backends: dict[str, str], theirs: dict[str, float]) -> Comparison:
    return Comparison(
        experiment,
        "Accuracy of the formulas",
        rows=backends,
        columns=(
            Column("the tracker's", theirs, "formulas[?backend=='{row}'].\"tker accuracy %\" | [0]"),
            Column("the tracked program's", {}, "formulas[?backend=='{row}'].\"tked_tker accuracy %\" | [0]"),
        ),
        unit="%",
        note=_MODEL if "epml" in backends else _NESTED,
    )


def _tracker(experiment: str, program: str, second: str, epml: float) -> Comparison:
    """Return the tracker's time as a share of /proc's, of the one program for which the slides' factor "
    "holds."""
    return Comparison(
        experiment,
        f"The tracker's time against /proc ({program})",
        rows={program: program},
        columns=_techniques("tracker_ms", second, {"/proc": {program: 100}, "EPML": {program: epml}}),
        unit="ms",
        their_unit="% of /proc",
        of="/proc",
        note=f"{_SIZE} {_MODEL}",
    )


def _by_program(experiment: str, title: str, key: str, second: str, unit: str, note: str) -> Comparison:
    return Comparison(
        experiment, title, rows=_PROGRAMS, columns=_techniques(key, second, {}), unit=unit, note=note
    )


def _tracked(experiment: str, second: str, theirs: dict[str, dict[str, float]], note: str) -> Comparison:
    return Comparison(
        experiment,
        "The tracked program over untracked",
        rows=_PROGRAMS,
        columns=_techniques("overhead_percent", second, theirs),
        unit="%",
        note=f"{note} {_SIZE} {_MODEL}",
    )


_DRAWN = "A drawing; what is built is described in"

SLIDES = Paper(
    "dirty",
    "Out of Hypervisor, the SC22 slides",
    "Xen, and hardware changed in Bochs there; here stock KVM's dirty ring for SPML, nested in QEMU, and a "
    "model "
    "of EPML in a plugin of QEMU. Ours are instructions, or ms on a clock that counts them, 2 ns each. A "
    "third "
    "mechanism of ours, dbit, is not in the slides.",
    (
        Item(
            "ooh-drawing-tracking",
            "Drawing",
            "dirty-page tracking in guest userspace",
            drawing="The setting, for which nothing is to be built.",
        ),
        Item("ooh-limits", "Limits", "of page write protection: ufd and /proc", _LIMITS),
        Item("ooh-drawing-pml", "Slide 9", "PML-based tracking in userspace", drawing=f"{_DRAWN} spml.md."),
        Item("ooh-drawing-spml", "Slide 12", "SPML: design", drawing=f"{_DRAWN} spml.md."),
        Item("ooh-spml-limits", "SPML: limitations", "reverse mapping, hypercalls", (_SPML_LIMITS,)),
        Item(
            "ooh-drawing-epml", "Slide 14", "EPML: design", drawing=f"{_DRAWN} epml.md; a model of it runs."
        ),
        Item(
            "ooh-methodology",
            "Slide 19",
            "methodology EPML",
            drawing="A formula, tried on techniques that can be measured: the next three.",
        ),
        Item("ooh-formulas-spml", "Formulas validation (a)", "SPML", (_SPML_FORMULAS,)),
        Item("ooh-formulas-proc", "Formulas validation (b)", "/proc", (_PROC_FORMULAS,)),
        Item(
            "ooh-accuracy",
            "Slide 21",
            "accuracy of the formulas",
            (
                _accuracy("dirty-guest-spml", {"spml": "SPML"}, {"spml": 96.34}),
                _accuracy(
                    "dirty-guest",
                    {"soft-dirty": "/proc", "dbit": "dbit", "epml": "EPML (model)"},
                    {"soft-dirty": 99},
                ),
            ),
        ),
        Item(
            "ooh-tracker-boehm",
            "Tracker results, Boehm",
            "the collector's time to learn what is dirty",
            (
                _tracker("dirty-boehm", "gcbench", "mprotect", 50),
                _spml("dirty-boehm", "SPML against /proc", "tracker_ms", "ms", {"gcbench": 300}, of="/proc"),
                _by_program(
                    "dirty-boehm",
                    "Ours: every program",
                    "tracker_ms",
                    "mprotect",
                    "ms",
                    f"The slides' plot has no printed values; theirs above is its factor. {_MODEL}",
                ),
            ),
        ),
        Item(
            "ooh-tracker-criu",
            "Tracker results, CRIU",
            "criu's time to learn what is dirty",
            (
                _tracker("dirty-criu", "tiny", "uffd-sync", 25),
                _spml("dirty-criu", "SPML against /proc", "tracker_ms", "ms", {"tiny": 500}, of="/proc"),
                _by_program(
                    "dirty-criu",
                    "Ours: every program",
                    "tracker_ms",
                    "uffd-sync",
                    "ms",
                    "The authors changed CRIU; ours is stock, and reads the whole pagemap in any case, for "
                    "it must "
                    f"know which pages are there. {_MODEL}",
                ),
                _by_program(
                    "dirty-criu",
                    "Ours: how long the program stands still for an increment",
                    "frozen_ms",
                    "uffd-sync",
                    "ms",
                    _MODEL,
                ),
            ),
        ),
        Item(
            "ooh-tracked-boehm",
            "Tracked results, Boehm",
            "how much slower the program is",
            (
                _tracked(
                    "dirty-boehm",
                    "mprotect",
                    {"/proc": {"string-match": 232}, "EPML": {"string-match": 24}},
                    "The slides print the largest of each: 232 % (string-match), with EPML at most 24 %.",
                ),
                _spml("dirty-boehm", "SPML over untracked", "overhead_percent", "%", {"string-match": 273}),
            ),
        ),
        Item(
            "ooh-tracked-criu",
            "Tracked results, CRIU",
            "how much slower the program is",
            (
                _tracked(
                    "dirty-criu",
                    "uffd-sync",
                    {"/proc": {"pca": 102}, "EPML": {"pca": 7}},
                    "The slides print the largest of each: 102 % (pca), with EPML at most 7 %.",
                ),
                _spml("dirty-criu", "SPML over untracked", "overhead_percent", "%", {"pca": 114}),
            ),
        ),
    ),
)
