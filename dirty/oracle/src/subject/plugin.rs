// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracker behind the C interface of `dirty_conformance.h`.
//!
//! Invariant: nothing that a plug-in returns is believed. A table with holes is refused before any call; reports are
//! bounded in number, checked and put in order ([`sorted`]). What it does to the process it is loaded into cannot be
//! checked, so every case has a process of its own ([`crate::run`]).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libdirty::{PageRange, Reason};

use crate::outcome::Stop;
use crate::tracker::{Record, Reported, State, Tracker};

const VERSION: u32 = 1;
const REPORTS_GONE: u32 = 1;

const ZERO: u32 = 1;
const GONE: u32 = 2;
const DOUBT: u32 = 4;

/// Reports that a collect may make.
const MOST: usize = 1 << 22;
/// Broken rules that are named one by one.
const SHOWN: usize = 4;

type Report = extern "C" fn(*mut c_void, usize, usize, u32) -> c_int;

/// `struct dirty_conformance_plugin`.
#[repr(C)]
struct Table {
    version: u32,
    features: u32,
    name: *const c_char,
    limits: *const c_char,
    open: Option<unsafe extern "C" fn(libc::pid_t, *mut *mut c_void) -> c_int>,
    watch: Option<unsafe extern "C" fn(*mut c_void, usize, usize) -> c_int>,
    unwatch: Option<unsafe extern "C" fn(*mut c_void, usize, usize) -> c_int>,
    collect: Option<unsafe extern "C" fn(*mut c_void, Report, *mut c_void) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void)>,
    error: Option<unsafe extern "C" fn(*mut c_void) -> *const c_char>,
}

/// The functions of a loaded plug-in, none of them missing; it is never unloaded.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    name: String,
    record: Record,
    open: unsafe extern "C" fn(libc::pid_t, *mut *mut c_void) -> c_int,
    watch: unsafe extern "C" fn(*mut c_void, usize, usize) -> c_int,
    unwatch: unsafe extern "C" fn(*mut c_void, usize, usize) -> c_int,
    collect: unsafe extern "C" fn(*mut c_void, Report, *mut c_void) -> c_int,
    close: unsafe extern "C" fn(*mut c_void),
    error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
}

/// Load a plug-in.
///
/// # Errors
/// That it cannot be loaded, or has not what the interface asks for.
pub(super) fn load(file: &Path) -> Result<Loaded, String> {
    let at = file.display();
    // Without a slash the linker would look elsewhere.
    let path = file.canonicalize().map_err(|error| format!("{at}: {error}"))?;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| format!("{at}: {error}"))?;
    // SAFETY: valid strings. What the object does when it is loaded is what its author answers for.
    let symbol = unsafe {
        let object = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if object.is_null() {
            return Err(format!("{at} cannot be loaded: {}", text(libc::dlerror()).unwrap_or_default()));
        }
        libc::dlsym(object, c"dirty_conformance_plugin".as_ptr())
    };
    if symbol.is_null() {
        return Err(format!("{at} is no plug-in: it has no function dirty_conformance_plugin"));
    }
    // SAFETY: the header says what this function is; the table lives as long as the object, which stays loaded.
    let table = unsafe {
        let entry: unsafe extern "C" fn() -> *const Table = std::mem::transmute(symbol);
        entry().as_ref()
    };
    let table = table.ok_or_else(|| format!("{at}: dirty_conformance_plugin() returned NULL"))?;
    if table.version != VERSION {
        let version = table.version;
        return Err(format!("{at} is for version {version} of the interface; this is version {VERSION}"));
    }
    if table.features & !REPORTS_GONE != 0 {
        return Err(format!("{at}: unknown features ({:#x})", table.features));
    }
    let missing = |function: &str| format!("{at}: {function} is NULL");
    // SAFETY: strings, by the header.
    let (name, limits) = unsafe { (text(table.name), text(table.limits)) };
    let excluded: Vec<_> = limits.unwrap_or_default().split_whitespace().map(ToOwned::to_owned).collect();
    for limit in &excluded {
        if crate::scenario::find(limit).is_none() {
            return Err(format!("{at}: its limits name {limit:?}, and no case is called that"));
        }
    }
    Ok(Loaded {
        name: name.ok_or_else(|| missing("name"))?,
        record: Record { reports_gone: table.features & REPORTS_GONE != 0, ..Record::without(excluded) },
        open: table.open.ok_or_else(|| missing("open"))?,
        watch: table.watch.ok_or_else(|| missing("watch"))?,
        unwatch: table.unwatch.ok_or_else(|| missing("unwatch"))?,
        collect: table.collect.ok_or_else(|| missing("collect"))?,
        close: table.close.ok_or_else(|| missing("close"))?,
        error: table.error.ok_or_else(|| missing("error"))?,
    })
}

/// # Safety
/// A string of C, or NULL.
unsafe fn text(string: *const c_char) -> Option<String> {
    // SAFETY: as the caller says.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
}

