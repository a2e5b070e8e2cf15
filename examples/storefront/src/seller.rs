//! The selling process: turns every line of the file into a message, which is stored before it is sent.
//!
//! The producer keeps its messages in the journal, so the process may be killed at any moment: the next one sends the
//! unconfirmed messages again, and continues after the last line that is in the journal.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use greylag::delivery::ShardingProducer;
use greylag::prelude::*;

use crate::Failure;
use crate::customer::{CUSTOMER, Purchase};
use crate::node::report_to_parent;
use crate::processes::{NodeReport, Sales};
use crate::purchases::{PurchaseLine, Purchases};

/// The most purchases that may be unconfirmed at a time.
const IN_FLIGHT: usize = 1024;
/// The interval between progress messages to the parent.
const TOLD_EVERY: Duration = Duration::from_millis(50);
/// The time limit for the last confirmations, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What is sold, if anything.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Sale {
    /// The purchases to send.
    #[arg(long)]
    pub(crate) sells: Option<PathBuf>,
    /// Leave lines out that are not purchases.
    #[arg(long)]
    skip_bad_lines: bool,
    /// Sends so many purchases a second.
    #[arg(long)]
    pace: Option<NonZeroU32>,
}

impl Sale {
    pub(crate) fn of(input: PathBuf, skip_bad_lines: bool, pace: Option<NonZeroU32>) -> Self {
        Self { sells: Some(input), skip_bad_lines, pace }
    }

    /// The command line that parses to these arguments.
    pub(crate) fn to_command_line(&self) -> Vec<String> {
        let mut line = Vec::new();
        if let Some(input) = &self.sells {
            line.extend(["--sells".to_owned(), input.display().to_string()]);
        }
        line.extend(self.skip_bad_lines.then(|| "--skip-bad-lines".to_owned()));
        if let Some(pace) = self.pace {
            line.extend(["--pace".to_owned(), pace.to_string()]);
        }
        line
    }
}

/// Sells all purchases of the sale, if there is one, and reports the progress to the parent.
pub(crate) async fn sell(node: Node, sale: Sale) -> Result<(), Failure> {
    let Some(input) = sale.sells else { return Ok(()) };
    let purchases = Purchases::read(&input, sale.skip_bad_lines)?;
    // Derive the producer's id from the file: the same file again is the same producer, which has sent some or all of
    // it.
    let id = ProducerId::new(format!("storefront {:032x}", purchases.stream_id()))?;
    let producer = node.delivery().producer(CUSTOMER, id).durable().start().await?;
    let next = producer.request_next().await?.current_seq_nr();
    // A line's position in the file is its number in the stream.
    let sent_before = usize::try_from(next.get().saturating_sub(1))?.min(purchases.lines.len());
    let rest = purchases.lines[sent_before..].to_vec();
    let sales = |is_over| {
        let stats = producer.stats();
        let accepted = sent_before as u64 + stats.sent;
        NodeReport::Sold(Sales {
            confirmed: accepted.saturating_sub(stats.unconfirmed),
            sent_again: stats.resent,
            longest_silence: stats.longest_silence,
            slowest_purchase: stats.slowest_confirmation,
            is_over,
        })
    };
    let mut sending = tokio::spawn(send(producer.clone(), rest, sale.pace));
    let mut tick = tokio::time::interval(TOLD_EVERY);
    loop {
        tokio::select! {
            sent = &mut sending => break sent??,
            _ = tick.tick() => report_to_parent(&sales(false)).await?,
        }
    }
    report_to_parent(&sales(true)).await
}

/// Sends lines in order, and waits until all messages of the producer are confirmed.
async fn send(
    producer: ShardingProducer<Purchase>,
    lines: Vec<PurchaseLine>,
    pace: Option<NonZeroU32>,
) -> Result<(), Failure> {
    let mut on_their_way = FuturesUnordered::new();
    let mut turns = pace.map(|pace| tokio::time::interval(Duration::from_secs(1) / pace.get()));
    for line in &lines {
        if let Some(turns) = &mut turns {
            turns.tick().await;
        }
        let mut sent = Box::pin(producer.send_confirmed(line.customer.to_string(), Purchase::from(line)));
        // Poll each future once, which gives its message the next number, and do not wait for it: messages that are
        // sent together are then stored together.
        if let Poll::Ready(confirmed) = futures::poll!(sent.as_mut()) {
            confirmed?;
            continue;
        }
        on_their_way.push(sent);
        if on_their_way.len() >= IN_FLIGHT {
            on_their_way.next().await.transpose()?;
        }
    }
    while let Some(confirmed) = on_their_way.next().await {
        confirmed?;
    }
    // Wait for the messages of an earlier process, too.
    producer.drain(TIMEOUT).await?;
    Ok(())
}
