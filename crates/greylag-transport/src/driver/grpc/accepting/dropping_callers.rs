//! Gives slots to callers that were never reached, and drops those callers after their streams have ended.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use super::caller_slots::CallerSlot;
use crate::admission::callers::Full;
use crate::driver::grpc::shared::TransportInner;

/// Pause between two checks of callers without a stream.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a caller whose streams have ended is kept, unless its slot is needed: longer than any pause between two
/// attempts to connect.
const GRACE: Duration = Duration::from_secs(60);

/// Drops callers as they leave, for as long as the transport runs.
pub(crate) async fn drop_callers(shared: Arc<TransportInner>) {
    loop {
        shared.callers.caller_left().await;
        let grace = GRACE.min(shared.node.settings.remove_quarantined_association_after);
        while shared.callers.any_idle() {
            tokio::time::sleep(LOOK_AGAIN.min(grace)).await;
            if let Some(moment) = Instant::now().checked_sub(grace) {
                drop_idle_callers(&shared, moment);
            }
        }
    }
}

/// Takes a slot for one stream of a process that calls from `ip`; `None`: the process needs no slot.
pub(super) fn caller_slot(
    shared: &Arc<TransportInner>,
    process: &UniqueAddress,
    ip: IpAddr,
) -> Result<Option<CallerSlot>, Full> {
    let address = process.address();
    let is_member = || shared.node.endpoint.membership.is_member(process);
    let needs_none = |has_slot: bool| is_member() || (!has_slot && shared.peers.knows(address));
    shared.callers.take(address, ip, needs_none, |idle| drop_caller(shared, idle))
}

fn drop_idle_callers(shared: &TransportInner, moment: Instant) {
    shared.callers.drop_idle(moment, |idle| drop_caller(shared, idle));
}

/// Drops what this node keeps of a caller, if it has nothing of its own under way to the caller. Returns whether the
/// caller needs no slot any more.
fn drop_caller(shared: &TransportInner, address: &NodeAddress) -> bool {
    let node = &shared.node;
    let known = node.endpoint.peer(address);
    let is_reached = known.is_some_and(|info| info.reached || node.endpoint.membership.is_member(&info.peer));
    is_reached || shared.peers.drop_caller(node, address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::callers::SLOTS_PER_NETWORK;
    use crate::driver::grpc::GrpcTransport;
    use crate::driver::grpc::peers::Refused;
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
            match caller_slot(shared, &name(n), ip) {
                Ok(slot) => {
                    shared.hello(&shared.peer(name(n).address()), name(n).uid(), None).unwrap();
                    open.push(slot.expect("it is no member"));
                }
                Err(Full::Network(_)) => refused += 1,
                Err(full) => panic!("{full}"),
            }
            // Some streams stay open, some are closed at once.
            if n % 3 == 0 && open.len() > SLOTS_PER_NETWORK / 2 {
                open.pop();
            }
            assert!(shared.peers.all().len() <= SLOTS_PER_NETWORK, "{n}");
        }
        assert!(refused > 10_000, "{refused}");
        assert!(shared.peers.all().iter().all(|peer| !peer.was_dialled()));
        let member = name(50_000);
        node.set_members(&mut [member.clone()].iter());
        while caller_slot(shared, &name(60_000), ip).is_ok_and(|slot| slot.map(|slot| open.push(slot)).is_some()) {}
        assert!(matches!(caller_slot(shared, &member, ip), Ok(None)), "a member needs no slot");
        drop(open);
        let gone = async {
            while !shared.peers.all().is_empty() {
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
        let slot = caller_slot(shared, &caller, ip).unwrap().unwrap();
        shared.hello(&shared.peer(caller.address()), caller.uid(), None).unwrap();
        node.quarantine(&caller, crate::QuarantineReason::RemovedFromMembership, true);
        drop(slot);
        drop_idle_callers(shared, Instant::now());
        assert!(shared.peers.all().is_empty() && !shared.node.is_blocked(&caller));
        let again = shared.hello(&shared.peer(caller.address()), caller.uid(), None);
        assert!(matches!(again, Err(Refused::Dead(None))));
    }
}
