//! Messages and probes of one shard that wait for a route, in the order in which they will leave.
//!
//! Inserting an entry costs the same however many wait: counts over the other entries are updated as entries come and
//! go. Source: sharding §2.5, §2.9.

use std::collections::VecDeque;
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use crate::ids::RegionId;
use crate::machine::region::protocol::MessageInfo;

/// A message or probe that waits for a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::machine::region) struct Waiting {
    pub(in crate::machine::region) content: Content,
    pub(in crate::machine::region) origin: RegionId,
    /// The generation under which the entry first left its origin; `None` if it has not left.
    pub(in crate::machine::region) first: Option<Generation>,
    /// The generation in the stamp of the last sender.
    pub(in crate::machine::region) stamped: Option<Generation>,
    /// How many regions have forwarded the entry, including this region if it is forwarded from here.
    pub(in crate::machine::region) hops: u8,
    pub(in crate::machine::region) rank: Rank,
    /// When the entry was put into the buffer; `None` for a message given back by a shard.
    pub(in crate::machine::region) kept_at: Option<Instant>,
}

impl Waiting {
    fn is_message(&self) -> bool {
        matches!(self.content, Content::Message(_))
    }

    /// Whether the entry goes ahead of all others when the generation that it waits for ends. Probes do not; nor do own
    /// messages that have not left while earlier ones of this region are on an old path (`is_path_open`), which must
    /// come first.
    pub(in crate::machine::region) fn becomes_leftover(&self, is_path_open: bool) -> bool {
        self.is_message() && !(is_path_open && self.first.is_none())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::machine::region) enum Content {
    Message(MessageInfo),
    Probe { nonce: u64 },
}

impl Content {
    /// Bytes that count towards the buffer's limit.
    pub(in crate::machine::region) fn size(&self) -> u64 {
        match self {
            Self::Message(message) => message.size.into(),
            Self::Probe { .. } => 0,
        }
    }
}

/// Why an entry stands where it does in the buffer, front to back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::machine::region) enum Rank {
    /// Unhandled when the hosting of this generation ended here. Valid for the allocation that directly follows that
    /// generation, and for no other.
    Leftover { ended: Generation },
    /// A leftover that its former owner's node sent here, valid for this generation.
    Handed { by: UniqueAddress, addressed: Generation },
    /// Given back by a failed shard of this generation: the message has passed the floor already.
    Taken { generation: Generation },
    /// Submitted in this region, sent to another one, and back again.
    Back,
    /// Everything else.
    Plain,
}

impl Rank {
    fn is_leftover(&self) -> bool {
        matches!(self, Self::Leftover { .. } | Self::Handed { .. })
    }
}

/// The waiting entries of one shard.
#[derive(Debug, Default)]
pub(in crate::machine::region) struct Buffer {
    /// Entries of every rank but `Plain`: leftovers, messages given back by a shard, messages that came back.
    ahead: VecDeque<Waiting>,
    /// Entries of rank `Plain`, in order of arrival.
    plain: VecDeque<Waiting>,
    /// Entries that the flush under way has passed over, because they wait for a newer generation.
    newer: VecDeque<Waiting>,
    /// Entries that are no probes.
    messages: usize,
    /// Entries of rank `Leftover`.
    leftovers: usize,
    /// An upper bound of the stamped generations of all entries.
    newest: Option<Generation>,
}

impl Buffer {
    /// Puts an entry where its rank belongs.
    pub(in crate::machine::region) fn insert(&mut self, waiting: Waiting) {
        self.count(&waiting);
        match waiting.rank {
            Rank::Plain => self.plain.push_back(waiting),
            Rank::Back => self.ahead.push_back(waiting),
            Rank::Taken { .. } => self.ahead.push_front(waiting),
            Rank::Leftover { .. } | Rank::Handed { .. } => {
                let last = self.ahead.iter().rposition(|before| before.rank.is_leftover());
                self.ahead.insert(last.map_or(0, |last| last + 1), waiting);
            }
        }
    }

