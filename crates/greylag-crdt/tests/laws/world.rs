//! Runs a history: replicas update one entry; their states and deltas are lost, repeated and reordered; replicas
//! restart, are removed and pruned. After every step the replica concerned shows exactly what the model says.

use std::collections::{BTreeMap, BTreeSet};

use greylag_crdt::{
    Change, DotSource, EntryMark, Home, Lineage, Markers, Performed, Range, ReplicaId, UpdateCx, WriterKey,
};

use crate::model::{Live, Model, Path, Place};
use crate::step::{Op, REPLICAS, Step};

/// An operation that was done. Writes are numbered through the history; sets of writes are bit masks.
struct Done {
    replica: usize,
    /// The birth of the entry at the replica.
    life: u64,
    op: Op,
    writes: u128,
    supersedes: u128,
}

/// A process with its copy of the entry.
struct Node<T> {
    value: T,
    markers: Markers,
    /// The operations seen, as a bit mask.
    seen: u64,
    numbers: DotSource,
    writer: WriterKey,
    start_floor: u64,
    born: u64,
    /// The first operation of the present replicator, and whether an operation drew dots since the entry was absent.
    first_op: usize,
    drew: bool,
    /// The ranges reserved here, by removed replica.
    ranges: BTreeMap<ReplicaId, Vec<Range>>,
    is_gone: bool,
}

/// A full state that was sent.
struct Sent {
    bytes: Vec<u8>,
    markers: Markers,
    seen: u64,
}

/// A delta, with the markers of its origin.
struct Delta<D> {
    ops: u64,
    delta: D,
    markers: Markers,
}

pub(crate) struct World<T: Model> {
    nodes: Vec<Node<T>>,
    done: Vec<Done>,
    writes: Vec<(Path, T::Write)>,
    sent: Vec<Sent>,
    deltas: Vec<Delta<T::Delta>>,
    has_forgotten: bool,
}

fn id(replica: usize) -> ReplicaId {
    ReplicaId(replica as u64 + 1)
}

fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| mask & (1 << bit) != 0)
}

impl<T: Model> Node<T> {
    fn new(replica: usize) -> Self {
        let mut node = Self {
            value: T::zero(),
            markers: Markers::new(),
            seen: 0,
            numbers: DotSource::new(),
            writer: WriterKey::new([replica as u8]),
            start_floor: 0,
            born: 0,
            first_op: 0,
            drew: false,
            ranges: BTreeMap::new(),
            is_gone: false,
        };
        node.value.bind(node.home(replica));
        node
    }

    fn home(&self, replica: usize) -> Home {
        Home { entry: EntryMark::of("entry"), replica: id(replica), born: self.born }
    }

    fn forget(&mut self, replica: usize) {
        self.born = self.numbers.last();
        self.value = T::zero();
        self.value.bind(self.home(replica));
        (self.markers, self.seen, self.drew) = (Markers::new(), 0, false);
    }

    fn clean(&mut self) {
        clean(&mut self.value, &self.markers);
    }
}

fn clean<T: Model>(value: &mut T, markers: &Markers) {
    if let Some(pruning) = value.pruning_mut() {
        markers.clean(pruning);
    }
}

impl<T: Model> World<T> {
    pub(crate) fn new() -> Self {
        let nodes = (0..REPLICAS).map(Node::new).collect();
        Self { nodes, done: vec![], writes: vec![], sent: vec![], deltas: vec![], has_forgotten: false }
    }

    pub(crate) fn run(steps: &[Step]) {
        let mut world = Self::new();
        for step in steps {
            world.step(step);
        }
        world.finish();
    }

