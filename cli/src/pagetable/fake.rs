// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host of files for unit tests: sysfs, procfs, a xen-livepatch that keeps its state in files below `/state`
//! (tests/fake/xen-livepatch), and a kernel that loads modules by making their directories. Fields and files
//! request faults.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::host::{Host, Kernel, NotInserted};
use super::hypercall::{Eviction, Payload, Statistics, Unasked};
use super::part::{POOL_FILES, SWITCH_FILES};

pub const BUILD_ID: [u8; 20] = [21; 20];
pub const RELEASE: &str = "6.1.0-56-amd64";
pub const LEVELS: [&str; 5] = ["pte", "pmd", "pud", "pgd", "user_pgd"];

/// The tree, removed with it.
pub struct Fake {
    root: tempfile::TempDir,
    pub kernel: Rc<RefCell<State>>,
}

/// The kernel's behaviour, and a record of what was done.
pub struct State {
    pub is_root: bool,
    pub command_line: Result<String, Unasked>,
    pub payload: Option<Payload>,
    /// Answers to the calls of an eviction, one after the other; then it is done.
    pub evictions: VecDeque<Result<Eviction, Unasked>>,
    /// Modules that do not load, by error number.
    pub broken: BTreeMap<&'static str, i32>,
    /// Modules that cannot be removed, by error number.
    pub stuck: BTreeMap<&'static str, i32>,
    /// A payload answers as soon as it is applied; once there was a pool, with so many semi-writable pages.
    pub kept: Option<u64>,
    /// A signal has requested the end.
    pub is_asked_to_stop: bool,
    /// It does from this question on; they are counted.
    pub stop_from: Option<u32>,
    pub asked: u32,
    pub was_asked_to_stop: bool,
    /// From this question on the answers about page tables are others.
    pub differs_from: Option<u32>,
    /// So often any module is in use when it is to be removed.
    pub busy_removals: u32,
    /// Every module loaded or removed, in order.
    pub done: Vec<String>,
}

struct FakeKernel {
    root: PathBuf,
    state: Rc<RefCell<State>>,
}

/// Stands in for Xen's tool.
const XEN_LIVEPATCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/xen-livepatch");

