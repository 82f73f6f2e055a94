// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modules' control files: reading, writing, and the meaning of their errors.
//!
//! docs/pagetable-abi.md is the authority on the files.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::host::Host;
use super::part::{POOL_FILES, SWITCH_FILES};

/// The pool's levels, from the lowest to the highest.
pub const LEVELS: [&str; 5] = ["pte", "pmd", "pud", "pgd", "user_pgd"];

/// The pool's shrinking policy.
pub const POLICIES: [&str; 5] = ["none", "number", "proportion", "both", "adaptive"];

/// The pool's name among the switches.
pub const POOL: &str = "pool";
/// The name for all switches.
pub const ALL: &str = "all";

/// The policy's settings; those that are `None` are not changed.
#[derive(Debug, Default, Clone)]
pub struct Settings {
    pub policy: Option<String>,
    pub limit_number: Option<u64>,
    pub limit_percent: Option<u64>,
}

impl Settings {
    pub fn is_some(&self) -> bool {
        self.policy.is_some() || self.limit_number.is_some() || self.limit_percent.is_some()
    }
}

/// How many cached tables are to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Tables(u64),
    Percent(u64),
}

/// `N` or `N%`.
impl std::str::FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(u64::from(number)),
            _ => Err("write a number of tables, or a percentage such as 50%".to_owned()),
        };
        match text.strip_suffix('%') {
            None => Ok(Amount::Tables(number(text)?)),
            Some(text) => match number(text)? {
                percent @ 0..=100 => Ok(Amount::Percent(percent)),
                _ => Err("a percentage is from 0% to 100%".to_owned()),
            },
        }
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Amount::Tables(number) => write!(f, "{number}"),
            Amount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Apply the settings.
///
/// # Errors
/// When the pool is not loaded or refuses one.
pub fn set(host: &Host, settings: &Settings) -> Result<()> {
    let pool = pool(host)?;
    // The limits first, so that a new policy never uses the old ones.
    for (name, value) in [
        ("limit_number", settings.limit_number.map(|n| n.to_string())),
        ("limit_percent", settings.limit_percent.map(|n| n.to_string())),
        ("policy", settings.policy.clone()),
    ] {
        if let Some(value) = value {
            write(&pool.join(name), &value)?;
        }
    }
    Ok(())
}

/// Turn switches on or off: the pool's, those of trapless_pvmmu by name, or all. Returns the written ones.
///
/// # Errors
/// For the first that cannot be turned; those before it have been.
pub fn turn(host: &Host, names: &[String], on: bool) -> Result<Vec<String>> {
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    let is_all = names.iter().any(|name| name == ALL);
    let names = if names.is_empty() { &[POOL.to_owned()][..] } else { names };
    for name in names {
        match name.as_str() {
            POOL => files.push((name.clone(), pool(host)?.join("enabled"))),
            ALL => {
                if let Ok(pool) = pool(host) {
                    files.push((POOL.into(), pool.join("enabled")));
                }
                files.extend(switches(host));
            }
            _ => {
                let all = switches(host);
                ensure!(!all.is_empty(), "trapless_pvmmu is not loaded, so there is no switch {name}");
                let known = || all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                let file = all.iter().find(|(known, _)| known == name);
                files.push(
                    file.with_context(|| format!("no switch is called {name}; there are pool, {}", known()))?
                        .clone(),
                );
            }
        }
    }
    ensure!(!files.is_empty(), "nothing is loaded: trapless pagetable load");
    let mut written = Vec::new();
    for (name, file) in files {
        match put(&file, if on { "1" } else { "0" }) {
            // Of all, those that are there: what is left out cannot be turned, and is off.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) && is_all => continue,
            Err(error) => {
                let state = if on { "on" } else { "off" };
                return Err(explained(&file, &error).context(format!("{name} is not {state}")));
            }
            Ok(()) => written.push(name),
        }
    }
    Ok(written)
}

/// Among a module's files: what it leaves out of this kernel, and why.
pub const LEFT_OUT: &str = "left_out";

