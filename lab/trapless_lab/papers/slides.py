# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The tables, plots and drawings of the slides of "Out of Hypervisor". They have few numbers of their own."""

from .item import Column, Comparison, Item, Listing, Number, Paper

_PROGRAMS = "rows[].program"
# Most factors of the slides are of no program by name: they have a row of their own, before the programs.
_UNNAMED = "no program named"
_WITH_UNNAMED = f"['{_UNNAMED}', {{rows}}[].program][]"
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
        rows=_WITH_UNNAMED.format(rows="spml") if _UNNAMED in theirs else "spml[].program",
        columns=(
            Column("/proc", dict.fromkeys(theirs, 100) if of else {}, _of(key, "/proc", "spml")),
            Column("SPML", theirs, _of(key, "spml", "spml")),
        ),
        unit=unit,
        their_unit="% of /proc" if of else "",
        of=of,
        note=_NESTED,
    )


_PROC = "formulas[?backend=='soft-dirty']"
_CLEAR = f'{_PROC}."x: clear" | [0]'
_PAGEMAP = f'{_PROC}.sum(["x: walk", "x: parse"]) | [0]'
_PAGES = f"{_PROC}.reported | [0]"

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
        "its instructions is not in it, and the untracked program, which writes a word a page, is cheaper "
        "than theirs. Ours of ufd's tracker is missing: the formulas, which give a tracker's whole cost, are "
        "not run for it, and its work at each fault is counted with the tracked program's. What it takes to "
        "collect is in the next table but one, uffd-sync.",
    ),
    Comparison(
        "dirty-guest",
        "What /proc's tracker does, by part",
        rows={
            "kernel": "parse the page table and flush the TLB (kernel); ours clear_refs",
            "user": "parse pagemap (userspace); ours with its read",
        },
        columns=(
            Column(
                "/proc",
                {"kernel": "2.234", "user": "594.187"},
                f"{{kernel: {_CLEAR}, user: {_PAGEMAP}}}.{{row}}",
            ),
            Column(
                "/proc, a page",
                {},
                f"{{kernel: quotient({_CLEAR}, {_PAGES}), user: quotient({_PAGEMAP}, {_PAGES})}}.{{row}}",
            ),
        ),
        unit="instructions",
        their_unit="ms",
        chart=False,
        note="The slides' second value is of 1 GB; of how much memory the first is they do not say. Ours are "
        "of the formulas' run, with all pages dirty.",
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
    "tables and not by a search a page.",
)

_ESTIMATES = {
    "tker measured": "E(C_tker) measured",
    "tker estimated": "E(C_tker) estimated",
    "tked_tker measured": "E(C_tked_tker) measured",
    "tked_tker estimated": "E(C_tked_tker) estimated",
    "tked": "E(C_tked), not printed",
    "p": "E(C_p), processing",
}
_ACCURACY = {
    "tker accuracy %": "accuracy of E(C_tker), %; theirs follows from the printed times",
    "tked_tker accuracy %": "accuracy of E(C_tked_tker), %; the same",
}
_SPML_PARTS = {
    "x: drain": "E(C_copy_rb) + E(C_disable_pml); ours the call for the log, with the copy",
    "x: walk": "E(C_rev. mapping)",
    "x: read": "read the result",
    "exits": "E(C_vmexits), time in VM exits",
    "a fault": "one VM exit",
    "faults": "VM exits (a number)",
    "N": "N (a number)",
    "vmread": "E(C_vmread,vmwrite)",
}
_TRACKER_PARTS = {
    "x: clear": "E(C_clear_refs)",
    "x: walk": "E(C_PTwalk); ours reads pagemap",
    "x: parse": "find the dirty pages in pagemap",
    "x: collect": "collect",
    "x: read": "read the result",
    "exits": "time in page faults",
    "a fault": "E(C_PFHuser); ours one page fault",
    "faults": "page faults (a number)",
}


def _formulas(
    experiment: str,
    parts: dict[str, str],
    backends: dict[str, str],
    theirs: dict[str, dict[str, Number]],
    note: str,
) -> Comparison:
    """Return the table of the formulas: back end -> what the slides call it."""
    return Comparison(
        experiment,
        "Parts, estimates and measurements",
        rows=_ESTIMATES | parts | _ACCURACY,
        columns=tuple(
            Column(
                name,
                theirs.get(backend, {}),
                f"formulas[?backend=='{backend}']"
                '.merge(@, {exits: product("a fault", faults)})."{row}" | [0]',
                model=backend == "epml",
            )
            for backend, name in backends.items()
        ),
        unit="instructions",
        their_unit="ms",
        chart=False,
        note=f"{note} {_MODEL if 'epml' in backends else _NESTED}",
    )


