//! Lines without copying them one by one, and never more than a buffer of them.

use std::io::{self, Read};

/// Longer ones are no lines of an access log.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;
const BUFFER_BYTES: usize = 4 * MAX_LINE_BYTES;

pub(super) struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    /// What is in the buffer and was not handed out.
    from: usize,
    to: usize,
    ended: bool,
    /// Behind the last line end in the buffer.
    whole: usize,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(source: R) -> Lines<R> {
        Lines { source, buffer: vec![0; BUFFER_BYTES], from: 0, to: 0, ended: false, whole: 0 }
    }

    /// The next line without its end; the inner none is one that was too long and passed over.
    pub(super) fn next_line(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        let mut searched = self.from;
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[searched..self.to]) {
                let end = searched + found;
                let line = self.from..end;
                self.from = end + 1;
                return Ok(Some(Some(without_return(&self.buffer[line]))));
            }
            if self.ended {
                let line = self.from..self.to;
                self.from = self.to;
                let line = without_return(&self.buffer[line]);
                return Ok((!line.is_empty()).then_some(Some(line)));
            }
            if self.to - self.from >= MAX_LINE_BYTES {
                self.pass_over()?;
                return Ok(Some(None));
            }
            searched = self.to - self.from;
            self.refill()?;
        }
    }

    /// Whether the next line is there already; otherwise one has to wait for it.
    pub(super) fn has_line(&self) -> bool {
        self.from < self.whole
    }

    /// Moves what is left to the front and reads on.
    fn refill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        loop {
            match self.source.read(&mut self.buffer[self.to..]) {
                Ok(read) => {
                    self.ended = read == 0;
                    self.to += read;
                    let last = memchr::memrchr(b'\n', &self.buffer[..self.to]);
                    self.whole = last.map_or(0, |at| at + 1);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn pass_over(&mut self) -> io::Result<()> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[self.from..self.to]) {
                self.from += found + 1;
                return Ok(());
            }
            self.from = self.to;
            if self.ended {
                return Ok(());
            }
            self.refill()?;
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
