//! A delivery entity without event sourcing: a meter that keeps its state in its own file, and counts every reading
//! once.
//!
//! ```sh
//! cargo run --package meter
//! ```
//! A meter's counts and its progress in each stream of deliveries are in one file, which is replaced as a whole, so the
//! two always agree. When a meter starts, it reports its progress ([`DeliveryEntity::on_start`]), and deliveries up to
//! that progress are confirmed without another call of the meter. So a reading counts once even if the meter failed, or
//! its process was killed, after the write and before the confirmation. Both happen here.
//!
//! A file has no transactions; it is safe here because only one process writes it. For state in a database, a
//! [`DedupeStore`](greylag::delivery::DedupeStore) stores the progress in the transaction that writes the effect, and
//! refuses the second of two owners.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use greylag::delivery::{SeqNr, StreamId};
use greylag::prelude::*;
use tokio::process::{Child, Command};

/// The key of meters for producers that deliver to them.
const METER: EntityKey<Reading> = EntityKey::new("Meter");
/// The key of the same meters for queries.
const TOTAL: EntityKey<ReplyTo<Counted>> = EntityKey::new("Meter");
const METERS: u64 = 3;
const READINGS: u64 = 300;
/// The time limit for each step, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Reading {
    watt_hours: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Counted {
    readings: u64,
    watt_hours: u64,
}

/// The content of a meter's file.
#[derive(Default, Serialize, Deserialize)]
struct State {
    counted: Counted,
    /// The sequence number of the last counted delivery, for each stream.
    applied: BTreeMap<u128, u64>,
}

struct Meter {
    file: PathBuf,
    state: State,
}

impl Meter {
    fn open(file: PathBuf) -> Result<Self, Failure> {
        let state = match std::fs::read(&file) {
            Ok(json) => serde_json::from_slice(&json)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { file, state })
    }

    /// Replaces the file atomically: a reader sees the old state or the new one.
    fn write(&self) -> Result<(), Failure> {
        let new = self.file.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(&self.state)?)?;
        Ok(std::fs::rename(new, &self.file)?)
    }
}

type Message = WithDelivery<Reading, ReplyTo<Counted>>;

impl DeliveryEntity<Reading> for Meter {
    type Bypass = ReplyTo<Counted>;

    fn on_start(&mut self, _: &mut Ctx<'_, Message>) -> Result<Dedupe, Failure> {
        Ok(self.state.applied.iter().map(|(stream, total)| (StreamId(*stream), SeqNr(*total))).collect())
    }

    fn on_delivery(&mut self, reading: Delivery<Reading>, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        self.state.counted.readings += 1;
        self.state.counted.watt_hours += reading.watt_hours;
        self.state.applied.insert(reading.id().stream_id.0, reading.seq_nr().get());
        self.write()?;
        if self.state.counted.readings.is_multiple_of(40) {
            return Err(std::io::Error::other("on purpose: it is written, and not confirmed").into());
        }
        reading.confirm();
        Ok(())
    }

    fn on_bypass(&mut self, reply_to: ReplyTo<Counted>, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        reply_to.reply(self.state.counted);
        Ok(())
    }
}

/// The process that hosts the meters, until it is killed.
async fn host(seed: &str, directory: PathBuf) -> greylag::Result {
    let open = move |init: &EntityInit| Meter::open(directory.join(format!("{}.json", init.id)));
    let meters = DeliveryType::of_both(METER, json("meter.reading"), json("meter.total"), open).role("meters");
    let builder = Node::builder("grid").bind("127.0.0.1", 0).roles(["meters"]).seed_nodes([seed]);
    builder.entity(meters).start().await?.run().await;
    Ok(())
}

#[tokio::main]
async fn main() -> greylag::Result {
    if let [flag, seed, directory] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && flag == "--host"
    {
        return host(seed, PathBuf::from(directory)).await;
    }
    let directory = tempfile::tempdir()?;
    let query = json::<ReplyTo<Counted>>("meter.total");
    let meters = METER.proxy().role("meters").commands(json("meter.reading")).with_delivery_and(query);
    let node = Node::builder("grid").bind("127.0.0.1", 0).proxy(meters).start().await?;
    let seed = node.address().to_string();
    let start_host = || -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--host", &seed]).arg(directory.path()).kill_on_drop(true).spawn()
    };

    let mut host = start_host()?;
    let readings = node.delivery().producer(METER, ProducerId::per_node("field")).start().await?;
    let mut expected = BTreeMap::<u64, Counted>::new();
    for number in 0..READINGS {
        let (meter, watt_hours) = (number % METERS, number * number);
        let counted = expected.entry(meter).or_default();
        (counted.readings, counted.watt_hours) = (counted.readings + 1, counted.watt_hours + watt_hours);
        let sent = readings.send(meter.to_string(), Reading { watt_hours }).await?;
        if number == READINGS / 2 {
            sent.confirmed().await?;
            host.kill().await?;
            println!("the host is killed after {number} readings: {:?}", readings.stats());
            host = start_host()?;
        }
    }
    readings.drain(TIME_LIMIT).await?;

    let mut is_right = true;
    for (meter, expected) in expected {
        let counted = node.entity_ref(TOTAL, meter.to_string()).ask(|reply_to| reply_to).timeout(TIME_LIMIT).await?;
        println!("meter {meter}: {} readings, {} Wh", counted.readings, counted.watt_hours);
        is_right &= counted == expected;
    }
    host.kill().await?;
    node.shutdown().await?;
    if is_right { Ok(()) } else { Err(greylag::Error::new("a meter did not count every reading once")) }
}
