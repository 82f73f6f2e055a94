// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty-conformance` as its user runs it: on the example plug-ins, which are known to miss what they miss, and on
//! one that breaks every rule it can. Whatever a plug-in does, the judge ends with a verdict in good TAP.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Build a plug-in of this source; the name tells apart what tests build side by side.
fn plugin(source: &str, name: &str) -> PathBuf {
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.so"));
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&object)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .status();
    assert!(built.expect("there is a C compiler").success(), "{source}");
    object
}

fn judge(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dirty-conformance"))
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .expect("it starts")
}

/// The lines of results, after all of it was found to be TAP; the exit code fits them.
fn results(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stdout.clone()).expect("TAP is text");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("TAP version 14"), "{text}");
    let plan = lines.next().and_then(|line| line.strip_prefix("1..")).expect("a plan");
    let mut results = Vec::new();
    let mut is_yaml = false;
    for line in lines {
        match line {
            "  ---" => is_yaml = true,
            "  ..." => is_yaml = false,
            _ if is_yaml => assert!(line.starts_with("  "), "{line:?} in\n{text}"),
            comment if comment.starts_with('#') => {}
            _ => {
                let number = results.len() + 1;
                let [good, bad] = ["", "not "].map(|not| format!("{not}ok {number} - "));
                assert!(line.starts_with(&good) || line.starts_with(&bad), "{line:?} in\n{text}");
                results.push(line.to_owned());
            }
        }
    }
    assert_eq!(plan.parse(), Ok(results.len()), "{text}");
    let is_bad = |line: &String| line.starts_with("not ok");
    let is_judged = |line: &String| !line.contains("# SKIP");
    let code = if results.iter().any(is_bad) { 1 } else { i32::from(!results.iter().any(is_judged)) * 2 };
    assert_eq!(output.status.code(), Some(code), "{text}");
    results
}

fn says(output: &Output, words: &str) -> bool {
    String::from_utf8_lossy(&output.stdout).contains(words)
}

/// Which of these cases are not ok for a plug-in, in its own process; `None` if it does not work here.
fn bad_cases(file: &Path, cases: &[&str]) -> Option<Vec<String>> {
    let file = file.to_str().expect("a path that is text");
    let mut arguments = vec!["--plugin", file, "--target", "own", "--seconds", "0"];
    cases.iter().for_each(|case| arguments.extend(["--case", case]));
    let results = results(&judge(&arguments, &[]));
    assert_eq!(results.len(), cases.len());
    if results.iter().all(|line| line.contains("# SKIP")) {
        println!("{file}: {}", results[0]);
        return None;
    }
    let bad = results.iter().filter_map(|line| line.strip_prefix("not ok ")?.split(' ').nth(2));
    Some(bad.map(ToOwned::to_owned).collect())
}

/// Neither program panics where nobody reads it: the exit code says that it could not.
#[test]
fn what_cannot_be_written_is_an_exit_code() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let [conformance, oracle] = [env!("CARGO_BIN_EXE_dirty-conformance"), env!("CARGO_BIN_EXE_dirty-oracle")];
    for arguments in [
        &[conformance, "--list"][..],
        &[conformance, "--help"],
        &[oracle, "--version"],
        &[conformance, "--plugin", "/none"],
        &[oracle, "list"],
        &[oracle, "replay", "/none"],
    ] {
        let mut command = Command::new(arguments[0]);
        command.args(&arguments[1..]).stdout(full());
        let said = command.output().expect("it starts");
        assert_eq!(said.status.code(), Some(2), "{arguments:?}: {said:?}");
        assert!(!said.stderr.is_empty(), "{arguments:?}");
        let mute = command.stderr(full()).status().expect("it starts");
        assert_eq!(mute.code(), Some(2), "{arguments:?}");
    }
}

const CASES: [&str; 8] = [
    "one-writer",
    "huge",
    "runs",
    "read",
    "dontneed-block",
    "copied-discarded",
    "munmap-refault",
    "map-over",
];

#[test]
fn a_bare_handler_misses_what_is_no_store() {
    let file = plugin("plugins/mprotect.c", "mprotect");
    let bad = bad_cases(&file, &CASES).expect("mprotect works everywhere");
    assert_eq!(bad, ["runs", "read", "dontneed-block", "munmap-refault", "map-over"]);
}

#[test]
fn a_bare_scan_does_not_follow_mappings() {
    let file = plugin("plugins/pagemap_scan.c", "pagemap_scan");
    if let Some(bad) = bad_cases(&file, &CASES) {
        assert_eq!(bad, ["munmap-refault", "map-over"]);
    }
}

#[test]
fn bare_soft_dirty_sees_no_discards() {
    let file = plugin("plugins/soft_dirty.c", "soft_dirty");
    if let Some(bad) = bad_cases(&file, &CASES) {
        assert!(
            bad.contains(&"dontneed-block".to_owned()) && !bad.contains(&"one-writer".to_owned()),
            "{bad:?}"
        );
    }
}

