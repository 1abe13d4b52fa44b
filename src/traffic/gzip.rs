//! Input that may be gzipped: noticed by its first bytes, whatever the file is called.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const BUFFER_BYTES: usize = 1 << 18;

/// The text that is in it, zipped or not.
pub fn unzipped(source: Box<dyn Read + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let mut source = BufReader::with_capacity(BUFFER_BYTES, source);
    if !source.fill_buf()?.starts_with(&GZIP) {
        return Ok(Box::new(source));
    }
    // Logs are often several such pieces, one behind the other.
    Ok(Box::new(BufReader::new(MultiGzDecoder::new(source))))
}

/// Why reading on is not possible, for people.
pub(super) fn why(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::IsADirectory => "it is a folder".into(),
        // Plain text has no end that could be missing.
        ErrorKind::UnexpectedEof => "the gzipped data is cut off".into(),
        _ => error.to_string(),
    }
}
