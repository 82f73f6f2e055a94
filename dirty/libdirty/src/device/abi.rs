// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of the kernel module as in `dirty/abi/trapless_dirty.h`, which explains each item. A test checks with
//! the C compiler that the two agree.

/// `TRAPLESS_DIRTY_DEVICE`.
pub const DEVICE: &str = "/dev/trapless_dirty";
/// `TRAPLESS_DIRTY_ABI`.
pub const ABI: u32 = 1;

/// `TRAPLESS_DIRTY_DBIT`.
pub const DBIT: u32 = 0;
/// `TRAPLESS_DIRTY_SPML`.
pub const SPML: u32 = 1;
/// `TRAPLESS_DIRTY_EPML`.
pub const EPML: u32 = 2;

/// `TRAPLESS_DIRTY_OVERRUN`.
pub const OVERRUN: u64 = 1;

/// `struct trapless_dirty_info`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Info {
    /// [`ABI`]; another value is another interface.
    pub abi: u32,
    /// Bit `1 << mechanism` is set for each that works.
    pub mechanisms: u32,
}

/// `struct trapless_dirty_attach`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Attach {
    /// The process.
    pub pid: i32,
    /// [`DBIT`], [`SPML`] or [`EPML`].
    pub mechanism: u32,
}

/// `struct trapless_dirty_range`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
}

/// `struct trapless_dirty_collect`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Collect {
    /// [`OVERRUN`] or 0.
    pub flags: u64,
}

/// `struct trapless_dirty_read`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Read {
    /// Address of an array of [`Range`].
    pub ranges: u64,
    /// Its length.
    pub capacity: u32,
    /// How many were stored.
    pub count: u32,
}

/// `struct trapless_dirty_stats`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Stats {
    /// Entries taken from the log.
    pub logged: u64,
    /// How many of these were for pages that are not watched.
    pub foreign: u64,
    /// Times a thread of the process was armed.
    pub arms: u64,
    /// Interrupts of the log.
    pub interrupts: u64,
    /// Times the log was full.
    pub overruns: u64,
    /// Nanoseconds in page tables.
    pub walk_ns: u64,
    /// Nanoseconds of TLB flushes.
    pub flush_ns: u64,
}

const TYPE: u32 = 0xd1;

/// `TRAPLESS_DIRTY_GET_INFO`.
pub const GET_INFO: libc::Ioctl = libc::_IOR::<Info>(TYPE, 0);
/// `TRAPLESS_DIRTY_ATTACH`.
pub const ATTACH: libc::Ioctl = libc::_IOW::<Attach>(TYPE, 1);
/// `TRAPLESS_DIRTY_WATCH`.
pub const WATCH: libc::Ioctl = libc::_IOW::<Range>(TYPE, 2);
/// `TRAPLESS_DIRTY_UNWATCH`.
pub const UNWATCH: libc::Ioctl = libc::_IOW::<Range>(TYPE, 3);
/// `TRAPLESS_DIRTY_COLLECT`.
pub const COLLECT: libc::Ioctl = libc::_IOR::<Collect>(TYPE, 4);
/// `TRAPLESS_DIRTY_READ`.
pub const READ: libc::Ioctl = libc::_IOWR::<Read>(TYPE, 5);
/// `TRAPLESS_DIRTY_GET_STATS`.
pub const GET_STATS: libc::Ioctl = libc::_IOR::<Stats>(TYPE, 6);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::mem::offset_of;
    use std::process::{Command, Stdio};

    use super::*;

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
    }
}
