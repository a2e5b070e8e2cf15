//! One round of anti-entropy with one peer: finds the differences and exchanges them.
//!
//! The opener sends its sum. If the other's differs, both sides descend: where a part differs, each answers with sums
//! one level deeper, with a list if it holds few keys there, or with the entries at once if the other holds nothing.
//! Listed differences travel as entries both ways, very large values in parts ([`super::repair`]). A round may cover a
//! part of the hash space only: a new node asks several peers for one share each.
//!
//! All these messages are numbered per round and direction. Each side reports how many it has processed and sent; the
//! opener knows that the round is complete when both sides have processed everything that the other sent and neither
//! has anything left. A lost message therefore stalls the round but never fakes its end; a stalled round is dropped and
//! the next one begins afresh. Source: ddata G9, G10, G13.

mod large_values;
mod numbering;
mod queue;
mod round;

use std::time::Duration;

pub(crate) use queue::{fill, keys_of};
pub(crate) use round::Round;

/// How long a message in fragments may take.
pub(crate) const FRAGMENTS_TIMEOUT: Duration = Duration::from_secs(30);
