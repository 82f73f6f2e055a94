// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty-conformance`: judges anybody's tracker of dirty pages, by the oracle's cases. The result is in TAP; the exit
//! code is 0 if nothing was missed, 1 if something was, 2 if nothing could be judged.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use dirty_oracle::judge::Setup;
use dirty_oracle::outcome::{Outcome, Verdict};
use dirty_oracle::output::{complain, parse, say};
use dirty_oracle::property::{Search, search};
use dirty_oracle::run::{Order, What};
use dirty_oracle::scenario::ALL;
use dirty_oracle::subject::Subject;
use dirty_oracle::workload::Target;
use dirty_oracle::{run, tap, workload};
use libdirty::BackendKind;

/// Judges a tracker of dirty pages by what it misses.
#[derive(Debug, Parser)]
#[command(name = "dirty-conformance", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Hidden>,
    /// Judge this plug-in, a shared object with the interface of dirty_conformance.h.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["backend", "list"], conflicts_with = "backend")]
    plugin: Option<PathBuf>,
    /// Judge this back end of libdirty.
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendKind>,
    /// Only this case (repeat); all otherwise.
    #[arg(long, value_name = "NAME", value_parser = case)]
    case: Vec<&'static str>,
    /// Not this case (repeat).
    #[arg(long, value_name = "NAME", value_parser = case)]
    except: Vec<&'static str>,
    /// Track only the process that the tracker runs in (own), or only another; both otherwise.
    #[arg(long)]
    target: Option<TargetName>,
    /// What the case "generated" generates its programs from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many programs the case "generated" runs.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long a case in which threads race with the tracker races, at least.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = dirty_oracle::seconds)]
    seconds: f64,
    /// A case that takes longer is not ok.
    #[arg(long, value_name = "S", default_value_t = 300)]
    limit: u64,
    /// List the cases.
    #[arg(long)]
    list: bool,
}

/// What the program starts itself as.
#[derive(Debug, Subcommand)]
enum Hidden {
    #[command(hide = true)]
    One,
    #[command(hide = true)]
    Workload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TargetName {
    Own,
    Other,
}

const GENERATED: (&str, &str) = ("generated", "programs made of random steps; one that fails is shrunk");

/// Attempts to make a program that fails smaller.
const SHRINK: u32 = 300;

/// Names and descriptions of all cases.
fn cases() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().map(|scenario| (scenario.name, scenario.about)).chain([GENERATED])
}

fn case(name: &str) -> Result<&'static str, String> {
    let found = cases().find(|(other, _)| *other == name);
    found.map(|(name, _)| name).ok_or_else(|| format!("no case is called {name:?}; try --list"))
}

impl Cli {
    fn subject(&self) -> Option<Subject> {
        self.backend.map(Subject::Backend).or(self.plugin.clone().map(Subject::Plugin))
    }

    /// The cases that are wanted, each with a target that it says something about.
    fn wanted(&self) -> Vec<(&'static str, Target)> {
        let is_wanted =
            |name: &str| (self.case.is_empty() || self.case.contains(&name)) && !self.except.contains(&name);
        let mut wanted = Vec::new();
        for (target, name) in [(Target::Own, TargetName::Own), (Target::Other, TargetName::Other)] {
            if self.target.is_some_and(|only| only != name) {
                continue;
            }
            let says = |name: &str| {
                dirty_oracle::scenario::find(name).is_none_or(|scenario| scenario.targets.contains(&target))
            };
            let names = cases().map(|(name, _)| name).filter(|name| is_wanted(name) && says(name));
            wanted.extend(names.map(|name| (name, target)));
        }
        wanted
    }

    /// # Errors
    /// When the program cannot start itself.
    fn judge(&self, program: &Path, name: &str, setup: &Setup) -> Result<Verdict, String> {
        if name != GENERATED.0 {
            let order = Order::new(setup.clone(), What::Scenario(name.into()));
            return order
                .spawn(program, Duration::from_secs(self.limit))
                .map_err(|error| format!("{}: {error}", program.display()));
        }
        Ok(match search(program, setup, self.rounds, SHRINK, Some(self.seed))? {
            Search::Passed => {
                let notes = vec![format!("{} programs of seed {}", self.rounds, self.seed)];
                Verdict::Done(Outcome { notes, ..Outcome::default() })
            }
            Search::Skipped(why) => Verdict::Skipped(why),
            Search::Found(sequence, verdict) => {
                let steps = serde_json::to_string(&sequence).map_err(|error| error.to_string())?;
                let mut outcome = match verdict {
                    Verdict::Done(outcome) => outcome,
                    Verdict::Skipped(how) | Verdict::Crashed(how) => {
                        Outcome { failures: vec![how], ..Outcome::default() }
                    }
                };
                outcome.notes.push(format!("by these steps: {steps}"));
                Verdict::Done(outcome)
            }
        })
    }
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(why) => {
            // Where nobody reads it, standard error still has it.
            let _ = say(tap::bail_out(&why));
            complain(format_args!("dirty-conformance: {why}"));
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<ExitCode, String> {
    let cli: Cli = match parse()? {
        Ok(cli) => cli,
        Err(code) => return Ok(code),
    };
    match cli.command {
        Some(Hidden::One) => {
            return run::serve().map_err(|error| error.to_string()).map(|()| ExitCode::SUCCESS);
        }
        Some(Hidden::Workload) => {
            return workload::serve().map_err(|error| error.to_string()).map(|()| ExitCode::SUCCESS);
        }
        None => {}
    }
    if cli.list {
        cases().try_for_each(|(name, about)| say(format_args!("{name:<20} {about}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let subject = cli.subject().ok_or("nothing to judge: --plugin or --backend")?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // A plug-in that takes the process with it is to take another than this one.
    let name = identify(&program, &subject)?;
    let wanted = cli.wanted();
    say(tap::heading(wanted.len()))?;
    say(format_args!("# {name}"))?;
    let (mut good, mut bad, mut skipped) = (0, 0, 0);
    for (number, (case, target)) in (1..).zip(wanted) {
        let setup = Setup { subject: subject.clone(), target, seconds: cli.seconds };
        let since = Instant::now();
        let verdict = cli.judge(&program, case, &setup)?;
        match &verdict {
            Verdict::Skipped(_) => skipped += 1,
            verdict if verdict.is_good() => good += 1,
            _ => bad += 1,
        }
        let title = format!("{case} ({} process)", if target == Target::Own { "own" } else { "another" });
        say(tap::case(number, &title, &verdict, since.elapsed().as_secs_f64()))?;
    }
    say(tap::summary(good, bad, skipped))?;
    Ok(ExitCode::from(match (good, bad) {
        (0, 0) => 2,
        (_, 0) => 0,
        _ => 1,
    }))
}

/// The tracker's name, by its own word.
fn identify(program: &Path, subject: &Subject) -> Result<String, String> {
    let setup = Setup { subject: subject.clone(), target: Target::Own, seconds: 0.0 };
    let verdict = Order::new(setup, What::Name)
        .spawn(program, Duration::from_secs(10))
        .map_err(|error| format!("{}: {error}", program.display()))?;
    match verdict {
        Verdict::Done(outcome) => Ok(outcome.notes.concat()),
        Verdict::Skipped(why) => Err(why),
        Verdict::Crashed(how) => Err(format!("{subject}: a process that loads it does not live: {how}")),
    }
}
