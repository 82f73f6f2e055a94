// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty-oracle`: runs the scenarios and prints what was missed. The exit code is 0 only if nothing was.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use dirty_oracle::judge::Setup;
use dirty_oracle::outcome::{Stop, Verdict};
use dirty_oracle::output::{complain, parse, say};
use dirty_oracle::program::Looks;
use dirty_oracle::property::{Search, search};
use dirty_oracle::report::{Rejected, Report, Row, heading};
use dirty_oracle::run::{Order, What};
use dirty_oracle::scenario::{ALL, Scenario};
use dirty_oracle::sequence::Sequence;
use dirty_oracle::workload::Target;
use dirty_oracle::{program, run, workload};
use libdirty::{BackendKind, Error, Tracker};

/// Holds the back ends of libdirty against memory itself.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    what: Choice,
    /// Only these scenarios (repeat); all otherwise.
    #[arg(long, value_parser = scenario)]
    scenario: Vec<&'static Scenario>,
    /// Not these scenarios (repeat).
    #[arg(long, value_parser = scenario)]
    except: Vec<&'static Scenario>,
    /// How long each racing scenario races; twelve rounds at least.
    #[arg(long, default_value_t = 2.0, value_parser = dirty_oracle::seconds)]
    seconds: f64,
    /// Kill a scenario after so many seconds.
    #[arg(long, default_value_t = 600)]
    limit: u64,
}

#[derive(Debug, Args)]
struct Choice {
    /// Only this back end (repeat); otherwise every one that works here.
    #[arg(long)]
    backend: Vec<BackendKind>,
    /// Take the back ends named with --backend as they are, even if trying them on scratch memory shows that
    /// they do not work: to see what one would miss.
    #[arg(long, requires = "backend")]
    untried: bool,
    /// The process that is tracked; both otherwise.
    #[arg(long)]
    target: Option<TargetName>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios.
    List,
    /// Generate programs, run each, and shrink one that fails.
    Property {
        #[command(flatten)]
        what: Choice,
        /// How many programs for each back end and target.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        cases: u32,
        /// The programs of this seed; others each time if left out.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Keep an image of a running program by the documented loop, and compare it while the program is stopped.
    Attach {
        /// The process, which the caller must be permitted to ptrace.
        pid: i32,
        #[command(flatten)]
        what: Choice,
        /// How long for each back end.
        #[arg(long, default_value_t = 10.0, value_parser = dirty_oracle::seconds)]
        seconds: f64,
        /// How many images are compared in that time.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        images: u32,
        /// Milliseconds between two collects.
        #[arg(long, default_value_t = 20)]
        interval: u64,
    },
    /// Run one generated program, from a JSON file.
    Replay {
        #[command(flatten)]
        what: Choice,
        /// The file that holds it.
        file: std::path::PathBuf,
    },
    /// Run one order from standard input.
    #[command(hide = true)]
    One,
    /// Carry out operations from standard input.
    #[command(hide = true)]
    Workload,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TargetName {
    Own,
    Other,
}

fn scenario(name: &str) -> Result<&'static Scenario, String> {
    dirty_oracle::scenario::find(name).ok_or_else(|| format!("no scenario is called {name:?}; try list"))
}

impl Choice {
    /// What to run: each back end on each target. Back ends that do not work here go into the report.
    fn setups(&self, seconds: f64, report: &mut Report) -> Vec<Setup> {
        let targets = match self.target {
            None => vec![Target::Own, Target::Other],
            Some(TargetName::Own) => vec![Target::Own],
            Some(TargetName::Other) => vec![Target::Other],
        };
        let mut setups = Vec::new();
        for finding in libdirty::survey() {
            let backend = finding.backend;
            if !self.backend.is_empty() && !self.backend.contains(&backend) {
                continue;
            }
            if let Some(why) = finding.rejected.filter(|_| !self.untried) {
                report.rejected.push(Rejected { backend: backend.name().into(), why });
                continue;
            }
            let record = backend.capabilities();
            let able = targets.iter().filter(|target| **target == Target::Own || record.other_process);
            setups.extend(able.map(|target| Setup { subject: backend.into(), target: *target, seconds }));
        }
        setups
    }

    /// Add a row to the report, and show it at once unless JSON is wanted.
    fn add(
        &self,
        report: &mut Report,
        setup: &Setup,
        scenario: &str,
        verdict: Verdict,
        since: Instant,
    ) -> Result<(), String> {
        let (backend, target) = (setup.subject.to_string(), setup.target.name().into());
        let seconds = since.elapsed().as_secs_f64();
        let row = Row { backend, target, scenario: scenario.into(), verdict, seconds };
        if !self.json {
            say(row.line())?;
        }
        report.rows.push(row);
        Ok(())
    }

