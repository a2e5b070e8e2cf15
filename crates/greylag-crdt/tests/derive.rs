//! Derived types: elements, and structs of replicated types. Source: ddata Y1, A2, Y4.

#![cfg(feature = "derive")]

use greylag_crdt::{
    Change, DecodeError, DotSource, Element, EntryMark, GCounter, Home, Lineage, LwwRegister, Markers, MergeError,
    OrSet, PNCounter, Performed, Range, ReplicaId, ReplicatedData, UpdateCx, WriterKey,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Element)]
#[crdt(tag = "test.item/1")]
struct Item {
    name: String,
    size: Size<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Element)]
#[crdt(tag = "test.size/1")]
enum Size<N> {
    Any,
    Exactly(N),
    Between { low: N, high: N },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Element)]
#[crdt(tag = "test.nothing/1")]
struct Nothing;

#[derive(Clone, Debug, PartialEq, ReplicatedData)]
#[crdt(tag = "test.shop/1")]
struct Shop {
    items: OrSet<Item>,
    visits: GCounter,
    stock: PNCounter,
    motto: LwwRegister<String>,
}

fn bytes<T: Element>(element: &T) -> Vec<u8> {
    let mut set = OrSet::new();
    let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"w"));
    set.add(&mut UpdateCx::new(&numbers, ReplicaId(1), &writer, 0), element.clone());
    let bytes = set.to_bytes();
    assert_eq!(OrSet::from_bytes(&bytes).unwrap(), set);
    bytes
}

/// ddata Y1: derived elements survive encoding and decoding.
#[test]
fn derived_elements_return() {
    assert_eq!(<OrSet<Size<u8>>>::TAG.to_string(), "gl.orset/1<test.size/1<u8>>");
    for size in [Size::Any, Size::Exactly(3), Size::Between { low: 1, high: 2 }] {
        bytes(&Item { name: "egg".into(), size });
    }
    bytes(&Nothing);
    let mut out = greylag_crdt::Encoder::new();
    out.u64(3);
    let unknown = out.finish();
    let decoded = <Size<u8> as Element>::decode(&mut greylag_crdt::Decoder::new(&unknown));
    assert_eq!(decoded, Err(DecodeError::Invalid("an unknown variant")));
}

struct Node {
    replica: ReplicaId,
    numbers: DotSource,
    writer: WriterKey,
}

impl Node {
    fn new(id: u64) -> Self {
        Self { replica: ReplicaId(id), numbers: DotSource::new(), writer: WriterKey::new([id as u8]) }
    }

    fn home(&self) -> Home {
        Home { entry: EntryMark::of("shop"), replica: self.replica, born: 0 }
    }

    fn zero(&self) -> Shop {
        let mut shop = Shop::zero();
        shop.bind(self.home());
        shop
    }

