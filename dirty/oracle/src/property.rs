// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Searches for a sequence that a back end gets wrong, and shrinks it.
//!
//! Each case runs in a process of its own: a crash shrinks like any other failure.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::judge::Setup;
use crate::op::Backing;
use crate::outcome::Verdict;
use crate::run::{Order, What};
use crate::sequence::{Access, BEGINNING, Sequence, Span, Step, WINDOW};

/// How a search ended.
#[derive(Debug)]
pub enum Search {
    /// Every case was good.
    Passed,
    /// The smallest sequence found that is not, and what came of it.
    Found(Sequence, Verdict),
    /// The back end does not work here.
    Skipped(String),
}

const CASE_LIMIT: Duration = Duration::from_secs(60);

/// Try `cases` sequences, each run by `program`; those of this seed, if there is one.
///
/// # Errors
/// When the search itself does not work.
pub fn search(
    program: &Path,
    setup: &Setup,
    cases: u32,
    max_shrink_iters: u32,
    seed: Option<u64>,
) -> Result<Search, String> {
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let last = RefCell::new(None);
    let mut runner = match seed {
        None => TestRunner::new(config),
        Some(seed) => {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
        }
    };
    let found = runner.run(&sequences(), |sequence| {
        let verdict = Order::new(setup.clone(), What::Sequence(sequence)).spawn(program, CASE_LIMIT);
        let verdict = verdict.map_err(|error| TestCaseError::reject(error.to_string()))?;
        match &verdict {
            Verdict::Skipped(_) => {
                *last.borrow_mut() = Some(verdict);
                Ok(())
            }
            verdict if verdict.is_good() => Ok(()),
            _ => {
                *last.borrow_mut() = Some(verdict);
                Err(TestCaseError::fail("missed"))
            }
        }
    });
    match (found, last.into_inner()) {
        (Ok(()), Some(Verdict::Skipped(why))) => Ok(Search::Skipped(why)),
        (Ok(()), _) => Ok(Search::Passed),
        (Err(TestError::Fail(_, sequence)), Some(verdict)) => {
            // The last failure seen need not be that of the smallest sequence.
            let again =
                Order::new(setup.clone(), What::Sequence(sequence.clone())).spawn(program, CASE_LIMIT);
            Ok(Search::Found(sequence, again.ok().filter(|again| !again.is_good()).unwrap_or(verdict)))
        }
        (Err(error), _) => Err(error.to_string()),
    }
}

/// Any program.
pub fn sequences() -> impl Strategy<Value = Sequence> {
    vec(step(), 1..40).prop_map(Sequence)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => span().prop_map(Step::Write),
        2 => (0..WINDOW - 1).prop_map(Step::Straddle),
        2 => span().prop_map(Step::Read),
        2 => span().prop_map(Step::KernelWrite),
        4 => span().prop_map(Step::Discard),
        2 => span().prop_map(Step::Unmap),
        3 => (span(), backing()).prop_map(|(span, backing)| Step::Map(span, backing)),
        2 => (span(), 0..WINDOW).prop_map(|(span, to)| Step::Move(span, to)),
        3 => (span(), access()).prop_map(|(span, access)| Step::Protect(span, access)),
        2 => span().prop_map(Step::Fork),
        1 => Just(Step::EndFork),
        2 => span().prop_map(Step::Watch),
        2 => span().prop_map(Step::Unwatch),
        6 => Just(Step::Collect),
        4 => span().prop_map(Step::CollectRange),
        2 => span().prop_map(Step::Peek),
    ]
}

/// A few pages, one side of the border, all of the beginning.
fn span() -> impl Strategy<Value = Span> {
    let any = (0..WINDOW, 1..WINDOW).prop_map(|(page, count)| Span { page, count: count.min(WINDOW - page) });
    let few = (0..WINDOW - 4, 1..5_usize).prop_map(|(page, count)| Span { page, count });
    let half = BEGINNING / 2;
    prop_oneof![
        6 => few,
        2 => any,
        1 => Just(Span { page: 0, count: half }),
        1 => Just(Span { page: half, count: half }),
        1 => Just(Span { page: 0, count: BEGINNING }),
    ]
}

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![4 => Just(Backing::Anonymous), 1 => Just(Backing::Shared), 1 => Just(Backing::PrivateFile)]
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![1 => Just(Access::Nothing), 2 => Just(Access::Read), 3 => Just(Access::Write)]
}
