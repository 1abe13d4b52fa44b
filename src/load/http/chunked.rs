//! Where a chunked body ends. What it says is of no interest.

use super::head::Malformed;

/// Longest line that announces a chunk, or trails after the last.
const MAX_LINE: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunks {
    /// A line with a length is next; so many bytes of it were seen, and this is its value.
    Size {
        seen: usize,
        value: u64,
        digits: bool,
    },
    /// So many bytes of a chunk are left, its line end included.
    Data(u64),
    /// Lines after the last chunk; so many bytes of the current one were seen.
    Trailer(usize),
    Done,
}

impl Chunks {
    pub(super) const START: Chunks = Chunks::Size { seen: 0, value: 0, digits: true };

    /// Goes on with `bytes`; how many of them belong to the body.
    pub(super) fn skip(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < bytes.len() && *self != Chunks::Done {
            match *self {
                Chunks::Data(left) => {
                    let here = left.min((bytes.len() - at) as u64);
                    at += here as usize;
                    *self = if here == left { Chunks::START } else { Chunks::Data(left - here) };
                }
                Chunks::Size { seen, value, digits } => {
                    *self = size(bytes[at], seen, value, digits)?;
                    at += 1;
                }
                Chunks::Trailer(seen) => {
                    *self = match bytes[at] {
                        b'\n' if seen == 0 => Chunks::Done,
                        b'\n' => Chunks::Trailer(0),
                        b'\r' => Chunks::Trailer(seen),
                        _ if seen > MAX_LINE => return Err(Malformed("a trailer is too long")),
                        _ => Chunks::Trailer(seen + 1),
                    };
                    at += 1;
                }
                Chunks::Done => {}
            }
        }
        Ok(at)
    }
}

/// One more byte of the line that says how long a chunk is.
fn size(byte: u8, seen: usize, value: u64, digits: bool) -> Result<Chunks, Malformed> {
    if seen > MAX_LINE {
        return Err(Malformed("a chunk's line is too long"));
    }
    match (byte, char::from(byte).to_digit(16)) {
        (b'\n', _) if seen == 0 => Err(Malformed("a chunk has no length")),
        (b'\n', _) if value == 0 => Ok(Chunks::Trailer(0)),
        (b'\n', _) => Ok(Chunks::Data(value + 2)),
        (_, Some(digit)) if digits && value < 1 << 56 => {
            Ok(Chunks::Size { seen: seen + 1, value: value * 16 + u64::from(digit), digits })
        }
        (b'\r' | b';' | b' ' | b'\t', _) if seen > 0 => {
            Ok(Chunks::Size { seen: seen + 1, value, digits: false })
        }
        _ if !digits => Ok(Chunks::Size { seen: seen + 1, value, digits }),
        _ => Err(Malformed("a chunk's length is no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_in_the_same_place_however_it_is_cut() {
        let body =
            b"5\r\nhello\r\n1A;ext=1\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nX: y\r\n\r\nHTTP/1.1";
        let length = body.len() - b"HTTP/1.1".len();
        for cut in 0..body.len() {
            let mut chunks = Chunks::START;
            let first = chunks.skip(&body[..cut]).unwrap();
            let second = chunks.skip(&body[first..]).unwrap();
            assert_eq!((chunks, first + second), (Chunks::Done, length), "{cut}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for body in ["x\r\n", "\r\n", ";\r\n", "ffffffffffffffffff\r\n"] {
            assert!(Chunks::START.clone().skip(body.as_bytes()).is_err(), "{body}");
        }
    }
}
