//! One interleaving: performs every step on the stores, and compares with the model.

use bytes::Bytes;
use greylag_core::{CodecId, Generation};

use super::model::{ExpectedAnswer, Model};
use super::script::{Right, Script, Step};
use super::stores::Stores;
use crate::contract::error::{AppendError, ClaimError, DeleteError};
use crate::contract::head::{Claim, Under};
use crate::contract::journal::{Append, ReadRange};
use crate::contract::records::event::{Metadata, SeqNr, WriterEpoch, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, SnapshotCriteria};
use crate::contract::tck::harness::{Checked, Stop, ensure, equal, must};
use crate::contract::tck::writer::{event, read_all};

/// One writer's knowledge.
struct Writer {
    name: char,
    right: Right,
    uuid: WriterUuid,
    looked: WriterEpoch,
    claim: Option<Claim>,
    /// The right that the writer's last claim named.
    claimed: Option<Under>,
    /// The writer's state; `seq_nr` is the last number in it.
    state: Vec<String>,
    seq_nr: u64,
    /// The writer's last append, its texts, and whether its answer arrived.
    append: Option<(Append, Vec<String>, bool)>,
    written: u32,
    saved: u64,
}

pub(super) struct Play<'a> {
    stores: &'a Stores,
    id: PersistenceId,
    model: Model,
    writers: [Writer; 2],
    next_uuid: u128,
    story: String,
}

impl<'a> Play<'a> {
    pub(super) fn new(stores: &'a Stores, name: &str, rights: [Right; 2]) -> Self {
        let writer = |name, right, uuid| Writer {
            name,
            right,
            uuid: WriterUuid::from_u128(uuid),
            looked: WriterEpoch::NONE,
            claim: None,
            claimed: None,
            state: Vec::new(),
            seq_nr: 0,
            append: None,
            written: 0,
            saved: 0,
        };
        let id = PersistenceId::of("tck-writers", name).expect("names of cases are valid ids");
        let writers = [writer('A', rights[0], 1), writer('B', rights[1], 2)];
        Self { stores, id, model: Model::default(), writers, next_uuid: 3, story: format!("{rights:?}") }
    }

    pub(super) async fn run(mut self, scripts: &[Script; 2], order: &[bool]) -> Checked {
        let mut at = [0, 0];
        for is_other in order {
            let who = usize::from(*is_other);
            let step = scripts[who][at[who]];
            at[who] += 1;
            self.story.push_str(&format!(" {}:{step:?}", self.writers[who].name));
            let done = self.step(who, step).await;
            self.told(done)?;
        }
        let ended = self.end().await;
        self.told(ended)
    }

    /// Adds the steps so far to a failure.
    fn told(&self, checked: Checked) -> Checked {
        checked.map_err(|stop| match stop {
            Stop::Failed(what) => Stop::Failed(format!("{what}, after {}", self.story)),
            skipped @ Stop::Skipped(_) => skipped,
        })
    }

    async fn step(&mut self, who: usize, step: Step) -> Checked {
        match step {
            Step::Look => self.writers[who].looked = must("head", self.stores.journal.head(&self.id).await)?.epoch,
            Step::Claim | Step::ClaimUnheard => {
                let under = match self.writers[who].right {
                    Right::Generation(number) => Under::Generation(Generation::new(1, number).expect("a small number")),
                    Right::Seen => Under::Seen(self.writers[who].looked),
                };
                self.writers[who].claimed = Some(under);
                self.claim(who, under, step == Step::Claim).await?;
            }
            Step::ClaimAgain => {
                if let Some(under) = self.writers[who].claimed {
                    // A writer whose first claim was answered has no use for this answer.
                    let hears = self.writers[who].claim.is_none();
                    self.claim(who, under, hears).await?;
                }
            }
            Step::Append | Step::Unheard | Step::Post => {
                if self.write(who) && step != Step::Post {
                    self.append(who, step == Step::Append).await?;
                }
            }
            Step::Retry | Step::Deliver => self.append(who, step == Step::Retry).await?,
            Step::Restart => {
                let writer = &mut self.writers[who];
                writer.uuid = WriterUuid::from_u128(self.next_uuid);
                self.next_uuid += 1;
                (writer.claim, writer.claimed, writer.saved) = (None, None, 0);
            }
            Step::Snapshot => self.snapshot(who).await?,
            Step::Delete => self.delete(who, SeqNr::saturating(self.writers[who].saved)).await?,
            Step::DeleteAll => self.delete(who, SeqNr::MAX).await?,
        }
        let head = must("head", self.stores.journal.head(&self.id).await)?;
        equal("head", head, self.model.head)
    }

