//! ddata G12: repairing a value range by range gives the join of the full states.

use greylag_crdt::{
    Change, GSet, KeyRange, LwwMap, OrMap, OrMultiMap, OrSet, OrSetStore, Part, PnCounterMap, Ranged, ReplicatedData,
    UpdateCx, context_from_bytes,
};
use proptest::prelude::*;

use crate::node::Node;

/// A step of one of two copies: an operation, a merge of the other copy, or a delta of the other copy.
type Step = (bool, u8, u8);

/// Two copies that were changed and merged at random.
struct Copies<T: ReplicatedData> {
    own: T,
    theirs: T,
    /// Deltas of changes made at `own` after the repair began.
    late: Vec<T::Delta>,
}

fn histories<T: ReplicatedData>(
    steps: &[Step],
    late: &[(u8, u8)],
    operation: fn(&mut T, &mut UpdateCx<'_>, u8, u8),
) -> Copies<T> {
    let nodes = [Node::new(1), Node::new(2)];
    let mut copies = [nodes[0].zero::<T>(), nodes[1].zero::<T>()];
    for (at_second, kind, key) in steps {
        let at = usize::from(*at_second);
        if *kind >= 250 {
            let other = copies[1 - at].clone();
            copies[at].merge(&other).unwrap();
        } else {
            nodes[at].try_change(&mut copies[at], |value, cx| operation(value, cx, *kind, *key));
        }
    }
    let [own, theirs] = copies;
    let (mut changed, mut deltas) = (own.clone(), Vec::new());
    for (kind, key) in late {
        if let Change::Delta(delta) = nodes[0].try_change(&mut changed, |value, cx| operation(value, cx, *kind, *key)) {
            deltas.push(delta);
        }
    }
    Copies { own, theirs, late: deltas }
}

fn ranged<T: ReplicatedData>(value: &T) -> &dyn Ranged {
    value.ranged().expect("the type knows ranges")
}

/// The parts that a receiver with `own` asks for: ranges that differ are split until they are small.
fn wanted(own: &dyn Ranged, theirs: &dyn Ranged, range: KeyRange, max_bytes: usize, parts: &mut Vec<Part>) {
    for (range, sum) in theirs.split(&range, 3).unwrap() {
        if own.sum(&range).unwrap() == sum {
            continue;
        }
        if sum.count > 2 {
            wanted(own, theirs, range, max_bytes, parts);
            continue;
        }
        let mut rest = Some(range);
        while let Some(range) = rest {
            let part = theirs.part(&range, max_bytes).unwrap();
            rest = (part.range.to != range.to).then(|| KeyRange { from: part.range.to.clone(), to: range.to });
            parts.push(part);
        }
    }
}

fn check<T: ReplicatedData>(copies: Copies<T>, order: &[u16], max_bytes: usize) -> Result<(), TestCaseError> {
    let Copies { own, theirs, late } = copies;
    let context = context_from_bytes(&ranged(&theirs).context_bytes()).unwrap();
    let mut parts = Vec::new();
    wanted(ranged(&own), ranged(&theirs), KeyRange::ALL, max_bytes, &mut parts);
    // Join the parts in any order, some of them twice.
    let mut shuffled: Vec<&Part> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let at = usize::from(order[index % order.len()]) % (shuffled.len() + 1);
        shuffled.insert(at, part);
        if order[index % order.len()].is_multiple_of(3) {
            shuffled.push(part);
        }
    }
    let mut draft = own.clone();
    for part in shuffled {
        draft.ranged_mut().unwrap().join_part(&context, part).unwrap();
    }
    draft.ranged_mut().unwrap().finish_parts(&context);
    for delta in &late {
        draft.merge_delta(delta).unwrap();
    }
    let mut joined = own.clone();
    joined.merge(&theirs).unwrap();
    for delta in &late {
        joined.merge_delta(delta).unwrap();
    }
    prop_assert_eq!(&draft, &joined);
    prop_assert_eq!(draft.digest(), joined.digest());
    prop_assert_eq!(draft.to_bytes(), joined.to_bytes());
    Ok(())
}

