//! The run in which workers are killed, one after the other.

use std::time::{Duration, Instant};

use greylag::delivery::WorkPullingProducer;
use greylag::prelude::*;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::crew::{Book, Crew};
use crate::record::now;
use crate::worker::Worker;
use crate::{Failure, Kills, PATIENCE, jobs, say};

/// Jobs that one worker does in parallel; at most as many are on their way to that worker.
const IN_HAND: u32 = 8;

/// Runs the test with kills, from start to verdict.
pub(crate) async fn run(kills: &Kills) -> Result<(), Failure> {
    let node = Node::builder("jobs").bind("127.0.0.1", 0).roles(["producer"]).start().await?;
    let producer = node.delivery().work_producer(&jobs(), ProducerId::per_node("jobs")).start().await?;
    let book = Book::of(kills.jobs);
    let told = Worker { seed: node.address().to_string(), work_us: kills.work_us, parallel: IN_HAND };
    let mut crew = Crew::hire(kills.workers, told, &book)?;
    crew.wait_until_ready(&producer).await?;
    say(&format!(
        "{} jobs for {} workers, of which one is killed every {} ms",
        kills.jobs, kills.workers, kills.kill_every_ms
    ));

    let began = Instant::now();
    let sending = tokio::spawn(send(producer.clone(), kills.jobs, book.clone()));
    let killed = kill_until_done(&mut crew, &producer, &book, kills, began).await?;
    let seconds = began.elapsed().as_secs_f64();
    sending.await??;
    crew.dismiss().await?;
    node.shutdown().await?;
    judge(&book, kills, killed, seconds)
}

/// Sends all jobs, and notes when each of them is confirmed.
async fn send(producer: WorkPullingProducer<u64>, jobs: u64, book: Book) -> Result<(), Failure> {
    let mut unconfirmed = JoinSet::new();
    for job in 0..jobs {
        let (sent, book) = (producer.send(job).await?, book.clone());
        unconfirmed.spawn(async move {
            sent.confirmed().await?;
            book.lock().confirm(job, now());
            Ok::<_, Failure>(())
        });
        while let Some(confirmed) = unconfirmed.try_join_next() {
            confirmed??;
        }
    }
    while let Some(confirmed) = unconfirmed.join_next().await {
        confirmed??;
    }
    Ok(())
}

/// Kills one worker after the other until all jobs are confirmed; returns the count of kills. While fewer than half of
/// the workers can be selected, no worker is killed: on a busy machine, joining the cluster takes a worker longer than
/// it would live.
async fn kill_until_done(
    crew: &mut Crew,
    producer: &WorkPullingProducer<u64>,
    book: &Book,
    kills: &Kills,
    began: Instant,
) -> Result<u64, Failure> {
    let mut kill_at = tokio::time::interval(Duration::from_millis(kills.kill_every_ms));
    kill_at.set_missed_tick_behavior(MissedTickBehavior::Delay);
    kill_at.tick().await; // the first tick is immediate
    let (mut killed, mut spared, mut tenths, mut last) = (0, 0, 0, (0, Instant::now()));
    loop {
        let confirmed = book.lock().confirmed();
        if confirmed == kills.jobs {
            if spared > 0 {
                say(&format!("{spared} kills were left out, since most workers were not up yet"));
            }
            return Ok(killed);
        }
        if confirmed > last.0 {
            last = (confirmed, Instant::now());
        } else if last.1.elapsed() > PATIENCE {
            return Err(format!("nothing is confirmed any more, after {confirmed} jobs and {killed} kills").into());
        }
        if confirmed * 10 / kills.jobs > tenths {
            tenths = confirmed * 10 / kills.jobs;
            let seconds = began.elapsed().as_secs_f64();
            say(&format!("{confirmed} jobs are confirmed after {seconds:.1} s, {killed} workers were killed"));
        }
        tokio::select! {
            _ = kill_at.tick() => {
                if producer.stats().selectable * 2 < kills.workers {
                    spared += 1;
                } else {
                    crew.replace_one().await?;
                    killed += 1;
                }
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

fn judge(book: &Book, kills: &Kills, killed: u64, seconds: f64) -> Result<(), Failure> {
    let ledger = book.lock();
    let (repeats, most) = (ledger.repeats(), killed * u64::from(IN_HAND));
    let rate = kills.jobs as f64 / seconds;
    say(&format!("{} jobs in {seconds:.1} s, {rate:.0}/s, while {killed} workers were killed", kills.jobs));
    say(&format!("{repeats} times a job was begun again; those killed had at most {most} in hand"));
    let mut wrongs = ledger.wrongs(kills.jobs);
    if repeats > most {
        wrongs.push("jobs were begun again that no killed worker had in hand".to_owned());
    }
    if killed == 0 {
        wrongs.push("no worker was killed: there were too few jobs for that".to_owned());
    }
    if wrongs.is_empty() {
        say("each job was done before it was confirmed, and none was begun again after that");
        return Ok(());
    }
    Err(wrongs.join("\n").into())
}
