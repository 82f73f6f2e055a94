// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The systemd units: systemd accepts them, and the tool accepts the commands in them.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::run;

fn units() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let mut units: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    units.sort();
    units
}

#[test]
fn their_commands_are_ours() {
    let text: String = units().iter().map(|unit| std::fs::read_to_string(unit).unwrap()).collect();
    let commands: Vec<Vec<&str>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("Exec")?.split_once('=')?.1.strip_prefix("trapless "))
        .map(|arguments| arguments.split(' ').chain(["--help"]).collect())
        .collect();
    assert_eq!(commands.len(), 3, "{commands:?}");
    for command in commands {
        // Wrong arguments before --help are refused first.
        assert!(run(&command).status.success(), "{command:?}");
    }
    assert_eq!(
        run(&["pagetable", "load", "--wrong", "--help"]).status.code(),
        Some(2),
        "the arguments are accepted"
    );
}

#[test]
fn systemd_takes_them() {
    let folder = tempfile::tempdir().unwrap();
    let copies: Vec<PathBuf> = units()
        .iter()
        .map(|unit| {
            // Not installed here, but systemd checks that the program exists.
            let text = std::fs::read_to_string(unit).unwrap();
            let copy = folder.path().join(unit.file_name().unwrap());
            std::fs::write(
                &copy,
                text.replace("=trapless ", concat!("=", env!("CARGO_BIN_EXE_trapless"), " ")),
            )
            .unwrap();
            copy
        })
        .collect();
    let verify = |units: &[PathBuf]| {
        Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .args(units)
            .output()
    };
    let Ok(output) = verify(&copies) else {
        println!("SKIPPED: systemd-analyze is not installed");
        return;
    };
    let says = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", says(&output));

    let bad = folder.path().join("trapless-bad.service");
    let text = std::fs::read_to_string(copies.last().unwrap()).unwrap();
    std::fs::write(&bad, text.replace("Type=oneshot", "Type=twoshot")).unwrap();
    assert!(says(&verify(&[bad]).unwrap()).contains("twoshot"), "a wrong unit is found");
}

/// What they need of the system is little; the control is the same unit without its restrictions.
#[test]
fn they_may_do_little() {
    let exposed = |unit: &Path| {
        let threshold = "--threshold=30"; // of 100
        Command::new("systemd-analyze").args(["security", "--offline=true", threshold]).arg(unit).output()
    };
    let folder = tempfile::tempdir().unwrap();
    for unit in units().iter().filter(|unit| unit.extension().is_some_and(|kind| kind == "service")) {
        let Ok(output) = exposed(unit) else {
            println!("SKIPPED: systemd-analyze is not installed");
            return;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let free = folder.path().join(unit.file_name().unwrap());
        let kept = ["[", "Type=", "ExecStart=", "Description="];
        let text = std::fs::read_to_string(unit).unwrap();
        let text: Vec<_> =
            text.lines().filter(|line| kept.iter().any(|start| line.starts_with(start))).collect();
        std::fs::write(&free, text.join("\n")).unwrap();
        assert!(!exposed(&free).unwrap().status.success(), "a unit without restrictions passes");
    }
}
