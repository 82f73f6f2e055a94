// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol: frames, what they say, and a decoder for bytes that anybody may have sent.
//!
//! A frame is its length (32 bits, of what follows), the version (8), the kind (8), 16 zero bits, and the fields of its
//! kind. All numbers are little-endian. A frame with another version, an unknown kind, a length that does not fit its
//! kind or bits that should be zero is malformed: the connection ends, for nothing that follows can be trusted.

use libdirty::{PageRange, Reason};

/// The version of the protocol that is spoken here.
pub const VERSION: u8 = 1;
/// The longest request, without its length.
pub const MOST_REQUEST: usize = 64;
/// The longest reply, without its length.
pub const MOST_REPLY: usize = 1 << 20;
/// Extents in one reply.
pub const MOST_EXTENTS: usize = 4096;
/// Processes in one reply.
pub const MOST_LISTED: usize = 1 << 15;
const HEADER: usize = 4;
const MOST_TEXT: usize = 1024;

/// Why a frame cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub struct Malformed(String);

fn malformed<T>(why: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(why.into()))
}

/// A process: its pid, and when it started (`starttime` of `proc_pid_stat(5)`), without which a pid may be another's. 0:
/// whoever has the pid now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// As the holder numbers processes.
    pub pid: i32,
    /// In clock ticks since the boot.
    pub start: u64,
}

/// A moment in the tracking of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Which tracking: another number for each, whichever holder does it. 0: none, since which everything was written.
    pub epoch: u64,
    /// Which collect of it.
    pub round: u64,
}

/// From which moment on writes are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// The last [`Request::Clear`] of this process, whoever sent it.
    Clear,
    /// A moment that an earlier reply gave.
    Mark(Mark),
}

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Track a process from now on.
    Track {
        /// Which.
        process: Process,
        /// And its children, those to come too.
        tree: bool,
    },
    /// Which pages were written?
    Written {
        /// Of which process.
        process: Process,
        /// Since when.
        since: Since,
        /// Addresses of interest.
        range: PageRange,
        /// This goes on with an answer that was too long: do not look anew.
        goes_on: bool,
    },
    /// Begin anew for [`Since::Clear`], and track the process if it is not.
    Clear {
        /// Which.
        process: Process,
        /// If the connection ends before a [`Request::Keep`], everything is to be taken for written.
        provisional: bool,
        /// Begin at the moment of an earlier answer instead, without looking anew: what was written since then will be in
        /// the next answer.
        from: Option<Mark>,
    },
    /// The clears of this connection hold from now on, also when it ends.
    Keep,
    /// Track it no longer.
    Release {
        /// Which.
        process: Process,
    },
    /// Which processes are tracked that this caller may ask about?
    List,
}

/// Pages that were written, or of which it is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The pages.
    pub range: PageRange,
    /// The number of a [`Reason`]; take a number that is unknown for one that means doubt.
    pub reason: u32,
}

/// What the holder answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The process is tracked.
    Tracked {
        /// Which it is.
        process: Process,
        /// Now.
        mark: Mark,
        /// The back end at work.
        backend: String,
    },
    /// What was written.
    Written {
        /// Of which process.
        process: Process,
        /// Writes until then are in this answer.
        mark: Mark,
        /// The extents, sorted, where `unknown` is empty.
        extents: Vec<Extent>,
        /// 0, or the address from which on to ask again, with `goes_on`.
        next: u64,
        /// Why everything must be taken for written; empty if it need not.
        unknown: String,
    },
    /// From now on.
    Cleared {
        /// Which process it is.
        process: Process,
        /// Now.
        mark: Mark,
        /// Why the process is not tracked, so that everything will be taken for written; empty if it is.
        unknown: String,
    },
    /// It is not tracked any more.
    Released,
    /// The clears of this connection hold.
    Kept,
    /// The processes that are tracked.
    Listed(Vec<Process>),
    /// Nothing was done.
    Refused {
        /// An error number of Linux.
        errno: i32,
        /// Why.
        why: String,
    },
}

const TREE: u32 = 1;
const GOES_ON: u32 = 1;
const SINCE_CLEAR: u32 = 2;
const PROVISIONAL: u32 = 1;
const FROM_MARK: u32 = 2;

