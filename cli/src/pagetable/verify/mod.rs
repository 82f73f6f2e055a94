// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless pagetable verify`: for a host that is about to trust this. Are page tables validated as by stock Xen, are all
//! pages given back, what is gained here, and does anything complain?
//!
//! Invariants: it begins with a stock host and ends with one, or names what stays. Nothing is called verified that was
//! not compared: a step that fails or is not reached makes the verdict another. Nothing is called wrong that was not
//! seen to be: what a signal cut short, or what the host would not do, leaves nothing known.

mod device;
mod logs;
mod processes;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use serde::Serialize;

use super::control::{self, Settings};
use super::host::Host;
use super::livepatch::Livepatch;
use super::load::load;
use super::part::{Part, Sources};
use super::plan::{Action, Wanted, choose_module, plan, served};
use super::platform::{Platform, Xen};
use super::unload::unload;
use crate::output::{self, grouped};
use crate::parse;
use device::{Gate, Spare};
use processes::{Compared, NotMeasured, Times};
use tables::{Calls, Driver, Tables, stop_if_asked};

/// Turns, stock and boosted, that processes are measured in: at least and at most.
const TURNS: std::ops::RangeInclusive<usize> = 3..=9;

const HELP: &str = "\
For a quiet moment of a host that nothing important depends on yet: if the
payload were wrong for this host, what it decides about page tables could
crash it. Load must not have been done; at the end everything is unloaded.

  tables     calls about page tables, legal and illegal, from a random seed:
             their answers on stock Xen, then with the payload
  device     with --device: a spare NVMe controller is made to write a page, and
             must not reach it while it is semi-writable; no driver may use
             it, and nothing on its disk is read or changed
  processes  fork+exit and fork+exec by the clock, stock and boosted in turns,
             each turn with a load and an unload
  pool       after each turn, the pages that Xen still counts as semi-writable
  logs       complaints of Xen and of the kernel meanwhile

Without --device it does not see whether a device could write a page table.

Exit code 0 if all of it held, 1 if something is wrong, or it did not finish and
nothing is known. All of the output can be sent to a
colleague.";

/// For how long, and what.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Seconds for all of it, about; a step that was begun is ended
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse::seconds)]
    budget: Duration,
    /// Let this device write, by its PCI address: an NVMe controller that no driver uses
    #[arg(long, value_name = "BDF")]
    device: Option<String>,
    /// First seed of the calls [default: of the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
    /// Use this payload and no other
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Use this module, and no others than those given (may be repeated)
    #[arg(long = "module", value_name = "FILE")]
    modules: Vec<PathBuf>,
    /// Look here before the system's folders: a folder of files, or a build tree
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn wanted(&self) -> Wanted {
        Wanted {
            sources: Sources {
                payload: self.payload.clone(),
                modules: self.modules.clone(),
                from: self.from.clone(),
            },
            ..Wanted::default()
        }
    }
}

/// The end of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Verified,
    /// Something is wrong.
    Wrong,
    /// Nothing is known.
    Unfinished,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    /// When it ended, UTC.
    date: String,
    host: String,
    kernel: String,
    cpus: usize,
    /// The processor's model; nothing if the kernel does not say.
    processor: Option<String>,
    /// Build of the running Xen, which is that of the payload.
    build: String,
    payload: PathBuf,
    /// The module that makes the calls about page tables.
    module: PathBuf,
    verified: bool,
    verdict: Verdict,
    /// Why it is not verified, a line each.
    failures: Vec<String>,
    /// Whether something could not be unloaded.
    stays: bool,
    tables: Tables,
    /// Only if a device was named, and it came to that.
    device: Option<Gate>,
    turns: usize,
    processes: Vec<Compared>,
    pool: Pool,
    logs: logs::Logs,
}

