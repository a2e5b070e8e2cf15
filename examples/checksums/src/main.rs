//! Checksums of real files, computed by worker processes of which some are killed while they work.
//!
//! ```sh
//! cargo run --package checksums            # the sources of Greylag
//! cargo run --package checksums -- ~/Music
//! ```
//! The producer sends one job per file; any worker with free capacity reads the file, sends the checksum to the index,
//! and only then confirms the job. After a quarter of the files one worker is killed, after half of them another one,
//! and a new one joins. Jobs that a killed worker had in hand go to the others under their old numbers. So a file may
//! be read twice, but none is left out, as one pass over all files shows in the end. With `.durable()`, the jobs would
//! also survive the producer's process.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greylag::prelude::*;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// The work key: a job is the path of a file to read.
fn files() -> WorkKey<PathBuf> {
    WorkKey::new("checksums", json("checksums.file"))
}

const INDEX: EntityKey<Found> = EntityKey::new("Index");
const FOUND: &str = "checksums.found";

/// The checksum of one file, which a worker sends to the index.
#[derive(Serialize, Deserialize)]
struct Found {
    file: PathBuf,
    crc32c: u32,
    reply_to: ReplyTo<()>,
}

type Checksums = BTreeMap<PathBuf, u32>;

/// The index: a map of checksums, so a file reported twice is in it once.
struct Index(watch::Sender<Checksums>);

impl Entity for Index {
    type Message = Found;

    fn receive(&mut self, Found { file, crc32c, reply_to }: Found, _: &mut Ctx<'_, Found>) -> Result<(), Failure> {
        self.0.send_modify(|found| found.extend([(file, crc32c)]));
        reply_to.reply(());
        Ok(())
    }
}

/// The CRC-32C of a file, read in parts, never as a whole.
async fn checksum(file: &Path) -> std::io::Result<u32> {
    let (mut file, mut buffer, mut crc32c) = (tokio::fs::File::open(file).await?, vec![0; 64 << 10], 0);
    loop {
        match file.read(&mut buffer).await? {
            0 => return Ok(crc32c),
            read => crc32c = crc32c::crc32c_append(crc32c, &buffer[..read]),
        }
    }
}

/// A worker process; works until it is killed.
async fn work(seed: &str) -> greylag::Result {
    let builder = Node::builder("checksums").bind("127.0.0.1", 0).roles(["worker"]).seed_nodes([seed]);
    let node = builder.proxy(INDEX.proxy().role("index").codec(json(FOUND))).start().await?;
    let index = node.entity_ref(INDEX, "all");
    let look = move |job: Delivery<PathBuf>| {
        let index = index.clone();
        async move {
            let (file, crc32c) = (job.clone(), checksum(&job).await?);
            index.ask(|reply_to| Found { file, crc32c, reply_to }).await?;
            job.confirm(); // not after an error: the job would be delivered again
            greylag::Result::Ok(())
        }
    };
    node.delivery().worker(&files(), look).parallel(4).start().await?;
    node.run().await;
    Ok(())
}

/// Starts this program as a worker process, which ends no later than this process.
fn start_worker(seed: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).args(["--work-for", seed]).kill_on_drop(true).spawn()
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files_below(&entry.path(), found)?;
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> greylag::Result {
    let directory = match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [flag, seed] if flag == "--work-for" => return work(seed).await,
        [directory] => PathBuf::from(directory),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates"),
    };
    let mut all = Vec::new();
    files_below(&directory, &mut all)?;

    let (found, mut seen) = watch::channel(Checksums::new());
    let index = EntityType::new(INDEX, move |_| Ok(Index(found.clone()))).role("index").codec(json(FOUND));
    let node = Node::builder("checksums").bind("127.0.0.1", 0).roles(["index"]).entity(index).start().await?;
    let seed = node.address().to_string();
    let mut workers = (0..3).map(|_| start_worker(&seed)).collect::<Result<Vec<_>, _>>()?;

    let jobs = node.delivery().work_producer(&files(), ProducerId::per_node("librarian")).start().await?;
    let sending = tokio::spawn({
        let (jobs, all) = (jobs.clone(), all.clone());
        async move {
            for file in all {
                jobs.send(file).await?; // waits while a thousand jobs wait for workers
            }
            greylag::Result::Ok(())
        }
    });
    for part in [all.len() / 4, all.len() / 2] {
        seen.wait_for(|found| found.len() >= part).await?;
        workers.pop().expect("there are three").kill().await?;
        println!("{part} of {} files, and a worker is killed: {:?}", all.len(), jobs.stats());
    }
    workers.push(start_worker(&seed)?);
    sending.await??;
    jobs.drain(Duration::from_secs(60)).await?;

    let mut one_pass = Checksums::new();
    for file in all {
        one_pass.insert(file.clone(), checksum(&file).await?);
    }
    println!("{} checksums by workers, {} by one pass", seen.borrow().len(), one_pass.len());
    let agree = *seen.borrow() == one_pass;
    for mut worker in workers {
        worker.kill().await?;
    }
    node.shutdown().await?;
    if agree { Ok(()) } else { Err(greylag::Error::new("the two do not agree")) }
}
