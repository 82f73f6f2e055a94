// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk: a file of the host, whole sectors.
//!
//! A request is done when the guest's notification returns, so requests are never in flight: what the guest was told
//! is written is in the host's page cache, and on the host's disk after a flush. A driver that does not know flushes
//! gets each write flushed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use libc::iovec;

use super::mmio::Device;
use super::queue::{Broken, Chain, Queue, SIZE_MAX, length, split};
use super::ram::{Ram, Segment};
use crate::log::Log;

const SECTOR: u64 = 512;

pub(super) const F_SEG_MAX: u64 = 1 << 2;
pub(super) const F_RO: u64 = 1 << 5;
pub(super) const F_FLUSH: u64 = 1 << 9;

pub(super) const T_IN: u32 = 0;
pub(super) const T_OUT: u32 = 1;
pub(super) const T_FLUSH: u32 = 4;
pub(super) const T_GET_ID: u32 = 8;

/// The answers to a request.
pub(super) const S_OK: u8 = 0;
pub(super) const S_IOERR: u8 = 1;
pub(super) const S_UNSUPP: u8 = 2;

/// struct virtio_blk_outhdr: type, priority, sector.
pub(super) const HEADER: usize = 16;
pub(super) const SERIAL: [u8; 20] = *b"trapless\0\0\0\0\0\0\0\0\0\0\0\0";
/// struct virtio_blk_config up to seg_max: capacity, size_max, seg_max.
pub(super) const CONFIGURATION: usize = 16;

/// Which file, and whether the guest may write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// On the host.
    pub path: PathBuf,
    /// The guest cannot write it; several may have it.
    pub read_only: bool,
}

/// The disk.
pub struct Disk {
    file: File,
    sectors: u64,
    read_only: bool,
    flushes: bool,
    log: Log,
    configuration: [u8; CONFIGURATION],
}

impl Disk {
    /// Open an image, and keep other VMMs from it.
    ///
    /// # Errors
    /// It cannot be a disk; the message says why.
    pub fn open(image: &Image) -> Result<Self> {
        let shown = image.path.display();
        Self::try_open(image).with_context(|| format!("cannot use {shown} as a disk"))
    }

