//! Messages that are delivered at once have the same outcome as `Input::Deliver`. Source: sharding §4.2, §10.

use proptest::prelude::*;

use super::*;
use crate::machine::shard::AHEAD;

const MESSAGES: [&str; 11] =
    ["a", "b", "stop", "passivate", "suspend", "self:s", "fail", "listen:3", "timer:t", "veto", "allow"];
const ENTITIES: usize = 8;

#[derive(Debug, Clone)]
enum Step {
    /// Messages that arrive together, each for an entity.
    Batch(Vec<(usize, usize)>),
    Turns,
    Resume(usize),
    Seconds(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let batch = prop::collection::vec((0..ENTITIES, 0..MESSAGES.len()), 1..30);
    prop_oneof![
        4 => batch.prop_map(Step::Batch),
        2 => Just(Step::Turns),
        1 => (0..ENTITIES).prop_map(Step::Resume),
        1 => (1_u64..5).prop_map(Step::Seconds),
    ]
}

impl World {
    /// Delivers a batch as a shell does.
    fn send_ahead(&mut self, batch: &[(EntityId, &str)]) {
        for part in batch.chunks(AHEAD) {
            let guesses = self.shard.look_ahead(part.iter().map(|(id, _)| id));
            for ((id, message), guess) in part.iter().zip(guesses) {
                match self.shard.deliver_at_once(self.now, (id, guess), true) {
                    Some(slot) => self.run(slot, message),
                    None => self.send(id.as_str(), message),
                }
            }
        }
    }

    fn take(&mut self, step: &Step, ahead: bool) {
        match step {
            Step::Batch(batch) => {
                let batch = batch.iter().map(|(id, message)| (entity(*id), MESSAGES[*message]));
                if ahead {
                    self.send_ahead(&batch.collect::<Vec<_>>());
                } else {
                    batch.for_each(|(id, message)| self.send(id.as_str(), message));
                }
            }
            Step::Turns => self.turns(),
            Step::Resume(id) => {
                if self.suspended.contains_key(entity(*id).as_str()) {
                    self.resume(entity(*id).as_str(), "resumed");
                }
            }
            Step::Seconds(seconds) => self.advance(Duration::from_secs(*seconds)),
        }
    }
}

/// Some ids are short, others are long enough to be shared.
fn entity(number: usize) -> EntityId {
    EntityId::new(format!("{number}").repeat(1 + 10 * number)).unwrap()
}

fn policies() -> impl Strategy<Value = Passivation> {
    prop_oneof![
        Just(Passivation::least_recently_used(3).with_idle(Duration::from_secs(7))),
        Just(Passivation::least_recently_used(4).segmented(2, &[])),
        Just(Passivation::recommended().with_limit(4)),
        Just(Passivation::none()),
    ]
}

fn worlds(passivation: &Passivation) -> [World; 2] {
    [(); 2].map(|()| World::with(passivation.clone(), |settings| settings.entity_throughput = 3))
}

proptest! {
    #[test]
    fn a_message_delivered_at_once_does_what_an_input_does(
        passivation in policies(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let [mut inputs, mut ahead] = worlds(&passivation);
        for step in &steps {
            inputs.take(step, false);
            ahead.take(step, true);
            prop_assert_eq!(&inputs.log, &ahead.log);
            prop_assert_eq!(inputs.shard.uses(), ahead.shard.uses());
        }
    }
}

#[test]
fn a_guess_that_the_messages_before_have_made_wrong_leads_nowhere_else() {
    let [_, mut world] = worlds(&Passivation::none());
    world.send("0", "a");
    let (one, two) = (EntityId::new("0").unwrap(), EntityId::new("1").unwrap());
    let [guess, ..] = world.shard.look_ahead(std::iter::once(&one));
    // The slot goes to another entity, and the entity gets another slot.
    world.send("0", "stop");
    world.send("1", "a");
    assert_eq!(world.shard.deliver_at_once(world.now, (&one, guess), true), None);
    world.send("0", "a");
    let slot = world.shard.deliver_at_once(world.now, (&one, guess), true).unwrap();
    assert_eq!(world.shard.entity(slot).unwrap().1, &one);
    let [guess, ..] = world.shard.look_ahead(std::iter::once(&two));
    let slot = world.shard.deliver_at_once(world.now, (&two, guess), true).unwrap();
    assert_eq!(world.shard.entity(slot).unwrap().1, &two);
}
