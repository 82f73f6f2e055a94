// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network card: packets of the guest go to a tap of the host, packets of the tap to the guest.
//!
//! A packet that cannot be passed on is dropped, as on a cable. What the guest sends is passed on when its
//! notification returns; a thread passes on what the tap has, and waits while the guest has no buffer for it. The
//! tap's kernel reads and writes the packet's header, too, so it is little-endian there, as the guest has it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use libc::iovec;

use super::mmio::{Device, Mmio, Step};
use super::queue::{Broken, Chain, Queue, split};
use super::ram::{Ram, Segment};
use crate::host;

pub(super) const F_MAC: u64 = 1 << 5;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// struct virtio_net_hdr_v1, before each packet; its last field is the number of buffers.
pub(super) const HEADER: usize = 12;
pub(super) const BUFFERS_FIELD: usize = 10;

const DRIVER: &str = "/dev/net/tun";
/// IFNAMSIZ without the zero.
const NAME_MAX: usize = 15;

/// An end of a cable: an interface of the host to whose other end the guest is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap(String);

impl Tap {
    /// The name of an interface.
    ///
    /// # Errors
    /// No interface can have it.
    pub fn new(name: &str) -> Result<Self, String> {
        let fine = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b':';
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(fine) || name.starts_with('.') {
            return Err(format!("{name:?} is not the name of an interface"));
        }
        Ok(Self(name.into()))
    }

    /// Become its other end.
    ///
    /// # Errors
    /// There is no such tap, or it is in use.
    fn connect(&self) -> Result<File> {
        let name = &self.0;
        // The driver would make an interface that nobody has configured.
        let kind = format!("/sys/class/net/{name}/tun_flags");
        let flags = fs::read_to_string(&kind).ok().and_then(|text| flags_in(&text));
        let flags = flags.with_context(|| {
            format!("the host has no tap {name}; make it with: ip tuntap add dev {name} mode tap")
        })?;
        ensure!(flags & libc::IFF_TAP != 0, "{name} is a tun, which has no Ethernet packets, and not a tap");
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DRIVER);
        let file = opened.with_context(|| format!("cannot open {DRIVER}"))?;
        // SAFETY: zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as i16;
        // SAFETY: the driver reads and writes the structure, which lives long enough.
        let taken = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        ensure!(taken >= 0, "cannot use the tap {name}: {}", busy(io::Error::last_os_error()));
        for (call, value) in [(libc::TUNSETVNETHDRSZ, HEADER as libc::c_int), (libc::TUNSETVNETLE, 1)] {
            // SAFETY: the driver reads an int, which lives long enough.
            let set = unsafe { libc::ioctl(file.as_raw_fd(), call, &raw const value) };
            ensure!(set >= 0, "cannot set up the tap {name}: {}", io::Error::last_os_error());
        }
        // No packet needs anything that the guest was not offered.
        // SAFETY: the argument is a number.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, 0) };
        ensure!(set >= 0, "cannot set up the tap {name}: {}", io::Error::last_os_error());
        Ok(file)
    }
}

fn flags_in(text: &str) -> Option<libc::c_int> {
    libc::c_int::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

fn busy(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "another program uses it".into(),
        _ => error.to_string(),
    }
}

/// The network card.
pub struct Network {
    tap: File,
    address: [u8; 6],
}

impl Network {
    /// Connect a card with a random address to a tap.
    ///
    /// # Errors
    /// There is no such tap, or it is in use.
    pub fn connect(tap: &Tap) -> Result<Self> {
        Ok(Self { tap: tap.connect()?, address: address(host::seed()?) })
    }

