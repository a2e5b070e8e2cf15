//! Receive timeouts of entities of every kind, over real tasks. Source: sharding §4.4.

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::*;

const SHORT: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(20);

enum Word {
    /// Sets a receive timeout.
    SetTimeout,
    /// Cancels the receive timeout.
    CancelTimeout,
    /// Adds one, persisted if the entity persists, and answers the sum and the incarnation.
    Add(ReplyTo<(u64, u64)>),
    /// Begins a timer that does not influence the silence.
    Tick,
    Ticked,
    TimedOut,
    /// Asks for the entity's end, which follows a while later: messages in between wait for the next incarnation.
    Stop,
    End,
}

/// The behaviour that all kinds share, except for persisting.
#[derive(Clone)]
struct Listener {
    told: UnboundedSender<&'static str>,
    /// Whether the entity passivates itself when it is told of a silence.
    passivates: bool,
}

impl Listener {
    fn handle_word(&self, word: &Word, cx: &mut Ctx<'_, Word>) {
        match word {
            Word::SetTimeout => cx.set_receive_timeout(SHORT, || Word::TimedOut),
            Word::CancelTimeout => cx.cancel_receive_timeout(),
            Word::Tick => cx.fixed_rate(NotInfluence("tick"), TICK, || Word::Ticked),
            Word::TimedOut => {
                self.told.send("silence").ok();
                if self.passivates {
                    cx.cancel_receive_timeout();
                    cx.passivate();
                }
            }
            Word::Stop => {
                self.told.send("stop").ok();
                cx.once("end", SHORT, Word::End);
            }
            Word::End => cx.stop(),
            Word::Add(_) | Word::Ticked => {}
        }
    }
}

struct Plainly(Listener, u64);

impl Entity for Plainly {
    type Message = Word;

    fn receive(&mut self, word: Word, cx: &mut Ctx<'_, Word>) -> Result<(), Failure> {
        self.0.handle_word(&word, cx);
        if let Word::Add(reply_to) = word {
            self.1 += 1;
            reply_to.reply((self.1, cx.incarnation().unwrap()));
        }
        Ok(())
    }
}

struct ByHistory(Listener);

impl EventSourced for ByHistory {
    type Command = Word;
    type Event = u8;
    type State = u64;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings::test()
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Word>, _: &u64, word: Word) -> Effect<Self> {
        self.0.handle_word(&word, cx);
        let incarnation = cx.incarnation().unwrap();
        match word {
            Word::Add(reply_to) => Effect::persist(1).then_reply(reply_to, move |count: &u64| (*count, incarnation)),
            _ => Effect::none(),
        }
    }

    fn apply(count: &mut u64, added: &u8) {
        *count += u64::from(*added);
    }
}

struct InState(Listener);

impl DurableState for InState {
    type Command = Word;
    type State = u64;

    fn on_command(&mut self, cx: &mut Ctx<'_, Word>, count: &u64, word: Word) -> StateEffect<Self> {
        self.0.handle_word(&word, cx);
        let incarnation = cx.incarnation().unwrap();
        match word {
            Word::Add(reply_to) => {
                StateEffect::persist(count + 1).then_reply(reply_to, move |count: &u64| (*count, incarnation))
            }
            _ => StateEffect::none(),
        }
    }
}

/// One entity of each kind, under the names of their types.
async fn listeners(listener: &Listener) -> (Sharding, Vec<(&'static str, Region<Word>)>) {
    let sharding = alone_over(Some(Stores::in_memory()), ShardingSettings::test()).await;
    let of = |listener: &Listener| listener.clone();
    let plain = of(listener);
    let plain = EntityType::new(EntityKey::new("Plain"), move |_| Ok(Plainly(plain.clone(), 0)));
    let history = of(listener);
    let history = EntityType::event_sourced(EntityKey::new("History"), move |_| Ok(ByHistory(history.clone())));
    let history = history.events(json("quiet.added"));
    let state = of(listener);
    let state = EntityType::durable_state(EntityKey::new("State"), move |_| Ok(InState(state.clone())));
    let state = state.states(json("quiet.count"));
    let regions = vec![
        ("Plain", sharding.init(plain.local_only().stop_message(|| Word::Stop)).unwrap()),
        ("History", sharding.init(history.local_only().stop_message(|| Word::Stop)).unwrap()),
        ("State", sharding.init(state.local_only().stop_message(|| Word::Stop)).unwrap()),
    ];
    (sharding, regions)
}

async fn add(region: &Region<Word>) -> (u64, u64) {
    region.entity_ref("one").ask(Word::Add).timeout(PATIENCE).await.unwrap()
}

/// sharding 62, in real time: a silence is reported again and again, even beside a timer that does not influence it,
/// and no more once the receive timeout is cancelled.
#[tokio::test]
async fn scenario_62_a_receive_timeout_repeats_until_it_is_cancelled() {
    let (told, mut silences) = unbounded_channel();
    let (_sharding, regions) = listeners(&Listener { told, passivates: false }).await;
    for (kind, region) in &regions {
        let one = region.entity_ref("one");
        one.tell(Word::Tick).unwrap();
        one.tell(Word::SetTimeout).unwrap();
        for turn in 0..3 {
            let heard = tokio::time::timeout(PATIENCE, silences.recv()).await;
            assert_eq!(heard, Ok(Some("silence")), "{kind}, {turn}");
        }
        one.tell(Word::CancelTimeout).unwrap();
        add(region).await;
        while silences.try_recv().is_ok() {}
        tokio::time::sleep(SHORT * 2).await;
        assert!(silences.try_recv().is_err(), "{kind}");
    }
}

/// sharding 53: a message between the receive timeout that ends an entity and the end is answered by a new incarnation,
/// which continues from the stored state.
#[tokio::test]
async fn scenario_53_a_receive_timeout_passivates_and_the_next_message_starts_a_new_incarnation() {
    let (told, mut ends) = unbounded_channel();
    let (_sharding, regions) = listeners(&Listener { told, passivates: true }).await;
    for (kind, region) in &regions {
        let mut first = 0;
        for count in 1..=3 {
            let (sum, incarnation) = add(region).await;
            assert_eq!(sum, count, "{kind}");
            first = incarnation;
        }
        region.entity_ref("one").tell(Word::SetTimeout).unwrap();
        for word in ["silence", "stop"] {
            assert_eq!(tokio::time::timeout(PATIENCE, ends.recv()).await, Ok(Some(word)), "{kind}");
        }
        let (sum, incarnation) = add(region).await;
        assert_eq!(sum, if *kind == "Plain" { 1 } else { 4 }, "{kind}");
        assert_ne!(incarnation, first, "{kind}");
    }
}