impl Loaded {
    pub(super) fn record(&self) -> Record {
        self.record.clone()
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// Track process `pid`.
    pub(super) fn open(self, pid: i32) -> Result<Box<dyn Tracker>, Stop> {
        let mut tracker = std::ptr::null_mut();
        // SAFETY: (here and below) the functions of the plug-in, called as the header says.
        let done = unsafe { (self.open)(pid, &raw mut tracker) };
        let of = Plugin { loaded: self, tracker, watched: Vec::new() };
        match done {
            0 => Ok(Box::new(of)),
            errno => {
                let of = std::mem::ManuallyDrop::new(of); // there is nothing to close
                // SAFETY: as above.
                let words = unsafe { text((of.loaded.error)(std::ptr::null_mut())) };
                let words = format!("open: {}", describe(errno, words));
                Err(refusal(errno, words))
            }
        }
    }
}

fn refusal(errno: c_int, words: String) -> Stop {
    if [-libc::ENOTSUP, -libc::EBUSY].contains(&errno) { Stop::Skip(words) } else { Stop::Fail(words) }
}

fn describe(errno: c_int, words: Option<String>) -> String {
    // Whatever is not 0 is a failure; what it is called is the system's business.
    let system = std::io::Error::from_raw_os_error(errno.saturating_neg());
    match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("{words} ({system})"),
        None => system.to_string(),
    }
}

#[derive(Debug)]
struct Plugin {
    loaded: Loaded,
    tracker: *mut c_void,
    watched: Vec<PageRange>,
}

impl Plugin {
    fn done(&self, call: &str, errno: c_int) -> Result<(), Stop> {
        if errno == 0 {
            return Ok(());
        }
        // SAFETY: as in [`Loaded::open`].
        let words = unsafe { text((self.loaded.error)(self.tracker)) };
        Err(Stop::fail(format!("{call}: {}", describe(errno, words))))
    }

    /// As [`Plugin::done`]; to refuse is no mistake.
    fn done_or_refused(&self, call: &str, errno: c_int) -> Result<(), Stop> {
        self.done(call, errno).map_err(|stop| refusal(errno, stop.to_string()))
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: as in [`Loaded::open`]; not used again.
        unsafe { (self.loaded.close)(self.tracker) };
    }
}

/// What the callback fills.
struct Heap(Vec<(usize, usize, u32)>);

extern "C" fn report(context: *mut c_void, start: usize, length: usize, flags: u32) -> c_int {
    // SAFETY: the context that [`Plugin::collect`] made, whose call this is within.
    let heap = unsafe { &mut *context.cast::<Heap>() };
    // One more than may be shows that there were too many.
    if heap.0.len() <= MOST {
        heap.0.push((start, length, flags));
    }
    c_int::from(heap.0.len() > MOST)
}

impl Tracker for Plugin {
    fn record(&self) -> &Record {
        &self.loaded.record
    }

    fn watch(&mut self, range: PageRange) -> Result<(), Stop> {
        // SAFETY: as in [`Loaded::open`].
        let errno = unsafe { (self.loaded.watch)(self.tracker, range.start(), range.len()) };
        self.done_or_refused(&format!("watch {range}"), errno)?;
        self.watched.push(range);
        Ok(())
    }

    fn unwatch(&mut self, range: PageRange) -> Result<(), Stop> {
        // SAFETY: as in [`Loaded::open`].
        let errno = unsafe { (self.loaded.unwatch)(self.tracker, range.start(), range.len()) };
        self.done(&format!("unwatch {range}"), errno)
    }

    fn collect(&mut self, found: &mut Vec<Reported>, wrong: &mut Vec<String>) -> Result<(), Stop> {
        let mut heap = Heap(Vec::new());
        // SAFETY: as in [`Loaded::open`]; the heap outlives the call.
        let errno = unsafe { (self.loaded.collect)(self.tracker, report, (&raw mut heap).cast()) };
        self.done("collect", errno)?;
        if heap.0.len() > MOST {
            wrong.push(format!("more than {MOST} reports in one collect"));
        }
        found.extend(sorted(&heap.0, wrong));
        Ok(())
    }

    fn check_ended(&mut self, _ranges: &[PageRange], reason: Reason) -> Result<(), Stop> {
        let (mut found, mut wrong) = (Vec::new(), Vec::new());
        if self.collect(&mut found, &mut wrong).is_err() {
            return Ok(());
        }
        let gone: usize =
            found.iter().filter(|part| part.state == State::Gone).map(|part| part.range.len()).sum();
        if gone < self.watched.iter().map(|range| range.len()).sum() {
            return Err(Stop::fail(format!(
                "{}: a collect neither failed nor reported everything as gone",
                reason.text()
            )));
        }
        Ok(())
    }

