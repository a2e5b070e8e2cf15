//! The published route table: tells a sender where to put a message for a shard, without asking the region.
//!
//! The region publishes, every sender reads: one array cell per shard, one atomic load, no lock that two shards share.
//! Without an open route a message goes through the region's machine, which buffers or routes it.
//!
//! Publishing is a barrier, as `machine::region::protocol` requires: the cell is written first, then the former route
//! is sealed (a shard's inbox, or the gate of a remote route). A sender that had read the old route is either in before
//! the seal, and so ahead of the stop marker or flush mark that follows, or is refused and goes to the machine, which
//! it cannot enter before the flip is over. Opening a route needs nothing more: buffered messages are in the new route
//! before the cell is written, and both happen under the machine's lock.
//!
//! Source: sharding §2.4, §10.

use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock, RwLock};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use greylag_core::{Generation, UniqueAddress};
use greylag_transport::Destination;

use crate::ids::RegionId;
use crate::inbox::Inbox;
use crate::parcel::Origin;

/// A route that senders may use without the machine.
pub(crate) enum Open<T> {
    /// The shard is hosted here and serves.
    Local(LocalRoute<T>),
    /// Another region hosts the shard.
    Remote(RemoteRoute),
}

/// See [`Open::Local`].
pub(crate) struct LocalRoute<T> {
    /// The allocation.
    pub(crate) generation: Generation,
    /// The shard's queue.
    pub(crate) inbox: Arc<Inbox<T>>,
    /// Regions whose frames need no check by the machine. Source: `region::Effect::Admit`.
    admitted: ArcSwap<Vec<Arc<Origin>>>,
}

/// See [`Open::Remote`].
pub(crate) struct RemoteRoute {
    /// The region that hosts the shard.
    pub(crate) home: Arc<Home>,
    /// The allocation.
    pub(crate) generation: Generation,
    /// Whether the route was left. Read-locked while a message is put on the lane.
    left: RwLock<bool>,
}

/// A region of another node that hosts shards; shared by their routes.
pub(crate) struct Home {
    pub(crate) region: RegionId,
    /// Its node, as a transport destination.
    pub(crate) destination: Destination,
}

impl Home {
    pub(crate) fn new(region: RegionId) -> Self {
        Self { destination: region.node.clone().into(), region }
    }
}

impl<T> LocalRoute<T> {
    pub(crate) fn new(generation: Generation, inbox: Arc<Inbox<T>>) -> Self {
        Self { generation, inbox, admitted: ArcSwap::default() }
    }

    /// Admits frames of `origin` without a check from now on.
    pub(crate) fn admit(&self, origin: RegionId) {
        if self.admitted(&origin.node, origin.incarnation).is_none() {
            let mut all = self.admitted.load().as_ref().clone();
            all.push(Arc::new(Origin { region: origin, first: self.generation }));
            self.admitted.store(Arc::new(all));
        }
    }

    /// The origin to keep with frames of a node's region, if it is admitted.
    pub(crate) fn admitted(&self, node: &UniqueAddress, incarnation: u64) -> Option<Arc<Origin>> {
        let is_origin = |region: &RegionId| region.incarnation == incarnation && region.node == *node;
        self.admitted.load().iter().find(|known| is_origin(&known.region)).cloned()
    }
}

impl RemoteRoute {
    pub(crate) fn new(home: Arc<Home>, generation: Generation) -> Self {
        Self { home, generation, left: RwLock::new(false) }
    }

    /// Runs `enqueue` unless the route was left. Closing the route waits for `enqueue`.
    pub(crate) fn enter<R>(&self, enqueue: impl FnOnce() -> R) -> Option<R> {
        let left = self.left.read().expect("nothing panics while it holds a gate");
        (!*left).then(enqueue)
    }
}

/// The route of one shard.
pub(crate) struct RouteCell<T>(ArcSwapOption<Open<T>>);

impl<T> RouteCell<T> {
    /// The route, if there is one.
    pub(crate) fn load(&self) -> Guard<Option<Arc<Open<T>>>> {
        self.0.load()
    }

    /// Whether senders have a route.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load().is_some()
    }

    /// Publishes `route` as a barrier: when this returns, no message gets into the former one any more.
    ///
    /// A shard that serves again after a pause keeps its queue, which therefore takes pushes again.
    pub(crate) fn publish(&self, route: Option<Open<T>>) {
        if let Some(Open::Local(local)) = &route {
            local.inbox.unseal();
        }
        let former = self.0.swap(route.map(Arc::new));
        match former.as_deref() {
            Some(Open::Local(local)) => local.inbox.seal(),
            Some(Open::Remote(remote)) => *remote.left.write().expect("nothing panics while it holds a gate") = true,
            None => {}
        }
    }
}

/// Number of cells at the begin of a table that grows.
const FIRST_CELLS: u32 = 64;

/// See the module's description. `T` is the item of a shard's inbox.
pub(crate) struct RouteTable<T> {
    /// All cells if shards are numbered; otherwise the first ones.
    cells: Box<[RouteCell<T>]>,
    /// Further cells of a table that grows: each piece has twice the cells of the previous one. Cells never move, so
    /// that readers need no lock.
    more: Box<[OnceLock<Box<[RouteCell<T>]>>]>,
}

