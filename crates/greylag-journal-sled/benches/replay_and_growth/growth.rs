//! Growth: a journal of small events is measured, grown to ten times its size, and measured again.

use std::path::Path;
use std::time::Instant;

use futures::future::try_join_all;
use greylag_persistence::Journal;

use crate::{Failure, Writer, open, print, process};

const ENTITIES: u64 = 1_000;
const PAYLOAD_BYTES: usize = 16;
const EVENTS_PER_APPEND: u64 = 10;
/// Growth ends before the journal takes more of the disk than this.
const MOST_BYTES: u64 = 25_000_000_000;

pub(crate) async fn measure(directory: &Path, largest: u64) -> Result<(), Failure> {
    let scratch = tempfile::tempdir_in(directory)?;
    let (mut stored, mut goal) = (0, largest.min(100_000));
    while stored < largest {
        let journal = open(scratch.path()).await?;
        let mut writers = try_join_all((0..ENTITIES).map(|number| Writer::claim(&journal, number))).await?;
        let began_at = Instant::now();
        let before = stored;
        while stored < goal && process::size_of(scratch.path())? < MOST_BYTES {
            try_join_all(writers.iter_mut().map(|writer| writer.append(EVENTS_PER_APPEND, PAYLOAD_BYTES))).await?;
            stored += ENTITIES * EVENTS_PER_APPEND;
        }
        let rate = (stored - before) as f64 / began_at.elapsed().as_secs_f64();
        let resident = process::resident()?;
        drop(writers);
        journal.close().await?;
        drop(journal);
        let bytes = process::size_of(scratch.path())?;
        let began_at = Instant::now();
        let journal = open(scratch.path()).await?;
        let opened = began_at.elapsed().as_secs_f64();
        print(format_args!(
            "growth to {stored} events of {PAYLOAD_BYTES} bytes: {rate:.0} events/s since {before}, resident {resident:.0} MiB; {:.1} GB on disk, {:.0} bytes an event; opens in {opened:.2} s after a clean close",
            bytes as f64 / 1e9,
            bytes as f64 / stored as f64,
        ))?;
        journal.close().await?;
        if stored < goal {
            return print(format_args!("growth: it takes {bytes} bytes of the disk; enough"));
        }
        goal = (goal * 10).min(largest);
    }
    Ok(())
}
