// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mapping of an address, for display: from `/proc/PID/maps` just after the collect.
//!
//! Adjacent mappings of one name (the segments of a library, a heap with two protections) are merged. Dirty pages
//! that are no longer mapped by then are listed under [`UNMAPPED`].

use std::io::Read;

use libdirty::{Dirty, PageRange, Reason};
use procfs::FromBufRead;
use procfs::process::{MMapPath, MemoryMap, MemoryMaps, Process};

use super::sample::{Address, MappingSample};
use crate::output::printable;

/// The name for pages that are no longer mapped.
const UNMAPPED: &str = "(unmapped)";

/// The mappings of a process by address.
#[derive(Debug, Default)]
pub struct Names(Vec<(usize, usize, String)>);

impl Names {
    /// Read them; none if the process is gone.
    pub fn read(process: &Process) -> Self {
        let mut names: Vec<(usize, usize, String)> = Vec::new();
        for map in mappings(process) {
            let (Ok(start), Ok(end)) = (usize::try_from(map.address.0), usize::try_from(map.address.1))
            else {
                continue;
            };
            let name = printable(&name(&map.pathname));
            match names.last_mut() {
                Some(last) if last.1 == start && last.2 == name => last.1 = end,
                _ => names.push((start, end, name)),
            }
        }
        Names(names)
    }

    /// Attribute a collect's pages to the mappings.
    pub fn share(&self, dirty: &Dirty) -> Vec<MappingSample> {
        let mut shares: Vec<MappingSample> = Vec::new();
        let mut give = |start: usize, end: usize, name: &str, range: PageRange, reason: Reason| {
            let known = shares.last().is_some_and(|last| last.start.0 == start && last.name == name);
            if !known {
                let (start, end, name) = (Address(start), Address(end), name.to_owned());
                shares.push(MappingSample { start, end, name, written: 0, assumed: 0 });
            }
            let share = shares.last_mut().expect("just made");
            let pages = range.pages() as u64;
            if reason == Reason::Written { share.written += pages } else { share.assumed += pages }
        };
        let mut first = 0;
        for extent in
            dirty.extents().iter().filter(|extent| extent.reason.is_mapped() && !extent.reason.is_zero())
        {
            let mut at = extent.range.start();
            while at < extent.range.end() {
                while self.0.get(first).is_some_and(|(_, end, _)| *end <= at) {
                    first += 1;
                }
                let (start, end, name) = match self.0.get(first) {
                    Some((start, end, name)) if *start <= at => (*start, *end, name.as_str()),
                    Some((next, ..)) => (at, (*next).min(extent.range.end()), UNMAPPED),
                    None => (at, extent.range.end(), UNMAPPED),
                };
                let upto = end.min(extent.range.end());
                let part = PageRange::new(at, upto).expect("a part of an extent");
                give(start, end, name, part, extent.reason);
                at = upto;
            }
        }
        shares
    }
}

/// All of its mappings. A main thread that has ended shows none, and the others do.
fn mappings(process: &Process) -> Vec<MemoryMap> {
    let main = read_mappings(process, "maps");
    if !main.is_empty() {
        return main;
    }
    let threads = process.tasks().into_iter().flatten().flatten();
    let mut theirs = threads.map(|thread| read_mappings(process, &format!("task/{}/maps", thread.tid)));
    theirs.find(|maps| !maps.is_empty()).unwrap_or_default()
}

/// A file's name may be any bytes.
fn read_mappings(process: &Process, file: &str) -> Vec<MemoryMap> {
    let mut text = Vec::new();
    if process.open_relative(file).and_then(|mut file| Ok(file.read_to_end(&mut text)?)).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().filter_map(|line| MemoryMaps::from_buf_read(line.as_bytes()).ok()).flatten().collect()
}

fn name(path: &MMapPath) -> String {
    match path {
        MMapPath::Path(path) => path.to_string_lossy().into_owned(),
        MMapPath::Heap => "[heap]".into(),
        MMapPath::Stack => "[stack]".into(),
        MMapPath::TStack(thread) => format!("[stack:{thread}]"),
        MMapPath::Vdso => "[vdso]".into(),
        MMapPath::Vvar => "[vvar]".into(),
        MMapPath::Vsyscall => "[vsyscall]".into(),
        MMapPath::Rollup => "[rollup]".into(),
        MMapPath::Anonymous => "[anon]".into(),
        MMapPath::Vsys(key) => format!("/SYSV{key:08x}"),
        MMapPath::Other(name) => format!("[{name}]"),
    }
}

#[cfg(test)]
mod tests {
    use libdirty::{Tracker, page_size};

    use super::*;
    use crate::testing::alone;

    #[test]
    fn every_page_is_shared_out_once() {
        let _alone = alone();
        let memory = vec![1u8; 64 * page_size()];
        let first = (memory.as_ptr() as usize).next_multiple_of(page_size());
        let range = PageRange::from_length(first, 8 * page_size()).unwrap();
        let mut tracker = Tracker::builder().own().unwrap();
        tracker.watch(range).unwrap();
        for page in [1, 2, 5] {
            // SAFETY: within the vector, which no other code uses meanwhile.
            unsafe { ((first + page * page_size()) as *mut u8).write_volatile(2) };
        }
        let mut dirty = Dirty::new();
        tracker.collect(&mut dirty).unwrap();

        let own = Names::read(&Process::myself().unwrap()).share(&dirty);
        assert_eq!(own.iter().map(|share| share.written).sum::<u64>(), 3);
        assert!(own.iter().all(|share| share.start.0 <= first && first < share.end.0), "{own:?}");
        // Pages that are not mapped now.
        let none = Names::default().share(&dirty);
        assert_eq!(none.iter().map(|share| share.written).sum::<u64>(), 3);
        assert!(none.iter().all(|share| share.name == UNMAPPED));
        // A mapping that begins in the middle.
        let half = first + 2 * page_size();
        let split = Names(vec![(half, first + 64 * page_size(), "x".into())]).share(&dirty);
        let named: Vec<_> = split.iter().map(|share| (share.name.as_str(), share.written)).collect();
        assert_eq!(named, [(UNMAPPED, 1), ("x", 2)]);
    }

    /// A file whose name is no text, mapped by a process whose main thread has ended.
    #[test]
    fn any_name_and_any_thread() {
        use std::io::BufRead;
        use std::os::unix::ffi::OsStrExt;

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(std::ffi::OsStr::from_bytes(b"a\xffb"));
        std::fs::write(&file, [0; 4096]).unwrap();
        let script = "import ctypes, mmap, os, sys, threading, time\n\
            f = os.open(os.fsencode(sys.argv[1]), os.O_RDWR); m = mmap.mmap(f, 4096)\n\
            def go():\n    time.sleep(0.2); print('ready', flush=True); time.sleep(60)\n\
            threading.Thread(target=go).start(); ctypes.CDLL(None).pthread_exit(None)";
        let mut program = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(&file)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let names = Names::read(&Process::new(program.id().cast_signed()).unwrap());
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(line, "ready\n");
        assert!(names.0.iter().any(|(_, _, name)| name.ends_with("/a\u{fffd}b")), "{names:?}");
    }
}
