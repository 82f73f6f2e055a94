// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that read soft-dirty bits of another process, run after run, with a holder between the runs: what they are
//! told is held against the memory of the process.

mod common;
#[path = "../../hold/tests/common/mod.rs"]
mod held;

use std::path::Path;
use std::process::Output;

use common::{Shim, can_track, command, compile, run, text};
use held::{Image, Service, Writer};
use libdirty::{PageRange, page_size};
use libdirty_hold::client::Written;
use libdirty_hold::protocol::{Extent, Mark};

/// Does what its words say, as a checkpointer would; prints the pages that read soft-dirty.
const READER: &str = r#"
import ctypes, os, struct, sys
pid, start, count = (int(word) for word in sys.argv[1:4])
libc = ctypes.CDLL(None, use_errno=True)
for word in sys.argv[4:]:
    if word == "clear":
        fd = os.open(f"/proc/{pid}/clear_refs", os.O_WRONLY)
        os.write(fd, b"4")
        os.close(fd)
    elif word == "seize":
        assert libc.ptrace(0x4206, pid, None, None) == 0
        assert libc.ptrace(0x4207, pid, None, None) == 0
        os.waitpid(pid, 0x40000000)
    elif word == "read":
        fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
        # In pieces, like a checkpointer that goes from mapping to mapping.
        for first in range(0, count, 300):
            data = os.pread(fd, 8 * min(300, count - first), (start // os.sysconf("SC_PAGESIZE") + first) * 8)
            for index, (entry,) in enumerate(struct.iter_unpack("<Q", data)):
                assert not entry & 1 << 57, "the mark of the tracker"
                if entry & 1 << 55:
                    print(first + index)
        os.close(fd)
"#;

fn reader(socket: &Path, writer: &Writer, words: &[&str]) -> Output {
    let mut reader = command("/usr/bin/python3", Shim::Present);
    reader.args(["-c", READER]).args([
        writer.child.id().to_string(),
        writer.range.start().to_string(),
        writer.range.pages().to_string(),
    ]);
    reader.args(words).env("TRAPLESS_DIRTY_HOLD", socket);
    run(reader)
}

/// The pages that it printed, as an answer of the holder.
fn written(output: &Output, writer: &Writer) -> Written {
    assert!(output.status.success(), "{}", text(output));
    let pages = String::from_utf8_lossy(&output.stdout);
    let extents = pages.lines().map(|page| {
        let at = writer.range.start() + page.parse::<usize>().unwrap() * page_size();
        Extent { range: PageRange::from_length(at, page_size()).unwrap(), reason: 0 }
    });
    Written { process: writer.process(), mark: Mark { epoch: 0, round: 0 }, pages: Ok(extents.collect()) }
}

/// Each run of a program that reads and clears finds what was written since the last run, and no more.
fn follow(before: &[&str], words: &[&str]) {
    if !can_track() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let first = reader(&service.path, &writer, before);
    assert!(first.status.success(), "{}", text(&first));
    let mut image = Image::new(writer.child.id() as i32, writer.range);
    for round in 0..20 {
        writer.write(round);
        let told = reader(&service.path, &writer, words);
        // What was given back is zeros, and reads as empty: not dirty, and not there.
        let pages = image.update(&written(&told, &writer));
        assert!((45..=56).contains(&pages), "{pages} pages: {}", text(&told));
        image.check_but_zeros();
    }
}

#[test]
fn what_one_run_cleared_the_next_run_knows() {
    follow(&["clear"], &["read", "clear"]);
}

/// CRIU holds the process while it reads and clears; so the holder has to be asked before that.
#[test]
fn a_process_that_is_traced_by_the_reader() {
    follow(&["seize", "clear"], &["seize", "read", "clear"]);
}

#[test]
fn every_page_exactly() {
    if !can_track() {
        return;
    }
    let service = Service::start();
    let mut client = command(compile("client", &[]), Shim::Present);
    client.arg("other").env("TRAPLESS_DIRTY_HOLD", &service.path);
    let output = run(client);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!text(&output).contains("is tracked by"), "by the holder: {}", text(&output));
}

#[test]
fn without_a_holder_all_is_dirty_and_it_is_said() {
    if !can_track() {
        return;
    }
    let service = Service::start();
    let path = service.path.clone();
    let writer = Writer::start();
    assert!(reader(&path, &writer, &["clear"]).status.success());
    drop(service);
    let all = |output: &Output, why: &str| {
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2000, "{}", text(output));
        assert!(text(output).contains("reads dirty: ") && text(output).contains(why), "{}", text(output));
    };
    all(&reader(&path, &writer, &["read"]), "the holder does not answer");
    let refused = reader(&path, &writer, &["clear"]);
    assert!(!refused.status.success() && text(&refused).contains("cannot be cleared"), "{}", text(&refused));
    let _next = Service::start_at(path.clone());
    all(&reader(&path, &writer, &["read"]), "is not tracked");
}
