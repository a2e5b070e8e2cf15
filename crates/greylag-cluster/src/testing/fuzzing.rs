//! Properties that must hold for every sequence of bytes that a peer may send; for `fuzz/` and the tests.
//!
//! A function here panics only if a property is violated. Not part of the public API.

use bytes::Bytes;

use crate::driver::watch::wire as watch_wire;
use crate::{bootstrap, wire};

/// Every message of the membership protocol, by its name on the wire.
const MANIFESTS: [&str; 14] = [
    "cluster.init-join",
    "cluster.init-join-ack",
    "cluster.init-join-nack",
    "cluster.join",
    "cluster.join-deferred",
    "cluster.join-rejected",
    "cluster.welcome",
    "cluster.gossip",
    "cluster.gossip-status",
    "cluster.exiting-confirmed",
    "cluster.island-probe",
    "cluster.island-probe-answer",
    "cluster.heartbeat",
    "cluster.heartbeat-rsp",
];

/// Reads a message; the first byte chooses which. A message that was read, written and read again must be the same.
pub fn message(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let manifest = MANIFESTS[usize::from(*kind) % MANIFESTS.len()];
    let Ok(message) = wire::decode(manifest, Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(wire::decode(message.manifest(), wire::encode(&message)).as_ref().ok(), Some(&message));
}

/// Reads a message between singleton managers.
pub fn singleton(input: &[u8]) {
    let Ok(message) = wire::decode_singleton(Bytes::copy_from_slice(input)) else { return };
    assert_eq!(wire::decode_singleton(wire::encode_singleton(&message)).ok(), Some(message));
}

/// Reads a message of the bootstrap.
pub fn bootstrap(input: &[u8]) {
    let Some(message) = bootstrap::wire::decode(&Bytes::copy_from_slice(input)) else { return };
    assert_eq!(bootstrap::wire::decode(&bootstrap::wire::encode(message)), Some(message));
}

/// Reads a message between watchers.
pub fn watch(input: &[u8]) {
    let Some(message) = watch_wire::decode(input) else { return };
    assert_eq!(watch_wire::decode(&watch_wire::encode(&message)), Some(message));
}

/// Reads a message between a proxy and a node that may run the instance.
pub fn singleton_proxy(input: &[u8]) {
    let Ok(message) = wire::decode_proxy(Bytes::copy_from_slice(input)) else { return };
    assert_eq!(wire::decode_proxy(wire::encode_proxy(message)).ok(), Some(message));
}

/// An input for [`message`].
#[cfg(test)]
pub(crate) fn input(message: &crate::membership::message::Message) -> Vec<u8> {
    let kind = MANIFESTS.iter().position(|manifest| *manifest == message.manifest());
    let kind = u8::try_from(kind.expect("the manifest is known")).expect("there are few");
    [[kind].as_slice(), &wire::encode(message)].concat()
}
