//! How entities stop, and the messages and signals that they get. Source: sharding §2.9 (3), §2.12, §4.5.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::machine::region::Input as RegionInput;
use crate::machine::shard::STOP_WARN_AFTER;

const SIGNAL_RECORDER: EntityKey<Word> = EntityKey::new("SignalRecorder");

enum Word {
    /// Answers how often the entity was asked, and the incarnation.
    Count(ReplyTo<(u64, u64)>),
    Passivate,
    /// Makes the entity end by itself.
    End,
    /// The stop message.
    Stop,
}

struct SignalRecorder {
    notes: UnboundedSender<String>,
    count: u64,
    ignores_stops: bool,
}

impl SignalRecorder {
    fn note(&self, word: impl Into<String>) {
        // Sending fails if the test has stopped listening.
        self.notes.send(word.into()).ok();
    }
}

impl Entity for SignalRecorder {
    type Message = Word;

    fn receive(&mut self, word: Word, cx: &mut Ctx<'_, Word>) -> Result<(), Failure> {
        match word {
            Word::Count(reply_to) => {
                self.count += 1;
                reply_to.reply((self.count, cx.incarnation().unwrap()));
            }
            Word::Passivate => cx.passivate(),
            Word::End => cx.stop(),
            Word::Stop => {
                self.note(format!("{}: stop", cx.id()));
                if !self.ignores_stops {
                    cx.stop();
                }
            }
        }
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut Ctx<'_, Word>) -> Result<(), Failure> {
        self.note(format!("{}: {signal:?}", cx.id()));
        Ok(())
    }
}

impl Drop for SignalRecorder {
    fn drop(&mut self) {
        self.note("dropped");
    }
}

struct Diary(UnboundedReceiver<String>);

impl Diary {
    async fn next(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.0.recv()).await.expect("in time").expect("the entity has a pen")
    }

    #[track_caller]
    fn is_empty(&mut self) {
        assert_eq!(self.0.try_recv().ok(), None);
    }
}

async fn signal_recorders(ignores_stops: bool, with_stop_message: bool) -> (Region<Word>, Diary) {
    let (notes, pages) = unbounded_channel();
    let sharding = alone(ShardingSettings { number_of_shards: 1, ..ShardingSettings::test() }).await;
    let made =
        EntityType::new(SIGNAL_RECORDER, move |_| Ok(SignalRecorder { notes: notes.clone(), count: 0, ignores_stops }));
    let made = if with_stop_message { made.stop_message(|| Word::Stop) } else { made };
    (sharding.init(made).unwrap(), Diary(pages))
}

async fn count(region: &Region<Word>, id: &str) -> (u64, u64) {
    region.entity_ref(id).ask(Word::Count).timeout(PATIENCE).await.unwrap()
}

/// sharding 56: an entity gets its stop message once, and then `PostStop`; without a stop message only `PostStop`. The
/// next message starts a new incarnation, and a region that ends sends the stop message as well.
#[tokio::test]
async fn scenario_56_an_entity_sees_its_stop_message_once_and_then_post_stop() {
    for (with_stop_message, words) in
        [(true, &["1: stop", "1: PostStop", "dropped"][..]), (false, &["1: PostStop", "dropped"])]
    {
        let (region, mut notes) = signal_recorders(false, with_stop_message).await;
        let (_, first) = count(&region, "1").await;
        region.entity_ref("1").tell(Word::Passivate).unwrap();
        // The second request is ignored, since a passivation is under way.
        region.entity_ref("1").tell(Word::Passivate).unwrap();
        for word in words {
            assert_eq!(notes.next().await, *word);
        }
        let (counted, second) = count(&region, "1").await;
        // The second request to passivate was for a new incarnation, if it came behind the end of the first.
        assert!(counted == 1 && second != first);
        let (region, mut notes) = signal_recorders(false, with_stop_message).await;
        count(&region, "1").await;
        tokio::time::timeout(PATIENCE, region.graceful_shutdown()).await.unwrap();
        for word in words {
            assert_eq!(notes.next().await, *word);
        }
        notes.is_empty();
    }
}

/// sharding 57, without remembering: an entity that ends by itself is not started before a message comes; its sibling
/// lives on.
#[tokio::test]
async fn scenario_57_an_entity_that_ends_by_itself_is_not_started_again() {
    let (region, mut notes) = signal_recorders(false, false).await;
    for id in ["ends", "stays"] {
        assert_eq!(count(&region, id).await.0, 1);
    }
    region.entity_ref("ends").tell(Word::End).unwrap();
    assert_eq!([notes.next().await, notes.next().await], ["ends: PostStop", "dropped"]);
    for counted in 2..20 {
        assert_eq!(count(&region, "stays").await.0, counted, "its state is kept");
    }
    notes.is_empty();
    assert_eq!(count(&region, "ends").await.0, 1, "a new one, for a message");
}