fn cells<T>(count: u32) -> Box<[RouteCell<T>]> {
    (0..count).map(|_| RouteCell(ArcSwapOption::empty())).collect()
}

/// The place of a number past the first cells: the piece, and the index in it.
fn place(shard: u32) -> Option<(usize, usize)> {
    let beyond = shard / FIRST_CELLS;
    let piece = beyond.checked_ilog2()?;
    Some((piece as usize, (shard - (FIRST_CELLS << piece)) as usize))
}

impl<T> RouteTable<T> {
    /// A table without routes, for a fixed number of shards or, without a number, for a growing one.
    pub(crate) fn new(number_of_shards: Option<NonZeroU32>) -> Self {
        match number_of_shards {
            Some(count) => Self { cells: cells(count.get()), more: Box::default() },
            None => {
                let more = (0..place(u32::MAX).map_or(0, |(piece, _)| piece + 1)).map(|_| OnceLock::new());
                Self { cells: cells(FIRST_CELLS), more: more.collect() }
            }
        }
    }

    /// The route of a shard; `None` for a number past the table's end.
    pub(crate) fn cell(&self, shard: u32) -> Option<&RouteCell<T>> {
        if let Some(cell) = self.cells.get(shard as usize) {
            return Some(cell);
        }
        let (piece, at) = place(shard)?;
        self.more.get(piece)?.get()?.get(at)
    }

    /// Makes a growing table have a cell for this number.
    pub(crate) fn grow(&self, shard: u32) {
        if let Some((piece, _)) = place(shard)
            && let Some(more) = self.more.get(piece)
        {
            more.get_or_init(|| cells(FIRST_CELLS << piece));
        }
    }

    /// All cells in shard order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RouteCell<T>> {
        self.cells.iter().chain(self.more.iter().filter_map(OnceLock::get).flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::{Bound, Refused};

    fn generation(seq: u64) -> Generation {
        Generation::new(1, seq).unwrap()
    }

    fn region() -> RegionId {
        RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 }
    }

    fn remote(seq: u64) -> RemoteRoute {
        RemoteRoute::new(Arc::new(Home::new(region())), generation(seq))
    }

    #[test]
    fn leaving_a_local_route_refuses_senders_that_still_hold_it() {
        let table = RouteTable::new(Some(NonZeroU32::MIN));
        let cell = table.cell(0).unwrap();
        let inbox = Arc::new(Inbox::new(Bound { items: 9, bytes: 100 }));
        cell.publish(Some(Open::Local(LocalRoute::new(generation(1), inbox.clone()))));
        let held = cell.load();
        cell.publish(None);
        let Some(Open::Local(local)) = held.as_deref() else { panic!("the guard keeps the old route") };
        assert!(matches!(local.inbox.push('x', 1), Err(Refused::Sealed('x'))));
        assert!(!cell.is_open());
    }

    #[test]
    fn leaving_a_remote_route_refuses_senders_that_still_hold_it() {
        let table = RouteTable::<()>::new(Some(NonZeroU32::MIN));
        let cell = table.cell(0).unwrap();
        cell.publish(Some(Open::Remote(remote(1))));
        let held = cell.load();
        let Some(Open::Remote(left)) = held.as_deref() else { panic!("just published") };
        assert_eq!(left.enter(|| 1), Some(1));
        cell.publish(Some(Open::Remote(remote(2))));
        assert_eq!(left.enter(|| 1), None);
    }

    #[test]
    fn a_table_of_numbered_shards_is_fixed_and_one_of_names_grows_on_demand() {
        let numbered = RouteTable::<()>::new(NonZeroU32::new(100));
        numbered.grow(100);
        assert!(numbered.cell(99).is_some() && numbered.cell(100).is_none());
        let growing = RouteTable::<()>::new(None);
        assert_eq!(growing.iter().count(), 64);
        for shard in [63, 64, 127, 128, 255, 256, 1_000_000] {
            assert_eq!(growing.cell(shard).is_some(), shard < 64, "{shard}");
        }
        for shard in [64, 200, 1_000_000] {
            growing.grow(shard);
            growing.cell(shard).unwrap().publish(Some(Open::Remote(remote(1))));
        }
        assert!(growing.cell(127).is_some() && growing.cell(128).is_some() && growing.cell(256).is_none());
        let open = |shard: u32| growing.cell(shard).is_some_and(RouteCell::is_open);
        assert_eq!((0..2_000_000).filter(|shard| open(*shard)).collect::<Vec<_>>(), [64, 200, 1_000_000]);
        assert_eq!(growing.iter().filter(|cell| cell.is_open()).count(), 3);
    }

    #[test]
    fn admission_belongs_to_one_generation() {
        let local = LocalRoute::<()>::new(generation(3), Arc::new(Inbox::new(Bound { items: 9, bytes: 100 })));
        let admitted = || local.admitted(&region().node, region().incarnation);
        assert_eq!(admitted(), None);
        local.admit(region());
        local.admit(region());
        assert_eq!(admitted().unwrap().first, generation(3));
        assert_eq!(local.admitted.load().len(), 1);
    }
}
