//! Gives slots to callers that were never reached (see [`crate::callers`]), and drops those callers afterwards.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use super::shared::Shared;
use crate::callers::{Callers, Full};

/// One stream of a caller that holds a slot.
pub(super) struct CallerSlot {
    shared: Arc<Shared>,
    address: NodeAddress,
}

impl Drop for CallerSlot {
    fn drop(&mut self) {
        if self.shared.callers().leave(Instant::now(), &self.address) {
            self.shared.caller_left.notify_one();
        }
    }
}

/// Pause between two checks of callers without a stream.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a caller whose streams have ended is kept, unless its slot is needed: longer than any pause between two
/// attempts to connect.
const GRACE: Duration = Duration::from_secs(60);

impl Shared {
    /// Takes a slot for one stream of a process that calls from `ip`; `None`: the process needs no slot.
    pub(super) fn caller_slot(
        self: &Arc<Self>,
        process: &UniqueAddress,
        ip: IpAddr,
    ) -> Result<Option<CallerSlot>, Full> {
        let address = process.address();
        let mut callers = self.callers();
        let is_ours = || !callers.holds(address) && self.knows(address);
        if self.endpoint.membership.is_member(process) || is_ours() {
            return Ok(None);
        }
        if callers.enter(address, ip).is_err() {
            self.drop_idle_callers(&mut callers, Instant::now());
            callers.enter(address, ip)?;
        }
        Ok(Some(CallerSlot { shared: self.clone(), address: address.clone() }))
    }

    /// Drops callers whose streams have ended by `moment`, where this node has nothing of its own under way to them.
    /// The lock is held throughout, so that no stream of the same address begins meanwhile.
    fn drop_idle_callers(&self, callers: &mut Callers, moment: Instant) {
        for address in callers.idle_since(moment) {
            let known = self.endpoint.peer(&address);
            let is_reached = known.is_some_and(|info| info.reached || self.endpoint.membership.is_member(&info.peer));
            if is_reached || self.drop_caller(&address) {
                callers.vacate(&address);
            }
        }
    }
}

/// Drops callers as they leave, for as long as the transport runs.
pub(super) async fn drop_callers(shared: Arc<Shared>) {
    loop {
        shared.caller_left.notified().await;
        let grace = GRACE.min(shared.settings.remove_quarantined_association_after);
        while shared.callers().any_idle() {
            tokio::time::sleep(LOOK_AGAIN.min(grace)).await;
            if let Some(moment) = Instant::now().checked_sub(grace) {
                shared.drop_idle_callers(&mut shared.callers(), moment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::SLOTS_PER_NETWORK;
    use crate::driver::grpc::GrpcTransport;
    use crate::driver::grpc::peer::Refused;
    use crate::remoting::Remoting;
    use crate::settings::TransportSettings;

    /// Cluster T21, 79: names at which no process answers cost this node nothing once their streams have ended, keep no
    /// member out while the streams last, and are not dialled.
    #[tokio::test]
    async fn twenty_thousand_names_of_one_host() {
        let soon = Duration::from_millis(100);
        let settings = TransportSettings { remove_quarantined_association_after: soon, ..TransportSettings::test() };
        let node = GrpcTransport::bind(settings, Arc::default()).await.unwrap();
        let (shared, ip) = (&node.shared, "192.0.2.7".parse().unwrap());
        let name = |n: u32| {
            UniqueAddress::new(NodeAddress::new(&format!("h{n}"), 1).unwrap(), greylag_core::Uid::new(7).unwrap())
        };
        let mut open = Vec::new();
        let mut refused = 0;
        for n in 0..20_000 {
            match shared.caller_slot(&name(n), ip) {
                Ok(slot) => {
                    shared.peer(name(n).address()).hello(shared, name(n).uid(), None).unwrap();
                    open.push(slot.expect("it is no member"));
                }
                Err(Full::Network(_)) => refused += 1,
                Err(full) => panic!("{full}"),
            }
            // Some streams stay open, some are closed at once.
            if n % 3 == 0 && open.len() > SLOTS_PER_NETWORK / 2 {
                open.pop();
            }
            assert!(shared.peers().len() <= SLOTS_PER_NETWORK, "{n}");
        }
        assert!(refused > 10_000, "{refused}");
        assert!(shared.peers().iter().all(|peer| !peer.was_dialled()));
        let member = name(50_000);
        node.set_members(&mut [member.clone()].iter());
        while shared.caller_slot(&name(60_000), ip).is_ok_and(|slot| slot.map(|slot| open.push(slot)).is_some()) {}
        assert!(matches!(shared.caller_slot(&member, ip), Ok(None)), "a member needs no slot");
        drop(open);
        let gone = async {
            while !shared.peers().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the table empties as the streams end");
    }

    /// Cluster T21: a caller that says farewell leaves no peer behind, and its process stays refused.
    #[tokio::test]
    async fn a_quarantined_caller_is_dropped_and_does_not_return() {
        let node = GrpcTransport::bind(TransportSettings::test(), Arc::default()).await.unwrap();
        let (shared, ip) = (&node.shared, "192.0.2.7".parse().unwrap());
        let caller: UniqueAddress = "h1:1#7".parse().unwrap();
        let slot = shared.caller_slot(&caller, ip).unwrap().unwrap();
        shared.peer(caller.address()).hello(shared, caller.uid(), None).unwrap();
        node.quarantine(&caller, crate::QuarantineReason::RemovedFromMembership, true);
        drop(slot);
        shared.drop_idle_callers(&mut shared.callers(), Instant::now());
        assert!(shared.peers().is_empty() && !shared.is_blocked(&caller));
        let again = shared.peer(caller.address()).hello(shared, caller.uid(), None);
        assert!(matches!(again, Err(Refused::Dead(None))));
    }
}