/// What a module leaves out of this kernel: the part, and why. Nothing if it does not say so.
pub fn left_out(host: &Host, files: &str) -> Vec<(String, String)> {
    let text = host.text(Path::new(files).join(LEFT_OUT)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(part, why)| (crate::output::printable(part), crate::output::printable(why))).collect()
}

/// The switches of trapless_pvmmu and their files; none if it is not loaded.
pub fn switches(host: &Host) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(host.path(SWITCH_FILES)).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, _)| crate::output::printable(name) == *name && name != LEFT_OUT)
        .collect();
    files.sort();
    files
}

/// Give cached tables back, of one level or of all. Returns how many, by the module's count.
///
/// # Errors
/// When the pool is not loaded or refuses.
pub fn shrink(host: &Host, amount: Amount, level: Option<&str>) -> Result<u64> {
    let pool = pool(host)?;
    let before = number(&pool.join("shrunk"))?;
    if let Some(level) = level {
        // This file expects how many may stay.
        let file = pool.join(level).join("cached");
        let cached = number(&file)?;
        let to_go = match amount {
            Amount::Tables(number) => number.min(cached),
            Amount::Percent(percent) => cached.saturating_mul(percent).div_ceil(100),
        };
        write(&file, &(cached - to_go).to_string())?;
    } else {
        write(&pool.join("shrink"), &amount.to_string())?;
    }
    Ok(number(&pool.join("shrunk"))?.saturating_sub(before))
}

/// The pool's folder.
fn pool(host: &Host) -> Result<PathBuf> {
    let folder = host.path(POOL_FILES);
    if folder.is_dir() {
        return Ok(folder);
    }
    bail!("the pool is not loaded: trapless pagetable load");
}

/// The number in a control file.
///
/// # Errors
/// When it cannot be read or holds something else.
pub fn number(file: &Path) -> Result<u64> {
    let text = std::fs::read(file).map_err(|error| explained(file, &error))?;
    parse_number(&text).with_context(|| format!("{}: this is not a number", file.display()))
}

/// Whether a switch's file says 1.
///
/// # Errors
/// When it cannot be read or holds something else.
pub fn is_on(file: &Path) -> Result<bool> {
    match number(file)? {
        0 => Ok(false),
        1 => Ok(true),
        other => bail!("{}: {other} is not the value of a switch", file.display()),
    }
}

fn parse_number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.trim_end_matches('\n').parse().ok()
}

fn write(file: &Path, value: &str) -> Result<()> {
    put(file, value).map_err(|error| explained(file, &error).context(format!("writing {value}")))
}

/// Write to a control file. It is not created: a missing one belongs to another version of the module.
///
/// # Errors
/// Those of the module.
pub fn put(file: &Path, value: &str) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(file)?;
    io::Write::write_all(&mut file, format!("{value}\n").as_bytes())
}

