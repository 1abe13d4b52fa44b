//! Answers out of the bytes of a connection, as they come.

use super::super::answer::{Answer, Outcome};
use super::chunked::Chunks;
use super::head::{Body, Head, MAX_HEAD, Malformed, read_head};

/// What is read of one connection.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The start of a head that was not all there.
    kept: Vec<u8>,
    /// The body of the answer that was begun.
    body: Option<(Head, Rest)>,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    Bytes(u64),
    Chunks(Chunks),
    UntilClose,
}

/// One whole answer, and whether more can follow on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) answer: Answer,
    pub(super) keep_alive: bool,
}

impl Reader {
    /// Takes what came; hands on each answer that is complete with it.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        bodiless: bool,
        now_s: u64,
        mut each: impl FnMut(Whole),
    ) -> Result<(), Malformed> {
        if self.kept.is_empty() {
            let used = self.read(bytes, bodiless, now_s, &mut each)?;
            return self.keep(&bytes[used..]);
        }
        let mut all = std::mem::take(&mut self.kept);
        all.extend_from_slice(bytes);
        let used = self.read(&all, bodiless, now_s, &mut each)?;
        self.keep(&all[used..])
    }

    fn keep(&mut self, rest: &[u8]) -> Result<(), Malformed> {
        if rest.len() > MAX_HEAD {
            return Err(Malformed("its head is too long"));
        }
        self.kept.extend_from_slice(rest);
        Ok(())
    }

    fn read(
        &mut self,
        bytes: &[u8],
        bodiless: bool,
        now_s: u64,
        each: &mut impl FnMut(Whole),
    ) -> Result<usize, Malformed> {
        let mut at = 0;
        loop {
            let Some((head, rest)) = &mut self.body else {
                let Some(head) = read_head(&bytes[at..], bodiless, now_s)? else { return Ok(at) };
                at += head.bytes;
                // 100 and its like only announce the answer.
                if head.status >= 200 {
                    let rest = match head.body {
                        Body::Length(length) => Rest::Bytes(length),
                        Body::Chunked => Rest::Chunks(Chunks::START),
                        Body::UntilClose => Rest::UntilClose,
                    };
                    self.body = Some((head, rest));
                }
                continue;
            };
            let left = &bytes[at..];
            let done = match rest {
                Rest::Bytes(length) => {
                    let here = (*length).min(left.len() as u64);
                    *length -= here;
                    at += here as usize;
                    *length == 0
                }
                Rest::Chunks(chunks) => {
                    at += chunks.skip(left)?;
                    *chunks == Chunks::Done
                }
                Rest::UntilClose => {
                    at = bytes.len();
                    false
                }
            };
            if !done {
                return Ok(at);
            }
            each(whole(head));
            self.body = None;
        }
    }

    /// The connection was closed: that ends a body which has no other end.
    pub(super) fn close(&mut self) -> Option<Whole> {
        self.kept.clear();
        match self.body.take() {
            Some((head, Rest::UntilClose)) => Some(whole(&head)),
            _ => None,
        }
    }
}

fn whole(head: &Head) -> Whole {
    let answer =
        Answer { outcome: Outcome::of_status(head.status), status: head.status, told: head.told };
    Whole { answer, keep_alive: head.keep_alive }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_the_same_however_their_bytes_are_cut() {
        let bytes = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 100 Continue\r\n\r\n\
                     HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\nRetry-After: 2\r\n\r\n\
                     2\r\nab\r\n0\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
            .as_bytes();
        for first in 0..bytes.len() {
            for second in [first, (first + bytes.len()) / 2] {
                let (mut reader, mut found) = (Reader::default(), Vec::new());
                for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    reader.take(part, false, 0, |whole| found.push(whole.answer)).unwrap();
                }
                let statuses: Vec<u16> = found.iter().map(|answer| answer.status).collect();
                assert_eq!(statuses, [200, 429, 503], "{first} {second}");
                assert_eq!(found[1].told.retry_after_s, Some(2));
            }
        }
    }

    #[test]
    fn a_body_without_an_end_ends_with_its_connection() {
        let mut reader = Reader::default();
        reader.take(b"HTTP/1.1 200 OK\r\n\r\nabc", false, 0, |_| panic!("too early")).unwrap();
        assert!(!reader.close().unwrap().keep_alive);
        reader
            .take(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", false, 0, |_| {
                panic!("too early")
            })
            .unwrap();
        assert_eq!(reader.close(), None);
    }
}
