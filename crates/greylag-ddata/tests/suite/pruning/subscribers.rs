//! Notices about pruning: none, as long as what subscribers were told still holds. Source: ddata R16.

use greylag_crdt::{CounterOverflow, GCounter, ReplicatedData, UpdateCx};
use greylag_ddata::{Envelope, Input};

use crate::pruning::world::{LIFE, Places, SOON, SPREAD, Set, TICK, Votes, World, replica};

const IDS: [&str; 4] = ["s", "c", "m", "v"];

/// Changes one entry of each type; `number` makes the changes differ.
fn write(world: &mut World, name: char, number: u64) {
    let text = format!("{name}{number}");
    world.add(name, "s", &text);
    world.count(name, "c", number);
    world.update::<Places>(name, "m", |map: &mut Places, cx: &mut UpdateCx<'_>| {
        map.put(cx, text.clone(), "here".to_owned()).expect("a time");
        Ok::<_, CounterOverflow>(())
    });
    world.update::<Votes>(name, "v", |map: &mut Votes, cx: &mut UpdateCx<'_>| map.increment(cx, "k".to_owned(), 1));
}

fn copies(world: &mut World, name: char) -> Vec<(&'static str, Envelope)> {
    IDS.map(|id| (id, world.envelope(name, id))).into()
}

fn subscribe(world: &mut World) {
    for name in world.nodes.keys().copied().collect::<Vec<_>>() {
        for (subscriber, id) in (1..).zip(IDS) {
            world.input(name, Input::SubscribeAny { subscriber, pattern: id.into() });
        }
    }
    world.advance(SOON);
    world.nodes.values_mut().for_each(|node| node.notices.clear());
}

/// The entries of which each subscriber was notified, in order; an entry occurs once per notice.
fn heard(world: &World) -> Vec<(char, String)> {
    let mut heard = Vec::new();
    for (name, node) in &world.nodes {
        heard.extend(node.notices.iter().map(|key| (*name, key.to_string())));
    }
    heard.sort();
    heard
}

fn is_named_at(world: &World, name: char) -> bool {
    fn names<T: ReplicatedData>(world: &World, name: char, id: &str) -> bool {
        let value = world.value::<T>(name, id);
        value.pruning().is_some_and(|pruning| pruning.modified_by().contains(&replica('r')))
    }
    names::<Set>(world, name, "s")
        || names::<GCounter>(world, name, "c")
        || names::<Places>(world, name, "m")
        || names::<Votes>(world, name, "v")
}

fn until_pruned(world: &mut World) {
    world.advance_until(SPREAD + TICK * 12, |world| world.nodes.keys().all(|name| !is_named_at(world, *name)));
    world.advance(SOON);
}

/// ddata 93, R16, Z8: a perform, its marker at another replica, late copies and the end of the marker change no value,
/// so no subscriber is notified.
#[test]
fn scenario_93_pruning_that_changes_no_value_notifies_no_subscriber() {
    let mut world = World::new("opr");
    for name in ['o', 'p', 'r'] {
        write(&mut world, name, 1);
        world.advance(SOON);
    }
    let late = copies(&mut world, 'p');
    subscribe(&mut world);
    world.remove('r');
    until_pruned(&mut world);
    assert_eq!(heard(&world), [], "o performed, and p merged it");
    for _ in 0..2 {
        for name in ['o', 'p'] {
            late.iter().for_each(|(id, envelope)| world.turns_up(name, id, envelope));
        }
        world.advance(SOON);
    }
    assert_eq!(heard(&world), [], "a late copy brings nothing new");
    world.advance(LIFE + SPREAD * 2 + TICK * 2);
    assert!(IDS.iter().all(|id| world.nodes[&'o'].core.markers(id).is_empty()), "the markers were forgotten");
    assert_eq!(heard(&world), []);
    world.count('p', "c", 1);
    world.advance(SOON);
    assert_eq!(heard(&world), [('o', "c".to_owned()), ('p', "c".to_owned())], "what changes is told");
}

/// ddata 93, R16: an unknown update that arrives together with the markers causes one notice.
#[test]
fn scenario_93_something_new_beside_the_markers_is_told_once() {
    let mut world = World::new("opr");
    world.add('o', "s", "own");
    write(&mut world, 'r', 1);
    world.advance(SOON);
    // No other node hears r's last writes; its store returns.
    world.cut('o', 'r');
    world.cut('p', 'r');
    write(&mut world, 'r', 2);
    let store = copies(&mut world, 'r');
    world.remove('r');
    until_pruned(&mut world);
    subscribe(&mut world);
    world.cut('o', 'p');
    store.iter().for_each(|(id, envelope)| world.turns_up('o', id, envelope));
    world.advance(TICK * 3);
    assert!(!is_named_at(&world, 'o'), "o performed again");
    let expected = |name: char| ["c", "m", "s", "v"].map(|id| (name, id.to_owned()));
    assert_eq!(heard(&world), expected('o'), "of what was new, not of its new names");
    world.mend();
    world.advance(SOON);
    assert!(!is_named_at(&world, 'p'));
    let mut everything: Vec<_> = expected('o').into_iter().chain(expected('p')).collect();
    everything.sort();
    assert_eq!(heard(&world), everything, "at p both arrived at once, and each is told once");
}
