//! Registers: scenarios 27 and 70.

use greylag_crdt::{Change, LwwRegister, MvRegister};

use crate::node::{Node, merged};

/// ddata 27, Y6.
#[test]
fn scenario_27_lwwregister_clocks_and_ties() {
    let (n1, mut n2) = (Node::new(1), Node::new(2));
    let mut register = LwwRegister::new();
    let mut last = i64::MIN;
    for value in 0..100_u32 {
        n1.change(&mut register, |r, cx| r.set(cx, value).unwrap());
        assert!(register.timestamp() > last, "timestamps rise within one millisecond");
        last = register.timestamp();
    }
    let mut first = LwwRegister::new();
    for value in 0..100_u32 {
        let change = n1.try_change(&mut first, |r, cx| assert_eq!(r.set_first(cx, value).unwrap(), value == 0));
        assert_eq!(matches!(change, Change::None), value > 0, "a losing write changes nothing");
    }
    assert_eq!(first.value(), Some(&0));
    let (mut one, mut other) = (LwwRegister::new(), LwwRegister::new());
    n1.change(&mut one, |r, cx| assert!(r.set_with(cx, "n1".to_owned(), |_, _| 7)));
    n2.change(&mut other, |r, cx| assert!(r.set_with(cx, "n2".to_owned(), |_, _| 7)));
    assert_eq!(merged(&one, &other).value().unwrap(), "n1");
    // The clock jumps back, and the register's timestamp still rises.
    n2.wall_ms -= 60_000;
    n2.change(&mut other, |r, cx| r.set(cx, "later".to_owned()).unwrap());
    assert_eq!((other.timestamp(), other.updated_by()), (8, Some(&n2.writer)));
}

/// ddata Y6: a timestamp at the end cannot advance.
#[test]
fn an_exhausted_clock_refuses() {
    let node = Node::new(1);
    let mut register = LwwRegister::new();
    node.change(&mut register, |r, cx| assert!(r.set_with(cx, 1, |_, _| i64::MAX)));
    assert_eq!(node.try_change(&mut register, |r, cx| assert!(r.set(cx, 2).is_err())), Change::None);
    assert_eq!(register.value(), Some(&1));
    let mut register = LwwRegister::new();
    node.change(&mut register, |r, cx| assert!(r.set_with(cx, 1, |_, _| i64::MIN)));
    assert_eq!(node.try_change(&mut register, |r, cx| assert!(r.set_first(cx, 2).is_err())), Change::None);
}

/// ddata 70, I4: the part of the register; the consistency levels are tested with the replicator.
#[test]
fn scenario_70_a_fence_shows_both_readers_the_same() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let (mut a, mut b) = (LwwRegister::new(), LwwRegister::new());
    n1.change(&mut a, |r, cx| assert!(r.set_with(cx, "one".to_owned(), |_, _| 7)));
    n2.change(&mut b, |r, cx| assert!(r.set_with(cx, "two".to_owned(), |_, _| 7)));
    let mut both = merged(&a, &b);
    assert_eq!(both.value().unwrap(), "one", "the smaller writer key");
    assert_eq!(merged(&both, &b), both, "at n2 too");
    n2.try_change(&mut both, |r, cx| assert!(!r.set_with(cx, "late".to_owned(), |_, _| 6)));
    assert_eq!(both.value().unwrap(), "one", "a smaller timestamp changes nothing");
}

/// ddata §1: an MvRegister keeps all concurrent writes.
#[test]
fn mvregister_keeps_concurrent_writes() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: MvRegister<u8> = n1.zero();
    n1.change(&mut a, |r, cx| r.set(cx, 1));
    let mut b = n2.copy(&a);
    n1.change(&mut a, |r, cx| r.set(cx, 2));
    n2.change(&mut b, |r, cx| r.set(cx, 3));
    let mut both = merged(&a, &b);
    assert!(both.values().eq([&2, &3]));
    n1.change(&mut both, |r, cx| r.set(cx, 4));
    assert!(merged(&both, &b).values().eq([&4]));
}

/// ddata K5, §9: two values under one dot, as after two processes used one replica id, are joined equally everywhere.
#[test]
fn two_values_under_one_dot_are_joined() {
    let (one, other) = (Node::new(1), Node::new(1));
    let (mut a, mut b): (MvRegister<u8>, MvRegister<u8>) = (one.zero(), other.zero());
    one.change(&mut a, |r, cx| r.set(cx, 1));
    other.change(&mut b, |r, cx| r.set(cx, 2));
    assert!(merged(&a, &b).values().eq([&2]));
}