    async fn claim(&mut self, who: usize, under: Under, hears: bool) -> Checked {
        let uuid = self.writers[who].uuid;
        let answer = self.stores.journal.claim(&self.id, uuid, under).await;
        match (self.model.claim(uuid, under), answer) {
            (true, Ok(claim)) => {
                equal("claim", claim, self.model.head.as_claim())?;
                if hears { self.recover(who, claim).await } else { Ok(()) }
            }
            (false, Err(ClaimError::Fenced { current })) => {
                if hears {
                    self.writers[who].claim = None;
                }
                equal("head told with the fence", current, self.model.head)
            }
            (granted, answer) => Err(Stop::Failed(format!("the claim is to be granted: {granted}, but: {answer:?}"))),
        }
    }

    /// Reads the state that a claimer must know: the newest snapshot, and the events after it.
    async fn recover(&mut self, who: usize, claim: Claim) -> Checked {
        let newest = must("load", self.stores.snapshots.load(&self.id, SnapshotCriteria::LATEST).await)?;
        let from = newest.as_ref().map_or(SeqNr::ZERO, |snapshot| snapshot.seq_nr);
        ensure(from <= claim.highest, || format!("a snapshot of {from} where {} are stored", claim.highest))?;
        let covered = newest.map(|snapshot| String::from_utf8_lossy(&snapshot.payload).into_owned());
        let mut state: Vec<String> = covered.iter().flat_map(|text| text.split(' ')).map(str::to_owned).collect();
        let range = ReadRange::new(from.next().unwrap_or(SeqNr::MAX), SeqNr::MAX);
        let records = read_all(&self.stores.journal, &self.id, range).await?;
        state.extend(records.iter().map(|record| String::from_utf8_lossy(&record.payload).into_owned()));
        if from >= claim.deleted_to {
            equal("recovered", state.join(" "), self.model.text_to(u64::MAX))?;
        }
        let writer = &mut self.writers[who];
        (writer.claim, writer.state, writer.seq_nr) = (Some(claim), state, claim.highest.as_u64());
        Ok(())
    }

    /// Prepares an append of two events; returns whether the writer may write.
    fn write(&mut self, who: usize) -> bool {
        let writer = &mut self.writers[who];
        let Some(claim) = writer.claim else { return false };
        let texts: Vec<String> = (1..=2).map(|n| format!("{}{}", writer.name, writer.written + n)).collect();
        writer.written += 2;
        let events = texts.iter().map(|text| event(text.as_str())).collect();
        let (id, epoch, writer_uuid) = (self.id.clone(), claim.epoch, writer.uuid);
        let append = Append { id, epoch, writer_uuid, first: SeqNr::saturating(writer.seq_nr + 1), events };
        writer.append = Some((append, texts, false));
        true
    }

    /// Sends the last append, possibly not for the first time.
    async fn append(&mut self, who: usize, hears: bool) -> Checked {
        let Some((append, texts, heard)) = self.writers[who].append.clone() else { return Ok(()) };
        let answer = self.stores.journal.append(append.clone()).await;
        let expected = self.model.append(&append, &texts);
        let agrees = match &answer {
            Ok(_) => matches!(expected, ExpectedAnswer::Ok | ExpectedAnswer::StoredAndDeleted),
            Err(AppendError::Fenced { current }) => {
                equal("head told with the fence", *current, self.model.head)?;
                matches!(expected, ExpectedAnswer::Fenced | ExpectedAnswer::StoredAndDeleted)
            }
            Err(AppendError::Conflict { highest }) => {
                equal("highest of a conflict", *highest, self.model.head.highest)?;
                matches!(expected, ExpectedAnswer::Conflict | ExpectedAnswer::StoredAndDeleted)
            }
            Err(AppendError::Unknown(_)) => expected == ExpectedAnswer::StoredAndDeleted,
            Err(_) => false,
        };
        ensure(agrees, || format!("the append of {texts:?} must be {expected:?}, but: {answer:?}"))?;
        let writer = &mut self.writers[who];
        if hears && !heard && writer.uuid == append.writer_uuid {
            writer.append = Some((append, texts.clone(), true));
            if answer.is_ok() {
                writer.seq_nr += texts.len() as u64;
                writer.state.extend(texts);
            } else {
                writer.claim = None;
            }
        }
        Ok(())
    }