/// Builds a frame.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Writer(vec![0, 0, 0, 0, VERSION, kind, 0, 0])
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn process(self, process: Process, flags: u32) -> Self {
        self.u32(process.pid.cast_unsigned()).u32(flags).u64(process.start)
    }

    fn mark(self, mark: Mark) -> Self {
        self.u64(mark.epoch).u64(mark.round)
    }

    /// The last field.
    fn text(mut self, text: &str) -> Self {
        let mut end = text.len().min(MOST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend(&text.as_bytes()[..end]);
        self
    }

    fn done(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).expect("frames are short");
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Takes a frame apart.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((first, rest)) = self.0.split_first_chunk() else { return malformed("it is too short") };
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn process(&mut self, known: u32) -> Result<(Process, u32), Malformed> {
        let (pid, flags, start) = (self.u32()?.cast_signed(), self.u32()?, self.u64()?);
        if flags & !known != 0 {
            return malformed(format!("unknown flags {:#x}", flags & !known));
        }
        Ok((Process { pid, start }, flags))
    }

    fn mark(&mut self) -> Result<Mark, Malformed> {
        Ok(Mark { epoch: self.u64()?, round: self.u64()? })
    }

    fn range(&mut self) -> Result<PageRange, Malformed> {
        let ends = [self.u64()?, self.u64()?].map(usize::try_from);
        let [Ok(start), Ok(end)] = ends else { return malformed("an address has too many bits") };
        PageRange::new(start, end).or_else(|error| malformed(error.to_string()))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() > MOST_TEXT {
            return malformed("its text is too long");
        }
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn end<T>(self, message: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(message) } else { malformed("it is too long") }
    }
}

/// The kind of a frame and its fields.
fn open(frame: &[u8]) -> Result<(u8, Reader<'_>), Malformed> {
    let mut reader = Reader(frame);
    let [version, kind, 0, 0] = reader.array()? else { return malformed("bits of its header are not zero") };
    if version != VERSION {
        return malformed(format!("it is of version {version}, and version {VERSION} is spoken here"));
    }
    Ok((kind, reader))
}

/// One side's messages.
pub trait Message: Sized {
    /// The longest frame of this side, without its length.
    const MOST: usize;

    /// As a frame, with its length.
    fn encode(&self) -> Vec<u8>;

    /// From a frame without its length.
    ///
    /// # Errors
    /// It is none of this side's.
    fn decode(frame: &[u8]) -> Result<Self, Malformed>;
}

impl Message for Request {
    const MOST: usize = MOST_REQUEST;

    fn encode(&self) -> Vec<u8> {
        match *self {
            Request::Track { process, tree } => {
                Writer::new(1).process(process, if tree { TREE } else { 0 }).done()
            }
            Request::Written { process, since, range, goes_on } => {
                let (mark, from_clear) = match since {
                    Since::Clear => (Mark { epoch: 0, round: 0 }, SINCE_CLEAR),
                    Since::Mark(mark) => (mark, 0),
                };
                let flags = from_clear | if goes_on { GOES_ON } else { 0 };
                let frame = Writer::new(2).process(process, flags).mark(mark);
                frame.u64(range.start() as u64).u64(range.end() as u64).done()
            }
            Request::Clear { process, provisional, from } => {
                let flags = if provisional { PROVISIONAL } else { 0 };
                match from {
                    None => Writer::new(3).process(process, flags).done(),
                    Some(mark) => Writer::new(3).process(process, flags | FROM_MARK).mark(mark).done(),
                }
            }
            Request::Release { process } => Writer::new(4).process(process, 0).done(),
            Request::List => Writer::new(5).done(),
            Request::Keep => Writer::new(6).done(),
        }
    }

    fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut fields) = open(frame)?;
        match kind {
            1 => {
                let (process, flags) = fields.process(TREE)?;
                fields.end(Request::Track { process, tree: flags & TREE != 0 })
            }
            2 => {
                let (process, flags) = fields.process(GOES_ON | SINCE_CLEAR)?;
                let since = match (fields.mark()?, flags & SINCE_CLEAR != 0) {
                    (Mark { epoch: 0, round: 0 }, true) => Since::Clear,
                    (_, true) => return malformed("a mark, and since the last clear"),
                    (mark, false) => Since::Mark(mark),
                };
                let range = fields.range()?;
                fields.end(Request::Written { process, since, range, goes_on: flags & GOES_ON != 0 })
            }
            3 => {
                let (process, flags) = fields.process(PROVISIONAL | FROM_MARK)?;
                let from = if flags & FROM_MARK == 0 { None } else { Some(fields.mark()?) };
                fields.end(Request::Clear { process, provisional: flags & PROVISIONAL != 0, from })
            }
            4 => {
                let (process, _) = fields.process(0)?;
                fields.end(Request::Release { process })
            }
            5 => fields.end(Request::List),
            6 => fields.end(Request::Keep),
            kind => malformed(format!("no request is of kind {kind}")),
        }
    }
}

