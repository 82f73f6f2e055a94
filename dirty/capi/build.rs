// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the shared library is linked: its SONAME, and that it stays in memory once loaded.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo names the version");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdirty.so.{major}");
    // A back end's signal handler or thread may run after the last dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
