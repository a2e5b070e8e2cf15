//! Nodes and their addresses.

use greylag_core::{NodeAddress, Uid, UniqueAddress};

use super::limits::MAX_TEXT;
use super::malformed::Malformed;
use crate::generated as pb;

pub(super) fn write_node(node: &UniqueAddress) -> pb::Node {
    let address = node.address();
    pb::Node { host: address.host().to_owned(), port: address.port().into(), uid: node.uid().get() }
}

pub(super) fn read_node(node: Option<pb::Node>) -> Result<UniqueAddress, Malformed> {
    let node = node.ok_or_else(|| Malformed("a node is missing".to_owned()))?;
    let uid = Uid::new(node.uid).ok_or_else(|| Malformed("a node has uid 0".to_owned()))?;
    Ok(UniqueAddress::new(read_address(&node.host, node.port)?, uid))
}

pub(super) fn check_text(text: &str) -> Result<&str, Malformed> {
    if text.len() > MAX_TEXT {
        return Err(Malformed(format!("a text of {} bytes, at most {MAX_TEXT} are allowed", text.len())));
    }
    Ok(text)
}

pub(super) fn read_address(host: &str, port: u32) -> Result<NodeAddress, Malformed> {
    check_text(host)?;
    let port = u16::try_from(port).map_err(|_| Malformed(format!("port {port} does not exist")))?;
    NodeAddress::new(host, port).map_err(|error| Malformed(error.to_string()))
}
