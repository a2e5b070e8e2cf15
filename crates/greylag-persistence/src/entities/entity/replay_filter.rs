//! Checks the writers of the records of a replay, for histories that no fence protected.
//!
//! Two writers that ran at the same time leave records with overlapping numbers. The records of
//! the newer writer count, since a writer that starts later has read the earlier records. A record is wrong if its
//! writer was superseded by a later one, or if it does not follow its own writer's last record; and the
//! records of a superseded writer are wrong from the number on at which its successor began.
//!
//! To repair, the filter holds records back in a window, so that it can drop those that a newer writer
//! turns out to replace; the window survives the ends of pages. Other modes hold no records back. Recovery checks
//! that numbers are contiguous after the filter; a number is not missing if its record was dropped and no other record
//! has it. Source: persistence §2.5 (replay filter).

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroUsize;

use crate::contract::records::event::{SeqNr, StoredEvent, WriterUuid};

/// What follows on records of overlapping writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayFilterMode {
    /// Recovery fails. Default for a journal that fences, where overlapping writers mean damage.
    Fail,
    /// The older writer's records are dropped, with a warning. Default for other journals.
    RepairByDiscardOld,
    /// A warning; all records are passed on.
    Warn,
    /// Records are passed on without a check.
    Off,
}

/// Settings of the search for overlapping writers. Source: persistence §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayFilterSettings {
    /// What follows on an overlap. Default: fail if the journal fences, else repair.
    pub mode: Option<ReplayFilterMode>,
    /// Number of records held back for repair. Default 100.
    pub window: NonZeroUsize,
    /// Number of superseded writers kept. Default 10.
    pub max_old_writers: NonZeroUsize,
}

impl Default for ReplayFilterSettings {
    fn default() -> Self {
        Self {
            mode: None,
            window: NonZeroUsize::new(100).expect("not zero"),
            max_old_writers: NonZeroUsize::new(10).expect("not zero"),
        }
    }
}

impl ReplayFilterSettings {
    /// The mode for a journal with this `fencing`.
    pub fn mode_for(&self, fencing: bool) -> ReplayFilterMode {
        let default = if fencing { ReplayFilterMode::Fail } else { ReplayFilterMode::RepairByDiscardOld };
        self.mode.unwrap_or(default)
    }
}

/// A record that overlaps the records of another writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event {seq_nr} of writer {writer} overlaps the events of writer {other}")]
pub struct WritersOverlap {
    /// Number of the record that does not belong there.
    pub seq_nr: SeqNr,
    /// The writer of the record.
    pub writer: WriterUuid,
    /// The writer whose record it overlaps.
    pub other: WriterUuid,
}

/// The filter of one replay.
#[derive(Debug)]
pub(crate) struct ReplayFilter {
    mode: ReplayFilterMode,
    window: usize,
    max_old_writers: usize,
    current: Option<(WriterUuid, SeqNr)>,
    former: VecDeque<WriterUuid>,
    /// The greatest number passed on or held back.
    highest: SeqNr,
    held: VecDeque<StoredEvent>,
    /// The numbers of dropped records that the replay has not passed yet.
    dropped: BTreeSet<SeqNr>,
}

impl ReplayFilter {
    pub(crate) fn new(settings: ReplayFilterSettings, fencing: bool) -> Self {
        Self {
            mode: settings.mode_for(fencing),
            window: settings.window.get(),
            max_old_writers: settings.max_old_writers.get(),
            current: None,
            former: VecDeque::new(),
            highest: SeqNr::ZERO,
            held: VecDeque::new(),
            dropped: BTreeSet::new(),
        }
    }

    /// Number of records held back.
    pub(crate) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// Takes the next record; appends the records to apply to `out`.
    ///
    /// # Errors
    /// [`WritersOverlap`] in mode `Fail`.
    pub(crate) fn push(&mut self, record: StoredEvent, out: &mut Vec<StoredEvent>) -> Result<(), WritersOverlap> {
        if self.mode == ReplayFilterMode::Off {
            out.push(record);
            return Ok(());
        }
        let (writer, seq_nr) = (record.writer_uuid, record.seq_nr);
        let drop_it = match self.current {
            // Equal numbers are left to recovery's check for contiguous numbers.
            Some((current, last)) if current == writer && seq_nr < last => self.judge(seq_nr, writer, current)?,
            Some((current, _)) if current == writer => {
                self.current = Some((writer, seq_nr));
                false
            }
            Some((current, _)) if self.former.contains(&writer) => self.judge(seq_nr, writer, current)?,
            Some((current, _)) => {
                self.supersede(current, writer, seq_nr)?;
                false
            }
            None => {
                self.current = Some((writer, seq_nr));
                false
            }
        };
        if drop_it {
            self.dropped.insert(seq_nr);
        } else {
            self.hold(record, out);
        }
        Ok(())
    }

