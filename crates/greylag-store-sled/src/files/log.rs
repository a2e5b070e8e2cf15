//! Reads sled's log without sled, message by message, so that damage costs only the messages in it.
//!
//! sled stops at the first message of a segment that it cannot read, or opens without all that follows. But every
//! message has a checksum of its own and names its segment, so whole messages can be found again behind damage. The
//! format of sled 0.34, integers little-endian, *varint* as in its `serialization.rs`:
//!
//! ```text
//! file      segments of 8 MiB; each begins with 20 bytes (CRC-32, place in the log, how far it was stable)
//! message   CRC-32 over body and the rest of the header u32, kind u8, length of the body varint,
//!           number of the segment in the log varint, number of the page varint, body
//! kind 8    a page: next page, merging child varint each, merging u8, length of the prefix u8, first key, end,
//!           0 u8, how many varint, keys without the prefix (which the first key begins with), values
//! kind 10   a change of a page: 0 u8, key without the prefix, value; or 1 u8, key without the prefix
//! ```
//! Keys, values and ends begin with their length as varint; an empty end is none. Source: persistence §4.3, scenario 75.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::files::conf::SEGMENT_BYTES;

const SEGMENT_HEADER_BYTES: usize = 20;
const PAGE: u8 = 8;
const CHANGE: u8 = 10;
/// The greatest kind of message.
const MAX_KIND: u8 = 11;

/// A message whose checksum matches.
#[derive(Debug, Clone, Copy)]
struct Message<'a> {
    kind: u8,
    segment_number: u64,
    page: u64,
    header_bytes: usize,
    body: &'a [u8],
}

/// The place of a message in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogPosition {
    /// The position of the message in the order of the log.
    lsn: u64,
    page: u64,
    segment_at: u64,
    body_at: usize,
    body_bytes: usize,
    kind: u8,
}

/// The content of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// A whole page.
    Page(Page<'a>),
    /// A record of the page has this value from now on; the key lacks the prefix of the page.
    Put { suffix: &'a [u8], value: &'a [u8] },
    /// A record of the page is removed.
    Remove { suffix: &'a [u8] },
}

/// A page: all records from `first` up to `end`, excluded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page<'a> {
    pub(crate) first: &'a [u8],
    /// `None` for the last page.
    pub(crate) end: Option<&'a [u8]>,
    /// The common prefix of all keys of the page.
    pub(crate) prefix: &'a [u8],
    /// Keys without the prefix, and their values.
    pub(crate) records: Vec<(&'a [u8], &'a [u8])>,
}

/// A log being read, one segment at a time.
pub(crate) struct Log {
    file: File,
    segment: Vec<u8>,
    segment_at: Option<u64>,
}