    fn finish(&self, mut report: Report) -> Result<ExitCode, String> {
        let is_asked = |rejected: &Rejected| self.backend.iter().any(|kind| kind.name() == rejected.backend);
        report.good = report.rows.iter().all(|row| row.verdict.is_good())
            && !report.rows.is_empty()
            && !report.rejected.iter().any(is_asked);
        if self.json {
            say(serde_json::to_string(&report).map_err(|error| error.to_string())?)?;
        } else {
            for rejected in &report.rejected {
                say(format_args!("{:<11} does not work here: {}", rejected.backend, rejected.why))?;
            }
            let writes = report.rows.iter().map(|row| row.verdict.writes()).sum::<u64>();
            let racing = if writes > 0 { format!(", {writes} writes raced with it") } else { String::new() };
            let verdict = if report.good { "nothing missed" } else { "NOT good" };
            say(format_args!("{verdict}{racing}"))?;
        }
        Ok(if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        complain(format_args!("dirty-oracle: {error}"));
        ExitCode::from(2)
    })
}

fn run() -> Result<ExitCode, String> {
    let cli: Cli = match parse()? {
        Ok(cli) => cli,
        Err(code) => return Ok(code),
    };
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut report = Report::default();
    match &cli.command {
        Some(Command::One) => run::serve().map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string()),
        Some(Command::Workload) => {
            workload::serve().map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }
        Some(Command::List) => {
            for scenario in ALL {
                say(format_args!("{:<18} {}", scenario.name, scenario.about))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Property { what, cases, seed }) => {
            for setup in what.setups(0.0, &mut report) {
                let since = Instant::now();
                let verdict = match search(&program, &setup, *cases, 2000, *seed)? {
                    Search::Passed => Verdict::Done(Default::default()),
                    Search::Skipped(why) => Verdict::Skipped(why),
                    Search::Found(sequence, verdict) => {
                        complain(serde_json::to_string(&sequence).map_err(|error| error.to_string())?);
                        verdict
                    }
                };
                what.add(&mut report, &setup, "property", verdict, since)?;
            }
            what.finish(report)
        }
        Some(Command::Attach { pid, what, seconds, images, interval }) => {
            if matches!(what.target, Some(TargetName::Own)) {
                return Err("attach: --target own: the program is another process".into());
            }
            // What is wrong with the process is no back end's mistake.
            if let Err(
                error @ (Error::NoProcess(_)
                | Error::Thread { .. }
                | Error::NoMemory(_)
                | Error::Permission { .. }),
            ) = Tracker::builder().process(*pid)
            {
                return Err(format!("attach: {error}"));
            }
            let looks =
                Looks { images: *images, interval: Duration::from_millis(*interval), seconds: *seconds };
            for setup in what.setups(0.0, &mut report) {
                if setup.target == Target::Own {
                    continue;
                }
                let since = Instant::now();
                let verdict = match program::judge(setup.subject.clone(), *pid, looks) {
                    Ok(outcome) => Verdict::Done(outcome),
                    Err(Stop::Skip(why)) if what.backend.is_empty() => Verdict::Skipped(why),
                    Err(stop) => Verdict::Crashed(stop.to_string()),
                };
                what.add(&mut report, &setup, "attach", verdict, since)?;
            }
            what.finish(report)
        }
        Some(Command::Replay { what, file }) => {
            let text =
                std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
            let sequence: Sequence =
                serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
            for setup in what.setups(0.0, &mut report) {
                let since = Instant::now();
                let verdict = Order::new(setup.clone(), What::Sequence(sequence.clone()))
                    .spawn(&program, Duration::from_secs(cli.limit))
                    .map_err(|error| error.to_string())?;
                what.add(&mut report, &setup, "replay", verdict, since)?;
            }
            what.finish(report)
        }
        None => {
            if !cli.what.json {
                say(heading())?;
            }
            let is_wanted = |scenario: &&Scenario| {
                let named = |list: &[&Scenario]| list.iter().any(|other| other.name == scenario.name);
                (cli.scenario.is_empty() || named(&cli.scenario)) && !named(&cli.except)
            };
            for setup in cli.what.setups(cli.seconds, &mut report) {
                for scenario in ALL.iter().filter(is_wanted) {
                    let since = Instant::now();
                    let verdict = Order::new(setup.clone(), What::Scenario(scenario.name.into()))
                        .spawn(&program, Duration::from_secs(cli.limit))
                        .map_err(|error| error.to_string())?;
                    cli.what.add(&mut report, &setup, scenario.name, verdict, since)?;
                }
            }
            cli.what.finish(report)
        }
    }
}