    /// The first number from `expected` on, and not above `until`, that is not of a dropped record: a dropped record's
    /// number is used, although no event is applied for it.
    pub(crate) fn after_dropped(&self, expected: SeqNr, until: SeqNr) -> SeqNr {
        let mut next = expected;
        while next < until && self.dropped.contains(&next) {
            next = SeqNr::saturating(next.as_u64() + 1);
        }
        next
    }

    /// Forgets the dropped records that the replay has passed.
    pub(crate) fn pass(&mut self, expected: SeqNr) {
        self.dropped = self.dropped.split_off(&expected);
    }

    /// Passes on all records held back, at the end of the replay.
    pub(crate) fn finish(&mut self, out: &mut Vec<StoredEvent>) {
        out.extend(self.held.drain(..));
    }

    /// A new writer began at `seq_nr`: drops the old writers' records from there on, as far as the mode says.
    fn supersede(&mut self, old: WriterUuid, new: WriterUuid, seq_nr: SeqNr) -> Result<(), WritersOverlap> {
        if self.former.len() == self.max_old_writers {
            self.former.pop_front();
        }
        self.former.push_back(old);
        self.current = Some((new, seq_nr));
        if self.highest < seq_nr {
            return Ok(());
        }
        if self.mode == ReplayFilterMode::RepairByDiscardOld {
            self.held.retain(|held| {
                let counts = held.seq_nr < seq_nr;
                if !counts {
                    tracing::warn!(id = %held.id, seq_nr = %held.seq_nr, writer = %held.writer_uuid, by = %new, "event of a superseded writer dropped");
                    self.dropped.insert(held.seq_nr);
                }
                counts
            });
            self.highest = self.held.back().map_or(self.highest, |held| held.seq_nr);
            return Ok(());
        }
        self.judge(self.highest, old, new).map(drop)
    }

    /// Handles a record that does not belong there; returns whether it is dropped.
    fn judge(&self, seq_nr: SeqNr, writer: WriterUuid, other: WriterUuid) -> Result<bool, WritersOverlap> {
        let overlap = WritersOverlap { seq_nr, writer, other };
        match self.mode {
            ReplayFilterMode::Fail => return Err(overlap),
            ReplayFilterMode::RepairByDiscardOld => tracing::warn!(%overlap, "event of an overlapping writer dropped"),
            ReplayFilterMode::Warn | ReplayFilterMode::Off => {
                tracing::warn!(%overlap, "event of an overlapping writer passed on");
            }
        }
        Ok(self.mode == ReplayFilterMode::RepairByDiscardOld)
    }