    fn copy(&self, segments: &[Segment], ram: &Ram, call: Vectored) -> io::Result<usize> {
        let vectors: Vec<iovec> = segments.iter().map(|&segment| ram.iovec(segment)).collect();
        // SAFETY: segments are the guest's memory, which is mapped while `ram` lives and is never borrowed; there are
        // at most as many as a chain has descriptors.
        let copied = unsafe { call(self.tap.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32) };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    /// Pass packets of the tap on, as far as there are any.
    fn receive(&self, queue: &mut Queue, ram: &Ram) -> Result<Step, Broken> {
        let mut some = false;
        // At most once around: the guest's registers wait meanwhile.
        for _ in 0..queue.size {
            let Some(chain) = queue.peek(ram)? else {
                return Ok(if some { Step::Done(true) } else { Step::Wait });
            };
            let field = buffers_field(&chain)?;
            match self.copy(&chain.writable, ram, libc::readv) {
                Ok(length) if length >= HEADER => {
                    ram.copy_to(&field, &1u16.to_le_bytes());
                    queue.advance();
                    queue.give_back(ram, chain.head, length as u32)?;
                    some = true;
                }
                // Dropped, or there is none: the buffer stays for the next.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        Ok(Step::Done(some))
    }
}

type Vectored = unsafe extern "C" fn(i32, *const iovec, i32) -> isize;

/// The header's last field.
fn buffers_field(chain: &Chain) -> Result<Vec<Segment>, Broken> {
    let (header, _) = split(&chain.writable, HEADER).ok_or(Broken::Malformed)?;
    let (_, field) = split(&header, BUFFERS_FIELD).ok_or(Broken::Malformed)?;
    Ok(field)
}

/// An address of one interface, assigned locally.
fn address(seed: [u8; 32]) -> [u8; 6] {
    let [first, b, c, d, e, f, ..] = seed;
    [first & 0xfc | 2, b, c, d, e, f]
}

impl Device for Network {
    const ID: u32 = 1;
    const QUEUES: usize = 2;
    const NAME: &str = "network card";

    fn features(&self) -> u64 {
        F_MAC
    }

    fn accept(&mut self, _features: u64) {}

    fn configuration(&self) -> &[u8] {
        &self.address
    }

    fn notified(&mut self, number: usize, queue: &mut Queue, ram: &Ram) -> Result<bool, Broken> {
        // Buffers to receive into are for the card's thread, which whoever calls this wakes.
        if number != TRANSMIT {
            return Ok(false);
        }
        let mut some = false;
        for _ in 0..queue.size {
            let Some(chain) = queue.peek(ram)? else { break };
            chain.request(HEADER)?;
            // What the tap does not take is lost.
            let _ = self.copy(&chain.readable, ram, libc::writev);
            queue.advance();
            queue.give_back(ram, chain.head, 0)?;
            some = true;
        }
        Ok(some)
    }
}

/// Pass packets of the tap on to the guest, for ever.
///
/// # Errors
/// The interrupt could not be set, or the tap could not be watched.
pub fn receive(card: &Arc<Mmio<Network>>) -> Result<()> {
    let tap = card.with(|network| network.tap.try_clone()).context("cannot share the tap")?;
    loop {
        let mut watched = libc::pollfd { fd: tap.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure is passed, which lives long enough.
        if unsafe { libc::poll(&raw mut watched, 1, -1) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error).context("cannot watch the tap");
            }
            continue;
        }
        ensure!(watched.revents & libc::POLLIN != 0, "the tap is gone");
        card.work(RECEIVE, |network, queue, ram| network.receive(queue, ram))?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::driver::{self, BUFFERS, get, give, last_used, put, ram};
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    const SIZE: usize = 0x1_0000;

    /// A card whose tap is a socket, which keeps packets apart, too.
    fn card() -> (Network, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Network { tap: File::from(OwnedFd::from(ours)), address: address([0xff; 32]) }, theirs)
    }

    #[test]
    fn addresses_are_of_one_interface_and_local() {
        for first in 0..=0xff {
            let address = address([first; 32]);
            assert_eq!((address[0] & 1, address[0] & 2, address[5]), (0, 2, first));
        }
    }

    #[test]
    fn packets_are_sent_whole() {
        let ((mut network, tap), ram, mut queue) = (card(), ram(SIZE), driver::queue(8));
        put(&ram, BUFFERS, &[7; 40]);
        give(&ram, &queue, &[(BUFFERS, 12, false), (BUFFERS + 12, 20, false), (BUFFERS + 32, 8, false)]);
        assert_eq!(network.notified(TRANSMIT, &mut queue, &ram), Ok(true));
        let mut packet = [0; 64];
        assert_eq!(tap.recv(&mut packet).unwrap(), 40);
        assert_eq!(packet[..40], [7; 40]);
        assert_eq!(last_used(&ram, &queue), (1, 0, 0));
        // Nobody is there to take it.
        drop(tap);
        driver::make_available(&ram, &queue, 0);
        assert_eq!(network.notified(TRANSMIT, &mut queue, &ram), Ok(true));
        give(&ram, &queue, &[(BUFFERS, 11, false)]);
        assert_eq!(network.notified(TRANSMIT, &mut queue, &ram), Err(Broken::Malformed));
    }

    #[test]
    fn packets_are_received_while_there_are_buffers() {
        let ((network, tap), ram, mut queue) = (card(), ram(SIZE), driver::queue(8));
        let step = |queue: &mut Queue| network.receive(queue, &ram).unwrap();
        assert!(matches!(step(&mut queue), Step::Wait));
        give(&ram, &queue, &[(BUFFERS, 14, true), (BUFFERS + 0x100, 100, true)]);
        assert!(matches!(step(&mut queue), Step::Done(false)));
        for packet in [&[0x11; 20], &[0x22; 20]] {
            tap.send(packet).unwrap();
        }
        // The second has no buffer.
        assert!(matches!(step(&mut queue), Step::Done(true)));
        assert_eq!(last_used(&ram, &queue), (1, 0, 20));
        let header = [&[0x11; 10][..], &[1, 0, 0x11, 0x11]].concat();
        assert_eq!(get(&ram, BUFFERS, 14), header);
        assert_eq!(get(&ram, BUFFERS + 0x100, 7), [0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0]);
        assert!(matches!(step(&mut queue), Step::Wait));
        driver::make_available(&ram, &queue, 0);
        assert!(matches!(step(&mut queue), Step::Done(true)));
        assert_eq!(get(&ram, BUFFERS + 0x100, 6), [0x22; 6]);
        // No room for a header.
        give(&ram, &queue, &[(BUFFERS, 11, true)]);
        assert!(matches!(network.receive(&mut queue, &ram), Err(Broken::Malformed)));
    }

    #[test]
    fn only_a_tap_is_a_cable() {
        for name in ["", "a/b", "a b", "..", "sixteen-letters-", "a:1"] {
            assert!(Tap::new(name).is_err(), "{name:?}");
        }
        let error = format!("{:#}", Tap::new("no-such-tap").unwrap().connect().unwrap_err());
        assert!(error.contains("ip tuntap add dev no-such-tap mode tap"), "{error}");
        let error = format!("{:#}", Tap::new("lo").unwrap().connect().unwrap_err());
        assert!(error.contains("no tap lo"), "{error}");
        assert_eq!(flags_in("0x1002\n").map(|flags| flags & libc::IFF_TAP), Some(2));
        assert_eq!((flags_in("1002"), flags_in("")), (None, None));
    }
}
