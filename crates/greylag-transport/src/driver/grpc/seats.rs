//! Gives seats to callers that were never reached (see [`crate::callers`]), and drops those callers afterwards.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};

use super::shared::Shared;
use crate::callers::{Callers, Full};

/// One stream of a caller that holds a seat.
pub(super) struct Seat {
    shared: Arc<Shared>,
    address: NodeAddress,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.shared.callers().leave(Instant::now(), &self.address) {
            self.shared.caller_left.notify_one();
        }
    }
}

/// Pause between two checks of callers without a stream.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a caller whose streams have ended is kept, unless its seat is needed: longer than any pause between two
/// attempts to connect.
const GRACE: Duration = Duration::from_secs(60);

impl Shared {
    /// Takes a seat for one stream of a process that calls from `ip`; `None`: the process needs no seat.
    pub(super) fn seat(self: &Arc<Self>, process: &UniqueAddress, ip: IpAddr) -> Result<Option<Seat>, Full> {
        let address = process.address();
        let mut callers = self.callers();
        let is_ours = || !callers.holds(address) && self.knows(address);
        if self.endpoint.strangers.is_member(process) || is_ours() {
            return Ok(None);
        }
        if callers.enter(address, ip).is_err() {
            self.let_go_of_idle(&mut callers, Instant::now());
            callers.enter(address, ip)?;
        }
        Ok(Some(Seat { shared: self.clone(), address: address.clone() }))
    }

    /// Drops callers whose streams have ended by `moment`, where this node has nothing of its own under way to them.
    /// The lock is held throughout, so that no stream of the same address begins meanwhile.
    fn let_go_of_idle(&self, callers: &mut Callers, moment: Instant) {
        for address in callers.idle_since(moment) {
            let known = self.endpoint.peer(&address);
            let is_reached = known.is_some_and(|info| info.reached || self.endpoint.strangers.is_member(&info.peer));
            if is_reached || self.let_go_of_caller(&address) {
                callers.vacate(&address);
            }
        }
    }
}

/// Drops callers as they leave, for as long as the transport runs.
pub(super) async fn let_go_of_callers(shared: Arc<Shared>) {
    loop {
        shared.caller_left.notified().await;
        let grace = GRACE.min(shared.settings.remove_quarantined_association_after);
        while shared.callers().any_idle() {
            tokio::time::sleep(LOOK_AGAIN.min(grace)).await;
            if let Some(moment) = Instant::now().checked_sub(grace) {
                shared.let_go_of_idle(&mut shared.callers(), moment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::SEATS_PER_NETWORK;
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
            match shared.seat(&name(n), ip) {
                Ok(seat) => {
                    shared.peer(name(n).address()).hello(shared, name(n).uid(), None).unwrap();
                    open.push(seat.expect("it is no member"));
                }
                Err(Full::Network(_)) => refused += 1,
                Err(full) => panic!("{full}"),
            }
            // Some streams stay open, some are closed at once.
            if n % 3 == 0 && open.len() > SEATS_PER_NETWORK / 2 {
                open.pop();
            }
            assert!(shared.peers().len() <= SEATS_PER_NETWORK, "{n}");
        }
        assert!(refused > 10_000, "{refused}");
        assert!(shared.peers().iter().all(|peer| !peer.was_dialled()));
        let member = name(50_000);
        node.set_members(&mut [member.clone()].iter());
        while shared.seat(&name(60_000), ip).is_ok_and(|seat| seat.map(|seat| open.push(seat)).is_some()) {}
        assert!(matches!(shared.seat(&member, ip), Ok(None)), "a member needs no seat");
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
    async fn a_caller_that_was_quarantined_is_let_go_and_does_not_return() {
        let node = GrpcTransport::bind(TransportSettings::test(), Arc::default()).await.unwrap();
        let (shared, ip) = (&node.shared, "192.0.2.7".parse().unwrap());
        let caller: UniqueAddress = "h1:1#7".parse().unwrap();
        let seat = shared.seat(&caller, ip).unwrap().unwrap();
        shared.peer(caller.address()).hello(shared, caller.uid(), None).unwrap();
        node.quarantine(&caller, crate::QuarantineReason::RemovedFromMembership, true);
        drop(seat);
        shared.let_go_of_idle(&mut shared.callers(), Instant::now());
        assert!(shared.peers().is_empty() && !shared.is_blocked(&caller));
        let again = shared.peer(caller.address()).hello(shared, caller.uid(), None);
        assert!(matches!(again, Err(Refused::Dead(None))));
    }
}
