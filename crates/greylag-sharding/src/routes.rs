//! The published route table: where a sender puts a message for a shard, without asking the region.
//!
//! The region publishes, every sender reads: one array cell per shard, one atomic load, no lock that
//! two shards share. Without an open route a message goes through the region's machine, which
//! buffers it or knows better.
//!
//! Publishing is a barrier, as `machine::region::protocol` asks: the cell is written first, then the route
//! left is sealed (a shard's inbox, or the gate of a remote route). A sender that had read the old
//! route is either in ahead of the seal, and so ahead of the stop marker or flush mark that follows,
//! or is refused and goes to the machine, which it cannot enter before the flip is over. Entering a
//! route needs nothing more: buffered messages are in the new route before the cell is written, and
//! both happen under the machine's lock.
//!
//! Source: sharding §2.4, §10.

use std::num::NonZeroU32;
use std::sync::{Arc, RwLock};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use greylag_core::Generation;

use crate::ids::RegionId;
use crate::inbox::Inbox;
use crate::parcel::Origin;

/// A route that senders may take by themselves.
pub(crate) enum Open<T> {
    /// The shard is hosted here and serves.
    Local(LocalRoute<T>),
    /// Another region hosts it.
    Remote(RemoteRoute),
}

/// See [`Open::Local`].
pub(crate) struct LocalRoute<T> {
    /// Under which allocation.
    pub(crate) generation: Generation,
    /// The shard's queue.
    pub(crate) inbox: Arc<Inbox<T>>,
    /// Regions whose frames need no check by the machine. Source: `region::Effect::Admit`.
    admitted: ArcSwap<Vec<Arc<Origin>>>,
}

/// See [`Open::Remote`].
pub(crate) struct RemoteRoute {
    /// The region that hosts the shard.
    pub(crate) region: RegionId,
    /// Under which allocation.
    pub(crate) generation: Generation,
    /// Whether the route was left. Held for reading while a message is put on the lane.
    left: RwLock<bool>,
}

impl<T> LocalRoute<T> {
    pub(crate) fn new(generation: Generation, inbox: Arc<Inbox<T>>) -> Self {
        Self { generation, inbox, admitted: ArcSwap::default() }
    }

    /// From now on frames of `origin` need no check.
    pub(crate) fn admit(&self, origin: RegionId) {
        if self.admitted(&origin).is_none() {
            let mut all = self.admitted.load().as_ref().clone();
            all.push(Arc::new(Origin { region: origin, first: self.generation }));
            self.admitted.store(Arc::new(all));
        }
    }

    /// What to keep with frames of `origin`, if it is admitted.
    pub(crate) fn admitted(&self, origin: &RegionId) -> Option<Arc<Origin>> {
        self.admitted.load().iter().find(|known| known.region == *origin).cloned()
    }
}

impl RemoteRoute {
    pub(crate) fn new(region: RegionId, generation: Generation) -> Self {
        Self { region, generation, left: RwLock::new(false) }
    }

    /// Runs `enqueue` unless the route was left. The flip waits for it.
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

    /// Publishes `route` as a barrier: when this returns, nothing gets into the former one any more.
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

/// See the module's description. `T` is the item of a shard's inbox.
pub(crate) struct RouteTable<T> {
    cells: Box<[RouteCell<T>]>,
}

impl<T> RouteTable<T> {
    /// A table without routes.
    pub(crate) fn new(number_of_shards: NonZeroU32) -> Self {
        Self { cells: (0..number_of_shards.get()).map(|_| RouteCell(ArcSwapOption::empty())).collect() }
    }

    /// The route of a shard; `None` for a number past the table's end.
    pub(crate) fn cell(&self, shard: u32) -> Option<&RouteCell<T>> {
        self.cells.get(usize::try_from(shard).ok()?)
    }

    /// All cells in shard order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RouteCell<T>> {
        self.cells.iter()
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

    #[test]
    fn leaving_a_local_route_refuses_whoever_still_holds_it() {
        let table = RouteTable::new(NonZeroU32::MIN);
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
    fn leaving_a_remote_route_refuses_whoever_still_holds_it() {
        let table = RouteTable::<()>::new(NonZeroU32::MIN);
        let cell = table.cell(0).unwrap();
        cell.publish(Some(Open::Remote(RemoteRoute::new(region(), generation(1)))));
        let held = cell.load();
        let Some(Open::Remote(remote)) = held.as_deref() else { panic!("just published") };
        assert_eq!(remote.enter(|| 1), Some(1));
        cell.publish(Some(Open::Remote(RemoteRoute::new(region(), generation(2)))));
        assert_eq!(remote.enter(|| 1), None);
    }

    #[test]
    fn admission_belongs_to_one_generation() {
        let local = LocalRoute::<()>::new(generation(3), Arc::new(Inbox::new(Bound { items: 9, bytes: 100 })));
        assert_eq!(local.admitted(&region()), None);
        local.admit(region());
        local.admit(region());
        assert_eq!(local.admitted(&region()).unwrap().first, generation(3));
        assert_eq!(local.admitted.load().len(), 1);
    }
}
