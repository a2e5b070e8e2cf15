//! Entries that are large, or too large.

use greylag_crdt::UpdateCx;
use greylag_ddata::{ReplicatorEvent, ReplicatorSettings, UpdateError, WriteLevel};

use crate::expiry::world::{SECOND, Set, World, key, settings};

const KIB: usize = 1024;

fn add_kib(world: &mut World, name: char, element: &str) -> Result<u64, crate::expiry::world::Refused> {
    let add = |set: &mut Set, cx: &mut UpdateCx<'_>| set.add(cx, format!("{element}{}", "x".repeat(KIB - 12)));
    world.update(name, "s", WriteLevel::Local, add)
}

/// ddata E4: two halves join above the limit and are kept; after that only updates that make the entry smaller succeed,
/// until it is below the limit. With the sizes of the scenario divided by 1,024.
#[test]
fn scenario_85_halves_join_above_the_limit() {
    let settings = ReplicatorSettings {
        max_entry_bytes: 64 * KIB,
        max_message_bytes: 16 * KIB,
        bulk_fragment_bytes: 16 * KIB,
        ..settings(&[])
    };
    let mut world = World::new(&[('a', 0), ('b', 0)], &settings);
    world.cut('a', 'b');
    for number in 0..40 {
        add_kib(&mut world, 'a', &format!("a{number}")).unwrap();
        add_kib(&mut world, 'b', &format!("b{number}")).unwrap();
    }
    world.run(SECOND * 10);
    world.mend();
    world.run(SECOND * 30);
    let len = |world: &World, name: char| world.core(name).value(&key::<Set>("s")).map_or(0, Set::len);
    assert_eq!((len(&world, 'a'), len(&world, 'b')), (80, 80));
    world.all_equal();
    for name in ['a', 'b'] {
        let refused = add_kib(&mut world, name, "more");
        let is_too_large = |size| (80 * KIB..84 * KIB).contains(&size);
        assert!(
            matches!(refused, Err(UpdateError::EntryTooLarge { size, max: 65_536, .. }) if is_too_large(size)),
            "{refused:?}"
        );
    }
    let mut removed = 0;
    while add_kib(&mut world, 'a', "more").is_err() {
        let remove = |set: &mut Set, cx: &mut UpdateCx<'_>| {
            let element = set.iter().next().cloned().expect("one is left");
            set.remove(cx, &element);
        };
        world.update('a', "s", WriteLevel::Local, remove).unwrap();
        removed += 1;
    }
    assert!((16..=20).contains(&removed), "{removed} had to go");
    world.run(SECOND * 5);
    assert_eq!((len(&world, 'a'), len(&world, 'b')), (81 - removed, 81 - removed));
    world.all_equal();
}

fn large(world: &mut World) -> Vec<(char, usize, bool)> {
    let told = std::mem::take(&mut world.events).into_iter().filter_map(|(name, event)| match event {
        ReplicatorEvent::EntryLarge { bytes, in_pieces, .. } => Some((name, bytes, in_pieces)),
        _ => None,
    });
    told.collect()
}

/// ddata E4: a large entry is reported once, and again when it has grown by a tenth, where it is written and where it
/// arrives.
#[test]
fn a_large_entry_is_reported_once_and_again_when_it_has_grown() {
    let settings = ReplicatorSettings { max_message_bytes: 16 * KIB, ..settings(&[]) };
    let mut world = World::new(&[('a', 0), ('b', 0)], &settings);
    let mut told = Vec::new();
    for number in 10..40 {
        add_kib(&mut world, 'a', &format!("a{number}")).unwrap();
        told.extend(large(&mut world));
        world.run(SECOND);
        told.extend(large(&mut world));
    }
    let of = |name: char| told.iter().filter(move |(by, ..)| *by == name).collect::<Vec<_>>();
    for name in ['a', 'b'] {
        let told = of(name);
        assert!((10 * KIB..11 * KIB + 512).contains(&told[0].1), "{told:?}");
        assert!(told.windows(2).all(|pair| pair[1].1 * 10 >= pair[0].1 * 11), "{told:?}");
        assert!((7..14).contains(&told.len()), "{told:?}");
        assert!(told.iter().all(|(_, bytes, in_pieces)| *in_pieces == (*bytes > 12 * KIB)), "{told:?}");
    }
}

/// ddata E4: a value that does not grow is not reported, however often it changes.
#[test]
fn a_value_changed_often_that_stays_small_is_not_reported() {
    let mut world = World::new(&[('a', 0), ('b', 0)], &settings(&[]));
    for _ in 0..2_000 {
        world.add('a', "s", "x");
    }
    world.run(SECOND * 3);
    assert_eq!(large(&mut world), []);
}
