// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The decoder takes whatever bytes anybody sends.

use libdirty::{PageRange, page_size};
use libdirty_hold::protocol::{
    Decoder, Extent, MOST_EXTENTS, MOST_REPLY, MOST_REQUEST, Mark, Message, Process, Reply, Request, Since,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn process() -> impl Strategy<Value = Process> {
    (any::<i32>(), any::<u64>()).prop_map(|(pid, start)| Process { pid, start })
}

fn mark() -> impl Strategy<Value = Mark> {
    (0..3u64, any::<u64>()).prop_map(|(epoch, round)| Mark { epoch, round })
}

fn range() -> impl Strategy<Value = PageRange> {
    (1usize..1 << 30, 1usize..1 << 20)
        .prop_map(|(first, pages)| PageRange::from_length(first * page_size(), pages * page_size()).unwrap())
}

fn request() -> impl Strategy<Value = Request> {
    let since = prop_oneof![Just(Since::Clear), mark().prop_map(Since::Mark)];
    prop_oneof![
        (process(), any::<bool>()).prop_map(|(process, tree)| Request::Track { process, tree }),
        (process(), since, range(), any::<bool>()).prop_map(|(process, since, range, goes_on)| {
            Request::Written { process, since, range, goes_on }
        }),
        (process(), any::<bool>(), proptest::option::of(mark()))
            .prop_map(|(process, provisional, from)| Request::Clear { process, provisional, from }),
        Just(Request::Keep),
        process().prop_map(|process| Request::Release { process }),
        Just(Request::List),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let text = || "[ -~äß]{0,60}";
    let extents = vec((1usize..50, 1usize..50, any::<u32>()), 0..50).prop_map(|steps| {
        let mut at = 1;
        let mut extent = |(gap, pages, reason)| {
            let range = PageRange::from_length((at + gap) * page_size(), pages * page_size()).unwrap();
            at += gap + pages;
            Extent { range, reason }
        };
        steps.into_iter().map(&mut extent).collect::<Vec<_>>()
    });
    prop_oneof![
        (process(), mark(), text()).prop_map(|(process, mark, backend)| Reply::Tracked {
            process,
            mark,
            backend
        }),
        (process(), mark(), extents, any::<u64>(), text()).prop_map(
            |(process, mark, extents, next, unknown)| {
                Reply::Written { process, mark, extents, next, unknown }
            }
        ),
        (process(), mark(), text()).prop_map(|(process, mark, unknown)| Reply::Cleared {
            process,
            mark,
            unknown
        }),
        Just(Reply::Released),
        Just(Reply::Kept),
        vec(process(), 0..50).prop_map(Reply::Listed),
        (any::<i32>(), text()).prop_map(|(errno, why)| Reply::Refused { errno, why }),
    ]
}

/// All messages of `bytes`, which arrive in pieces of these lengths; and whether the rest made sense.
fn take_all<M: Message>(bytes: &[u8], pieces: &[usize]) -> (Vec<M>, bool) {
    let (mut decoder, mut messages, mut at) = (Decoder::default(), Vec::new(), 0);
    for piece in pieces.iter().copied().chain(std::iter::repeat(97)) {
        if at == bytes.len() {
            return (messages, true);
        }
        let end = (at + piece).min(bytes.len());
        decoder.push(&bytes[at..end]);
        at = end;
        loop {
            match decoder.take() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return (messages, false),
            }
        }
    }
    unreachable!("the pieces do not end")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_arrive_as_they_were_sent(sent in vec(request(), 1..8), pieces in vec(1usize..30, 0..40)) {
        let bytes: Vec<u8> = sent.iter().flat_map(Message::encode).collect();
        prop_assert!(sent.iter().all(|request| request.encode().len() <= 4 + MOST_REQUEST));
        prop_assert_eq!(take_all::<Request>(&bytes, &pieces), (sent, true));
    }

    #[test]
    fn replies_arrive_as_they_were_sent(sent in vec(reply(), 1..8), pieces in vec(1usize..300, 0..40)) {
        let bytes: Vec<u8> = sent.iter().flat_map(Message::encode).collect();
        prop_assert_eq!(take_all::<Reply>(&bytes, &pieces), (sent, true));
    }

    /// No bytes make it panic, and what it takes for a message is one, bit by bit.
    #[test]
    fn any_bytes_are_taken_or_refused(bytes in vec(any::<u8>(), 0..300), pieces in vec(1usize..30, 0..40)) {
        let (requests, _) = take_all::<Request>(&bytes, &pieces);
        let again: Vec<u8> = requests.iter().flat_map(Message::encode).collect();
        prop_assert_eq!(&bytes[..again.len()], &again[..]);
        let (replies, _) = take_all::<Reply>(&bytes, &pieces);
        prop_assert!(replies.iter().map(|reply| reply.encode().len()).all(|length| length <= 4 + MOST_REPLY));
    }

    /// The same for frames that are almost right.
    #[test]
    fn a_changed_bit_is_another_message_or_refused(
        request in request(),
        reply in reply(),
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut bytes = request.encode();
        bytes[place.index(request.encode().len())] ^= 1 << bit;
        prop_assert!(!take_all::<Request>(&bytes, &[]).0.contains(&request));
        let mut bytes = reply.encode();
        bytes[place.index(reply.encode().len())] ^= 1 << bit;
        take_all::<Reply>(&bytes, &[]);
    }
}

#[test]
fn frames_have_a_longest() {
    for length in [0, 3, MOST_REQUEST as u32 + 1, u32::MAX] {
        let mut decoder = Decoder::default();
        decoder.push(&length.to_le_bytes());
        assert!(decoder.take::<Request>().unwrap_err().to_string().contains("length"), "{length}");
    }
    let range = |page: usize| PageRange::from_length(page * page_size(), page_size()).unwrap();
    let process = Process { pid: 1, start: 2 };
    let mark = Mark { epoch: 1, round: 1 };
    let extents = (0..MOST_EXTENTS).map(|at| Extent { range: range(1 + 2 * at), reason: 0 }).collect();
    let longest = Reply::Written { process, mark, extents, next: 0, unknown: "x".repeat(5000) };
    assert!(longest.encode().len() <= 4 + MOST_REPLY);
    assert!(take_all::<Reply>(&longest.encode(), &[]).1);
}

#[test]
fn another_version_is_named() {
    let mut frame = Request::List.encode();
    frame[4] = 2;
    let mut decoder = Decoder::default();
    decoder.push(&frame);
    assert!(decoder.take::<Request>().unwrap_err().to_string().contains("of version 2, and version 1"));
}
