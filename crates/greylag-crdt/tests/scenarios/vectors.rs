//! Canonical bytes and digests of every type, as they are committed in `tests/vectors.txt`: scenario 30.
//!
//! They are a wire and disk format. `GREYLAG_BLESS=1` records them anew; then the format's version has to change too.

use std::fmt::Write as _;
use std::path::Path;

use greylag_crdt::{
    CounterStore, Flag, FlagStore, GCounter, GSet, LwwMap, LwwRegister, LwwStore, MvRegister, OrMap, OrMapStore,
    OrMultiMap, OrSet, OrSetStore, PNCounter, Plain, PnCounterMap, ReplicatedData, UpdateCx,
};

use crate::node::Node;

/// Three replicas change a value each; the joins in three orders are one value. Returns it with the last delta.
fn build<T: ReplicatedData>(change: impl Fn(&mut T, &mut UpdateCx<'_>, u64)) -> (T, T::Delta) {
    let parts: Vec<(T, T::Delta)> = [1_u64, 2, 300]
        .map(|id| {
            let node = Node::new(id);
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
    let (value, delta) = build(change);
    let (bytes, delta_bytes) = (value.to_bytes(), T::delta_to_bytes(&delta));
    assert_eq!(T::from_bytes(&bytes).as_ref(), Ok(&value));
    assert_eq!(T::delta_from_bytes(&delta_bytes).as_ref(), Ok(&delta));
    for end in 0..bytes.len() {
        assert!(T::from_bytes(&bytes[..end]).is_err(), "a truncation of {} is refused", T::TAG);
    }
    for end in 0..delta_bytes.len() {
        assert!(T::delta_from_bytes(&delta_bytes[..end]).is_err(), "a truncated delta of {} is refused", T::TAG);
    }
    writeln!(
        out,
        "{}\n  value  {}\n  digest {:?}\n  delta  {}",
        T::TAG,
        hex(&bytes),
        value.digest(),
        hex(&delta_bytes)
    )
    .unwrap();
}

fn vectors() -> String {
    let mut out = String::new();
    // A flag changes once only, so its second delta is none.
    let mut on = Flag::new();
    on.switch_on();
    writeln!(out, "{}\n  value  {}\n  digest {:?}", Flag::TAG, hex(&on.to_bytes()), on.digest()).unwrap();
    row::<GCounter>(&mut out, |c, cx, n| c.increment(cx, n).unwrap());
    row::<PNCounter>(&mut out, |c, cx, n| c.increment(cx, if n % 2 == 0 { -1_000 } else { 7 }).unwrap());
    row::<GSet<String>>(&mut out, |s, _, n| s.add(format!("é{n}")));
    row::<OrSet<String>>(&mut out, |s, cx, n| s.add(cx, format!("x{n}")));
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
    out
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
