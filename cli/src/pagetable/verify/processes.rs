// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The time that processes take: fork and exit, and fork, exec and exit.
//!
//! By the clock, which load disturbs: so stock and boosted take turns, and medians are given with their quartiles.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Processes of each kind in one turn.
const A_TURN: usize = 40;
const PROGRAMS: [&str; 2] = ["/bin/true", "/usr/bin/true"];

/// Times of one kind of process.
#[derive(Debug, Default, Clone)]
pub struct Times {
    pub fork: Vec<Duration>,
    pub exec: Vec<Duration>,
}

/// A median and its quartiles, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub quarter: f64,
    pub median: f64,
    pub three_quarters: f64,
}

/// One kind, stock and boosted.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub what: &'static str,
    pub stock: Spread,
    pub boosted: Spread,
    pub ratio: Ratio,
}

/// Boosted to stock, of the medians of each turn.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratio {
    pub least: f64,
    pub median: f64,
    pub greatest: f64,
}

/// Why a turn was not measured.
#[derive(Debug, PartialEq, Eq)]
pub enum NotMeasured {
    /// The host does not do it.
    Host(String),
    /// A process that should only end had this status.
    Status(i32),
}

impl std::fmt::Display for NotMeasured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotMeasured::Host(why) => f.write_str(why),
            NotMeasured::Status(status) => {
                write!(f, "a process that should only end had status {status:#x}")
            }
        }
    }
}

impl std::error::Error for NotMeasured {}

impl NotMeasured {
    /// Whether the process was ended by a signal that requests the end, which a terminal sends to all of them.
    pub fn is_request(&self) -> bool {
        matches!(self, NotMeasured::Status(status) if libc::WIFSIGNALED(*status)
            && [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].contains(&libc::WTERMSIG(*status)))
    }
}

/// Measure one turn.
///
/// # Errors
/// When no process can be made, or the program `true` is missing; and when one does not end as it should.
pub fn measure() -> Result<Times, NotMeasured> {
    let program = PROGRAMS.iter().find(|file| Path::new(file).exists());
    let program = program.ok_or_else(|| NotMeasured::Host("there is no /bin/true".into()))?;
    let program = CString::new(*program).expect("it has no NUL");
    let mut times = Times::default();
    for _ in 0..A_TURN {
        times.fork.push(timed(None)?);
        times.exec.push(timed(Some(&program))?);
    }
    Ok(times)
}

/// One process, from before fork until it was waited for.
fn timed(program: Option<&CString>) -> Result<Duration, NotMeasured> {
    let arguments = [program.map_or(std::ptr::null(), |program| program.as_ptr()), std::ptr::null()];
    let since = Instant::now();
    // SAFETY: the child calls only execv and _exit, which are async-signal-safe; its arguments were made before.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if program.is_some() {
            // SAFETY: a program's name and a list of arguments that ends with a null pointer.
            unsafe { libc::execv(arguments[0], arguments.as_ptr()) };
        }
        // SAFETY: it runs no handlers, and does not return.
        unsafe { libc::_exit(if program.is_some() { 127 } else { 0 }) };
    }
    if child < 0 {
        return Err(NotMeasured::Host(format!("fork: {}", io::Error::last_os_error())));
    }
    let mut status = 0;
    loop {
        // SAFETY: `status` is ours, and the child was not waited for.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited == child {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(NotMeasured::Host(format!("waitpid: {error}")));
        }
    }
    let took = since.elapsed();
    if status == 0 { Ok(took) } else { Err(NotMeasured::Status(status)) }
}

/// Compare turns; each has both sides.
pub fn compare(turns: &[(Times, Times)]) -> Vec<Compared> {
    let of = |what, times: fn(&Times) -> &Vec<Duration>| {
        let side = |of: fn(&(Times, Times)) -> &Times| -> Vec<f64> {
            turns.iter().flat_map(|turn| times(of(turn))).map(microseconds).collect()
        };
        let ratios = turns.iter().map(|(stock, boosted)| {
            let median = |side: &Times| spread(times(side).iter().map(microseconds).collect()).median;
            median(boosted) / median(stock)
        });
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        Compared {
            what,
            stock: spread(side(|turn| &turn.0)),
            boosted: spread(side(|turn| &turn.1)),
            ratio: Ratio {
                least: ratios[0],
                median: ratios[(ratios.len() - 1) / 2],
                greatest: ratios[ratios.len() - 1],
            },
        }
    };
    if turns.is_empty() {
        return Vec::new();
    }
    vec![of("fork+exit", |times| &times.fork), of("fork+exec", |times| &times.exec)]
}

fn microseconds(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values[(values.len() - 1) * part / 4];
    Spread { quarter: at(1), median: at(2), three_quarters: at(3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_made_and_waited_for() {
        let times = measure().unwrap();
        assert_eq!((times.fork.len(), times.exec.len()), (A_TURN, A_TURN));
        assert!(times.fork.iter().chain(&times.exec).all(|time| !time.is_zero()));
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_an_error() {
        let missing = CString::new("/nowhere/true").unwrap();
        let not = timed(Some(&missing)).unwrap_err();
        assert!(not == NotMeasured::Status(127 << 8) && !not.is_request(), "{not}");
        assert!(
            NotMeasured::Status(libc::SIGINT).is_request()
                && !NotMeasured::Status(libc::SIGSEGV).is_request()
        );
    }

    #[test]
    fn ratios_are_of_turns() {
        let times = |micros: u64| {
            let times = vec![Duration::from_micros(micros); 3];
            Times { fork: times.clone(), exec: times }
        };
        // The host became slower by ten between the turns; each turn's ratio is a half.
        let found = compare(&[(times(100), times(50)), (times(1000), times(500)), (times(100), times(60))]);
        assert_eq!(found.len(), 2);
        assert!((found[0].ratio.median - 0.5).abs() < 1e-9 && (found[0].ratio.greatest - 0.6).abs() < 1e-9);
        assert!((found[0].stock.median - 100.0).abs() < 1e-9);
        assert!(compare(&[]).is_empty());
    }
}