impl Fake {
    /// A strict PV dom0 with everything installed and nothing loaded.
    pub fn dom0() -> Self {
        let fake = Fake {
            root: tempfile::tempdir().unwrap(),
            kernel: Rc::new(RefCell::new(State {
                is_root: true,
                command_line: Ok("iommu=force dom0-iommu=strict".into()),
                payload: None,
                evictions: VecDeque::new(),
                broken: BTreeMap::new(),
                stuck: BTreeMap::new(),
                kept: None,
                is_asked_to_stop: false,
                stop_from: None,
                asked: 0,
                was_asked_to_stop: false,
                differs_from: None,
                busy_removals: 0,
                done: Vec::new(),
            })),
        };
        for (path, value) in [
            ("type", "xen"),
            ("guest_type", "PV"),
            ("version/major", "4"),
            ("version/minor", "17"),
            ("version/extra", ".7"),
            ("properties/features", "000228f0"),
        ] {
            fake.write(&format!("/sys/hypervisor/{path}"), format!("{value}\n").as_bytes());
        }
        fake.write("/sys/hypervisor/properties/buildid", &BUILD_ID);
        fake.write("/dev/xen/privcmd", b"");
        fake.write("/state/calls", b"");
        let tool = fake.path("/usr/lib/xen-4.17/bin/xen-livepatch");
        std::fs::create_dir_all(tool.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(XEN_LIVEPATCH, tool).unwrap();
        fake.write("/usr/lib/trapless/4.17.7-1/trapless_pagetable.livepatch", &payload_file(&BUILD_ID));
        for name in ["trapless_pagetable", "trapless_pvmmu"] {
            fake.write(
                &format!("/lib/modules/{RELEASE}/updates/dkms/{name}.ko"),
                &module_file(name, RELEASE),
            );
        }
        fake
    }

    /// A PV domU with the modules installed.
    pub fn domu() -> Self {
        let fake = Fake::dom0();
        fake.write("/sys/hypervisor/properties/features", b"000220f0\n");
        for gone in ["/usr/lib/xen-4.17", "/usr/lib/trapless", "/dev"] {
            std::fs::remove_dir_all(fake.path(gone)).unwrap();
        }
        fake.kernel.borrow_mut().command_line = Err("cannot read Xen's command line".into());
        fake
    }

    pub fn host(&self) -> Host {
        let kernel = FakeKernel { root: self.root.path().to_owned(), state: Rc::clone(&self.kernel) };
        Host::new(self.root.path().to_owned(), Box::new(kernel))
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub fn write(&self, path: &str, bytes: &[u8]) {
        write(&self.path(path), bytes);
    }

    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    pub fn remove(&self, path: &str) {
        std::fs::remove_file(self.path(path)).unwrap();
    }

    pub fn payload(&self) -> PathBuf {
        self.path("/usr/lib/trapless/4.17.7-1/trapless_pagetable.livepatch")
    }

    /// The parts that are loaded now.
    pub fn loaded(&self) -> Vec<&'static str> {
        let mut loaded = Vec::new();
        if self.read("/state/payload").is_some() {
            loaded.push("payload");
        }
        for (part, module) in [("pool", "trapless_pagetable"), ("pvmmu", "trapless_pvmmu")] {
            if self.path("/sys/module").join(module).exists() {
                loaded.push(part);
            }
        }
        loaded
    }
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

impl Kernel for FakeKernel {
    fn is_root(&self) -> bool {
        self.state.borrow().is_root
    }

    fn release(&self) -> String {
        RELEASE.into()
    }

    fn insert(&self, name: &str, file: &Path, parameters: &str) -> Result<(), NotInserted> {
        assert!(file.is_file());
        if let Some(error) = self.state.borrow().broken.get(name) {
            let said = vec!["this is what the kernel said".to_owned()];
            return Err(NotInserted { error: io::Error::from_raw_os_error(*error), said });
        }
        self.state.borrow_mut().done.push(format!("+{name} {parameters}").trim_end().to_owned());
        let write =
            |path: &str, value: &str| write(&self.root.join(path.trim_start_matches('/')), value.as_bytes());
        write(&format!("/sys/module/{name}/refcnt"), "0\n");
        if name == "trapless_pvmmu" {
            for switch in ["walk", "fork", "xen_zero_runs"] {
                write(&format!("{SWITCH_FILES}/{switch}"), "1\n");
            }
            return Ok(());
        }
        if name == "trapless_table_test" {
            for (file, value) in [
                ("run", ""),
                ("mode", ""),
                ("preempt", "0"),
                ("switches", "-1"),
                (
                    "digest",
                    "seed 7 calls 100 digest 0123456789abcdef compared 100 differs 0 retired 0 map 40/60",
                ),
                // Stock Xen is like itself: this is for when there is a payload.
                ("differs", "N"),
            ] {
                write(&format!("/sys/module/{name}/parameters/{file}"), &format!("{value}\n"));
            }
            // One call is left in the middle as soon as timers interrupt them.
            let count = self.root.join(format!("sys/module/{name}/parameters/continuations"));
            let is_interrupted = !self.root.join("state/never-interrupted").exists();
            let target = if is_interrupted { "preempt" } else { "always-0" };
            write(&format!("/sys/module/{name}/parameters/always-0"), "0\n");
            std::os::unix::fs::symlink(target, count).unwrap();
            let served = self.root.join(format!("sys/module/{name}/parameters/ranges_served"));
            std::os::unix::fs::symlink("preempt", served).unwrap();
            return Ok(());
        }
        if name == "trapless_device_test" {
            // A device that nothing keeps from a page.
            for (file, value) in [("do", ""), ("result", "written")] {
                write(&format!("/sys/module/{name}/parameters/{file}"), &format!("{value}\n"));
            }
            return Ok(());
        }
        for (file, value) in [
            ("enabled", "1"),
            ("shrink", ""),
            ("policy", "adaptive"),
            ("limit_number", "256"),
            ("limit_percent", "100"),
            ("shrunk", "0"),
        ] {
            write(&format!("{POOL_FILES}/{file}"), &format!("{value}\n"));
        }
        for (n, level) in LEVELS.iter().enumerate() {
            for (file, value) in
                [("cached", 40), ("in_use", 20), ("hits", 1000), ("misses", 3), ("worst_case", 2)]
            {
                write(&format!("{POOL_FILES}/{level}/{file}"), &format!("{}\n", value + n));
            }
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if let Some(error) = self.state.borrow().stuck.get(name) {
            return Err(io::Error::from_raw_os_error(*error));
        }
        if self.state.borrow().busy_removals > 0 {
            self.state.borrow_mut().busy_removals -= 1;
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        self.state.borrow_mut().done.push(format!("-{name}"));
        std::fs::remove_dir_all(self.root.join("sys/module").join(name))?;
        match std::fs::remove_dir_all(self.root.join("sys/kernel").join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn xen_command_line(&self) -> Result<String, Unasked> {
        self.state.borrow().command_line.clone()
    }

    fn payload(&self) -> Result<Option<Payload>, Unasked> {
        let state = self.state.borrow();
        let is_applied =
            || std::fs::read(self.root.join("state/payload")).is_ok_and(|text| text == b"APPLIED");
        let had_pool = state.done.iter().any(|done| done.starts_with("+trapless_pagetable"));
        let fresh = || state.kept.filter(|_| is_applied()).map(|kept| fresh(if had_pool { kept } else { 0 }));
        Ok(state.payload.clone().or_else(fresh))
    }

    fn evict(&self) -> Result<Eviction, Unasked> {
        let mut state = self.state.borrow_mut();
        state.done.push("evict".into());
        if let Some(answer) = state.evictions.pop_front() {
            return answer;
        }
        if let Some(statistics) = state.payload.as_mut().and_then(|payload| payload.statistics.as_mut()) {
            statistics.semi_writable = 0;
        }
        Ok(Eviction { is_done: true, left: 0, domain: 0, error: 0 })
    }

    fn admit(&self) -> Result<(), Unasked> {
        self.state.borrow_mut().done.push("admit".into());
        Ok(())
    }

    fn stopped(&self, _: Duration) -> bool {
        let mut state = self.state.borrow_mut();
        state.asked += 1;
        state.is_asked_to_stop |= state.stop_from == Some(state.asked);
        if state.differs_from == Some(state.asked) {
            write(&self.root.join("sys/module/trapless_table_test/parameters/differs"), b"Y\n");
        }
        state.was_asked_to_stop |= state.is_asked_to_stop;
        state.is_asked_to_stop
    }

    fn begin_clean_up(&self) {
        self.state.borrow_mut().is_asked_to_stop = false;
    }

    fn was_asked_to_stop(&self) -> bool {
        let state = self.state.borrow();
        state.was_asked_to_stop || state.is_asked_to_stop
    }
}

/// What a payload says that was just applied.
fn fresh(semi_writable: u64) -> Payload {
    let none = Statistics {
        semi_writable,
        held: 0,
        marked: 0,
        released: 0,
        flushes: 0,
        skipped_map: 0,
        skipped_unmap: 0,
    };
    Payload {
        abi: 3,
        iommu_follows: true,
        is_evicted: false,
        parts: 15,
        switches: Some(15),
        statistics: Some(none),
    }
}

const PROGBITS: u64 = 1;
const STRTAB: u64 = 3;
const NOTE: u64 = 7;

/// An ELF file with these sections: name, kind, content.
fn elf(sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let mut names = b"\0.shstrtab\0".to_vec();
    let mut headers = vec![[0u64; 6]];
    let mut file = vec![0; 64];
    for (name, kind, content) in sections {
        headers.push([names.len() as u64, *kind, 0, 0, file.len() as u64, content.len() as u64]);
        names.extend(name.as_bytes());
        names.push(0);
        file.extend(*content);
        file.resize(file.len().next_multiple_of(4), 0);
    }
    headers.push([1, STRTAB, 0, 0, file.len() as u64, names.len() as u64]);
    file.extend(&names);
    file.resize(file.len().next_multiple_of(8), 0);
    let count = headers.len();
    file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // e_type REL, e_machine x86-64, e_version; then sizes, counts and offsets.
    for (at, value, size) in [
        (16, 1, 2),
        (18, 62, 2),
        (20, 1, 4),
        (40, file.len(), 8),
        (52, 64, 2),
        (58, 64, 2),
        (60, count, 2),
        (62, count - 1, 2),
    ] {
        file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    // Name and kind, flags and address, offset and size; then an alignment of 4.
    for [name, kind, flags, address, at, length] in headers {
        let start = file.len();
        for (value, size) in
            [(name, 4), (kind, 4), (flags, 8), (address, 8), (at, 8), (length, 8), (0, 8), (4, 8), (0, 8)]
        {
            file.extend(&value.to_le_bytes()[..size]);
        }
        assert_eq!(file.len() - start, 64);
    }
    file
}

/// A payload that is for this build and has all parts.
pub fn payload_file(id: &[u8]) -> Vec<u8> {
    payload_without(id, &[])
}

/// A payload that is for this build, and was built without these parts.
pub fn payload_without(id: &[u8], left_out: &[(&str, &str)]) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [4, u32::try_from(id.len()).unwrap(), 3] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"GNU\0");
    note.extend(id);
    let lines: String = left_out.iter().map(|(part, why)| format!("{part}: {why}\n")).collect();
    elf(&[(".livepatch.depends", NOTE, &note), (".trapless.left_out", PROGBITS, lines.as_bytes())])
}

/// A module of this name for this kernel.
pub fn module_file(name: &str, release: &str) -> Vec<u8> {
    let info = format!("license=GPL\0name={name}\0vermagic={release} SMP preempt mod_unload \0");
    elf(&[(".modinfo", PROGBITS, info.as_bytes())])
}
