//! The receivers of an entity type's three paths.
//!
//! Runs on the transport's decode workers: one worker handles all frames of one shard and peer, so frames and marks
//! come in the order in which the peer enqueued them. Source: sharding §2.1.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};

use bytes::{Buf, Bytes};
use greylag_core::{CodecId, DeadLetterReason, Manifest, ReplyScope, UniqueAddress};
use greylag_transport::{Inbound, Receiver};

use crate::driver::lanes::handover::Handover;
use crate::driver::node::clock;
use crate::driver::region::shared::{RegionInner, undelivered};
use crate::frame;
use crate::ids::ShardId;
use crate::machine::region::Input;
use crate::parcel::{AskTag, Content, Parcel};
use crate::routes::Open;
use crate::start::{START_MANIFEST, read_request};

/// The path of a receiver.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    /// Messages and marks.
    Data,
    /// Messages to single incarnations.
    Direct,
}

/// A receiver that is registered before its region exists, because the region's id is taken from the registration.
pub(crate) struct Wire<M> {
    path: Path,
    shared: OnceLock<Weak<RegionInner<M>>>,
}

impl<M> Wire<M> {
    pub(crate) fn new(path: Path) -> Arc<Self> {
        Arc::new(Self { path, shared: OnceLock::new() })
    }

    pub(crate) fn connect(&self, shared: &Arc<RegionInner<M>>) {
        self.shared.set(Arc::downgrade(shared)).ok();
    }
}

impl<M: Send + 'static> Receiver for Wire<M> {
    fn receive(&self, message: Inbound) {
        self.receive_all(&mut std::iter::once(message));
    }

    fn receive_all(&self, messages: &mut dyn Iterator<Item = Inbound>) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return messages.for_each(drop) };
        let mut handover = Handover::new();
        for message in messages {
            let taken = match self.path {
                Path::Data if message.codec == CodecId::INTERNAL && message.manifest == frame::MARK_MANIFEST => {
                    handover.end(&shared);
                    on_mark(&shared, &message)
                }
                Path::Data => on_frame(&shared, &message, &mut handover),
                Path::Direct => on_direct(&shared, &message),
            };
            if let Err(reason) = taken {
                shared.remoting().refuse(&message, reason);
            }
        }
        handover.end(&shared);
    }
}

/// The name of a message's shard, and its number here.
fn shard_of<'a, M: Send + 'static>(
    shared: &RegionInner<M>,
    message: &'a Inbound,
) -> Result<(&'a Arc<str>, u32), DeadLetterReason> {
    let name = message.recipient.sub_path.as_ref().ok_or(DeadLetterReason::InvalidShardId)?;
    let number = match shared.shards.number(name) {
        Some(known) => known,
        None => shared.shards.intern(&ShardId::new(name.clone())?)?,
    };
    Ok((name, number))
}

fn on_mark<M: Send + 'static>(shared: &Arc<RegionInner<M>>, message: &Inbound) -> Result<(), DeadLetterReason> {
    let (shard, _) = shard_of(shared, message)?;
    let mark = frame::decode_mark(&message.payload, shared.node.horizon).map_err(|error| error.reason())?;
    shared.input(Input::Mark { node: message.from.clone(), shard: ShardId::new(shard.clone())?, mark });
    Ok(())
}

