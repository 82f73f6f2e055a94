// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libdirty's trackers, held against all that its documentation promises.

use libdirty::{BackendKind, Dirty, Error, PageRange, Reason};

use crate::outcome::Stop;
use crate::tracker::{Record, Reported, State, Tracker};
use crate::workload::Target;

#[derive(Debug)]
struct Library {
    tracker: libdirty::Tracker,
    record: Record,
    dirty: Dirty,
}

/// Track process `pid` with this back end.
pub(super) fn open(kind: BackendKind, target: Target, pid: i32) -> Result<Box<dyn Tracker>, Stop> {
    let builder = libdirty::Tracker::builder().backend(kind);
    let tracker = match target {
        Target::Own => builder.own()?,
        Target::Other => builder.process(pid)?,
    };
    let record = tracker.capabilities().into();
    Ok(Box::new(Library { tracker, record, dirty: Dirty::new() }))
}

fn state_of(reason: Reason) -> State {
    match reason {
        Reason::Written => State::Written,
        reason if !reason.is_mapped() => State::Gone,
        reason if reason.is_zero() => State::Zero,
        _ => State::Doubtful,
    }
}

impl Library {
    fn found(&self) -> impl Iterator<Item = Reported> + '_ {
        self.dirty.extents().iter().map(|extent| Reported {
            range: extent.range,
            state: state_of(extent.reason),
            why: extent.reason.text(),
        })
    }
}

impl Tracker for Library {
    fn record(&self) -> &Record {
        &self.record
    }

    fn watch(&mut self, range: PageRange) -> Result<(), Stop> {
        Ok(self.tracker.watch(range)?)
    }

    fn unwatch(&mut self, range: PageRange) -> Result<(), Stop> {
        Ok(self.tracker.unwatch(range)?)
    }

    fn collect(&mut self, found: &mut Vec<Reported>, _wrong: &mut Vec<String>) -> Result<(), Stop> {
        self.tracker.collect(&mut self.dirty)?;
        found.extend(self.found());
        Ok(())
    }

    fn collect_range(
        &mut self,
        range: PageRange,
        found: &mut Vec<Reported>,
        _wrong: &mut Vec<String>,
    ) -> Result<(), Stop> {
        self.tracker.collect_range(range, &mut self.dirty)?;
        found.extend(self.found());
        Ok(())
    }

    fn peek_range(
        &mut self,
        range: PageRange,
        found: &mut Vec<Reported>,
        _wrong: &mut Vec<String>,
    ) -> Result<(), Stop> {
        self.tracker.peek_range(range, &mut self.dirty)?;
        found.extend(self.found());
        Ok(())
    }

    /// The end is reported once, for everything, and nothing after it.
    fn check_ended(&mut self, ranges: &[PageRange], reason: Reason) -> Result<(), Stop> {
        self.tracker.collect(&mut self.dirty)?;
        let reported = self.dirty.extents().iter().map(|extent| (extent.range, extent.reason));
        if !reported.eq(ranges.iter().map(|range| (*range, reason))) {
            let extents = self.dirty.extents();
            return Err(Stop::fail(format!("instead of {ranges:?} with {reason:?}: {extents:?}")));
        }
        match self.tracker.collect(&mut self.dirty) {
            Err(Error::Gone(_)) => Ok(()),
            other => Err(Stop::fail(format!("a collect after {reason:?} should fail: {other:?}"))),
        }
    }

    /// It refuses every call.
    fn check_forked(&mut self) -> Result<(), Stop> {
        match self.tracker.collect(&mut self.dirty) {
            Err(Error::Forked(_)) => Ok(()),
            other => Err(Stop::fail(format!("the tracker of the parent did not refuse: {other:?}"))),
        }
    }
}
