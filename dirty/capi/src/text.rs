// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Texts of libdirty as C wants them, made by the compiler: no lock, no allocation, valid forever.

/// A constant `&str` as a pointer to the same text with a zero at its end.
macro_rules! c_text {
    ($text:expr) => {{
        const TEXT: &str = $text;
        static BYTES: [u8; TEXT.len() + 1] = $crate::text::with_zero(TEXT);
        BYTES.as_ptr().cast::<std::ffi::c_char>()
    }};
}
pub(crate) use c_text;

pub(crate) const fn with_zero<const SIZE: usize>(text: &str) -> [u8; SIZE] {
    assert!(SIZE == text.len() + 1);
    let mut bytes = [0; SIZE];
    let mut at = 0;
    while at < text.len() {
        assert!(text.as_bytes()[at] != 0, "C would see the text end here");
        bytes[at] = text.as_bytes()[at];
        at += 1;
    }
    bytes
}
