// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless pagetable`: the accelerator of Xen PV page tables on a real host.
//!
//! `host` is the only way to the system, so that all of it runs against a fake one in the tests; `plan` finds
//! every refusal before `load` changes anything; `unload` and the undoing of a load use the same code.

mod control;
#[cfg(test)]
mod fake;
mod host;
mod hypercall;
mod image;
mod left;
mod linux;
mod livepatch;
mod load;
mod module_file;
mod part;
mod plan;
mod platform;
mod prometheus;
mod signature;
mod status;
mod survey;
mod unload;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use rustix::fs::{FlockOperation, flock};

use crate::output;
use host::Host;
use linux::Linux;
use part::Part;
pub use survey::Survey;

/// Held while parts are loaded or unloaded.
const LOCK: &str = "/run/trapless-pagetable.lock";

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check everything, then load the payload and the modules that serve this host
    Load(LoadArguments),
    /// Unload what is loaded, in reverse order
    Unload(UnloadArguments),
    /// Compare this host with trapless and without, before trusting it; ends with nothing loaded
    Verify(verify::Arguments),
    /// Show what is loaded, switched on and cached
    Status(StatusArguments),
    /// Serve page tables from the pool, or turn the named switches on
    Enable(SwitchArguments),
    /// Stop serving and give every page back, or turn the named switches off
    Disable(SwitchArguments),
    /// Give cached tables back to the kernel
    Shrink(ShrinkArguments),
    /// Show or set the pool's shrinking policy
    Policy(PolicyArguments),
}

/// What to load, and from where.
#[derive(Debug, Args)]
#[command(
    after_help = "Loading twice is loading once. When a part fails, those loaded before it by the same command are taken
out again.

Files are looked for in this order:
  payload  --payload; --from DIR: DIR, DIR/pagetable/xen; /usr/lib/trapless, and each folder in it: the first
           file trapless_pagetable.livepatch that is for the running build of Xen
  modules  --module; --from DIR: DIR, DIR/pagetable/pool, DIR/pagetable/pvmmu;
           /lib/modules/RELEASE/updates/dkms, updates, extra: the first file that is for the running kernel
A build tree is given as --from build."
)]
pub struct LoadArguments {
    /// This part only (may be repeated)
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Use this payload and no other
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Use this module, and no others than those given (may be repeated)
    #[arg(long = "module", value_name = "FILE")]
    modules: Vec<PathBuf>,
    /// Look here before the system's folders: a folder of files, or a build tree
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Tables cached at once: pte,pmd,pud,pgd,user_pgd
    #[arg(long, value_name = "N,N,N,N,N", value_parser = prefill)]
    prefill: Option<String>,
    /// Most tables that the pool may own
    #[arg(long, value_name = "N")]
    max_tables: Option<u32>,
    #[command(flatten)]
    settings: Settings,
}

/// What to unload.
#[derive(Debug, Args)]
pub struct UnloadArguments {
    /// This part only (may be repeated)
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Take semi-writable pages away from every domain, so that none can keep the payload (dom0)
    #[arg(long)]
    evict: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// How to print it.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Print one JSON object
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Write metrics for node_exporter's textfile collector; - prints them
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
}

/// Which switches.
#[derive(Debug, Args)]
pub struct SwitchArguments {
    /// pool (the default), a switch that status shows, or all
    #[arg(value_name = "SWITCH")]
    names: Vec<String>,
}

/// How much.
#[derive(Debug, Args)]
pub struct ShrinkArguments {
    /// How many cached tables: a number or a percentage, such as 20 or 50%
    #[arg(value_name = "N|N%")]
    amount: control::Amount,
    /// Of this level only
    #[arg(long, value_parser = control::LEVELS)]
    level: Option<String>,
}

/// The settings; without any the policy is shown.
#[derive(Debug, Args)]
pub struct PolicyArguments {
    #[command(flatten)]
    settings: Settings,
}

/// How the pool shrinks of itself.
#[derive(Debug, Args)]
pub struct Settings {
    /// When the pool shrinks of itself
    #[arg(long, value_parser = control::POLICIES)]
    policy: Option<String>,
    /// Cached tables above which `number` and `both` shrink
    #[arg(long, value_name = "N")]
    limit_number: Option<u32>,
    /// Cached tables per 100 in use above which `proportion` and `both` shrink
    #[arg(long, value_name = "N")]
    limit_percent: Option<u32>,
}

impl From<&Settings> for control::Settings {
    fn from(of: &Settings) -> Self {
        control::Settings {
            policy: of.policy.clone(),
            limit_number: of.limit_number.map(u64::from),
            limit_percent: of.limit_percent.map(u64::from),
        }
    }
}