    async fn snapshot(&mut self, who: usize) -> Checked {
        let writer = &mut self.writers[who];
        if writer.claim.is_none() || writer.seq_nr == 0 {
            return Ok(());
        }
        let text = writer.state.join(" ");
        let snapshot = NewSnapshot {
            id: self.id.clone(),
            seq_nr: SeqNr::saturating(writer.seq_nr),
            codec_id: CodecId::JSON,
            manifest: "tck.state".to_owned(),
            schema_version: 1,
            payload: Bytes::from(text.clone()),
            metadata: Metadata::new(),
        };
        must("save", self.stores.snapshots.save(snapshot).await)?;
        writer.saved = writer.seq_nr;
        equal("what a snapshot says", &text, &self.model.text_to(writer.seq_nr))?;
        self.model.snapshots.insert(writer.seq_nr, text);
        Ok(())
    }

    async fn delete(&mut self, who: usize, to: SeqNr) -> Checked {
        let Some(claim) = self.writers[who].claim.filter(|_| !to.is_zero()) else { return Ok(()) };
        let answer = self.stores.journal.delete_to(&self.id, claim.epoch, to).await;
        match (self.model.delete(claim.epoch, to), answer) {
            (Some(expected), Ok(effective)) => equal("deleted up to", effective, expected),
            (None, Err(DeleteError::Fenced { current })) => equal("head told with the fence", current, self.model.head),
            (expected, answer) => Err(Stop::Failed(format!("a deletion must be {expected:?}, but: {answer:?}"))),
        }
    }

    /// Checks that the stored data is the model's, and that another writer can write: no writer is locked out.
    async fn end(&mut self) -> Checked {
        let records = read_all(&self.stores.journal, &self.id, ReadRange::all()).await?;
        let found: Vec<(u64, String, WriterUuid)> = records
            .iter()
            .map(|record| {
                let text = String::from_utf8_lossy(&record.payload).into_owned();
                (record.seq_nr.as_u64(), text, record.writer_uuid)
            })
            .collect();
        let live: Vec<_> =
            self.model.live().map(|(number, event)| (number, event.text.clone(), event.writer)).collect();
        equal("history", found, live)?;
        let fell = records.windows(2).any(|pair| pair[0].writer_epoch > pair[1].writer_epoch);
        ensure(!fell, || "epochs fall along the history".to_owned())?;
        let newest = must("load", self.stores.snapshots.load(&self.id, SnapshotCriteria::LATEST).await)?;
        let newest = newest.map(|found| (found.seq_nr.as_u64(), String::from_utf8_lossy(&found.payload).into_owned()));
        equal("newest snapshot", newest, self.model.snapshots.last_key_value().map(|(at, text)| (*at, text.clone())))?;
        self.story.push_str(" third:claim and append");
        let third = &mut self.writers[0];
        third.uuid = WriterUuid::from_u128(self.next_uuid);
        (third.looked, third.append) = (self.model.head.epoch, None);
        let under = match third.right {
            Right::Generation(_) => Under::Generation(Generation::new(2, 0).expect("a small number")),
            Right::Seen => Under::Seen(third.looked),
        };
        self.claim(0, under, true).await?;
        self.write(0);
        self.append(0, true).await?;
        ensure(self.writers[0].claim.is_some(), || "no writer can write any more".to_owned())
    }
}