    /// Puts an entry in front of all others.
    pub(in crate::machine::region) fn push_front(&mut self, waiting: Waiting) {
        self.count(&waiting);
        self.ahead.push_front(waiting);
    }

    /// Puts an entry behind all others of its rank class: for entries that were taken out and keep their order.
    pub(in crate::machine::region) fn push_back(&mut self, waiting: Waiting) {
        self.count(&waiting);
        match waiting.rank {
            Rank::Plain => self.plain.push_back(waiting),
            _ => self.ahead.push_back(waiting),
        }
    }

    /// Source: sharding §2.5.
    pub(in crate::machine::region) fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.ahead.len() + self.plain.len() + self.newer.len() > 64 {
            return;
        }
        let all = || self.ahead.iter().chain(&self.plain).chain(&self.newer);
        assert_eq!(self.messages, all().filter(|waiting| waiting.is_message()).count(), "messages are counted");
        let leftovers = all().filter(|waiting| matches!(waiting.rank, Rank::Leftover { .. })).count();
        assert_eq!(self.leftovers, leftovers, "leftovers are counted");
        let waits = self.ahead.iter().chain(&self.plain);
        assert!(waits.map(|waiting| waiting.stamped).max() <= Some(self.newest), "no stamp is beyond the newest");
        assert!(self.plain.iter().all(|waiting| waiting.rank == Rank::Plain), "only plain entries stand behind");
    }

    fn count(&mut self, waiting: &Waiting) {
        self.messages += usize::from(waiting.is_message());
        self.leftovers += usize::from(matches!(waiting.rank, Rank::Leftover { .. }));
        self.newest = self.newest.max(waiting.stamped);
    }

    /// Takes everything out, front to back.
    pub(in crate::machine::region) fn take(&mut self) -> Vec<Waiting> {
        let Self { ahead, plain, newer, .. } = std::mem::take(self);
        ahead.into_iter().chain(plain).chain(newer).collect()
    }

    /// Takes out the first leftover.
    pub(in crate::machine::region) fn pop_leftover(&mut self) -> Option<Waiting> {
        if self.leftovers == 0 {
            return None;
        }
        let is_leftover = |waiting: &Waiting| matches!(waiting.rank, Rank::Leftover { .. });
        let at = self.ahead.iter().position(is_leftover)?;
        let waiting = self.ahead.remove(at)?;
        self.count_out(&waiting);
        Some(waiting)
    }

    /// Takes out the first entry.
    pub(in crate::machine::region) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.ahead.pop_front().or_else(|| self.plain.pop_front())?;
        self.count_out(&waiting);
        if self.is_empty() {
            self.newest = None;
        }
        Some(waiting)
    }

    /// Takes out the first entry for this generation. Entries for a newer generation stay, behind all others, until
    /// [`Buffer::end_flush`].
    pub(in crate::machine::region) fn pop_for(&mut self, generation: Generation) -> Option<Waiting> {
        loop {
            let waiting = self.pop()?;
            let is_newer = waiting.stamped > Some(generation) && !matches!(waiting.rank, Rank::Leftover { .. });
            if !is_newer {
                return Some(waiting);
            }
            self.messages += usize::from(waiting.is_message());
            self.newer.push_back(waiting);
        }
    }

    /// Whether entries are left that the flush has not passed over.
    pub(in crate::machine::region) fn has_more(&self) -> bool {
        !self.ahead.is_empty() || !self.plain.is_empty()
    }

    /// Ends a flush: all entries for the generation have left.
    pub(in crate::machine::region) fn end_flush(&mut self) {
        self.newest = None;
        for waiting in std::mem::take(&mut self.newer) {
            self.messages -= usize::from(waiting.is_message());
            self.push_back(waiting);
        }
    }

    fn count_out(&mut self, waiting: &Waiting) {
        self.messages -= usize::from(waiting.is_message());
        self.leftovers -= usize::from(matches!(waiting.rank, Rank::Leftover { .. }));
    }

    /// Takes out the plain message that has waited longest.
    pub(in crate::machine::region) fn take_oldest_plain(&mut self) -> Option<Waiting> {
        let oldest = self.plain.iter().position(Waiting::is_message)?;
        self.messages -= 1;
        self.plain.remove(oldest)
    }

    /// Takes out the messages that have waited since `cutoff` or longer, front to back.
    pub(in crate::machine::region) fn take_older(&mut self, cutoff: Instant) -> Vec<Waiting> {
        let is_older = |waiting: &Waiting| waiting.is_message() && waiting.kept_at.is_some_and(|at| at <= cutoff);
        let mut older: Vec<_> = Vec::new();
        for waiting in std::mem::take(&mut self.ahead) {
            if is_older(&waiting) { older.push(waiting) } else { self.ahead.push_back(waiting) }
        }
        self.leftovers -= older.iter().filter(|waiting| matches!(waiting.rank, Rank::Leftover { .. })).count();
        // Plain entries stand in the order in which they were inserted, with probes among them.
        let mut probes = Vec::new();
        while let Some(first) = self.plain.pop_front_if(|first| !first.is_message() || is_older(first)) {
            if first.is_message() { older.push(first) } else { probes.push(first) }
        }
        probes.into_iter().rev().for_each(|probe| self.plain.push_front(probe));
        self.messages -= older.len();
        older
    }

    /// When the longest-waiting message was inserted.
    pub(in crate::machine::region) fn oldest(&self) -> Option<Instant> {
        let messages = |entries: &VecDeque<Waiting>| entries.iter().find_map(|waiting| waiting.kept_at);
        let ahead = self.ahead.iter().filter_map(|waiting| waiting.kept_at).min();
        [ahead, messages(&self.plain)].into_iter().flatten().min()
    }

    pub(in crate::machine::region) fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.plain.is_empty() && self.newer.is_empty()
    }

    /// Whether the buffer equals a new one.
    pub(in crate::machine::region) fn is_new(&self) -> bool {
        self.is_empty() && self.newest.is_none()
    }

    /// Entries that are no probes.
    pub(in crate::machine::region) fn messages(&self) -> usize {
        self.messages
    }

    /// Whether leftovers of an ended hosting wait here.
    pub(in crate::machine::region) fn has_leftovers(&self) -> bool {
        self.leftovers > 0
    }

    /// Whether an entry may have been stamped with a larger generation. The entry may have been dropped since: then the
    /// coordinator is asked once more than necessary.
    pub(in crate::machine::region) fn may_hold_newer(&self, generation: Generation) -> bool {
        self.newest > Some(generation)
    }

    /// Makes leftovers of all entries sent to the generation that ends: they go ahead of all others to the next owner.
    pub(in crate::machine::region) fn make_leftovers(&mut self, generation: Generation, is_path_open: bool) {
        let mut all = self.take();
        for waiting in &mut all {
            if waiting.becomes_leftover(is_path_open) {
                waiting.first = waiting.first.or(Some(generation));
                waiting.rank = Rank::Leftover { ended: generation };
            }
        }
        // Move leftovers to the front, whatever waited between them.
        let (leftovers, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|waiting| matches!(waiting.rank, Rank::Leftover { .. }));
        leftovers.into_iter().chain(others).for_each(|waiting| self.push_back(waiting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::region::protocol::Token;

    fn generation(seq: u64) -> Generation {
        Generation::new(1, seq).unwrap()
    }

    fn entry(token: u64, rank: Rank) -> Waiting {
        let content = Content::Message(MessageInfo::of(Token(token)));
        let origin = RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 };
        Waiting { content, origin, first: None, stamped: None, hops: 0, rank, kept_at: None }
    }

    fn probe(nonce: u64) -> Waiting {
        Waiting { content: Content::Probe { nonce }, ..entry(0, Rank::Plain) }
    }

    fn handed() -> Rank {
        Rank::Handed { by: "b:1#2".parse().unwrap(), addressed: generation(2) }
    }

    fn tokens(buffer: &mut Buffer) -> Vec<u64> {
        let token = |waiting: Waiting| match waiting.content {
            Content::Message(message) => message.token.0,
            Content::Probe { nonce } => 1_000 + nonce,
        };
        buffer.take().into_iter().map(token).collect()
    }

    #[test]
    fn entries_leave_by_rank_and_within_a_rank_as_they_came() {
        let mut buffer = Buffer::default();
        let ranks =
            [(1, Rank::Plain), (2, Rank::Back), (3, handed()), (4, Rank::Plain), (5, handed()), (6, Rank::Back)];
        ranks.into_iter().for_each(|(token, rank)| buffer.insert(entry(token, rank)));
        buffer.insert(entry(7, Rank::Taken { generation: generation(1) }));
        buffer.push_front(entry(8, Rank::Plain));
        assert_eq!(buffer.messages(), 8);
        assert_eq!(tokens(&mut buffer), [8, 7, 3, 5, 2, 6, 1, 4]);
        assert!(buffer.is_empty());
        assert_eq!(buffer.messages(), 0);
    }

    #[test]
    fn the_oldest_plain_message_makes_room() {
        let mut buffer = Buffer::default();
        [probe(1), entry(1, Rank::Back), entry(2, Rank::Plain), entry(3, Rank::Plain)]
            .into_iter()
            .for_each(|waiting| buffer.insert(waiting));
        let taken = buffer.take_oldest_plain().map(|waiting| waiting.content);
        assert_eq!(taken, Some(Content::Message(MessageInfo::of(Token(2)))));
        assert_eq!(buffer.messages(), 2);
        assert_eq!(tokens(&mut buffer), [1, 1_001, 3]);
        assert_eq!(buffer.take_oldest_plain(), None);
    }

    #[test]
    fn entries_for_an_ended_generation_go_first() {
        for (is_path_open, expected) in [(false, vec![1, 2, 3, 1_001]), (true, vec![1, 3, 1_001, 2])] {
            let mut buffer = Buffer::default();
            let forwarded = Waiting { first: Some(generation(1)), ..entry(3, Rank::Plain) };
            [entry(1, Rank::Back), probe(1), entry(2, Rank::Plain), forwarded]
                .into_iter()
                .enumerate()
                .map(|(at, waiting)| if at == 0 { Waiting { first: Some(generation(1)), ..waiting } } else { waiting })
                .for_each(|waiting| buffer.insert(waiting));
            buffer.make_leftovers(generation(2), is_path_open);
            assert!(buffer.has_leftovers());
            assert_eq!(tokens(&mut buffer), expected, "path open: {is_path_open}");
            assert!(!buffer.has_leftovers());
        }
    }

    /// A flush keeps entries for a newer generation, in their order.
    #[test]
    fn a_flush_passes_over_what_is_for_a_newer_generation() {
        let newer = |token| Waiting { stamped: Some(generation(5)), ..entry(token, Rank::Plain) };
        let mut buffer = Buffer::default();
        [newer(1), entry(2, Rank::Plain), newer(3), entry(4, Rank::Back)]
            .into_iter()
            .for_each(|waiting| buffer.insert(waiting));
        let mut left = Vec::new();
        while let Some(Waiting { content: Content::Message(message), .. }) = buffer.pop_for(generation(4)) {
            left.push(message.token.0);
        }
        assert_eq!((left, buffer.messages(), buffer.has_more()), (vec![4, 2], 2, false));
        assert!(!buffer.is_empty(), "they wait");
        buffer.end_flush();
        assert!(buffer.may_hold_newer(generation(4)));
        assert_eq!(tokens(&mut buffer), [1, 3]);
    }

    #[test]
    fn a_larger_stamp_is_known_until_the_buffer_is_emptied() {
        let mut buffer = Buffer::default();
        buffer.insert(Waiting { stamped: Some(generation(5)), ..entry(1, Rank::Plain) });
        buffer.insert(entry(2, Rank::Plain));
        assert!(buffer.may_hold_newer(generation(4)) && !buffer.may_hold_newer(generation(5)));
        buffer.take();
        buffer.insert(entry(3, Rank::Plain));
        assert!(!buffer.may_hold_newer(generation(4)));
    }
}
