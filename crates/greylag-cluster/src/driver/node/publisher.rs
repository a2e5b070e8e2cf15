//! What the node shows to its subscribers: the view and the events that led to it, in one piece.
//!
//! Source: cluster M32.

use std::sync::Arc;

use crate::driver::events::EventHub;
use crate::membership::event::{ClusterEvent, diff};
use crate::membership::view::MembershipView;

/// A change of the view, and its events.
#[derive(Default)]
pub(super) struct Publication {
    pub(super) view: Option<Arc<MembershipView>>,
    pub(super) events: Vec<ClusterEvent>,
}

/// Publishes views and events.
pub(super) struct Publisher {
    hub: Arc<EventHub>,
    /// The newest view, published or about to be.
    view: Arc<MembershipView>,
    /// Changes that are still to be published, in one piece.
    pending: Publication,
}

impl Publisher {
    pub(super) fn new(hub: Arc<EventHub>, view: Arc<MembershipView>) -> Self {
        Self { hub, view, pending: Publication::default() }
    }

    pub(super) fn hub(&self) -> &Arc<EventHub> {
        &self.hub
    }

    /// The newest view.
    pub(super) fn view(&self) -> &Arc<MembershipView> {
        &self.view
    }

    pub(super) fn on_view(&mut self, view: Arc<MembershipView>) {
        self.view = view.clone();
        self.pending.view = Some(view);
    }

    pub(super) fn on_event(&mut self, event: ClusterEvent) {
        self.pending.events.push(event);
    }

    /// Publishes the view and its events together, because a subscriber that comes in between would get them twice.
    /// Returns what was published, if anything was.
    pub(super) fn publish(&mut self) -> Option<Publication> {
        let publication = std::mem::take(&mut self.pending);
        if publication.view.is_none() && publication.events.is_empty() {
            return None;
        }
        self.hub.publish(publication.view.clone(), &publication.events);
        Some(publication)
    }

    /// Publishes what waits, then the end of the cluster and the removal of all members, since a machine failed.
    pub(super) fn fail(&mut self) {
        let Publication { view, events } = std::mem::take(&mut self.pending);
        self.hub.publish(view, &events);
        let empty = Arc::new(MembershipView::empty(self.view.self_address.clone()));
        let removals = diff(&self.view, &empty);
        self.view = empty.clone();
        self.hub.publish(None, &[ClusterEvent::ClusterShuttingDown]);
        self.hub.publish(Some(empty), &removals);
    }
}
