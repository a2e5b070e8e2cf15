//! Damaged files: single bits, lost ends, missing files, no room, no permission. Every read is right or an error that
//! names the damage; or the opening is refused with an error that says how to repair the journal. Damage is never read
//! as data. Kit cases `crash 4` to `crash 6`; `cargo xtask journal-damage` is the long form.
//!
//! The damaged journal holds a record of every kind; a part of it was verified by an opening, another part is as a
//! killed process leaves it.

use crate::common;
use crate::common::sample;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::sample::Answers;
use crate::common::{Writer, id};
use greylag_journal_sled::{OpenError, SledJournal};
use greylag_persistence::Journal;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const COUNT: &str = "GREYLAG_MUTILATIONS";
/// The longest time to open and read a journal, however damaged.
const PATIENCE: Duration = Duration::from_secs(20);

fn count_or(short: usize) -> usize {
    std::env::var(COUNT).map_or(short, |count| count.parse().unwrap())
}

/// Result of opening and reading a damaged journal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Everything was read right.
    Right,
    /// Some reads were refused, all others right.
    SomeRefused,
    /// The opening was refused; the name of the error.
    NotOpened(String),
}

/// Opens a damaged journal and compares every answer. Panics if an answer is wrong.
async fn judge(path: &Path, expected: &Answers, what: &str) -> Outcome {
    let judged = tokio::time::timeout(PATIENCE, judge_in_time(path, expected, what)).await;
    judged.unwrap_or_else(|_| panic!("{what}: no answer within {PATIENCE:?}"))
}

async fn judge_in_time(path: &Path, expected: &Answers, what: &str) -> Outcome {
    let journal = match SledJournal::open(path, sample::settings()).await {
        Ok(journal) => journal,
        Err(error) => return Outcome::NotOpened(name_of(&error, what)),
    };
    let mut outcome = Outcome::Right;
    for ((question, found), (_, expected)) in sample::read(&journal).await.into_iter().zip(expected) {
        match found {
            Ok(found) => assert_eq!(&Ok(found), expected, "{what}: {question}"),
            Err(error) => {
                assert!(error.len() > 10, "{what}: {question}: {error:?} says nothing");
                outcome = Outcome::SomeRefused;
            }
        }
    }
    if outcome == Outcome::Right {
        // A journal that reads right must take appends as well.
        Writer::claim(&journal, id("Sample|new")).await.append(&journal, &["a"]).await;
    }
    let _stalled = journal.close().await;
    outcome
}

fn name_of(error: &OpenError, what: &str) -> String {
    let said = error.to_string();
    match error {
        OpenError::Corrupt { source, .. } => {
            assert!(said.contains("greylag-journal-sled salvage"), "{what}: {said}");
            let shown = format!("{source:?}");
            shown.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
        }
        OpenError::Failed { .. } => {
            format!("Failed: {said}").split(&[':', '/'][..]).next().unwrap_or_default().to_owned()
        }
        OpenError::Locked { .. } => panic!("{what}: {said}"),
    }
}

/// Makes a journal, as a killed process leaves it, whose older part was verified by an opening, and whose younger part
/// was not.
async fn make(path: &Path, payload_bytes: usize) -> Answers {
    let made = common::in_memory();
    let open = async || SledJournal::open(made.path(), sample::settings()).await.unwrap();
    let journal = open().await;
    sample::work(&journal, 1, payload_bytes).await;
    sample::work(&journal, 2, payload_bytes).await;
    journal.close().await.unwrap();
    let journal = open().await;
    sample::work(&journal, 3, payload_bytes).await;
    sample::work(&journal, 4, payload_bytes).await;
    common::copy(made.path(), path);
    std::fs::create_dir_all(path.join("blobs")).unwrap();
    let answers = sample::read(&journal).await;
    journal.close().await.unwrap();
    answers
}

/// A sound journal; each trial damages a copy.
struct Original {
    directory: tempfile::TempDir,
    answers: Answers,
    files: Vec<(PathBuf, usize)>,
}

