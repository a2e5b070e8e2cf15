//! Parses a list of dead processes, one unique address a line, to which an operator or a tool appends.
//!
//! Bytes arrive as they were appended, in pieces of any size; a line counts once its end is there, so a reader may meet
//! a writer in the middle of a line. A line that is no address is an error of its own, and the lines after it are read
//! all the same. Empty lines and lines that begin with `#` are remarks.
//!
//! ```text
//! # host:port#uid, as the logs and `Cluster::self_address` write it
//! db-1:17355#8129763512
//! ```
//!
//! Source: cluster S20 (c).

use greylag_core::{InvalidAddress, UniqueAddress};

/// Limit of a line in bytes; no address is as long.
const LONGEST_LINE: usize = 1024;

/// A line that names no process. The lines around it count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeadListError {
    /// The line is no unique address.
    #[error("line {line} is not host:port#uid: {text:?}; the line is skipped")]
    Malformed {
        /// The number of the line, from 1.
        line: u64,
        /// The text of the line.
        text: String,
        /// Why the text is no address.
        #[source]
        cause: InvalidAddress,
    },
    /// The line is not UTF-8.
    #[error("line {line} is not text; the line is skipped")]
    NotText {
        /// The number of the line, from 1.
        line: u64,
    },
    /// The line has no end within 1,024 bytes.
    #[error("line {line} is longer than {LONGEST_LINE} bytes; the line is skipped")]
    TooLong {
        /// The number of the line, from 1.
        line: u64,
    },
}

/// Reads a list as it grows.
#[derive(Debug, Default)]
pub struct DeadList {
    line: u64,
    /// The begin of a line whose end has not come.
    partial: Vec<u8>,
    /// Whether the present line is too long and skipped up to its end.
    skipping: bool,
}

impl DeadList {
    /// A list with nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next bytes.
    pub fn read(&mut self, bytes: &[u8], out: &mut Vec<Result<UniqueAddress, DeadListError>>) {
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line(out);
            } else if self.partial.len() < LONGEST_LINE {
                self.partial.push(*byte);
            } else {
                self.skipping = true;
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<Result<UniqueAddress, DeadListError>>) {
        self.line += 1;
        let line = self.line;
        let bytes = std::mem::take(&mut self.partial);
        if std::mem::take(&mut self.skipping) {
            out.push(Err(DeadListError::TooLong { line }));
            return;
        }
        let Ok(text) = std::str::from_utf8(&bytes) else {
            out.push(Err(DeadListError::NotText { line }));
            return;
        };
        let text = text.trim();
        if !text.is_empty() && !text.starts_with('#') {
            let malformed = |cause| DeadListError::Malformed { line, text: text.to_owned(), cause };
            out.push(text.parse().map_err(malformed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<Result<String, String>> {
        let mut list = DeadList::new();
        let mut out = Vec::new();
        for piece in pieces {
            list.read(piece, &mut out);
        }
        out.into_iter().map(|entry| entry.map(|a| a.to_string()).map_err(|e| e.to_string())).collect()
    }

    /// cluster S20 (c).
    #[test]
    fn malformed_lines_are_errors_by_number_and_lose_nothing() {
        let entries =
            read(&[b"# remark\na:1#2\n\nnonsense\r\n\xff\xfe\n  b:1#3 \n", &[b'x'; 2000], b"\nc:1#0\nc:1#4\n"]);
        let said: Vec<&str> =
            entries.iter().map(|entry| entry.as_ref().unwrap_or_else(|error| error).as_str()).collect();
        assert_eq!(
            said,
            [
                "a:1#2",
                "line 4 is not host:port#uid: \"nonsense\"; the line is skipped",
                "line 5 is not text; the line is skipped",
                "b:1#3",
                "line 7 is longer than 1024 bytes; the line is skipped",
                "line 8 is not host:port#uid: \"c:1#0\"; the line is skipped",
                "c:1#4",
            ]
        );
    }

    #[test]
    fn a_line_counts_once_its_end_is_there_however_it_was_cut() {
        assert_eq!(read(&[b"a:1#12"]), []);
        assert_eq!(read(&[b"a:", b"1#1", b"2", b"\n"]), [Ok("a:1#12".to_owned())]);
    }
}