/// sharding 31: an entity that ignores its stop message is ended by force, and its shard stops nevertheless.
#[tokio::test]
async fn scenario_31_an_entity_that_ignores_its_stop_message_is_ended_by_force() {
    let (region, mut notes) = signal_recorders(true, true).await;
    count(&region, "1").await;
    let mut events = region.subscribe();
    let began = std::time::Instant::now();
    tokio::time::timeout(PATIENCE, region.graceful_shutdown()).await.unwrap();
    // With a handoff timeout of 6 s, entities get one second.
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    for word in ["1: stop", "1: PostStop", "dropped"] {
        assert_eq!(notes.next().await, word);
    }
    loop {
        match events.next().await.expect("the shard stops") {
            Event::ShardStopped(shard) => break assert_eq!(shard.as_str(), "0"),
            Event::StopIgnored { after, .. } => assert_eq!(after, STOP_WARN_AFTER, "on a machine that is slow"),
            _ => {}
        }
    }
}

/// sharding 83: while its node is suspect, no message reaches a handler; trusted again, they are handled in order.
#[tokio::test]
async fn scenario_83_a_suspect_node_holds_its_messages_until_it_is_trusted() {
    let (region, mut notes) = signal_recorders(false, false).await;
    let (_, incarnation) = count(&region, "1").await;
    region.0.input(RegionInput::SelfSuspect);
    let one = region.entity_ref("1");
    let mut held: Vec<_> = (0..3).map(|_| Box::pin(one.ask(Word::Count).timeout(PATIENCE).send())).collect();
    // A message for another entity of the shard, which must not be started yet.
    let mut started = Box::pin(region.entity_ref("2").ask(Word::Count).timeout(PATIENCE).send());
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(futures::poll!(&mut held[0]).is_pending() && futures::poll!(&mut started).is_pending());
    }
    region.0.input(RegionInput::SelfTrusted);
    for (answer, counted) in held.into_iter().zip(2..) {
        assert_eq!(answer.await.unwrap(), (counted, incarnation));
    }
    assert_eq!(started.await.unwrap().0, 1);
    notes.is_empty();
}

/// sharding 83: a suspect node that turns out to be downed kills its shards; no handler sees the waiting messages.
#[tokio::test]
async fn scenario_83_a_suspect_node_that_is_downed_kills_its_shards_without_a_handler() {
    let (region, mut notes) = signal_recorders(false, true).await;
    count(&region, "1").await;
    region.0.input(RegionInput::SelfSuspect);
    let held: Vec<_> = (0..3).map(|_| region.entity_ref("1").ask(Word::Count).timeout(PATIENCE).send()).collect();
    region.0.input(RegionInput::SelfDowned);
    for answer in held {
        assert!(matches!(answer.await, Err(AskError::Dropped(_))));
    }
    assert_eq!(notes.next().await, "dropped", "neither a stop message nor a signal");
    notes.is_empty();
    assert!(region.entity_ref("1").tell(Word::Passivate).is_err());
}

/// An event-sourced sum, which ends on its stop message.
struct Sum;

enum SumCommand {
    /// Adds one; answers the sum and the incarnation.
    Add(ReplyTo<(u64, u64)>),
    Stop,
}

impl EventSourced for Sum {
    type Command = SumCommand;
    type Event = u8;
    type State = u64;

    fn on_command(&mut self, cx: &mut Ctx<'_, SumCommand>, _: &u64, command: SumCommand) -> Effect<Self> {
        let incarnation = cx.incarnation().unwrap();
        match command {
            SumCommand::Add(reply_to) => Effect::persist(1).then_reply(reply_to, move |sum: &u64| (*sum, incarnation)),
            SumCommand::Stop => Effect::stop(),
        }
    }

    fn apply(sum: &mut u64, added: &u8) {
        *sum += u64::from(*added);
    }
}

/// sharding 55: of a queue [add, stop, add] the first is handled before the stop and the last by the next incarnation,
/// even if all three wait for its recovery.
#[tokio::test]
async fn scenario_55_messages_behind_a_stop_go_to_the_next_incarnation() {
    let sharding = alone_over(Some(Stores::in_memory()), ShardingSettings::test()).await;
    let sums = EntityType::event_sourced(EntityKey::new("Sum"), |_| Ok(Sum)).events(json("sum.added")).local_only();
    let one = sharding.init(sums).unwrap().entity_ref("1");
    let add = || one.ask(SumCommand::Add).timeout(PATIENCE).send();
    let mut last = 0;
    for cycle in 0..10 {
        let before = add();
        one.tell(SumCommand::Stop).unwrap();
        let after = add();
        one.tell(SumCommand::Stop).unwrap();
        let (sum, first) = before.await.unwrap();
        assert_eq!(sum, cycle * 2 + 1);
        let (sum, second) = after.await.unwrap();
        assert_eq!(sum, cycle * 2 + 2);
        assert!(first != second && first != last, "{last}, {first}, {second}");
        last = second;
    }
}