/// Pages over all turns.
#[derive(Debug, Default, Serialize)]
struct Pool {
    /// Whether the pool serves this host at all.
    serves: bool,
    /// Most pages that were semi-writable after processes ran.
    most_semi_writable: u64,
    /// Calls to the IOMMU that were saved.
    iommu_calls_saved: u64,
    /// Pages that Xen still counted after the pool had given all back, in a turn.
    kept: u64,
}

/// Verify and print.
///
/// # Errors
/// What cannot be begun: then nothing was changed.
pub fn run(host: &Host, arguments: &Arguments) -> Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u32::try_from(since.as_secs() & 0x7fff_ffff).expect("31 bits")
    });
    // A terminal that is gone must not cost the report, nor leave anything loaded.
    let mut say = |line: &str| drop(writeln!(std::io::stderr(), "{line}"));
    let task =
        Task { wanted: arguments.wanted(), device: arguments.device.clone(), budget: arguments.budget, seed };
    let report = verify(host, &task, &mut processes::measure, &mut say)?;
    output::line(&if arguments.json { serde_json::to_string(&report)? } else { text(&report) })?;
    Ok(if report.verified { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Measure<'a> = &'a mut dyn FnMut() -> Result<Times, NotMeasured>;

/// What is asked for.
struct Task {
    wanted: Wanted,
    device: Option<String>,
    budget: Duration,
    seed: u32,
}

fn verify(host: &Host, task: &Task, measure: Measure<'_>, say: &mut dyn FnMut(&str)) -> Result<Report> {
    let Ready { xen, payload, module, spare } = ready(host, task)?;
    let end = Instant::now() + task.budget;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        host: Platform::Xen(xen.clone()).to_string(),
        kernel: host.kernel.release(),
        date: String::new(),
        processor: processor(host),
        cpus: std::thread::available_parallelism()?.get(),
        build: super::image::hex(&xen.build_id),
        payload: payload.clone(),
        module: module.clone(),
        verified: false,
        verdict: Verdict::Unfinished,
        failures: Vec::new(),
        stays: false,
        tables: Tables { first_seed: task.seed, ..Tables::default() },
        device: None,
        turns: 0,
        processes: Vec::new(),
        pool: Pool::default(),
        logs: logs::Logs::default(),
    };
    let since = logs::Since::now(host, &xen);
    let mut turns = Vec::new();
    let mut all = || -> Result<()> {
        say("verify: calls about page tables, on stock Xen and with the payload");
        compare_tables(host, &xen, &payload, &module, task.budget / 8, &mut report.tables)?;
        ensure!(
            report.tables.calls > 0,
            "no answers could be compared: with the payload's switches off they differ from stock Xen's as well"
        );
        ensure!(report.tables.hold_undisturbed(), "page tables are not validated as by stock Xen");
        ensure!(report.tables.hold(), Unknown(report.tables.not_interrupted()));
        if let Some(spare) = &spare {
            say("verify: the device, with the payload");
            let found = report.device.insert(gate(host, &xen, &payload, spare)?);
            if !found.holds() {
                return Err(found.failure());
            }
        }
        while turns.len() < *TURNS.start() || (turns.len() < *TURNS.end() && Instant::now() < end) {
            say(&format!("verify: processes, turn {}", turns.len() + 1));
            turns.push(turn(host, &task.wanted, &mut report.pool, measure)?);
            stop_if_asked(host)?;
        }
        ensure!(report.pool.kept == 0, "pages stayed semi-writable when the pool had given all back");
        Ok(())
    };
    let error = all().err();
    report.failures.extend(error.as_ref().map(|error| format!("{error:#}")));
    // Whatever was loaded when a step failed. It is tried as often as ever, also after a signal.
    host.kernel.begin_clean_up();
    if let Err(error) = unload(host, &[], false, &mut |_| {}) {
        report.stays = true;
        report.failures.push(format!("{error:#}"));
    }
    report.logs = since.complaints(host, &xen);
    let complained = !(report.logs.kernel.is_empty() && report.logs.xen.is_empty());
    if complained {
        report.failures.push("Xen or the kernel complained".into());
    }
    report.date = output::utc(SystemTime::now());
    report.turns = turns.len();
    report.processes = processes::compare(&turns);
    report.verdict = match &error {
        _ if complained => Verdict::Wrong,
        Some(error) if error.is::<Unknown>() => Verdict::Unfinished,
        Some(_) => Verdict::Wrong,
        None if report.stays => Verdict::Wrong,
        None => Verdict::Verified,
    };
    report.verified = report.verdict == Verdict::Verified;
    Ok(report)
}

/// The hypervisor, the payload, the module of the differential test, and the device if one was named.
struct Ready {
    xen: Xen,
    payload: PathBuf,
    module: PathBuf,
    spare: Option<Spare>,
}

/// Nothing has been changed.
fn ready(host: &Host, task: &Task) -> Result<Ready> {
    const REFUSED: &str = "refused, and nothing was changed:\n  ";
    let wanted = &task.wanted;
    let steps = plan(host, wanted).map_err(|why| anyhow::anyhow!("{REFUSED}{}", why.join("\n  ")))?;
    let there: Vec<String> =
        steps.iter().filter(|step| step.action == Action::There).map(|step| step.part.to_string()).collect();
    if !there.is_empty() {
        bail!(
            "{REFUSED}{} is loaded, and verify compares with a stock host: trapless pagetable unload",
            there.join(", ")
        );
    }
    ensure!(
        !host.has_module(tables::MODULE),
        "{REFUSED}module {} is loaded: trapless pagetable unload",
        tables::MODULE
    );
    let payload = steps.iter().find_map(|step| match &step.action {
        Action::Load { file, .. } if step.part == Part::Payload => Some(file.clone()),
        _ => None,
    });
    let payload = payload.with_context(|| format!("{REFUSED}verify is for dom0, which loads the payload"))?;
    let module = choose_module(host, &wanted.sources, tables::MODULE)
        .map_err(|why| anyhow::anyhow!("{REFUSED}{why}"))?;
    let platform = Platform::look(host);
    let xen = served(&platform).map_err(|why| anyhow::anyhow!("{REFUSED}{why}"))?.clone();
    let spare =
        task.device.as_ref().map(|device| Spare::find(host, &xen, &wanted.sources, device)).transpose();
    let spare = spare.map_err(|why| anyhow::anyhow!("{REFUSED}{why}"))?;
    Ok(Ready { xen, payload, module, spare })
}

/// The device, with nothing but the payload; at the end neither is in use.
fn gate(host: &Host, xen: &Xen, payload: &std::path::Path, spare: &Spare) -> Result<Gate> {
    cut_short(host, Livepatch::find(host, xen)?.load(payload))?;
    let found = spare.write(host)?;
    cut_short(host, spare.take_out(host))?;
    cut_short(host, unload(host, &[Part::Payload], false, &mut |_| {}))?;
    Ok(found)
}

/// The differential test, with nothing but the payload; at the end neither is loaded.
fn compare_tables(
    host: &Host,
    xen: &Xen,
    payload: &std::path::Path,
    module: &std::path::Path,
    time: Duration,
    found: &mut Tables,
) -> Result<()> {
    let bytes = std::fs::read(payload).with_context(|| format!("{}", payload.display()))?;
    let calls = Calls::of(&bytes).with_context(|| format!("{}", payload.display()))?;
    found.ranges = (calls == Calls::AndRanges).then_some(0);
    let driver = Driver::load(host, module, calls)?;
    let seeds = driver.record(host, found, time)?;
    cut_short(host, driver.switched_off(|| Livepatch::find(host, xen)?.load(payload)))?;
    let agreed = driver.compare(host, &seeds, found, false)?;
    if found.hold_undisturbed() {
        driver.compare(host, &agreed, found, true)?;
    }
    cut_short(host, unload(host, &[Part::Payload], false, &mut |_| {}))?;
    cut_short(host, tables::take_out(host))
}

/// That a signal came, as `load` says it.
const ASKED: &str = "a signal requested the end";

/// Why nothing is known: it was not seen that something is wrong.
#[derive(Debug)]
pub struct Unknown(pub String);

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

/// The result of a step that gives up when a signal requests the end: after one, its error says nothing of the host.
fn cut_short<T>(host: &Host, result: Result<T>) -> Result<T> {
    result.map_err(|error| {
        let why = format!("{error:#}");
        if !host.kernel.was_asked_to_stop() {
            error
        } else if why.starts_with(ASKED) {
            Unknown(why).into()
        } else {
            Unknown(format!("{ASKED}: {why}")).into()
        }
    })
}

/// Processes on the stock host; then everything is loaded, processes again, pages are counted, and it is unloaded.
fn turn(host: &Host, wanted: &Wanted, pool: &mut Pool, measure: Measure<'_>) -> Result<(Times, Times)> {
    let is_cut_short = |not: &NotMeasured| not.is_request() && host.kernel.was_asked_to_stop();
    // On stock Xen even a process that ends badly says nothing of what was not loaded.
    let stock = measure().map_err(|not| {
        Unknown(if is_cut_short(&not) { ASKED.into() } else { format!("on the stock host: {not}") })
    })?;
    cut_short(host, load(host, wanted, &Settings::default(), &mut |_| {}))?;
    let boosted = measure().map_err(|not| match not {
        not if is_cut_short(&not) => Unknown(ASKED.into()).into(),
        NotMeasured::Status(_) => anyhow!(not),
        NotMeasured::Host(why) => Unknown(why).into(),
    })?;
    let statistics = || -> Result<super::hypercall::Statistics> {
        let state = host.kernel.payload().map_err(anyhow::Error::msg)?;
        state.and_then(|state| state.statistics).context("the payload does not count pages for this domain")
    };
    let then = statistics()?;
    if host.has_module(Part::Pool.module().expect("it is a module")) {
        pool.serves = true;
        pool.most_semi_writable = pool.most_semi_writable.max(then.semi_writable);
        pool.iommu_calls_saved += then.skipped_map + then.skipped_unmap;
        control::turn(host, &[], false)?;
        let now = statistics()?;
        pool.kept = pool.kept.max(now.semi_writable + now.held);
    }
    cut_short(host, unload(host, &[], false, &mut |_| {}))?;
    let left = host.kernel.payload().map_err(anyhow::Error::msg)?;
    ensure!(left.is_none(), "Xen still answers as with the payload, which was unloaded");
    Ok((stock, boosted))
}

fn text(report: &Report) -> String {
    let tables = &report.tables;
    let mut lines = vec![
        format!(
            "trapless {}, {}, kernel {}, {}",
            report.version,
            report.host,
            report.kernel,
            output::number_of(report.cpus, "CPU")
        ),
        format!(
            "           {}; {} UTC",
            report.processor.as_deref().unwrap_or("a processor of no name"),
            report.date
        ),
        format!("payload    {}, for this build of Xen: {}", report.payload.display(), report.build),
        format!("module     {}", report.module.display()),
        format!(
            "tables     {} calls of {} from {}: {} compared undisturbed, {} interrupted, of which {} were left in the middle{}; left out: {} on which stock Xen did not agree with itself; dropped: {} with other answers also while the payload was switched off",
            grouped(tables.calls),
            output::number_of(tables.seeds, "seed"),
            tables.first_seed,
            grouped(tables.compared),
            grouped(tables.compared_interrupted),
            grouped(tables.left_in_the_middle),
            tables.ranges.map_or(String::new(), |ranges| format!(
                "; in {} on ranges the payload changed entries",
                grouped(ranges)
            )),
            output::number_of(tables.unstable, "seed"),
            output::number_of(tables.dropped, "seed"),
        ),
    ];
    lines.extend(tables.difference.iter().map(|line| format!("           DIFFERENT {line}")));
    lines.extend(report.device.iter().map(|found| {
        format!(
            "device     {}: an ordinary page {}, a semi-writable one {}, the same after its release {}; {} rounds held",
            found.device, found.ordinary, found.semi_writable, found.released, found.rounds
        )
    }));
    for one in &report.processes {
        lines.push(format!(
            "{:10} {:.0} us stock ({:.0} to {:.0}), {:.0} us boosted ({:.0} to {:.0}): {:.2} of stock, {:.2} to {:.2} in {} turns",
            one.what,
            one.stock.median,
            one.stock.quarter,
            one.stock.three_quarters,
            one.boosted.median,
            one.boosted.quarter,
            one.boosted.three_quarters,
            one.ratio.median,
            one.ratio.least,
            one.ratio.greatest,
            report.turns,
        ));
    }
    lines.push(if report.turns == 0 {
        "processes  not reached, nor the pool".into()
    } else if report.pool.serves {
        format!(
            "pool       at most {} pages semi-writable, {} calls to the IOMMU saved, {} pages kept after all was given back",
            grouped(report.pool.most_semi_writable),
            grouped(report.pool.iommu_calls_saved),
            report.pool.kept,
        )
    } else {
        "pool       not loaded: it would not serve this host".into()
    });
    for (who, complaints) in [("kernel", &report.logs.kernel), ("Xen", &report.logs.xen)] {
        lines.extend(complaints.iter().map(|line| format!("{who:10} COMPLAINS {line}")));
    }
    lines.extend(
        report
            .logs
            .unread
            .iter()
            .map(|unread| format!("logs       not looked at: {}: {}", unread.log, unread.why)),
    );
    lines.extend(report.failures.iter().map(|why| format!("FAILED     {why}")));
    lines.push(sentence(report));
    lines.join("\n")
}

/// The verdict.
fn sentence(report: &Report) -> String {
    let left =
        if report.stays { "something stays: trapless pagetable unload" } else { "nothing is loaded now" };
    match report.verdict {
        Verdict::Verified => {
            let unread: Vec<_> = report.logs.unread.iter().map(|unread| unread.log).collect();
            let but = if unread.is_empty() {
                String::new()
            } else {
                format!(", but for {}, which could not be read", unread.join(" and "))
            };
            format!("Verified{but}; {left}. To load: trapless pagetable load")
        }
        Verdict::Wrong => format!("NOT verified, something is wrong; {left}. Do not load it on this host."),
        Verdict::Unfinished => format!("Not finished, so nothing is known of this host; {left}."),
    }
}

/// Of the first processor.
fn processor(host: &Host) -> Option<String> {
    let text = host.text("/proc/cpuinfo")?;
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1;
    Some(output::printable(name.trim()))
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, RELEASE, module_file};
    use super::*;

    fn fake() -> Fake {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().kept = Some(0);
        let file = format!("/lib/modules/{RELEASE}/updates/dkms/{}.ko", tables::MODULE);
        fake.write(&file, &module_file(tables::MODULE, RELEASE));
        fake
    }

    fn verified(fake: &Fake) -> Result<Report> {
        verified_with(fake, None)
    }

    fn verified_with(fake: &Fake, device: Option<&str>) -> Result<Report> {
        let mut measure = || {
            let times = vec![Duration::from_micros(100); 3];
            Ok(Times { fork: times.clone(), exec: times })
        };
        let task = Task {
            wanted: Wanted::default(),
            device: device.map(str::to_owned),
            budget: Duration::ZERO,
            seed: 7,
        };
        verify(&fake.host(), &task, &mut measure, &mut |_| {})
    }

    const SPARE: &str = "/sys/bus/pci/devices/0000:00:05.0";

    fn with_spare() -> Fake {
        let fake = fake();
        for (file, text) in [("class", "0x010802\n"), ("driver_override", "(null)\n")] {
            fake.write(&format!("{SPARE}/{file}"), text.as_bytes());
        }
        let file = format!("/lib/modules/{RELEASE}/updates/dkms/{}.ko", device::MODULE);
        fake.write(&file, &module_file(device::MODULE, RELEASE));
        fake
    }

    /// The fake device reaches every page; test_verify.py has one that the IOMMU keeps away.
    #[test]
    fn a_device_that_reaches_a_semi_writable_page_is_a_failure_and_is_given_back() {
        let fake = with_spare();
        let report = verified_with(&fake, Some("00:05.0")).unwrap();
        assert!(
            !report.verified && report.failures[0].contains("0000:00:05.0 wrote"),
            "{:?}",
            report.failures
        );
        assert_eq!(report.turns, 0, "processes do not meet it");
        assert!(text(&report).contains("a semi-writable one written"), "{}", text(&report));
        assert!(fake.loaded().is_empty() && !fake.host().has_module(device::MODULE));
        assert_eq!(fake.host().text(format!("{SPARE}/driver_override")).unwrap(), "");
        let done = fake.kernel.borrow().done.clone();
        assert!(done.contains(&format!("+{} device=0000:00:05.0", device::MODULE)), "{done:?}");
    }

    #[test]
    fn a_device_stays_if_its_module_does_not_load() {
        let fake = with_spare();
        fake.kernel.borrow_mut().broken.insert(device::MODULE, libc::ENODEV);
        let report = verified_with(&fake, Some("0000:00:05.0")).unwrap();
        assert!(!report.verified && report.failures[0].contains("cannot be loaded for 0000:00:05.0"));
        assert!(fake.loaded().is_empty());
        assert_eq!(fake.host().text(format!("{SPARE}/driver_override")).unwrap(), "");
    }

    #[test]
    fn a_device_in_use_or_of_another_kind_is_refused_unchanged() {
        type Change = fn(&Fake);
        let cases: [(&str, &str, Change); 8] = [
            ("00:06.0", "there is no device 00:06.0", |_| {}),
            ("../../module", "there is no device", |_| {}),
            ("00:05.0", "used by the driver nvme", |fake| {
                std::os::unix::fs::symlink(
                    "../../bus/pci/drivers/nvme",
                    fake.path(&format!("{SPARE}/driver")),
                )
                .unwrap();
            }),
            ("00:05.0", "of class 0x010601", |fake| fake.write(&format!("{SPARE}/class"), b"0x010601\n")),
            ("00:05.0", "kept for the driver vfio-pci", |fake| {
                fake.write(&format!("{SPARE}/driver_override"), b"vfio-pci\n");
            }),
            ("00:05.0", "IOMMU does not keep", |fake| {
                fake.kernel.borrow_mut().command_line = Ok("iommu=0".into())
            }),
            ("00:05.0", "is loaded: trapless pagetable unload", |fake| {
                fake.write(&format!("/sys/module/{}/refcnt", device::MODULE), b"0\n");
            }),
            ("00:05.0", "no module trapless_device_test", |fake| {
                fake.remove(&format!("/lib/modules/{RELEASE}/updates/dkms/{}.ko", device::MODULE));
            }),
        ];
        for (name, says, change) in cases {
            let fake = with_spare();
            change(&fake);
            let refusal = verified_with(&fake, Some(name)).unwrap_err().to_string();
            assert!(refusal.contains("nothing was changed") && refusal.contains(says), "{says}: {refusal}");
            assert!(fake.kernel.borrow().done.is_empty() && fake.loaded().is_empty());
        }
    }

    #[test]
    fn a_good_host_is_verified_and_ends_as_it_began() {
        let fake = fake();
        let report = verified(&fake).unwrap();
        assert!(report.verified, "{:?}", report.failures);
        assert_eq!((report.tables.calls, report.turns), (100, *TURNS.start()));
        assert!(fake.loaded().is_empty());
        let text = text(&report);
        assert!(text.contains("fork+exec") && text.ends_with("trapless pagetable load"), "{text}");
        assert!(text.contains("not looked at: Xen's log: there is no xl"), "{text}");
        assert!(
            text.contains("Verified, but for") && text.contains("Xen's log, which could not be read"),
            "{text}"
        );
    }

    #[test]
    fn seeds_are_counted_by_what_was_loaded_when_they_differed() {
        let fake = fake();
        // After the leg without interrupts: with them, the answers are others whatever the switches are.
        fake.kernel.borrow_mut().differs_from = Some(3);
        let report = verified(&fake).unwrap();
        let tables = &report.tables;
        assert_eq!((tables.compared, tables.compared_interrupted), (100, 0), "{tables:?}");
        assert_eq!((tables.unstable, tables.dropped, report.turns), (0, 1, 0));
        assert_eq!(report.verdict, Verdict::Unfinished);
        let text = text(&report);
        assert!(
            text.contains("left out: 0 seeds on which stock") && text.contains("dropped: 1 seed with"),
            "{text}"
        );
        assert!(text.contains("FAILED     no answers could be compared while timers"), "{text}");
        assert!(text.ends_with("nothing is known of this host; nothing is loaded now."), "{text}");
    }

    #[test]
    fn calls_that_nothing_interrupts_are_not_verified() {
        let fake = fake();
        fake.write("/state/never-interrupted", b"");
        let report = verified(&fake).unwrap();
        assert_eq!((report.verdict, report.tables.left_in_the_middle), (Verdict::Unfinished, 0));
        assert!(
            report.failures[0].contains("no call was seen to be left in the middle"),
            "{:?}",
            report.failures
        );
        assert!(fake.loaded().is_empty());
    }

    #[test]
    fn what_a_signal_cuts_short_is_not_finished_and_all_is_unloaded_with_patience() {
        // In the record, with the payload, and in the first turn's load.
        for at in [1, 3, 5] {
            let fake = fake();
            fake.kernel.borrow_mut().stop_from = Some(at);
            fake.kernel.borrow_mut().busy_removals = 3;
            let report = verified(&fake).unwrap();
            assert_eq!((report.verdict, report.stays), (Verdict::Unfinished, false), "{:?}", report.failures);
            assert!(report.failures[0].contains("a signal requested the end"), "{:?}", report.failures);
            assert!(fake.loaded().is_empty() && !fake.host().has_module(tables::MODULE));
        }
    }

    #[test]
    fn only_a_process_that_ends_badly_beside_the_payload_is_wrong() {
        let interrupted = || NotMeasured::Status(libc::SIGINT);
        for (not, turn, signal, verdict) in [
            (NotMeasured::Host("fork: no memory".into()), 2, false, Verdict::Unfinished),
            (NotMeasured::Status(libc::SIGSEGV), 1, false, Verdict::Unfinished),
            (NotMeasured::Status(libc::SIGSEGV), 2, false, Verdict::Wrong),
            (NotMeasured::Status(libc::SIGSEGV), 2, true, Verdict::Wrong),
            (interrupted(), 2, false, Verdict::Wrong),
            (interrupted(), 2, true, Verdict::Unfinished),
            (interrupted(), 1, true, Verdict::Unfinished),
        ] {
            let fake = fake();
            let (mut calls, mut not) = (0, Some(not));
            let kernel = std::rc::Rc::clone(&fake.kernel);
            let mut measure = || {
                calls += 1;
                if calls == turn {
                    kernel.borrow_mut().is_asked_to_stop = signal;
                    return Err(not.take().unwrap());
                }
                let times = vec![Duration::from_micros(100); 3];
                Ok(Times { fork: times.clone(), exec: times })
            };
            let task = Task { wanted: Wanted::default(), device: None, budget: Duration::ZERO, seed: 7 };
            let report = verify(&fake.host(), &task, &mut measure, &mut |_| {}).unwrap();
            assert_eq!(report.verdict, verdict, "{turn} {signal} {:?}", report.failures);
            let says_status = report.failures[0].contains("had status");
            assert!(!(says_status && signal && verdict == Verdict::Unfinished), "{:?}", report.failures);
            assert!(fake.loaded().is_empty());
        }
    }

    #[test]
    fn the_head_names_what_a_colleague_asks_for() {
        let fake = fake();
        fake.write("/proc/cpuinfo", b"processor\t: 0\nmodel name\t: A 100\x1b\n");
        let mut report = verified(&fake).unwrap();
        report.cpus = 1;
        report.stays = true;
        let text = text(&report);
        assert!(
            text.contains(", 1 CPU\n") && text.contains("A 100?; 20") && text.contains(" UTC\n"),
            "{text}"
        );
        assert!(text.contains("/updates/dkms/trapless_table_test.ko\n"), "{text}");
        assert!(text.contains("something stays: trapless pagetable unload"), "{text}");
    }

    /// The fake module's answers differ whatever the switches are; test_verify.py has the others.
    #[test]
    fn answers_that_cannot_be_compared_are_not_verified_and_what_was_loaded_goes() {
        let fake = fake();
        fake.write("/state/tables-differ", b"");
        let report = verified(&fake).unwrap();
        assert!(!report.verified && !report.tables.hold() && report.tables.dropped == 1);
        let text = text(&report);
        assert!(
            text.contains("no answers could be compared") && text.ends_with("Do not load it on this host.")
        );
        assert_eq!(report.turns, 0, "processes do not meet it");
        assert!(fake.loaded().is_empty() && !fake.host().has_module(tables::MODULE));
    }

    #[test]
    fn pages_that_stay_are_a_failure() {
        let fake = fake();
        fake.kernel.borrow_mut().kept = Some(3);
        let report = verified(&fake).unwrap();
        assert!(!report.verified && report.pool.kept == 3, "{:?}", report.failures);
    }

    #[test]
    fn a_part_that_does_not_load_is_a_failure() {
        let fake = fake();
        fake.kernel.borrow_mut().broken.insert("trapless_pvmmu", libc::EINVAL);
        let report = verified(&fake).unwrap();
        assert!(!report.verified && report.failures[0].contains("pvmmu"), "{:?}", report.failures);
        assert!(fake.loaded().is_empty());
    }

    #[test]
    fn what_stays_is_named() {
        let fake = fake();
        fake.kernel.borrow_mut().stuck.insert(tables::MODULE, libc::EBUSY);
        let report = verified(&fake).unwrap();
        assert!(report.failures.iter().any(|why| why.contains("stays")), "{:?}", report.failures);
    }

    #[test]
    fn a_host_that_is_not_stock_or_has_no_module_is_refused_unchanged() {
        let fake = Fake::dom0();
        let refusal = verified(&fake).unwrap_err().to_string();
        assert!(refusal.contains("nothing was changed") && refusal.contains(tables::MODULE), "{refusal}");
        let fake = self::fake();
        fake.write("/sys/module/trapless_pvmmu/refcnt", b"0\n");
        let refusal = verified(&fake).unwrap_err().to_string();
        assert!(refusal.contains("pvmmu is loaded"), "{refusal}");
        assert!(fake.kernel.borrow().done.is_empty());
        let refusal = verified(&Fake::domu()).unwrap_err().to_string();
        assert!(refusal.contains("verify is for dom0"), "{refusal}");
    }

    #[test]
    fn complaints_of_xen_are_a_failure() {
        let fake = fake();
        // What it said before is not ours.
        let xl = "#!/bin/sh\nstate=$(dirname \"$0\")/said\necho '(XEN) Xen WARN at old.c'; cat $state 2>/dev/null; echo '(XEN) Xen BUG at mm.c' >$state\n";
        let place = "/usr/lib/xen-4.17/bin/xl";
        fake.write(place, b"");
        crate::testing::program(&fake.path(place), xl);
        let report = verified(&fake).unwrap();
        assert!(!report.verified);
        assert_eq!(report.logs.xen, ["(XEN) Xen BUG at mm.c"]);
    }
}