_SPML_FORMULAS = _formulas(
    "dirty-guest-spml",
    _SPML_PARTS,
    {"spml": "SPML"},
    {
        "spml": {
            **{"tker measured": 5503.79, "tker estimated": 5672.9},
            **{"tked_tker measured": 135_255.35, "tked_tker estimated": 136_919.85},
            **{"p": 251.35, "x: drain": "0.49 + 2.06", "x: walk": 5419},
            **{"exits": 18_000, "N": 39, "vmread": 0.00173},
            **{"tker accuracy %": 96.93, "tked_tker accuracy %": 98.77},
        }
    },
    "The slide has the time in VM exits and not how many there are, nor what N counts; ours is one exit by "
    "how many pages the log has. No vmread and vmwrite of ours: the emulated processor is AMD's, which has "
    "neither.",
)
_PROC_FORMULAS = _formulas(
    "dirty-guest",
    _TRACKER_PARTS,
    {"soft-dirty": "/proc", "dbit": "dbit", "epml": "EPML"},
    {
        "soft-dirty": {
            **{"tker measured": 1097.99, "tker estimated": 1116.09, "tked_tker estimated": 114_418.58},
            **{"p": 251.35, "x: clear": 1.409, "x: walk": 0.89, "a fault": 0.27, "tker accuracy %": 98.35},
            **{"x: parse": '594.187 (slide "Limits", 1 GB)'},
        }
    },
    "The parts that this slide prints do not add up to its estimate, with those of the other slide neither. "
    "Of how many faults 0.27 ms are it does not say.",
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


def _tracker(experiment: str, second: str, epml: float, note: str) -> Comparison:
    """Return the tracker's time as a share of /proc's; ``epml``: the slides' factor, as such a share."""
    return Comparison(
        experiment,
        "The tracker's time against /proc",
        rows=_WITH_UNNAMED.format(rows="rows"),
        columns=_techniques("tracker_ms", second, {"/proc": {_UNNAMED: 100}, "EPML": {_UNNAMED: epml}}),
        unit="ms",
        their_unit="% of /proc",
        of="/proc",
        note=f"The slides' plot has no printed values; theirs is its factor. {note}{_SIZE} {_MODEL}",
    )


def _faster(experiment: str, proc: float, spml: float) -> Comparison:
    """Return how many times faster EPML's tracker is than the two others."""
    ours = {
        name: f"{rows}[?program=='{{row}}' && size=='small' && technique=='{name}'].tracker_ms | [0]"
        for name, rows in (("spml", "spml"), ("epml", "rows"))
    }
    both = (ours["spml"].replace("'spml'", "'/proc'"), ours["epml"].replace("'epml'", "'/proc'"))
    return Comparison(
        experiment,
        "How many times faster EPML's tracker is",
        rows=_WITH_UNNAMED.format(rows="rows"),
        columns=(
            Column(
                "than /proc",
                {_UNNAMED: proc},
                f"quotient({_of('tracker_ms', '/proc')}, {_of('tracker_ms', 'epml')})",
                model=True,
            ),
            Column(
                "than SPML",
                {_UNNAMED: spml},
                f"quotient(product({ours['spml']}, {both[1]}), product({both[0]}, {ours['epml']}))",
                model=True,
            ),
        ),
        unit="times",
        chart=False,
        note="Below 1 it is slower. SPML runs nested, EPML does not: ours between the two is of the smallest "
        f"size, each as a share of /proc in its own machine. {_MODEL}",
    )


def _better(experiment: str, proc: float, spml: float, epml: float) -> Comparison:
    """Return by how many times EPML's largest overhead is less than the largest of the two others."""
    largest = "max({rows}[?technique=='{technique}'].overhead_percent)".format
    return Comparison(
        experiment,
        "How many times less EPML adds to the tracked program",
        rows={
            "stated": "as stated (not over what)",
            "proc": "the largest with /proc over its largest",
            "spml": "the largest with SPML over its largest",
        },
        columns=(
            Column(
                "improvement",
                {"stated": 16, "proc": round(proc / epml, 1), "spml": round(spml / epml, 1)},
                f"{{proc: quotient({largest(rows='rows', technique='/proc')}, "
                f"{largest(rows='rows', technique='epml')})}}.{{row}}",
                model=True,
            ),
        ),
        unit="times",
        chart=False,
        note="The slides state one factor, 16, also in their conclusion; the others follow from their "
        f"largest percentages. Ours over SPML is missing: that runs nested. {_MODEL}",
    )


def _by_program(experiment: str, title: str, key: str, second: str, unit: str, note: str) -> Comparison:
    return Comparison(
        experiment, title, rows=_PROGRAMS, columns=_techniques(key, second, {}), unit=unit, note=note
    )


def _tracked(experiment: str, second: str, theirs: dict[str, dict[str, float]], note: str) -> Comparison:
    return Comparison(
        experiment,
        "The tracked program over untracked",
        rows=_WITH_UNNAMED.format(rows="rows"),
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
                _tracker("dirty-boehm", "mprotect", 50, ""),
                _spml("dirty-boehm", "SPML against /proc", "tracker_ms", "ms", {_UNNAMED: 300}, of="/proc"),
                _faster("dirty-boehm", 2, 6),
            ),
        ),
        Item(
            "ooh-tracker-criu",
            "Tracker results, CRIU",
            "criu's time to learn what is dirty",
            (
                _tracker(
                    "dirty-criu",
                    "uffd-sync",
                    25,
                    "The authors changed CRIU; ours is stock, and reads the whole pagemap in any case, for "
                    "it must know which pages are there. ",
                ),
                _spml("dirty-criu", "SPML against /proc", "tracker_ms", "ms", {_UNNAMED: 500}, of="/proc"),
                _faster("dirty-criu", 4, 13),
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
                    {"/proc": {"string-match": 232}, "EPML": {_UNNAMED: 24}},
                    "The slides print the largest only: 232 % (string-match), with EPML 24 %, of what "
                    "program they do not say.",
                ),
                _spml("dirty-boehm", "SPML over untracked", "overhead_percent", "%", {"string-match": 273}),
                _better("dirty-boehm", 232, 273, 24),
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
                    {"/proc": {"pca": 102}, "EPML": {_UNNAMED: 7}},
                    "The slides print the largest only: 102 % (pca), with EPML 7 %, of what program they do "
                    "not say.",
                ),
                _spml("dirty-criu", "SPML over untracked", "overhead_percent", "%", {"pca": 114}),
                _better("dirty-criu", 102, 114, 7),
            ),
        ),
    ),
)