    fn try_open(image: &Image) -> Result<Self> {
        let meta = image.path.metadata()?;
        // Opening anything else could wait or have an effect.
        ensure!(meta.is_file(), "it is not a regular file");
        let file = OpenOptions::new().read(true).write(!image.read_only).open(&image.path);
        let file = file.map_err(|error| {
            let denied = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
            let hint = match denied.contains(&error.kind()) && !image.read_only {
                true => "it cannot be written; with ,readonly behind its name it is not",
                false => "it cannot be opened",
            };
            anyhow::Error::new(error).context(hint)
        })?;
        let size = file.metadata()?.len();
        ensure!(size != 0, "it is empty");
        ensure!(size.is_multiple_of(SECTOR), "its {size} bytes are not whole sectors of {SECTOR}");
        let how = if image.read_only { libc::LOCK_SH } else { libc::LOCK_EX };
        // SAFETY: the descriptor is open, and nothing else is passed.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } < 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => {
                    bail!("another program has locked it; does another guest run from it?")
                }
                _ => return Err(error).context("it cannot be locked"),
            }
        }
        let sectors = size / SECTOR;
        let mut configuration = [0; CONFIGURATION];
        configuration[..8].copy_from_slice(&sectors.to_le_bytes());
        // Without the header and the status.
        configuration[12..].copy_from_slice(&(u32::from(SIZE_MAX) - 2).to_le_bytes());
        Ok(Self {
            file,
            sectors,
            read_only: image.read_only,
            flushes: false,
            log: Log::default(),
            configuration,
        })
    }

    /// Do a request; returns how many bytes the device has written.
    fn request(&self, chain: &Chain, ram: &Ram) -> Result<u32, Broken> {
        let (header, sent) = chain.request(HEADER)?;
        let (room, status) = chain.answer(1)?;
        let mut bytes = [0; HEADER];
        ram.copy_from(&header, &mut bytes);
        let [a, b, c, d, _, _, _, _, sector @ ..] = bytes;
        let sector = u64::from_le_bytes(sector);
        let answer = match u32::from_le_bytes([a, b, c, d]) {
            T_IN => self.transfer(sector, &room, ram, libc::preadv64),
            T_OUT if self.read_only => S_IOERR,
            T_OUT => match self.transfer(sector, &sent, ram, libc::pwritev64) {
                S_OK if !self.flushes => self.flush(),
                answer => answer,
            },
            T_FLUSH => self.flush(),
            T_GET_ID => {
                ram.copy_to(&room, &SERIAL);
                S_OK
            }
            _ => S_UNSUPP,
        };
        ram.copy_to(&status, &[answer]);
        // The status is behind all of the room.
        u32::try_from(length(&room) + 1).map_err(|_| Broken::Endless)
    }

    fn flush(&self) -> u8 {
        self.answer("flush", self.file.sync_data())
    }

    /// The answer to a request, and a message about what the host could not do.
    fn answer(&self, what: &str, result: io::Result<()>) -> u8 {
        match result {
            Ok(()) => S_OK,
            Err(error) => {
                self.log.print(format_args!("cannot {what} the disk's image: {error}"));
                S_IOERR
            }
        }
    }

    /// Copy between sectors and segments with this system call.
    fn transfer(&self, sector: u64, segments: &[Segment], ram: &Ram, call: Vectored) -> u8 {
        let bytes = length(segments) as u64;
        let end = (bytes / SECTOR).checked_add(sector);
        if !bytes.is_multiple_of(SECTOR) || end.is_none_or(|end| end > self.sectors) {
            return S_IOERR;
        }
        let mut left = segments.to_vec();
        let mut offset = sector * SECTOR;
        while !left.is_empty() {
            match self.copy(&left, offset, ram, call) {
                // The file has become shorter.
                Ok(0) => return self.answer("use", Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(copied) => {
                    offset += copied as u64;
                    left = split(&left, copied).map_or_else(Vec::new, |(_, rest)| rest);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.answer("use", Err(error)),
            }
        }
        S_OK
    }

    fn copy(&self, segments: &[Segment], offset: u64, ram: &Ram, call: Vectored) -> io::Result<usize> {
        let vectors: Vec<iovec> = segments.iter().map(|&segment| ram.iovec(segment)).collect();
        let offset = offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: segments are the guest's memory, which is mapped while `ram` lives and is never borrowed; there are
        // at most as many as a chain has descriptors.
        let copied = unsafe { call(self.file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, offset) };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }
}

type Vectored = unsafe extern "C" fn(i32, *const iovec, i32, libc::off64_t) -> isize;

impl Device for Disk {
    const ID: u32 = 2;
    const QUEUES: usize = 1;
    const NAME: &str = "disk";

    fn features(&self) -> u64 {
        F_SEG_MAX | F_FLUSH | if self.read_only { F_RO } else { 0 }
    }

    fn accept(&mut self, features: u64) {
        self.flushes = features & F_FLUSH != 0;
    }

    fn configuration(&self) -> &[u8] {
        &self.configuration
    }

    fn notified(&mut self, _number: usize, queue: &mut Queue, ram: &Ram) -> Result<bool, Broken> {
        let mut some = false;
        // At most once around, so that a guest that goes on giving does not keep its vCPU here.
        for _ in 0..queue.size {
            let Some(chain) = queue.peek(ram)? else { break };
            let written = self.request(&chain, ram)?;
            queue.advance();
            queue.give_back(ram, chain.head, written)?;
            some = true;
        }
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::driver::{self, BUFFERS, get, give, last_used, put, ram};
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    const SIZE: usize = 0x1_0000;
    const SECTORS: usize = 8;
    const DATA: u64 = BUFFERS + 0x100;
    const STATUS: u64 = BUFFERS + 0x80;

    struct Bench {
        directory: TempDir,
        disk: Disk,
        ram: Ram,
        queue: Queue,
    }

    fn content() -> Vec<u8> {
        (0..SECTORS * SECTOR as usize).map(|at| (at / 7) as u8).collect()
    }

    fn image(directory: &TempDir, read_only: bool) -> Image {
        Image { path: directory.path().join("image"), read_only }
    }

    fn bench(read_only: bool) -> Bench {
        let directory = TempDir::new().unwrap();
        let image = image(&directory, read_only);
        fs::write(&image.path, content()).unwrap();
        let disk = Disk::open(&image).unwrap();
        Bench { directory, disk, ram: ram(SIZE), queue: driver::queue(8) }
    }

    impl Bench {
        /// The status of a request, and how much was written.
        fn request(&mut self, kind: u32, sector: u64, data: &[(u64, u32, bool)]) -> (u8, u32) {
            let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
            put(&self.ram, BUFFERS, &header);
            put(&self.ram, STATUS, &[0xff]);
            let all = [&[(BUFFERS, 16, false)], data, &[(STATUS, 1, true)]].concat();
            give(&self.ram, &self.queue, &all);
            assert_eq!(self.disk.notified(0, &mut self.queue, &self.ram), Ok(true));
            (get(&self.ram, STATUS, 1)[0], last_used(&self.ram, &self.queue).2)
        }

        fn file(&self) -> Vec<u8> {
            fs::read(self.directory.path().join("image")).unwrap()
        }
    }

    #[test]
    fn sectors_are_read_and_written() {
        let mut bench = bench(false);
        let parts = [(DATA, 100, true), (DATA + 0x1000, 924, true)];
        assert_eq!(bench.request(T_IN, 3, &parts), (S_OK, 1025));
        let read = [get(&bench.ram, DATA, 100), get(&bench.ram, DATA + 0x1000, 924)].concat();
        assert_eq!(read, content()[3 * 512..5 * 512]);
        put(&bench.ram, DATA, &[0x5a; 512]);
        assert_eq!(bench.request(T_OUT, 7, &[(DATA, 512, false)]), (S_OK, 1));
        let mut expected = content();
        expected[7 * 512..].fill(0x5a);
        assert_eq!(bench.file(), expected);
        assert_eq!(bench.request(T_FLUSH, 0, &[]), (S_OK, 1));
        assert_eq!(bench.request(T_GET_ID, 0, &[(DATA, 20, true)]), (S_OK, 21));
        assert_eq!(get(&bench.ram, DATA, 20), SERIAL);
        assert_eq!(bench.request(99, 0, &[]), (S_UNSUPP, 1));
    }

    #[test]
    fn nothing_beyond_the_disk_is_touched() {
        let mut bench = bench(false);
        for sector in [8, 7, u64::MAX, u64::MAX / 512, 1 << 63] {
            assert_eq!(bench.request(T_OUT, sector, &[(DATA, 1024, false)]).0, S_IOERR, "{sector}");
            assert_eq!(bench.request(T_IN, sector, &[(DATA, 1024, true)]).0, S_IOERR, "{sector}");
        }
        assert_eq!(bench.request(T_OUT, 0, &[(DATA, 511, false)]).0, S_IOERR);
        assert_eq!(bench.file(), content());
        // An image that was cut meanwhile.
        fs::write(bench.directory.path().join("image"), [1; 512]).unwrap();
        assert_eq!(bench.request(T_IN, 0, &[(DATA, 1024, true)]).0, S_IOERR);
    }

    #[test]
    fn a_read_only_disk_is_not_written() {
        let mut bench = bench(true);
        assert_ne!(bench.disk.features() & F_RO, 0);
        assert_eq!(bench.request(T_OUT, 0, &[(DATA, 512, false)]).0, S_IOERR);
        assert_eq!(bench.request(T_IN, 0, &[(DATA, 512, true)]).0, S_OK);
        assert_eq!(bench.file(), content());
    }

    #[test]
    fn requests_without_room_for_an_answer_break_the_device() {
        let mut bench = bench(false);
        for buffers in
            [&[(BUFFERS, 16, false)][..], &[(BUFFERS, 15, false), (STATUS, 1, true)], &[(STATUS, 1, true)]]
        {
            give(&bench.ram, &bench.queue, buffers);
            let done = bench.disk.notified(0, &mut bench.queue, &bench.ram);
            assert_eq!(done, Err(Broken::Malformed));
            bench.queue = driver::queue(8);
            bench.ram = ram(SIZE);
        }
    }

    #[test]
    fn what_cannot_be_a_disk_is_refused() {
        let directory = TempDir::new().unwrap();
        let image = image(&directory, false);
        let refused = |image: &Image| format!("{:#}", Disk::open(image).err().unwrap());
        let said = refused(&image);
        assert!(said.contains("as a disk: No such file"), "{said}");
        for (bytes, why) in [(0, "empty"), (513, "not whole sectors of 512"), (511, "511 bytes")] {
            fs::write(&image.path, vec![0; bytes]).unwrap();
            let said = refused(&image);
            assert!(said.contains(why), "{said}");
        }
        let folder = Image { path: directory.path().into(), read_only: true };
        assert!(refused(&folder).contains("not a regular file"));
        let device = Image { path: "/dev/null".into(), read_only: false };
        assert!(refused(&device).contains("not a regular file"));

        fs::write(&image.path, [0; 512]).unwrap();
        fs::set_permissions(&image.path, fs::Permissions::from_mode(0o444)).unwrap();
        // Root may write it all the same.
        if OpenOptions::new().write(true).open(&image.path).is_err() {
            assert!(refused(&image).contains(",readonly"));
        }
    }

    #[test]
    fn two_guests_do_not_write_one_image() {
        let bench = bench(false);
        for read_only in [false, true] {
            let said = format!("{:#}", Disk::open(&image(&bench.directory, read_only)).err().unwrap());
            assert!(said.contains("another guest"), "{said}");
        }
        let Bench { directory, disk, .. } = bench;
        drop(disk);
        let shared = image(&directory, true);
        let both = (Disk::open(&shared).unwrap(), Disk::open(&shared).unwrap());
        assert!(Disk::open(&image(&directory, false)).is_err());
        drop(both);
        assert!(Disk::open(&image(&directory, false)).is_ok());
    }

    proptest! {
        /// Requests of any kind, cut in any way: the file keeps its size, and changes only where the request says.
        #[test]
        fn any_request_gets_an_answer(
            kind in prop_oneof![0u32..9, any::<u32>()],
            sector in prop_oneof![0u64..10, any::<u64>()],
            out in prop::collection::vec((BUFFERS..SIZE as u64 - 2048, prop_oneof![Just(512u32), 0u32..2048]), 0..3),
            room in prop::collection::vec((BUFFERS..SIZE as u64 - 2048, prop_oneof![Just(512u32), 0u32..2048]), 0..3),
        ) {
            let mut bench = bench(false);
            let read = out.iter().map(|&(address, length)| (address, length, false));
            let written = room.iter().map(|&(address, length)| (address, length, true));
            let buffers: Vec<_> = read.chain(written).collect();
            let sent: u32 = out.iter().map(|buffer| buffer.1).sum();
            let (_, length) = bench.request(kind, sector, &buffers);
            prop_assert_eq!(length, room.iter().map(|buffer| buffer.1).sum::<u32>() + 1);
            let file = bench.file();
            prop_assert_eq!(file.len(), content().len());
            let fits = sent.is_multiple_of(512) && sector.saturating_add(u64::from(sent) / 512) <= SECTORS as u64;
            let range = if kind == T_OUT && fits { sector as usize * 512..sector as usize * 512 + sent as usize } else { 0..0 };
            for (at, (now, before)) in file.iter().zip(content()).enumerate() {
                prop_assert!(*now == before || range.contains(&at), "byte {} changed", at);
            }
        }
    }
}
