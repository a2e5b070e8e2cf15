//! Interns names that repeat on a stream: a name is sent once with a number, and as the number from then on.
//!
//! The writing half numbers names from 1 in the order of their first use; the envelope that first uses a name carries
//! both name and number, later ones carry the number alone. Once the reader's table is full, names are written out. The
//! tables belong to one stream: the next stream begins with empty ones, so there is nothing to agree on after a
//! reconnect. Source: cluster T37.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::malformed::Malformed;
use crate::messages::envelope::MAX_NAME;

/// The longest name, in bytes, that a table keeps. Longer names are written out each time, so that a table is bounded
/// in bytes, too.
const MAX_KEPT: usize = 256;

/// How a name is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// As text.
    Text,
    /// As text, with the number that stands for the name from now on.
    First(u32),
    /// As a number.
    Number(u32),
}

/// The two kinds of names of an envelope; each is compared with its predecessor of the same kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Path,
    Manifest,
}

/// The table of names of one stream, on the writer's side.
#[derive(Debug, Default)]
pub(crate) struct NameWriter {
    max: usize,
    numbers: HashMap<Arc<str>, u32>,
    /// The name with number n is at index n - 1.
    texts: Vec<Arc<str>>,
    /// The number used last, per role; 0 for none. Most messages repeat the names of the one before.
    recent: [u32; 2],
}

impl NameWriter {
    /// A table of at most `max` names; with 0 every name is written out.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Decides how to write `name`, which takes the next number if there is one left.
    pub(crate) fn spell(&mut self, role: Role, name: &str) -> Spelling {
        if self.max == 0 || name.is_empty() || name.len() > MAX_KEPT {
            return Spelling::Text;
        }
        let recent = self.recent[role as usize];
        if recent != 0 && *self.texts[recent as usize - 1] == *name {
            return Spelling::Number(recent);
        }
        if let Some(&number) = self.numbers.get(name) {
            self.recent[role as usize] = number;
            return Spelling::Number(number);
        }
        if self.texts.len() >= self.max {
            return Spelling::Text;
        }
        let text: Arc<str> = name.into();
        self.texts.push(text.clone());
        let number = u32::try_from(self.texts.len()).expect("a table has at most 2^16 names");
        self.numbers.insert(text, number);
        self.recent[role as usize] = number;
        Spelling::First(number)
    }

    /// The number of names in the table; for [`NameWriter::forget_since`].
    pub(crate) fn mark(&self) -> usize {
        self.texts.len()
    }

    /// Takes back the numbers given since `mark`: the envelope that carried them is not sent after all.
    pub(crate) fn forget_since(&mut self, mark: usize) {
        if self.texts.len() > mark {
            for text in self.texts.drain(mark..) {
                self.numbers.remove(&text);
            }
            self.recent = [0; 2];
        }
    }
}

/// The names that arrived on one stream. Names with numbers are the stream's table; others are remembered for a while,
/// to be shared in place of being allocated again.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbered: Vec<Arc<str>>,
    max_numbered: usize,
    known: HashSet<Arc<str>>,
    /// The last name: most messages have the same recipient as the one before.
    last: Option<Arc<str>>,
    empty: Arc<str>,
}

impl Names {
    /// Limit of remembered names without numbers, whatever a peer sends.
    const MAX_KNOWN: usize = 4096;

    /// Keeps at most `max_numbered` names with numbers; the answer to the Hello tells the peer this limit.
    pub(crate) fn new(max_numbered: usize) -> Self {
        Self { max_numbered, ..Self::default() }
    }

    /// Returns the name that was written as `text` and `number`, either of which may be missing.
    pub(super) fn read(&mut self, text: &str, number: u32) -> Result<Arc<str>, Malformed> {
        match (text, number) {
            (text, 0) => Ok(self.share(check_name(text)?)),
            ("", number) => match self.numbered.get(number as usize - 1) {
                Some(name) => Ok(name.clone()),
                None => Err(Malformed(format!("no name has the number {number}"))),
            },
            (text, number) => {
                if self.numbered.len() >= self.max_numbered {
                    return Err(Malformed(format!("more than {} numbered names", self.max_numbered)));
                }
                if number as usize != self.numbered.len() + 1 {
                    return Err(Malformed(format!("number {number} after {}", self.numbered.len())));
                }
                if text.len() > MAX_KEPT {
                    let len = text.len();
                    return Err(Malformed(format!("a name of {len} bytes with a number, at most {MAX_KEPT} have one")));
                }
                let name: Arc<str> = text.into();
                self.numbered.push(name.clone());
                Ok(name)
            }
        }
    }

    /// Returns a name without a number, shared with an equal earlier one if that is remembered.
    pub(super) fn share(&mut self, name: &str) -> Arc<str> {
        if name.is_empty() {
            return self.empty.clone();
        }
        if let Some(last) = self.last.as_ref().filter(|last| ***last == *name) {
            return last.clone();
        }
        if name.len() > MAX_KEPT {
            return name.into();
        }
        let shared = self.look_up(name);
        self.last = Some(shared.clone());
        shared
    }

    fn look_up(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len() >= Self::MAX_KNOWN {
            self.known.clear();
        }
        let shared: Arc<str> = name.into();
        self.known.insert(shared.clone());
        shared
    }
}