fn on_frame<M: Send + 'static>(
    shared: &Arc<RegionInner<M>>,
    message: &Inbound,
    handover: &mut Handover<M>,
) -> Result<(), DeadLetterReason> {
    let (shard, number) = shard_of(shared, message)?;
    let (header, length) = frame::read_header(&message.payload, shared.node.horizon).map_err(|error| error.reason())?;
    if header.digest != shared.lanes.data.digest {
        return Err(DeadLetterReason::FingerprintMismatch);
    }
    let Inbound { from, codec, manifest, ask, .. } = message;
    let tag = ask.map(|ask| Box::new(AskTag::of_another(from.clone(), ask.id, clock::now(), ask.budget)));
    let mut payload = message.payload.clone();
    payload.advance(length);
    let size = payload.len();
    // Push straight to the shard's inbox, past the machine: the origin is admitted.
    if header.is_straight()
        && let Some(cell) = shared.shards.routes.cell(number)
        && let Some(Open::Local(local)) = cell.load().as_deref()
        && header.generation == local.generation
        && let Some(origin) = local.admitted(from, header.incarnation)
    {
        let content = read_content(shared, *codec, manifest, payload, ask.map(|ask| (from, ask.id)));
        let content = content.map_err(|()| DeadLetterReason::Undecodable)?;
        let parcel = Parcel { origin: Some(origin), ..Parcel::of_wire(header.id, content, tag, size) };
        handover.add(number, local, parcel);
        return Ok(());
    }
    // The machine must get the frame after the frames before it.
    handover.end(shared);
    let (stamp, id) = header.into_stamp(from);
    let content = Content::Bytes { codec: *codec, manifest: manifest.clone(), payload };
    let (node, shard) = (from.clone(), ShardId::new(shard.clone())?);
    let parcel = Parcel::of_wire(id, content, tag, size);
    shared.input_with(parcel, |message| Input::Frame { node, shard, stamp, message });
    Ok(())
}

fn on_direct<M: Send + 'static>(shared: &Arc<RegionInner<M>>, message: &Inbound) -> Result<(), DeadLetterReason> {
    let mut payload = message.payload.clone();
    let instance = frame::take_direct(&mut payload).map_err(|error| error.reason())?;
    let asker = message.ask.map(|ask| (&message.from, ask.id));
    let value =
        decode(shared, message.codec, &message.manifest, payload, asker).map_err(|()| DeadLetterReason::Undecodable)?;
    let size = u32::try_from(message.payload.len()).unwrap_or(u32::MAX);
    shared.deliver_direct(message.recipient.below(), instance, value, size).map_err(|(value, reason)| {
        undelivered(value, reason);
        reason
    })
}

/// Decodes a message; reply tokens in it answer through this node's port. If decoding fails, the tokens report that,
/// except for the token of `asker`, to which the caller answers.
pub(crate) fn decode<M: Send + 'static>(
    shared: &RegionInner<M>,
    codec: CodecId,
    manifest: &Manifest,
    payload: Bytes,
    asker: Option<(&UniqueAddress, u64)>,
) -> Result<M, ()> {
    let own = shared.entity_type.common.codec.as_ref().filter(|own| own.id() == codec).ok_or(())?;
    let scope = ReplyScope::enter(shared.remoting().reply_port());
    let read = catch_unwind(AssertUnwindSafe(|| own.decode(manifest, payload).map_err(|error| error.to_string())));
    read.unwrap_or_else(|_| Err("the codec panicked".to_owned())).map_err(|error| {
        tracing::warn!(entity_type = %shared.name, error, "message could not be read");
        scope.refuse(DeadLetterReason::Undecodable, asker);
    })
}

/// The parcel with its message decoded, or the unchanged parcel.
pub(crate) fn read<M: Send + 'static>(shared: &RegionInner<M>, mut parcel: Parcel<M>) -> Result<Parcel<M>, Parcel<M>> {
    if let Content::Bytes { codec, manifest, payload } = &parcel.content {
        let asker = parcel.ask.as_ref().and_then(|ask| Some((ask.asker.as_ref()?, ask.id)));
        match read_content(shared, *codec, manifest, payload.clone(), asker) {
            Ok(content) => parcel.content = content,
            Err(()) => return Err(parcel),
        }
    }
    Ok(parcel)
}

/// Decodes the content for an entity: a message, or a request to start it.
fn read_content<M: Send + 'static>(
    shared: &RegionInner<M>,
    codec: CodecId,
    manifest: &Manifest,
    payload: Bytes,
    asker: Option<(&UniqueAddress, u64)>,
) -> Result<Content<M>, ()> {
    if codec == CodecId::INTERNAL && *manifest == START_MANIFEST {
        let _scope = ReplyScope::enter(shared.remoting().reply_port());
        return read_request(&payload).map(Content::Start).map_err(|_| ());
    }
    decode(shared, codec, manifest, payload, asker).map(Content::value)
}

#[cfg(test)]
mod tests;
