//! The receivers of an entity type's three paths.
//!
//! Runs on the transport's decode workers: all of one shard and peer comes by the same worker, so frames and marks come
//! in the order in which they were enqueued there. Source: sharding §2.1.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use greylag_core::{CodecId, DeadLetterReason, Manifest, ReplyScope, UniqueAddress};
use greylag_transport::{Inbound, Receiver};

use super::clock;
use super::shared::{Shared, undelivered};
use crate::frame;
use crate::ids::ShardId;
use crate::inbox::Refused;
use crate::machine::region::Input;
use crate::parcel::{AskTag, Content, Parcel};
use crate::routes::Open;
use crate::start::{START_MANIFEST, read_request};

/// Which path a receiver stands at.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    /// Messages and marks.
    Data,
    /// Messages to single incarnations.
    Direct,
}

/// A receiver that is registered before its region exists, because the region is named by it.
pub(crate) struct Wire<M> {
    path: Path,
    shared: OnceLock<Weak<Shared<M>>>,
}

impl<M> Wire<M> {
    pub(crate) fn new(path: Path) -> Arc<Self> {
        Arc::new(Self { path, shared: OnceLock::new() })
    }

    pub(crate) fn connect(&self, shared: &Arc<Shared<M>>) {
        self.shared.set(Arc::downgrade(shared)).ok();
    }
}

impl<M: Send + 'static> Receiver for Wire<M> {
    fn receive(&self, message: Inbound) {
        let Some(shared) = self.shared.get().and_then(Weak::upgrade) else { return };
        let taken = match self.path {
            Path::Data if message.codec == CodecId::INTERNAL && message.manifest == frame::MARK_MANIFEST => {
                on_mark(&shared, &message)
            }
            Path::Data => on_frame(&shared, &message),
            Path::Direct => on_direct(&shared, &message),
        };
        if let Err(reason) = taken {
            shared.remoting().refuse(&message, reason);
        }
    }
}

fn shard_of<M: Send + 'static>(shared: &Shared<M>, message: &Inbound) -> Result<(ShardId, u32), DeadLetterReason> {
    let shard = ShardId::new(message.recipient.sub_path.clone().ok_or(DeadLetterReason::InvalidShardId)?)?;
    let number = shared.meet(&shard)?;
    Ok((shard, number))
}

fn on_mark<M: Send + 'static>(shared: &Arc<Shared<M>>, message: &Inbound) -> Result<(), DeadLetterReason> {
    let (shard, _) = shard_of(shared, message)?;
    let mark = frame::decode_mark(message.payload.clone(), shared.node.horizon).map_err(|error| error.reason())?;
    shared.input(Input::Mark { node: message.from.clone(), shard, mark });
    Ok(())
}

fn on_frame<M: Send + 'static>(shared: &Arc<Shared<M>>, message: &Inbound) -> Result<(), DeadLetterReason> {
    let (shard, index) = shard_of(shared, message)?;
    let mut payload = message.payload.clone();
    let header =
        frame::take_header(&message.from, &mut payload, shared.node.horizon).map_err(|error| error.reason())?;
    if header.digest != shared.digest {
        return Err(DeadLetterReason::FingerprintMismatch);
    }
    let stamp = header.stamp;
    let ask =
        message.ask.map(|ask| Box::new(AskTag::of_another(message.from.clone(), ask.id, clock::now(), ask.budget)));
    let bytes = payload.len();
    let content = Content::Bytes { codec: message.codec, manifest: message.manifest.clone(), payload };
    let mut parcel = Parcel::of_wire(header.id, content, ask, bytes);

    // Straight from an admitted origin: into the shard's inbox, past the machine.
    if stamp.hops == 0
        && !stamp.leftover
        && let Some(Open::Local(local)) = shared.routes.cell(index).and_then(|cell| cell.load().clone()).as_deref()
        && stamp.generation == local.generation
        && let Some(origin) = local.admitted(&stamp.origin)
    {
        parcel = read(shared, parcel).map_err(|_| DeadLetterReason::Undecodable)?;
        parcel.origin = Some(origin);
        let size = parcel.size;
        match local.inbox.push(parcel, size) {
            Ok(()) => return Ok(()),
            Err(Refused::Full(refused)) => {
                shared.dead_letter(refused, DeadLetterReason::ShardInboxFull);
                return Ok(());
            }
            Err(Refused::Sealed(refused)) => parcel = refused,
        }
    }
    let node: UniqueAddress = message.from.clone();
    shared.input_with(parcel, |message| Input::Frame { node, shard, stamp, message });
    Ok(())
}

fn on_direct<M: Send + 'static>(shared: &Arc<Shared<M>>, message: &Inbound) -> Result<(), DeadLetterReason> {
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

/// Reads a message; reply tokens in it answer through this node's port. If it cannot be read, they answer so, but for that
/// of `asker`, who hears it from the caller.
pub(crate) fn decode<M: Send + 'static>(
    shared: &Shared<M>,
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

/// The parcel with its message read, or as it was.
pub(crate) fn read<M: Send + 'static>(shared: &Shared<M>, mut parcel: Parcel<M>) -> Result<Parcel<M>, Parcel<M>> {
    if let Content::Bytes { codec: CodecId::INTERNAL, manifest, payload } = &parcel.content
        && *manifest == START_MANIFEST
    {
        let _scope = ReplyScope::enter(shared.remoting().reply_port());
        let request = read_request(payload);
        return match request {
            Ok(reply_to) => {
                parcel.content = Content::Start(Box::new(reply_to));
                Ok(parcel)
            }
            Err(_) => Err(parcel),
        };
    }
    if let Content::Bytes { codec, manifest, payload } = &parcel.content {
        let asker = parcel.ask.as_ref().and_then(|ask| Some((ask.asker.as_ref()?, ask.id)));
        match decode(shared, *codec, manifest, payload.clone(), asker) {
            Ok(message) => parcel.content = Content::value(message),
            Err(()) => return Err(parcel),
        }
    }
    Ok(parcel)
}