#[test]
fn the_library_is_judged_by_the_same_cases() {
    let output = judge(
        &["--backend", "mprotect", "--target", "own", "--case", "one-writer", "--case", "dontneed"],
        &[],
    );
    let results = results(&output);
    assert!(results.len() == 2 && results.iter().all(|line| line.starts_with("ok ")), "{results:?}");
}

/// What the judge is to say of each breach, and its exit code.
const BREACHES: [(&str, &str, i32); 17] = [
    ("outside", "was reported and is not watched", 1),
    ("everywhere", "was reported and is not watched", 1),
    ("unaligned", "reported 0x", 1),
    ("overflow", "reported 0x", 1),
    ("flags", "unknown flags", 1),
    ("zeros", "holds 0x", 1),
    ("silent", "missed after collect 1", 1),
    ("crash", "killed by SIGSEGV", 1),
    ("exit", "ended without an answer", 1),
    ("hang", "hung", 1),
    ("endless", "hung", 1),
    ("input-error", "collect: so it shall be (Input/output error", 1),
    ("open-fails", "open: so it shall be", 1),
    ("not-here", "# SKIP open: ", 2),
    ("talks", "ok 1 - one-writer", 0),
    ("nothing", "ok 1 - one-writer", 0),
    ("declared", "ok 1 - one-writer (own process) # SKIP its record says", 2),
];

#[test]
fn a_wild_plugin_gets_a_verdict() {
    let file = plugin("tests/plugins/wild.c", "wild-verdict");
    let file = file.to_str().expect("a path that is text");
    for (breach, words, code) in BREACHES {
        let arguments = ["--plugin", file, "--target", "own", "--case", "one-writer", "--limit", "3"];
        let output = judge(&arguments, &[("DIRTY_WILD", breach)]);
        results(&output);
        assert!(output.status.code() == Some(code) && says(&output, words), "{breach}: {output:?}");
    }
}

#[test]
fn what_is_no_plugin_is_refused() {
    let file = plugin("tests/plugins/wild.c", "wild-refused");
    let file = file.to_str().expect("a path that is text");
    let breaches = [
        ("null", "returned NULL"),
        ("version", "is for version 7 of the interface; this is version 1"),
        ("features", "unknown features"),
        ("limits", "\"gravity\""),
        ("no-collect", "collect is NULL"),
        ("load-abort", "killed by SIGABRT"),
    ];
    let run = |file: &str, breach: &str| judge(&["--plugin", file], &[("DIRTY_WILD", breach)]);
    for (breach, words) in breaches {
        let output = run(file, breach);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(2) && text.starts_with("Bail out! "), "{breach}: {output:?}");
        assert!(text.contains(words), "{breach}: {text}");
    }
    for (file, words) in [
        ("/nowhere.so", "No such file"),
        ("/proc/self/maps", "cannot be loaded"),
        ("libc.so.6", "No such file"),
    ] {
        let output = run(file, "");
        assert!(output.status.code() == Some(2) && says(&output, words), "{file}: {output:?}");
    }
}

/// Random reports, by `DIRTY_SEEDS` seeds.
#[test]
fn random_reports_are_survived() {
    let file = plugin("tests/plugins/wild.c", "wild-random");
    let file = file.to_str().expect("a path that is text");
    let seeds = std::env::var("DIRTY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8);
    for seed in 0..seeds {
        let environment = [("DIRTY_WILD", "random"), ("DIRTY_SEED", &seed.to_string())];
        let arguments =
            ["--plugin", file, "--case", "one-writer", "--case", "many-ranges", "--target", "own"];
        let output = judge(&arguments, &environment);
        results(&output);
        assert!(
            says(&output, "not ok 1") && !says(&output, "killed") && !says(&output, "hung"),
            "{seed}: {output:?}"
        );
    }
}

#[test]
fn generated_programs_are_the_seed_s() {
    let file = plugin("plugins/mprotect.c", "mprotect-generated");
    let file = file.to_str().expect("a path that is text");
    let run = |seed: &str| {
        let arguments =
            ["--plugin", file, "--target", "own", "--case", "generated", "--rounds", "50", "--seed", seed];
        let output = judge(&arguments, &[]);
        assert!(results(&output)[0].starts_with("not ok"), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| !line.contains("seconds:")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(run("7"), run("7"));
}

#[test]
fn the_header_is_c_and_c_plus_plus() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/dirty_conformance.h");
    for language in [["c", "-std=c99"], ["c++", "-std=c++11"]] {
        let mut compiler = Command::new("cc");
        compiler
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x"])
            .args(language)
            .arg(&header);
        assert!(compiler.status().expect("there is a C compiler").success(), "{language:?}");
    }
}

/// A judge of whom nobody hears the end has judged nothing, and says so without a panic.
#[test]
fn a_closed_pipe_is_an_error_like_any_other() {
    for arguments in [&["--list"][..], &["--backend", "mprotect", "--case", "one-writer"][..]] {
        let (reader, writer) = std::io::pipe().expect("there are pipes");
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_dirty-conformance"))
            .args(arguments)
            .stdout(writer)
            .output()
            .expect("it starts");
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()),
            (Some(2), "dirty-conformance: cannot write standard output: Broken pipe (os error 32)\n")
        );
    }
}
