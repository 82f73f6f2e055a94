// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of steps by which no write is lost. Two parties change a page's protection and its bit, which means
//! *written*:
//!
//! - the fault handler of a writer **removes the protection, then sets the bit**; the write follows;
//! - a collect **takes the bit, then protects**.
//!
//! So after each removal the bit is set, and after each taking the page is protected. However the two interleave, a
//! page that stays unprotected has its bit set, or a handler is about to set it, and the next collect reports it. The
//! worst case is a bit on a page that is protected again: the page is reported once more. (Its writer faults again,
//! too: the handler always removes the protection, whatever the bit says.)
//!
//! The other order loses writes. If the handler set the bit first, a collect could take the bit and protect the page
//! before the handler unprotects it: then there is no bit, and no further fault. If a collect protected first, a
//! handler could remove the protection and set the bit before the collect takes that bit.
//! The model below tries every interleaving; run it with `RUSTFLAGS="--cfg loom" cargo test --lib order`.

/// What the handler does. Returns whether the protection was lifted; if not, the page keeps its bit.
pub(super) fn fault(lift: impl FnOnce() -> bool, mark: impl FnOnce()) -> bool {
    if !lift() {
        return false;
    }
    mark();
    true
}

/// What a collect does: returns what was taken.
pub(super) fn harvest<T: Copy, E>(
    take: impl FnOnce() -> T,
    protect: impl FnOnce(T) -> Result<(), E>,
) -> (T, Result<(), E>) {
    let taken = take();
    (taken, protect(taken))
}

#[cfg(all(test, loom))]
mod model {
    use std::convert::Infallible;

    use loom::sync::Arc;
    use loom::sync::Mutex;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    /// One page. The mutex is the kernel's lock of the address space: a store and a change of protection
    /// do not overlap.
    struct Page {
        memory: Mutex<Memory>,
        written: AtomicBool,
    }

    struct Memory {
        is_protected: bool,
        content: u32,
    }

    impl Page {
        fn new() -> Arc<Self> {
            Arc::new(Page {
                memory: Mutex::new(Memory { is_protected: true, content: 0 }),
                written: AtomicBool::new(false),
            })
        }

        fn protect(&self, is_protected: bool) {
            self.memory.lock().unwrap().is_protected = is_protected;
        }

        /// A store instruction: done, or it faults.
        fn try_store(&self, value: u32) -> bool {
            let mut memory = self.memory.lock().unwrap();
            if !memory.is_protected {
                memory.content = value;
            }
            !memory.is_protected
        }

        fn write(&self, value: u32, handler: fn(&Page)) {
            while !self.try_store(value) {
                handler(self);
            }
        }

        fn content(&self) -> u32 {
            self.memory.lock().unwrap().content
        }
    }

    /// As `Bitmap::put` does.
    fn mark(page: &Page) {
        page.written.swap(true, Ordering::Release);
    }

    fn handler(page: &Page) {
        super::fault(
            || {
                page.protect(false);
                true
            },
            || mark(page),
        );
    }

    fn collect(page: &Page) -> bool {
        let take = || page.written.swap(false, Ordering::Acquire);
        let protect = |taken| {
            if taken {
                page.protect(true);
            }
            Ok::<(), Infallible>(())
        };
        super::harvest(take, protect).0
    }

    /// Two writes race with a collect; two collects later the copy must be what the memory is.
    fn check(handler: fn(&Page), collect: fn(&Page) -> bool) {
        loom::model(move || {
            let page = Page::new();
            let writer = thread::spawn({
                let page = page.clone();
                move || {
                    page.write(1, handler);
                    page.write(2, handler);
                }
            });
            let mut copy = 0;
            if collect(&page) {
                copy = page.content();
            }
            writer.join().unwrap();
            if collect(&page) {
                copy = page.content();
            }
            assert_eq!(copy, page.content(), "a write was lost");
            page.write(3, handler);
            if collect(&page) {
                copy = page.content();
            }
            assert_eq!(copy, 3, "a later write was lost");
        });
    }

    #[test]
    fn nothing_is_lost() {
        check(handler, collect);
    }

    #[test]
    #[should_panic(expected = "was lost")]
    fn a_handler_that_marks_first_loses_writes() {
        fn wrong(page: &Page) {
            mark(page);
            page.protect(false);
        }
        check(wrong, collect);
    }

    #[test]
    #[should_panic(expected = "was lost")]
    fn a_collect_that_protects_first_loses_writes() {
        fn wrong(page: &Page) -> bool {
            page.protect(true);
            page.written.swap(false, Ordering::Acquire)
        }
        check(handler, wrong);
    }
}