    /// The interface promises nothing of a child's copy, and it is not used.
    fn check_forked(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

/// Reports in order of addresses, each page once; what is none goes to `wrong`.
fn sorted(reports: &[(usize, usize, u32)], wrong: &mut Vec<String>) -> Vec<Reported> {
    let mut borders = Vec::with_capacity(2 * reports.len());
    let mut count = 0;
    for &(start, length, flags) in reports {
        match range_of(start, length).and_then(|range| Ok((range, state_of(flags)?))) {
            Ok((range, state)) => {
                borders.push((range.start(), state as usize, 1));
                borders.push((range.end(), state as usize, -1));
            }
            Err(why) => {
                count += 1;
                if count <= SHOWN {
                    wrong.push(format!("reported {start:#x}, length {length:#x}, flags {flags:#x}: {why}"));
                }
            }
        }
    }
    if count > SHOWN {
        wrong.push(format!("{} more such reports", count - SHOWN));
    }
    borders.sort_unstable();
    // How often the addresses from the last border on were reported, by state.
    let mut depths = [0_i64; STATES.len()];
    let mut since = 0;
    let mut found: Vec<Reported> = Vec::new();
    for (at, state, change) in borders {
        if let Some(heaviest) = (0..STATES.len()).rev().find(|state| depths[*state] > 0) {
            let (state, why) = STATES[heaviest];
            match found.last_mut() {
                Some(last) if last.state == state && last.range.end() == since => {
                    if let Ok(range) = PageRange::new(last.range.start(), at) {
                        last.range = range;
                    }
                }
                _ => found.extend(PageRange::new(since, at).map(|range| Reported { range, state, why })),
            }
        }
        depths[state] += change;
        since = at;
    }
    found
}

/// By weight: where reports overlap, the heavier holds.
const STATES: [(State, &str); 4] = [
    (State::Gone, "no longer mapped"),
    (State::Written, "written"),
    (State::Zero, "zeros: nothing to copy"),
    (State::Doubtful, "in doubt: all dirty"),
];

fn range_of(start: usize, length: usize) -> Result<PageRange, String> {
    PageRange::from_length(start, length).map_err(|error| error.to_string())
}

fn state_of(flags: u32) -> Result<State, String> {
    match flags {
        0 => Ok(State::Written),
        ZERO => Ok(State::Zero),
        GONE => Ok(State::Gone),
        DOUBT => Ok(State::Doubtful),
        _ if flags & !(ZERO | GONE | DOUBT) != 0 => Err("unknown flags".into()),
        _ => Err("these flags contradict each other".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libdirty::page_size;
    use proptest::prelude::*;

    fn pages(first: usize, count: usize, flags: u32) -> (usize, usize, u32) {
        (first * page_size(), count * page_size(), flags)
    }

    #[test]
    fn puts_reports_in_order() {
        let mut wrong = Vec::new();
        let reports = [pages(9, 1, 0), pages(1, 4, 0), pages(3, 1, ZERO), pages(5, 2, 0), pages(2, 2, 0)];
        let found: Vec<_> = sorted(&reports, &mut wrong)
            .iter()
            .map(|part| (part.range.start() / page_size(), part.range.pages(), part.state))
            .collect();
        let expected =
            [(1, 2, State::Written), (3, 1, State::Zero), (4, 3, State::Written), (9, 1, State::Written)];
        assert_eq!((found, wrong.len()), (expected.to_vec(), 0));
    }

    #[test]
    fn refuses_what_is_no_report() {
        let page = page_size();
        for bad in [
            (1, page, 0),
            (page, 1, 0),
            (page, 0, 0),
            (page, usize::MAX - 1, 0),
            (page, page, 8),
            (page, page, 3),
        ] {
            let mut wrong = Vec::new();
            assert!(sorted(&[bad], &mut wrong).is_empty() && wrong.len() == 1, "{bad:?}");
        }
    }

    proptest! {
        /// Every good page comes out, once, and no other; whatever else is among the reports.
        #[test]
        fn each_page_once(reports in prop::collection::vec(
            prop_oneof![
                (1_usize..60, 1_usize..9, prop::sample::select(vec![0, ZERO, GONE, DOUBT]))
                    .prop_map(|(first, count, flags)| pages(first, count, flags)),
                any::<(usize, usize, u32)>(),
            ], 0..40))
        {
            let mut wrong = Vec::new();
            let found = sorted(&reports, &mut wrong);
            prop_assert!(found.windows(2).all(|pair| pair[0].range.end() <= pair[1].range.start()));
            prop_assert!(wrong.len() <= SHOWN + 1);
            for page in 0..80 {
                let at = page * page_size();
                let weight = reports.iter().filter_map(|&(start, length, flags)| {
                    let state = state_of(flags).ok()?;
                    range_of(start, length).ok()?.contains_address(at).then_some(state)
                }).max();
                let has = found.iter().find(|part| part.range.contains_address(at)).map(|part| part.state);
                prop_assert_eq!(has, weight);
            }
        }
    }
}