    fn change(&self, shop: &mut Shop, change: impl FnOnce(&mut Shop, &mut UpdateCx<'_>)) -> Change<ShopDelta> {
        let lineage = Lineage(self.numbers.draw());
        shop.begin_change(lineage);
        let cx = UpdateCx::new(&self.numbers, self.replica, &self.writer, 5);
        change(shop, &mut cx.for_entry(self.home(), 0, &[]));
        shop.take_change(lineage)
    }

    fn fill(&self, shop: &mut Shop, name: &str) -> ShopDelta {
        let item = Item { name: name.into(), size: Size::Any };
        let change = self.change(shop, |shop, cx| {
            shop.items.add(cx, item);
            shop.visits.increment(cx, 2).unwrap();
            shop.stock.increment(cx, 7).unwrap();
            shop.stock.decrement(cx, 3).unwrap();
            shop.motto.set(cx, name.into()).unwrap();
        });
        let Change::Delta(delta) = change else { panic!("a delta, not {change:?}") };
        delta
    }
}

/// ddata A2, K8: a struct of replicated types is replicated.
#[test]
fn a_struct_of_replicated_types_is_one() {
    const { assert!(Shop::CAUSAL) };
    let (a, b) = (Node::new(1), Node::new(2));
    let (mut here, mut there) = (a.zero(), b.zero());
    let (of_a, of_b) = (a.fill(&mut here, "a"), b.fill(&mut there, "b"));
    let mut by_state = here.clone();
    assert!(by_state.merge(&there).unwrap().grew());
    assert!(!by_state.merge(&there).unwrap().grew());
    let of_a = Shop::delta_from_bytes(&Shop::delta_to_bytes(&of_a)).unwrap();
    let mut group = of_b;
    Shop::join_deltas(&mut group, &of_a);
    let mut by_delta = Shop::zero();
    by_delta.merge_delta(&group).unwrap();
    assert_eq!((&by_delta, by_delta.digest()), (&by_state, by_state.digest()));
    let decoded = Shop::from_bytes(&by_state.to_bytes()).unwrap();
    assert_eq!((&decoded, decoded.digest()), (&by_state, by_state.digest()));
    assert_eq!((by_state.items.len(), by_state.visits.value(), by_state.stock.value()), (2, 4, 8));
    assert_eq!(by_state.motto.value().map(String::as_str), Some("a"), "the smaller writer");

    assert_eq!(a.change(&mut here, |_, _| {}), Change::None);
    let only_visits = a.change(&mut here, |shop, cx| shop.visits.increment(cx, 1).unwrap());
    let Change::Delta(delta) = only_visits else { panic!("a delta") };
    assert_eq!((Shop::delta_size(&delta), delta.items.is_none()), (1, true), "only what was touched travels");
    assert_eq!(a.change(&mut here, |shop, _| shop.items = OrSet::new()), Change::FullOnly);
}

/// ddata A3: a merge that one field refuses changes no field.
#[test]
fn a_refused_merge_leaves_every_field() {
    let (a, b) = (Node::new(1), Node::new(2));
    let (mut here, mut there) = (Shop::zero(), b.zero());
    here.bind(Home { entry: EntryMark::of("another"), ..a.home() });
    a.fill(&mut here, "a");
    b.fill(&mut there, "b");
    let before = here.clone();
    assert_eq!(here.merge(&there), Err(MergeError::ForeignEntry));
    assert_eq!(here, before);
}

/// ddata Y4, Z6: each counter of a composed value has moved amounts of its own; ranges serve all fields.
#[test]
fn a_composed_value_is_pruned_part_by_part() {
    let (r, o) = (Node::new(9), Node::new(1));
    let (mut here, mut there) = (o.zero(), r.zero());
    r.fill(&mut there, "r");
    o.fill(&mut here, "o");
    here.merge(&there).unwrap();
    let before = (here.items.len(), here.visits.value(), here.stock.value());
    let (low, high) = here.pruning().unwrap().numbers_of(r.replica).unwrap();
    let ranges = [Range::reserve(&o.numbers, low, high).unwrap()];
    let (mut own, mut markers) = (Performed::new(r.replica, o.replica), Markers::new());
    here.pruning_mut().unwrap().prune(r.replica, &ranges, 5, &mut own);
    markers.add(&own);
    markers.clean(here.pruning_mut().unwrap());
    let show = |shop: &Shop| (shop.items.len(), shop.visits.value(), shop.stock.value());
    assert_eq!(show(&here), before);
    assert_eq!(here.pruning().unwrap().modified_by(), [o.replica].into());
    assert_eq!((own.moved.part(1).amount(0, 5), own.moved.part(2).part(0).amount(0, 5)), (2, 7));
    assert!(!here.pruning().unwrap().needs_pruning(r.replica, markers.of(r.replica)));

    // A late copy with more updates, as a state and as a delta, adds only the new ones.
    let late = r.fill(&mut there, "late");
    let (mut by_state, mut by_delta) = (here.clone(), here);
    let mut copy = there.clone();
    markers.clean(copy.pruning_mut().unwrap());
    by_state.merge(&copy).unwrap();
    let mut late = late;
    markers.clean_delta::<Shop>(&mut late);
    by_delta.merge_delta(&late).unwrap();
    for shop in [&by_state, &by_delta] {
        assert_eq!(show(shop), (before.0 + 1, before.1 + 2, before.2 + 4));
    }

    // Markers travel as bytes.
    let mut out = greylag_crdt::Encoder::new();
    markers.encode(&mut out);
    let bytes = out.finish();
    assert_eq!(Markers::decode(&mut greylag_crdt::Decoder::new(&bytes)).as_ref(), Ok(&markers));
    assert!(markers.iter().all(|marker| marker.moved.part(1).amount(0, 0) == 0), "the owner's slot is named");
    for end in 0..bytes.len() {
        assert!(Markers::decode(&mut greylag_crdt::Decoder::new(&bytes[..end])).is_err());
    }
}
