//! Histories of 300-byte events, read page by page, one after the other, and not decoded.

use std::path::Path;
use std::time::Instant;

use greylag_persistence::{Journal, ReadRange};

use crate::{Failure, Writer, id, open, print, process, write_elsewhere};

const PAYLOAD_BYTES: usize = 300;
const EVENTS_EACH: u64 = 10_000;
const EVENTS_PER_APPEND: u64 = 100;

pub(crate) async fn write(path: &Path, events: u64) -> Result<(), Failure> {
    let journal = open(path).await?;
    for number in 0..events / EVENTS_EACH {
        let mut writer = Writer::claim(&journal, number).await?;
        for _ in 0..EVENTS_EACH / EVENTS_PER_APPEND {
            writer.append(EVENTS_PER_APPEND, PAYLOAD_BYTES).await?;
        }
    }
    journal.close().await?;
    Ok(())
}

pub(crate) async fn measure(directory: &Path, events: u64) -> Result<(), Failure> {
    let scratch = tempfile::tempdir_in(directory)?;
    write_elsewhere("replay", events, scratch.path())?;
    let ids = (0..events / EVENTS_EACH).map(id).collect::<Result<Vec<_>, _>>()?;
    let journal = open(scratch.path()).await?;
    let before = process::resident()?;
    process::forget_peak()?;
    let (began_at, mut read, mut pages) = (Instant::now(), 0, 0);
    for id in &ids {
        let mut range = ReadRange { max_events: 1_000, max_bytes: 1 << 20, ..ReadRange::all() };
        loop {
            let page = journal.read(id, range).await?;
            read += page.records.len();
            pages += 1;
            match page.next {
                Some(next) => range.from = next,
                None => break,
            }
        }
    }
    let took = began_at.elapsed().as_secs_f64();
    print(format_args!(
        "replay: {read} events of {PAYLOAD_BYTES} bytes of {} ids in {pages} pages: {:.0} events/s, {took:.2} s; resident {before:.0} MiB after opening, {:.0} MiB at most (cache 128 MiB)",
        ids.len(),
        read as f64 / took,
        process::peak()?,
    ))?;
    journal.close().await?;
    Ok(())
}