/// What an error of a control file means.
fn explained(file: &Path, error: &io::Error) -> anyhow::Error {
    let means = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "only root may",
        Some(libc::EINVAL) => "the module refuses this value; nothing has changed",
        Some(libc::ENOENT) => "the loaded module does not have this file: is it of another version?",
        Some(libc::ENODEV) => "the payload is not applied",
        Some(libc::EOPNOTSUPP) => "this part is left out here; trapless pagetable status says why",
        Some(libc::ENOMEM) => "no page could be made semi-writable, or no memory",
        Some(libc::EBUSY) => {
            "a BPF program or a kernel livepatch holds a function that it needs, or a page is in use; see dmesg"
        }
        Some(libc::EINTR | libc::ERESTART) => "a signal came first",
        _ => "see dmesg",
    };
    anyhow!("{}: {error}: {means}", file.display())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::Fake;
    use super::super::load::load;
    use super::super::plan::Wanted;
    use super::*;

    fn loaded() -> Fake {
        let fake = Fake::dom0();
        load(&fake.host(), &Wanted::default(), &Settings::default(), &mut |_| {}).unwrap();
        fake
    }

    fn value(fake: &Fake, file: &str) -> String {
        fake.read(file).unwrap()
    }

    fn says(error: anyhow::Error, what: &str) {
        assert!(format!("{error:#}").contains(what), "{what:?} is missing in {error:#}");
    }

    #[test]
    fn turns_the_pool_one_switch_or_all() {
        let fake = loaded();
        let host = fake.host();
        let on = || {
            let pool = value(&fake, &format!("{POOL_FILES}/enabled"));
            let others =
                ["walk", "fork", "xen_zero_runs"].map(|name| value(&fake, &format!("{SWITCH_FILES}/{name}")));
            format!("{pool}{}", others.concat())
        };
        assert_eq!(turn(&host, &[], false).unwrap(), ["pool"]);
        assert_eq!(on(), "0111");
        turn(&host, &["fork".into()], false).unwrap();
        assert_eq!(on(), "0101");
        assert_eq!(turn(&host, &["all".into()], true).unwrap().len(), 4);
        assert_eq!(on(), "1111");
        says(
            turn(&host, &["spoon".into()], true).unwrap_err(),
            "no switch is called spoon; there are pool, fork, walk",
        );
        says(turn(&host, &["../enabled".into()], true).unwrap_err(), "no switch is called");
    }

    #[test]
    fn without_the_modules_there_is_nothing_to_turn() {
        let fake = Fake::dom0();
        let host = fake.host();
        says(turn(&host, &[], true).unwrap_err(), "the pool is not loaded");
        says(turn(&host, &["all".into()], true).unwrap_err(), "nothing is loaded");
        says(turn(&host, &["fork".into()], true).unwrap_err(), "trapless_pvmmu is not loaded");
        says(shrink(&host, Amount::Tables(1), None).unwrap_err(), "the pool is not loaded");
        says(set(&host, &Settings::default()).unwrap_err(), "the pool is not loaded");
    }

    #[test]
    fn shrinks_by_number_and_part() {
        let fake = loaded();
        let host = fake.host();
        shrink(&host, Amount::Percent(25), None).unwrap();
        assert_eq!(value(&fake, &format!("{POOL_FILES}/shrink")), "25%");
        let cached = || value(&fake, &format!("{POOL_FILES}/pmd/cached"));
        shrink(&host, Amount::Tables(11), Some("pmd")).unwrap();
        assert_eq!(cached(), "30");
        shrink(&host, Amount::Percent(50), Some("pmd")).unwrap();
        assert_eq!(cached(), "15");
        shrink(&host, Amount::Tables(1000), Some("pmd")).unwrap();
        assert_eq!(cached(), "0");
    }

    #[test]
    fn a_file_that_is_missing_or_odd_is_named() {
        let fake = loaded();
        let host = fake.host();
        fake.remove(&format!("{POOL_FILES}/shrink"));
        says(shrink(&host, Amount::Tables(1), None).unwrap_err(), "is it of another version?");
        fake.write(&format!("{POOL_FILES}/shrunk"), b"many\n");
        says(shrink(&host, Amount::Tables(1), None).unwrap_err(), "this is not a number");
        assert!(!fake.path(&format!("{POOL_FILES}/shrink")).exists(), "nothing is created in its place");
    }

    #[test]
    fn each_error_has_a_sentence() {
        for (errno, what) in [
            (libc::EACCES, "only root"),
            (libc::EINVAL, "nothing has changed"),
            (libc::ENODEV, "payload is not applied"),
            (libc::ENOMEM, "semi-writable"),
            (libc::EBUSY, "BPF"),
            (libc::EIO, "see dmesg"),
        ] {
            says(explained(Path::new("/x"), &io::Error::from_raw_os_error(errno)), what);
        }
    }

    #[test]
    fn takes_and_refuses_amounts() {
        assert_eq!("10".parse(), Ok(Amount::Tables(10)));
        assert_eq!("100%".parse(), Ok(Amount::Percent(100)));
        for bad in ["", "%", "101%", "-1", "+1", "1.5", "x", "99999999999", "5%%"] {
            assert!(bad.parse::<Amount>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn takes_any_value(bytes: Vec<u8>) {
            parse_number(&bytes);
        }

        #[test]
        fn takes_any_amount(text: String) {
            if let Ok(amount) = text.parse::<Amount>() {
                prop_assert_eq!(amount.to_string().parse::<Amount>(), Ok(amount));
            }
        }
    }
}
