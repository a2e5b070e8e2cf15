//! Canonical bytes and digests of every type equal those committed in `tests/vectors.txt`: scenario 30.
//!
//! The bytes are a wire and disk format. `GREYLAG_BLESS=1` records them anew. A new type only adds lines;
//! where a recorded line changes, the version of the format has to change too.

use std::fmt::Write as _;
use std::path::Path;

use greylag_crdt::{
    CounterStore, DecodeError, Decoder, Digest, Encoder, Flag, FlagStore, GCounter, GSet, LwwMap, LwwRegister,
    LwwStore, Markers, MergeError, Moved, MvRegister, OrMap, OrMapStore, OrMultiMap, OrSet, OrSetStore, PNCounter,
    Performed, Plain, PnCounterMap, Range, ReplicaId, ReplicatedData, SlotId, State, StateData, TypeTag, UpdateCx,
};

use crate::node::Node;

/// Three replicas change a value each; the joins in three orders are equal. Returns the join with the last delta.
///
/// `born` is how many numbers each replica had drawn when the entry came into being there.
fn build<T: ReplicatedData>(born: u64, change: impl Fn(&mut T, &mut UpdateCx<'_>, u64)) -> (T, T::Delta) {
    let parts: Vec<(T, T::Delta)> = [1_u64, 2, 300]
        .map(|id| {
            let node = Node::new(id);
            node.numbers.reserve(born).unwrap();
            let mut value: T = node.zero();
            node.change(&mut value, |value, cx| change(value, cx, id));
            let delta = node.change(&mut value, |value, cx| change(value, cx, id + 1));
            (value, delta)
        })
        .into();
    let join = |order: [usize; 3]| {
        let mut value = T::zero();
        order.iter().for_each(|index| _ = value.merge(&parts[*index].0).unwrap());
        value
    };
    let values = [[0, 1, 2], [2, 1, 0], [1, 2, 0]].map(join);
    for other in &values[1..] {
        assert_eq!((values[0].to_bytes(), values[0].digest()), (other.to_bytes(), other.digest()), "in three orders");
    }
    let [value, ..] = values;
    (value, parts.into_iter().next_back().unwrap().1)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn row<T: ReplicatedData>(out: &mut String, change: impl Fn(&mut T, &mut UpdateCx<'_>, u64)) {
    row_of_born(out, 0, change);
}

fn row_of_born<T: ReplicatedData>(out: &mut String, born: u64, change: impl Fn(&mut T, &mut UpdateCx<'_>, u64)) {
    let (value, delta) = build(born, change);
    let (bytes, delta_bytes) = (value.to_untagged_bytes(), T::delta_to_bytes(&delta));
    let kept = value.to_bytes();
    for end in 0..kept.len() {
        assert!(T::from_bytes(&kept[..end]).is_err(), "a truncated kept value of {} is refused", T::TAG);
    }
    assert_eq!(T::from_untagged_bytes(&bytes).as_ref(), Ok(&value));
    assert_eq!(T::from_bytes(&value.to_bytes()).as_ref(), Ok(&value));
    assert_eq!(T::from_bytes(&bytes).as_ref(), Ok(&value), "bytes from before they had a tag are read");
    assert_eq!(T::delta_from_bytes(&delta_bytes).as_ref(), Ok(&delta));
    for end in 0..bytes.len() {
        assert!(T::from_bytes(&bytes[..end]).is_err(), "a truncation of {} is refused", T::TAG);
    }
    for end in 0..delta_bytes.len() {
        assert!(T::delta_from_bytes(&delta_bytes[..end]).is_err(), "a truncated delta of {} is refused", T::TAG);
    }
    let life = if born > 0 { format!(", born at {born}") } else { String::new() };
    writeln!(
        out,
        "{}{life}\n  value  {}\n  digest {:?}\n  delta  {}",
        T::TAG,
        hex(&bytes),
        value.digest(),
        hex(&delta_bytes)
    )
    .unwrap();
}

fn vectors() -> String {
    let mut out = String::new();
    // A flag changes once only, so a second change gives no delta.
    let mut on = Flag::new();
    on.switch_on();
    writeln!(out, "{}\n  value  {}\n  digest {:?}", Flag::TAG, hex(&on.to_untagged_bytes()), on.digest()).unwrap();
    writeln!(out, "  kept   {}", hex(&on.to_bytes())).unwrap();
    let (bytes, kept) = (on.to_untagged_bytes(), on.to_bytes());
    assert!(
        (0..bytes.len()).all(|end| Flag::from_untagged_bytes(&bytes[..end]).is_err()),
        "truncated flags are refused"
    );
    assert!((0..kept.len()).all(|end| Flag::from_bytes(&kept[..end]).is_err()), "truncated kept flags are refused");
    for order in [[&on, &Flag::new()], [&Flag::new(), &on], [&on, &on]] {
        let mut joined = Flag::new();
        order.iter().for_each(|flag| _ = joined.merge(flag).unwrap());
        assert_eq!((joined.to_bytes(), joined.digest()), (kept.clone(), on.digest()), "in three orders");
    }
    row::<GCounter>(&mut out, |c, cx, n| c.increment(cx, n).unwrap());
    row::<PNCounter>(&mut out, |c, cx, n| c.increment(cx, if n % 2 == 0 { -1_000 } else { 7 }).unwrap());
    row::<GSet<String>>(&mut out, |s, _, n| s.add(format!("é{n}")));
    row::<OrSet<String>>(&mut out, |s, cx, n| s.add(cx, format!("x{n}")));
    // The same set, and its bytes with a tag.
    let (kept, _) = build::<OrSet<String>>(0, |s, cx, n| s.add(cx, format!("x{n}")));
    writeln!(out, "  kept   {}", hex(&kept.to_bytes())).unwrap();
    row::<OrSet<(i32, Option<bool>)>>(&mut out, |s, cx, n| s.add(cx, (-(n as i32), (n > 2).then_some(true))));
    row::<LwwRegister<char>>(&mut out, |r, cx, n| _ = r.set_with(cx, 'ß', |_, _| n as i64 - 2));
    row(&mut out, MvRegister::<u64>::set);
    row::<LwwMap<String, u64>>(&mut out, |m, cx, n| m.put(cx, format!("k{n}"), n).unwrap());
    row::<PnCounterMap<String>>(&mut out, |m, cx, n| m.increment(cx, "k".into(), n as i64 - 5).unwrap());
    row::<OrMultiMap<u8, Vec<u8>>>(&mut out, |m, cx, n| m.add_binding(cx, 1, vec![n as u8]));
    row::<OrMap<u8, OrSetStore<u64>>>(&mut out, |m, cx, n| m.update(cx, 1, |s, cx| s.add(cx, n)));
    row::<OrMap<u8, OrMapStore<u8, LwwStore<u64>>>>(&mut out, |m, cx, n| {
        m.update(cx, 1, |m, cx| m.update(cx, 2, |r, cx| r.set(cx, n).unwrap()));
    });
    row::<OrMap<u64, CounterStore>>(&mut out, |m, cx, n| m.update(cx, n, |c, cx| c.decrement(cx, 5).unwrap()));
    row::<OrMap<u64, FlagStore>>(&mut out, |m, cx, n| {
        m.update(cx, n, |f, cx| {
            f.switch_on(cx);
        });
    });
    row::<OrMap<u8, Plain<GCounter>>>(&mut out, |m, cx, n| m.update(cx, 1, |c, cx| c.increment(cx, n).unwrap()));
    row_of_born::<GCounter>(&mut out, 130, |c, cx, n| c.increment(cx, n).unwrap());
    row_of_born::<PNCounter>(&mut out, 5, |c, cx, n| c.increment(cx, if n % 2 == 0 { -1_000 } else { 7 }).unwrap());
    markers(&mut out);
    out
}

/// Markers without births, as the former format had them, and with births.
fn markers(out: &mut String) {
    for (text, from, to) in [("markers", 0, 0), ("markers, with births", 3, 130)] {
        let mut marker = Performed::new(ReplicaId(300), ReplicaId(1));
        marker.add_ranges(&[Range { lo: 4, hi: 9, offset: 200 }]);
        marker.moved.set_amount(from, to, 1_000);
        (marker.performed_at, marker.obsolete_at) = (1_700_000_000_000, Some(1_700_000_600_000));
        let mut markers = Markers::new();
        markers.add(&marker);
        // A marker of one part that was moved to two slots of its owner: never forgotten.
        let mut other = Performed::new(ReplicaId(301), ReplicaId(1));
        let mut part = Moved::default();
        part.set_amount(from, to, 7);
        other.moved.set_part(1, part);
        (other.performed_at, other.obsolete_at) = (0, None);
        markers.add(&other);
        let mut bytes = Encoder::new();
        markers.encode(&mut bytes);
        let bytes = bytes.finish();
        assert_eq!(Markers::decode(&mut Decoder::new(&bytes)).as_ref(), Ok(&markers));
        for end in 0..bytes.len() {
            assert!(Markers::decode(&mut Decoder::new(&bytes[..end])).is_err(), "a truncation is refused");
        }
        writeln!(out, "{text}\n  value  {}", hex(&bytes)).unwrap();
    }
}

/// ddata K9: kept bytes name their type; no other type reads them, and untagged bytes of former versions are read.
#[test]
fn kept_bytes_are_of_one_type() {
    let node = Node::new(1);
    let mut set: OrSet<u32> = node.zero();
    node.change(&mut set, |set, cx| set.add(cx, 7));
    let kept = set.to_bytes();
    assert_eq!(OrSet::<u32>::from_bytes(&kept).as_ref(), Ok(&set));
    let (expected, found) = ("gl.orset/1<i64>".to_owned(), "gl.orset/1<u32>".to_owned());
    assert_eq!(OrSet::<i64>::from_bytes(&kept), Err(DecodeError::OtherType { expected, found }));
    for end in 0..kept.len() {
        assert!(OrSet::<u32>::from_bytes(&kept[..end]).is_err(), "a truncation is refused");
    }
    assert_eq!(OrSet::<u32>::from_bytes(&set.to_untagged_bytes()), Ok(set));
    // A custom type whose untagged bytes begin with the version byte of tagged ones.
    let mark = State::<Mark>::from_bytes(&[3]).unwrap();
    assert_eq!((mark.0, State::<Mark>::from_bytes(&mark.to_bytes())), (3, Ok(mark.clone())));
    assert!(matches!(State::<Mark>::from_bytes(&kept), Err(DecodeError::OtherType { .. })));
}

/// A custom type whose bytes have no version.
#[derive(Clone, Debug, PartialEq)]
struct Mark(u64);

impl StateData for Mark {
    const TAG: TypeTag = TypeTag::new("mark");

    fn zero() -> Self {
        Self(0)
    }

    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        self.0 = self.0.max(other.0);
        Ok(())
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.0);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.u64().map(Self)
    }
}

/// ddata K9, Y4: slots without births are written in format 1, and format 1 is read as birth 0.
#[test]
fn slots_without_births_keep_their_bytes() {
    let old = [1, 1, 9, 5];
    let counter = GCounter::from_bytes(&old).unwrap();
    assert_eq!(counter.slots().iter().collect::<Vec<_>>(), [(SlotId::new(ReplicaId(9), 0), 5)]);
    assert_eq!(counter.to_bytes(), [&[3, 13], &b"gl.gcounter/1"[..], &old].concat());
    assert_eq!((counter.to_untagged_bytes(), counter.digest()), (old.to_vec(), Digest::of(&old)));
    for other in [&[2, 1, 9, 0, 5][..], &[2, 0], &[2, 2, 9, 1, 5, 9, 1, 5], &[2, 1, 9, 1, 0], &[3, 1, 9, 0, 5]] {
        assert!(GCounter::from_bytes(other).is_err(), "{other:?}");
    }
    assert!(PNCounter::from_bytes(&[2, 0, 1, 9, 0, 5]).is_err());
    let born = GCounter::from_bytes(&[2, 2, 9, 0, 5, 9, 1, 6]).unwrap();
    assert_eq!((born.value(), born.slots().of(ReplicaId(9)).count()), (11, 2));
}

/// ddata 30, K9, K10, L6.
#[test]
fn scenario_30_golden_bytes_and_digests() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors.txt");
    let vectors = vectors();
    if std::env::var_os("GREYLAG_BLESS").is_some() {
        std::fs::write(&path, &vectors).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(vectors, committed, "bytes or digests changed; that is another version of the format");
}