    fn hold(&mut self, record: StoredEvent, out: &mut Vec<StoredEvent>) {
        self.highest = self.highest.max(record.seq_nr);
        if self.mode != ReplayFilterMode::RepairByDiscardOld {
            return out.push(record);
        }
        if self.held.len() == self.window {
            out.extend(self.held.pop_front());
        }
        self.held.push_back(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::records::event::{EventKind, Timestamp, WriterEpoch};
    use ReplayFilterMode::{Fail, Off, RepairByDiscardOld, Warn};

    /// `a1` is event 1 of writer `a`.
    fn record(text: &str) -> StoredEvent {
        let (writer, number) = text.split_at(1);
        StoredEvent {
            id: "Counter|1".parse().unwrap(),
            seq_nr: SeqNr::from(number.parse::<u32>().unwrap()),
            timestamp: Timestamp::default(),
            writer_uuid: WriterUuid::from_u128(u128::from(writer.as_bytes()[0])),
            writer_epoch: WriterEpoch::NONE,
            codec_id: greylag_core::CodecId::JSON,
            manifest: "counter.event".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: text.to_owned().into(),
            metadata: Default::default(),
            tags: Default::default(),
            crc32c: 0,
        }
    }

    /// The records that pass, with a window of `window`; or the number of the record that failed.
    fn filtered(mode: ReplayFilterMode, window: usize, records: &str) -> Result<String, u64> {
        let window = NonZeroUsize::new(window).unwrap();
        let settings = ReplayFilterSettings { mode: Some(mode), window, ..ReplayFilterSettings::default() };
        let (mut filter, mut out) = (ReplayFilter::new(settings, true), Vec::new());
        for text in records.split_whitespace() {
            filter.push(record(text), &mut out).map_err(|overlap| overlap.seq_nr.as_u64())?;
            assert!(filter.held_count() <= window.get());
        }
        filter.finish(&mut out);
        let texts: Vec<_> = out.iter().map(|record| std::str::from_utf8(&record.payload).unwrap()).collect();
        Ok(texts.join(" "))
    }

    /// Scenario persistence 50: every clause, in every mode.
    #[test]
    fn scenario_50_of_overlapping_writers_the_newer_counts() {
        for (what, records, repaired, fails_at) in [
            ("one writer", "a1 a2 a3", "a1 a2 a3", None),
            ("writers one after the other", "a1 a2 b3 b4 c5", "a1 a2 b3 b4 c5", None),
            ("the same number from a newer writer", "a1 a2 a3 b3 b4", "a1 a2 b3 b4", Some(3)),
            ("several numbers", "a1 a2 a3 a4 b2 b3 b4 b5", "a1 b2 b3 b4 b5", Some(4)),
            ("the old writer after the switch", "a1 a2 b3 a3 b4 a4 a5", "a1 a2 b3 b4", Some(3)),
            ("several old writers", "a1 b2 c3 a2 b3 c4 b4 a4", "a1 b2 c3 c4", Some(2)),
            ("two switches at one number", "a1 a2 b2 c2 c3", "a1 c2 c3", Some(2)),
            ("a number that falls", "a1 a2 a3 a2", "a1 a2 a3", Some(2)),
            ("an equal number is fine here", "a1 a2 a2", "a1 a2 a2", None),
        ] {
            assert_eq!(filtered(RepairByDiscardOld, 100, records), Ok(repaired.to_owned()), "{what}, repaired");
            assert_eq!(filtered(Fail, 100, records), fails_at.map_or(Ok(records.to_owned()), Err), "{what}, failing");
            assert_eq!(filtered(Warn, 100, records), Ok(records.to_owned()), "{what}, warning");
            assert_eq!(filtered(Off, 100, records), Ok(records.to_owned()), "{what}, off");
        }
    }

    #[test]
    fn only_the_window_can_be_repaired() {
        // The first two of a1 to a4 have left the window; recovery's check for contiguous numbers finds the repeat.
        assert_eq!(filtered(RepairByDiscardOld, 2, "a1 a2 a3 a4 b1 b2"), Ok("a1 a2 b1 b2".to_owned()));
        assert_eq!(filtered(Fail, 2, "a1 a2 a3 a4 b1 b2"), Err(4));
    }

    /// `max_old_writers`: a late record of a forgotten writer looks like the first record of a new writer.
    #[test]
    fn only_so_many_superseded_writers_are_remembered() {
        for (most, verdict) in [(1, Ok(4)), (2, Err(4))] {
            let max_old_writers = NonZeroUsize::new(most).unwrap();
            let settings =
                ReplayFilterSettings { mode: Some(Fail), max_old_writers, ..ReplayFilterSettings::default() };
            let (mut filter, mut out) = (ReplayFilter::new(settings, true), Vec::new());
            let pushed = "a1 b2 c3 a4".split(' ').try_for_each(|text| filter.push(record(text), &mut out));
            let passed = pushed.map(|()| out.len()).map_err(|overlap| overlap.seq_nr.as_u64());
            assert_eq!(passed, verdict, "{most} are remembered");
        }
    }

    #[test]
    fn the_mode_follows_the_journal_unless_it_is_set() {
        let settings = ReplayFilterSettings::default();
        assert_eq!((settings.mode_for(true), settings.mode_for(false)), (Fail, RepairByDiscardOld));
        let off = ReplayFilterSettings { mode: Some(Off), ..settings };
        assert_eq!((off.mode_for(true), off.mode_for(false)), (Off, Off));
    }
}