/// Checks a path, a sub-path or a manifest: a name longer than any that a node sends is refused.
pub(super) fn check_name(name: &str) -> Result<&str, Malformed> {
    if name.len() > MAX_NAME {
        return Err(Malformed(format!("a name of {} bytes, at most {MAX_NAME} are allowed", name.len())));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(spelling: Spelling, name: &str) -> (&str, u32) {
        match spelling {
            Spelling::Text => (name, 0),
            Spelling::First(number) => (name, number),
            Spelling::Number(number) => ("", number),
        }
    }

    /// Cluster T37: the first use gives the number, later uses are the number; past the limit names are text.
    #[test]
    fn a_name_is_sent_once_until_the_table_is_full() {
        let mut names = NameWriter::new(2);
        assert_eq!(names.spell(Role::Path, "a"), Spelling::First(1));
        assert_eq!(names.spell(Role::Path, "a"), Spelling::Number(1));
        assert_eq!(names.spell(Role::Manifest, "a"), Spelling::Number(1), "both roles share one table");
        assert_eq!(names.spell(Role::Manifest, "b"), Spelling::First(2));
        assert_eq!(names.spell(Role::Path, "c"), Spelling::Text);
        assert_eq!(names.spell(Role::Path, "a"), Spelling::Number(1));
        assert_eq!(names.spell(Role::Manifest, ""), Spelling::Text);
        assert_eq!(NameWriter::new(0).spell(Role::Path, "a"), Spelling::Text);
    }

    #[test]
    fn a_number_that_never_left_is_given_again() {
        let mut names = NameWriter::new(10);
        names.spell(Role::Path, "a");
        let mark = names.mark();
        assert_eq!(names.spell(Role::Path, "b"), Spelling::First(2));
        names.forget_since(mark);
        assert_eq!(names.spell(Role::Path, "c"), Spelling::First(2));
        assert_eq!(names.spell(Role::Path, "b"), Spelling::First(3));
        assert_eq!(names.spell(Role::Path, "a"), Spelling::Number(1));
    }

    /// Cluster T36, T37: a table is bounded in bytes: a long name gets no number and is not kept.
    #[test]
    fn long_names_are_written_out_and_not_kept() {
        let (kept, long) = ("k".repeat(MAX_KEPT), "l".repeat(MAX_KEPT + 1));
        let (mut writer, mut reader) = (NameWriter::new(9), Names::new(9));
        assert_eq!(writer.spell(Role::Path, &kept), Spelling::First(1));
        assert_eq!(writer.spell(Role::Path, &long), Spelling::Text);
        assert_eq!(&*reader.read(&kept, 1).unwrap(), kept);
        assert!(reader.read(&long, 2).is_err());
        assert_eq!(&*reader.read(&long, 0).unwrap(), long);
        assert!(reader.known.is_empty() && reader.last.is_none());
        assert!(reader.read(&"x".repeat(MAX_NAME), 0).is_ok());
        assert!(reader.read(&"x".repeat(MAX_NAME + 1), 0).is_err());
    }

    /// Cluster T37: numbers that were never given, are out of order or exceed the table are refused.
    #[test]
    fn a_reader_keeps_what_it_promised_and_no_more() {
        let mut names = Names::new(2);
        assert!(names.read("", 1).is_err());
        assert!(names.read("a", 2).is_err());
        assert_eq!(&*names.read("a", 1).unwrap(), "a");
        assert!(names.read("b", 1).is_err(), "a number keeps its meaning");
        assert_eq!(&*names.read("b", 2).unwrap(), "b");
        assert!(names.read("c", 3).is_err());
        assert_eq!(&*names.read("", 1).unwrap(), "a");
        assert!(names.read("", u32::MAX).is_err());
        assert_eq!(&*names.read("plain", 0).unwrap(), "plain");
    }

    #[test]
    fn names_are_shared_and_their_number_is_bounded() {
        let mut names = Names::default();
        assert!(Arc::ptr_eq(&names.share("a"), &names.share("a")));
        for n in 0..3 * Names::MAX_KNOWN {
            names.share(&n.to_string());
        }
        assert!(names.known.len() <= Names::MAX_KNOWN);
    }

    proptest! {
        /// Cluster T37: whatever names are written, and whichever of them are taken back, they read back as they were.
        #[test]
        fn written_names_read_back(max in 0_usize..6, uses in prop::collection::vec(("[a-h]?", any::<bool>(), prop::bool::weighted(0.2)), 0..80)) {
            let (mut writer, mut reader) = (NameWriter::new(max), Names::new(max));
            for (name, is_path, is_dropped) in uses {
                let mark = writer.mark();
                let role = if is_path { Role::Path } else { Role::Manifest };
                let spelling = writer.spell(role, &name);
                if is_dropped {
                    writer.forget_since(mark);
                    continue;
                }
                let (text, number) = written(spelling, &name);
                prop_assert_eq!(&*reader.read(text, number).unwrap(), &*name);
                prop_assert!(reader.numbered.len() <= max);
            }
        }

        #[test]
        fn a_reader_never_panics_and_never_grows_past_its_room(uses in prop::collection::vec(("[a-c]?", 0_u32..6), 0..50)) {
            let mut reader = Names::new(3);
            for (text, number) in uses {
                let _ = reader.read(&text, number);
                prop_assert!(reader.numbered.len() <= 3);
            }
        }
    }
}
