// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages of private memory had content of their own at the last collect, and which of them changed without a
//! fault since: content that is gone (discarded), that came unseen, or that is not knowable.
//!
//! `PAGEMAP_SCAN` takes the kernel's huge page of zeros for content, the entries do not. So pages that seem to have
//! come unseen are looked at once more, entry by entry.

use std::io;

use crate::backend::Part;
use crate::bitmap::Bitmap;
use crate::content::{Content, Contents};
use crate::extent::{PageRange, page_size};
use crate::target::Target;

/// What was there.
#[derive(Debug)]
pub(super) struct History {
    own: Bitmap,
    /// Pages that had no content and seem to have some.
    fresh: Vec<PageRange>,
}

impl History {
    /// Nothing had content.
    pub(super) fn new(range: PageRange) -> io::Result<Self> {
        Ok(History { own: Bitmap::new(range)?, fresh: Vec::new() })
    }

    /// Pages of which the caller learns that they were written.
    pub(super) fn enter(&self, run: PageRange) {
        self.own.fill(run, true);
    }

    /// Enter which pages of `part` have content now.
    pub(super) fn begin(&self, target: &Target, contents: &mut Contents, part: &Part) -> io::Result<()> {
        contents.runs(target, part.range, part.memory, |run, _| self.enter(run))
    }

    /// The same, and `changed` gets the pages that changed without a fault.
    pub(super) fn update(
        &mut self,
        target: &Target,
        contents: &mut Contents,
        part: &Part,
        mut changed: impl FnMut(PageRange),
    ) -> io::Result<()> {
        let (own, fresh) = (&self.own, &mut self.fresh);
        fresh.clear();
        let mut gone = |start, end| {
            if start < end {
                for piece in own.set_within(PageRange::trusted(start, end)) {
                    own.runs(piece, true).for_each(&mut changed);
                    own.fill(piece, false);
                }
            }
        };
        let mut at = part.range.start();
        let mut unknown = Vec::new();
        contents.runs(target, part.range, part.memory, |run, content| {
            gone(at, run.start());
            match content {
                Content::Unknown => unknown.push(run),
                _ => fresh.extend(own.runs(run, false)),
            }
            own.fill(run, true);
            at = run.end();
        })?;
        gone(at, part.range.end());
        unknown.into_iter().for_each(&mut changed);
        for run in std::mem::take(fresh) {
            for chunk in run.split(Contents::CHUNK) {
                contents.read(target, chunk)?;
                for (index, start) in (chunk.start()..chunk.end()).step_by(page_size()).enumerate() {
                    let page = PageRange::trusted(start, start + page_size());
                    match contents.page(index) {
                        Content::Behind => own.fill(page, false),
                        _ => changed(page),
                    }
                }
            }
        }
        Ok(())
    }
}
