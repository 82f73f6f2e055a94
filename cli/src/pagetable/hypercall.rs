// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queries of Xen, through its own stable library.
//!
//! libxencall is loaded on demand: this tool also runs where there is no Xen. The numbers are those of Xen's public
//! headers and of pagetable/abi/trapless_pagetable.h. All calls but [`evict`] and [`admit`] only query.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io;

use libloading::{Library, Symbol};
use serde::Serialize;

const XEN_VERSION: c_uint = 17;
const XENVER_COMMANDLINE: u64 = 9;
const CALLBACK: c_uint = 30;
const TPT_VERSION: u64 = 0x5450_0001;
const TPT_STATS: u64 = 0x5450_0004;
const TPT_GET_SWITCHES: u64 = 0x5450_0005;
const TPT_EVICT: u64 = 0x5450_0007;
const TPT_ADMIT: u64 = 0x5450_0008;
const TPT_FEAT_SYNC: u32 = 1;
const TPT_FEAT_EVICTED: u32 = 2;

const DEVICE: &str = "/dev/xen/privcmd";

/// The largest answer: Xen's command line.
const ANSWER: usize = 1024;

/// Why Xen could not be queried.
pub type Unasked = String;

/// The payload's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    pub abi: u32,
    /// Whether the caller's IOMMU mappings follow page types: semi-writable pages save something.
    pub iommu_follows: bool,
    /// Whether all semi-writable pages are taken back, and no new ones admitted.
    pub is_evicted: bool,
    /// Bits of the switches that this payload was built with; none: it is too old to say.
    pub parts: u32,
    /// The rest is for dom0 only.
    pub switches: Option<u32>,
    pub statistics: Option<Statistics>,
}

/// `struct tpt_stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Statistics {
    pub semi_writable: u64,
    pub held: u64,
    pub marked: u64,
    pub released: u64,
    pub flushes: u64,
    pub skipped_map: u64,
    pub skipped_unmap: u64,
}

/// The command line that Xen was booted with.
///
/// # Errors
/// When Xen cannot be queried or refuses to answer this domain.
pub fn command_line() -> Result<String, Unasked> {
    let bytes = ask(XEN_VERSION, XENVER_COMMANDLINE)?
        .map_err(|error| format!("cannot read Xen's command line: {error}"))?;
    let line: Vec<u8> = bytes.into_iter().take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// The payload's state, if there is one for this domain.
///
/// # Errors
/// When Xen cannot be queried. If stock Xen refuses the query, the answer is that there is no payload.
pub fn payload() -> Result<Option<Payload>, Unasked> {
    let Ok(version) = ask(CALLBACK, TPT_VERSION)? else { return Ok(None) };
    let numbers = |answer: &[u8]| -> Vec<u64> {
        answer.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap_or_default())).collect()
    };
    let statistics = ask(CALLBACK, TPT_STATS)?.ok().map(|answer| numbers(&answer));
    let switches = ask(CALLBACK, TPT_GET_SWITCHES)?.ok();
    Ok(Some(Payload {
        abi: number(&version, 0),
        iommu_follows: number(&version, 2) & TPT_FEAT_SYNC != 0,
        is_evicted: number(&version, 2) & TPT_FEAT_EVICTED != 0,
        parts: number(&version, 3),
        switches: switches.map(|answer| number(&answer, 0)),
        statistics: statistics.map(|of| Statistics {
            semi_writable: of[0],
            held: of[1],
            marked: of[2],
            released: of[3],
            flushes: of[4],
            skipped_map: of[5],
            skipped_unmap: of[6],
        }),
    }))
}

/// `struct tpt_evict`, and whether there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    pub is_done: bool,
    /// Pages of all domains that are still semi-writable.
    pub left: u64,
    pub domain: u32,
    /// Why a page of that domain was not taken back by this call; 0 if each was.
    pub error: i32,
}

