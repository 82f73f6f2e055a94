// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments, the doctor's answer, and a small bench.

mod common;

use std::process::Command;

use common::{assert_refuses, run};
use serde_json::Value;

#[test]
fn wrong_arguments_are_usage_errors() {
    for (arguments, says) in [
        (&["dirty", "watch", "x"][..], "invalid value 'x'"),
        (&["dirty", "watch", "0"], "'0'"),
        (&["dirty", "watch", "1", "--interval", "0"], "seconds must be from"),
        (&["dirty", "watch", "1", "--backend", "magic"], "no back end is called \"magic\"; there are epml"),
        (&["dirty", "record", "1"], "--output"),
        (&["dirty", "bench", "--size", "1"], "sizes must be from"),
        (&["dirty", "bench", "--density", "2"], "from 0.001 to 1"),
        (&["dirty", "hold", "1"], "--socket"),
        (&["dirty", "hold", "--socket", "s", "0"], "'0'"),
        (&["dirty", "hold", "--socket", "s", "--mode", "888"], "octal number from 0 to 777"),
        (&["dirty", "fly"], "fly"),
        (&["criu"], "<COMMAND>"),
        (&["criu", "--backend", "magic", "dump"], "no back end is called \"magic\""),
        (&["pagetable", "load", "--only", "kernel"], "payload, pool, pvmmu"),
        (&["pagetable", "load", "--prefill", "1,2,3"], "five numbers"),
        (&["pagetable", "load", "--policy", "magic"], "none, number, proportion, both, adaptive"),
        (&["pagetable", "shrink", "101%"], "from 0% to 100%"),
        (&["pagetable", "shrink", "1", "--level", "p4d"], "pte, pmd, pud, pgd, user_pgd"),
        (&["pagetable", "status", "--json", "--prometheus", "-"], "cannot be used with"),
        (&[], "Usage"),
    ] {
        assert_refuses(&run(arguments), 2, says);
    }
}