impl Log {
    /// The log of the store in the directory `store`.
    pub(crate) fn open(store: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(store.join("db"))?, segment: Vec::new(), segment_at: None })
    }

    /// The places of all whole pages and changes, in the order in which they were written.
    pub(crate) fn places(&mut self) -> io::Result<Vec<LogPosition>> {
        let mut places = Vec::new();
        let length = self.file.metadata()?.len();
        for segment_at in (0..length).step_by(SEGMENT_BYTES) {
            self.read_segment(segment_at)?;
            find_all(&self.segment, segment_at, &mut places);
        }
        places.sort_unstable();
        Ok(places)
    }

    /// The content of the message at a place, with its page; `None` if the message is not of a leaf page.
    pub(crate) fn read(&mut self, place: &LogPosition) -> io::Result<Option<(u64, Content<'_>)>> {
        self.read_segment(place.segment_at)?;
        let body = &self.segment[place.body_at..place.body_at + place.body_bytes];
        Ok(content(place.kind, body).map(|content| (place.page, content)))
    }

    fn read_segment(&mut self, at: u64) -> io::Result<()> {
        if self.segment_at == Some(at) {
            return Ok(());
        }
        self.segment_at = None;
        self.segment.resize(SEGMENT_BYTES, 0);
        let mut filled = 0;
        while filled < SEGMENT_BYTES {
            match self.file.read_at(&mut self.segment[filled..], at + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        self.segment.truncate(filled);
        self.segment_at = Some(at);
        Ok(())
    }
}

/// Finds all whole messages of a segment; behind damage it searches byte by byte.
fn find_all(segment: &[u8], segment_at: u64, places: &mut Vec<LogPosition>) {
    let mut at = SEGMENT_HEADER_BYTES;
    while at < segment.len() {
        let Some(message) = message(&segment[at..]) else {
            at += 1;
            continue;
        };
        let body_at = at + message.header_bytes;
        if matches!(message.kind, PAGE | CHANGE) {
            places.push(LogPosition {
                lsn: message.segment_number.saturating_mul(SEGMENT_BYTES as u64).saturating_add(at as u64),
                page: message.page,
                segment_at,
                body_at,
                body_bytes: message.body.len(),
                kind: message.kind,
            });
        }
        at = body_at + message.body.len();
    }
}

/// The message at the beginning of `bytes`, if its checksum matches.
fn message(bytes: &[u8]) -> Option<Message<'_>> {
    let kind = *bytes.get(4)?;
    if kind == 0 || kind > MAX_KIND {
        return None;
    }
    let mut fields = Fields(&bytes[5..]);
    let length = usize::try_from(fields.varint()?).ok()?;
    let (segment_number, page) = (fields.varint()?, fields.varint()?);
    let header_bytes = bytes.len() - fields.0.len();
    let body = fields.take(length)?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(body);
    crc.update(&bytes[4..header_bytes]);
    let stored = u32::from_le_bytes(*bytes.first_chunk()?);
    (crc.finalize() ^ u32::MAX == stored).then_some(Message { kind, segment_number, page, header_bytes, body })
}

/// Decodes the body of a message; `None` for pages of the index, and for changes that are not of a record.
fn content(kind: u8, body: &[u8]) -> Option<Content<'_>> {
    let mut fields = Fields(body);
    if kind == PAGE {
        return page(&mut fields).map(Content::Page);
    }
    match fields.byte()? {
        0 => Some(Content::Put { suffix: fields.bytes()?, value: fields.bytes()? }),
        1 => Some(Content::Remove { suffix: fields.bytes()? }),
        _ => None,
    }
}

fn page<'a>(fields: &mut Fields<'a>) -> Option<Page<'a>> {
    let (_next, _merging_child, _merging) = (fields.varint()?, fields.varint()?, fields.byte()?);
    let prefix_bytes = usize::from(fields.byte()?);
    let (first, end) = (fields.bytes()?, fields.bytes()?);
    if fields.byte()? != 0 {
        return None;
    }
    let count = usize::try_from(fields.varint()?).ok()?;
    let keys = (0..count).map(|_| fields.bytes()).collect::<Option<Vec<_>>>()?;
    let values = (0..count).map(|_| fields.bytes()).collect::<Option<Vec<_>>>()?;
    let prefix = first.get(..prefix_bytes)?;
    let end = (!end.is_empty()).then_some(end);
    Some(Page { first, end, prefix, records: keys.into_iter().zip(values).collect() })
}

/// Decodes fields from the front of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    fn varint(&mut self) -> Option<u64> {
        let first = self.byte()?;
        Some(match first {
            0..=240 => first.into(),
            241..=248 => 240 + 256 * (u64::from(first) - 241) + u64::from(self.byte()?),
            249 => 2288 + 256 * u64::from(self.byte()?) + u64::from(self.byte()?),
            _ => {
                let mut bytes = [0; 8];
                let count = usize::from(first) - 247;
                bytes[..count].copy_from_slice(self.take(count)?);
                u64::from_le_bytes(bytes)
            }
        })
    }
}
