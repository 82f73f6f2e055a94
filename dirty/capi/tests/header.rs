// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header in the tree is the one that cbindgen makes from the sources, and so is its copy in the Python package,
//! which declares nothing else. To accept a change:
//! `DIRTY_ACCEPT=1 cargo test -p libdirty-capi --test header`.

use std::path::Path;

#[test]
fn the_header_is_made_from_the_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    let builder = cbindgen::Builder::new().with_config(config).with_src(here.join("src/lib.rs"));
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    // Rust's heading for what an unsafe function relies on, and the indent that cbindgen has spaces for alone.
    let made = made.replace(" * # Safety\n", " * The caller promises:\n").replace("\n        ", "\n\t");

    for header in ["include/dirty.h", "../python/libdirty/dirty.h"] {
        let path = here.join(header);
        if std::env::var_os("DIRTY_ACCEPT").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(there == made, "{header} is not what the sources say; see this test's first lines");
    }
}
