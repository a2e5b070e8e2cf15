//! Finds the singleton, and keeps messages while nobody knows where it is.
//!
//! The proxy follows the oldest member with the role. While there is none it buffers a bounded
//! number of messages, and drops the oldest when that is full. Source: cluster P8.

use std::collections::VecDeque;

use greylag_core::UniqueAddress;

use crate::view::MembershipView;

/// What is to be done with a message, or because of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyEffect<M> {
    /// Send the message to the singleton on this node.
    Forward(UniqueAddress, M),
    /// The buffer was full, or this node ends: the message is a dead letter `ProxyBufferFull`.
    Drop(M),
}

/// Routes the messages of one node to one singleton.
#[derive(Debug)]
pub struct SingletonProxy<M> {
    role: Option<String>,
    capacity: usize,
    host: Option<UniqueAddress>,
    buffer: VecDeque<M>,
}

impl<M> SingletonProxy<M> {
    /// Buffers at most `capacity` messages; 0 drops them at once.
    pub fn new(role: Option<String>, capacity: usize) -> Self {
        Self { role, capacity: capacity.min(10_000), host: None, buffer: VecDeque::new() }
    }

    /// Where the singleton is, as far as is known.
    pub fn host(&self) -> Option<&UniqueAddress> {
        self.host.as_ref()
    }

    /// The membership changed: what was buffered goes out first, in order.
    pub fn on_view(&mut self, view: &MembershipView, out: &mut Vec<ProxyEffect<M>>) {
        self.host = view.oldest(self.role.as_deref()).map(|member| member.address.clone());
        if let Some(host) = &self.host {
            out.extend(self.buffer.drain(..).map(|message| ProxyEffect::Forward(host.clone(), message)));
        }
    }

    /// A message for the singleton.
    pub fn send(&mut self, message: M, out: &mut Vec<ProxyEffect<M>>) {
        match &self.host {
            Some(host) => out.push(ProxyEffect::Forward(host.clone(), message)),
            None if self.capacity == 0 => out.push(ProxyEffect::Drop(message)),
            None => {
                if self.buffer.len() >= self.capacity {
                    out.extend(self.buffer.pop_front().map(ProxyEffect::Drop));
                }
                self.buffer.push_back(message);
            }
        }
    }

    /// This node ends: what is still buffered is lost, and counted.
    pub fn stop(&mut self, out: &mut Vec<ProxyEffect<M>>) {
        self.host = None;
        self.capacity = 0;
        out.extend(self.buffer.drain(..).map(ProxyEffect::Drop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app_version::AppVersion;
    use crate::member::{Member, MemberStatus};

    #[test]
    fn the_oldest_buffered_message_is_dropped_and_the_rest_flushed_in_order() {
        let node: UniqueAddress = "a:1#1".parse().unwrap();
        let mut proxy = SingletonProxy::new(None, 2);
        let mut out = Vec::new();
        for message in 1..=3 {
            proxy.send(message, &mut out);
        }
        assert_eq!(out, [ProxyEffect::Drop(1)]);
        out.clear();
        let mut view = MembershipView::empty(node.clone());
        let mut member = Member::joining(node.clone(), std::sync::Arc::default(), AppVersion::default());
        (member.status, member.up_number) = (MemberStatus::Up, 1);
        view.members.insert(member);
        proxy.on_view(&view, &mut out);
        proxy.send(4, &mut out);
        assert_eq!(out, [2, 3, 4].map(|message| ProxyEffect::Forward(node.clone(), message)));
    }
}