/// Five numbers, as the module takes them.
fn prefill(text: &str) -> Result<String, String> {
    let is_number =
        |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u32>().is_ok();
    if text.split(',').count() == control::LEVELS.len() && text.split(',').all(is_number) {
        return Ok(text.to_owned());
    }
    Err(format!("write five numbers, for {}", control::LEVELS.join(",")))
}

/// Run one.
///
/// # Errors
/// The reason why it failed; the message says what was changed, if anything.
pub fn run(command: &Command) -> Result<ExitCode> {
    // A closed pipe must not interrupt a load: lines that cannot be printed are lost.
    let mut say = |line: String| drop(output::line(&line));
    let host = Host::new("/".into(), Box::new(Linux::new()));
    match command {
        Command::Load(arguments) if arguments.dry_run => {
            load::rehearse(&host, &arguments.wanted(), &mut say)?
        }
        Command::Load(arguments) => {
            let (host, _lock) = alone()?;
            load::load(&host, &arguments.wanted(), &(&arguments.settings).into(), &mut say)?;
        }
        Command::Unload(UnloadArguments { only, dry_run: true, .. }) => {
            unload::rehearse(&host, only, &mut say)?
        }
        Command::Unload(UnloadArguments { only, evict, .. }) => {
            let (host, _lock) = alone()?;
            unload::unload(&host, only, *evict, &mut say)?;
        }
        Command::Verify(arguments) => {
            let (host, _lock) = alone()?;
            return verify::run(&host, arguments);
        }
        Command::Status(arguments) => {
            let status = status::Status::look(&host);
            match &arguments.prometheus {
                Some(file) => prometheus::write(&status, file)?,
                None if arguments.json => output::line(&serde_json::to_string_pretty(&status)?)?,
                None => output::line(&status.to_string())?,
            }
        }
        Command::Enable(SwitchArguments { names }) => {
            output::line(&format!("on: {}", control::turn(&host, names, true)?.join(", ")))?;
        }
        Command::Disable(SwitchArguments { names }) => {
            output::line(&format!("off: {}", control::turn(&host, names, false)?.join(", ")))?;
        }
        Command::Shrink(arguments) => {
            let gone = control::shrink(&host, arguments.amount, arguments.level.as_deref())?;
            output::line(&format!("{gone} tables given back"))?;
        }
        Command::Policy(arguments) => {
            let settings: control::Settings = (&arguments.settings).into();
            control::set(&host, &settings)?;
            let status = status::Status::look(&host);
            output::line(&status.pool.context("the pool is gone")?.shrinking())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl LoadArguments {
    fn wanted(&self) -> plan::Wanted {
        let mut parameters = Vec::new();
        parameters.extend(self.prefill.as_ref().map(|value| format!("prefill={value}")));
        parameters.extend(self.max_tables.map(|value| format!("max_tables={value}")));
        plan::Wanted {
            only: self.only.clone(),
            sources: part::Sources {
                payload: self.payload.clone(),
                modules: self.modules.clone(),
                from: self.from.clone(),
            },
            pool_parameters: parameters.join(" "),
        }
    }
}

/// The host for a command that changes what is loaded: signals only request its end, and no other such command
/// runs at the same time. Without root there is no lock, and the command will be refused.
fn alone() -> Result<(Host, Option<std::fs::File>)> {
    let host = Host::new("/".into(), Box::new(Linux::that_is_asked_to_stop()?));
    let lock = if host.kernel.is_root() { Some(lock(&host)?) } else { None };
    Ok((host, lock))
}

/// Held until the process ends: two loads at once would undo each other's parts.
fn lock(host: &Host) -> Result<std::fs::File> {
    let path = host.path(LOCK);
    let open = || -> Result<std::fs::File> {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        Ok(std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path)?)
    };
    let file = open().with_context(|| format!("{} cannot be made", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            bail!("refused, and nothing was changed:\n  another trapless pagetable load or unload is running")
        }
        Err(error) => Err(error).with_context(|| format!("{} cannot be locked", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    #[test]
    fn one_at_a_time() {
        let fake = Fake::dom0();
        let held = lock(&fake.host()).unwrap();
        assert!(lock(&fake.host()).unwrap_err().to_string().contains("another trapless"));
        drop(held);
        assert!(lock(&fake.host()).is_ok());
    }

    #[test]
    fn five_numbers() {
        assert!(prefill("96,24,16,6,6").is_ok());
        for bad in [
            "",
            "1",
            "1,2,3,4",
            "1,2,3,4,x",
            "1,2,3,4,5 max_tables=1",
            "1,2,3,4,-5",
            "1,2,3,4,",
            "1,2,3,4,99999999999",
        ] {
            assert!(prefill(bad).is_err(), "{bad}");
        }
    }
}