/// Take some semi-writable pages of any domain back, and admit no new ones.
///
/// # Errors
/// When Xen cannot be called, or refuses: a payload that is too old does.
pub fn evict() -> Result<Eviction, Unasked> {
    let (result, answer) = call(CALLBACK, TPT_EVICT)?;
    let is_done = match result {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => false,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            return Err("the payload is too old to take pages back: see the domains that have some".into());
        }
        Err(error) => return Err(format!("Xen refuses to take pages back: {error}")),
    };
    let [low, high] = [number(&answer, 0), number(&answer, 1)].map(u64::from);
    Ok(Eviction {
        is_done,
        left: high << 32 | low,
        domain: number(&answer, 2),
        error: number(&answer, 3).cast_signed(),
    })
}

/// Admit semi-writable pages again.
///
/// # Errors
/// When Xen cannot be called, or refuses.
pub fn admit() -> Result<(), Unasked> {
    let (result, _) = call(CALLBACK, TPT_ADMIT)?;
    result.map_err(|error| format!("Xen refuses to admit pages again: {error}"))
}

/// The n-th 32-bit number of an answer.
fn number(answer: &[u8], n: usize) -> u32 {
    u32::from_ne_bytes(answer[4 * n..][..4].try_into().unwrap_or_default())
}

type Open = unsafe extern "C" fn(*mut c_void, c_uint) -> *mut c_void;
type Close = unsafe extern "C" fn(*mut c_void) -> c_int;
type Allocate = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);
type Call2 = unsafe extern "C" fn(*mut c_void, c_uint, u64, u64) -> c_int;

/// Make one query. The outer error: Xen could not be queried.
fn ask(hypercall: c_uint, operation: u64) -> Result<io::Result<Vec<u8>>, Unasked> {
    let (result, answer) = call(hypercall, operation)?;
    Ok(result.map(|()| answer))
}

/// Make one call whose answer, if it has any, fits into [`ANSWER`] bytes. The outer error: Xen could not be called.
fn call(hypercall: c_uint, operation: u64) -> Result<(io::Result<()>, Vec<u8>), Unasked> {
    // The library would print an error; we report it ourselves.
    OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|error| {
        format!("Xen cannot be asked: {DEVICE}: {error} (modprobe xen-privcmd; only root may)")
    })?;
    // SAFETY: Xen's library has no initialiser that could disturb the process.
    let library = unsafe { Library::new("libxencall.so.1") }
        .map_err(|error| format!("Xen cannot be asked: {error} (Debian package libxencall1)"))?;
    let missing = |error: libloading::Error| format!("Xen cannot be asked: {error}");
    // SAFETY: the types are those of xencall.h, whose ABI the library's version 1 keeps.
    let (open, close): (Symbol<'_, Open>, Symbol<'_, Close>) = unsafe {
        (library.get(b"xencall_open\0").map_err(missing)?, library.get(b"xencall_close\0").map_err(missing)?)
    };
    // SAFETY: as above.
    let (allocate, free): (Symbol<'_, Allocate>, Symbol<'_, Free>) = unsafe {
        (
            library.get(b"xencall_alloc_buffer\0").map_err(missing)?,
            library.get(b"xencall_free_buffer\0").map_err(missing)?,
        )
    };
    // SAFETY: as above.
    let call2: Symbol<'_, Call2> = unsafe { library.get(b"xencall2\0").map_err(missing)? };

    // SAFETY: no logger and no flags are allowed; the handle is closed below on every way out.
    let handle = unsafe { open(std::ptr::null_mut(), 0) };
    if handle.is_null() {
        return Err(format!("Xen cannot be asked: {}", io::Error::last_os_error()));
    }
    // SAFETY: the handle is open.
    let buffer = unsafe { allocate(handle, ANSWER) };
    let answer = if buffer.is_null() {
        Err(format!("Xen cannot be asked: {}", io::Error::last_os_error()))
    } else {
        // SAFETY: the buffer has this many bytes.
        unsafe { buffer.cast::<u8>().write_bytes(0, ANSWER) };
        // SAFETY: the operations above write less than the buffer holds, and nothing else of this process.
        let rc = unsafe { call2(handle, hypercall, operation, buffer as u64) };
        let result = if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        // SAFETY: the buffer has this many bytes, all of them written.
        let answer = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), ANSWER) }.to_vec();
        // SAFETY: it came from this handle and is not used again.
        unsafe { free(handle, buffer) };
        Ok((result, answer))
    };
    // SAFETY: nothing of the handle is used again.
    unsafe { close(handle) };
    answer
}