    fn live(&self, seen: u64) -> Vec<Live<'_, T::Write>> {
        let (mut writes, mut superseded) = (0, 0);
        for op in bits(seen) {
            writes |= self.done[op].writes;
            superseded |= self.done[op].supersedes;
        }
        let left = writes & !superseded;
        let numbered = self.writes.iter().enumerate().filter(|(index, _)| left & (1 << index) != 0);
        numbered.map(|(index, (path, write))| Live { index, path: *path, write }).collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Do(at, ops) => self.operate(*at, ops),
            Step::Gap(at) => _ = self.nodes[*at].numbers.draw(),
            Step::Send(at) => self.send(*at),
            Step::Receive { sent, to } => {
                if let Some(index) = sent.checked_rem(self.sent.len()) {
                    self.receive(index, *to);
                }
            }
            Step::Exchange { from, to } => {
                self.send(*from);
                self.receive(self.sent.len() - 1, *to);
            }
            Step::Deltas { to, bits, grouped, newest_first } => self.deltas(*to, *bits, *grouped, *newest_first),
            Step::Forget(at) => self.vanish(*at, false),
            Step::Restart(at) => self.vanish(*at, true),
            Step::Remove => self.remove(),
            Step::Perform { by, removed } => self.perform(*by, *removed),
        }
    }

    fn operate(&mut self, at: usize, ops: &[Op]) {
        if self.nodes[at].is_gone || self.done.len() + ops.len() > 60 || self.writes.len() > 110 {
            return;
        }
        let first = self.done.len();
        ops.iter().for_each(|op| self.plan(at, *op));
        let planned = &self.done[first..];
        let does_nothing = planned.iter().all(|done| done.writes == 0 && done.supersedes == 0);
        let node = &mut self.nodes[at];
        let (base, bytes) = (node.value.clone(), node.value.to_bytes());
        node.value.begin_change(Lineage(first as u64));
        let reserved: Vec<(u64, u64)> = node.ranges.values().flatten().map(Range::reserved).collect();
        let (home, floor) = (node.home(at), node.start_floor);
        let same_numbers = DotSource::above(node.numbers.last());
        let update = |value: &mut T, numbers| {
            let mut cx = UpdateCx::new(numbers, id(at), &node.writer, 0).for_entry(home, floor, &reserved);
            ops.iter().for_each(|op| value.apply(&mut cx, *op));
        };
        update(&mut node.value, &node.numbers);
        assert_eq!(base.to_bytes(), bytes, "L11: a clone is independent");
        let mut alone = base.clone();
        update(&mut alone, &same_numbers);
        assert_eq!(alone, node.value, "L3: an update does the same if its delta is not collected");
        assert_eq!(alone.digest(), node.value.digest(), "L6: and so is the digest");
        assert_eq!(base.to_bytes(), bytes, "L11: a clone is independent");
        match node.value.take_change(Lineage(first as u64)) {
            Change::None => assert_eq!(node.value, base, "L8: no delta, no change"),
            Change::FullOnly => panic!("the operation kept the lineage"),
            Change::Delta(delta) => {
                assert!(!does_nothing, "L8: an operation that changes nothing has no delta");
                let mut again = base;
                assert!(again.merge_delta(&delta).unwrap().grew(), "L8: a delta says something");
                assert_eq!(again, node.value, "L3: the changed value is the old one joined with the delta");
                let ops = (first..first + ops.len()).fold(0, |mask, op| mask | 1 << op);
                self.deltas.push(Delta { ops, delta, markers: node.markers.clone() });
            }
        }
        // Draw the version of the change, as a replicator does.
        self.nodes[at].numbers.draw();
        self.check(at);
    }

    fn plan(&mut self, at: usize, op: Op) {
        let live = self.live(self.nodes[at].seen);
        let life = self.nodes[at].born;
        let plan = T::plan(op, &Place { id: self.done.len(), replica: at, life, live: &live });
        let mut supersedes = plan.supersedes.iter().fold(0, |mask, index| mask | 1 << index);
        let node = &self.nodes[at];
        let draws = plan.writes.iter().any(|(path, _)| T::has_dot(*path));
        if draws && !node.drew {
            // The first draw retires everywhere what this replica wrote and has forgotten (ddata K7, E3).
            let here = live.iter().fold(0_u128, |mask, live| mask | 1 << live.index);
            let own = self.done[node.first_op..].iter().filter(|done| done.replica == at);
            let dotted = (0..self.writes.len()).filter(|index| T::has_dot(self.writes[*index].0));
            let dotted = dotted.fold(0_u128, |mask, index| mask | 1 << index);
            supersedes |= own.fold(0, |mask, done| mask | done.writes) & dotted & !here;
        }
        let first = self.writes.len();
        self.nodes[at].drew |= draws;
        self.nodes[at].seen |= 1 << self.done.len();
        self.writes.extend(plan.writes);
        let writes = (first..self.writes.len()).fold(0, |mask, index| mask | 1 << index);
        self.done.push(Done { replica: at, life, op, writes, supersedes });
    }

    fn send(&mut self, at: usize) {
        let Node { value, markers, seen, .. } = &self.nodes[at];
        self.sent.push(Sent { bytes: value.to_bytes(), markers: markers.clone(), seen: *seen });
    }

    /// Unites the markers, cleans both sides with all of them, and joins. Source: ddata Z7.
    fn receive(&mut self, sent: usize, to: usize) {
        let (sent, node) = (&self.sent[sent], &mut self.nodes[to]);
        if node.is_gone {
            return;
        }
        let mut theirs = T::from_bytes(&sent.bytes).expect("L6: what was encoded is read");
        assert_eq!(theirs.to_bytes(), sent.bytes, "L6: decoding undoes encoding");
        node.markers.unite(&sent.markers);
        node.clean();
        clean(&mut theirs, &node.markers);
        let own = node.value.clone();
        let grew = node.value.merge(&theirs).unwrap().grew();
        assert_eq!(grew, node.value != own, "a merge says whether it changed anything");
        let mut reverse = theirs.clone();
        reverse.merge(&own).unwrap();
        assert_eq!(reverse, node.value, "L1: commutative");
        assert_eq!(reverse.digest(), node.value.digest(), "L6: equal states have equal digests");
        assert!(!reverse.merge(&theirs).unwrap().grew(), "L1, L2: idempotent and inflationary");
        assert!(!reverse.merge(&own).unwrap().grew(), "L2: inflationary");
        node.seen |= sent.seen;
        self.check(to);
    }

    fn deltas(&mut self, to: usize, chosen: u64, grouped: bool, newest_first: bool) {
        if self.nodes[to].is_gone {
            return;
        }
        let mut order: Vec<usize> = bits(chosen).filter(|index| *index < self.deltas.len()).collect();
        if newest_first {
            order.reverse();
        }
        let mut group: Option<T::Delta> = None;
        for index in order {
            let Delta { ops, delta, markers } = &self.deltas[index];
            let node = &mut self.nodes[to];
            // A receiver that lacks a marker asks for the full state instead (ddata Z7).
            if !node.markers.includes(markers) {
                continue;
            }
            let mut delta = T::delta_from_bytes(&T::delta_to_bytes(delta)).expect("L6: a delta is read");
            node.markers.clean_delta::<T>(&mut delta);
            for op in bits(*ops) {
                let Done { replica, life, op: later, .. } = self.done[op];
                let is_same = |done: &Done| (done.replica, done.life) == (replica, life);
                let earlier = self.done[..op].iter().enumerate().filter(|(_, done)| is_same(done));
                let implied = earlier.filter(|(_, done)| T::implies(later, done.op));
                node.seen |= implied.fold(1 << op, |mask, (index, _)| mask | 1 << index);
            }
            match &mut group {
                Some(group) if grouped => T::join_deltas(group, &delta),
                _ if grouped => group = Some(delta),
                _ => _ = node.value.merge_delta(&delta).unwrap(),
            }
        }
        if let Some(group) = group {
            self.nodes[to].value.merge_delta(&group).unwrap();
        }
        // Clean again: a late slot of a counter may now exceed the amounts that markers moved.
        self.nodes[to].clean();
        self.check(to);
    }

    fn vanish(&mut self, at: usize, restart: bool) {
        let node = &mut self.nodes[at];
        if node.is_gone {
            return;
        }
        node.forget(at);
        if restart {
            node.start_floor = node.numbers.last();
            node.first_op = self.done.len();
            node.ranges.clear();
        }
        self.has_forgotten = true;
    }

    fn remove(&mut self) {
        if let Some(at) = (2..REPLICAS).rfind(|at| !self.nodes[*at].is_gone) {
            // Send the last state: the store of the removed replica may return later.
            self.send(at);
            self.nodes[at].is_gone = true;
        }
    }

    /// Performs a removed replica (ddata Z5, Z6): reserves ranges for numbers that no own range covers, and prunes.
    fn perform(&mut self, by: usize, removed: usize) {
        let removed_id = id(removed);
        let is_gone = self.nodes[removed].is_gone;
        let node = &mut self.nodes[by];
        if !is_gone || node.is_gone || !pruning_needed(&node.value, removed_id, &node.markers) {
            return;
        }
        let mut own = node.markers.get(removed_id, id(by)).cloned().unwrap_or(Performed::new(removed_id, id(by)));
        let ranges = node.ranges.entry(removed_id).or_default();
        ranges.extend(&own.ranges);
        ranges.sort_unstable();
        ranges.dedup();
        if let Some((low, high)) = node.value.pruning().and_then(|pruning| pruning.numbers_of(removed_id)) {
            for (low, high) in Range::uncovered(ranges, low, high) {
                ranges.push(Range::reserve(&node.numbers, low, high).unwrap());
            }
        }
        let ranges = ranges.clone();
        node.value.pruning_mut().unwrap().prune(removed_id, &ranges, node.born, &mut own);
        node.numbers.draw();
        node.markers.add(&own);
        node.clean();
        assert!(!pruning_needed(&node.value, removed_id, &node.markers), "everything is covered now");
        self.check(by);
    }

    /// Checks L6 and L7 for one replica.
    fn check(&self, at: usize) {
        let node = &self.nodes[at];
        assert_eq!(node.value.view(), T::model(&self.live(node.seen)), "L7: what replica {at} shows");
        let bytes = node.value.to_bytes();
        let decoded = T::from_bytes(&bytes).expect("L6: what was encoded is read");
        assert_eq!(decoded, node.value, "L6: decoding undoes encoding");
        assert_eq!(decoded.digest(), node.value.digest(), "L6: the kept digest is the digest");
        let other = &self.nodes[(at + 1) % REPLICAS].value;
        let equal = node.value == *other;
        assert_eq!(equal, bytes == other.to_bytes(), "L6: equal if bytes are");
        assert_eq!(equal, node.value.digest() == other.digest(), "L6: equal if digests are");
    }

    fn finish(&mut self) {
        let mut markers = Markers::new();
        self.nodes.iter().for_each(|node| markers.unite(&node.markers));
        self.join_deltas(&markers);
        self.associate(&markers);
        self.heal();
    }

    fn cleaned(&self, at: usize, markers: &Markers) -> T {
        let mut value = self.nodes[at].value.clone();
        clean(&mut value, markers);
        value
    }

    /// Checks that all deltas in one order and grouping, all in another, and all states give the same. Moves of owners
    /// in counters are in no delta, and forgotten elements are in no state, so such histories are skipped.
    fn join_deltas(&self, markers: &Markers) {
        if self.has_forgotten || (T::MOVES && !markers.is_empty()) {
            return;
        }
        let mut states = T::zero();
        (0..REPLICAS).for_each(|at| _ = states.merge(&self.cleaned(at, markers)).unwrap());
        let mut deltas: Vec<T::Delta> = self.deltas.iter().map(|delta| delta.delta.clone()).collect();
        deltas.iter_mut().for_each(|delta| _ = markers.clean_delta::<T>(delta));
        let mut forward = T::zero();
        deltas.iter().for_each(|delta| _ = forward.merge_delta(delta).unwrap());
        assert_eq!(forward, states, "L4: all deltas are all states");
        let mut backward = T::zero();
        deltas.iter().rev().chain(&deltas).for_each(|delta| _ = backward.merge_delta(delta).unwrap());
        assert_eq!(backward, states, "L4: in reverse, and twice");
        let join = |deltas: &[T::Delta]| {
            let (first, rest) = deltas.split_first()?;
            Some(rest.iter().fold(first.clone(), |mut joined, delta| {
                T::join_deltas(&mut joined, delta);
                joined
            }))
        };
        let Some(whole) = join(&deltas) else { return };
        for split in [1, deltas.len() / 2] {
            if let (Some(mut left), Some(right)) = (join(&deltas[..split]), join(&deltas[split..])) {
                T::join_deltas(&mut left, &right);
                assert_eq!(left, whole, "L5: grouping is associative");
            }
        }
        let mut grouped = T::zero();
        grouped.merge_delta(&whole).unwrap();
        assert_eq!(grouped, states, "L4: as one group");
    }

    fn associate(&self, markers: &Markers) {
        let [a, b, c] = [0, 1, REPLICAS - 1].map(|at| self.cleaned(at, markers));
        let (mut left, mut right, mut bc) = (a.clone(), a, b.clone());
        left.merge(&b).unwrap();
        left.merge(&c).unwrap();
        bc.merge(&c).unwrap();
        right.merge(&bc).unwrap();
        assert_eq!(left, right, "L1: associative");
    }

    /// Lets every remaining replica hear of everything, and then performs all removed replicas for good.
    fn heal(&mut self) {
        let left: Vec<usize> = (0..REPLICAS).filter(|at| !self.nodes[*at].is_gone).collect();
        for from in &left {
            self.step(&Step::Exchange { from: *from, to: 0 });
        }
        let gone: BTreeSet<ReplicaId> = (0..REPLICAS).filter(|at| self.nodes[*at].is_gone).map(id).collect();
        // Perform twice: performing an owner may bring up what the store of a removed replica brought back.
        for removed in (2..REPLICAS).rev().chain((2..REPLICAS).rev()) {
            self.step(&Step::Perform { by: 0, removed });
        }
        for to in &left {
            self.step(&Step::Exchange { from: 0, to: *to });
        }
        for at in &left {
            let node = &self.nodes[*at];
            assert_eq!(node.value, self.nodes[0].value, "replica {at} agrees with all after healing");
            if let Some(pruning) = node.value.pruning() {
                assert!(pruning.modified_by().is_disjoint(&gone), "Z8: a removed replica disappears everywhere");
            }
        }
    }

    /// L9: damaged bytes are refused or decoded; whatever is decoded can be joined, both ways, without a panic.
    pub(crate) fn damage(steps: &[Step], at: usize, byte: u8) {
        let mut world = Self::new();
        steps.iter().for_each(|step| world.step(step));
        let kept = world.nodes[0].value.to_bytes();
        for end in 0..kept.len() {
            assert!(T::from_bytes(&kept[..end]).is_err(), "a truncation is refused");
        }
        let mut bytes = world.nodes[0].value.to_untagged_bytes();
        let place = at % bytes.len();
        bytes[place] = byte;
        if let Ok(damaged) = T::from_untagged_bytes(&bytes) {
            assert_eq!(damaged.to_untagged_bytes(), bytes, "only canonical bytes are read");
            let (mut left, mut right) = (world.nodes[1].value.clone(), damaged.clone());
            drop((left.merge(&damaged), right.merge(&world.nodes[1].value)));
            drop((left.view(), right.view(), left.digest()));
        }
        for delta in &world.deltas {
            let mut bytes = T::delta_to_bytes(&delta.delta);
            let place = at % bytes.len();
            bytes[place] = byte;
            if let Ok(damaged) = T::delta_from_bytes(&bytes) {
                drop(world.nodes[2].value.merge_delta(&damaged));
            }
        }
    }
}

fn pruning_needed<T: Model>(value: &T, removed: ReplicaId, markers: &Markers) -> bool {
    value.pruning().is_some_and(|pruning| pruning.needs_pruning(removed, markers.of(removed)))
}
