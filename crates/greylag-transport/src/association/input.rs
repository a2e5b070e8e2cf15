//! The inputs and effects of an association, and the events that listeners hear of it.

use std::collections::BTreeSet;

use greylag_core::{DeadLetterReason, Uid, UniqueAddress};

use crate::holder::Holder;
use crate::lanes::lane::Lane;
use crate::remoting::{QuarantineReason, RejectCode};

/// An input to the [`Association`](super::Association) with one address: an event of its streams and dials, a message
/// of the peer's handshakes, or the word of a layer above about the processes there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A message waits in the queue of a lane at rest.
    Wanted {
        /// The lane.
        lane: Lane,
    },
    /// The dial `seq` was answered: `uid` accepts.
    Accepted {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the dial.
        seq: u64,
        /// The incarnation that answered.
        uid: Uid,
        /// The host that the answer named.
        host_id: Option<String>,
    },
    /// The dial `seq` was refused.
    Rejected {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the dial.
        seq: u64,
        /// The reason of the rejection.
        code: RejectCode,
        /// The incarnation that answered, if it named itself.
        by: Option<Uid>,
        /// With [`RejectCode::Quarantined`]: why we are quarantined there; absent if harmless.
        reason: Option<QuarantineReason>,
        /// With [`RejectCode::NotReady`]: the member that holds our address there.
        holder: Option<UniqueAddress>,
        /// Both sides' values.
        detail: String,
    },
    /// The dial `seq` got no answer, or its stream broke.
    Failed {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the dial.
        seq: u64,
    },
    /// The answer to [`Effect::AskTraffic`].
    Traffic {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the stream.
        seq: u64,
        /// Whether anything was written to it since the last answer, or waits to be.
        any: bool,
    },
    /// A process at the peer's address said Hello; answered by [`Effect::Admit`],
    /// [`Effect::AdmitForJoin`], [`Effect::Hold`] or [`Effect::Refuse`].
    Hello {
        /// The incarnation.
        uid: Uid,
        /// The host that it named.
        host_id: Option<String>,
    },
    /// These members hold the address. Replaces the holders named before (cluster T15).
    Holders {
        /// All of them: mostly one or none.
        holders: Vec<Holder>,
    },
    /// Dial the address anew, so that the process that listens there names itself (cluster M10, M25). At most
    /// once a second.
    Ask,
    /// The incarnation that said Hello last is no member, and was never reached at its address: it is not probed.
    Unproven,
    /// A frame of a quarantined incarnation came, and was dropped.
    Intruded {
        /// The incarnation.
        uid: Uid,
    },
    /// The peer said that it has quarantined us.
    ToldQuarantined {
        /// The incarnation.
        by: Uid,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// The peer announced its orderly end.
    Terminating {
        /// The incarnation.
        uid: Uid,
    },
    /// A layer above quarantines this incarnation.
    Quarantine {
        /// The incarnation.
        uid: Uid,
        /// The reason of the quarantine.
        reason: QuarantineReason,
        /// Whether the quarantine is not told to the peer.
        harmless: bool,
    },
    /// These incarnations were removed from the cluster for good: their quarantines are kept, and those that were no
    /// members here before are refused like quarantined ones. Replaces the tombstones named before.
    Tombstones {
        /// All of them.
        uids: BTreeSet<Uid>,
    },
    /// Open a second stream beside the active one, as a fault (cluster T42).
    Duplicate {
        /// The lane of both streams.
        lane: Lane,
    },
    /// This node shuts down: no lane opens any more.
    Shutdown,
    /// Time has passed: handle the deadlines that are due.
    Tick,
}

/// An effect of the association, which its driver carries out in the order of the effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Connect and say Hello with this `stream_seq`.
    Dial {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the stream.
        seq: u64,
    },
    /// The lane's queue may be written to this stream.
    Open {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the stream.
        seq: u64,
        /// The incarnation that reads the stream.
        uid: Uid,
    },
    /// Write nothing more to this stream but notices.
    Shut {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the stream.
        seq: u64,
    },
    /// End this stream.
    Close {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the stream.
        seq: u64,
    },
    /// Say by [`Input::Traffic`] whether this stream is in use.
    AskTraffic {
        /// The lane of the stream.
        lane: Lane,
        /// The number of the stream.
        seq: u64,
    },
    /// The lane is at rest: the next message has to request a dial by [`Input::Wanted`]. If messages wait already,
    /// request one at once.
    Rest {
        /// The lane.
        lane: Lane,
    },
    /// Another incarnation runs now: end questions to the old one, and offer the messages that wait for it back.
    NewIncarnation {
        /// The new one.
        uid: Uid,
        /// The one before, if there was any.
        old: Option<Uid>,
        /// How many incarnations there have been.
        incarnation: u32,
    },
    /// Make dead letters of the messages that wait in this lane.
    FailQueue {
        /// The lane.
        lane: Lane,
        /// The reason of the drop.
        reason: DeadLetterReason,
    },
    /// Let nothing to or from this incarnation pass any more.
    Block {
        /// The incarnation.
        uid: Uid,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// Offer the messages that wait for this incarnation back.
    HandBack {
        /// The incarnation.
        uid: Uid,
    },
    /// Tell the incarnation on every open stream that it is quarantined here.
    Notify {
        /// The incarnation.
        uid: Uid,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// The quarantine of this incarnation has been unused for so long that it is forgotten.
    Forget {
        /// The incarnation.
        uid: Uid,
    },
    /// A request to quarantine named an incarnation that has been replaced: nothing follows. Reported once per
    /// incarnation.
    Ignored {
        /// The incarnation.
        uid: Uid,
    },
    /// The Hello is accepted as far as this machine can tell.
    Admit,
    /// The stream is accepted, and nothing is learned from its Hello: the caller may ask to join, and is believed to
    /// run at the address once it answers a dial there (cluster T15).
    AdmitForJoin,
    /// The Hello is refused until the member that holds the address is removed (cluster T15).
    Hold {
        /// The member.
        holder: UniqueAddress,
        /// The member, its status, and the event that would end its hold, for people.
        detail: String,
    },
    /// The Hello is refused.
    Refuse {
        /// Why the caller is quarantined; absent if the quarantine is harmless or the incarnation was replaced.
        reason: Option<QuarantineReason>,
    },
    /// Tell the listeners of this event.
    Publish(Event),
}

/// An event of a peer, as listeners hear of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An active stream broke.
    LinkLost {
        /// The incarnation at its other end.
        uid: Uid,
        /// The lane of the stream.
        lane: Lane,
    },
    /// The peer has quarantined this node.
    ThisNodeQuarantined {
        /// The incarnation.
        by: Uid,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// The peer refused our Hello: for good, or until the member that holds our address there is removed.
    HandshakeRejected {
        /// The reason of the rejection.
        code: RejectCode,
        /// With [`RejectCode::NotReady`]: the member that holds our address there.
        holder: Option<UniqueAddress>,
        /// Both sides' values.
        detail: String,
    },
    /// Another process was heard at the address of a member that it cannot have replaced; nothing was learned from it.
    /// Raised at most once a second (cluster T15).
    AddressHeld {
        /// The member.
        holder: UniqueAddress,
        /// The other process.
        claimant: Uid,
    },
    /// The peer ends in order.
    PeerTerminating {
        /// The incarnation.
        uid: Uid,
    },
    /// The peer is quarantined here from now on.
    Quarantined {
        /// The incarnation.
        uid: Uid,
        /// The reason of the quarantine.
        reason: QuarantineReason,
        /// Whether the quarantine is not told to the peer.
        harmless: bool,
    },
}
