//! Translates claims and changes into keys and values. Runs on the committer's thread, one request after the other.
//!
//! A removal never makes the engine merge a page with a damaged neighbour: a piece that cannot be removed is
//! overwritten with an empty value, which counts as removed.

use std::collections::BTreeMap;

use bytes::Bytes;
use greylag_delivery::SeqNr;
use greylag_delivery::queue::{QueueChange, QueueClaim, QueueHead, QueueStoreError, confirmed_to_bytes};
use greylag_store_sled::{Batch, Commits, Planner, Reader, StoreError, remove_next_unneeded, remove_unneeded};

use crate::keys;
use crate::message;

const FORMAT: &[u8] = b"greylag delivery queues 1";

/// A request to the committer.
#[derive(Debug)]
pub(crate) enum Request {
    Claim { queue: String, claim: QueueClaim },
    Write { queue: String, change: QueueChange },
}

pub(crate) type Answer = Result<(), QueueStoreError>;

impl greylag_store_sled::Request for Request {
    fn bytes(&self) -> usize {
        match self {
            Self::Claim { queue, .. } => queue.len() + 256,
            Self::Write { queue, change } => {
                let messages =
                    change.messages.iter().map(|sent| sent.message.payload.len() + sent.qualifier.len() + 64);
                let confirmed = change.confirmed.iter().map(|(qualifier, ..)| qualifier.len() + 64);
                messages.chain(confirmed).sum::<usize>() + change.removed.len() * 64 + queue.len() + 256
            }
        }
    }
}

/// The head rows, and the number of the last commit.
#[derive(Default)]
pub(crate) struct Queues {
    heads: BTreeMap<String, QueueHead>,
    commits: Commits,
}

/// The keys and values of one request; added to the batch if all of their pages can be written.
struct Puts(Vec<(Vec<u8>, Bytes)>);

impl Queues {
    fn claim(&mut self, queue: &str, claim: &QueueClaim, reader: &Reader, batch: &mut Batch) -> Planned {
        let head = QueueHead::claimed(self.heads.get(queue).cloned(), claim);
        let head = head.ok_or(Stop::Answer(QueueStoreError::Changed))?;
        Puts(vec![(keys::head(queue), head.to_bytes())]).add(reader, batch)?;
        self.heads.insert(queue.to_owned(), head);
        Ok(())
    }

    fn write(&mut self, queue: &str, change: &QueueChange, reader: &Reader, batch: &mut Batch) -> Planned {
        let head = QueueHead::changed(self.heads.get(queue).cloned(), change);
        let head = head.ok_or(Stop::Answer(QueueStoreError::Changed))?;
        let mut puts = vec![(keys::head(queue), head.to_bytes())];
        for sent in &change.messages {
            let pieces = (0..).zip(message::cut(&sent.to_bytes()));
            puts.extend(pieces.map(|(piece, bytes)| (keys::piece(queue, sent.seq_nr, piece), bytes.into())));
        }
        for (qualifier, seq_nr, timestamp_ms) in &change.confirmed {
            let row = confirmed_to_bytes(qualifier, *seq_nr, *timestamp_ms);
            puts.push((keys::confirmed(queue, qualifier), row));
        }
        let removed = removable(queue, &change.removed, reader)?;
        Puts(puts).add(reader, batch)?;
        let mut last_goes = false;
        for key in removed {
            last_goes = remove_next_unneeded(last_goes, &key, reader, batch)?;
            if !last_goes {
                batch.put(&key, &[]);
            }
        }
        for qualifier in &change.forgotten {
            // A row that cannot be removed now is forgotten by a later change.
            remove_unneeded(&keys::confirmed(queue, qualifier), reader, batch)?;
        }
        self.heads.insert(queue.to_owned(), head);
        Ok(())
    }
}

/// The keys of the pieces of messages; checks that each page can be written.
fn removable(queue: &str, removed: &[SeqNr], reader: &Reader) -> Result<Vec<Vec<u8>>, Stop> {
    let mut found = Vec::new();
    for seq_nr in removed {
        let (first, after) = keys::pieces(queue, *seq_nr);
        for key in reader.keys(&first, &after) {
            let key = key?.to_vec();
            reader.check_page(&key)?;
            found.push(key);
        }
    }
    Ok(found)
}

impl Puts {
    /// Adds all keys, or none if one of their pages is damaged: a batch cannot change such a page, and the other
    /// requests of its group would fail.
    fn add(self, reader: &Reader, batch: &mut Batch) -> Planned {
        self.0.iter().try_for_each(|(key, _)| reader.check_page(key))?;
        self.0.into_iter().for_each(|(key, value)| batch.put(&key, &value));
        Ok(())
    }
}

type Planned = Result<(), Stop>;

/// Why a request is not carried out.
enum Stop {
    /// The request gets this answer, and changes nothing.
    Answer(QueueStoreError),
    /// The store has failed.
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        if error.is_corruption() {
            Self::Answer(QueueStoreError::Damaged(error.to_string()))
        } else {
            Self::Store(error)
        }
    }
}

impl Planner for Queues {
    type Request = Request;
    type Answer = Answer;

    fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        match reader.get(keys::FORMAT)? {
            Some(found) if found == FORMAT => {}
            Some(_) => return Err(StoreError::corrupt("it is no store of queues that is known here")),
            None => batch.put(keys::FORMAT, FORMAT),
        }
        self.heads.clear();
        for row in reader.range(&[keys::HEADS], &[keys::HEADS + 1]) {
            let (key, value) = row?;
            let name = keys::name_of_head(&key).ok_or_else(|| StoreError::corrupt("a queue has no name"))?;
            let head = QueueHead::from_bytes(value).map_err(|error| StoreError::corrupt(error.to_string()))?;
            self.heads.insert(name.to_owned(), head);
        }
        self.commits = Commits::recover(reader)?;
        Ok(())
    }

    fn verify(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        self.commits.verify(reader)?;
        self.commits.seal(reader, batch)
    }

    fn tail(&self) -> Option<u64> {
        Some(self.commits.number())
    }

    fn repair(&self) -> &'static str {
        "restore the directory from a copy, or move it away: its producers then begin anew, and what they had not got \
         confirmed is lost"
    }

    fn plan(&mut self, requests: Vec<Request>, reader: &Reader, batch: &mut Batch) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in &requests {
            let planned = match request {
                Request::Claim { queue, claim } => self.claim(queue, claim, reader, batch),
                Request::Write { queue, change } => self.write(queue, change, reader, batch),
            };
            answers.push(match planned {
                Ok(()) => Ok(()),
                Err(Stop::Answer(error)) => Err(error),
                Err(Stop::Store(error)) => return Err(error),
            });
        }
        self.commits.seal(reader, batch)?;
        Ok(answers)
    }
}
