// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of the kernel module in Rust is that of its header: the C compiler says so.

use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use libdirty::device::abi::*;

/// What C must find true, in C.
fn claims() -> Vec<String> {
    let mut claims = Vec::new();
    let mut number = |name: &str, value: u64| claims.push(format!("TRAPLESS_DIRTY_{name} == {value}ULL"));
    number("ABI", ABI.into());
    number("DBIT", DBIT.into());
    number("SPML", SPML.into());
    number("EPML", EPML.into());
    number("OVERRUN", OVERRUN);
    let requests = [
        ("GET_INFO", GET_INFO),
        ("ATTACH", ATTACH),
        ("WATCH", WATCH),
        ("UNWATCH", UNWATCH),
        ("COLLECT", COLLECT),
        ("READ", READ),
        ("GET_STATS", GET_STATS),
    ];
    requests.into_iter().for_each(|(name, request)| number(name, request));
    macro_rules! layout {
        ($($rust:ident $c:literal: $($field:ident)*;)*) => {$(
            claims.push(format!(concat!("sizeof(struct ", $c, ") == {}"), size_of::<$rust>()));
            $(
                let (place, all) = (offset_of!($rust, $field), $rust::default());
                let field = stringify!($field);
                claims.push(format!(concat!("offsetof(struct ", $c, ", {}) == {}"), field, place));
                let size = size_of_val(&all.$field);
                claims.push(format!(concat!("sizeof(((struct ", $c, " *)0)->{}) == {}"), field, size));
            )*
        )*};
    }
    layout! {
        Info "trapless_dirty_info": abi mechanisms;
        Attach "trapless_dirty_attach": pid mechanism;
        Range "trapless_dirty_range": start end;
        Collect "trapless_dirty_collect": flags;
        Read "trapless_dirty_read": ranges capacity count;
        Stats "trapless_dirty_stats": logged foreign arms interrupts overruns walk_ns flush_ns;
    }
    claims
}

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/trapless_dirty.h");

/// How many of the claims the C compiler finds false in the header, and its words.
fn refused(claims: &[String]) -> (usize, String) {
    let mut source = format!("#include <stddef.h>\n#include \"{HEADER}\"\n");
    claims.iter().for_each(|claim| source.push_str(&format!("_Static_assert({claim}, \"\");\n")));
    let mut compiler = Command::new("gcc")
        .args(["-x", "c", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gcc starts");
    compiler.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    let output = compiler.wait_with_output().expect("gcc ends");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    (words.matches("error: static assertion failed").count(), words)
}

#[test]
fn the_header_says_the_same() {
    let claims = claims();
    let (refusals, words) = refused(&claims);
    assert!(refusals == 0 && words.is_empty(), "{words}");
    // The control: each claim can be refused.
    let opposites: Vec<_> = claims.iter().map(|claim| format!("!({claim})")).collect();
    assert_eq!(refused(&opposites).0, claims.len());
    // No constant to C.
    let header = std::fs::read_to_string(HEADER).unwrap();
    assert!(header.contains(&format!("#define TRAPLESS_DIRTY_DEVICE\t\"{DEVICE}\"")));
    assert!(header.contains(&format!("#define TRAPLESS_DIRTY_LEFT_OUT\t\"{LEFT_OUT}\"")));
}
