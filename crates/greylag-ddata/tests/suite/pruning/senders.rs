//! Messages are accepted from known replicas in any status, and from no other sender. Source: ddata G2.

use greylag_ddata::{Input, Message, ReplicaStatus};

use crate::pruning::world::{SOON, World, address};

fn say_something(world: &mut World, to: char, from: greylag_core::UniqueAddress, envelope: &greylag_ddata::Envelope) {
    let message = Message::Write { request: 1, key: "s".into(), envelope: envelope.clone() };
    world.input(to, Input::Received { from, message });
}

/// ddata G2: messages of wrong incarnations, strangers and removed replicas are ignored; a member that is first seen as
/// leaving is served.
#[test]
fn scenario_64_strangers_and_removed_senders_are_ignored_and_a_leaving_one_is_served() {
    let mut world = World::new("abc");
    world.start('l', 0, ReplicaStatus::Leaving);
    world.publish();
    world.add('l', "s", "x");
    world.advance(SOON);
    world.all_hold("s", "x");
    let copy = world.envelope('l', "s");
    world.remove('c');
    // b holds the entry; a new node that has never met another would take it from those it knows.
    world.start('n', 0, ReplicaStatus::Joining);
    world.publish();
    world.lose();
    for from in [address('c', 0), address('z', 0), address('a', 7)] {
        let before = world.nodes[&'n'].core.stats().from_strangers;
        say_something(&mut world, 'n', from, &copy);
        assert_eq!(world.nodes[&'n'].core.stats().from_strangers, before + 1);
        assert_eq!(world.set('n', "s"), "");
    }
    say_something(&mut world, 'n', address('l', 0), &copy);
    assert_eq!(world.set('n', "s"), "x");
    // A round that a peer shows names l as removed: from then on messages of l are dropped.
    let l = greylag_crdt::ReplicaId(address('l', 0).uid().get());
    let owner = greylag_crdt::ReplicaId(address('a', 0).uid().get());
    let round = greylag_ddata::PruningRound { removed: l, epoch: 1, owner, created_at: 0 };
    let pruning = greylag_ddata::PruningNews { rounds: vec![round], standing: greylag_ddata::Standing::default() };
    world.input('n', Input::Received { from: address('a', 0), message: Message::SyncSame { round: 0, pruning } });
    let before = world.nodes[&'n'].core.stats().from_strangers;
    say_something(&mut world, 'n', address('l', 0), &copy);
    assert_eq!(world.nodes[&'n'].core.stats().from_strangers, before + 1);
}
