//! Power is lost while a group is being written: of writes that were not synced yet, any part may be on the disk, in
//! any order, and sectors may be torn. All acknowledged writes must be there, and each write whole or not at all.
//!
//! The directory is copied whenever everything was acknowledged, so an image holds what was synced, and the next image
//! what was written since. A loss of power in between is the first image with any choice of the changed sectors
//! (512 bytes, some cut in the middle) of the second. That is every state a disk may be left in, given that the disk
//! keeps what it acknowledged: a sync orders all writes before it against all after it, the data file is the only file
//! that a group changes before its sync, and the guard, whose write follows that sync, is one write of one sector. So
//! the guard is the new one only if the data is. A disk that acknowledges a sync without keeping the data loses older
//! sectors too; then the guard must tell.

use crate::common;
use crate::common::sample;

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::sample::Answers;
use crate::common::{Writer, id};
use greylag_journal_sled::{OpenError, SledJournal, StoreError};
use greylag_persistence::Journal;
use greylag_store_sled::GUARD_FILE;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const COUNT: &str = "GREYLAG_POWER_LOSSES";
const SECTOR: usize = 512;
const DATA: &str = "db";

/// The files of a journal at a moment when everything was acknowledged, and what reading it answered.
struct Image {
    files: BTreeMap<String, Vec<u8>>,
    answers: Answers,
}

impl Image {
    async fn of(directory: &Path, journal: &SledJournal) -> Self {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                files.insert(entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
            }
        }
        Self { files, answers: sample::read(journal).await }
    }

    fn write(&self, directory: &Path) {
        self.files.iter().for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes).unwrap());
    }
}

/// The sectors in which two versions of the data file differ.
fn changed_sectors(before: &[u8], after: &[u8]) -> Vec<usize> {
    let sectors = before.len().max(after.len()).div_ceil(SECTOR);
    let (mut old, mut new) = (before.chunks(SECTOR), after.chunks(SECTOR));
    (0..sectors).filter(|_| old.next() != new.next()).collect()
}

/// The selection of changed sectors that are lost.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// All.
    All,
    /// A single one.
    One,
    /// All from some sector on, as with a disk that writes in order.
    Tail,
    /// All before some sector.
    Begin,
    /// Each with the same chance.
    Some,
}

fn kept(loss: Loss, changed: &[usize], rng: &mut impl Rng) -> Vec<usize> {
    let cut = rng.random_range(0..changed.len());
    let chance = rng.random_range(0.05..0.95);
    match loss {
        Loss::All => Vec::new(),
        Loss::One => changed.iter().enumerate().filter(|(at, _)| *at != cut).map(|(_, sector)| *sector).collect(),
        Loss::Tail => changed[..cut].to_vec(),
        Loss::Begin => changed[cut..].to_vec(),
        Loss::Some => changed.iter().copied().filter(|_| rng.random_bool(chance)).collect(),
    }
}

/// The first image's data file with these sectors of the second's; sometimes one of them is torn.
fn blend(before: &[u8], after: &[u8], sectors: &[usize], rng: &mut impl Rng) -> Vec<u8> {
    let mut data = before.to_vec();
    let torn = sectors.choose(rng).copied().filter(|_| rng.random_bool(0.5));
    for &sector in sectors {
        let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(after.len()));
        let to = if torn == Some(sector) { from + rng.random_range(0..=to - from) } else { to };
        data.resize(data.len().max(to), 0);
        data[from..to].copy_from_slice(&after[from..to]);
    }
    data
}

/// Images of a journal at work, taken between rounds. The journal is opened twice before the first image, so that a
/// part of the image is older than the last opening.
async fn images(rounds: u32, payload_bytes: usize) -> Vec<Image> {
    let directory = common::in_memory();
    let journal = SledJournal::open(directory.path(), sample::settings()).await.unwrap();
    sample::work(&journal, 1, payload_bytes).await;
    journal.close().await.unwrap();
    let journal = SledJournal::open(directory.path(), sample::settings()).await.unwrap();
    let mut images = Vec::new();
    for round in 2..rounds + 2 {
        images.push(Image::of(directory.path(), &journal).await);
        sample::work(&journal, round, payload_bytes).await;
    }
    images.push(Image::of(directory.path(), &journal).await);
    journal.close().await.unwrap();
    images
}

/// Each answer must be that of the image before or that of the image after; an answer that the round does not change
/// must be as before.
fn compare(found: &Answers, before: &Image, after: &Image, what: &str) {
    for (((question, found), (_, old)), (_, new)) in found.iter().zip(&before.answers).zip(&after.answers) {
        let found = found.as_ref().unwrap_or_else(|error| panic!("{what}: {question}: {error}"));
        // The answer to such a question changes at most once in a round, so only the old and the new one are possible.
        let once = ["event ", "state of ", "snapshot of ", "offsets"];
        if once.iter().any(|once| question.starts_with(once)) {
            let possible = [old, new].into_iter().flatten().any(|possible| possible == found);
            assert!(possible, "{what}: {question}: {found}");
        }
        if old == new {
            assert_eq!(Some(found), old.as_ref().ok(), "{what}: {question}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_whatever_is_lost_of_the_rest() {
    let count: usize = std::env::var(COUNT).map_or(20, |count| count.parse().unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut whole, mut part, mut none) = (0, 0, 0);
    for payload_bytes in [40, 40_000] {
        let images = images(6, payload_bytes).await;
        for trial in 0..count / 2 {
            let at = rng.random_range(0..images.len() - 1);
            let (before, after) = (&images[at], &images[at + 1]);
            let changed = changed_sectors(&before.files[DATA], &after.files[DATA]);
            let loss = *[Loss::All, Loss::One, Loss::Tail, Loss::Begin, Loss::Some].choose(&mut rng).unwrap();
            let sectors = kept(loss, &changed, &mut rng);
            let directory = common::in_memory();
            before.write(directory.path());
            let data = blend(&before.files[DATA], &after.files[DATA], &sectors, &mut rng);
            std::fs::write(directory.path().join(DATA), data).unwrap();
            let what = format!("{payload_bytes} bytes, trial {trial}: {loss:?} of {} sectors", changed.len());
            let journal = SledJournal::open(directory.path(), sample::settings()).await;
            let journal = journal.unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = sample::read(&journal).await;
            compare(&found, before, after, &what);
            match () {
                () if found == after.answers => whole += 1,
                () if found == before.answers => none += 1,
                () => part += 1,
            }
            // The journal takes appends again.
            Writer::claim(&journal, id("Sample|1")).await.append(&journal, &["a"]).await;
            journal.close().await.unwrap();
        }
    }
    let text = format!(
        "{count} losses of power: every acknowledged write was there; of those under way, all {whole} times, some \
         {part} times, none {none} times\n"
    );
    std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).unwrap();
}

/// A disk that acknowledges a sync but loses the data: the guard, which it kept, tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_lies_about_syncs_is_found_out() {
    let images = images(3, 40).await;
    for (before, after) in images.iter().zip(&images[1..]) {
        let directory = common::in_memory();
        before.write(directory.path());
        std::fs::write(directory.path().join(GUARD_FILE), &after.files[GUARD_FILE]).unwrap();
        let refused = SledJournal::open(directory.path(), sample::settings()).await.map(drop).unwrap_err();
        assert!(matches!(refused, OpenError::Corrupt { source: StoreError::TailLost { .. }, .. }), "{refused}");
    }
}
