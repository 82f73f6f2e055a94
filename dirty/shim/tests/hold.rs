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
    elif word == "fail":
        sys.exit(1)
    elif word == "die":
        os.kill(os.getpid(), 9)
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
    // A dump goes on; the next is a full one.
    let unheard = reader(&path, &writer, &["clear"]);
    assert!(unheard.status.success() && text(&unheard).contains("will read dirty"), "{}", text(&unheard));
    all(&reader(&path, &writer, &["read"]), "the holder does not answer");
    let _next = Service::start_at(path.clone());
    all(&reader(&path, &writer, &["read"]), "is not tracked");
}

/// What a program cleared that failed is dirty: it may not have saved what was dirty before it cleared.
#[test]
fn what_a_failed_run_cleared_is_dirty() {
    if !can_track() {
        return;
    }
    let service = Service::start();
    let writer = Writer::start();
    for last in ["fail", "die"] {
        assert!(reader(&service.path, &writer, &["clear"]).status.success());
        let clean = reader(&service.path, &writer, &["read"]);
        assert_eq!(String::from_utf8_lossy(&clean.stdout).lines().count(), 0, "{}", text(&clean));
        assert!(!reader(&service.path, &writer, &["clear", last]).status.success());
        // The holder sees the end of the connection in its own time.
        let since = std::time::Instant::now();
        loop {
            let next = reader(&service.path, &writer, &["read"]);
            if String::from_utf8_lossy(&next.stdout).lines().count() == 2000 {
                break;
            }
            assert!(since.elapsed().as_secs() < 60, "{last}: {}", text(&next));
        }
    }
}

/// One opening of a pagemap, one question: "stopped" is what a checkpointer promises.
#[test]
fn one_answer_serves_for_a_stopped_process() {
    if !can_track() {
        return;
    }
    let service = Service::start();
    let mut writer = Writer::start();
    let ask = |writer: &Writer, words: &[&str]| {
        let mut reader = command("/usr/bin/python3", Shim::Present);
        reader.args(["-c", READER]).args([
            writer.child.id().to_string(),
            writer.range.start().to_string(),
            writer.range.pages().to_string(),
        ]);
        reader
            .args(words)
            .env("TRAPLESS_DIRTY_HOLD", &service.path)
            .env("LIBDIRTY_SOFTDIRTY", "force,stopped");
        run(reader)
    };
    assert!(ask(&writer, &["clear"]).status.success());
    let mut image = Image::new(writer.child.id() as i32, writer.range);
    for round in 0..10 {
        writer.write(round);
        // Each opening asks anew: the second finds nothing after the clear.
        let told = ask(&writer, &["seize", "read", "clear", "read"]);
        let pages = image.update(&written(&told, &writer));
        assert!((45..=56).contains(&pages), "{pages} pages: {}", text(&told));
        image.check_but_zeros();
    }
}

/// Of a program's own memory nothing is known with "others", nothing clean, and nothing is tracked for it.
#[test]
fn the_own_memory_of_a_checkpointer_is_dirty() {
    const PROBE: &str = r#"
import ctypes, mmap, os, struct
memory = mmap.mmap(-1, mmap.PAGESIZE)
for _ in range(2):
    memory[0] = 1
    with open("/proc/self/clear_refs", "wb", buffering=0) as refs:
        refs.write(b"4\0")
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        entry, = struct.unpack("Q", pagemap.read(8))
    print(entry >> 55 & 1)
with os.scandir("/proc/self/fd") as entries:
    print(sum("userfaultfd" in os.readlink(entry.path) for entry in entries))
"#;
    let mut probe = command("/usr/bin/python3", Shim::Present);
    probe.args(["-c", PROBE]).env("LIBDIRTY_SOFTDIRTY", "force,others");
    let output = run(probe);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n1\n0\n", "{}", text(&output));
}

/// What criu learns of the kernel by the shim must not be there for a criu without it, nor the other way round.
#[test]
fn the_file_that_criu_keeps_is_not_there() {
    const PROBE: &str = r#"
import os, sys
folder = sys.argv[1]
for name in ["criu.kdat.tmp", ".criu.kdat"]:
    try:
        os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        print("made", name)
    except FileNotFoundError:
        pass
    assert not os.path.exists(f"{folder}/{name}")
try:
    os.open(f"{folder}/criu.kdat", os.O_RDONLY)
    print("read")
except FileNotFoundError:
    pass
os.open(f"{folder}/other", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
print(os.listdir(folder) and sorted(os.listdir(folder)))
"#;
    let folder = std::path::PathBuf::from(format!("/dev/shm/trapless-kdat-{}", std::process::id()));
    for shim in [Shim::Present, Shim::Absent] {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("criu.kdat"), "of an earlier run").unwrap();
        std::fs::set_permissions(
            folder.join("criu.kdat"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        let mut probe = command("/usr/bin/python3", shim);
        probe.args(["-c", PROBE]).arg(&folder);
        let output = run(probe);
        std::fs::remove_dir_all(&folder).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        match shim {
            Shim::Present => assert_eq!(said, "['criu.kdat', 'other']\n", "{}", text(&output)),
            Shim::Absent => assert!(said.starts_with("made criu.kdat.tmp"), "the control: {}", text(&output)),
        }
    }
}
