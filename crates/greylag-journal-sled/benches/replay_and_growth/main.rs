//! Replay, recovery and growth of the embedded journal: rates, memory, disk, time to open.
//!
//! ```sh
//! cargo bench -p greylag-journal-sled --bench replay_and_growth
//! cargo bench -p greylag-journal-sled --bench replay_and_growth -- growth 10000000
//! ```
//! Without arguments all three run, growth up to a million events; `replay`, `recovery` or `growth`, followed by a
//! number of events or entities, runs one. Memory is the resident set. For growth it is that of the one process that
//! writes and opens in turns; for replay and recovery it is that of a process that only reads what another process
//! wrote. `GREYLAG_BENCH_DIR` chooses the disk (default: the build directory's).

mod growth;
mod process;
mod recovery;
mod replay;

use std::path::Path;

use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, EventKind, InvalidPersistenceId, Journal, NewEvent, PersistenceId, SeqNr, Under, WriterEpoch, WriterUuid,
};

/// Any error of a measurement.
pub(crate) type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let words: Vec<_> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let number = |otherwise: u64| words.get(1).map_or(Ok(otherwise), |word| word.parse());
    let directory = std::env::var("GREYLAG_BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let directory = Path::new(&directory);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (events, entities, largest) = (1_000_000, 10_000, 1_000_000);
    match words.first().map(String::as_str) {
        None => runtime.block_on(async {
            replay::measure(directory, events).await?;
            recovery::measure(directory, entities).await?;
            growth::measure(directory, largest).await
        }),
        Some("replay") => runtime.block_on(replay::measure(directory, number(events)?)),
        Some("recovery") => runtime.block_on(recovery::measure(directory, number(entities)?)),
        Some("growth") => runtime.block_on(growth::measure(directory, number(largest)?)),
        Some("write") => {
            let [_, kind, count, path] = &words[..] else { return Err("write what, how many, where?".into()) };
            let (count, path) = (count.parse()?, Path::new(path));
            runtime.block_on(async {
                match kind.as_str() {
                    "replay" => replay::write(path, count).await,
                    _ => recovery::write(path, count).await,
                }
            })
        }
        Some(other) => Err(format!("{other} is not known: replay, recovery or growth").into()),
    }
}

/// Runs the writer in another process, so that the memory of this process holds nothing of the write.
pub(crate) fn write_elsewhere(kind: &str, count: u64, path: &Path) -> Result<(), Failure> {
    let mut writer = std::process::Command::new(std::env::current_exe()?);
    let status = writer.args(["write", kind, &count.to_string()]).arg(path).status()?;
    if status.success() { Ok(()) } else { Err(format!("the process that writes ended with {status}").into()) }
}

/// Prints one line of figures.
pub(crate) fn print(line: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    use std::io::Write;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

pub(crate) async fn open(path: &Path) -> Result<SledJournal, Failure> {
    Ok(SledJournal::open(path, SledJournalSettings::default()).await?)
}

/// The id of entity `number`.
pub(crate) fn id(number: u64) -> Result<PersistenceId, InvalidPersistenceId> {
    PersistenceId::of("Customer", &number.to_string())
}

/// Writes the history of one id.
pub(crate) struct Writer {
    journal: SledJournal,
    id: PersistenceId,
    uuid: WriterUuid,
    epoch: WriterEpoch,
    highest: SeqNr,
}

impl Writer {
    /// Claims the id of entity `number`.
    pub(crate) async fn claim(journal: &SledJournal, number: u64) -> Result<Self, Failure> {
        let id = id(number)?;
        let uuid = WriterUuid::from_u128(uuid::Uuid::new_v4().as_u128());
        let seen = journal.head(&id).await?.epoch;
        let claim = journal.claim(&id, uuid, Under::Seen(seen)).await?;
        Ok(Self { journal: journal.clone(), id, uuid, epoch: claim.epoch, highest: claim.highest })
    }

    /// Appends `events` events in one append.
    pub(crate) async fn append(&mut self, events: u64, payload_bytes: usize) -> Result<(), Failure> {
        let event = NewEvent {
            codec_id: CodecId::JSON,
            manifest: "purchased".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: vec![7; payload_bytes].into(),
            metadata: Default::default(),
            tags: Default::default(),
        };
        let append = Append {
            id: self.id.clone(),
            epoch: self.epoch,
            writer_uuid: self.uuid,
            first: self.highest.next().ok_or("no number is left")?,
            events: vec![event; usize::try_from(events)?],
        };
        self.highest = append.last().ok_or("no number is left")?;
        self.journal.append(append).await?;
        Ok(())
    }
}