#[test]
fn a_full_standard_output_is_named() {
    for arguments in
        [&["doctor"][..], &["doctor", "--json"], &["completions", "bash"], &["--version"], &["--help"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_trapless")).args(arguments).stdout(full).output().unwrap();
        assert_refuses(&output, 1, "cannot write standard output: No space left on device");
    }
}

#[test]
fn the_doctor_knows_every_back_end() {
    let output = run(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["host"]["kernel"].as_str().unwrap().starts_with("Linux "));
    for back_end in report["dirty"]["backends"].as_array().unwrap() {
        assert_eq!(back_end["works"], back_end["rejected"].is_null(), "{back_end}");
    }
    for arguments in [&["doctor"][..], &["doctor", "--verbose"]] {
        let text = String::from_utf8(run(arguments).stdout).unwrap();
        for back_end in report["dirty"]["backends"].as_array().unwrap() {
            assert!(text.contains(back_end["name"].as_str().unwrap()), "{text}");
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "wider than a terminal: {line}");
        }
    }
    let pagetable = &report["pagetable"];
    let mut refusals = pagetable["refusals"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
    let is_fine = pagetable["benefits"] == false || refusals.all(|text| text.starts_with("only root"));
    let works = !report["dirty"]["auto"]["own"].is_null() && is_fine;
    assert_eq!(output.status.code(), Some(i32::from(!works)));
}

#[test]
fn criu_is_run_as_it_is_or_missed() {
    for (arguments, says) in [
        (
            &["criu", "--program", "criu-that-is-nowhere", "dump", "-t", "1"][..],
            "criu-that-is-nowhere is not installed",
        ),
        (&["criu", "--program", "/nowhere/criu", "dump"], "/nowhere/criu is no program"),
        (&["criu", "--program", "/bin/echo", "--preload", "/nowhere.so", "check"], "there is no /nowhere.so"),
        (
            &["criu", "--program", "/bin/echo", "--backend", "soft-dirty", "dump"],
            "soft-dirty cannot be held for criu",
        ),
        (
            &[
                "criu",
                "--program",
                "/bin/echo",
                "--hold",
                "/nowhere/socket",
                "--backend",
                "uffd-sync",
                "dump",
            ],
            "no holder could be started: cannot listen at /nowhere/socket",
        ),
    ] {
        assert_refuses(&run(arguments), 1, says);
    }
    // Without a word of ours, and with the exit status of what was run.
    let output = run(&["criu", "--program", "/bin/echo", "restore", "-D", "dump", "--", "-t"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "restore -D dump -- -t\n");
    assert_eq!(run(&["criu", "--program", "/bin/false", "restore"]).status.code(), Some(1));
}

#[test]
fn a_host_without_pv_page_tables_is_named() {
    let report: Value = serde_json::from_slice(&run(&["doctor", "--json"]).stdout).unwrap();
    if report["pagetable"]["benefits"] == true {
        return; // a PV domain: its tests are pagetable/tests/machine/test_tool.py's, in machines of their own
    }
    for arguments in [&["pagetable", "load"][..], &["pagetable", "load", "--dry-run"]] {
        assert_refuses(&run(arguments), 1, "nothing was changed");
    }
    for arguments in [&["pagetable", "enable"][..], &["pagetable", "shrink", "1"], &["pagetable", "policy"]] {
        assert_refuses(&run(arguments), 1, "the pool is not loaded");
    }
    let status: Value = serde_json::from_slice(&run(&["pagetable", "status", "--json"]).stdout).unwrap();
    assert!(status["pool"].is_null() && status["pvmmu"].is_null());
    let metrics = run(&["pagetable", "status", "--prometheus", "-"]).stdout;
    assert!(String::from_utf8(metrics).unwrap().contains("trapless_pagetable_loaded{part=\"pool\"} 0"));
}

#[test]
fn the_bench_judges_by_memory() {
    let output =
        run(&["dirty", "bench", "--quick", "--size", "8MiB", "--repeat", "2", "--density", "0.25", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!((row["missed"].as_u64(), row["twin_missed"].as_u64()), (Some(0), Some(0)), "{row}");
        assert!(row["tracked_ns_per_page"].as_f64() > Some(0.0));
        assert_eq!(row["library_over_twin"]["n"], 2);
    }
    let named = rows.len() + report["rejected"].as_array().unwrap().len();
    assert_eq!(named, 7, "each back end has a row or a reason");
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(report["host"]["cpus"], cpus, "the host's, not those that the bench keeps to");
}

#[test]
fn shells_complete_it() {
    for (shell, says) in
        [("bash", "complete -F"), ("zsh", "#compdef trapless"), ("fish", "complete -c trapless")]
    {
        let output = run(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains(says) && script.contains("pagetable"), "{shell}");
    }
}

/// Pictures and metrics are written to a FILE of any kind.
#[test]
fn a_file_may_be_standard_output_or_a_link() {
    let metrics = run(&["pagetable", "status", "--prometheus", "-"]).stdout;
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    std::os::unix::fs::symlink("file", &link).unwrap();
    let output = run(&["pagetable", "status", "--prometheus", link.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(link.is_symlink());
    let names = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap().lines().count();
    assert_eq!(names(&std::fs::read(&file).unwrap()), names(&metrics));
    // Of the device of another name: the tests may run as root.
    let output = run(&["pagetable", "status", "--prometheus", "/dev/stdout"]);
    assert_eq!(names(&output.stdout), names(&metrics), "{output:?}");
}

/// A limit of file sizes and a full file system are errors of the file that was named, and leave nothing behind.
#[test]
fn no_room_is_an_error_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let sh = |script: &str| {
        Command::new("sh")
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_trapless")])
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    let limited = sh("ulimit -f 0; \"$1\" pagetable status --prometheus file");
    assert_refuses(&limited, 1, "trapless: file is not written: File too large (os error 27)");
    assert_refuses(
        &sh("ulimit -f 0; \"$1\" completions bash >file"),
        1,
        "cannot write standard output: File too large",
    );
    std::fs::remove_file(folder.path().join("file")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let full = "mount -t tmpfs -o size=4k,nr_inodes=2 none . && cd $PWD && touch a || exit 77
        exec \"$1\" pagetable status --prometheus b";
    let full = sh(&format!("exec unshare -rm sh -c '{full}' sh \"$1\""));
    if full.status.code() != Some(77) && !String::from_utf8_lossy(&full.stderr).contains("unshare") {
        assert_refuses(&full, 1, "trapless: b is not written: No space left on device (os error 28)");
        assert!(!String::from_utf8_lossy(&full.stderr).contains("at path"), "{full:?}");
    }
}

/// In /tmp the kernel does not follow links of other users (fs.protected_symlinks), on this file system none. Root must
/// not be led to a file by a link that the kernel refuses.
#[test]
fn a_link_that_the_kernel_does_not_follow_is_refused() {
    let script = "mount -t tmpfs none $1 && echo old >$1/target && ln -s target $1/link &&
        ln -s none $1/dangling && mount -o remount,nosymfollow $1 || exit 77
        for link in link dangling; do
            \"$2\" pagetable status --prometheus $1/$link 2>&1 && exit 1
        done
        \"$2\" pagetable status --prometheus $1/file || exit 2
        ls $1 && cat $1/target && test -h $1/link";
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .args([folder.path().as_os_str(), env!("CARGO_BIN_EXE_trapless").as_ref()])
        .output()
        .unwrap();
    if [Some(77), Some(1)].contains(&output.status.code()) && output.stdout.is_empty() {
        println!("SKIPPED: no name space of one's own: {}", String::from_utf8_lossy(&output.stderr).trim());
        return;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.matches("symbolic links").count(), 2, "{said}");
    assert!(said.ends_with("dangling\nfile\nlink\ntarget\nold\n"), "{said}");
}
