//! Tells the proxies of other nodes whether the instance runs on this node.
//!
//! The host tells every change to each proxy that has asked once, so that a proxy neither waits for its next question
//! nor sends on to an instance that is ending. The host answers only members; a proxy whose membership is not known
//! here yet asks again. Source: cluster P8.

use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_core::UniqueAddress;

use super::ProxyMessage;
use crate::membership::view::MembershipView;

/// An input to the [`SingletonHost`]: the membership, questions of proxies, and the start and end of the singleton's
/// instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostInput {
    /// The membership, whenever it changed.
    View(Arc<MembershipView>),
    /// A proxy asks for the instance.
    Identify(UniqueAddress),
    /// The instance with this id (never 0) runs here and takes messages.
    Started(u64),
    /// The instance with this id takes no messages any more: it was told to end, or has ended.
    Ended(u64),
    /// A message from this node found no instance here.
    Bounced(UniqueAddress),
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEffect {
    /// Send a message; if it is lost, the proxy asks again or learns by its next message.
    Tell {
        /// The node of the proxy.
        to: UniqueAddress,
        /// The message.
        message: ProxyMessage,
    },
    /// Send `NotHere`, reliably: the proxy has no other reason to ask before it sends again.
    Retract {
        /// The node of the proxy.
        to: UniqueAddress,
        /// The id of the instance.
        instance: u64,
    },
}

/// Tells the proxies of one singleton whether its instance runs on this node.
#[derive(Debug, Default)]
pub struct SingletonHost {
    view: Option<Arc<MembershipView>>,
    /// Members whose proxies asked.
    askers: BTreeSet<UniqueAddress>,
    running: Option<u64>,
}

impl SingletonHost {
    /// A host without an instance.
    pub fn new() -> Self {
        Self::default()
    }

    /// The instance that takes messages here.
    pub fn running(&self) -> Option<u64> {
        self.running
    }

    /// Handles one input.
    pub fn handle(&mut self, input: HostInput, out: &mut Vec<HostEffect>) {
        match input {
            HostInput::View(view) => {
                self.askers.retain(|asker| view.member(asker).is_some());
                self.view = Some(view);
            }
            HostInput::Identify(asker) => self.on_identify(asker, out),
            HostInput::Started(instance) => {
                self.running = Some(instance);
                let message = ProxyMessage::Here { instance };
                out.extend(self.askers.iter().map(|to| HostEffect::Tell { to: to.clone(), message }));
            }
            HostInput::Ended(instance) => {
                if self.running.take_if(|running| *running == instance).is_some() {
                    out.extend(self.askers.iter().map(|to| HostEffect::Retract { to: to.clone(), instance }));
                }
            }
            HostInput::Bounced(to) => {
                if self.running.is_none() {
                    out.push(HostEffect::Tell { to, message: ProxyMessage::NotHere { instance: None } });
                }
            }
        }
        self.check_invariants();
    }

    /// Source: cluster P8.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.askers.len() <= 32 {
            let is_member = |asker: &UniqueAddress| self.view.as_ref().is_some_and(|view| view.member(asker).is_some());
            assert!(self.askers.iter().all(is_member), "only members are told of the instance");
        }
    }

    fn on_identify(&mut self, asker: UniqueAddress, out: &mut Vec<HostEffect>) {
        if self.view.as_ref().is_none_or(|view| view.member(&asker).is_none()) {
            return;
        }
        if let Some(instance) = self.running {
            out.push(HostEffect::Tell { to: asker.clone(), message: ProxyMessage::Here { instance } });
        }
        self.askers.insert(asker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::app_version::AppVersion;
    use crate::membership::member::Member;

    fn view(names: &[&str]) -> HostInput {
        let mut view = MembershipView::empty("a:1#1".parse().unwrap());
        for name in names {
            view.members.insert(Member::joining(name.parse().unwrap(), Arc::default(), AppVersion::default()));
        }
        HostInput::View(Arc::new(view))
    }

    fn told(host: &mut SingletonHost, input: HostInput) -> Vec<HostEffect> {
        let mut out = Vec::new();
        host.handle(input, &mut out);
        out
    }

    /// Cluster P8: the host answers only while the instance runs, and tells its end.
    #[test]
    fn the_host_tells_its_askers_of_the_start_and_the_end() {
        let mut host = SingletonHost::new();
        let (b, c): (UniqueAddress, UniqueAddress) = ("b:1#1".parse().unwrap(), "c:1#1".parse().unwrap());
        let here =
            |to: &UniqueAddress| HostEffect::Tell { to: to.clone(), message: ProxyMessage::Here { instance: 7 } };
        assert_eq!(told(&mut host, HostInput::Identify(b.clone())), [], "no member yet, as far as this node knows");
        told(&mut host, view(&["a:1#1", "b:1#1", "c:1#1"]));
        assert_eq!(told(&mut host, HostInput::Identify(b.clone())), [], "nothing runs here");
        assert_eq!(told(&mut host, HostInput::Started(7)), [here(&b)]);
        assert_eq!(told(&mut host, HostInput::Identify(c.clone())), [here(&c)]);
        assert_eq!(told(&mut host, HostInput::Bounced(b.clone())), [], "it has started since");
        told(&mut host, view(&["a:1#1", "c:1#1"]));
        assert_eq!(told(&mut host, HostInput::Ended(6)), [], "an older one");
        assert_eq!(told(&mut host, HostInput::Ended(7)), [HostEffect::Retract { to: c.clone(), instance: 7 }]);
        assert_eq!(told(&mut host, HostInput::Ended(7)), []);
        let message = ProxyMessage::NotHere { instance: None };
        assert_eq!(told(&mut host, HostInput::Bounced(c.clone())), [HostEffect::Tell { to: c, message }]);
    }
}