macro_rules! repaired_as_joined {
    ($($name:ident: $type:ty, $operation:expr;)*) => {$(
        proptest! {
            #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

            /// ddata G12: nothing is resurrected or lost, in any order of parts.
            #[test]
            fn $name(
                steps in prop::collection::vec((any::<bool>(), any::<u8>(), 0..24_u8), 0..80),
                late in prop::collection::vec((0..250_u8, 0..24_u8), 0..6),
                order in prop::collection::vec(any::<u16>(), 1..9),
                max_bytes in 1..200_usize,
            ) {
                check(histories::<$type>(&steps, &late, $operation), &order, max_bytes)?;
            }
        }
    )*};
}

repaired_as_joined! {
    parts_of_an_orset: OrSet<u8>, |set, cx, kind, key| match kind % 3 {
        0 => drop(set.remove(cx, &key)),
        1 if kind > 240 => set.clear(cx),
        _ => set.add(cx, key),
    };
    parts_of_an_ormap: OrMap<u8, OrSetStore<u8>>, |map, cx, kind, key| match kind % 3 {
        0 => drop(map.remove(cx, &key)),
        1 => map.update(cx, key, |set, cx| set.add(cx, kind % 5)),
        _ => map.put(cx, key, &OrSetStore::of_elements([kind % 7])),
    };
    parts_of_an_ormultimap: OrMultiMap<u8, u8>, |map, cx, kind, key| match kind % 3 {
        0 => drop(map.remove_binding(cx, &key, &(kind % 4))),
        1 if kind % 2 == 0 => drop(map.remove(cx, &key)),
        _ => map.add_binding(cx, key, kind % 4),
    };
    parts_of_an_lwwmap: LwwMap<u8, u8>, |map, cx, kind, key| match kind % 3 {
        0 => drop(map.remove(cx, &key)),
        _ => map.put(cx, key, kind).unwrap(),
    };
    parts_of_a_pncountermap: PnCounterMap<u8>, |map, cx, kind, key| match kind % 3 {
        0 => drop(map.remove(cx, &key)),
        _ => map.increment(cx, key, i64::from(kind) - 100).unwrap(),
    };
    parts_of_a_gset: GSet<u8>, |set, _, _, key| set.add(key);
}

/// ddata G12: parts that a peer made up are refused and leave the draft unchanged.
#[test]
fn malformed_parts_are_refused() {
    let (node, mut set) = (Node::new(1), OrSet::<u8>::new());
    node.change(&mut set, |set, cx| set.add_all(cx, 0..200));
    let context = context_from_bytes(&ranged(&set).context_bytes()).unwrap();
    let part = ranged(&set).part(&KeyRange::ALL, 300).unwrap();
    assert!(part.range.to.is_some() && part.bytes.len() <= 320);
    let mut draft = OrSet::<u8>::new();
    let range = |from: u8, to: u8| KeyRange { from: Some(vec![from]), to: Some(vec![to]) };
    for end in 0..part.bytes.len() {
        let cut = Part { bytes: part.bytes[..end].to_vec(), ..part.clone() };
        assert!(draft.ranged_mut().unwrap().join_part(&context, &cut).is_err());
    }
    let narrow = Part { range: range(1, 9), ..part.clone() };
    assert!(draft.ranged_mut().unwrap().join_part(&context, &narrow).is_err(), "a key lies outside");
    let empty = Part { range: range(9, 9), ..part.clone() };
    assert!(draft.ranged_mut().unwrap().join_part(&context, &empty).is_err(), "an empty range");
    let unseen = greylag_crdt::Context::new();
    assert!(draft.ranged_mut().unwrap().join_part(&unseen, &part).is_err(), "dots that its context lacks");
    assert_eq!(draft, OrSet::new());
}
