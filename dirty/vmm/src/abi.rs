// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty/abi/trapless_spml.h` in Rust. The header is what holds; a test compares the two.

/// In EBX, ECX and EDX of the VMM's first CPUID leaf.
pub const SIGNATURE: [u8; 12] = *b"TraplessSPML";
/// Of the interface.
pub const VERSION: u32 = 1;

/// Functions of calls.
pub const REGISTER_RING: u32 = 1;
/// The ring is not touched any more.
pub const UNREGISTER_RING: u32 = 2;
/// A process is tracked.
pub const ENABLE: u32 = 3;
/// It is not any more.
pub const DISABLE: u32 = 4;
/// It runs on this vCPU.
pub const SCHEDULE_IN: u32 = 5;
/// It does not any more.
pub const SCHEDULE_OUT: u32 = 6;
/// What was written goes to the ring.
pub const DRAIN: u32 = 7;

/// The largest ring.
pub const MAX_ENTRIES: u64 = 1 << 24;
/// How processes are numbered.
pub const MAX_PROCESSES: u64 = 4096;

/// Results of calls.
pub const OK: i32 = 0;
/// Pages are missing from the ring.
pub const OVERRUN: i32 = 1;
/// Function or argument.
pub const INVALID: i32 = -1;
/// There is no ring.
pub const NO_RING: i32 = -2;
/// The host refused.
pub const FAILED: i32 = -3;

/// Where in the ring the guest says what it took.
pub const TAIL_OFFSET: u64 = 64;
/// Where the entries begin.
pub const ENTRIES_OFFSET: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../abi/trapless_spml.h");

    fn defined(name: &str) -> &'static str {
        let prefix = format!("#define TRAPLESS_SPML_{name}\t");
        let line = HEADER.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no {name} in the header")).trim()
    }

    #[test]
    fn the_header_says_the_same() {
        assert_eq!(defined("SIGNATURE").trim_matches('"').as_bytes(), SIGNATURE);
        assert_eq!(defined("MAX_ENTRIES"), "(1 << 24)");
        for (name, value) in [
            ("VERSION", i64::from(VERSION)),
            ("REGISTER_RING", i64::from(REGISTER_RING)),
            ("UNREGISTER_RING", i64::from(UNREGISTER_RING)),
            ("ENABLE", i64::from(ENABLE)),
            ("DISABLE", i64::from(DISABLE)),
            ("SCHEDULE_IN", i64::from(SCHEDULE_IN)),
            ("SCHEDULE_OUT", i64::from(SCHEDULE_OUT)),
            ("DRAIN", i64::from(DRAIN)),
            ("MAX_PROCESSES", MAX_PROCESSES as i64),
            ("OK", i64::from(OK)),
            ("OVERRUN", i64::from(OVERRUN)),
            ("INVALID", i64::from(INVALID)),
            ("NO_RING", i64::from(NO_RING)),
            ("FAILED", i64::from(FAILED)),
            ("ENTRIES_OFFSET", ENTRIES_OFFSET as i64),
        ] {
            assert_eq!(defined(name), value.to_string(), "{name}");
        }
        // head, fifteen reserved words, tail.
        assert!(HEADER.contains("\t__u32 head;\n\t__u32 reserved[15];\n\t__u32 tail;\n"));
        assert_eq!(TAIL_OFFSET, 16 * 4);
    }
}
