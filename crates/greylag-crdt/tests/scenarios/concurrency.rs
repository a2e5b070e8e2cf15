//! The concurrency table of ddata §1, as data. Each row has a situation in words, what all replicas have at first, what
//! two replicas then do without knowing of each other, and what both show after they met, by states and by deltas.

use std::fmt::Write as _;

use greylag_crdt::{
    CounterStore, GSet, LwwMap, OrMap, OrMultiMap, OrSet, OrSetStore, Plain, PnCounterMap, ReplicatedData, UpdateCx,
};

use crate::node::{Node, merged, with_deltas};

const TABLE: &str = "
add ∥ remove of one set element              | OrSet      | add x           | add x       | remove x          | x
add ∥ remove of one map key                  | LwwMap     | put k 1         | put k 2     | remove k          | k=2
add to a set value ∥ remove of its key       | OrMultiMap | add k a         | add k x     | remove k          | k={x}
add to a set value ∥ remove of its key       | OrMapOfSet | add k a         | add k x     | remove k          | k={x}
the same with a plain value                  | OrMapPlain | add k a         | add k x     | remove k          | k={a,x}
the same with a counter                      | PnCounters | add k 3         | add k 10    | remove k          | k=13
the same with a counter store                | OrMapCount | add k 3         | add k 10    | remove k          | k=13
remove and put, a stale copy merges          | OrMultiMap | add k a         | remove k; put k v |             | k={v}
remove and put, a stale copy merges          | OrMapOfSet | add k a         | remove k; put k v |             | k={v}
remove and put, a stale copy merges          | OrMapPlain | add k a         | remove k; put k v |             | k={v}
put ∥ put                                    | LwwMap     |                 | put k 1     | put k 2           | k=1
put ∥ put                                    | OrMapPlain |                 | put k v     | put k w           | k={v,w}
put ∥ put                                    | OrMapOfSet |                 | put k v     | put k w           | k={v,w}
clear ∥ add                                  | OrSet      | add x; add y    | clear       | add z             | z
clear ∥ add                                  | OrMapOfSet | add k a         | clear       | add k x           | k={x}
put here and there, removed there            | LwwMap     |                 | put k 1     | put k 2; remove k | k=1
";

/// A type that can perform the actions of the table.
trait Actor: ReplicatedData {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]);
    fn show(&self) -> String;
}

fn listed<V: std::fmt::Display>(values: impl Iterator<Item = V>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

impl Actor for OrSet<String> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["add", x] => self.add(cx, (*x).into()),
            ["remove", x] => assert!(self.remove(cx, *x)),
            ["clear"] => self.clear(cx),
            other => panic!("a set cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter())
    }
}

impl Actor for LwwMap<String, u32> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["put", k, v] => self.put(cx, (*k).into(), v.parse().unwrap()).unwrap(),
            ["remove", k] => assert!(self.remove(cx, *k)),
            other => panic!("a map of registers cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter().map(|(k, v)| format!("{k}={v}")))
    }
}

impl Actor for OrMultiMap<String, String> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["add", k, v] => self.add_binding(cx, (*k).into(), (*v).into()),
            ["put", k, v] => self.put(cx, (*k).into(), [(*v).into()]),
            ["remove", k] => assert!(self.remove(cx, *k)),
            other => panic!("a multimap cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter().map(|(k, values)| format!("{k}={{{}}}", listed(values.iter()))))
    }
}

impl Actor for OrMap<String, OrSetStore<String>> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["add", k, v] => self.update(cx, (*k).into(), |set, cx| set.add(cx, (*v).into())),
            ["put", k, v] => self.put(cx, (*k).into(), &OrSetStore::of_elements([(*v).into()])),
            ["remove", k] => assert!(self.remove(cx, *k)),
            ["clear"] => self.clear(cx),
            other => panic!("a map of sets cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter().map(|(k, set)| format!("{k}={{{}}}", listed(set.iter()))))
    }
}

impl Actor for OrMap<String, Plain<GSet<String>>> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["add", k, v] => self.update(cx, (*k).into(), |set, _| set.add((*v).into())),
            ["put", k, v] => {
                let mut set = GSet::new();
                set.add((*v).into());
                self.put(cx, (*k).into(), &Plain::of_value(set));
            }
            ["remove", k] => assert!(self.remove(cx, *k)),
            other => panic!("a map of plain sets cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter().map(|(k, set)| format!("{k}={{{}}}", listed(set.value().iter()))))
    }
}

impl Actor for PnCounterMap<String> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["add", k, by] => self.increment(cx, (*k).into(), by.parse().unwrap()).unwrap(),
            ["remove", k] => assert!(self.remove(cx, *k)),
            other => panic!("a map of counters cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter().map(|(k, value)| format!("{k}={value}")))
    }
}

impl Actor for OrMap<String, CounterStore> {
    fn act(&mut self, cx: &mut UpdateCx<'_>, words: &[&str]) {
        match words {
            ["add", k, by] => {
                self.update(cx, (*k).into(), |counter, cx| counter.increment(cx, by.parse().unwrap()).unwrap());
            }
            ["remove", k] => assert!(self.remove(cx, *k)),
            other => panic!("a map of counters cannot {other:?}"),
        }
    }

    fn show(&self) -> String {
        listed(self.iter().map(|(k, counter)| format!("{k}={}", counter.value())))
    }
}

fn act<T: Actor>(node: &Node, value: &mut T, script: &str) -> Option<T::Delta> {
    let actions: Vec<Vec<&str>> = script.split(';').map(|action| action.split_whitespace().collect()).collect();
    let actions: Vec<_> = actions.into_iter().filter(|words| !words.is_empty()).collect();
    let any = !actions.is_empty();
    any.then(|| node.change(value, |value, cx| actions.iter().for_each(|words| value.act(cx, words))))
}

fn outcomes<T: Actor>(before: &str, here: &str, there: &str) -> [String; 3] {
    let (a, b) = (Node::new(1), Node::new(2));
    let mut at_a: T = a.zero();
    act(&a, &mut at_a, before);
    let mut at_b = b.copy(&at_a);
    let (of_a, of_b) = (act(&a, &mut at_a, here), act(&b, &mut at_b, there));
    [merged(&at_a, &at_b), with_deltas(&at_a, &of_b), with_deltas(&at_b, &of_a)].map(|value| value.show())
}

/// ddata §1, the concurrency table; Y7, Y8, Y9, Y10, Y11.
#[test]
fn the_concurrency_table() {
    let mut wrong = String::new();
    for row in TABLE.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [situation, kind, before, here, there, expected] = cells[..] else { panic!("a row has six cells: {row}") };
        let shown = match kind {
            "OrSet" => outcomes::<OrSet<String>>(before, here, there),
            "LwwMap" => outcomes::<LwwMap<String, u32>>(before, here, there),
            "OrMultiMap" => outcomes::<OrMultiMap<String, String>>(before, here, there),
            "OrMapOfSet" => outcomes::<OrMap<String, OrSetStore<String>>>(before, here, there),
            "OrMapPlain" => outcomes::<OrMap<String, Plain<GSet<String>>>>(before, here, there),
            "PnCounters" => outcomes::<PnCounterMap<String>>(before, here, there),
            "OrMapCount" => outcomes::<OrMap<String, CounterStore>>(before, here, there),
            other => panic!("no type {other}"),
        };
        if shown.iter().any(|shown| shown != expected) {
            writeln!(wrong, "{situation} ({kind}): {shown:?}, not {expected}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