impl Original {
    async fn new(payload_bytes: usize) -> Self {
        let directory = common::in_memory();
        let answers = make(directory.path(), payload_bytes).await;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let bytes = std::fs::read(entry.path()).unwrap();
                // sled allocates whole segments, so the used part ends at the last byte that is not zero.
                let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                files.push((entry.file_name().into(), used));
            }
        }
        files.sort();
        Self { directory, answers, files }
    }

    fn copy(&self) -> tempfile::TempDir {
        let copy = common::in_memory();
        common::copy(self.directory.path(), copy.path());
        copy
    }

    /// Draws a bit: four of five in the log, one of five in the other files.
    fn draw_bit(&self, rng: &mut ChaCha8Rng) -> (&Path, usize, u8) {
        let others = rng.random_range(0..5) == 0;
        let of = |name: &PathBuf| (name.as_os_str() == "db") != others;
        let files: Vec<_> = self.files.iter().filter(|(name, used)| of(name) && *used > 0).collect();
        let (name, used) = files[rng.random_range(0..files.len())];
        (name, rng.random_range(0..*used), rng.random_range(0..8))
    }
}

#[derive(Default)]
struct Tally(BTreeMap<(String, Outcome), usize>);

impl Tally {
    fn add(&mut self, file: &Path, outcome: Outcome) {
        let file = file.display().to_string();
        let file = if file.starts_with("snap") { "snap.*".to_owned() } else { file };
        *self.0.entry((file, outcome)).or_default() += 1;
    }

    fn say(&self, what: &str) {
        let mut text = format!("{what}, none read wrong:\n");
        for ((file, outcome), count) in &self.0 {
            text += &format!("  {count:6} {file:16} {outcome:?}\n");
        }
        std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).unwrap();
    }
}

async fn flips(original: &Original, count: usize, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tally = Tally::default();
    for flip in 0..count {
        let (name, at, bit) = original.draw_bit(&mut rng);
        let copy = original.copy();
        let path = copy.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1 << bit;
        std::fs::write(&path, bytes).unwrap();
        let what = format!("flip {flip}: bit {bit} of byte {at} of {}", name.display());
        tally.add(name, judge(copy.path(), &original.answers, &what).await);
    }
    tally.say(&format!("{count} flipped bits"));
}

/// persistence §8, "torn/zeroed/flipped bytes": each flip is read right, repaired by rule, or refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_bit_is_ever_read_as_data() {
    flips(&Original::new(40).await, count_or(60) * 4 / 5, 1).await;
}

/// The same over several segments of the log: damage in the middle is a hole, not a torn end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_bit_in_a_log_of_several_segments_is_ever_read_as_data() {
    flips(&Original::new(45_000).await, count_or(15) / 5, 2).await;
}

/// persistence §4.5, `crash 5`: the end of each file is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lost_end_of_a_file_goes_unnoticed() {
    let original = Original::new(40).await;
    let mut tally = Tally::default();
    // Every sector in the long form, every 23rd in the short form.
    let step = if std::env::var_os(COUNT).is_some() { 512 } else { 512 * 23 };
    for (name, used) in &original.files {
        for at in (0..*used).step_by(step) {
            let copy = original.copy();
            let file = std::fs::OpenOptions::new().write(true).open(copy.path().join(name)).unwrap();
            file.set_len(at as u64).unwrap();
            drop(file);
            let what = format!("{} cut at {at}", name.display());
            let outcome = judge(copy.path(), &original.answers, &what).await;
            tally.add(name, outcome);
        }
    }
    tally.say(&format!("lost ends, every {step} bytes"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_missing_file_goes_unnoticed() {
    let original = Original::new(40).await;
    let mut tally = Tally::default();
    for (name, _) in &original.files {
        let copy = original.copy();
        std::fs::remove_file(copy.path().join(name)).unwrap();
        tally.add(name, judge(copy.path(), &original.answers, &format!("without {}", name.display())).await);
    }
    tally.say("missing files");
}