impl Message for Reply {
    const MOST: usize = MOST_REPLY;

    fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Tracked { process, mark, backend } => {
                Writer::new(0x81).process(*process, 0).mark(*mark).text(backend).done()
            }
            Reply::Written { process, mark, extents, next, unknown } => {
                let frame = Writer::new(0x82).process(*process, 0).mark(*mark).u64(*next);
                let mut frame = frame.u32(u32::try_from(extents.len()).expect("at most MOST_EXTENTS")).u32(0);
                for extent in extents {
                    frame = frame.u64(extent.range.start() as u64).u64(extent.range.end() as u64);
                    frame = frame.u32(extent.reason).u32(0);
                }
                frame.text(unknown).done()
            }
            Reply::Cleared { process, mark, unknown } => {
                Writer::new(0x83).process(*process, 0).mark(*mark).text(unknown).done()
            }
            Reply::Released => Writer::new(0x84).done(),
            Reply::Kept => Writer::new(0x86).done(),
            Reply::Listed(processes) => {
                let frame = Writer::new(0x85);
                processes.iter().fold(frame, |frame, process| frame.process(*process, 0)).done()
            }
            Reply::Refused { errno, why } => Writer::new(0xff).u32(errno.cast_unsigned()).text(why).done(),
        }
    }

    fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut fields) = open(frame)?;
        match kind {
            0x81 => {
                let (process, _) = fields.process(0)?;
                Ok(Reply::Tracked { process, mark: fields.mark()?, backend: fields.text()? })
            }
            0x82 => {
                let (process, _) = fields.process(0)?;
                let (mark, next) = (fields.mark()?, fields.u64()?);
                let (count, 0) = (fields.u32()? as usize, fields.u32()?) else {
                    return malformed("bits that are not zero");
                };
                if count > MOST_EXTENTS {
                    return malformed("too many extents");
                }
                let mut extents: Vec<Extent> = Vec::with_capacity(count);
                for _ in 0..count {
                    let range = fields.range()?;
                    let (reason, 0) = (fields.u32()?, fields.u32()?) else {
                        return malformed("bits that are not zero");
                    };
                    if extents.last().is_some_and(|last| last.range.end() > range.start()) {
                        return malformed("its extents are not sorted");
                    }
                    extents.push(Extent { range, reason });
                }
                Ok(Reply::Written { process, mark, extents, next, unknown: fields.text()? })
            }
            0x83 => {
                let (process, _) = fields.process(0)?;
                Ok(Reply::Cleared { process, mark: fields.mark()?, unknown: fields.text()? })
            }
            0x84 => fields.end(Reply::Released),
            0x86 => fields.end(Reply::Kept),
            0x85 => {
                let mut processes = Vec::new();
                while !fields.0.is_empty() {
                    processes.push(fields.process(0)?.0);
                }
                Ok(Reply::Listed(processes))
            }
            0xff => Ok(Reply::Refused { errno: fields.u32()?.cast_signed(), why: fields.text()? }),
            kind => malformed(format!("no reply is of kind {kind:#x}")),
        }
    }
}

/// Puts frames together from the pieces in which they arrive. It never holds more than one frame and what came with it.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Add what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Whether a part of a frame waits for the rest.
    #[must_use]
    pub fn is_amid(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next message that has arrived as a whole.
    ///
    /// # Errors
    /// What has arrived is no message of this side, or will not be: nothing after it can be understood.
    pub fn take<M: Message>(&mut self) -> Result<Option<M>, Malformed> {
        let Some((length, rest)) = self.bytes.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if !(HEADER..=M::MOST).contains(&length) {
            return malformed(format!("a length of {length} bytes"));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let message = M::decode(frame)?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

/// Whether extents with this number mean that the pages are there to be read.
#[must_use]
pub fn is_mapped(reason: u32) -> bool {
    ![Reason::Unmapped, Reason::Exec, Reason::Exited].iter().any(|gone| *gone as u32 == reason)
}
